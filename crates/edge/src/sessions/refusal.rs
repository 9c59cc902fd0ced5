//! Refusals of sessions: status, and label of metrics.

use http::{HeaderValue, Response, StatusCode, header};
use webtransport::server;

use crate::{answer::plain, body::AnyBody, ending::Ending, masque::NoPlace};

/// Reason why a request gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request is none for a session.
    NoSession,
    /// The page is of another origin.
    Origin,
    /// The client, or all clients together, have too many sessions.
    NoPlace(NoPlace),
    /// The connection has too many sessions.
    Connection,
    /// The client's connection holds too much.
    Memory,
    /// The connection has no support of sessions: another version of HTTP, or older than the route.
    Unsupported,
    /// The client offers no application protocol that is accepted.
    Protocol,
    /// The client's settings do not come.
    Settings,
    /// The request or the client's settings lack what sessions need.
    Requirements,
    /// The back end is not reached.
    Unreachable,
    /// The back end is not reached, or does not answer, in time.
    Timeout,
    /// The back end does not support sessions.
    BackEndSupport,
    /// The back end refuses the session with this status.
    BackEndStatus(StatusCode),
    /// The back end chooses no application protocol that the client offers.
    BackEndProtocol,
    /// The back end breaks off.
    BackEndBroken,
}

impl Refusal {
    pub(super) fn of(reason: server::Refusal) -> Self {
        match reason {
            server::Refusal::Settings => Self::Settings,
            server::Refusal::Sessions => Self::Connection,
            server::Refusal::Origin => Self::Origin,
            _ => Self::Requirements,
        }
    }

    /// The reason in metrics.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::NoSession => "malformed",
            Self::Origin => "origin",
            Self::NoPlace(NoPlace::Total) => "total",
            Self::NoPlace(NoPlace::Tunnels) => "sessions",
            Self::NoPlace(NoPlace::Rate) => "rate",
            Self::Connection => "connection",
            Self::Memory => "memory",
            Self::Unsupported => "unsupported",
            Self::Protocol => "protocol",
            Self::Settings => "settings",
            Self::Requirements => "requirements",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::BackEndSupport => "back-end-unsupported",
            Self::BackEndStatus(_) => "back-end-refused",
            Self::BackEndProtocol => "back-end-protocol",
            Self::BackEndBroken => "back-end-broken",
        }
    }

    /// The ending of the request.
    pub(super) fn ending(self) -> Ending {
        match self {
            Self::NoSession | Self::Settings | Self::Requirements => Ending::Malformed,
            Self::Origin | Self::Unsupported | Self::Protocol => Ending::Refused,
            Self::NoPlace(NoPlace::Total) => Ending::Queued,
            Self::NoPlace(_) | Self::Connection => Ending::Excess,
            Self::Memory => Ending::Memory,
            Self::Unreachable => Ending::Unreachable,
            Self::Timeout => Ending::Timeout,
            // What the back end has answered is the answer.
            Self::BackEndStatus(_) => Ending::Complete,
            Self::BackEndSupport | Self::BackEndProtocol | Self::BackEndBroken => Ending::Broken,
        }
    }

    /// Reason in words, for the access log.
    pub(super) fn details(self) -> &'static str {
        match self {
            Self::NoSession => "expected an extended CONNECT for a session of WebTransport",
            Self::Origin => "the origin of the page is not in `origins`",
            Self::NoPlace(NoPlace::Total) => "the gateway has too many sessions",
            Self::NoPlace(NoPlace::Tunnels) => "the client has too many sessions",
            Self::NoPlace(NoPlace::Rate) => "the client begins sessions too fast",
            Self::Connection => "the connection has too many sessions",
            Self::Memory => "the connection holds too much for another session",
            Self::Unsupported => "the connection does not support sessions",
            Self::Protocol => "the client offers no application protocol of `protocols`",
            Self::Settings => "the settings of the client do not come",
            Self::Requirements => "the client lacks what sessions need",
            Self::Unreachable => "the back end is not reached",
            Self::Timeout => "the back end does not answer in time",
            Self::BackEndSupport => "the back end does not support sessions",
            Self::BackEndStatus(_) => "the back end refuses the session",
            Self::BackEndProtocol => "the back end chooses no application protocol of the client",
            Self::BackEndBroken => "the back end breaks off",
        }
    }

    /// Response to the request. A request that the library has abandoned is reset instead.
    pub(super) fn response(self) -> Response<AnyBody> {
        let status = match self {
            Self::NoSession => StatusCode::METHOD_NOT_ALLOWED,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::NoPlace(NoPlace::Total) | Self::Memory => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoPlace(_) | Self::Connection => StatusCode::TOO_MANY_REQUESTS,
            Self::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Self::Protocol | Self::Settings | Self::Requirements => StatusCode::BAD_REQUEST,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::BackEndStatus(status) => status,
            Self::Unreachable | Self::BackEndSupport | Self::BackEndProtocol | Self::BackEndBroken => {
                StatusCode::BAD_GATEWAY
            }
        };
        let mut response = plain(status);
        let fields = response.headers_mut();
        match self {
            // RFC 9110 §15.5.6 MUST
            Self::NoSession => {
                fields.insert(header::ALLOW, HeaderValue::from_static("CONNECT"));
            }
            Self::NoPlace(_) | Self::Memory => {
                fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
