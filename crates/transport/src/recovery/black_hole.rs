//! Black hole detection: losses of large datagrams only, after a decrease of the path's MTU (RFC 8899 §4.3).
//!
//! A size that had arrived is abandoned when datagrams above the base size are lost repeatedly and none of them arrives in between.
//! Congestion and outages differ: large datagrams arrive as soon as any datagram arrives.

// RFC 8899 §4.3 MUST NOT-1: losses tell, not messages of routers
// RFC 8899 §3 MUST-4: so it makes no difference what routers do with large packets

use units::Instant;

/// Size up to which packets are no evidence, in bytes of UDP payload (RFC 9000 §14.1).
const BASE: u16 = 1200;
/// Separate losses in a row that are a black hole …
const EPISODES: u32 = 3;
/// … or fewer, when they took [`MANY_PACKETS`].
const FEW_EPISODES: u32 = 2;
const MANY_PACKETS: u32 = 6;

/// Owns the account of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlackHole {
    /// Large packets lost since one arrived.
    packets: u32,
    /// Separate losses: of packets that left after the loss before was noticed.
    episodes: u32,
    /// Time at which the last of them was noticed.
    noticed_at: Option<Instant>,
}

impl BlackHole {
    /// A packet of this size arrived.
    #[inline]
    pub(super) fn on_acked(&mut self, size: u16) {
        if size > BASE && self.packets > 0 {
            *self = Self::default();
        }
    }

    /// A packet of this size that left at `sent_at` was lost.
    pub(super) fn on_lost(&mut self, now: Instant, size: u16, sent_at: Instant) {
        if size <= BASE {
            return;
        }
        self.packets = self.packets.saturating_add(1);
        if self.noticed_at.is_none_or(|noticed| sent_at > noticed) {
            self.episodes += 1;
            self.noticed_at = Some(now);
        }
    }

    /// Returns whether large packets vanish. Asked once per answer: `true` begins a new account.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.episodes < FEW_EPISODES {
            return false;
        }
        let found = self.episodes >= EPISODES || self.packets >= MANY_PACKETS;
        if found {
            *self = Self::default();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn losses_of_large_packets_in_a_row() {
        let mut hole = BlackHole::default();
        for flight in 0..2 {
            assert!(!hole.take());
            for _ in 0..3 {
                hole.on_lost(at(flight * 100 + 50), 1452, at(flight * 100 + 1));
            }
        }
        assert!(hole.take());
        assert!(!hole.take(), "it is told once");
    }

    #[test]
    fn one_flight_is_no_black_hole_however_large() {
        let mut hole = BlackHole::default();
        for _ in 0..1000 {
            hole.on_lost(at(50), 1452, at(1));
        }
        assert!(!hole.take());
    }

    #[test]
    fn single_packets_need_three() {
        let mut hole = BlackHole::default();
        for flight in 0..3 {
            assert!(!hole.take());
            hole.on_lost(at(flight * 100 + 50), 1452, at(flight * 100 + 1));
        }
        assert!(hole.take());
    }

    #[test]
    fn one_that_arrives_disproves_it_and_small_ones_say_nothing() {
        let mut hole = BlackHole::default();
        for flight in 0..100 {
            hole.on_lost(at(flight * 100 + 50), 1452, at(flight * 100 + 1));
            hole.on_lost(at(flight * 100 + 51), 1200, at(flight * 100 + 51));
            if flight % 2 == 1 {
                hole.on_acked(1452);
            }
            assert!(!hole.take());
        }
        hole.on_lost(at(20_000), 1452, at(19_999));
        hole.on_acked(1200);
        hole.on_lost(at(20_100), 1452, at(20_001));
        hole.on_lost(at(20_200), 1452, at(20_101));
        assert!(hole.take());
    }
}
