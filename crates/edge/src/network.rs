//! A network of clients, as in `192.0.2.0/24`.

use std::{net::IpAddr, str::FromStr};

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u8,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a network as in `192.0.2.0/24` or `2001:db8::/32`, found `{text}`");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits > all { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

/// The address's bits from the left.
fn left(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => v6.into(),
    }
}

impl Network {
    /// The networks of a list that was checked when the configuration was read.
    pub(crate) fn all(texts: &[String]) -> Vec<Self> {
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns whether all addresses of a family are in the network.
    pub(crate) fn is_everybody(&self) -> bool {
        self.bits == 0
    }

    /// Returns whether the address, which may be an IPv4-mapped IPv6 address, is in the network.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let different = left(address) ^ left(self.address);
        address.is_ipv4() == self.address.is_ipv4() && different.leading_zeros() >= u32::from(self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_networks() {
        for (network, address, inside) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.0/24", "::ffff:192.0.2.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.0", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.has(address.parse().unwrap()), inside, "{network} {address}");
        }
        for bad in ["", "192.0.2.0/33", "192.0.2/24", "::/129", "::/x", "a"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
