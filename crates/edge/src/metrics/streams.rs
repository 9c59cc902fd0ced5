//! Metrics of streams of other protocols.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{ProtocolLabel, ResultLabels};

/// Figures about streams of other protocols, registered together.
pub(crate) struct StreamMetrics {
    pub(crate) begun: Family<ProtocolLabel, Counter>,
    pub(crate) ended: Family<ResultLabels, Counter>,
    pub(crate) in_flight: Family<ProtocolLabel, Gauge>,
}

impl StreamMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            begun: figure!(
                registry,
                "streams_begun",
                "Streams of other protocols begun; equals streams ended plus streams in flight",
                Family::default()
            ),
            ended: figure!(
                registry,
                "streams",
                "Streams of other protocols that have ended, by result",
                Family::default()
            ),
            in_flight: figure!(
                registry,
                "streams_in_flight",
                "Streams of other protocols in flight",
                Family::default()
            ),
        }
    }
}
