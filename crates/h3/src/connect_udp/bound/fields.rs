//! Header fields of bound UDP (draft-ietf-masque-connect-udp-listen §6, §7).

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Item, List, ListEntry, Parser};

/// Field by which both ends say that they take bound UDP.
pub const CONNECT_UDP_BIND: HeaderName = HeaderName::from_static("connect-udp-bind");
/// Field of a response with the addresses from which the proxy sends.
pub const PROXY_PUBLIC_ADDRESS: HeaderName = HeaderName::from_static("proxy-public-address");

/// All lines of a field, as one value.
fn joined(fields: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines: Vec<_> = fields.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    (!lines.is_empty()).then(|| lines.join(&b","[..]))
}

/// Returns whether [`CONNECT_UDP_BIND`] is there, and true.
// draft-ietf-masque-connect-udp-listen §6 MUST, MUST: another type is as no field; unknown parameters are ignored
pub fn is_bound(fields: &HeaderMap) -> bool {
    let Some(value) = joined(fields, &CONNECT_UDP_BIND) else { return false };
    let item = Parser::new(&value).parse::<Item>();
    item.is_ok_and(|item| item.bare_item == BareItem::Boolean(true))
}

/// Value of [`PROXY_PUBLIC_ADDRESS`].
pub fn public_address_value(addresses: &[SocketAddr]) -> Option<HeaderValue> {
    let strings: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    (!strings.is_empty()).then(|| HeaderValue::from_str(&strings.join(", ")).ok()).flatten()
}

/// Addresses in [`PROXY_PUBLIC_ADDRESS`]; none when the field is absent or malformed. A string that is no address of IPv4 or IPv6 is skipped.
pub fn public_addresses(fields: &HeaderMap) -> Vec<SocketAddr> {
    let Some(value) = joined(fields, &PROXY_PUBLIC_ADDRESS) else { return Vec::new() };
    let Ok(list) = Parser::new(&value).parse::<List>() else { return Vec::new() };
    let strings = list.iter().map(|entry| match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(string), .. }) => Some(string.as_str().to_owned()),
        _ => None,
    });
    let strings = strings.collect::<Option<Vec<_>>>().unwrap_or_default();
    strings.iter().filter_map(|string| string.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: HeaderName, lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (name.clone(), HeaderValue::from_str(line).unwrap())).collect()
    }

    /// draft-ietf-masque-connect-udp-listen §6
    #[test]
    fn only_one_item_that_is_true_asks_for_bound_udp() {
        for (lines, expected) in [
            (&["?1"][..], true),
            (&["?1;a=b"], true),
            (&[" ?1 ;x;y=?0"], false),
            (&["?0"], false),
            (&["1"], false),
            (&["\"?1\""], false),
            (&["?1, ?1"], false),
            (&["?1", "?1"], false),
            (&["(?1)"], false),
            (&[""], false),
            (&[], false),
        ] {
            assert_eq!(is_bound(&fields(CONNECT_UDP_BIND, lines)), expected, "{lines:?}");
        }
    }

    /// draft-ietf-masque-connect-udp-listen §7, with the field of its example
    #[test]
    fn public_addresses_are_a_list_of_strings() {
        let addresses: Vec<SocketAddr> =
            ["192.0.2.45:54321", "[2001:db8::1234]:54321"].iter().map(|text| text.parse().unwrap()).collect();
        let value = public_address_value(&addresses).unwrap();
        assert_eq!(value, "\"192.0.2.45:54321\", \"[2001:db8::1234]:54321\"");
        assert_eq!(public_addresses(&fields(PROXY_PUBLIC_ADDRESS, &[value.to_str().unwrap()])), addresses);
        assert_eq!(public_address_value(&[]), None);
        for (lines, count) in [
            (&["\"192.0.2.45:1\";a=1", "\"[::1]:2\""][..], 2),
            (&["\"[v1.future]:1\", \"192.0.2.45:1\""], 1),
            (&["192.0.2.45:1"], 0),
            (&["\"192.0.2.45:1\", token"], 0),
            (&["\"192.0.2.45\", \"::1:2\", \"192.0.2.45:65536\""], 0),
            (&[], 0),
        ] {
            assert_eq!(public_addresses(&fields(PROXY_PUBLIC_ADDRESS, lines)).len(), count, "{lines:?}");
        }
    }
}
