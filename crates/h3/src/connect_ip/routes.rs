//! Capsule by which an end of a tunnel gets routes (RFC 9484 §4.7.3).

use std::net::IpAddr;

use super::{
    AddressRange, CapsuleFault,
    capsules::{address, push_address, version, version_of},
    protocol,
};

/// ROUTE_ADVERTISEMENT: all ranges to which an end forwards packets (RFC 9484 §4.7.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteAdvertisement(pub Vec<AddressRange>);

/// Ranges by version, protocol and address. Those of a protocol that have addresses in common become one.
fn in_order(ranges: impl IntoIterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_by_key(|range| (version_of(range.start), range.protocol, range.start));
    let mut ordered: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match ordered.last_mut().filter(|last| last.protocol == range.protocol && last.contains(range.start)) {
            Some(last) => last.end = last.end.max(range.end),
            None => ordered.push(range),
        }
    }
    ordered
}

/// Returns whether a range of one protocol has addresses of a range of all. The ranges are in order, so that a search finds the range that
/// could have them.
fn has_overlap(ranges: &[AddressRange]) -> bool {
    [4, 6].into_iter().any(|version| {
        let of_version = |range: &&AddressRange| version_of(range.start) == version;
        let all: Vec<_> = ranges.iter().filter(of_version).filter(|range| range.protocol == 0).collect();
        ranges.iter().filter(of_version).filter(|range| range.protocol != 0).any(|range| {
            let next = all.partition_point(|other| other.end < range.start);
            all.get(next).is_some_and(|other| other.start <= range.end)
        })
    })
}

impl RouteAdvertisement {
    /// Ranges in the order of the capsule. Those of a protocol that have addresses in common become one, and a range of one protocol is
    /// left without the addresses that a range of all protocols has.
    // RFC 9484 §4.7.3 MUST-4, MUST-5, MUST-6, MUST-7, MUST NOT-1
    pub fn of(ranges: impl IntoIterator<Item = AddressRange>) -> Self {
        let ranges = in_order(ranges);
        let (all, of_one): (Vec<_>, Vec<_>) = ranges.into_iter().partition(|range| range.protocol == 0);
        let rest = of_one.into_iter().flat_map(|range| {
            all.iter().fold(vec![range], |parts, other| parts.iter().flat_map(|part| part.beside(other)).collect())
        });
        let rest: Vec<_> = rest.collect();
        Self(in_order(all.into_iter().chain(rest)))
    }

    /// Parses the value of a capsule.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn parse(value: &[u8]) -> Result<Self, CapsuleFault> {
        let mut reader = wire::Reader::new(value);
        let mut ranges: Vec<AddressRange> = Vec::new();
        while reader.position() < value.len() {
            // RFC 9484 §4.7.3 MUST-1, SHALL-1, SHALL-2
            let version = version(&mut reader)?;
            let (start, end) = (address(&mut reader, version)?, address(&mut reader, version)?);
            let protocol = reader.u8().map_err(|_| CapsuleFault::Truncated)?;
            // RFC 9484 §4.7.3 MUST-2
            if end < start {
                return Err(CapsuleFault::EmptyRange);
            }
            let range = AddressRange { start, end, protocol };
            // RFC 9484 §4.7.3 MUST-4, MUST-5, MUST-6, MUST-7, MUST-8
            let key = |range: &AddressRange| (version_of(range.start), range.protocol);
            if let Some(last) = ranges.last()
                && (key(last) > key(&range) || key(last) == key(&range) && last.end >= range.start)
            {
                return Err(CapsuleFault::RangeOrder);
            }
            ranges.push(range);
        }
        // RFC 9484 §4.7.3 MUST-9
        if has_overlap(&ranges) { Err(CapsuleFault::RangeOverlap) } else { Ok(Self(ranges)) }
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
    // RFC 9484 §7.2.1 SHOULD-2
    pub fn takes_from(&self, address: IpAddr, protocol: u8) -> bool {
        protocol::is_icmp(protocol) || self.takes(address, protocol)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::capsules::tests::any_prefix, *};

    fn range(start: &str, end: &str, protocol: u8) -> AddressRange {
        AddressRange { start: start.parse().unwrap(), end: end.parse().unwrap(), protocol }
    }

    /// The example of RFC 9484 §8.4, byte by byte.
    #[test]
    fn the_capsule_has_the_form_of_the_standard() {
        let routes = RouteAdvertisement(vec![range("198.51.100.2", "198.51.100.9", 17)]);
        let expected = [4, 198, 51, 100, 2, 198, 51, 100, 9, 17];
        assert_eq!(routes.encode(), expected);
        assert_eq!(RouteAdvertisement::parse(&expected), Ok(routes));
    }

    /// RFC 9484 §4.7.3 MUST-1, MUST-2, MUST-4, MUST-5, MUST-6, MUST-7, MUST-8, SHALL-1, SHALL-2, RFC 9297 §3.3 MUST-3
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
        assert_eq!(RouteAdvertisement::parse(&[6, 1, 1, 1, 1, 1, 1, 1, 1, 0]), Err(CapsuleFault::Truncated));
        let two = |first, second| RouteAdvertisement::parse(&RouteAdvertisement(vec![first, second]).encode());
        assert_eq!(two(range("::", "::1", 0), a), Err(CapsuleFault::RangeOrder));
        assert_eq!(two(range("10.0.0.0", "10.0.0.9", 6), a), Err(CapsuleFault::RangeOrder));
        let backwards = RouteAdvertisement(vec![range("10.0.0.9", "10.0.0.0", 0)]);
        assert_eq!(RouteAdvertisement::parse(&backwards.encode()), Err(CapsuleFault::EmptyRange));
        assert_eq!(RouteAdvertisement::parse(&[4, 1, 1, 1, 1]), Err(CapsuleFault::Truncated));
        assert_eq!(RouteAdvertisement::parse(&[7]), Err(CapsuleFault::Version(7)));
    }

    /// RFC 9484 §7.2.1 SHOULD-2
    #[test]
    fn packets_of_a_protocol_and_icmp_are_taken() {
        let routes = RouteAdvertisement(vec![range("192.0.2.0", "192.0.2.9", 17), range("::", "::9", 0)]);
        let takes = |address: &str, protocol| routes.takes(address.parse().unwrap(), protocol);
        assert!(takes("192.0.2.9", 17) && takes("192.0.2.9", protocol::ICMP) && takes("::9", 6));
        assert!(!takes("192.0.2.9", 6) && !takes("192.0.2.10", 17) && !takes("192.0.2.10", protocol::ICMP));
        assert!(routes.takes_from("203.0.113.1".parse().unwrap(), protocol::ICMP));
        assert!(!routes.takes_from("203.0.113.1".parse().unwrap(), 17));
    }

    /// RFC 9484 §4.7.3 MUST-9, MUST NOT-1
    #[test]
    fn a_range_of_all_protocols_has_its_addresses_alone() {
        let all = range("10.0.0.4", "10.0.0.9", 0);
        for (of_one, is_beside) in [
            (range("10.0.0.0", "10.0.0.3", 17), true),
            (range("10.0.0.10", "10.0.0.12", 17), true),
            (range("10.0.0.0", "10.0.0.4", 17), false),
            (range("10.0.0.9", "10.0.0.9", 17), false),
            (range("10.0.0.0", "10.0.0.255", 17), false),
            (range("::", "::ff", 17), true),
        ] {
            let expected = if is_beside { Ok(()) } else { Err(CapsuleFault::RangeOverlap) };
            let parsed = RouteAdvertisement::parse(&RouteAdvertisement(vec![all, of_one]).encode());
            assert_eq!(parsed.map(drop), expected, "{of_one:?}");
        }
        let written = RouteAdvertisement::of([range("10.0.0.0", "10.0.0.20", 17), all]);
        let expected = [all, range("10.0.0.0", "10.0.0.3", 17), range("10.0.0.10", "10.0.0.20", 17)];
        assert_eq!(written.0, expected);
    }

    proptest! {
        /// RFC 9484 §4.7.3 MUST-4, MUST-5, MUST-6, MUST-7, MUST NOT-1: ranges are written in an order that the other end accepts, and take
        /// the same packets.
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
                prop_assert_eq!(routes.encode(), bytes);
            }
        }
    }
}
