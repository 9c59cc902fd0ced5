//! Capsules by which an end of a tunnel gets addresses (RFC 9484 §4.7). Those about routes are in `routes`.

use std::net::IpAddr;

use super::{Prefix, PrefixFault};

/// Type of [`AddressAssign`].
pub const ADDRESS_ASSIGN: u64 = 0x01;
/// Type of [`AddressRequest`].
pub const ADDRESS_REQUEST: u64 = 0x02;
/// Type of [`RouteAdvertisement`](super::RouteAdvertisement).
pub const ROUTE_ADVERTISEMENT: u64 = 0x03;

/// Fault of a capsule: the stream has to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapsuleFault {
    /// End in the middle of an entry.
    #[error("a capsule ends in the middle of an entry")]
    Truncated,
    /// IP version other than 4 and 6.
    #[error("an IP version is {0}")]
    Version(u8),
    /// Prefix that is none.
    #[error("{0}")]
    Prefix(#[from] PrefixFault),
    /// Request without an address.
    #[error("an ADDRESS_REQUEST has no address")]
    NoRequest,
    /// Request ID of 0.
    #[error("a request ID is 0")]
    ZeroRequestId,
    /// Request ID that occurs twice.
    #[error("the request ID {0} is used twice")]
    RepeatedRequestId(u64),
    /// Range whose end is before its start.
    #[error("a range ends before it starts")]
    EmptyRange,
    /// Ranges in another order than by version, protocol and address, or with addresses in common.
    #[error("ranges are not in order, or overlap")]
    RangeOrder,
    /// Range of one protocol that has addresses of a range of all protocols.
    #[error("a range of one protocol overlaps with a range of all protocols")]
    RangeOverlap,
}

/// Address or prefix that is assigned to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedAddress {
    /// ID of the request that this answers; 0 for none.
    pub request_id: u64,
    /// Source addresses that the peer may use.
    pub prefix: Prefix,
}

/// ADDRESS_ASSIGN: all addresses that are assigned to the peer (RFC 9484 §4.7.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressAssign(pub Vec<AssignedAddress>);

/// Address or prefix that is requested from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedAddress {
    /// ID of the request, never 0, and never used again.
    pub request_id: u64,
    /// Preferred addresses. Without preference the address is all zero.
    pub prefix: Prefix,
}

/// ADDRESS_REQUEST: a request for addresses (RFC 9484 §4.7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRequest(pub Vec<RequestedAddress>);

/// The answer to a request that was refused: `0.0.0.0/32` or `::/128`.
pub(super) fn refusal(like: IpAddr) -> Prefix {
    Prefix::of(if like.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) })
}

impl AssignedAddress {
    /// The answer to a request that was refused.
    // RFC 9484 §4.7.2 SHALL-3, SHALL-5, SHALL-6: all-zero, with the full length
    pub fn refused(request: &RequestedAddress) -> Self {
        Self { request_id: request.request_id, prefix: refusal(request.prefix.address()) }
    }

    /// Returns whether the entry says that a request was refused.
    pub fn is_refusal(&self) -> bool {
        self.request_id != 0 && self.prefix == refusal(self.prefix.address())
    }
}

// RFC 9484 §4.7.1 MUST-1, RFC 9484 §4.7.2 MUST-1
pub(super) fn version(reader: &mut wire::Reader<'_>) -> Result<u8, CapsuleFault> {
    match reader.u8().map_err(|_| CapsuleFault::Truncated)? {
        version @ (4 | 6) => Ok(version),
        version => Err(CapsuleFault::Version(version)),
    }
}

// RFC 9484 §4.7.1 SHALL-3, SHALL-4, RFC 9484 §4.7.2 SHALL-1, SHALL-2, RFC 9297 §3.3 MUST-3
pub(super) fn address(reader: &mut wire::Reader<'_>, version: u8) -> Result<IpAddr, CapsuleFault> {
    let address =
        if version == 4 { reader.fixed::<4>().map(IpAddr::from) } else { reader.fixed::<16>().map(IpAddr::from) };
    address.map_err(|_| CapsuleFault::Truncated)
}

pub(super) fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => out.extend(v4.octets()),
        IpAddr::V6(v6) => out.extend(v6.octets()),
    }
}

pub(super) const fn version_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// Request ID, version, address and prefix length: the form of assigned and requested addresses alike.
fn entries(value: &[u8]) -> Result<Vec<(u64, Prefix)>, CapsuleFault> {
    let mut reader = wire::Reader::new(value);
    let mut entries = Vec::new();
    while reader.position() < value.len() {
        let id = reader.varint().map_err(|_| CapsuleFault::Truncated)?;
        let version = version(&mut reader)?;
        let address = address(&mut reader, version)?;
        let length = reader.u8().map_err(|_| CapsuleFault::Truncated)?;
        entries.push((id, Prefix::new(address, length)?));
    }
    Ok(entries)
}

fn push_entry(out: &mut Vec<u8>, id: u64, prefix: Prefix) {
    wire::varint::push(out, id);
    out.push(version_of(prefix.address()));
    push_address(out, prefix.address());
    out.push(prefix.length());
}

impl AddressAssign {
    /// Parses the value of a capsule.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn parse(value: &[u8]) -> Result<Self, CapsuleFault> {
        let entries = entries(value)?.into_iter();
        Ok(Self(entries.map(|(request_id, prefix)| AssignedAddress { request_id, prefix }).collect()))
    }

    /// The value of a capsule.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.0.iter().for_each(|entry| push_entry(&mut out, entry.request_id, entry.prefix));
        out
    }

    /// The addresses that the receiver has from now on.
    pub fn prefixes(&self) -> Vec<Prefix> {
        self.0.iter().filter(|entry| !entry.is_refusal()).map(|entry| entry.prefix).collect()
    }
}

impl AddressRequest {
    /// Parses the value of a capsule. IDs of capsules before it are unknown here: the receiver compares these.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn parse(value: &[u8]) -> Result<Self, CapsuleFault> {
        let entries = entries(value)?;
        // RFC 9484 §4.7.2 MUST-5
        if entries.is_empty() {
            return Err(CapsuleFault::NoRequest);
        }
        let mut ids: Vec<u64> = entries.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        // RFC 9484 §4.7.2 MUST NOT-1, MUST NOT-2
        if ids[0] == 0 {
            return Err(CapsuleFault::ZeroRequestId);
        }
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CapsuleFault::RepeatedRequestId(pair[0]));
        }
        Ok(Self(entries.into_iter().map(|(request_id, prefix)| RequestedAddress { request_id, prefix }).collect()))
    }

    /// The value of a capsule.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.0.iter().for_each(|entry| push_entry(&mut out, entry.request_id, entry.prefix));
        out
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    /// The example of RFC 9484 §8.4, byte by byte.
    #[test]
    fn capsules_have_the_form_of_the_standard() {
        let assigned = AddressAssign(vec![
            AssignedAddress { request_id: 0, prefix: prefix("192.0.2.3/32") },
            AssignedAddress { request_id: 0x40, prefix: prefix("2001:db8::/64") },
        ]);
        let mut expected = vec![0, 4, 192, 0, 2, 3, 32];
        expected.extend([0x40, 0x40, 6, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64]);
        assert_eq!(assigned.encode(), expected);
        assert_eq!(AddressAssign::parse(&expected), Ok(assigned));
        assert_eq!(AddressAssign::parse(&[]), Ok(AddressAssign::default()), "all addresses are removed");
    }

    /// RFC 9484 §4.7.1 MUST-1, MUST-2, MUST-3, SHALL-3, SHALL-4, RFC 9484 §4.7.2 MUST-1, MUST-2, MUST-3, MUST-5, SHALL-1, SHALL-2, SHALL-5,
    /// SHALL-6, MUST NOT-1, MUST NOT-2, RFC 9297 §3.3 MUST-3
    #[test]
    fn malformed_addresses_are_refused() {
        for (value, fault) in [
            (&[0][..], CapsuleFault::Truncated),
            (&[0, 4, 1, 2, 3], CapsuleFault::Truncated),
            (&[0, 4, 1, 2, 3, 4], CapsuleFault::Truncated),
            (&[0, 6, 1, 2, 3, 4, 32], CapsuleFault::Truncated),
            (&[0x40], CapsuleFault::Truncated),
            (&[0, 5, 1, 2, 3, 4, 32], CapsuleFault::Version(5)),
            (&[0, 4, 1, 2, 3, 4, 33], CapsuleFault::Prefix(PrefixFault::Length)),
            (&[0, 4, 1, 2, 3, 4, 31, 0, 4, 1, 2, 3, 5, 31], CapsuleFault::Prefix(PrefixFault::LowerBits)),
        ] {
            assert_eq!(AddressAssign::parse(value), Err(fault), "{value:?}");
        }
        for (value, fault) in [
            (&[][..], CapsuleFault::NoRequest),
            (&[0, 4, 0, 0, 0, 0, 32], CapsuleFault::ZeroRequestId),
            (&[1, 4, 0, 0, 0, 0, 32, 0x40, 1, 4, 0, 0, 0, 0, 32], CapsuleFault::RepeatedRequestId(1)),
        ] {
            assert_eq!(AddressRequest::parse(value), Err(fault), "{value:?}");
        }
        // No preference but for the length.
        let request = AddressRequest::parse(&[7, 4, 0, 0, 0, 0, 24]).unwrap();
        assert_eq!(request.0, [RequestedAddress { request_id: 7, prefix: prefix("0.0.0.0/24") }]);
        let refused = AssignedAddress::refused(&request.0[0]);
        assert_eq!((refused.request_id, refused.prefix, refused.is_refusal()), (7, prefix("0.0.0.0/32"), true));
        let answer = AddressAssign(vec![refused, AssignedAddress { request_id: 8, prefix: prefix("192.0.2.1") }]);
        assert_eq!(answer.prefixes(), [prefix("192.0.2.1")]);
    }

    pub(in super::super) fn any_prefix() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0..=32_u8).prop_map(|(address, length)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Prefix::new(std::net::Ipv4Addr::from(address & mask).into(), length).unwrap()
        });
        let v6 = (any::<u128>(), 0..=128_u8).prop_map(|(address, length)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Prefix::new(std::net::Ipv6Addr::from(address & mask).into(), length).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn addresses_come_back(entries in proptest::collection::vec((0..1_u64 << 62, any_prefix()), 0..9)) {
            let capsule = AddressAssign(
                entries.iter().map(|(request_id, prefix)| AssignedAddress { request_id: *request_id, prefix: *prefix }).collect(),
            );
            prop_assert_eq!(AddressAssign::parse(&capsule.encode()), Ok(capsule));
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(request) = AddressRequest::parse(&bytes) {
                prop_assert_eq!(AddressRequest::parse(&request.encode()), Ok(request));
            }
            let _ = AddressAssign::parse(&bytes);
        }
    }
}
