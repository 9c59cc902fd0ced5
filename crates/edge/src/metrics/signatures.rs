//! Metrics of signatures that another machine makes.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Outcome of a request for a signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SignatureLabels {
    /// `signed`, or the reason for which the signer has not.
    pub(crate) reason: &'static str,
    /// `signer`, `here` for a fall-back, `nobody` for a handshake that has failed.
    pub(crate) by: &'static str,
}

/// Signatures of all generations.
#[derive(Clone, Debug)]
pub(crate) struct SignatureMetrics {
    signatures: Family<SignatureLabels, Counter>,
    seconds: Histogram,
    up: Gauge,
}

impl SignatureMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            signatures: Family::default(),
            seconds: Histogram::new([
                0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ]),
            up: Gauge::default(),
        };
        let help = "Signatures that were asked of the signer, by outcome and by the side that signed";
        registry.register("signatures", help, this.signatures.clone());
        registry.register("signature_seconds", "Time of a signature that the signer made", this.seconds.clone());
        let help = "1 while there is a connection to the signer, -1 where there is no [signer]";
        this.up.set(-1);
        registry.register("signer_up", help, this.up.clone());
        this
    }

    /// Notes a signature of the signer.
    pub(crate) fn signed(&self, time: Duration) {
        self.signatures.get_or_create(&SignatureLabels { reason: "signed", by: "signer" }).inc();
        self.seconds.observe(time.as_secs_f64());
    }

    /// Notes that the signer has not signed, and whether this side does in its place.
    pub(crate) fn not_signed(&self, reason: &'static str, is_made_here: bool) {
        let by = if is_made_here { "here" } else { "nobody" };
        self.signatures.get_or_create(&SignatureLabels { reason, by }).inc();
    }

    /// Notes whether there is a connection.
    pub(crate) fn set_up(&self, is_up: bool) {
        self.up.set(is_up.into());
    }

    /// Notes that there is no signer.
    pub(crate) fn set_none(&self) {
        self.up.set(-1);
    }
}
