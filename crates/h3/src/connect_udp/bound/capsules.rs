//! Capsules that register, confirm and close context IDs (draft-ietf-masque-connect-udp-listen §3).

use std::net::{IpAddr, SocketAddr};

use super::{BoundFault, payload};
use crate::capsule;

/// Type of [`Compression::Assign`].
pub const COMPRESSION_ASSIGN: u64 = 0x11;
/// Type of [`Compression::Ack`].
pub const COMPRESSION_ACK: u64 = 0x12;
/// Type of [`Compression::Close`].
pub const COMPRESSION_CLOSE: u64 = 0x13;

/// The longest value: context ID, IP version, IPv6 address and port.
pub(super) const MAX_VALUE: usize = 8 + 1 + 16 + 2;

/// Capsule about a context ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Registration of a context ID.
    Assign {
        /// Context ID, never 0.
        context: u64,
        /// Peer whose payloads have this context ID; `None` for an uncompressed context.
        peer: Option<SocketAddr>,
    },
    /// Confirmation of a registration.
    Ack(u64),
    /// Rejection of a registration, or end of a context.
    Close(u64),
}

impl Compression {
    /// Parses the value of a capsule of a type of [`TYPES`](Self::TYPES).
    ///
    /// # Errors
    /// When the capsule is malformed.
    // draft-ietf-masque-connect-udp-listen §3.1, §3.3 and RFC 9297 §3.3 MUST-3
    pub fn parse(ty: u64, value: &[u8]) -> Result<Self, BoundFault> {
        let mut reader = wire::Reader::new(value);
        let context = reader.varint().map_err(|_| BoundFault::Truncated)?;
        let parsed = match ty {
            COMPRESSION_ASSIGN => {
                let peer = match reader.u8().map_err(|_| BoundFault::Truncated)? {
                    0 => None,
                    version @ (4 | 6) => Some(payload::address(&mut reader, version).ok_or(BoundFault::Truncated)?),
                    version => return Err(BoundFault::Version(version)),
                };
                Self::Assign { context, peer }
            }
            COMPRESSION_ACK => Self::Ack(context),
            _ => Self::Close(context),
        };
        if !reader.is_empty() {
            return Err(BoundFault::Trailing);
        }
        // An ACK for 0 is one for a context that was never registered, too.
        if context == 0 { Err(BoundFault::ZeroContext) } else { Ok(parsed) }
    }

    /// Types of capsules about context IDs.
    pub const TYPES: [u64; 3] = [COMPRESSION_ASSIGN, COMPRESSION_ACK, COMPRESSION_CLOSE];

    /// Appends the capsule, with type and length.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut value = Vec::with_capacity(MAX_VALUE);
        let ty = match self {
            Self::Assign { context, peer } => {
                wire::varint::push(&mut value, *context);
                match peer {
                    None => value.push(0),
                    Some(peer) => push_address(&mut value, *peer),
                }
                COMPRESSION_ASSIGN
            }
            Self::Ack(context) => {
                wire::varint::push(&mut value, *context);
                COMPRESSION_ACK
            }
            Self::Close(context) => {
                wire::varint::push(&mut value, *context);
                COMPRESSION_CLOSE
            }
        };
        capsule::write(out, ty, &value);
    }
}

fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(v4) => {
            out.push(4);
            out.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(6);
            out.extend(v6.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::capsule::Capsules;

    pub(in super::super) fn any_address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            (any::<u32>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::from((Ipv4Addr::from(ip), port))),
            (any::<u128>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::from((Ipv6Addr::from(ip), port))),
        ]
    }

    fn any_capsule() -> impl Strategy<Value = Compression> {
        let id = || 1..1_u64 << 62;
        prop_oneof![
            (id(), proptest::option::of(any_address()))
                .prop_map(|(context, peer)| Compression::Assign { context, peer }),
            id().prop_map(Compression::Ack),
            id().prop_map(Compression::Close),
        ]
    }

    fn written(capsule: Compression) -> Vec<u8> {
        let mut out = Vec::new();
        capsule.write(&mut out);
        out
    }

    /// The capsules of the example in draft-ietf-masque-connect-udp-listen, appendix A, byte by byte.
    #[test]
    fn capsules_have_the_form_of_the_draft() {
        let peer = Some("203.0.113.11:60000".parse().unwrap());
        for (capsule, expected) in [
            (Compression::Assign { context: 2, peer: None }, &[0x11, 2, 2, 0][..]),
            (Compression::Ack(2), &[0x12, 1, 2]),
            (Compression::Assign { context: 4, peer }, &[0x11, 8, 4, 4, 203, 0, 113, 11, 0xea, 0x60]),
            (Compression::Close(2), &[0x13, 1, 2]),
        ] {
            assert_eq!(written(capsule), expected);
        }
        let peer = Some("[2001:db8::1]:53".parse().unwrap());
        let mut expected = vec![0x11, 20, 0x40, 0x40, 6, 0x20, 1, 0xd, 0xb8];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 53]);
        expected[1] = u8::try_from(expected.len() - 2).unwrap();
        assert_eq!(written(Compression::Assign { context: 0x40, peer }), expected);
    }

    /// draft-ietf-masque-connect-udp-listen §3.1 MUST (IP version), §3.3 (context ID 0), RFC 9297 §3.3 MUST-3
    #[test]
    fn malformed_capsules_are_refused() {
        for (ty, value, fault) in [
            (COMPRESSION_ASSIGN, &[][..], BoundFault::Truncated),
            (COMPRESSION_ASSIGN, &[2], BoundFault::Truncated),
            (COMPRESSION_ASSIGN, &[0x40], BoundFault::Truncated),
            (COMPRESSION_ASSIGN, &[2, 4, 1, 2, 3, 4, 0], BoundFault::Truncated),
            (COMPRESSION_ASSIGN, &[2, 6, 1, 2, 3, 4, 0, 53], BoundFault::Truncated),
            (COMPRESSION_ASSIGN, &[2, 5, 1, 2, 3, 4, 0, 53], BoundFault::Version(5)),
            (COMPRESSION_ASSIGN, &[2, 4, 1, 2, 3, 4, 0, 53, 0], BoundFault::Trailing),
            (COMPRESSION_ASSIGN, &[2, 0, 0], BoundFault::Trailing),
            (COMPRESSION_ASSIGN, &[0, 0], BoundFault::ZeroContext),
            (COMPRESSION_ACK, &[], BoundFault::Truncated),
            (COMPRESSION_ACK, &[2, 2], BoundFault::Trailing),
            (COMPRESSION_ACK, &[0], BoundFault::ZeroContext),
            (COMPRESSION_CLOSE, &[], BoundFault::Truncated),
            (COMPRESSION_CLOSE, &[2, 2], BoundFault::Trailing),
            (COMPRESSION_CLOSE, &[0x40, 0], BoundFault::ZeroContext),
        ] {
            assert_eq!(Compression::parse(ty, value), Err(fault), "{ty:#x} {value:?}");
        }
    }

    proptest! {
        #[test]
        fn capsules_come_back(capsule in any_capsule()) {
            let mut capsules = Capsules::among(&Compression::TYPES, MAX_VALUE);
            capsules.push(&written(capsule));
            let found = capsules.take().unwrap().unwrap();
            prop_assert_eq!(Compression::parse(found.ty, &found.value), Ok(capsule));
        }

        #[test]
        fn no_bytes_are_a_panic(ty in 0x11..0x14_u64, bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Compression::parse(ty, &bytes);
        }
    }
}
