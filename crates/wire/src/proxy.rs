//! PROXY protocol version 2 in front of datagrams: a load balancer names the client, and the address that the client sent to.
//!
//! Each datagram has the header, since nothing ties it to others. The same header goes back with the answer, so that a load
//! balancer needs no memory of its clients. A connection of TCP has the header once, before its first byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First bytes. As a QUIC packet they would have a short header without the fixed bit, which no version has.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes before the addresses.
const FIXED: usize = 16;
/// Version 2, on behalf of a client.
const PROXY: u8 = 0x21;
/// Version 2, on behalf of the load balancer itself, as for a health check.
const LOCAL: u8 = 0x20;
/// UDP over IPv4 and over IPv6.
const UDP: [u8; 2] = [0x12, 0x22];
/// TCP over IPv4 and over IPv6.
const TCP: [u8; 2] = [0x11, 0x21];
/// Most bytes behind the fixed part in front of a connection: addresses and some fields of other load balancers.
const MAX_STREAM_REST: usize = 1_024;
/// Type of the field with the hint: the first of those for own use.
const HINT: u8 = 0xe0;

/// Client of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client has sent to, which its answers come from.
    pub server: SocketAddr,
    /// Byte by which the receiver may spread datagrams over its threads: equal for all of one connection.
    pub hint: Option<u8>,
}

/// Origin of a connection that begins with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOrigin {
    /// Client that the load balancer names.
    Client(ProxyHeader),
    /// The load balancer itself.
    Itself,
}

/// Index of the hint in a header of IPv4, and of IPv6.
pub const HINT_PLACES: [usize; 2] = [FIXED + 12 + 3, FIXED + 36 + 3];
/// Bytes behind the fixed part of a header with a hint, of IPv4 and of IPv6; the sixteenth byte of the header is this.
pub const HINTED_LENGTHS: [u8; 2] = [12 + 4, 36 + 4];
/// First four bytes of every header, as a number in network byte order.
pub const FIRST_WORD: u32 = u32::from_be_bytes([SIGNATURE[0], SIGNATURE[1], SIGNATURE[2], SIGNATURE[3]]);

impl ProxyHeader {
    /// Most bytes of an encoded header.
    pub const MAX_LEN: usize = FIXED + 36 + 4;

    /// Returns whether a datagram begins like a header.
    #[inline]
    pub fn begins(datagram: &[u8]) -> bool {
        datagram.starts_with(&SIGNATURE)
    }

    /// Bytes of a header's fixed part, which tells how many follow.
    pub const FIXED_LEN: usize = FIXED;

    /// Writes the header of a datagram; returns the number of bytes.
    pub fn encode(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        self.encode_as(UDP, out)
    }

    /// Writes the header in front of a connection of TCP; returns the number of bytes.
    pub fn encode_stream(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        self.encode_as(TCP, out)
    }

    fn encode_as(&self, [four, six_family]: [u8; 2], out: &mut [u8; Self::MAX_LEN]) -> usize {
        out[..12].copy_from_slice(&SIGNATURE);
        out[12] = PROXY;
        let mut at = FIXED;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let family = match (self.client.ip().to_canonical(), self.server.ip().to_canonical()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                put(&client.octets());
                put(&server.octets());
                four
            }
            (client, server) => {
                put(&six(client));
                put(&six(server));
                six_family
            }
        };
        put(&self.client.port().to_be_bytes());
        put(&self.server.port().to_be_bytes());
        if let Some(hint) = self.hint {
            put(&[HINT, 0, 1, hint]);
        }
        out[13] = family;
        let rest = u16::try_from(at - FIXED).unwrap_or_default();
        out[14..FIXED].copy_from_slice(&rest.to_be_bytes());
        at
    }

    /// Reads the header of a datagram; returns it with its length. `None` when there is none, or it names no client of UDP.
    pub fn parse(datagram: &[u8]) -> Option<(Self, usize)> {
        Self::parse_as(UDP, datagram)
    }

    /// Bytes that follow the fixed part of a header in front of a connection. `None` when it is no such header, or has more bytes
    /// than addresses and fields of load balancers take.
    pub fn stream_rest(fixed: &[u8; FIXED]) -> Option<usize> {
        let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let is_header = fixed[..12] == SIGNATURE && matches!(fixed[12], PROXY | LOCAL);
        (is_header && len <= MAX_STREAM_REST).then_some(len)
    }

    /// Reads a whole header in front of a connection. `None` when it is none, or names no client of TCP.
    pub fn parse_stream(header: &[u8]) -> Option<StreamOrigin> {
        let (fixed, _) = header.split_first_chunk::<FIXED>()?;
        if Self::stream_rest(fixed)? != header.len() - FIXED {
            return None;
        }
        match fixed[12] {
            LOCAL => Some(StreamOrigin::Itself),
            _ => Self::parse_as(TCP, header).map(|(header, _)| StreamOrigin::Client(header)),
        }
    }

    fn parse_as([four, six_family]: [u8; 2], datagram: &[u8]) -> Option<(Self, usize)> {
        let (fixed, rest) = datagram.split_first_chunk::<FIXED>()?;
        if fixed[..12] != SIGNATURE || fixed[12] != PROXY {
            return None;
        }
        let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let rest = rest.get(..len)?;
        let ([client, server], fields) = match fixed[13] {
            family if family == four => {
                let (addresses, fields) = rest.split_first_chunk::<12>()?;
                let ip = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| addresses[at + byte])).into();
                (pair([ip(0), ip(4)], &addresses[8..]), fields)
            }
            family if family == six_family => {
                let (addresses, fields) = rest.split_first_chunk::<36>()?;
                let ip = |at: usize| {
                    let bytes: [u8; 16] = std::array::from_fn(|byte| addresses[at + byte]);
                    IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
                };
                (pair([ip(0), ip(16)], &addresses[32..]), fields)
            }
            _ => return None,
        };
        Some((Self { client, server, hint: hint(fields)? }, FIXED + len))
    }
}

/// Addresses with the ports that follow them.
fn pair(ips: [IpAddr; 2], ports: &[u8]) -> [SocketAddr; 2] {
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    [SocketAddr::new(ips[0], port(0)), SocketAddr::new(ips[1], port(2))]
}

fn six(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The hint among the fields behind the addresses; `None` when one of them is cut off.
#[expect(clippy::option_option, reason = "broken fields are not the same as none")]
fn hint(mut fields: &[u8]) -> Option<Option<u8>> {
    let mut hint = None;
    while !fields.is_empty() {
        let (head, rest) = fields.split_first_chunk::<3>()?;
        let (value, rest) = rest.split_at_checked(u16::from_be_bytes([head[1], head[2]]).into())?;
        if let (HINT, [byte]) = (head[0], value) {
            hint = Some(*byte);
        }
        fields = rest;
    }
    Some(hint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(client: &str, server: &str, hint: Option<u8>) -> ProxyHeader {
        ProxyHeader { client: client.parse().unwrap(), server: server.parse().unwrap(), hint }
    }

    fn encoded(header: &ProxyHeader) -> Vec<u8> {
        let mut out = [0; ProxyHeader::MAX_LEN];
        let len = header.encode(&mut out);
        out[..len].to_vec()
    }

    #[test]
    fn headers_of_both_families() {
        let four = header("192.0.2.1:1000", "192.0.2.2:443", Some(9));
        let bytes = encoded(&four);
        assert_eq!(&bytes[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x12\x00\x10");
        assert_eq!(&bytes[16..], [192, 0, 2, 1, 192, 0, 2, 2, 0x03, 0xe8, 0x01, 0xbb, 0xe0, 0, 1, 9]);
        assert_eq!(
            (bytes[HINT_PLACES[0]], bytes[15], &bytes[..4]),
            (9, HINTED_LENGTHS[0], &FIRST_WORD.to_be_bytes()[..])
        );
        let six = header("[2001:db8::1]:1", "[2001:db8::2]:443", Some(7));
        let bytes = encoded(&six);
        assert_eq!((bytes.len(), bytes[13]), (ProxyHeader::MAX_LEN, 0x22));
        assert_eq!((bytes[HINT_PLACES[1]], bytes[15]), (7, HINTED_LENGTHS[1]));
        assert!(ProxyHeader::begins(&bytes) && !ProxyHeader::begins(&bytes[1..]));
    }

    #[test]
    fn what_is_written_is_read() {
        for (client, server) in [
            ("192.0.2.1:1000", "192.0.2.2:443"),
            ("[2001:db8::1]:1", "[2001:db8::2]:65535"),
            ("192.0.2.1:1", "[2001:db8::2]:2"),
        ] {
            for hint in [None, Some(0), Some(255)] {
                let header = header(client, server, hint);
                let mut bytes = encoded(&header);
                let len = bytes.len();
                bytes.extend(b"payload");
                assert_eq!(ProxyHeader::parse(&bytes), Some((header, len)));
                for cut in 0..len {
                    assert_eq!(ProxyHeader::parse(&bytes[..cut]), None, "{cut} bytes");
                }
            }
        }
        let mapped = header("[::ffff:192.0.2.1]:5", "[::ffff:192.0.2.2]:6", None);
        assert_eq!(ProxyHeader::parse(&encoded(&mapped)).unwrap().0, header("192.0.2.1:5", "192.0.2.2:6", None));
    }

    #[test]
    fn other_fields_are_ignored_and_broken_ones_are_not() {
        let mut bytes = encoded(&header("192.0.2.1:1", "192.0.2.2:2", None));
        bytes.extend([4, 0, 2, 1, 1, 0xe0, 0, 1, 8, 0xe0, 0, 2, 1, 1]);
        bytes[15] = 12 + 14;
        assert_eq!(ProxyHeader::parse(&bytes).unwrap().0.hint, Some(8));
        bytes[15] = 12 + 13;
        assert_eq!(ProxyHeader::parse(&bytes), None);
        // On behalf of nobody, or of a client of TCP.
        for (place, value) in [(12, 0x20), (12, 0x11), (13, 0x11), (13, 0)] {
            let mut other = encoded(&header("192.0.2.1:1", "192.0.2.2:2", None));
            other[place] = value;
            assert_eq!(ProxyHeader::parse(&other), None);
        }
    }

    #[test]
    fn connections_have_headers_of_their_own() {
        for (client, server) in [("192.0.2.1:1000", "192.0.2.2:443"), ("[2001:db8::1]:1", "[2001:db8::2]:65535")] {
            let header = header(client, server, None);
            let mut out = [0; ProxyHeader::MAX_LEN];
            let len = header.encode_stream(&mut out);
            let fixed = out.first_chunk().unwrap();
            assert_eq!(ProxyHeader::stream_rest(fixed), Some(len - ProxyHeader::FIXED_LEN));
            assert_eq!(ProxyHeader::parse_stream(&out[..len]), Some(StreamOrigin::Client(header)));
            assert_eq!(ProxyHeader::parse(&out[..len]), None, "no datagram has it");
            assert!((0..len).all(|cut| ProxyHeader::parse_stream(&out[..cut]).is_none()));
            assert_eq!(ProxyHeader::parse_stream(&encoded(&header)), None, "no connection has that of a datagram");
        }
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
        assert_eq!(ProxyHeader::parse_stream(local), Some(StreamOrigin::Itself));
        let mut large = *local;
        large[14] = 5;
        assert_eq!(ProxyHeader::stream_rest(&large), None);
        assert_eq!(ProxyHeader::stream_rest(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0\0\0\0\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(rest in proptest::collection::vec(any::<u8>(), 0..100), family: u8) {
            let mut bytes = SIGNATURE.to_vec();
            bytes.extend([PROXY, family]);
            bytes.extend(&rest);
            if let Some((_, len)) = ProxyHeader::parse(&bytes) {
                prop_assert!(len <= bytes.len());
            }
            let _ = ProxyHeader::parse_stream(&bytes);
        }
    }
}
