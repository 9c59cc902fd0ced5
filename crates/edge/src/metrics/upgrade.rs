//! Metrics of upgrades, and of processes that drain after one.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::ReasonLabel;

/// Number of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ProcessLabel {
    pub(crate) process: u64,
}

/// Figures about upgrades, registered together.
pub(crate) struct UpgradeMetrics {
    pub(crate) process: Gauge,
    pub(crate) upgrades: Family<ReasonLabel, Counter>,
    pub(crate) connections: Family<ProcessLabel, Gauge>,
    pub(crate) datagrams: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) panics: Counter,
    pub(crate) kernel_steering: Gauge,
}

impl UpgradeMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            process: figure!(
                registry,
                "process",
                "Number of the serving process: 1, plus one for each upgrade",
                Gauge::default()
            ),
            upgrades: figure!(registry, "upgrades", "Upgrades begun by this process, by result", Family::default()),
            connections: figure!(
                registry,
                "older_process_connections",
                "Open connections of older processes",
                Family::default()
            ),
            datagrams: figure!(
                registry,
                "older_process_datagrams",
                "Reads of UDP sockets for connections of older processes since the start: forwarded (sent), dropped because the process \
                 reads too slowly (no-room) or has ended (gone), and, in an older process, received (received); passed to it by the \
                 kernel (steered), and payloads of another process among these (misdirected)",
                Family::default()
            ),
            kernel_steering: figure!(
                registry,
                "kernel_steering",
                "1 if the kernel passes packets of older processes to them, 0 if all are forwarded",
                Gauge::default()
            ),
            panics: figure!(
                registry,
                "worker_panics",
                "Panics of workers while they drove a UDP socket, those of older processes included: a new process took over",
                Counter::default()
            ),
        }
    }
}
