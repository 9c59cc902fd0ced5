//! Content of packets with symbols: frames, room, and counts.

use units::Instant;

use super::protection::Tolerance;

/// Content of a packet, as far as its protection depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// Tolerance of its strictest part: the share that may stay lost.
    pub(crate) tolerance: Tolerance,
    /// Time at which the last of it is worthless.
    pub(crate) expires: Instant,
}

impl Content {
    /// Content without frames.
    pub(crate) const EMPTY: Self = Self { tolerance: Tolerance::ALL, expires: Instant::ZERO };
    /// Streams.
    pub(crate) const STREAMS: Self = Self { tolerance: Tolerance::NONE, expires: Instant::FAR_FUTURE };

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { tolerance: self.tolerance.min(other.tolerance), expires: self.expires.max(other.expires) }
    }
}

/// Room in a packet with a source symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SymbolRoom {
    /// Number of the symbol.
    pub(crate) id: u64,
    /// PADDING in front of it, so that a packet with a repair symbol of the same length has the same size.
    pub(crate) padding: usize,
    /// Bytes of frames.
    pub(crate) bytes: usize,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SenderFigures {
    pub(crate) symbols: u64,
    pub(crate) repairs: u64,
    pub(crate) repair_bytes: u64,
    /// Packets that were lost and that the peer rebuilt before they were declared lost.
    pub(crate) recovered: u64,
    /// Packets declared lost before the peer reported that it rebuilt them.
    pub(crate) recovered_late: u64,
    /// Repair symbols that were due and were never sent.
    pub(crate) dropped: u64,
    /// Times that the controller was asked.
    pub(crate) reviews: u64,
}
