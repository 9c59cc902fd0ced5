//! Header fields between two connections: forwarded fields, and fields that describe the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Fields that concern one connection only (RFC 9110 §7.6.1), and `TE`.
fn is_of_connection(name: &HeaderName) -> bool {
    static NAMES: [HeaderName; 9] = [
        header::CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::TRAILER,
        header::TE,
    ];
    NAMES.contains(name)
}

/// Beginnings of names that are the gateway's.
const PREFIXES: [&str; 2] = ["x-forwarded-", "x-client-cert-"];

/// Fields in which a gateway speaks about a client, or that back ends take for another path or another proxy than the request's; with
/// everything that begins with one of `PREFIXES`.
const GATEWAYS: [&str; 14] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "x-original-url",
    "x-rewrite-url",
    "early-data",
    // RFC 9440 §2.4: what a client says of its own certificate goes nowhere.
    "client-cert",
    "client-cert-chain",
    // A CGI program takes it for its own setting (HTTP_PROXY).
    "proxy",
];

/// Fields that frame or address a message. Other spellings of their names do not belong to the gateway.
const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "content-type"];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// The user that has shown a password.
pub(crate) const FORWARDED_USER: HeaderName = HeaderName::from_static("x-forwarded-user");
/// RFC 8470 §5.1.
pub(crate) const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Returns whether only the gateway may set this field of a request. CGI and similar interfaces fold characters that are
/// neither letter nor digit into one, so `x_forwarded.for` is `x-forwarded-for`.
pub(crate) fn is_gateways(name: &str) -> bool {
    let folds = |name: &str, own: &str| {
        let same = |(byte, own): (u8, u8)| byte == own || own == b'-' && !byte.is_ascii_alphanumeric();
        name.len() == own.len() && name.bytes().zip(own.bytes()).all(same)
    };
    let folds_to = |own: &str| folds(name, own);
    let has_prefix = |prefix: &&str| name.get(..prefix.len()).is_some_and(|start| folds(start, prefix));
    PREFIXES.iter().any(has_prefix)
        || GATEWAYS.iter().any(|own| folds_to(own))
        || FRAMING.iter().any(|own| *own != name && folds_to(own))
}

/// Removes the fields that only the gateway may set on a request.
fn strip_gateways(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields.keys().filter(|name| is_gateways(name.as_str())).cloned().collect();
    for name in named {
        fields.remove(name);
    }
}

/// Removes fields that the trailers of a request may not have (RFC 9110 §6.5.1).
pub(crate) fn strip_request_trailers(fields: &mut HeaderMap) {
    strip_trailers(fields);
    strip_gateways(fields);
}

/// Removes fields that trailers may not have: about the connection, framing, routing or the client.
pub(crate) fn strip_trailers(fields: &mut HeaderMap) {
    strip(fields);
    for name in [
        header::HOST,
        header::CONTENT_LENGTH,
        header::TE,
        header::AUTHORIZATION,
        header::COOKIE,
        header::SET_COOKIE,
        header::ALT_SVC,
    ] {
        fields.remove(name);
    }
}

/// Removes fields that concern one connection.
// RFC 9114 §4.2 MUST-4: over HTTP/3 it would make an answer malformed
// RFC 9204 §7.1.3 MUST-2: fields go on as they are, and say of themselves that they are not to be indexed
pub(crate) fn strip(fields: &mut HeaderMap) {
    // Most messages have few fields and none of these: a look at each costs less than a search for each of them.
    if !fields.keys().any(is_of_connection) {
        return;
    }
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
    // RFC 9112 §6.3: chunks decide how long the content is, and a length beside them goes no further.
    if fields.contains_key(header::TRANSFER_ENCODING) {
        fields.remove(header::CONTENT_LENGTH);
    }
    // Only this value has a meaning beyond HTTP/1.1 (RFC 9110 §10.1.4).
    let trailers = fields.get_all(header::TE).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("trailers")))
    });
    let present: Vec<HeaderName> = fields.keys().filter(|name| is_of_connection(name)).cloned().collect();
    for name in present {
        fields.remove(name);
    }
    if trailers {
        fields.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Sets the fields about the client, and replaces those that the client may have sent.
pub(crate) fn introduce(fields: &mut HeaderMap, client: IpAddr, host: &str, early: bool) {
    let value = |text: &str| HeaderValue::from_str(text).ok();
    strip_gateways(fields);
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
    fn what_is_only_like_the_gateways_is_the_clients() {
        let own = [
            ("x-forwarder", "1"),
            ("x_forwarded", "1"),
            ("x-real-ipx", "1"),
            ("content-length", "5"),
            ("content-type", "a/b"),
            ("x_own_field", "1"),
            ("proxies", "1"),
        ];
        let mut fields = map(&own);
        strip_gateways(&mut fields);
        assert_eq!(fields, map(&own));
        let mut trailers = map(&[
            ("x_forwarded_for", "10.0.0.1"),
            ("host", "a"),
            ("content-length", "5"),
            ("connection", "close"),
            ("grpc-status", "0"),
        ]);
        strip_request_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("grpc-status", "0")]));
    }

    #[test]
    fn a_client_does_not_introduce_itself() {
        let mut fields = map(&[
            ("x-forwarded-for", "10.0.0.1"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-forwarded_for", "10.0.0.1"),
            ("x.forwarded.for", "10.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-port", "1"),
            ("x_forwarded_anything", "1"),
            ("forwarded", "for=10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("x_real_ip", "10.0.0.1"),
            ("true-client-ip", "10.0.0.1"),
            ("cf-connecting-ip", "10.0.0.1"),
            ("cf_connecting_ip", "10.0.0.1"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/admin"),
            ("proxy", "http://10.0.0.1"),
            ("early-data", "1"),
            ("early_data", "1"),
            ("client-cert", ":AA==:"),
            ("client_cert_chain", ":AA==:"),
            ("x-client-cert-subject", "CN=root"),
            ("x_client_cert_fingerprint", "0"),
            ("content_length", "5"),
            ("transfer_encoding", "chunked"),
        ]);
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
