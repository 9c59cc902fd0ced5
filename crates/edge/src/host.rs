//! Hosts as requests and configurations write them: a name or an address, with or without a port.

use std::net::Ipv6Addr;

/// Returns whether this is a name or an address, with or without a port. An IPv6 address is in brackets and has no zone: a zone has a
/// meaning on one machine only (RFC 6874 §1).
pub(crate) fn is_host(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => {
                ("", port.strip_prefix(':').or((port.is_empty()).then_some("")))
            }
            _ => return false,
        },
        None => text.split_once(':').map_or((text, Some("")), |(name, port)| (name, Some(port))),
    };
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let has_name = text.starts_with('[') || !name.is_empty();
    has_name && text.len() <= 261 && name.bytes().all(sane) && port.is_some_and(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_hosts() {
        for good in ["a.test", "a_b.test:443", "192.0.2.1:8080", "[2001:db8::1]", "[::1]:443", "a:"] {
            assert!(is_host(good), "{good}");
        }
        for bad in ["", ":443", "a b", "a:123456", "a:x", "[::1", "[fe80::1%eth0]", "[::1]x", "a/b", &"a".repeat(262)] {
            assert!(!is_host(bad), "{bad}");
        }
    }
}
