//! Packets in the view of links, and their fate.

use core::net::IpAddr;

use units::{Duration, Instant};

/// Bytes that IPv4 and UDP put in front of a UDP payload.
pub const IPV4_OVERHEAD: u32 = 20 + 8;
/// Bytes that IPv6 and UDP put in front of a UDP payload.
pub const IPV6_OVERHEAD: u32 = 40 + 8;

/// Bytes of IP and UDP header in front of a UDP payload to `address`.
#[inline]
pub const fn overhead(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => IPV4_OVERHEAD,
        IpAddr::V6(_) => IPV6_OVERHEAD,
    }
}

/// The two ECN bits of the IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Ecn {
    /// 00: the sender does not take part.
    #[default]
    NotEct,
    /// 10: ECN-capable.
    Ect0,
    /// 01: ECN-capable, and asking for low-latency treatment (RFC 9331).
    Ect1,
    /// 11: congestion experienced.
    Ce,
}

impl Ecn {
    /// The two bits in the traffic class.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0b00,
            Self::Ect1 => 0b01,
            Self::Ect0 => 0b10,
            Self::Ce => 0b11,
        }
    }

    /// From a traffic class or TOS byte; the upper six bits are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// Protocol in an IP packet, as far as networks distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// UDP, and QUIC in it.
    #[default]
    Udp,
    /// TCP.
    Tcp,
    /// Anything else.
    Other,
}

/// Packet description for the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketMeta {
    /// Size in bytes of the whole IP packet: the UDP payload plus [`overhead`].
    pub size: u32,
    /// Flow of the packet.
    pub flow: u32,
    /// Number of packets of the same flow that were offered to the same link before this one.
    pub number: u64,
    /// The ECN bits.
    pub ecn: Ecn,
    /// Protocol in the IP packet.
    pub protocol: Protocol,
    /// Mark for a test's [`Script`](crate::Script).
    pub tag: u64,
}

/// Reason why a link dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// Larger than the MTU.
    Mtu,
    /// The queue had no room.
    Queue,
    /// Lost behind the queue by the loss model.
    Loss,
    /// Dropped by a test's script.
    Script,
    /// Above the rate of the policer.
    Policer,
    /// The queue's management (CoDel) dropped it so that senders slow down.
    Aqm,
    /// Sent during an outage.
    Outage,
}

impl DropReason {
    /// Every reason, in the order in which [`LinkCounters`](crate::LinkCounters) holds them.
    pub const ALL: [Self; 7] =
        [Self::Mtu, Self::Queue, Self::Loss, Self::Script, Self::Policer, Self::Aqm, Self::Outage];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mtu => "mtu",
            Self::Queue => "queue",
            Self::Loss => "loss",
            Self::Script => "script",
            Self::Policer => "policer",
            Self::Aqm => "aqm",
            Self::Outage => "outage",
        }
    }
}

/// One arrival at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Time at which the last bit arrives.
    pub at: Instant,
    /// The packet's bits were damaged: the caller passes this random number to [`flip_bits`].
    pub corrupt: Option<u64>,
    /// The ECN bits as they arrive.
    pub ecn: Ecn,
}

/// Names a packet that a link holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Dropped, or delivered once or twice, or not decided yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Never arrives.
    Dropped(DropReason),
    /// Arrives.
    Delivered {
        /// The packet itself.
        first: Delivery,
        /// A copy that the network made. Never before `first`.
        copy: Option<Delivery>,
    },
    /// Waits in a queue that decides later; [`Link::poll`](crate::Link::poll) returns the result.
    Held(Ticket),
}

impl Verdict {
    /// The arrivals, one after the other.
    #[inline]
    pub fn deliveries(&self) -> impl Iterator<Item = Delivery> + use<> {
        let (first, copy) = match *self {
            Self::Dropped(_) | Self::Held(_) => (None, None),
            Self::Delivered { first, copy } => (Some(first), copy),
        };
        first.into_iter().chain(copy)
    }

    /// Time at which the packet itself arrives, if it does.
    #[inline]
    pub const fn arrival(&self) -> Option<Instant> {
        match self {
            Self::Dropped(_) | Self::Held(_) => None,
            Self::Delivered { first, .. } => Some(first.at),
        }
    }
}

/// Outcome of one packet offered to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transit {
    /// Time that it waited in the queue before its first bit was sent; zero when it never got into the queue.
    pub queued: Duration,
    /// Dropped or delivered.
    pub verdict: Verdict,
}

/// Damages a packet: flips one to four bits at places that `random` determines. An empty packet does not change.
pub fn flip_bits(bytes: &mut [u8], random: u64) {
    if bytes.is_empty() {
        return;
    }
    let bits = bytes.len() as u64 * 8;
    // Steps of an odd multiplier walk over places that are all different unless the packet has fewer than four bits'
    // worth of room, so that two flips cannot undo each other: a place equal to an earlier one is skipped.
    let mut places = [u64::MAX; 4];
    let count = 1 + (random >> 62) as usize;
    let mut state = random;
    for flip in 0..count {
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0xd1b5_4a32_d192_ed03);
        let place = (state >> 16) % bits;
        if !places[..flip].contains(&place) {
            places[flip] = place;
            bytes[usize::try_from(place / 8).unwrap_or(0)] ^= 1 << (place % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ecn_bits_read_back() {
        for bits in 0..4 {
            assert_eq!(Ecn::from_bits(0b1010_1100 | bits).bits(), bits);
        }
        assert_eq!(Ecn::Ect0.bits(), 2, "RFC 3168 §5: ECT(0) is the codepoint 10");
    }

    proptest! {
        #[test]
        fn damage_always_changes_something(len in 1usize..1500, random: u64) {
            let mut bytes = vec![0; len];
            flip_bits(&mut bytes, random);
            let flipped: u32 = bytes.iter().map(|byte: &u8| byte.count_ones()).sum();
            prop_assert!((1..=4).contains(&flipped));
        }
    }

    #[test]
    fn an_empty_packet_survives_damage() {
        flip_bits(&mut [], 7);
    }
}
