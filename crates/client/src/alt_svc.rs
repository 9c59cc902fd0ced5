//! Values of `alt-svc` fields about HTTP/3 (RFC 7838).
//!
//! ```
//! use tiderace_client::alt_svc;
//!
//! let offer = alt_svc::http3(r#"h2=":443", h3=":8443"; ma=60"#).expect("the second offer is HTTP/3");
//! assert_eq!((offer.host, offer.port, offer.max_age.as_secs()), (None, 8443, 60));
//! assert!(alt_svc::http3("clear").is_none());
//! ```

use std::time::Duration;

/// HTTP/3 at another port, or host, of the same origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The host; `None` for the origin's own.
    pub host: Option<String>,
    /// The UDP port.
    pub port: u16,
    /// Time for which it may be remembered.
    pub max_age: Duration,
    /// Set if the origin asks for reports of fall-backs: parameter `fallback-reports`, which other clients ignore (RFC 7838 §3).
    pub wants_reports: bool,
}

/// Age of an offer without `ma`: one day (RFC 7838 §3.1).
const MAX_AGE: Duration = Duration::from_secs(86_400);
/// Longest name of a host (RFC 1035 §2.3.4), which bounds what is stored of an offer.
const LONGEST_HOST: usize = 255;

/// The first offer of HTTP/3 in a field's value. `None` when there is none; what cannot be read is ignored.
pub fn http3(value: &str) -> Option<Alternative> {
    split(value, ',').find_map(|offer| {
        let mut parts = split(offer, ';');
        let (protocol, authority) = parts.next()?.split_once('=')?;
        if protocol.trim() != "h3" {
            return None;
        }
        let authority = authority.trim().strip_prefix('"')?.strip_suffix('"')?;
        let (host, port) = authority.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let (mut age, mut wants_reports) = (None, false);
        for part in parts.map(str::trim) {
            if let Some(seconds) = part.strip_prefix("ma=").and_then(|text| text.trim_matches('"').parse().ok()) {
                age.get_or_insert(seconds);
            }
            wants_reports |= part == "fallback-reports=1";
        }
        if host.len() > LONGEST_HOST {
            return None;
        }
        let host = (!host.is_empty()).then(|| host.to_owned());
        Some(Alternative { host, port, max_age: age.map_or(MAX_AGE, Duration::from_secs), wants_reports })
    })
}

/// Parts between separators that are not quoted.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |letter| {
        quoted ^= letter == '"';
        letter == separator && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers() {
        let at = |host: Option<&str>, port, seconds| {
            let max_age = Duration::from_secs(seconds);
            Some(Alternative { host: host.map(str::to_owned), port, max_age, wants_reports: false })
        };
        let asks = Alternative { wants_reports: true, ..at(None, 443, 60).unwrap() };
        assert_eq!(http3(r#"h3=":443"; fallback-reports=1; ma=60"#), Some(asks));
        for (value, expected) in [
            (r#"h3=":443"; ma=3600"#, at(None, 443, 3_600)),
            (r#"h2="a:1,2", h3=":8443""#, at(None, 8_443, 86_400)),
            (r#"h3-29=":443", h3="b.example:444"; persist=1; ma=5"#, at(Some("b.example"), 444, 5)),
            ("clear", None),
            (r#"h3=":0""#, None),
            (r#"h3=:443"#, None),
            (r#"h3=":99999", h3=":1""#, at(None, 1, 86_400)),
            ("", None),
        ] {
            assert_eq!(http3(value), expected, "{value}");
        }
        let long = "a".repeat(LONGEST_HOST + 1);
        assert_eq!(http3(&format!("h3=\"{long}:443\", h3=\":444\"; ma=5")), at(None, 444, 5));
        let eternal = http3(&format!("h3=\":443\"; ma={}", u64::MAX)).unwrap();
        assert_eq!(eternal.max_age, Duration::from_secs(u64::MAX));
    }
}
