//! Metrics of datagrams between machines that serve one address.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::ReasonLabel;

/// Server ID of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MachineLabel {
    pub(crate) machine: String,
}

/// Server ID of a machine, and a direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MachineLabels {
    pub(crate) machine: String,
    pub(crate) direction: &'static str,
}

/// Figures about other machines, registered together.
pub(crate) struct OtherMachineMetrics {
    pub(crate) up: Family<MachineLabel, Gauge>,
    pub(crate) datagrams: Family<MachineLabels, Gauge<f64, AtomicU64>>,
    pub(crate) dropped: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
}

impl OtherMachineMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            up: figure!(
                registry,
                "other_machine_up",
                "1 while a machine of [[load-balancer.machine]] answers health checks",
                Family::default()
            ),
            datagrams: figure!(
                registry,
                "other_machine_datagrams",
                "Datagrams of clients since the start: sent to the machine that holds their connection (forwarded), its answers sent to the \
                 clients (answered), and those that the machine has forwarded here (received)",
                Family::default()
            ),
            dropped: figure!(
                registry,
                "other_machine_datagrams_dropped",
                "Datagrams dropped since the start, by reason: of another machine's connection, and forwarded before (again), beyond \
                 forward-rate (rate), not taken by the system (unsent), answers from an address of no machine (stranger) or without a good \
                 header (malformed), and headers that are malformed or from an address that is not trusted (untrusted)",
                Family::default()
            ),
        }
    }
}
