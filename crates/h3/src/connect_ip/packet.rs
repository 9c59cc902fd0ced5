//! Headers of IP packets, as a router reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Internet Protocol Numbers.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;

    pub(super) const DCCP: u8 = 33;
    pub(super) const SCTP: u8 = 132;
    pub(super) const UDP_LITE: u8 = 136;
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION_OPTIONS: u8 = 60;
    pub(super) const MOBILITY: u8 = 135;
    pub(super) const HOST_IDENTITY: u8 = 139;
    pub(super) const SHIM6: u8 = 140;

    /// Returns whether it is ICMP of either version.
    pub const fn is_icmp(number: u8) -> bool {
        matches!(number, ICMP | ICMPV6)
    }

    /// Returns whether it is the number of an extension header of IPv6, which no packet has as its protocol.
    pub const fn is_extension(number: u8) -> bool {
        matches!(number, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6)
    }
}

/// Extension headers that are walked. Packets have a few.
const MAX_EXTENSIONS: usize = 8;
/// Bytes of an IPv4 header without options, and of an IPv6 header.
pub(super) const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;
/// Options of IPv4 by which the sender chooses the route (RFC 791 §3.1).
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Fault of a packet: no router forwards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketFault {
    /// IP version other than 4 and 6.
    #[error("the IP version is neither 4 nor 6")]
    Version,
    /// Lengths that do not fit each other.
    #[error("the packet and the lengths in its headers do not fit each other")]
    Length,
    /// Route that the sender has chosen (RFC 5095, RFC 7126 §4.3).
    #[error("the sender has chosen the route")]
    SourceRoute,
    /// Extension headers that are too many, or in a wrong place.
    #[error("the extension headers are too many, or in a wrong place")]
    Extensions,
}

/// Header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Internet Protocol Number, that of the first header of IPv6 that is no extension.
    pub protocol: u8,
    /// Source and destination port; `None` where the protocol has none, or the packet is a later fragment.
    pub ports: Option<(u16, u16)>,
    /// The packet is a fragment behind the first one.
    pub is_later_fragment: bool,
    /// Place of the header behind those of IP.
    pub(super) payload_at: usize,
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

impl Packet {
    /// Parses the header of a whole packet.
    ///
    /// # Errors
    /// When no router forwards it.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketFault> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(packet),
            Some(6) => Self::parse_v6(packet),
            _ => Err(PacketFault::Version),
        }
    }

    fn parse_v4(packet: &[u8]) -> Result<Self, PacketFault> {
        let header: &[u8; IPV4_HEADER] = packet.first_chunk().ok_or(PacketFault::Length)?;
        let payload_at = usize::from(header[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if payload_at < IPV4_HEADER || payload_at > packet.len() || total != packet.len() {
            return Err(PacketFault::Length);
        }
        if has_source_route(&packet[IPV4_HEADER..payload_at]) {
            return Err(PacketFault::SourceRoute);
        }
        let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
        let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into();
        let this = Self {
            source: address(12),
            destination: address(16),
            protocol: header[9],
            ports: None,
            is_later_fragment,
            payload_at,
        };
        this.with_ports(packet)
    }

    // RFC 9484 §4.8 MUST-1: the chain of extension headers is walked
    fn parse_v6(packet: &[u8]) -> Result<Self, PacketFault> {
        let header: &[u8; IPV6_HEADER] = packet.first_chunk().ok_or(PacketFault::Length)?;
        if usize::from(u16::from_be_bytes([header[4], header[5]])) != packet.len() - IPV6_HEADER {
            return Err(PacketFault::Length);
        }
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..].first_chunk().copied().unwrap_or_default();
            Ipv6Addr::from(octets).into()
        };
        let (mut next, mut at, mut is_later_fragment) = (header[6], IPV6_HEADER, false);
        for number in 0.. {
            // A later fragment begins in the middle of what the first one began.
            let is_extension = protocol::is_extension(next) || next == protocol::AUTHENTICATION;
            if !is_extension || is_later_fragment {
                break;
            }
            if number == MAX_EXTENSIONS || next == protocol::HOP_BY_HOP && at != IPV6_HEADER {
                return Err(PacketFault::Extensions);
            }
            // RFC 7112 §5: the first fragment has all headers.
            let extension: &[u8; 8] = packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(PacketFault::Length)?;
            let length = match next {
                protocol::FRAGMENT => {
                    is_later_fragment = u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0;
                    8
                }
                protocol::AUTHENTICATION => (usize::from(extension[1]) + 2) * 4,
                // RFC 5095: type 0 lets a sender choose the route.
                protocol::ROUTING if extension[2] == 0 => return Err(PacketFault::SourceRoute),
                _ => (usize::from(extension[1]) + 1) * 8,
            };
            (next, at) = (extension[0], at + length);
            if at > packet.len() {
                return Err(PacketFault::Length);
            }
        }
        let (source, destination) = (address(8), address(24));
        let this = Self { source, destination, protocol: next, ports: None, is_later_fragment, payload_at: at };
        this.with_ports(packet)
    }

    /// Reads the ports. A first fragment without them is refused: what is decided by ports would not hold for it (RFC 1858 §3).
    fn with_ports(mut self, packet: &[u8]) -> Result<Self, PacketFault> {
        use protocol::{DCCP, SCTP, TCP, UDP, UDP_LITE};
        if matches!(self.protocol, TCP | UDP | DCCP | SCTP | UDP_LITE) && !self.is_later_fragment {
            let ports = word(packet, self.payload_at).zip(word(packet, self.payload_at + 2));
            self.ports = Some(ports.ok_or(PacketFault::Length)?);
        }
        Ok(self)
    }

    /// Returns whether the packet goes to a group, or to everybody on a link.
    pub fn is_multicast(&self) -> bool {
        match self.destination {
            IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }

    /// Returns whether the packet belongs to one link, and no router forwards it.
    // RFC 9484 §7.2
    pub fn is_link_local(&self) -> bool {
        let is_local = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        is_local(self.source) || is_local(self.destination)
    }
}

/// Returns whether options of IPv4 have a route. Options that cannot be read have none that anybody follows.
fn has_source_route(mut options: &[u8]) -> bool {
    loop {
        match options {
            // The end of the options, and padding.
            [] | [0, ..] => return false,
            [1, rest @ ..] => options = rest,
            [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..] => return true,
            [_, length, ..] if *length >= 2 => options = options.get(usize::from(*length)..).unwrap_or_default(),
            _ => return false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet with a checksum of 0.
    pub(in super::super) fn v4(source: [u8; 4], destination: [u8; 4], number: u8, payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(IPV4_HEADER + payload.len()).unwrap().to_be_bytes();
        let head = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, number, 0, 0];
        [&head[..], &source, &destination, payload].concat()
    }

    pub(in super::super) fn v6(source: &str, destination: &str, next: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        [&[0x60, 0, 0, 0, length[0], length[1], next, 64][..], &octets(source), &octets(destination), payload].concat()
    }

    #[test]
    fn headers_are_read() {
        let packet = v4([192, 0, 2, 1], [198, 51, 100, 2], protocol::UDP, &[0, 53, 1, 0, 0, 8, 0, 0]);
        let parsed = Packet::parse(&packet).unwrap();
        assert_eq!((parsed.source, parsed.destination), ([192, 0, 2, 1].into(), [198, 51, 100, 2].into()));
        assert_eq!((parsed.protocol, parsed.ports), (protocol::UDP, Some((53, 256))));
        let packet = v6("2001:db8::1", "2001:db8::2", protocol::ICMPV6, &[128, 0, 0, 0]);
        let parsed = Packet::parse(&packet).unwrap();
        assert_eq!((parsed.protocol, parsed.ports, parsed.is_multicast()), (protocol::ICMPV6, None, false));
    }

    /// RFC 9484 §4.8 MUST-1
    #[test]
    fn extension_headers_hide_no_protocol() {
        let tcp = [0, 80, 1, 187];
        let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let fragment = |next: u8, offset: u16| [next, 0, offset.to_be_bytes()[0], offset.to_be_bytes()[1], 0, 0, 0, 1];
        let parse = |next: u8, parts: &[&[u8]]| Packet::parse(&v6("::1", "::2", next, &parts.concat()));
        let ports = |parsed: Result<Packet, PacketFault>| parsed.map(|packet| (packet.protocol, packet.ports));
        let found = Ok((protocol::TCP, Some((80, 443))));
        assert_eq!(ports(parse(60, &[&options(6), &tcp])), found);
        assert_eq!(ports(parse(0, &[&options(60), &options(44), &fragment(6, 1), &tcp])), found);
        // A later fragment shows its protocol, and no ports.
        let later = parse(44, &[&fragment(6, 8), b"data"]).unwrap();
        assert_eq!((later.protocol, later.ports, later.is_later_fragment), (protocol::TCP, None, true));
        assert_eq!(ports(parse(51, &[&[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &tcp])), found);
        for (next, parts, fault) in [
            (43, &[&[6, 0, 0, 1, 0, 0, 0, 0][..], &tcp] as &[&[u8]], PacketFault::SourceRoute),
            (60, &[&options(0), &options(6), &tcp], PacketFault::Extensions),
            (60, &[&[60, 9, 0, 0, 0, 0, 0, 0]], PacketFault::Length),
            (60, &[&[6, 0]], PacketFault::Length),
            (44, &[&fragment(6, 1), &[0]], PacketFault::Length),
            (60, &[&options(60).repeat(9), &tcp], PacketFault::Extensions),
        ] {
            assert_eq!(parse(next, parts), Err(fault), "{next}: {parts:?}");
        }
    }

    #[test]
    fn malformed_packets_are_refused() {
        let whole = v4([10, 0, 0, 1], [10, 0, 0, 2], protocol::TCP, &[0, 1, 0, 2]);
        assert!(Packet::parse(&whole).is_ok());
        for cut in 0..whole.len() {
            assert!(Packet::parse(&whole[..cut]).is_err(), "{cut}");
        }
        assert_eq!(Packet::parse(&[&whole[..], b"x"].concat()), Err(PacketFault::Length));
        let change = |at: usize, value: u8| {
            let mut packet = whole.clone();
            packet[at] = value;
            Packet::parse(&packet)
        };
        assert_eq!(change(0, 0x55), Err(PacketFault::Version));
        assert_eq!(change(0, 0x44), Err(PacketFault::Length));
        assert_eq!(change(0, 0x4f), Err(PacketFault::Length));
        assert_eq!(Packet::parse(&v4([0; 4], [0; 4], protocol::UDP, &[0, 1, 0])), Err(PacketFault::Length));
        // Loose source route, behind padding.
        let mut routed = v4([10, 0, 0, 1], [10, 0, 0, 2], 253, &[1, LOOSE_SOURCE_ROUTE, 7, 4, 10, 0, 0, 3]);
        routed[0] = 0x47;
        assert_eq!(Packet::parse(&routed), Err(PacketFault::SourceRoute));
        let mut later = v4([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP, &[]);
        later[7] = 1;
        assert!(Packet::parse(&later).unwrap().is_later_fragment);
    }

    proptest! {
        #[test]
        fn no_packet_is_a_panic(mut packet in proptest::collection::vec(any::<u8>(), 0..120), version in prop_oneof![Just(4_u8), Just(6)]) {
            let length = packet.len();
            if length >= IPV6_HEADER {
                packet[0] = version << 4 | 5;
                let (at, value) = if version == 4 { (2, length) } else { (4, length - IPV6_HEADER) };
                packet[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap().to_be_bytes());
            }
            if let Ok(parsed) = Packet::parse(&packet) {
                prop_assert!(parsed.payload_at <= packet.len());
            }
        }
    }
}
