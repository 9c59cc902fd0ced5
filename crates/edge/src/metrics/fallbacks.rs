//! Metrics of clients that used TCP although QUIC is advertised: their number, and the reasons as far as known.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::ReasonLabel;

/// Labels: the reason, and how the client knew of QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
    client: &'static str,
}

/// Reasons that clients report; any other is `other`.
const REASONS: [&str; 3] = ["blocked", "bad-path", "refused"];

/// Metrics of fall-backs.
#[derive(Clone, Default)]
pub(crate) struct FallbackMetrics {
    seen: Family<Labels, Counter>,
    reported: Family<ReasonLabel, Counter>,
}

impl FallbackMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register(
            "fallbacks",
            "Clients (addresses) that used TCP although they knew of HTTP/3 (client: advertised, used, attempted), by the evidence from \
             UDP; each at most once in ten minutes",
            this.seen.clone(),
        );
        registry.register(
            "fallbacks_reported",
            "Reasons for a fall-back that clients have reported on request",
            this.reported.clone(),
        );
        this
    }

    /// Counts a reason that a client has reported.
    pub(crate) fn count_report(&self, word: &[u8]) {
        let reason = REASONS.into_iter().find(|reason| reason.as_bytes() == word).unwrap_or("other");
        self.reported.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A client fell back.
    pub(crate) fn count(&self, reason: &'static str, client: &'static str) {
        self.seen.get_or_create(&Labels { reason, client }).inc();
    }
}
