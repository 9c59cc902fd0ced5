//! Metrics of signatures that another machine makes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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

    /// State of a link, which the gauge does not have yet.
    pub(crate) fn link_state(&self) -> Arc<LinkState> {
        Arc::new(LinkState { gauge: self.up.clone(), state: Mutex::default() })
    }

    /// Notes that there is no signer.
    pub(crate) fn set_none(&self) {
        self.up.set(-1);
    }
}

/// State of a link, connected or not. The gauge has the state of the link in use alone: one of a reload that failed, and one that only old
/// handshakes still use, leave it as it is.
#[derive(Debug)]
pub(crate) struct LinkState {
    gauge: Gauge,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_up: bool,
    is_in_use: bool,
}

impl LinkState {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.is_in_use {
            self.gauge.set(state.is_up.into());
        }
    }

    /// Notes whether there is a connection.
    pub(crate) fn set_up(&self, is_up: bool) {
        self.change(|state| state.is_up = is_up);
    }

    /// Notes whether new handshakes use the link.
    pub(crate) fn set_in_use(&self, is_in_use: bool) {
        self.change(|state| state.is_in_use = is_in_use);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_has_the_state_of_the_link_in_use() {
        let metrics = SignatureMetrics::register(&mut Registry::default());
        assert_eq!(metrics.up.get(), -1);
        let (first, failed, second) = (metrics.link_state(), metrics.link_state(), metrics.link_state());
        first.set_in_use(true);
        assert_eq!(metrics.up.get(), 0);
        first.set_up(true);
        // A reload that fails connects, too, and ends.
        failed.set_up(true);
        first.set_up(false);
        assert_eq!(metrics.up.get(), 0);
        second.set_up(true);
        first.set_in_use(false);
        second.set_in_use(true);
        first.set_up(false);
        assert_eq!(metrics.up.get(), 1);
        second.set_in_use(false);
        metrics.set_none();
        second.set_up(false);
        assert_eq!(metrics.up.get(), -1);
    }
}
