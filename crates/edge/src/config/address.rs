//! Addresses and URLs of a configuration.

use std::net::{IpAddr, SocketAddr};

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
    let wrong = || format!("expected `http://host:port`, `h2c://host:port` or `https://host:port`, found `{text}`");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let protocol = match uri.scheme_str() {
        Some("http") => Protocol::Http1,
        Some("h2c") => Protocol::Http2,
        Some("https") => Protocol::Tls,
        _ => return Err(wrong()),
    };
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err(format!("a back end has no path, found `{text}`"));
    }
    Ok((protocol, uri.authority().cloned().ok_or_else(wrong)?))
}

/// An address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("expected an address with a port, as in `192.0.2.1:443`, found `{text}`"))
}

/// Returns the host and port of a back end that has a name.
pub(crate) fn back_end_name(to: &str) -> Option<(String, u16)> {
    let (protocol, authority) = back_end(to).ok()?;
    let host = authority.host();
    let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let port = authority.port_u16().unwrap_or(if protocol == Protocol::Tls { 443 } else { 80 });
    (!is_address).then(|| (host.to_owned(), port))
}
