//! Trusted proxies in front of the gateway, which name the client of a request.
//!
//! A proxy appends the address of its client at the right of a list. So the list is read from the right, as long as addresses are those of
//! trusted proxies. The client may have forged everything further left.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName, header};

use crate::{
    config::{self, ForwardedField},
    network::Network,
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Trusted proxies of a generation.
#[derive(Debug)]
pub(crate) struct TrustedProxies {
    networks: Vec<Network>,
    field: ForwardedField,
}

impl TrustedProxies {
    pub(crate) fn new(config: &config::TrustedProxies) -> Self {
        // What cannot be read was refused when the file was.
        let networks = config.networks.0.iter().filter_map(|text| text.parse().ok()).collect();
        Self { networks, field: config.field }
    }

    /// Returns whether this is the address of a trusted proxy.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.has(address))
    }

    /// Client of a request from `peer`, as trusted proxies name it: the rightmost address that is not theirs. Port 0 if they name none.
    /// `None` if `peer` is no trusted proxy, or names no client.
    pub(crate) fn client(&self, fields: &HeaderMap, peer: SocketAddr) -> Option<SocketAddr> {
        let mut client = peer;
        let name = match self.field {
            ForwardedField::XForwardedFor => FORWARDED_FOR,
            ForwardedField::Forwarded => header::FORWARDED,
        };
        let mut lines = fields.get_all(name).iter().rev();
        let mut hops = Vec::new();
        while self.trusts(client.ip()) {
            if hops.is_empty() {
                let Some(line) = lines.next() else { break };
                let Some(line) = line.to_str().ok().and_then(|line| self.read(line)) else { break };
                hops = line;
                continue;
            }
            // An address that cannot be read is not skipped: what is left of it may be anybody's.
            let Some(Some(hop)) = hops.pop() else { break };
            client = hop;
        }
        (client != peer).then_some(client)
    }

    /// Addresses in a line, `None` for one that cannot be read; `None` for the line when its form is broken.
    fn read(&self, line: &str) -> Option<Vec<Option<SocketAddr>>> {
        match self.field {
            ForwardedField::XForwardedFor => Some(line.split(',').map(|hop| node(hop.trim())).collect()),
            ForwardedField::Forwarded => forwarded(line),
        }
    }
}

/// An address with or without a port, as RFC 7239 §6 and proxies write it.
fn node(text: &str) -> Option<SocketAddr> {
    let port = |text: &str| text.parse().ok();
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { 0 } else { port(rest.strip_prefix(':')?)? };
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        None => match text.split_once(':') {
            Some((address, rest)) if !rest.contains(':') => {
                (IpAddr::V4(address.parse::<Ipv4Addr>().ok()?), port(rest)?)
            }
            _ => (text.parse::<IpAddr>().ok()?, 0),
        },
    };
    Some(SocketAddr::new(address.to_canonical(), port))
}

/// The `for` of each element of a `forwarded` field (RFC 7239 §4); `None` when its form is broken: a client that opens a quotation would
/// otherwise hide in it what a proxy adds.
fn forwarded(line: &str) -> Option<Vec<Option<SocketAddr>>> {
    let mut rest = line;
    let mut hops = vec![None];
    let mut is_named = false;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        // Elements and pairs may be empty (RFC 9110 §5.6.1).
        if !rest.starts_with([',', ';']) && !rest.is_empty() {
            let (name, after) = rest.split_once('=')?;
            if name.is_empty() || !name.bytes().all(is_token) {
                return None;
            }
            let (value, after) = value(after)?;
            rest = after.trim_start_matches([' ', '\t']);
            if name.eq_ignore_ascii_case("for") {
                // RFC 7239 §4: each parameter occurs once.
                if std::mem::replace(&mut is_named, true) {
                    return None;
                }
                *hops.last_mut()? = node(&value);
            }
        }
        match rest.chars().next() {
            None => return Some(hops),
            Some(',') => {
                hops.push(None);
                is_named = false;
            }
            Some(';') => {}
            Some(_) => return None,
        }
        rest = &rest[1..];
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A token or a quoted string, and the rest of the text.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Addresses with colons stand in quotes (RFC 7239 §6), but some proxies leave them out.
        let end = text.bytes().position(|byte| !is_token(byte) && !b":[]".contains(&byte)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    loop {
        match letters.next()? {
            (at, '"') => return Some((value, &quoted[at + 1..])),
            (_, '\\') => value.push(letters.next()?.1),
            (_, letter) => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::Many;

    fn found(field: ForwardedField, peer: &str, lines: &[&str]) -> Option<String> {
        let networks = Many(["10.0.0.0/8", "2001:db8:1::/48"].map(str::to_owned).to_vec());
        let trusted = TrustedProxies::new(&config::TrustedProxies { networks, field });
        let mut fields = HeaderMap::new();
        let name = match field {
            ForwardedField::XForwardedFor => "x-forwarded-for",
            ForwardedField::Forwarded => "forwarded",
        };
        for line in lines {
            fields.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        trusted.client(&fields, peer.parse().unwrap()).map(|client| client.to_string())
    }

    #[test]
    fn the_rightmost_address_that_is_not_trusted_is_the_client() {
        let proxy = "10.0.0.1:4433";
        for (peer, lines, client) in [
            ("192.0.2.1:1", &["203.0.113.9"][..], None),
            (proxy, &[], None),
            (proxy, &["203.0.113.9"], Some("203.0.113.9:0")),
            ("[::ffff:10.0.0.1]:9", &["203.0.113.9"], Some("203.0.113.9:0")),
            (proxy, &["198.51.100.1, 203.0.113.9"], Some("203.0.113.9:0")),
            (proxy, &["198.51.100.1, 203.0.113.9,10.2.3.4 , 10.0.0.7"], Some("203.0.113.9:0")),
            (proxy, &["198.51.100.1", "203.0.113.9", "10.2.3.4"], Some("203.0.113.9:0")),
            (proxy, &["203.0.113.9:5000"], Some("203.0.113.9:5000")),
            (proxy, &["2001:db8:2::7"], Some("[2001:db8:2::7]:0")),
            (proxy, &["[2001:db8:2::7]:443"], Some("[2001:db8:2::7]:443")),
            (proxy, &["203.0.113.9, 2001:db8:1::5"], Some("203.0.113.9:0")),
            (proxy, &["::ffff:203.0.113.9"], Some("203.0.113.9:0")),
            // The client is one of the trusted networks itself.
            (proxy, &["10.9.9.9"], Some("10.9.9.9:0")),
            // What cannot be read ends the list: what stands left of it is nobody's word.
            (proxy, &["203.0.113.9, unknown"], None),
            (proxy, &["203.0.113.9, "], None),
            (proxy, &["203.0.113.9, x, 10.0.0.2"], Some("10.0.0.2:0")),
            (proxy, &["203.0.113.9", "\u{e4}"], None),
            (proxy, &["fe80::1%eth0"], None),
            (proxy, &["203.0.113.9:99999"], None),
            (proxy, &["[203.0.113.9]"], None),
        ] {
            let found = found(ForwardedField::XForwardedFor, peer, lines);
            assert_eq!(found.as_deref(), client, "{peer} {lines:?}");
        }
    }

    #[test]
    fn the_standard_field_is_read_strictly() {
        let proxy = "10.0.0.1:4433";
        for (lines, client) in [
            (&["for=203.0.113.9"][..], Some("203.0.113.9:0")),
            (&["FOR=203.0.113.9;proto=https;by=10.0.0.1"], Some("203.0.113.9:0")),
            (&["for=\"[2001:db8:2::7]:4711\""], Some("[2001:db8:2::7]:4711")),
            (&["for=[2001:db8:2::7]"], Some("[2001:db8:2::7]:0")),
            (&["for=198.51.100.1, proto=https;for=203.0.113.9 , for=10.0.0.5"], Some("203.0.113.9:0")),
            (&["for=198.51.100.1", "for=\"203.0.113.9:80\""], Some("203.0.113.9:80")),
            (&["for=203.0.113.9, for=unknown"], None),
            (&["for=203.0.113.9, for=_hidden, for=10.0.0.5"], Some("10.0.0.5:0")),
            (&["for=203.0.113.9, proto=https"], None),
            // A quotation that the client has opened hides nothing.
            (&["for=198.51.100.1;x=\", for=203.0.113.9"], None),
            (&["for=198.51.100.1;x=\", for=\"[2001:db8:2::7]\""], None),
            (&["for=\"198.51.100.1, for=\", for=\"203.0.113.9\""], Some("203.0.113.9:0")),
            (&["for=\"198.51.100.1\\\", for=203.0.113.9"], None),
            (&["for=198.51.100.1;for=203.0.113.9"], None),
            (&["for"], None),
            (&["=203.0.113.9"], None),
            (&[""], None),
        ] {
            assert_eq!(found(ForwardedField::Forwarded, proxy, lines).as_deref(), client, "{lines:?}");
        }
        assert_eq!(found(ForwardedField::Forwarded, "192.0.2.1:1", &["for=203.0.113.9"]), None);
    }
}
