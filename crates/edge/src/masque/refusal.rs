//! Refusals of a proxy: status, `proxy-status` (RFC 9209), and label of metrics.

use http::{HeaderValue, Response, StatusCode, header};

use super::{clients::NoPlace, rules::Prohibited};
use crate::{access::NoAccess, answer::plain, body::AnyBody, ending::Ending};

/// Reason why a request for a tunnel is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request is none for a tunnel, or names no target.
    Malformed(&'static str),
    /// No valid token.
    Unauthorized,
    /// No certificate that is permitted, where tokens give no access.
    Certificate,
    /// The rules prohibit the target.
    Prohibited(Prohibited),
    /// The client, or all clients together, have too many tunnels.
    NoPlace(NoPlace),
    /// The client's connection holds too much.
    Memory,
    /// The name has no address.
    Dns(String),
    /// The name was not resolved in time.
    DnsTimeout,
    /// No address of the target can be reached.
    Unreachable(String),
    /// The last address of the target that was tried refused the connection.
    ConnectionRefused,
    /// The target did not accept the connection in time.
    Timeout,
    /// No TUN device.
    Device(String),
    /// The client's scope has no route, or no address is left for the versions in it.
    NoAddress(&'static str),
    /// The path to the client does not carry the packets of IPv6.
    PathMtu,
}

impl Refusal {
    /// Refusal of a client without access.
    pub(super) fn of_access(NoAccess { by_token }: NoAccess) -> Self {
        if by_token { Self::Unauthorized } else { Self::Certificate }
    }

    /// The reason in metrics.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Unauthorized => "unauthorized",
            Self::Certificate => "certificate",
            Self::Prohibited(Prohibited::Port) => "port",
            Self::Prohibited(_) => "address",
            Self::NoPlace(NoPlace::Total) => "total",
            Self::NoPlace(NoPlace::Tunnels) => "tunnels",
            Self::NoPlace(NoPlace::Rate) => "rate",
            Self::Memory => "memory",
            Self::Dns(_) => "dns",
            Self::DnsTimeout => "dns-timeout",
            Self::Unreachable(_) | Self::ConnectionRefused => "unreachable",
            Self::Timeout => "timeout",
            Self::Device(_) => "device",
            Self::NoAddress(_) => "no-address",
            Self::PathMtu => "path-mtu",
        }
    }

    /// The ending of the request.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Malformed(_) => Ending::Malformed,
            Self::Unauthorized | Self::Certificate | Self::Prohibited(_) => Ending::Refused,
            Self::NoPlace(NoPlace::Total) => Ending::Queued,
            Self::NoPlace(_) => Ending::Excess,
            Self::Memory => Ending::Memory,
            Self::Dns(_) | Self::Unreachable(_) | Self::ConnectionRefused => Ending::Unreachable,
            Self::DnsTimeout | Self::Timeout => Ending::Timeout,
            Self::Device(_) => Ending::Fault,
            Self::NoAddress(_) => Ending::Queued,
            Self::PathMtu => Ending::Refused,
        }
    }

    /// Reason in words, for the access log and the client.
    pub(super) fn details(&self) -> String {
        match self {
            Self::Malformed(what) => (*what).to_owned(),
            Self::Unauthorized => "a bearer token is needed".to_owned(),
            Self::Certificate => "a certificate of the client that is permitted is needed".to_owned(),
            Self::Prohibited(Prohibited::Port) => "the port of the target is prohibited".to_owned(),
            Self::Prohibited(_) => "the address of the target is prohibited".to_owned(),
            Self::NoPlace(NoPlace::Total) => "the proxy has too many tunnels".to_owned(),
            Self::NoPlace(NoPlace::Tunnels) => "the client has too many tunnels".to_owned(),
            Self::NoPlace(NoPlace::Rate) => "the client opens tunnels too fast".to_owned(),
            Self::Memory => "the connection holds too much for another tunnel".to_owned(),
            Self::Dns(why) => format!("the name of the target has no address: {why}"),
            Self::DnsTimeout => "the name of the target was not resolved in time".to_owned(),
            Self::Unreachable(why) => format!("the target cannot be reached: {why}"),
            Self::ConnectionRefused => "the target refused the connection".to_owned(),
            Self::Timeout => "the target did not accept the connection in time".to_owned(),
            Self::Device(why) => format!("the proxy has no TUN device: {why}"),
            Self::NoAddress(why) => (*why).to_owned(),
            Self::PathMtu => "the path to the client does not carry IPv6 packets of 1280 bytes".to_owned(),
        }
    }

    /// Status and error type (RFC 9209 §2.3).
    fn code(&self, is_connect: bool) -> (StatusCode, &'static str) {
        match self {
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "http_request_error"),
            // RFC 9110 §11.7: a proxy that was chosen asks in another way than a resource.
            Self::Unauthorized if is_connect => (StatusCode::PROXY_AUTHENTICATION_REQUIRED, "http_request_denied"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "http_request_denied"),
            Self::Certificate | Self::Prohibited(Prohibited::Port) => (StatusCode::FORBIDDEN, "http_request_denied"),
            Self::Prohibited(_) => (StatusCode::FORBIDDEN, "destination_ip_prohibited"),
            Self::NoPlace(NoPlace::Total) | Self::Memory => {
                (StatusCode::SERVICE_UNAVAILABLE, "connection_limit_reached")
            }
            Self::NoPlace(_) => (StatusCode::TOO_MANY_REQUESTS, "connection_limit_reached"),
            Self::Dns(_) => (StatusCode::BAD_GATEWAY, "dns_error"),
            Self::DnsTimeout => (StatusCode::GATEWAY_TIMEOUT, "dns_timeout"),
            Self::Unreachable(_) => (StatusCode::BAD_GATEWAY, "destination_ip_unroutable"),
            Self::ConnectionRefused => (StatusCode::BAD_GATEWAY, "connection_refused"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "connection_timeout"),
            Self::Device(_) | Self::PathMtu => (StatusCode::SERVICE_UNAVAILABLE, "proxy_configuration_error"),
            Self::NoAddress(_) => (StatusCode::SERVICE_UNAVAILABLE, "connection_limit_reached"),
        }
    }

    /// The answer to a request for UDP, or to a plain CONNECT.
    // RFC 9298 §3.1 SHOULD-1, RFC 9484 §4.1 SHOULD-1: details are in `proxy-status`
    pub(super) fn response(&self, is_connect: bool) -> Response<AnyBody> {
        let (status, error) = self.code(is_connect);
        let mut response = plain(status);
        let fields = response.headers_mut();
        // A string of RFC 8941 §3.3.3: what an error of the system says is ASCII, or left out.
        let details: String =
            self.details().chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
        let value = format!("tiderace; error={error}; details=\"{details}\"");
        fields.extend(HeaderValue::from_str(&value).ok().map(|value| (super::PROXY_STATUS, value)));
        if *self == Self::Unauthorized {
            let name = if is_connect { header::PROXY_AUTHENTICATE } else { header::WWW_AUTHENTICATE };
            fields.insert(name, HeaderValue::from_static("Bearer realm=\"proxy\""));
        }
        if matches!(self, Self::NoPlace(_) | Self::Memory) {
            fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
