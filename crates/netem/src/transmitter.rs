//! Drop-tail queue in front of the transmitter: returns the time at which a packet's last bit is sent, or that the packet is dropped.
//!
//! A first-in, first-out queue needs no events: a packet's delay is computed on arrival.

use std::collections::VecDeque;

use units::{Bitrate, DataSize, Instant, Seed};

use crate::{
    config::LinkConfig,
    pace::{Pace, Stay},
};

/// Sends one packet after the other at a rate.
#[derive(Clone, Debug)]
pub(crate) struct Transmitter {
    pace: Pace,
    /// Room in the queue, in bytes.
    room: u64,
    /// Packets accepted whose first bit has not been sent as far as is known: (first bit sent at, size).
    waiting: VecDeque<(u64, u32)>,
    /// Sum of the sizes of these packets, in bytes.
    backlog: u64,
}

impl Transmitter {
    /// `None` for a link without a rate.
    pub(crate) fn new(config: &LinkConfig, seed: &Seed) -> Option<Self> {
        let room = config.queue.bytes().map_or(u64::MAX, DataSize::as_bytes);
        Some(Self { pace: Pace::new(config, seed)?, room, waiting: VecDeque::new(), backlog: 0 })
    }

    /// Sets the rate of what is accepted from now on.
    pub(crate) fn set_rate(&mut self, rate: Bitrate) {
        self.pace.set_rate(rate);
    }

    /// Takes a packet of `size` bytes; `None` when it finds no room.
    #[inline]
    pub(crate) fn accept(&mut self, now: Instant, size: u32) -> Option<Stay> {
        let now = now.as_nanos();
        self.advance(now);
        let idle = self.pace.idle(now);
        if !idle && self.backlog.saturating_add(u64::from(size)) > self.room {
            return None;
        }
        let stay = self.pace.send(size);
        if !idle || stay.starts.as_nanos() > now {
            self.waiting.push_back((stay.starts.as_nanos(), size));
            self.backlog += u64::from(size);
        }
        Some(stay)
    }

    /// Bytes that wait at `now`, without the packet that is being sent.
    pub(crate) fn backlog(&mut self, now: Instant) -> DataSize {
        self.advance(now.as_nanos());
        DataSize::from_bytes(self.backlog)
    }

    /// Forgets the packets whose first bit has been sent by `now`.
    #[inline]
    fn advance(&mut self, now: u64) {
        while let Some(&(starts, size)) = self.waiting.front() {
            if starts > now {
                break;
            }
            self.backlog -= u64::from(size);
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Queue;

    /// One byte at one bit per second takes this many nanoseconds.
    const BYTE_AT_ONE_BPS: u64 = 8 * 1_000_000_000;

    fn transmitter(bps: u64, bytes: u64) -> Transmitter {
        let config = LinkConfig {
            rate: Some(Bitrate::from_bps(bps)),
            queue: Queue::DropTail { bytes: DataSize::from_bytes(bytes) },
            ..LinkConfig::default()
        };
        Transmitter::new(&config, &Seed::from_number(1)).unwrap()
    }

    #[test]
    fn a_million_packets_take_exactly_as_long_as_their_bits() {
        // 1.1 Mbit/s: 1500 bytes take 10,909,090.909… ns.
        let mut transmitter = transmitter(1_100_000, u64::MAX);
        let mut ends = Instant::ZERO;
        for _ in 0..1_100_000 {
            ends = transmitter.accept(Instant::ZERO, 1500).unwrap().ends;
        }
        assert_eq!(ends.as_nanos(), 1500 * 8 * 1_000_000_000);
    }

    #[test]
    fn the_packet_being_sent_takes_no_room() {
        let mut transmitter = transmitter(12_000_000, 3000);
        let now = Instant::from_millis(5);
        let accepted: Vec<bool> = (0..4).map(|_| transmitter.accept(now, 1500).is_some()).collect();
        assert_eq!(accepted, [true, true, true, false]);
        assert_eq!(transmitter.backlog(now).as_bytes(), 3000);
        // 1500 bytes take 1 ms: one packet moves on from the queue to the transmitter.
        assert_eq!(transmitter.backlog(Instant::from_millis(6)).as_bytes(), 1500);
        assert!(transmitter.accept(Instant::from_millis(6), 1500).is_some());
        assert!(transmitter.accept(Instant::from_millis(6), 1).is_none());
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let mut transmitter = transmitter(1, u64::MAX);
        for _ in 0..3 {
            let stay = transmitter.accept(Instant::ZERO, u32::MAX).unwrap();
            assert!(stay.ends >= stay.starts);
        }
    }

    /// The same queue written as slowly as possible: exact fractions of a nanosecond, every packet remembered.
    struct Reference {
        rate: u128,
        room: u64,
        /// (first bit, last bit) in nanoseconds times rate, and size.
        accepted: Vec<(u128, u128, u64)>,
    }

    impl Reference {
        fn accept(&mut self, now: u64, size: u32) -> Option<(u64, u64)> {
            let now = u128::from(now) * self.rate;
            let free = self.accepted.last().map_or(0, |packet| packet.1);
            // A packet waits until its first bit is sent. The clock ticks in whole nanoseconds, and the first bit counts
            // as sent in the tick in which it goes out.
            let backlog: u64 =
                self.accepted.iter().filter(|p| p.0 / self.rate * self.rate > now).map(|packet| packet.2).sum();
            if free > now && backlog + u64::from(size) > self.room {
                return None;
            }
            let starts = free.max(now);
            let ends = starts + u128::from(size) * u128::from(BYTE_AT_ONE_BPS);
            self.accepted.push((starts, ends, u64::from(size)));
            Some(((starts / self.rate) as u64, ends.div_ceil(self.rate) as u64))
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_reference(
            bps in prop_oneof![1u64..2000, 1_000_000u64..10_000_000_000],
            room in 0u64..20_000,
            packets in prop::collection::vec((0u64..3_000_000, 1u32..9000), 1..80),
        ) {
            let mut transmitter = transmitter(bps, room);
            let mut reference = Reference { rate: u128::from(bps), room, accepted: Vec::new() };
            let mut now = 0;
            for (gap, size) in packets {
                now += gap;
                let stay = transmitter.accept(Instant::from_nanos(now), size);
                let stay = stay.map(|stay| (stay.starts.as_nanos(), stay.ends.as_nanos()));
                prop_assert_eq!(stay, reference.accept(now, size));
            }
        }
    }
}
