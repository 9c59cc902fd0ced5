//! Token bucket: packets above a rate are dropped at once.

use units::Instant;

use crate::{
    config::Policer,
    packet::{PacketMeta, Protocol},
};

/// Bits times nanoseconds per second that a byte takes.
const BYTE: u128 = 8 * 1_000_000_000;

/// A bucket that fills with the rate and empties with the packets. Exact: it counts in bits × nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    rate: u64,
    room: u128,
    tokens: u128,
    at: Instant,
    udp_only: bool,
}

impl Bucket {
    pub(crate) fn new(config: &Policer) -> Self {
        let room = u128::from(config.burst.as_bytes()) * BYTE;
        Self { rate: config.rate.as_bps(), room, tokens: room, at: Instant::ZERO, udp_only: config.udp_only }
    }

    /// Returns whether the packet passes. A dropped packet uses no tokens.
    #[inline]
    pub(crate) fn passes(&mut self, now: Instant, packet: &PacketMeta) -> bool {
        if self.udp_only && packet.protocol != Protocol::Udp {
            return true;
        }
        let gained = u128::from(now.nanos_since(self.at)) * u128::from(self.rate);
        self.at = now;
        self.tokens = (self.tokens + gained).min(self.room);
        let price = u128::from(packet.size) * BYTE;
        let passes = self.tokens >= price;
        if passes {
            self.tokens -= price;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use units::{Bitrate, DataSize};

    use super::*;

    fn passed(config: &Policer, protocol: Protocol, gap_us: u64, packets: u64) -> u64 {
        let mut bucket = Bucket::new(config);
        let packet = PacketMeta { size: 1500, protocol, ..PacketMeta::default() };
        (0..packets).map(|n| u64::from(bucket.passes(Instant::from_micros(n * gap_us), &packet))).sum()
    }

    #[test]
    fn what_is_above_the_rate_is_dropped_and_nothing_else() {
        let config = Policer { rate: Bitrate::from_mbps(6), burst: DataSize::from_bytes(15_000), udp_only: false };
        // 6 Mbit/s is a packet in 2 ms. Twice as many come for 20 s: 10 of the burst and half of the others.
        let count = passed(&config, Protocol::Udp, 1_000, 20_000);
        assert!((10_008..=10_010).contains(&count), "{count}");
        // Exactly the rate passes whole.
        assert_eq!(passed(&config, Protocol::Udp, 2_000, 10_000), 10_000);
    }

    #[test]
    fn a_policer_for_udp_leaves_tcp_alone() {
        let config = Policer { rate: Bitrate::from_bps(1_000), burst: DataSize::from_bytes(1_500), udp_only: true };
        assert_eq!(passed(&config, Protocol::Tcp, 1, 1_000), 1_000);
        assert_eq!(passed(&config, Protocol::Udp, 1, 1_000), 1);
    }
}
