//! Metrics of QUIC.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{DirectionLabels, ReasonLabel, VersionLabel};

/// Figures about QUIC, registered together.
pub(crate) struct QuicMetrics {
    pub(crate) early_data: Family<ReasonLabel, Counter>,
    pub(crate) early_data_register: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) path_changes: Counter,
    pub(crate) packets: Family<DirectionLabels, Counter>,
    pub(crate) endpoint: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) received: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) versions: Family<VersionLabel, Counter>,
    pub(crate) repair: Family<ReasonLabel, Counter>,
}

impl QuicMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            early_data: figure!(
                registry,
                "quic_early_data",
                "QUIC connections, by result of early data",
                Family::default()
            ),
            early_data_register: figure!(
                registry,
                "early_data_register",
                "Answers of the strike register since the start: first, again (refused), none (refused)",
                Family::default()
            ),
            path_changes: figure!(
                registry,
                "quic_path_changes",
                "Migrations of QUIC clients to another address",
                Counter::default()
            ),
            packets: figure!(
                registry,
                "quic_packets",
                "Packets of QUIC connections that have ended",
                Family::default()
            ),
            endpoint: figure!(
                registry,
                "quic_endpoint",
                "Events of QUIC endpoints outside of connections, since the start",
                Family::default()
            ),
            received: figure!(
                registry,
                "quic_received",
                "Datagrams that UDP sockets have received since the start (datagrams), in so many reads of one or of several (reads)",
                Family::default()
            ),
            versions: figure!(registry, "quic_versions", "QUIC connections by version", Family::default()),
            repair: figure!(
                registry,
                "quic_repair",
                "Forward error correction of ended QUIC connections: protected packets (protected), repair packets (sent), lost packets \
                 rebuilt by the client (rebuilt_there), lost packets of clients rebuilt here (rebuilt_here)",
                Family::default()
            ),
        }
    }
}
