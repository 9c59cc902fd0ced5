//! Counters of tunnels.

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
