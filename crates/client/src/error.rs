//! Errors of requests, and their causes.

use std::{error::Error, io, time::Duration};

use tiderace::{CloseReason, ConnectError, HandshakeFault, transport::Code};

use crate::{
    resolve::ResolveError,
    setup_error::{TicketsError, TrustError, UrlError},
};

/// Failed request. Goes into `anyhow::Error` and `Box<dyn Error + Send + Sync>` by `?`.
///
/// ```
/// use tiderace_client::{Cause, Client, FetchError, Trust};
///
/// async fn status(client: &Client, url: &str) -> Result<u16, Box<dyn std::error::Error + Send + Sync>> {
///     let fetched = client.get(url, None, None).await?;
///     Ok(fetched.response.status().as_u16())
/// }
///
/// fn advice(error: &FetchError) -> &'static str {
///     match error.cause() {
///         Some(Cause::Certificate { .. }) => "check the name and the roots",
///         Some(Cause::Timeout { .. }) => "try again later",
///         Some(Cause::Refused { .. }) => "the server answered, and does not want the connection",
///         _ => "see the message",
///     }
/// }
///
/// # fn main() -> Result<(), FetchError> {
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// let _context = runtime.enter();
/// let client = Client::new(&Trust::Platform)?;
/// let error = runtime.block_on(client.get("gopher://example.org/", None, None)).err().unwrap();
/// assert!(error.cause().is_none(), "a URL is the caller's affair");
/// assert_eq!(advice(&error), "see the message");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Invalid URL, or one with another scheme.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Unusable roots.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Unusable file of tickets.
    #[error(transparent)]
    Tickets(#[from] TicketsError),
    /// Name without an address.
    #[error("cannot find the host `{host}`: {why}")]
    Resolve {
        /// Host of the URL.
        host: String,
        /// Cause.
        #[source]
        why: ResolveError,
    },
    /// Failure of both legs of the race.
    #[error("{}", unreachable_text(.quic, .tcp))]
    Unreachable {
        /// Cause on QUIC.
        quic: Cause,
        /// Cause on TCP.
        tcp: Cause,
    },
    /// Longer wait than [`Timeouts`](crate::Timeouts) allows.
    #[error("{what} did not come within {} s", .limit.as_secs_f64())]
    TimedOut {
        /// Step that took too long.
        what: &'static str,
        /// Limit that it exceeded.
        limit: Duration,
    },
    /// Failure of the exchange, on a connection that was open.
    #[error("the exchange failed: {0}")]
    Exchange(#[source] Cause),
}

/// Words of a race that both legs have lost. A leg that was not tried says nothing about the server, so it is left out beside one that was.
fn unreachable_text(quic: &Cause, tcp: &Cause) -> String {
    match (quic, tcp) {
        (Cause::NotTried { .. }, Cause::NotTried { .. }) => {
            format!("neither QUIC nor TCP was tried: QUIC: {quic}; TCP: {tcp}")
        }
        (_, Cause::NotTried { .. }) => format!("QUIC does not lead to the server: {quic}"),
        (Cause::NotTried { .. }, _) => format!("TCP does not lead to the server: {tcp}"),
        _ => format!("neither QUIC nor TCP leads to the server: QUIC: {quic}; TCP: {tcp}"),
    }
}

impl FetchError {
    /// Cause of a failed exchange or race; of two failed legs the one that decides what to do: certificate, refusal, protocol, reset,
    /// timeout, in this order. `None` for an error before any connection, and for [`FetchError::TimedOut`].
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Exchange(cause) => Some(cause),
            Self::Unreachable { quic, tcp } => Some(if quic.rank() < tcp.rank() { quic } else { tcp }),
            _ => None,
        }
    }

    /// Returns whether the cause is a timeout: of a connection, a response, or any wait for the peer.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. }) || matches!(self.cause(), Some(Cause::Timeout { .. }))
    }
}

/// Cause of a failed connection or exchange: its kind as the variant, its words as `reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Certificate of the server not accepted: unknown issuer, another name, expired, revoked.
    #[error("{reason}")]
    Certificate {
        /// Words of the TLS library.
        reason: String,
    },
    /// Timeout: handshake timeout, idle timeout, a peer that reads nothing.
    #[error("{reason}")]
    Timeout {
        /// Timeout that ended the wait.
        reason: String,
    },
    /// Connection or stream broken off: RST, end of the stream before its time, stateless reset, RESET_STREAM.
    #[error("{reason}")]
    Reset {
        /// Error code of the peer; `None` where the protocol has none.
        code: Option<u64>,
        /// Words of the protocol's layer.
        reason: String,
    },
    /// Refusal by the server: closed port, CONNECTION_CLOSE with an error, TLS alert, no common version, GOAWAY.
    #[error("{reason}")]
    Refused {
        /// Error code of the server; `None` where the protocol has none.
        code: Option<u64>,
        /// Words of the server or of the protocol's layer.
        reason: String,
    },
    /// Violation of the protocol by the server.
    #[error("{reason}")]
    Protocol {
        /// Error code that the server received; `None` where the protocol has none.
        code: Option<u64>,
        /// Violated rule.
        reason: String,
    },
    /// Error of the system.
    #[error("{reason}")]
    Io {
        /// Kind of the error.
        kind: io::ErrorKind,
        /// Words of the system.
        reason: String,
    },
    /// Leg that was not tried, or request that was not sent.
    #[error("{reason}")]
    NotTried {
        /// Reason against it.
        reason: String,
    },
    /// Any other cause.
    #[error("{reason}")]
    Other {
        /// Words of the layer that failed.
        reason: String,
    },
}

impl Cause {
    /// Cause of an error of a body, where HTTP or the connection has one.
    pub fn of_body(error: &crate::body::BodyError) -> Option<Self> {
        let of_quic = error.downcast_ref::<h3_quic::Error>().map(Self::from);
        of_quic.or_else(|| error.downcast_ref::<hyper::Error>().map(Self::from))
    }

    pub(crate) fn not_tried(reason: impl Into<String>) -> Self {
        Self::NotTried { reason: reason.into() }
    }

    pub(crate) fn other(reason: impl Into<String>) -> Self {
        Self::Other { reason: reason.into() }
    }

    /// Place among the causes of two legs: the lowest decides what to do.
    fn rank(&self) -> u8 {
        match self {
            Self::Certificate { .. } => 0,
            Self::Refused { .. } => 1,
            Self::Protocol { .. } => 2,
            Self::Reset { .. } => 3,
            Self::Timeout { .. } => 4,
            Self::Io { .. } => 5,
            Self::Other { .. } => 6,
            Self::NotTried { .. } => 7,
        }
    }

    /// Cause of a kind of system error, with the words of the error around it.
    fn of_kind(kind: io::ErrorKind, reason: String) -> Self {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof,
        };
        match kind {
            ConnectionRefused => Self::Refused { code: None, reason },
            ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof => Self::Reset { code: None, reason },
            TimedOut => Self::Timeout { reason },
            kind => Self::Io { kind, reason },
        }
    }
}

impl From<&CloseReason> for Cause {
    fn from(closed: &CloseReason) -> Self {
        let reason = closed.to_string();
        match closed {
            CloseReason::HandshakeFailed { fault: HandshakeFault::Certificate(_), .. } => Self::Certificate { reason },
            CloseReason::HandshakeFailed { error, .. } | CloseReason::PeerMisbehaved(error) => {
                Self::Protocol { code: Some(error.code.0), reason }
            }
            CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => Self::Timeout { reason },
            CloseReason::Reset => Self::Reset { code: None, reason },
            // A server that gives a handshake up because it takes too long has refused nothing: the path is bad.
            CloseReason::PeerClosed { error } if error.code == Code::NO_ERROR => {
                Self::Reset { code: Some(error.code.0), reason }
            }
            CloseReason::PeerClosed { error } => Self::Refused { code: Some(error.code.0), reason },
            CloseReason::PeerApplication { code, .. } => Self::Refused { code: Some(*code), reason },
            CloseReason::VersionMismatch { .. } => Self::Refused { code: None, reason },
            _ => Self::Other { reason },
        }
    }
}

impl From<&ConnectError> for Cause {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Closed(reason) => reason.into(),
            other => Self::other(other.to_string()),
        }
    }
}

impl From<&h3_quic::Error> for Cause {
    fn from(error: &h3_quic::Error) -> Self {
        use h3_quic::{Code, Error};
        let reason = error.to_string();
        match error {
            Error::Closed(closed) => match Self::from(closed) {
                Self::Certificate { .. } => Self::Certificate { reason },
                Self::Timeout { .. } => Self::Timeout { reason },
                Self::Reset { code, .. } => Self::Reset { code, reason },
                Self::Refused { code, .. } => Self::Refused { code, reason },
                Self::Protocol { code, .. } => Self::Protocol { code, reason },
                _ => Self::Other { reason },
            },
            Error::Reset(Code::REQUEST_REJECTED) => Self::Refused { code: Some(Code::REQUEST_REJECTED.0), reason },
            Error::GoingAway => Self::Refused { code: None, reason },
            Error::Reset(code) => Self::Reset { code: Some(code.0), reason },
            Error::Protocol { code, .. } => Self::Protocol { code: Some(code.0), reason },
            Error::Stalled | Error::TimedOut(_) => Self::Timeout { reason },
            Error::Request(_) => Self::NotTried { reason },
            _ => Self::Other { reason },
        }
    }
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Self {
        let reason = error.to_string();
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
                Self::Certificate { reason }
            }
            Some(rustls::Error::AlertReceived(alert)) => Self::Refused { code: Some(u8::from(*alert).into()), reason },
            Some(_) => Self::Protocol { code: None, reason },
            None => Self::of_kind(error.kind(), reason),
        }
    }
}

impl From<&hyper::Error> for Cause {
    fn from(error: &hyper::Error) -> Self {
        let reason = chain(error);
        if error.is_timeout() {
            return Self::Timeout { reason };
        }
        let mut next = error.source();
        while let Some(source) = next {
            if let Some(io) = source.downcast_ref::<io::Error>() {
                return Self::of_kind(io.kind(), reason);
            }
            next = source.source();
        }
        if error.is_parse() {
            Self::Protocol { code: None, reason }
        } else if error.is_closed() || error.is_canceled() || error.is_incomplete_message() {
            Self::Reset { code: None, reason }
        } else {
            Self::Other { reason }
        }
    }
}

impl From<&h2::Error> for Cause {
    fn from(error: &h2::Error) -> Self {
        let reason = chain(error);
        if let Some(io) = error.get_io() {
            return Self::of_kind(io.kind(), reason);
        }
        let code = error.reason().map(|code| u32::from(code).into());
        match error.reason() {
            Some(h2::Reason::REFUSED_STREAM) => Self::Refused { code, reason },
            _ if error.is_library() => Self::Protocol { code, reason },
            _ if error.is_go_away() => Self::Refused { code, reason },
            _ if error.is_reset() => Self::Reset { code, reason },
            _ => Self::Other { reason },
        }
    }
}

/// An error with its sources, because hyper's own messages have little detail.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tiderace::{CertificateFault, transport::TransportError};

    use super::*;

    #[test]
    fn errors_go_where_question_marks_send_them() {
        fn takes<E: Error + Send + Sync + 'static>() {}
        takes::<FetchError>();
        takes::<Cause>();
    }

    #[test]
    fn of_two_legs_the_telling_cause_counts() {
        let timeout = || Cause::Timeout { reason: "silence".to_owned() };
        let certificate = || Cause::Certificate { reason: "expired".to_owned() };
        for (quic, tcp) in [(timeout(), certificate()), (certificate(), timeout())] {
            let error = FetchError::Unreachable { quic, tcp };
            assert_eq!(error.cause(), Some(&certificate()));
            assert!(!error.is_timeout());
        }
        let error = FetchError::Unreachable { quic: timeout(), tcp: Cause::not_tried("not wanted") };
        assert!(error.is_timeout());
    }

    #[test]
    fn a_leg_that_was_not_tried_is_left_out_of_the_message() {
        let failed = |reason: &str| Cause::other(reason);
        let message = |quic, tcp| FetchError::Unreachable { quic, tcp }.to_string();
        assert_eq!(message(failed("a"), Cause::not_tried("b")), "QUIC does not lead to the server: a");
        assert_eq!(message(Cause::not_tried("a"), failed("b")), "TCP does not lead to the server: b");
        assert_eq!(message(failed("a"), failed("b")), "neither QUIC nor TCP leads to the server: QUIC: a; TCP: b");
        let neither = message(Cause::not_tried("a"), Cause::not_tried("b"));
        assert_eq!(neither, "neither QUIC nor TCP was tried: QUIC: a; TCP: b");
    }

    #[test]
    fn failed_handshakes_about_certificates_are_told_from_others() {
        let failed = |alert, fault| {
            Cause::from(&CloseReason::HandshakeFailed {
                error: TransportError::new(Code::crypto(alert), "words"),
                fault,
            })
        };
        let expired = failed(45, HandshakeFault::Certificate(CertificateFault::Expired));
        assert!(matches!(expired, Cause::Certificate { .. }), "{expired:?}");
        let protocol = failed(120, HandshakeFault::NoApplicationProtocol);
        assert!(matches!(protocol, Cause::Protocol { code: Some(0x178), .. }), "{protocol:?}");
        assert!(matches!(Cause::from(&CloseReason::Reset), Cause::Reset { code: None, .. }));
        assert!(matches!(Cause::from(&CloseReason::HandshakeTimeout), Cause::Timeout { .. }));
    }
}
