//! Receive timestamps of packets, for a peer that requests them (draft-ietf-quic-receive-ts-02).

use std::collections::VecDeque;

use units::Instant;

/// Times kept at most, however many the peer wants: what two bursts bring. Each takes 16 bytes, and two on the wire.
pub(crate) const MAX_TIMES: usize = 128;

/// Owns unreported receive timestamps of ack-eliciting packets; the oldest are dropped first.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalTimes {
    /// Origin of times. The peer does not learn when it was.
    basis: Instant,
    exponent: u32,
    most: usize,
    /// Packet numbers in the order of arrival, with the time since `basis` in the peer's unit.
    ring: VecDeque<(u64, u64)>,
    last: u64,
    reported: u64,
}

impl ArrivalTimes {
    /// Times since `basis`, in units of 2^`exponent` microseconds, for acknowledgements with at most `most` of them.
    // draft-ietf-quic-receive-ts-02 §5.1 MUST: one basis for the whole connection, before the first packet.
    pub(crate) fn new(basis: Instant, exponent: u64, most: u64) -> Self {
        Self {
            basis,
            exponent: u32::try_from(exponent).unwrap_or(0).min(20),
            most: usize::try_from(most).unwrap_or(MAX_TIMES).min(MAX_TIMES),
            ring: VecDeque::new(),
            last: 0,
            reported: 0,
        }
    }

    pub(crate) fn on_packet(&mut self, pn: u64, received_at: Instant) {
        if self.most == 0 {
            return;
        }
        if self.ring.len() == self.most {
            self.ring.pop_front();
        }
        let micros = u64::try_from((received_at - self.basis).as_micros()).unwrap_or(u64::MAX);
        // Clocks of sockets are not always in order; the frame can only go back in time. Rounding is the same for all times,
        // so that differences do not add it up.
        self.last = self.last.max(micros >> self.exponent).min(wire::varint::MAX);
        self.ring.push_back((pn, self.last));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Number of arrival times that may go into one frame.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Packet numbers and times, the most recent first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        self.ring.iter().rev().copied()
    }

    /// Removes the most recent `count`, which were reported, and all older ones, which are not worth a separate frame.
    // draft-ietf-quic-receive-ts-02 §6.1: best effort; the most recent are kept when not all fit.
    pub(crate) fn on_reported(&mut self, count: usize) {
        self.reported += count as u64;
        self.ring.clear();
    }

    /// Number of reported timestamps.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// Bytes of memory held beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.ring.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_each_time_and_not_the_differences() {
        let mut times = ArrivalTimes::new(Instant::from_micros(1_000), 3, 64);
        for (pn, micros) in [(0, 1_007), (1, 1_014), (2, 1_021), (3, 1_020)] {
            times.on_packet(pn, Instant::from_micros(micros));
        }
        assert_eq!(times.newest_first().collect::<Vec<_>>(), [(3, 2), (2, 2), (1, 1), (0, 0)]);
    }

    #[test]
    fn memory_is_bounded_by_what_the_peer_wants_and_by_us() {
        for (wanted, kept) in [(0, 0), (3, 3), (u64::MAX, MAX_TIMES)] {
            let mut times = ArrivalTimes::new(Instant::ZERO, 0, wanted);
            for pn in 0..1000 {
                times.on_packet(pn, Instant::from_micros(pn));
            }
            assert_eq!(times.newest_first().count(), kept);
            assert_eq!(times.newest_first().next().map(|newest| newest.0), (kept > 0).then_some(999));
            assert!(times.memory() <= 2 * MAX_TIMES * 16);
        }
    }
}
