//! Errors of tunnels, with advice.

use std::time::Duration;

use h3_quic::connect_udp::TemplateError;
use http::{StatusCode, header::InvalidHeaderValue};

use crate::error::{Cause, FetchError};

/// Error of a tunnel: it was not opened, or broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The proxy is neither a host nor a URI template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The proxy is neither a host nor a URI template of an IP proxy.
    #[error(transparent)]
    IpTemplate(TemplateError),
    /// URI template of another kind of proxy.
    #[error("the URI template is one for another kind of tunnel")]
    OtherTemplate,
    /// Limits of a tunnel for which the URI template has no variable.
    #[error("the URI template has no variable for the target or the protocol")]
    NoScope,
    /// Target that cannot be written into a request.
    #[error("the target cannot be written into a request: {0}")]
    Target(#[source] http::Error),
    /// Token that cannot be written into a header field.
    #[error("the token has characters that a field cannot have")]
    Token(#[source] InvalidHeaderValue),
    /// No connection to the proxy.
    #[error(transparent)]
    Connection(#[from] FetchError),
    /// Proxy without extended CONNECT (RFC 9220): it is no proxy for UDP or IP.
    #[error("the proxy does not offer extended CONNECT")]
    NoExtendedConnect,
    /// Refusal by the proxy.
    #[error("the proxy refuses the tunnel with status {status}{}", reason(.proxy_status.as_deref()))]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// The field `proxy-status` (RFC 9209), where the answer has it.
        proxy_status: Option<String>,
    },
    /// Proxy without bound UDP (draft-ietf-masque-connect-udp-listen).
    #[error("the proxy has no bound UDP")]
    NoBoundUdp,
    /// Answer that begins no tunnel.
    #[error("the proxy answers with status {0}, which begins no tunnel")]
    NoTunnel(StatusCode),
    /// Failure of the stream or the connection.
    #[error("the tunnel broke off: {0}")]
    Broken(#[source] Cause),
    /// No answer in time.
    #[error("the proxy did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

fn reason(proxy_status: Option<&str>) -> String {
    proxy_status.map_or_else(String::new, |text| format!(": {text}"))
}

impl ProxyError {
    /// Error of a request for bound UDP: a proxy that does not know it takes the target for a malformed one, or for a name.
    pub(super) fn of_bound(error: Self) -> Self {
        match error {
            Self::Refused { status, .. } if matches!(status.as_u16(), 400 | 404 | 405 | 501 | 502) => Self::NoBoundUdp,
            error => error,
        }
    }

    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Template(_) => {
                "name a host, as in proxy.example.org:443, or a template, as in https://proxy.example.org/masque{?target_host,target_port}"
            }
            Self::IpTemplate(_) | Self::OtherTemplate | Self::NoScope => {
                "name a host, as in proxy.example.org:443, or a template, as in https://proxy.example.org/masque/ip{?target,ipproto}"
            }
            Self::Target(_) => "the target is a host and a port",
            Self::Token(_) => "the token has letters and digits",
            Self::Connection(FetchError::Resolve { .. }) => "check the spelling of the proxy, or give an IP address",
            Self::Connection(_) => {
                "check the address of the proxy, its certificate, and that it offers HTTP/3 or HTTP/2"
            }
            Self::NoExtendedConnect | Self::NoTunnel(_) => {
                "the server is no MASQUE proxy, or at another path: give its URI template"
            }
            Self::NoBoundUdp => "open a tunnel for each target; at tiderace edge, bound-udp = true permits one for all",
            Self::Refused { status, .. } => match status.as_u16() {
                401 | 407 => "the proxy asks for a token, or a certificate of this client",
                400 => "the proxy does not understand the target: it may have another URI template",
                403 => {
                    "the rules of the proxy prohibit this target, or this client without a certificate that they permit"
                }
                404 | 405 | 501 => {
                    "the server has no such proxy there: it may have another URI template, or carry no TCP, UDP or IP"
                }
                429 => "this client has too many tunnels, or opens them too fast: try again later",
                502 | 504 => "the proxy does not reach the target: check its name and port",
                _ => "ask the operator of the proxy",
            },
            Self::Broken(_) | Self::TimedOut(_) => "try again; the proxy, or the way to it, may be overloaded",
        }
    }
}

/// Failure of a stream over HTTP/3.
pub(super) fn broken(error: h3_quic::Error) -> ProxyError {
    ProxyError::Broken(Cause::from(&error))
}

/// Failure of a stream over HTTP/2.
pub(super) fn broken_h2(error: &h2::Error) -> ProxyError {
    ProxyError::Broken(Cause::from(error))
}
