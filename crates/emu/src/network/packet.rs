//! IPv4 packets for links and address translation: reading of headers, rewriting of addresses, ports and ECN bits.
//!
//! Checksums are updated incrementally (RFC 1624 §3), so a damaged packet remains recognizable as damaged.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use netem::{Ecn, Protocol};

/// Bytes of an IPv4 header without options.
const HEADER: usize = 20;

/// Headers of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) protocol: Protocol,
    /// A UDP or TCP header follows the IP header: the packet is not a later fragment.
    pub(crate) has_ports: bool,
    /// Length of the IP header.
    length: usize,
}

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

impl Headers {
    /// Headers of a unicast IPv4 packet; `None` for anything else.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let length = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || length < HEADER || packet.len() < length {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let (source, destination) = (address(12)?, address(16)?);
        if destination.is_multicast() || destination.is_broadcast() {
            return None;
        }
        let number = packet[9];
        let protocol = match i32::from(number) {
            libc::IPPROTO_UDP => Protocol::Udp,
            libc::IPPROTO_TCP => Protocol::Tcp,
            _ => Protocol::Other,
        };
        let later_fragment = word(packet, 6)? & 0x1fff != 0;
        let checksum_end = if protocol == Protocol::Tcp { 18 } else { 8 };
        let has_ports = protocol != Protocol::Other && !later_fragment && packet.len() >= length + checksum_end;
        let port = |at: usize| if has_ports { word(packet, length + at).unwrap_or(0) } else { 0 };
        Some(Self {
            source: SocketAddr::new(source.into(), port(0)),
            destination: SocketAddr::new(destination.into(), port(2)),
            ecn: Ecn::from_bits(packet[1]),
            protocol,
            has_ports,
            length,
        })
    }

    /// Writes another address and port.
    pub(crate) fn rewrite(&self, packet: &mut [u8], side: Side, to: SocketAddr) {
        let IpAddr::V4(ip) = to.ip() else { return };
        let (address, port) = match side {
            Side::Source => (12, 0),
            Side::Destination => (16, 2),
        };
        let octets = ip.octets();
        for (index, half) in octets.chunks_exact(2).enumerate() {
            let value = u16::from_be_bytes([half[0], half[1]]);
            let old = replace(packet, address + 2 * index, value);
            adjust(packet, 10, old, value);
            // The pseudo header of TCP and UDP has the addresses in it.
            self.adjust_transport(packet, old, value);
        }
        if self.has_ports {
            let old = replace(packet, self.length + port, to.port());
            self.adjust_transport(packet, old, to.port());
        }
    }

    fn adjust_transport(&self, packet: &mut [u8], old: u16, new: u16) {
        let at = match self.protocol {
            Protocol::Tcp => 16,
            Protocol::Udp => 6,
            Protocol::Other => return,
        };
        let at = self.length + at;
        // RFC 768: zero says that the sender made no checksum.
        if self.has_ports && !(self.protocol == Protocol::Udp && word(packet, at) == Some(0)) {
            adjust(packet, at, old, new);
        }
    }

    /// The bytes behind the IP header.
    pub(crate) fn body<'a>(&self, packet: &'a mut [u8]) -> &'a mut [u8] {
        &mut packet[self.length..]
    }
}

/// Writes other ECN bits.
pub(crate) fn set_ecn(packet: &mut [u8], ecn: Ecn) {
    let Some(old) = word(packet, 0) else { return };
    let new = (old & !0b11) | u16::from(ecn.bits());
    if old != new {
        replace(packet, 0, new);
        adjust(packet, 10, old, new);
    }
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

/// Writes a word and gives the one before.
fn replace(packet: &mut [u8], at: usize, value: u16) -> u16 {
    let Some(place) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return value };
    u16::from_be_bytes(std::mem::replace(place, value.to_be_bytes()))
}

/// RFC 1624 §3, equation 3: `HC' = ~(~HC + ~m + m')`.
fn adjust(packet: &mut [u8], at: usize, old: u16, new: u16) {
    let Some(checksum) = word(packet, at) else { return };
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    replace(packet, at, !u16::try_from(sum).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: impl Iterator<Item = u8>) -> u16 {
        let bytes: Vec<u8> = bytes.collect();
        let mut sum: u32 =
            bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    /// A packet with correct checksums, made by the definitions of RFC 791, RFC 768 and RFC 9293.
    fn packet(protocol: i32) -> Vec<u8> {
        let body = if protocol == libc::IPPROTO_TCP { 40 } else { 32 };
        let mut packet = vec![0x45, 0, 0, 20 + body, 0, 7, 0x40, 0, 64, u8::try_from(protocol).unwrap(), 0, 0];
        packet.extend([10, 1, 0, 1, 10, 2, 0, 1]);
        packet.extend([0xc3, 0x50, 1, 0xbb]);
        packet.extend((4..body).map(|index| index.wrapping_mul(37)));
        if protocol == libc::IPPROTO_UDP {
            packet[24..26].copy_from_slice(&u16::from(body).to_be_bytes());
        }
        write_checksums(&mut packet, protocol);
        packet
    }

    fn place(protocol: i32) -> usize {
        20 + if protocol == libc::IPPROTO_TCP { 16 } else { 6 }
    }

    fn write_checksums(packet: &mut [u8], protocol: i32) {
        packet[10..12].fill(0);
        let head = sum(packet[..20].iter().copied());
        packet[10..12].copy_from_slice(&head.to_be_bytes());
        let at = place(protocol);
        packet[at..at + 2].fill(0);
        let length = u16::try_from(packet.len() - 20).unwrap().to_be_bytes();
        let pseudo = packet[12..20].iter().copied().chain([0, packet[9]]).chain(length);
        let all = sum(pseudo.chain(packet[20..].iter().copied()));
        packet[at..at + 2].copy_from_slice(&all.to_be_bytes());
    }

    #[test]
    fn a_rewritten_packet_has_the_checksums_of_one_made_anew() {
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            let mut rewritten = packet(protocol);
            let headers = Headers::read(&rewritten).unwrap();
            assert_eq!(headers.source, "10.1.0.1:50000".parse().unwrap());
            assert_eq!(headers.destination, "10.2.0.1:443".parse().unwrap());
            headers.rewrite(&mut rewritten, Side::Source, "10.99.3.4:1025".parse().unwrap());
            headers.rewrite(&mut rewritten, Side::Destination, "10.2.0.9:8443".parse().unwrap());
            set_ecn(&mut rewritten, Ecn::Ce);
            let mut anew = rewritten.clone();
            write_checksums(&mut anew, protocol);
            assert_eq!(rewritten, anew);
            let after = Headers::read(&rewritten).unwrap();
            assert_eq!((after.source.port(), after.destination.port(), after.ecn), (1025, 8443, Ecn::Ce));
        }
    }

    #[test]
    fn a_damaged_packet_stays_damaged() {
        let mut packet = packet(libc::IPPROTO_UDP);
        packet[45] ^= 1;
        Headers::read(&packet).unwrap().rewrite(&mut packet, Side::Source, "10.99.3.4:1025".parse().unwrap());
        let mut anew = packet.clone();
        write_checksums(&mut anew, libc::IPPROTO_UDP);
        assert_ne!(packet, anew);
    }

    #[test]
    fn what_is_no_unicast_ipv4_packet_is_none_of_ours() {
        assert_eq!(Headers::read(&[]), None);
        assert_eq!(Headers::read(&[0x60; 60]), None);
        let mut packet = packet(libc::IPPROTO_UDP);
        for cut in 0..20 {
            assert_eq!(Headers::read(&packet[..cut]), None);
        }
        // A later fragment has no ports, and its bytes are not taken for some.
        packet[7] = 9;
        assert!(!Headers::read(&packet).unwrap().has_ports);
        packet[16] = 224;
        assert_eq!(Headers::read(&packet), None);
    }
}
