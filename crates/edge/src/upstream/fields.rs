//! What of a message's fields stays between two connections, and what is said about the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Fields that concern one connection only (RFC 9110 §7.6.1), and those that would let a client speak for the gateway.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
    "trailer",
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// RFC 8470 §5.1.
pub(crate) const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Takes away what concerns the connection it came on.
// RFC 9114 §4.2 MUST-4: over HTTP/3 it would make an answer malformed
// RFC 9204 §7.1.3 MUST-2: fields go on as they are, and say of themselves that they are not to be indexed
pub(crate) fn strip(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A client may not take away what others rely on by naming it here.
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH, header::AUTHORIZATION, header::COOKIE].contains(name))
        .collect();
    for name in named {
        fields.remove(name);
    }
    for name in HOP_BY_HOP {
        fields.remove(name);
    }
    // Only this value has a meaning beyond HTTP/1.1 (RFC 9110 §10.1.4).
    let trailers = fields.get_all(header::TE).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("trailers")))
    });
    fields.remove(header::TE);
    if trailers {
        fields.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Says who asks, in place of what the client may have said about itself.
pub(crate) fn introduce(fields: &mut HeaderMap, client: IpAddr, host: &str, early: bool) {
    let value = |text: &str| HeaderValue::from_str(text).ok();
    fields.remove(&FORWARDED_FOR);
    fields.remove("forwarded");
    fields.remove(&FORWARDED_HOST);
    fields.remove(&EARLY_DATA);
    fields.extend(value(&client.to_canonical().to_string()).map(|client| (FORWARDED_FOR, client)));
    fields.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    if let Some(host) = value(host) {
        fields.insert(FORWARDED_HOST, host.clone());
        // RFC 9114 §4.3.1 MUST-2
        fields.insert(header::HOST, host);
    }
    if early {
        fields.insert(EARLY_DATA, HeaderValue::from_static("1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    /// RFC 9114 §4.2 MUST-4
    #[test]
    fn what_concerns_the_connection_stays_behind() {
        let mut fields = map(&[
            ("connection", "close, x-mine, host, cookie"),
            ("x-mine", "1"),
            ("host", "example.org"),
            ("cookie", "a=b"),
            ("keep-alive", "300"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "gzip, Trailers"),
            ("accept", "*/*"),
        ]);
        strip(&mut fields);
        assert_eq!(fields, map(&[("host", "example.org"), ("cookie", "a=b"), ("te", "trailers"), ("accept", "*/*")]));
    }

    #[test]
    fn a_client_does_not_introduce_itself() {
        let mut fields = map(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-proto", "http"), ("early-data", "1")]);
        introduce(&mut fields, "::ffff:192.0.2.7".parse().unwrap(), "example.org", false);
        assert_eq!(
            fields,
            map(&[
                ("x-forwarded-for", "192.0.2.7"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "example.org"),
                ("host", "example.org"),
            ])
        );
    }
}
