//! When the keys are updated without being asked: after so many packets or bytes.

use serde::{Deserialize, Serialize};

use crate::stats::Stats;

/// When this end updates the 1-RTT keys by itself (RFC 9001 §6), beside the limits of the cipher, which always hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyUpdatePolicy {
    /// After this many packets sent.
    pub packets: Option<u64>,
    /// After this many bytes of UDP payload sent.
    pub bytes: Option<u64>,
}

/// Owns the counts at which the next update is due.
#[derive(Debug)]
pub(super) struct Rekey {
    policy: KeyUpdatePolicy,
    packets: u64,
    bytes: u64,
}

impl Rekey {
    pub(super) fn new(policy: KeyUpdatePolicy) -> Self {
        let mut rekey = Self { policy, packets: 0, bytes: 0 };
        rekey.restart(&Stats::default());
        rekey
    }

    /// Whether the keys have been used enough. Asked once for each batch.
    #[inline]
    pub(super) fn is_due(&self, stats: &Stats) -> bool {
        stats.packets_sent >= self.packets || stats.bytes_sent >= self.bytes
    }

    /// The keys are new, by the wish of either side.
    pub(super) fn restart(&mut self, stats: &Stats) {
        let after = |now: u64, span: Option<u64>| span.map_or(u64::MAX, |span| now.saturating_add(span.max(1)));
        self.packets = after(stats.packets_sent, self.policy.packets);
        self.bytes = after(stats.bytes_sent, self.policy.bytes);
    }
}
