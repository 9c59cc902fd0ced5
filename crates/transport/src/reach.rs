//! Addresses to which a server may refer a client.
//!
//! Preferred addresses, `alt-svc` and HTTPS records name addresses that the client did not choose. A server on the Internet must not use
//! them to make clients send to hosts that only the clients can reach (RFC 9000 §21.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reach of an address, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// The host itself.
    Host,
    /// The host's links (RFC 3927, RFC 4291 §2.5.6).
    Link,
    /// The host's networks (RFC 1918, RFC 4193, RFC 6598).
    Site,
    /// Everywhere.
    World,
}

/// Reach of an address; `None` for an address of no single host: unspecified, multicast, broadcast.
fn reach(ip: IpAddr) -> Option<Reach> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Option<Reach> {
    let [a, b, ..] = ip.octets();
    match a {
        // RFC 1122 §3.2.1.3: network 0 is this one; class D and what is beyond it are no hosts.
        0 | 224..=255 => None,
        127 => Some(Reach::Host),
        169 if b == 254 => Some(Reach::Link),
        100 if b & 0xc0 == 64 => Some(Reach::Site),
        _ if ip.is_private() => Some(Reach::Site),
        _ => Some(Reach::World),
    }
}

fn reach_v6(ip: Ipv6Addr) -> Option<Reach> {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match a {
        _ if ip.is_unspecified() || ip.is_multicast() => None,
        _ if ip.is_loopback() => Some(Reach::Host),
        // RFC 6052 §2.1, RFC 3056 §2: translators and tunnels lead to the IPv4 address within.
        0x64 if [b, c, d, e, f] == [0xff9b, 0, 0, 0, 0] => embedded(g, h),
        0x2002 => embedded(b, c),
        _ if a & 0xffc0 == 0xfe80 => Some(Reach::Link),
        // RFC 3879: site-local addresses, which are not given out any more.
        _ if a & 0xfe00 == 0xfc00 || a & 0xffc0 == 0xfec0 => Some(Reach::Site),
        _ => Some(Reach::World),
    }
}

/// Returns whether a server at `from` may send its clients to `to`: to no port 0, to one host, and to no address that reaches less far than its
/// own.
pub fn may_refer(from: IpAddr, to: SocketAddr) -> bool {
    let to = (to.port() != 0).then(|| reach(to.ip())).flatten();
    to.is_some_and(|to| reach(from).is_some_and(|from| from <= to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_nearer() {
        let nearest_first: [&[&str]; 4] = [
            &["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
            &["169.254.0.1", "fe80::1", "febf::1", "::ffff:169.254.169.254"],
            &[
                "10.0.0.1",
                "172.16.0.1",
                "192.168.255.1",
                "100.64.0.1",
                "100.127.0.1",
                "fd00::1",
                "fec0::1",
                "64:ff9b::a00:1",
            ],
            &["198.51.100.1", "172.32.0.1", "100.128.0.1", "2001:db8::1", "64:ff9b::c633:6401"],
        ];
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 443);
        for (from_class, froms) in nearest_first.iter().enumerate() {
            for (to_class, tos) in nearest_first.iter().enumerate() {
                for (from, to) in froms.iter().flat_map(|from| tos.iter().map(move |to| (from, to))) {
                    assert_eq!(may_refer(at(from).ip(), at(to)), from_class <= to_class, "{from} to {to}");
                }
            }
            for nobody in ["0.0.0.0", "0.1.2.3", "224.0.0.251", "255.255.255.255", "240.0.0.1", "::", "ff02::fb"] {
                assert!(!may_refer(at(froms[0]).ip(), at(nobody)), "{nobody}");
                assert!(!may_refer(at(nobody).ip(), at(froms[0])), "{nobody}");
            }
            assert!(!may_refer(at(froms[0]).ip(), SocketAddr::new("198.51.100.1".parse().unwrap(), 0)));
        }
    }
}
