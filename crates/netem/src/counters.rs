//! Counters of a link, in packets and bytes.

use serde::Serialize;

use crate::DropReason;

/// Packets and their bytes (of IP packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Amount {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
}

impl Amount {
    #[inline]
    pub(crate) fn add(&mut self, size: u32) {
        self.packets += 1;
        self.bytes += u64::from(size);
    }
}

/// Counters of a link since it was made.
///
/// `offered = delivered + Σ dropped`; copies count in `duplicated` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct LinkCounters {
    /// Packets that entered.
    pub offered: Amount,
    /// Packets that arrive, each counted once.
    pub delivered: Amount,
    /// Packets dropped, by reason in the order of [`DropReason::ALL`].
    dropped: [Amount; DropReason::ALL.len()],
    /// Packets that arrive a second time.
    pub duplicated: u64,
    /// Packets delivered with bits flipped.
    pub corrupted: u64,
    /// Packets that arrive before one that was sent earlier.
    pub reordered: u64,
    /// Most bytes that ever waited in the queue.
    pub queue_peak_bytes: u64,
}

impl LinkCounters {
    /// Packets dropped for one reason.
    #[inline]
    pub const fn dropped(&self, reason: DropReason) -> Amount {
        self.dropped[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn dropped_in_all(&self) -> Amount {
        self.dropped.iter().fold(Amount::default(), |sum, amount| Amount {
            packets: sum.packets + amount.packets,
            bytes: sum.bytes + amount.bytes,
        })
    }

    #[inline]
    pub(crate) fn count_drop(&mut self, reason: DropReason, size: u32) {
        self.dropped[reason as usize].add(size);
    }
}
