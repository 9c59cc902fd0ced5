//! Capsules by which an end of a tunnel gets addresses and routes (RFC 9484 §4.7).

use std::net::IpAddr;

use super::{AddressRange, Prefix, PrefixFault, protocol};

/// Type of [`AddressAssign`].
pub const ADDRESS_ASSIGN: u64 = 0x01;
/// Type of [`AddressRequest`].
pub const ADDRESS_REQUEST: u64 = 0x02;
/// Type of [`RouteAdvertisement`].
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

/// ROUTE_ADVERTISEMENT: all ranges to which an end forwards packets (RFC 9484 §4.7.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteAdvertisement(pub Vec<AddressRange>);

/// The answer to a request that was refused: `0.0.0.0/32` or `::/128`.
pub(super) fn refusal(like: IpAddr) -> Prefix {
    Prefix::of(if like.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) })
}

impl AssignedAddress {
    /// The answer to a request that was refused.
    // RFC 9484 §4.7.2: all-zero, with the full length
    pub fn refused(request: &RequestedAddress) -> Self {
        Self { request_id: request.request_id, prefix: refusal(request.prefix.address()) }
    }

    /// Returns whether the entry says that a request was refused.
    pub fn is_refusal(&self) -> bool {
        self.request_id != 0 && self.prefix == refusal(self.prefix.address())
    }
}

fn version(reader: &mut wire::Reader<'_>) -> Result<u8, CapsuleFault> {
    match reader.u8().map_err(|_| CapsuleFault::Truncated)? {
        version @ (4 | 6) => Ok(version),
        version => Err(CapsuleFault::Version(version)),
    }
}

fn address(reader: &mut wire::Reader<'_>, version: u8) -> Result<IpAddr, CapsuleFault> {
    let address =
        if version == 4 { reader.fixed::<4>().map(IpAddr::from) } else { reader.fixed::<16>().map(IpAddr::from) };
    address.map_err(|_| CapsuleFault::Truncated)
}

fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => out.extend(v4.octets()),
        IpAddr::V6(v6) => out.extend(v6.octets()),
    }
}

const fn version_of(address: IpAddr) -> u8 {
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
        if entries.is_empty() {
            return Err(CapsuleFault::NoRequest);
        }
        let mut ids: Vec<u64> = entries.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
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

impl RouteAdvertisement {
    /// Ranges in the order of the capsule. Those of a protocol that have addresses in common become one, and a range of one protocol is
    /// left out where a range of all protocols has its addresses.
    pub fn of(ranges: impl IntoIterator<Item = AddressRange>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort_by_key(|range| (version_of(range.start), range.protocol, range.start));
        let mut ordered: Vec<AddressRange> = Vec::new();
        for range in ranges {
            let covering = |other: &AddressRange| other.contains(range.start) && other.contains(range.end);
            if ordered.iter().any(|other| other.protocol == 0 && covering(other)) {
                continue;
            }
            match ordered.last_mut().filter(|last| last.protocol == range.protocol && last.contains(range.start)) {
                Some(last) => last.end = last.end.max(range.end),
                None => ordered.push(range),
            }
        }
        Self(ordered)
    }

    /// Parses the value of a capsule.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn parse(value: &[u8]) -> Result<Self, CapsuleFault> {
        let mut reader = wire::Reader::new(value);
        let mut ranges: Vec<AddressRange> = Vec::new();
        while reader.position() < value.len() {
            let version = version(&mut reader)?;
            let (start, end) = (address(&mut reader, version)?, address(&mut reader, version)?);
            let protocol = reader.u8().map_err(|_| CapsuleFault::Truncated)?;
            if end < start {
                return Err(CapsuleFault::EmptyRange);
            }
            let range = AddressRange { start, end, protocol };
            let key = |range: &AddressRange| (version_of(range.start), range.protocol);
            if let Some(last) = ranges.last()
                && (key(last) > key(&range) || key(last) == key(&range) && last.end >= range.start)
            {
                return Err(CapsuleFault::RangeOrder);
            }
            ranges.push(range);
        }
        Ok(Self(ranges))
    }

    /// The value of a capsule.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for range in &self.0 {
            out.push(version_of(range.start));
            push_address(&mut out, range.start);
            push_address(&mut out, range.end);
            out.push(range.protocol);
        }
        out
    }

    /// Returns whether a packet may be exchanged with an address.
    pub fn takes(&self, address: IpAddr, protocol: u8) -> bool {
        self.0.iter().any(|range| range.takes(address, protocol))
    }

    /// Returns whether a packet may come from an address: ICMP comes from routers on the way, too.
    pub fn takes_from(&self, address: IpAddr, protocol: u8) -> bool {
        protocol::is_icmp(protocol) || self.takes(address, protocol)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn range(start: &str, end: &str, protocol: u8) -> AddressRange {
        AddressRange { start: start.parse().unwrap(), end: end.parse().unwrap(), protocol }
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
        let routes = RouteAdvertisement(vec![range("198.51.100.2", "198.51.100.9", 17)]);
        let expected = [4, 198, 51, 100, 2, 198, 51, 100, 9, 17];
        assert_eq!(routes.encode(), expected);
        assert_eq!(RouteAdvertisement::parse(&expected), Ok(routes));
    }

    /// RFC 9484 §4.7.1, §4.7.2
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

    /// RFC 9484 §4.7.3
    #[test]
    fn ranges_out_of_order_are_refused() {
        let a = range("10.0.0.0", "10.0.0.9", 0);
        for (next, is_in_order) in [
            (range("10.0.0.10", "10.0.0.10", 0), true),
            (range("10.0.0.9", "10.0.0.10", 0), false),
            (range("9.0.0.0", "9.0.0.1", 0), false),
            (range("9.0.0.0", "9.0.0.1", 6), true),
            (range("::", "::1", 0), true),
        ] {
            let parsed = RouteAdvertisement::parse(&RouteAdvertisement(vec![a, next]).encode());
            assert_eq!(parsed.is_ok(), is_in_order, "{next:?}: {parsed:?}");
        }
        let two = |first, second| RouteAdvertisement::parse(&RouteAdvertisement(vec![first, second]).encode());
        assert_eq!(two(range("::", "::1", 0), a), Err(CapsuleFault::RangeOrder));
        assert_eq!(two(range("10.0.0.0", "10.0.0.9", 6), a), Err(CapsuleFault::RangeOrder));
        let backwards = RouteAdvertisement(vec![range("10.0.0.9", "10.0.0.0", 0)]);
        assert_eq!(RouteAdvertisement::parse(&backwards.encode()), Err(CapsuleFault::EmptyRange));
        assert_eq!(RouteAdvertisement::parse(&[4, 1, 1, 1, 1]), Err(CapsuleFault::Truncated));
        assert_eq!(RouteAdvertisement::parse(&[7]), Err(CapsuleFault::Version(7)));
    }

    #[test]
    fn packets_of_a_protocol_and_icmp_are_taken() {
        let routes = RouteAdvertisement(vec![range("192.0.2.0", "192.0.2.9", 17), range("::", "::9", 0)]);
        let takes = |address: &str, protocol| routes.takes(address.parse().unwrap(), protocol);
        assert!(takes("192.0.2.9", 17) && takes("192.0.2.9", protocol::ICMP) && takes("::9", 6));
        assert!(!takes("192.0.2.9", 6) && !takes("192.0.2.10", 17) && !takes("192.0.2.10", protocol::ICMP));
        assert!(routes.takes_from("203.0.113.1".parse().unwrap(), protocol::ICMP));
        assert!(!routes.takes_from("203.0.113.1".parse().unwrap(), 17));
    }

    fn any_prefix() -> impl Strategy<Value = Prefix> {
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

        /// Ranges are written in an order that the other end accepts, and take the same packets.
        #[test]
        fn ranges_are_put_in_order(
            ranges in proptest::collection::vec((any_prefix(), 0..4_u8), 0..12),
            address: u32,
            number in 0..4_u8,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(prefix, protocol)| AddressRange::of(prefix, protocol)).collect();
            let routes = RouteAdvertisement::of(ranges.clone());
            prop_assert_eq!(RouteAdvertisement::parse(&routes.encode()), Ok(routes.clone()));
            for address in ranges.iter().flat_map(|range| [range.start, range.end]).chain([IpAddr::from(address.to_be_bytes())]) {
                prop_assert_eq!(routes.takes(address, number), ranges.iter().any(|range| range.takes(address, number)));
            }
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(routes) = RouteAdvertisement::parse(&bytes) {
                prop_assert_eq!(routes.encode(), bytes.clone());
            }
            if let Ok(request) = AddressRequest::parse(&bytes) {
                prop_assert_eq!(AddressRequest::parse(&request.encode()), Ok(request));
            }
            let _ = AddressAssign::parse(&bytes);
        }
    }
}
