//! Settings and counters of tunnels ([`tunnel`](crate::tunnel) runs them).

use serde::{Deserialize, Serialize};

/// Means by which a contender's packets travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tunnel {
    /// Without a tunnel.
    #[default]
    None,
    /// In DATAGRAM frames: unreliable, under the outer congestion control.
    Datagrams,
    /// In capsules on one stream: reliable and in order.
    Stream,
}

impl Tunnel {
    /// Name, as in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Datagrams => "datagrams",
            Self::Stream => "stream",
        }
    }

    /// Name of a contender with this controller and this tunnel.
    pub fn name_of(self, contender: &str) -> String {
        match self {
            Self::None => contender.to_owned(),
            Self::Datagrams => format!("{contender} in datagrams"),
            Self::Stream => format!("{contender} in a stream"),
        }
    }
}

/// Counters of one end of a tunnel since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounters {
    /// Packets of the inner connection given to the tunnel.
    pub given: u64,
    /// Part of them that the tunnel dropped before they were sent: no room, or too large.
    pub dropped: u64,
    /// Packets of the outer connection.
    pub packets_sent: Option<u64>,
    /// Packets of the outer connection that this end declared lost.
    pub packets_lost: Option<u64>,
}

impl TunnelCounters {
    /// Counters since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |now: Option<u64>, then: Option<u64>| now.map(|now| now.saturating_sub(then.unwrap_or(0)));
        Self {
            given: self.given.saturating_sub(before.given),
            dropped: self.dropped.saturating_sub(before.dropped),
            packets_sent: less(self.packets_sent, before.packets_sent),
            packets_lost: less(self.packets_lost, before.packets_lost),
        }
    }
}
