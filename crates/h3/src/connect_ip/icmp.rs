//! ICMP (RFC 792) and ICMPv6 (RFC 4443): reports to the sender of a packet that is not forwarded, and answers to echo requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    MIN_IPV6_MTU, Packet,
    packet::{IPV4_HEADER, IPV6_HEADER},
    protocol::{ICMP, ICMPV6},
};

/// The longest report over IPv4 (RFC 1812 §4.3.2.3).
const MAX_V4_REPORT: usize = 576;
/// Bytes of an ICMP header.
const HEADER: usize = 8;
/// Hops that a packet of this end may take.
const HOPS: u8 = 64;
/// All nodes of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Reason why a packet is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Larger than the MTU of the next link.
    TooBig {
        /// The MTU.
        mtu: usize,
    },
    /// Source address of somebody else.
    SourceRefused,
    /// No route to the destination.
    NoRoute,
    /// Destination that rules prohibit.
    Prohibited,
}

impl Report {
    /// Type, code and the word behind the checksum.
    // RFC 9484 §7.2.1 SHOULD-1
    fn fields(self, is_v4: bool) -> (u8, u8, u32) {
        match (self, is_v4) {
            (Self::TooBig { mtu }, true) => (3, 4, u32::from(u16::try_from(mtu).unwrap_or(u16::MAX))),
            (Self::TooBig { mtu }, false) => (2, 0, u32::try_from(mtu).unwrap_or(u32::MAX)),
            // RFC 1812 §5.2.7.1: prohibited by the administrator.
            (Self::SourceRefused | Self::Prohibited, true) => (3, 13, 0),
            (Self::NoRoute, true) => (3, 0, 0),
            (Self::SourceRefused, false) => (1, 5, 0),
            (Self::NoRoute, false) => (1, 0, 0),
            (Self::Prohibited, false) => (1, 1, 0),
        }
    }
}

/// A packet that tells the sender of `packet` why it is not forwarded; `None` where none may be sent.
pub fn report(packet: &[u8], header: &Packet, report: Report, from: IpAddr) -> Option<Vec<u8>> {
    if !may_be_reported(packet, header) {
        return None;
    }
    let is_v4 = header.source.is_ipv4();
    let (kind, code, word) = report.fields(is_v4);
    let longest = if is_v4 { MAX_V4_REPORT - IPV4_HEADER } else { MIN_IPV6_MTU - IPV6_HEADER };
    let quoted = &packet[..packet.len().min(longest - HEADER)];
    let message = [&[kind, code, 0, 0][..], &word.to_be_bytes(), quoted].concat();
    in_packet(message, from, header.source)
}

/// RFC 1122 §3.2.2, RFC 4443 §2.4: not about reports, groups, later fragments, or packets of nobody in particular.
fn may_be_reported(packet: &[u8], header: &Packet) -> bool {
    let is_report = || {
        let kind = packet.get(header.payload_at).copied();
        match header.protocol {
            ICMP => !matches!(kind, Some(0 | 8 | 13..=18)),
            ICMPV6 => kind.is_none_or(|kind| kind < 128),
            _ => false,
        }
    };
    let is_nobody = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() || v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast() || v6.is_loopback(),
    };
    !header.is_later_fragment && !header.is_multicast() && !is_nobody(header.source) && !is_report()
}

/// The answer to an echo request to all nodes of the link, by which the other end of a tunnel measures its MTU.
// RFC 9484 §7.2
pub fn answer_all_nodes(packet: &[u8], header: &Packet, from: Ipv6Addr) -> Option<Vec<u8>> {
    let message = packet.get(header.payload_at..).filter(|message| message.len() >= HEADER)?;
    let is_request = header.destination == IpAddr::V6(ALL_NODES)
        && header.protocol == ICMPV6
        && !header.is_later_fragment
        && message[0] == 128;
    let IpAddr::V6(source) = header.source else { return None };
    if !is_request || source.is_unspecified() || source.is_multicast() {
        return None;
    }
    let mut answer = message.to_vec();
    answer[..4].copy_from_slice(&[129, 0, 0, 0]);
    in_packet(answer, from.into(), header.source)
}

/// A message with its checksum, in a packet.
fn in_packet(mut message: Vec<u8>, from: IpAddr, to: IpAddr) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let sum = checksum(&[&message]);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            Some(in_v4(&message, from, to))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(message.len()).ok()?.to_be_bytes();
            let pseudo = [&from.octets()[..], &to.octets(), &[0, 0], &length, &[0, 0, 0, ICMPV6]].concat();
            let sum = checksum(&[&pseudo, &message]);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let head = [0x60, 0, 0, 0, length[0], length[1], ICMPV6, HOPS];
            Some([&head[..], &from.octets(), &to.octets(), &message].concat())
        }
        _ => None,
    }
}

fn in_v4(message: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let total = u16::try_from(IPV4_HEADER + message.len()).unwrap_or(u16::MAX).to_be_bytes();
    // Not to be fragmented: then the identification may be 0 (RFC 6864 §4.1).
    let head = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, HOPS, ICMP, 0, 0];
    let mut packet = [&head[..], &from.octets(), &to.octets(), message].concat();
    let sum = checksum(&[&packet[..IPV4_HEADER]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The checksum of the Internet (RFC 1071) of parts, of which all but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 = words.map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{
        super::packet::tests::{v4, v6},
        *,
    };

    const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn router_v6() -> Ipv6Addr {
        "2001:db8::1".parse().unwrap()
    }

    fn reported(packet: &[u8], what: Report) -> Option<Vec<u8>> {
        let header = Packet::parse(packet).unwrap();
        let from = if header.source.is_ipv4() { ROUTER.into() } else { router_v6().into() };
        report(packet, &header, what, from)
    }

    /// Verifies both checksums as a receiver does: the sum with the checksum in it is zero.
    fn assert_sound(packet: &[u8]) -> Packet {
        let header = Packet::parse(packet).unwrap();
        let message = &packet[header.payload_at..];
        match (header.source, header.destination) {
            (IpAddr::V4(_), _) => {
                assert_eq!((checksum(&[&packet[..20]]), checksum(&[message])), (0, 0));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                let pseudo = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, 58]].concat();
                assert_eq!(checksum(&[&pseudo, message]), 0);
            }
            _ => unreachable!(),
        }
        header
    }

    /// RFC 9484 §7.2.1 SHOULD-1
    #[test]
    fn reports_quote_the_packet() {
        let packet = v4([198, 51, 100, 1], [203, 0, 113, 2], 17, &[7; 1_001]);
        for (what, fields) in [
            (Report::TooBig { mtu: 1_300 }, [3, 4, 0, 0, 5, 20]),
            (Report::SourceRefused, [3, 13, 0, 0, 0, 0]),
            (Report::NoRoute, [3, 0, 0, 0, 0, 0]),
            (Report::Prohibited, [3, 13, 0, 0, 0, 0]),
        ] {
            let told = reported(&packet, what).unwrap();
            let header = assert_sound(&told);
            assert_eq!((header.source, header.destination), (ROUTER.into(), [198, 51, 100, 1].into()));
            assert_eq!(told.len(), 576);
            assert_eq!(([told[20], told[21]], &told[24..28]), ([fields[0], fields[1]], &fields[2..]), "{what:?}");
            assert_eq!(told[28..], packet[..548]);
        }
        let packet = v6("2001:db8::9", "2001:db8:1::2", 17, &[7; 1_400]);
        for (what, fields) in [
            (Report::TooBig { mtu: 1_300 }, [2, 0, 0, 0, 5, 20]),
            (Report::SourceRefused, [1, 5, 0, 0, 0, 0]),
            (Report::NoRoute, [1, 0, 0, 0, 0, 0]),
            (Report::Prohibited, [1, 1, 0, 0, 0, 0]),
        ] {
            let told = reported(&packet, what).unwrap();
            assert_eq!(assert_sound(&told).destination, packet_source("2001:db8::9"));
            assert_eq!(told.len(), 1_280);
            assert_eq!(([told[40], told[41]], &told[44..48]), ([fields[0], fields[1]], &fields[2..]), "{what:?}");
        }
        // Short ones are quoted as a whole, and odd lengths have a checksum, too.
        assert_sound(&reported(&v4([198, 51, 100, 1], [203, 0, 113, 2], 253, &[7; 3]), Report::NoRoute).unwrap());
    }

    fn packet_source(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn reports_are_not_about_reports_groups_and_later_fragments() {
        let (from, to) = ([198, 51, 100, 1], [203, 0, 113, 2]);
        let echo = v4(from, to, 1, &[8, 0, 0, 0, 0, 0, 0, 0]);
        assert!(reported(&echo, Report::NoRoute).is_some());
        let mut later = v4(from, to, 17, &[0; 8]);
        later[7] = 1;
        for packet in [
            later,
            v4(from, to, 1, &[3, 1, 0, 0, 0, 0, 0, 0]),
            v4(from, to, 1, &[11, 0, 0, 0, 0, 0, 0, 0]),
            v4(from, [224, 0, 0, 1], 17, &[0; 8]),
            v4([0; 4], to, 17, &[0; 8]),
            v4([255; 4], to, 17, &[0; 8]),
            v6("2001:db8::9", "2001:db8::2", 58, &[1, 0, 0, 0, 0, 0, 0, 0]),
            v6("2001:db8::9", "ff02::1", 17, &[0; 8]),
            v6("::", "2001:db8::2", 17, &[0; 8]),
        ] {
            assert_eq!(reported(&packet, Report::NoRoute), None, "{packet:?}");
        }
    }

    /// RFC 9484 §7.2
    #[test]
    fn all_nodes_are_answered_for() {
        let request = [128, 0, 9, 9, 0, 1, 0, 2, 5, 6, 7];
        let answer = |packet: &[u8]| answer_all_nodes(packet, &Packet::parse(packet).unwrap(), router_v6());
        let told = answer(&v6("2001:db8::9", "ff02::1", 58, &request)).unwrap();
        let header = assert_sound(&told);
        assert_eq!((header.source, header.destination), (router_v6().into(), packet_source("2001:db8::9")));
        assert_eq!((told[40], &told[44..]), (129, &request[4..]));
        for packet in [
            v6("2001:db8::9", "2001:db8::1", 58, &request),
            v6("::", "ff02::1", 58, &request),
            v6("2001:db8::9", "ff02::1", 58, &[129, 0, 0, 0, 0, 0, 0, 0]),
            v6("2001:db8::9", "ff02::1", 58, &[128]),
        ] {
            assert_eq!(answer(&packet), None, "{packet:?}");
        }
    }
}
