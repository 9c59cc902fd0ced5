//! Permitted addresses and ports of a proxy's targets.
//!
//! A request names a target. The rules check the resolved address, and the proxy connects to this address. So a name that resolves to
//! another address a moment later leads nowhere else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{config, network::Network};

/// Rules of a proxy.
#[derive(Debug)]
pub(super) struct Rules {
    allow: Vec<Network>,
    deny: Vec<Network>,
    denied_ports: Vec<u16>,
}

/// Rule that prohibits a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prohibited {
    /// The port is in `deny-ports`.
    Port,
    /// The address is in `deny`.
    Denied,
    /// The gateway itself listens there.
    Listener,
    /// The address is of no public host: private, loopback, link-local, multicast and so on.
    NotPublic,
}

impl Rules {
    /// Makes rules from the configuration, which was checked when it was read.
    pub(super) fn new(allow: &config::Many, deny: &config::Many, deny_ports: &[u16]) -> Self {
        Self { allow: Network::all(&allow.0), deny: Network::all(&deny.0), denied_ports: deny_ports.to_vec() }
    }

    /// Checks a port, before any look-up.
    pub(super) fn check_port(&self, port: u16) -> Result<(), Prohibited> {
        if self.denied_ports.contains(&port) { Err(Prohibited::Port) } else { Ok(()) }
    }

    /// Judges an address. `deny` comes first, then `allow`, then the rules for addresses that are of no public host.
    pub(super) fn check(&self, target: SocketAddr) -> Result<(), Prohibited> {
        self.check_port(target.port())?;
        let forms = [target.ip(), inner(target.ip())];
        if self.deny.iter().any(|network| forms.iter().any(|ip| network.has(*ip))) {
            return Err(Prohibited::Denied);
        }
        if self.allows(target.ip()) || is_public(target.ip()) { Ok(()) } else { Err(Prohibited::NotPublic) }
    }

    /// Returns whether `allow` names the address.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|network| network.has(address))
    }
}

/// Final destination of packets to an address: the IPv4 address embedded in an IPv6 address, if a translator or a tunnel on the path
/// extracts it.
fn inner(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else { return address.to_canonical() };
    let octets = v6.octets();
    let v4 = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
    match v6.segments() {
        // NAT64 (RFC 6052 §2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4(12).into(),
        // 6to4 (RFC 3056 §2).
        [0x2002, ..] => v4(2).into(),
        _ => address,
    }
}

/// Returns whether an address is one of a host on the public Internet.
fn is_public(address: IpAddr) -> bool {
    match inner(address) {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

/// IPv4 networks without public hosts (IANA's registry of special-purpose addresses), and one address of a cloud that only its own
/// machines reach.
const SPECIAL_V4: [([u8; 4], u8); 16] = [
    // This network.
    ([0, 0, 0, 0], 8),
    // Private use.
    ([10, 0, 0, 0], 8),
    // Shared by carriers, and metadata services in it.
    ([100, 64, 0, 0], 10),
    // Loopback.
    ([127, 0, 0, 0], 8),
    // Link-local, and the metadata services of most clouds.
    ([169, 254, 0, 0], 16),
    // Private use.
    ([172, 16, 0, 0], 12),
    // IETF protocols, and a metadata service.
    ([192, 0, 0, 0], 24),
    // Documentation.
    ([192, 0, 2, 0], 24),
    // Relays of 6to4.
    ([192, 88, 99, 0], 24),
    // Private use.
    ([192, 168, 0, 0], 16),
    // Benchmarks.
    ([198, 18, 0, 0], 15),
    // Documentation.
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast.
    ([224, 0, 0, 0], 4),
    // Reserved, and the limited broadcast.
    ([240, 0, 0, 0], 4),
    // The host agent of Azure, which gives machines their settings.
    ([168, 63, 129, 16], 32),
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|(network, bits)| {
        (u32::from(address) ^ u32::from(Ipv4Addr::from(*network))).leading_zeros() >= u32::from(*bits)
    })
}

/// IPv6 networks without public hosts inside of 2000::/3, which alone has any.
const SPECIAL_V6: [([u16; 2], u8); 3] = [
    // IETF protocols, Teredo and ORCHID among them.
    ([0x2001, 0], 23),
    // Documentation.
    ([0x2001, 0xdb8], 32),
    ([0x3fff, 0], 20),
];

fn is_public_v6(address: Ipv6Addr) -> bool {
    let first = u32::from(address.segments()[0]) << 16 | u32::from(address.segments()[1]);
    let is_in = |network: [u16; 2], bits: u8| {
        (first ^ (u32::from(network[0]) << 16 | u32::from(network[1]))).leading_zeros() >= u32::from(bits)
    };
    is_in([0x2000, 0], 3) && !SPECIAL_V6.iter().any(|(network, bits)| is_in(*network, *bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Many;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        let many = |list: &[&str]| Many(list.iter().map(|text| (*text).to_owned()).collect());
        Rules::new(&many(allow), &many(deny), &[25])
    }

    fn check(rules: &Rules, address: &str) -> Result<(), Prohibited> {
        rules.check(SocketAddr::new(address.parse().unwrap(), 443))
    }

    /// RFC 9298 §7
    #[test]
    fn addresses_of_no_public_host_are_prohibited_in_every_spelling() {
        let rules = rules(&[], &[]);
        for v4 in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
        ] {
            let octets = v4.parse::<Ipv4Addr>().unwrap().octets();
            let [a, b, c, d] = octets;
            for spelling in [
                v4.to_owned(),
                format!("::ffff:{v4}"),
                format!("64:ff9b::{v4}"),
                format!("::{v4}"),
                format!("2002:{:x}:{:x}::1", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
                format!("64:ff9b:1::{v4}"),
                format!("2001:0:0:0:0:0:{:x}:{:x}", !u16::from_be_bytes([a, b]), !u16::from_be_bytes([c, d])),
            ] {
                assert_eq!(check(&rules, &spelling), Err(Prohibited::NotPublic), "{spelling}");
            }
        }
        for v6 in [
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "ff02::1",
            "ff0e::1",
            "2001:db8::1",
            "3fff::1",
            "100::1",
            "5f00::1",
            "2001::1",
            "2001:10::1",
            "4000::1",
            "::2",
            "1::1",
        ] {
            assert_eq!(check(&rules, v6), Err(Prohibited::NotPublic), "{v6}");
        }
    }

    #[test]
    fn public_hosts_are_reached() {
        let rules = rules(&[], &[]);
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "128.0.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(check(&rules, address), Ok(()), "{address}");
        }
    }

    #[test]
    fn networks_are_allowed_and_denied() {
        let rules = rules(&["10.1.0.0/16", "::1", "203.0.113.7"], &["10.1.2.0/24", "8.8.8.0/24"]);
        for (address, expected) in [
            ("10.1.0.1", Ok(())),
            ("::ffff:10.1.0.1", Ok(())),
            ("10.2.0.1", Err(Prohibited::NotPublic)),
            ("10.1.2.3", Err(Prohibited::Denied)),
            ("::ffff:10.1.2.3", Err(Prohibited::Denied)),
            ("::1", Ok(())),
            ("127.0.0.1", Err(Prohibited::NotPublic)),
            ("8.8.8.8", Err(Prohibited::Denied)),
            ("64:ff9b::8.8.8.8", Err(Prohibited::Denied)),
            ("8.8.9.8", Ok(())),
            // An allowed IPv4 address is not allowed by way of a translator.
            ("64:ff9b::10.1.0.1", Err(Prohibited::NotPublic)),
        ] {
            assert_eq!(check(&rules, address), expected, "{address}");
        }
        assert_eq!(rules.check("8.8.9.8:25".parse().unwrap()), Err(Prohibited::Port));
        assert_eq!(rules.check("10.1.0.1:25".parse().unwrap()), Err(Prohibited::Port));
    }
}
