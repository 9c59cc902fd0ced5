//! Metrics of memory.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::ReasonLabel;

/// Figures about memory, registered together.
pub(crate) struct MemoryMetrics {
    pub(crate) bytes: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) refused: Counter,
    pub(crate) closed: Family<ReasonLabel, Counter>,
}

impl MemoryMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            bytes: figure!(
                registry,
                "memory_bytes",
                "Memory charged to clients (held), and its limit (limit)",
                Family::default()
            ),
            refused: figure!(
                registry,
                "memory_refused",
                "TCP connections refused because memory was scarce",
                Counter::default()
            ),
            closed: figure!(
                registry,
                "memory_closed",
                "TCP connections closed because they held most when memory was used up",
                Family::default()
            ),
        }
    }
}
