//! Clients that came over TCP although there is QUIC: how many, and what is known of why.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::ReasonLabel;

/// Why, and how the client knew of QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
    client: &'static str,
}

/// What clients say about it; what else they say is `other`.
const REASONS: [&str; 3] = ["blocked", "bad-path", "refused"];

/// The figures.
#[derive(Clone, Default)]
pub(crate) struct FallbackFigures {
    seen: Family<Labels, Counter>,
    reported: Family<ReasonLabel, Counter>,
}

impl FallbackFigures {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register(
            "fallbacks",
            "Clients by address that came over TCP although they knew of HTTP/3 (client: told, spoke it, or tried it), by what UDP has \
             shown of them; each at most once in ten minutes",
            this.seen.clone(),
        );
        registry.register(
            "fallbacks_reported",
            "What clients that were asked for it have said about why they fell back",
            this.reported.clone(),
        );
        this
    }

    /// A client says why it fell back.
    pub(crate) fn count_report(&self, word: &[u8]) {
        let reason = REASONS.into_iter().find(|reason| reason.as_bytes() == word).unwrap_or("other");
        self.reported.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A client fell back.
    pub(crate) fn count(&self, reason: &'static str, client: &'static str) {
        self.seen.get_or_create(&Labels { reason, client }).inc();
    }
}
