//! Metrics of back ends.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A back end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BackEndLabel {
    pub(crate) back_end: String,
}

/// A back end and the result of a request to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BackEndResult {
    pub(crate) back_end: String,
    pub(crate) result: &'static str,
}

/// Name of a back end, and the result of its look-up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NameResult {
    pub(crate) back_end: String,
    pub(crate) result: &'static str,
}

/// A back end and the reason for a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BackEndReason {
    pub(crate) back_end: String,
    pub(crate) reason: &'static str,
}

/// Reasons for failures of QUIC to a back end.
const REASONS: [&str; 9] =
    ["certificate", "drained", "name", "other", "refused", "socket", "timeout", "tls", "version"];

/// Results of requests to back ends.
const RESULTS: [&str; 6] = ["answered", "broken", "cancelled", "queued", "timeout", "unreachable"];

/// Figures about back ends, registered together.
pub(crate) struct BackEndMetrics {
    pub(crate) requests: Family<BackEndResult, Counter>,
    pub(crate) up: Family<BackEndLabel, Gauge>,
    pub(crate) retries: Counter,
    pub(crate) look_ups: Family<NameResult, Counter>,
    pub(crate) connections: Family<BackEndLabel, Gauge>,
    pub(crate) quic_failures: Family<BackEndReason, Counter>,
}

impl BackEndMetrics {
    /// Forgets a back end that is gone.
    pub(crate) fn forget(&self, back_end: &str) {
        for result in RESULTS {
            self.requests.remove(&BackEndResult { back_end: back_end.to_owned(), result });
        }
        for reason in REASONS {
            self.quic_failures.remove(&BackEndReason { back_end: back_end.to_owned(), reason });
        }
    }
}

impl BackEndMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: figure!(registry, "back_end_requests", "Requests to back ends, by result", Family::default()),
            up: figure!(registry, "back_end_up", "1 while the back end is well", Family::default()),
            retries: figure!(registry, "retries", "Requests tried again", Counter::default()),
            look_ups: figure!(
                registry,
                "back_end_look_ups",
                "Look-ups of names of back ends, by result: found, failed",
                Family::default()
            ),
            connections: figure!(
                registry,
                "back_end_quic_connections",
                "Open connections over QUIC to back ends",
                Family::default()
            ),
            quic_failures: figure!(
                registry,
                "back_end_quic_failures",
                "Failures of QUIC to back ends, after which TCP is used, by reason",
                Family::default()
            ),
        }
    }
}
