//! Payloads of HTTP datagrams of bound UDP: a context ID, and in uncompressed contexts the address of the peer
//! (draft-ietf-masque-connect-udp-listen §4, §5).

use std::{
    net::{IpAddr, SocketAddr},
    ops::Deref,
};

/// The longest header: context ID, IP version, IPv6 address and port.
const MAX_HEADER: usize = 8 + 1 + 16 + 2;

/// Bytes of an HTTP datagram in front of the UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextHeader {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl ContextHeader {
    /// Header of context 0, that of the target of the request.
    pub fn target() -> Self {
        Self::new(0, None)
    }

    /// Header of a compressed context.
    pub(super) fn compressed(context: u64) -> Self {
        Self::new(context, None)
    }

    /// Header of an uncompressed context: for the proxy the address to send to, for the client the one that sent.
    pub(super) fn uncompressed(context: u64, peer: SocketAddr) -> Self {
        Self::new(context, Some(peer))
    }

    fn new(context: u64, peer: Option<SocketAddr>) -> Self {
        let mut bytes = [0; MAX_HEADER];
        let mut writer = wire::Writer::new(&mut bytes);
        writer.varint(context);
        if let Some(peer) = peer {
            match peer.ip() {
                IpAddr::V4(v4) => {
                    writer.u8(4);
                    writer.bytes(&v4.octets());
                }
                IpAddr::V6(v6) => {
                    writer.u8(6);
                    writer.bytes(&v6.octets());
                }
            }
            writer.u16(peer.port());
        }
        let len = writer.position();
        Self { bytes, len }
    }
}

impl Deref for ContextHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Address and port behind an IP version, 4 or 6.
pub(super) fn address(reader: &mut wire::Reader<'_>, version: u8) -> Option<SocketAddr> {
    let ip = match version {
        4 => reader.fixed::<4>().map(IpAddr::from),
        _ => reader.fixed::<16>().map(IpAddr::from),
    };
    Some(SocketAddr::new(ip.ok()?, reader.u16().ok()?))
}

/// Peer and UDP payload of an uncompressed datagram, behind its context ID; `None` when it is malformed.
pub(super) fn uncompressed(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let mut reader = wire::Reader::new(bytes);
    // draft-ietf-masque-connect-udp-listen §4 MUST: the version is 4 or 6
    let version = reader.u8().ok().filter(|version| matches!(version, 4 | 6))?;
    let peer = address(&mut reader, version)?;
    Some((peer, reader.rest()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::connect_udp::bound::capsules::tests::any_address;

    /// The datagram of the example in draft-ietf-masque-connect-udp-listen, appendix A.
    #[test]
    fn headers_have_the_form_of_the_draft() {
        let peer = "192.0.2.42:50000".parse().unwrap();
        assert_eq!(&ContextHeader::uncompressed(2, peer)[..], [2, 4, 192, 0, 2, 42, 0xc3, 0x50]);
        assert_eq!(&ContextHeader::compressed(4)[..], [4]);
        let longest = ContextHeader::uncompressed((1 << 62) - 2, "[::1]:1".parse().unwrap());
        assert_eq!(longest.len(), MAX_HEADER);
        for bytes in [&[][..], &[4], &[4, 1, 2, 3, 4, 0], &[6, 1, 2, 3, 4, 0, 53], &[5, 1, 2, 3, 4, 0, 53], &[0]] {
            assert_eq!(uncompressed(bytes), None, "{bytes:?}");
        }
        let empty = Some(("1.2.3.4:53".parse().unwrap(), &[][..]));
        assert_eq!(uncompressed(&[4, 1, 2, 3, 4, 0, 53]), empty, "an empty payload");
    }

    proptest! {
        #[test]
        fn addresses_come_back(peer in any_address(), payload in proptest::collection::vec(any::<u8>(), 0..40)) {
            let datagram = [&ContextHeader::uncompressed(2, peer)[1..], &payload].concat();
            prop_assert_eq!(uncompressed(&datagram), Some((peer, &payload[..])));
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = uncompressed(&bytes);
        }
    }
}
