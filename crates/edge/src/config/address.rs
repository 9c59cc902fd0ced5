//! Addresses and URLs of a configuration.

use std::net::{AddrParseError, IpAddr, SocketAddr};

use http::Uri;

use super::Protocol;

/// `host:port` behind a scheme.
pub(crate) fn host_port<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(scheme)?;
    let (host, port) = rest.rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(rest)
}

/// A back end's protocol and authority.
pub(crate) fn back_end(text: &str) -> Result<(Protocol, http::uri::Authority), String> {
    let forms = "`http://host:port`, `h2c://host:port`, `https://host:port` or `h3://host:port`";
    let wrong = || format!("expected {forms}, found `{text}`");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let protocol = match uri.scheme_str() {
        Some("http") => Protocol::Http1,
        Some("h2c") => Protocol::Http2,
        Some("https") => Protocol::Tls,
        Some("h3") => Protocol::Http3,
        _ => return Err(wrong()),
    };
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err(format!("a back end has no path, found `{text}`"));
    }
    Ok((protocol, uri.authority().cloned().ok_or_else(wrong)?))
}

/// Text that is no address with a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address with a port, as in `192.0.2.1:443`, found `{text}`")]
#[non_exhaustive]
pub struct AddressError {
    /// The text.
    pub text: String,
    /// Fault of the text.
    pub source: AddrParseError,
}

/// Reads an address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, AddressError> {
    text.parse().map_err(|source| AddressError { text: text.to_owned(), source })
}

/// Returns the host and port of a back end that has a name.
pub(crate) fn back_end_name(to: &str) -> Option<(String, u16)> {
    let (protocol, authority) = back_end(to).ok()?;
    let host = authority.host();
    let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let port = authority.port_u16().unwrap_or(protocol.default_port());
    (!is_address).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::setup::SetupError;

    #[test]
    fn what_is_no_address_is_named() {
        assert_eq!(address("[::1]:443"), Ok("[::1]:443".parse().unwrap()));
        let error = address("localhost:443").unwrap_err();
        assert_eq!(error.text, "localhost:443");
        assert!(error.source().unwrap().is::<AddrParseError>());
        let setup = SetupError::from(error.clone());
        assert!(matches!(&setup, SetupError::MetricsAddress(of) if *of == error), "{setup:?}");
        assert_eq!(setup.to_string(), error.to_string());
    }

    #[test]
    fn a_back_end_by_name_has_a_name_and_a_port() {
        let name = |name: &str, port| Some((name.to_owned(), port));
        for (text, expected) in [
            ("http://app.internal", name("app.internal", 80)),
            ("https://app.internal", name("app.internal", 443)),
            ("h3://app.internal", name("app.internal", 443)),
            ("h2c://app.internal:8080", name("app.internal", 8080)),
            ("h2c://localhost", name("localhost", 80)),
            ("http://192.0.2.1:80", None),
            ("https://[2001:db8::1]", None),
            ("app.internal", None),
        ] {
            assert_eq!(back_end_name(text), expected, "{text}");
        }
    }
}
