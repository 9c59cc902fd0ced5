//! Path statistics of clients: handshake times, round-trip times, losses; of all connections, and by policy.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tiderace::Stats;

/// Labels of a connection: listener, transport (QUIC or TLS on TCP), kind of handshake.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct HandshakeLabels {
    pub(crate) listener: String,
    /// `quic` or `tcp`.
    pub(crate) transport: &'static str,
    /// `full`, `resumed`, or `0-rtt`: resumed with early data.
    pub(crate) kind: &'static str,
}

/// Kind of a connection's handshake, as a label.
pub(crate) fn handshake_kind(stats: &Stats) -> &'static str {
    match (stats.early_data_accepted, stats.resumed) {
        (1.., _) => "0-rtt",
        (_, 1..) => "resumed",
        _ => "full",
    }
}

/// Labels: a policy at a listener, and whether the connection got it or belongs to the comparison group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyLabels {
    pub(crate) policy: String,
    pub(crate) arm: &'static str,
    pub(crate) listener: String,
}

/// The same, by kind of handshake.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyHandshakeLabels {
    #[prometheus(flatten)]
    of: PolicyLabels,
    kind: &'static str,
}

type By<L> = Family<L, Histogram, fn() -> Histogram>;

/// From a neighbour to a satellite, in seconds.
const ROUND_TRIPS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];

fn round_trips() -> Histogram {
    Histogram::new(ROUND_TRIPS)
}

/// A handshake takes a round trip or two, or more timeouts than that.
fn handshakes() -> Histogram {
    Histogram::new(ROUND_TRIPS.into_iter().chain([5.0, 10.0]))
}

fn losses() -> Histogram {
    Histogram::new([0.0, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
}

/// Bytes per second, from a slow telephone to a local network.
fn rates() -> Histogram {
    Histogram::new([1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8])
}

fn ratios() -> Histogram {
    Histogram::new([1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0])
}

/// Of all connections.
pub(crate) struct PathMetrics {
    pub(crate) handshake: By<HandshakeLabels>,
    pub(crate) rtt: Histogram,
    pub(crate) min_rtt: Histogram,
    pub(crate) loss: Histogram,
}

impl PathMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            handshake: By::new_with_constructor(handshakes),
            rtt: round_trips(),
            min_rtt: round_trips(),
            loss: losses(),
        };
        registry.register(
            "handshake_seconds",
            "Duration of handshakes, from the first QUIC packet or the accepted TCP connection",
            this.handshake.clone(),
        );
        registry.register("quic_rtt_seconds", "Smoothed RTT of QUIC connections at their end", this.rtt.clone());
        registry.register("quic_min_rtt_seconds", "Smallest RTT of QUIC connections", this.min_rtt.clone());
        registry.register(
            "quic_loss_ratio",
            "Share of lost packets of QUIC connections that sent 100 packets or more",
            this.loss.clone(),
        );
        this
    }
}

/// Of QUIC connections that have ended and that a policy fitted.
pub(crate) struct PolicyMetrics {
    connections: Family<PolicyLabels, Counter>,
    rate: By<PolicyLabels>,
    queueing: By<PolicyLabels>,
    loss: By<PolicyLabels>,
    rtt: By<PolicyLabels>,
    min_rtt: By<PolicyLabels>,
    handshake: By<PolicyHandshakeLabels>,
}

/// Path statistics of a connection; what could not be measured is absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// Bytes per second of large answers.
    pub(crate) rate: Option<f64>,
    /// Smoothed over smallest RTT.
    pub(crate) queueing: Option<f64>,
    /// Lost packets as a part of those sent.
    pub(crate) loss: Option<f64>,
    /// Smoothed RTT in seconds.
    pub(crate) rtt: Option<f64>,
    /// Smallest RTT in seconds.
    pub(crate) min_rtt: Option<f64>,
    /// Kind of the handshake, and the seconds that it took.
    pub(crate) handshake: Option<(&'static str, f64)>,
}

impl PolicyMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            connections: Family::default(),
            rate: By::new_with_constructor(rates),
            queueing: By::new_with_constructor(ratios),
            loss: By::new_with_constructor(losses),
            rtt: By::new_with_constructor(round_trips),
            min_rtt: By::new_with_constructor(round_trips),
            handshake: By::new_with_constructor(handshakes),
        };
        registry.register(
            "policy_connections",
            "QUIC connections that matched a policy and have ended, by arm: with it, without it",
            this.connections.clone(),
        );
        let each = [
            ("policy_rate_bytes_per_second", "Rate of large answers on such connections", &this.rate),
            ("policy_queueing_ratio", "Smoothed over smallest RTT of such connections at their end", &this.queueing),
            (
                "policy_loss_ratio",
                "Share of lost packets of such connections that sent 100 packets or more",
                &this.loss,
            ),
            ("policy_rtt_seconds", "Smoothed RTT of such connections at their end", &this.rtt),
            ("policy_min_rtt_seconds", "Smallest RTT of such connections", &this.min_rtt),
        ];
        for (name, help, figure) in each {
            registry.register(name, help, figure.clone());
        }
        registry.register(
            "policy_handshake_seconds",
            "Duration of handshakes of such connections, from their first packet",
            this.handshake.clone(),
        );
        this
    }

    /// Counts a connection that has ended.
    pub(crate) fn note(&self, labels: &PolicyLabels, shown: &Shown) {
        self.connections.get_or_create(labels).inc();
        let each = [
            (&self.rate, shown.rate),
            (&self.queueing, shown.queueing),
            (&self.loss, shown.loss),
            (&self.rtt, shown.rtt),
            (&self.min_rtt, shown.min_rtt),
        ];
        for (figure, value) in each {
            if let Some(value) = value {
                figure.get_or_create(labels).observe(value);
            }
        }
        if let Some((kind, seconds)) = shown.handshake {
            let labels = PolicyHandshakeLabels { of: labels.clone(), kind };
            self.handshake.get_or_create(&labels).observe(seconds);
        }
    }
}
