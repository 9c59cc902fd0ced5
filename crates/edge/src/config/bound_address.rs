//! Addresses of bound UDP: `203.0.113.7`, or `10.0.0.5=203.0.113.7` where others see another one.

use std::{net::IpAddr, str::FromStr};

/// Address of this machine, and what others see in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundAddress {
    pub(crate) local: IpAddr,
    pub(crate) public: IpAddr,
}

impl FromStr for BoundAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, public) = text.split_once('=').unwrap_or((text, text));
        let parse = |text: &str| match text.trim().parse::<IpAddr>() {
            Ok(ip) if !ip.is_unspecified() && !ip.is_multicast() => Ok(ip),
            _ => Err(format!("expected the IP address of a host, found `{text}`")),
        };
        let (local, public) = (parse(local)?, parse(public)?);
        if local.is_ipv4() != public.is_ipv4() {
            return Err("expected two addresses of the same IP version".to_owned());
        }
        Ok(Self { local, public })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = |local: &str, public: &str| {
            Ok(BoundAddress { local: local.parse().unwrap(), public: public.parse().unwrap() })
        };
        assert_eq!("203.0.113.7".parse(), address("203.0.113.7", "203.0.113.7"));
        assert_eq!("10.0.0.5 = 203.0.113.7".parse(), address("10.0.0.5", "203.0.113.7"));
        assert_eq!("2001:db8::1".parse(), address("2001:db8::1", "2001:db8::1"));
        for wrong in ["", "a", "10.0.0.5=", "10.0.0.5=2001:db8::1", "0.0.0.0", "::", "ff02::1", "10.0.0.5:443"] {
            assert!(wrong.parse::<BoundAddress>().is_err(), "{wrong}");
        }
    }
}
