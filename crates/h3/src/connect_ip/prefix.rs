//! Prefixes and ranges of IP addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use super::protocol;

/// All addresses that begin with the same bits. The other bits of the address are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Fault of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixFault {
    /// Text that is no address with a length.
    #[error("expected an address and a prefix length, as in 192.0.2.0/24")]
    Text,
    /// More bits than the address has.
    #[error("the prefix is longer than the address")]
    Length,
    /// Bits behind the prefix that are not zero.
    #[error("bits of the address behind the prefix are not zero")]
    LowerBits,
}

/// Bits of an address of this kind.
const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An address as a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address with a number, of the same version as `like`.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

impl Prefix {
    /// A prefix of this many bits.
    ///
    /// # Errors
    /// When the address has fewer bits, or bits behind the prefix are not zero.
    // RFC 9484 §4.6 MUST-3, MUST-4, RFC 9484 §4.7.1 MUST-2, MUST-3, RFC 9484 §4.7.2 MUST-2, MUST-3
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixFault> {
        let host_bits = bits(address).checked_sub(length).ok_or(PrefixFault::Length)?;
        let below = 1_u128.checked_shl(host_bits.into()).map_or(u128::MAX, |next| next - 1);
        if number(address) & below == 0 { Ok(Self { address, length }) } else { Err(PrefixFault::LowerBits) }
    }

    /// The prefix of one address.
    pub const fn of(address: IpAddr) -> Self {
        Self { address, length: bits(address) }
    }

    /// First address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Number of bits.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Returns whether it is of one address.
    pub const fn is_single(self) -> bool {
        self.length == bits(self.address)
    }

    /// Last address.
    pub fn last(self) -> IpAddr {
        let host_bits = bits(self.address) - self.length;
        let below = 1_u128.checked_shl(host_bits.into()).map_or(u128::MAX, |next| next - 1);
        address(number(self.address) | below, self.address)
    }

    /// Returns whether an address begins with the prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && (self.address..=self.last()).contains(&address)
    }

    /// The address at an offset from the first one; `None` outside of the prefix.
    pub fn at(self, offset: u128) -> Option<IpAddr> {
        let number = number(self.address).checked_add(offset)?;
        (number <= self::number(self.last())).then(|| address(number, self.address))
    }

    /// Number of addresses less one.
    pub fn last_offset(self) -> u128 {
        number(self.last()) - number(self.address)
    }
}

impl FromStr for Prefix {
    type Err = PrefixFault;

    /// Reads `192.0.2.0/24`, or an address alone.
    fn from_str(text: &str) -> Result<Self, PrefixFault> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixFault::Text)?;
        let Some(length) = length else { return Ok(Self::of(address)) };
        // RFC 9484 §4.6: up to three digits
        let is_number = (1..=3).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_digit());
        let length: u16 = length.parse().ok().filter(|_| is_number).ok_or(PrefixFault::Text)?;
        Self::new(address, u8::try_from(length).map_err(|_| PrefixFault::Length)?)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Range of addresses, with both ends, to which packets of a protocol may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// First address.
    pub start: IpAddr,
    /// Last address, of the same version.
    pub end: IpAddr,
    /// Internet Protocol Number; 0 for all.
    pub protocol: u8,
}

impl AddressRange {
    /// The addresses of a prefix.
    pub fn of(prefix: Prefix, protocol: u8) -> Self {
        Self { start: prefix.address(), end: prefix.last(), protocol }
    }

    /// Returns whether it has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.start.is_ipv4() && (self.start..=self.end).contains(&address)
    }

    /// Returns whether packets of a protocol may be exchanged with an address. ICMP always may.
    // RFC 9484 §4.7.3
    pub fn takes(&self, address: IpAddr, number: u8) -> bool {
        let is_protocol = self.protocol == 0 || self.protocol == number || protocol::is_icmp(number);
        is_protocol && self.contains(address)
    }

    /// The part of it that another range has as well.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let same = self.start.is_ipv4() == other.start.is_ipv4();
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (same && start <= end).then_some(Self { start, end, protocol: self.protocol })
    }

    /// The parts of it without an address.
    pub fn without(&self, excluded: IpAddr) -> Vec<Self> {
        self.beside(&Self::of(Prefix::of(excluded), 0))
    }

    /// The parts of it that another range does not have, whatever the protocols are.
    pub fn beside(&self, other: &Self) -> Vec<Self> {
        let Some(common) = self.intersection(other) else { return vec![*self] };
        let below = number(common.start).checked_sub(1).map(|end| Self { end: address(end, self.start), ..*self });
        let above = number(common.end).checked_add(1).map(|start| Self { start: address(start, self.start), ..*self });
        let parts = [below.filter(|_| self.start < common.start), above.filter(|_| common.end < self.end)];
        parts.into_iter().flatten().collect()
    }

    /// The fewest prefixes that cover it.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let (mut next, end) = (number(self.start), number(self.end));
        let all = u32::from(bits(self.start));
        let mut prefixes = Vec::new();
        loop {
            // As many addresses as fit behind the zeros at the end of the first one, and into the range.
            let aligned = next.trailing_zeros().min(all);
            let left = end - next;
            let fitting = if left == u128::MAX { 128 } else { (left + 1).ilog2() };
            let host_bits = aligned.min(fitting);
            let length = u8::try_from(all - host_bits).unwrap_or_default();
            prefixes.push(Prefix { address: address(next, self.start), length });
            let size = 1_u128.checked_shl(host_bits);
            match size.and_then(|size| next.checked_add(size)) {
                Some(after) if after <= end => next = after,
                _ => return prefixes,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: &str, end: &str) -> AddressRange {
        AddressRange { start: start.parse().unwrap(), end: end.parse().unwrap(), protocol: 0 }
    }

    /// RFC 9484 §4.6 MUST-3, MUST-4, RFC 9484 §4.7.1 MUST-2, MUST-3
    #[test]
    fn prefixes_have_zeros_behind_them() {
        for text in ["192.0.2.0/24", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "2001:db8::1/128"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<Prefix>().unwrap().to_string(), "192.0.2.1/32");
        for (text, fault) in [
            ("192.0.2.1/24", PrefixFault::LowerBits),
            ("128.0.0.0/0", PrefixFault::LowerBits),
            ("2001:db8::1/127", PrefixFault::LowerBits),
            ("192.0.2.0/33", PrefixFault::Length),
            ("::/129", PrefixFault::Length),
            ("::/999", PrefixFault::Length),
            ("192.0.2.0/", PrefixFault::Text),
            ("192.0.2.0/+8", PrefixFault::Text),
            ("192.0.2.0/0024", PrefixFault::Text),
            ("fe80::1%eth0/64", PrefixFault::Text),
            ("a", PrefixFault::Text),
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(fault), "{text}");
        }
    }

    #[test]
    fn addresses_of_a_prefix() {
        let prefix: Prefix = "192.0.2.0/30".parse().unwrap();
        assert_eq!((prefix.last(), prefix.last_offset()), ("192.0.2.3".parse().unwrap(), 3));
        assert_eq!((prefix.at(3), prefix.at(4)), (Some("192.0.2.3".parse().unwrap()), None));
        assert!(prefix.contains("192.0.2.3".parse().unwrap()) && !prefix.contains("192.0.2.4".parse().unwrap()));
        let all: Prefix = "::/0".parse().unwrap();
        assert_eq!(all.last_offset(), u128::MAX);
        assert!(all.contains("ffff::1".parse().unwrap()) && !all.contains("0.0.0.0".parse().unwrap()));
    }

    #[test]
    fn a_range_without_an_address_has_its_neighbours() {
        let whole = range("192.0.2.0", "192.0.2.9");
        let without = |address: &str| whole.without(address.parse().unwrap());
        assert_eq!(without("192.0.2.5"), [range("192.0.2.0", "192.0.2.4"), range("192.0.2.6", "192.0.2.9")]);
        assert_eq!(without("192.0.2.0"), [range("192.0.2.1", "192.0.2.9")]);
        assert_eq!(without("192.0.2.9"), [range("192.0.2.0", "192.0.2.8")]);
        assert_eq!(without("192.0.3.0"), [whole]);
        assert_eq!(range("::1", "::1").without("::1".parse().unwrap()), []);
        let all = range("0.0.0.0", "255.255.255.255");
        assert_eq!(all.without("255.255.255.255".parse().unwrap()), [range("0.0.0.0", "255.255.255.254")]);
        assert_eq!(all.without("192.0.2.1".parse().unwrap()).iter().flat_map(AddressRange::prefixes).count(), 32);
    }

    #[test]
    fn whole_families_are_one_prefix() {
        for (start, end, prefix) in [
            ("0.0.0.0", "255.255.255.255", "0.0.0.0/0"),
            ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"),
            ("255.255.255.255", "255.255.255.255", "255.255.255.255/32"),
        ] {
            assert_eq!(range(start, end).prefixes(), [prefix.parse().unwrap()]);
        }
    }

    proptest! {
        /// Prefixes of a range follow each other without a gap, and are as few as they can be.
        #[test]
        fn prefixes_cover_a_range_exactly(a: u32, b: u32, is_wide: bool) {
            let (a, b) = if is_wide { (a, b) } else { (a, a.saturating_add(b % 300)) };
            let (start, end) = (Ipv4Addr::from(a.min(b)), Ipv4Addr::from(a.max(b)));
            let prefixes = AddressRange { start: start.into(), end: end.into(), protocol: 0 }.prefixes();
            prop_assert!(prefixes.len() <= 62);
            let mut next = Some(number(start.into()));
            for prefix in &prefixes {
                prop_assert_eq!(Some(number(prefix.address())), next);
                prop_assert_eq!(Prefix::new(prefix.address(), prefix.length()), Ok(*prefix));
                next = number(prefix.last()).checked_add(1);
            }
            prop_assert_eq!(next, Some(number(end.into()) + 1));
            // Two neighbours that could be one are none.
            for pair in prefixes.windows(2) {
                let joined = pair[0].length().checked_sub(1).map(|length| Prefix::new(pair[0].address(), length));
                prop_assert!(!matches!(joined, Some(Ok(joined)) if joined.last() == pair[1].last()));
            }
        }
    }
}
