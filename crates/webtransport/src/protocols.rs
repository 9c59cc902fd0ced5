//! Application protocols (draft-ietf-webtrans-http3 §3.3): structured fields (RFC 9651) to strings and back.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Item, List, ListEntry, Parser};

pub(crate) const AVAILABLE: HeaderName = HeaderName::from_static("wt-available-protocols");
pub(crate) const CHOSEN: HeaderName = HeaderName::from_static("wt-protocol");

/// Protocols that a client offers, the preferred one first; none when the field is absent or malformed.
pub(crate) fn available(headers: &HeaderMap) -> Vec<String> {
    let values: Vec<_> = headers.get_all(AVAILABLE).iter().map(HeaderValue::as_bytes).collect();
    let Ok(list) = Parser::new(&values.join(&b","[..])).parse::<List>() else { return Vec::new() };
    // draft-ietf-webtrans-http3 §3.3 MUST: a value that is no string has the whole field ignored; parameters are ignored
    let strings = list.iter().map(|entry| match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(string), .. }) => Some(string.as_str().to_owned()),
        _ => None,
    });
    strings.collect::<Option<_>>().unwrap_or_default()
}

/// Protocol that a server chose; `None` when the field is absent or malformed.
pub(crate) fn chosen(headers: &HeaderMap) -> Option<String> {
    let item = Parser::new(headers.get(CHOSEN)?.as_bytes()).parse::<Item>().ok()?;
    match item.bare_item {
        BareItem::String(string) => Some(string.as_str().to_owned()),
        _ => None,
    }
}

/// Value of a field that lists protocols; `None` when one of them has characters that no such field has, or there is none.
pub(crate) fn value(protocols: &[&str]) -> Option<HeaderValue> {
    let quoted: Option<Vec<_>> = protocols.iter().map(|one| quoted(one)).collect();
    let joined = quoted.filter(|quoted| !quoted.is_empty())?.join(", ");
    HeaderValue::from_str(&joined).ok()
}

/// A string of a structured field (RFC 9651 §4.1.6).
fn quoted(text: &str) -> Option<String> {
    let is_valid = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    is_valid.then(|| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_strings_are_read_and_others_ignored() {
        for (field, expected) in [
            (r#""a", "b c";q=1"#, &["a", "b c"][..]),
            (r#""a\"\\""#, &["a\"\\"]),
            (r#""a", token"#, &[]),
            (r#""a", ("b")"#, &[]),
            (r#""a"#, &[]),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AVAILABLE, field.parse().unwrap());
            assert_eq!(available(&headers), expected, "{field}");
        }
        let mut headers = HeaderMap::new();
        headers.append(AVAILABLE, value(&["one", "t\"wo"]).unwrap());
        headers.append(AVAILABLE, value(&["three"]).unwrap());
        assert_eq!(available(&headers), ["one", "t\"wo", "three"]);
        assert!(value(&["ü"]).is_none() && value(&[]).is_none());
        for (field, expected) in [(r#""a""#, Some("a")), ("a", None), (r#""a", "b""#, None)] {
            headers.insert(CHOSEN, field.parse().unwrap());
            assert_eq!(chosen(&headers).as_deref(), expected);
        }
    }
}
