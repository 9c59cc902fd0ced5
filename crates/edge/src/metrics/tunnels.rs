//! Metrics of tunnels of proxies (CONNECT-UDP, CONNECT-IP and CONNECT) and of WebTransport sessions.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Kind of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelKind {
    /// CONNECT-UDP.
    Udp,
    /// CONNECT-UDP with many peers.
    BoundUdp,
    /// CONNECT-IP.
    Ip,
    /// CONNECT.
    Tcp,
    /// A session of WebTransport.
    WebTransport,
}

impl TunnelKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::BoundUdp => "bound-udp",
            Self::Ip => "ip",
            Self::Tcp => "tcp",
            Self::WebTransport => "webtransport",
        }
    }
}

/// A kind of tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    pub(crate) kind: &'static str,
}

/// A kind of tunnel, and a direction: from the client to the target (`up`), or back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindDirectionLabels {
    pub(crate) kind: &'static str,
    pub(crate) direction: &'static str,
}

/// A kind of tunnel, and why it was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindReasonLabels {
    pub(crate) kind: &'static str,
    pub(crate) reason: &'static str,
}

/// A direction, and why a datagram was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DropLabels {
    pub(crate) direction: &'static str,
    pub(crate) reason: &'static str,
}

/// Figures about tunnels, registered together.
pub(crate) struct TunnelMetrics {
    opened: Family<KindLabel, Counter>,
    open: Family<KindLabel, Gauge>,
    pub(crate) refused: Family<KindReasonLabels, Counter>,
    bytes: Family<KindDirectionLabels, Counter>,
    datagrams: Family<KindDirectionLabels, Counter>,
    pub(crate) dropped: Family<DropLabels, Counter>,
}

/// Figures of one kind of tunnels, found once for each tunnel.
#[derive(Clone)]
pub(crate) struct TunnelCounters {
    pub(crate) opened: Counter,
    pub(crate) open: Gauge,
    bytes: [Counter; 2],
    datagrams: [Counter; 2],
}

impl TunnelCounters {
    pub(crate) fn bytes(&self, is_up: bool) -> &Counter {
        &self.bytes[usize::from(is_up)]
    }

    pub(crate) fn datagrams(&self, is_up: bool) -> &Counter {
        &self.datagrams[usize::from(is_up)]
    }
}

impl TunnelMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            opened: figure!(
                registry,
                "tunnels_opened",
                "Opened tunnels, by kind: CONNECT-UDP (udp, and bound-udp for many peers), CONNECT-IP (ip), CONNECT (tcp), WebTransport sessions (webtransport)",
                Family::default()
            ),
            open: figure!(registry, "tunnels", "Tunnels to targets at the moment", Family::default()),
            refused: figure!(registry, "tunnels_refused", "Refused requests for tunnels, by reason", Family::default()),
            bytes: figure!(
                registry,
                "tunnel_bytes",
                "Bytes of UDP payloads, IP packets and TCP in tunnels, from clients to targets (up) and back (down)",
                Family::default()
            ),
            datagrams: figure!(
                registry,
                "tunnel_datagrams",
                "UDP datagrams and IP packets in tunnels, from clients to targets (up) and back (down)",
                Family::default()
            ),
            dropped: figure!(
                registry,
                "tunnel_datagrams_dropped",
                "UDP datagrams and IP packets that tunnels dropped, by direction and reason",
                Family::default()
            ),
        }
    }

    /// The figures of one kind.
    pub(crate) fn counters(&self, kind: TunnelKind) -> TunnelCounters {
        let label = KindLabel { kind: kind.name() };
        let directions = ["down", "up"].map(|direction| KindDirectionLabels { kind: kind.name(), direction });
        TunnelCounters {
            opened: self.opened.get_or_create(&label).clone(),
            open: self.open.get_or_create(&label).clone(),
            bytes: directions.each_ref().map(|labels| self.bytes.get_or_create(labels).clone()),
            datagrams: directions.each_ref().map(|labels| self.datagrams.get_or_create(labels).clone()),
        }
    }
}
