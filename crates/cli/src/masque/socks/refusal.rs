//! Reply codes of SOCKS5 for tunnels that the proxy refuses.

use client::masque::ProxyError;

use super::codec::ReplyCode;

/// The code for a program whose tunnel was not opened.
pub(super) fn code_of(error: &ProxyError) -> ReplyCode {
    match error {
        ProxyError::Refused { status, proxy_status } => of_status(status.as_u16(), proxy_status.as_deref()),
        ProxyError::TimedOut(_) => ReplyCode::TtlExpired,
        _ => ReplyCode::GeneralFailure,
    }
}

fn of_status(status: u16, proxy_status: Option<&str>) -> ReplyCode {
    // RFC 9209 §2.3: the error type says more than the status.
    match proxy_status.and_then(error_type) {
        Some("connection_refused") => return ReplyCode::ConnectionRefused,
        Some("destination_ip_prohibited") => return ReplyCode::NotAllowed,
        Some("dns_timeout" | "dns_error" | "destination_not_found" | "destination_ip_unroutable") => {
            return ReplyCode::HostUnreachable;
        }
        Some("connection_timeout") => return ReplyCode::TtlExpired,
        _ => {}
    }
    match status {
        403 => ReplyCode::NotAllowed,
        405 | 501 => ReplyCode::CommandNotSupported,
        502 => ReplyCode::HostUnreachable,
        504 => ReplyCode::TtlExpired,
        _ => ReplyCode::GeneralFailure,
    }
}

/// The first `error` of a field `proxy-status`.
fn error_type(proxy_status: &str) -> Option<&str> {
    proxy_status.split([';', ',']).find_map(|parameter| parameter.trim().strip_prefix("error="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_codes() {
        use ReplyCode::{
            CommandNotSupported, ConnectionRefused, GeneralFailure, HostUnreachable, NotAllowed, TtlExpired,
        };
        for (status, proxy_status, expected) in [
            (403, Some("tiderace; error=destination_ip_prohibited; details=\"x\""), NotAllowed),
            (403, Some("tiderace; error=http_request_denied"), NotAllowed),
            (403, None, NotAllowed),
            (502, Some("tiderace; error=connection_refused; details=\"x\""), ConnectionRefused),
            (502, Some("a.example;error=dns_error;rcode=NXDOMAIN"), HostUnreachable),
            (502, Some("other; error=destination_ip_prohibited"), NotAllowed),
            (502, None, HostUnreachable),
            (504, Some("tiderace; error=dns_timeout"), HostUnreachable),
            (504, Some("tiderace; error=connection_timeout"), TtlExpired),
            (504, Some("tiderace"), TtlExpired),
            (405, None, CommandNotSupported),
            (501, None, CommandNotSupported),
            (407, Some("tiderace; error=http_request_denied"), GeneralFailure),
            (429, Some("tiderace; error=connection_limit_reached"), GeneralFailure),
            (503, None, GeneralFailure),
            (400, None, GeneralFailure),
        ] {
            assert_eq!(of_status(status, proxy_status), expected, "{status} {proxy_status:?}");
        }
    }
}
