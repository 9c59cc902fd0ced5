//! Errors: of a session, of its streams, and of its establishment.

use h3_quic::Code;
use tiderace::{CloseReason, transport::datagrams::SendDatagramError};

/// Reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// Closed by the peer.
    #[error("the peer closed the session (code {code}): {reason}")]
    ClosedByPeer {
        /// The application's code; 0 when the peer gave none.
        code: u32,
        /// The application's message.
        reason: String,
    },
    /// Closed by this end.
    #[error("the session was closed here (code {code})")]
    ClosedHere {
        /// Code sent to the peer.
        code: u32,
    },
    /// Broken off by this end.
    #[error("the session was broken off here")]
    BrokenOff,
    /// The peer reset the session's request.
    #[error("the peer reset the session (code {:#x})", .0.0)]
    Reset(Code),
    /// The peer violates the draft; this end has ended the session with this code.
    #[error("{reason} (code {:#x})", code.0)]
    Violation {
        /// Code sent to the peer.
        code: Code,
        /// Violated rule.
        reason: String,
    },
    /// The connection has ended, or the session's request on it.
    #[error("{0}")]
    Connection(#[from] ConnectionFault),
}

/// Cause of a session's end that lies in its connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFault {
    /// The connection has ended.
    #[error("{0}")]
    Closed(#[source] CloseReason),
    /// The peer violates HTTP/3; this end has closed the connection with this code.
    #[error("{reason} (code {:#x})", code.0)]
    Protocol {
        /// Code sent to the peer.
        code: Code,
        /// Violated rule.
        reason: String,
    },
    /// The peer stops or ends a stream before its header is written.
    #[error("{0}")]
    Stream(#[source] tiderace::WriteError),
    /// The stream of the session's request broke off for another reason.
    #[error("{reason}")]
    Request {
        /// Words of HTTP/3.
        reason: String,
    },
}

impl From<CloseReason> for SessionEnd {
    fn from(reason: CloseReason) -> Self {
        ConnectionFault::Closed(reason).into()
    }
}

impl ConnectionFault {
    /// Cause in an error of the request's content.
    pub(crate) fn of_content(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        match error.downcast_ref() {
            Some(h3_quic::Error::Closed(reason)) => Self::Closed(reason.clone()),
            Some(h3_quic::Error::Protocol { code, reason }) => Self::Protocol { code: *code, reason: reason.clone() },
            _ => Self::Request { reason: error.to_string() },
        }
    }
}

/// Error of a write: no more data can be written to the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The peer wants no more of the stream, with its application's code, if it gave one.
    #[error("the peer stopped the stream (code {0:?})")]
    Stopped(Option<u32>),
    /// The stream was finished or reset before.
    #[error("the stream is finished or reset")]
    StreamClosed,
    /// The session has ended.
    #[error("{0}")]
    Session(#[from] SessionEnd),
}

/// Error of a read: no more data can be read from the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The peer reset the stream, with its application's code. Without one, its session may be over: the reset and the close may
    /// arrive in either order.
    #[error("the peer reset the stream (code {0:?})")]
    Reset(Option<u32>),
    /// The stream was read to its end or stopped before.
    #[error("the stream was read to its end or stopped")]
    StreamClosed,
    /// More bytes arrived than the caller accepts.
    #[error("the stream has more than {limit} bytes")]
    TooLong {
        /// The caller's limit.
        limit: usize,
    },
    /// The session has ended.
    #[error("{0}")]
    Session(#[from] SessionEnd),
}

/// Error of sending a datagram.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The session has ended.
    #[error("{0}")]
    Session(#[from] SessionEnd),
    /// The datagram is too large, or the connection takes none.
    #[error("{0}")]
    Refused(#[from] SendDatagramError),
}

impl From<tiderace::DatagramError> for DatagramError {
    fn from(error: tiderace::DatagramError) -> Self {
        match error {
            tiderace::DatagramError::Refused(error) => Self::Refused(error),
            tiderace::DatagramError::ConnectionClosed(reason) => Self::Session(reason.into()),
            other => Self::Session(ConnectionFault::Request { reason: other.to_string() }.into()),
        }
    }
}

/// Error of opening a session.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The request, or the connection, failed.
    #[error("{0}")]
    Http(#[from] h3_quic::Error),
    /// The server, or this end, lacks what sessions need (draft-ietf-webtrans-http3 §3.1).
    #[error("no session is possible on this connection: {0}")]
    RequirementsNotMet(&'static str),
    /// The connection has a session, and the server takes one at a time.
    #[error("the connection has a session, and the server takes one at a time")]
    OneSessionOnly,
    /// The server refuses the session with this status.
    #[error("the server refuses the session: {0}")]
    Refused(http::StatusCode),
    /// No application protocol was agreed on (WT_ALPN_ERROR).
    #[error("the server chose {0:?} as application protocol, which was not offered")]
    Protocol(Option<String>),
    /// The request is none for a session.
    #[error("the request {0}")]
    Request(&'static str),
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn each_cause_in_the_connection_has_its_variant() {
        let of = |error: h3_quic::Error| ConnectionFault::of_content(&error);
        let closed = of(h3_quic::Error::Closed(CloseReason::IdleTimeout));
        assert_eq!(closed, ConnectionFault::Closed(CloseReason::IdleTimeout));
        assert!(closed.source().unwrap().is::<CloseReason>());
        let rule = h3_quic::Error::Protocol { code: Code::MESSAGE_ERROR, reason: "a rule".to_owned() };
        let said = rule.to_string();
        let protocol = of(rule);
        assert_eq!(protocol, ConnectionFault::Protocol { code: Code::MESSAGE_ERROR, reason: "a rule".to_owned() });
        assert_eq!(protocol.to_string(), said);
        let other = of(h3_quic::Error::Stalled);
        assert!(
            matches!(&other, ConnectionFault::Request { reason } if *reason == h3_quic::Error::Stalled.to_string())
        );
        let end = SessionEnd::from(closed.clone());
        assert!(end.source().unwrap().is::<ConnectionFault>());
        assert_eq!(end.to_string(), closed.to_string());
    }

    #[test]
    fn a_datagram_that_is_too_large_is_told_from_the_end_of_the_connection() {
        let large = SendDatagramError::TooLarge { len: 9, max: 8 };
        let error = DatagramError::from(tiderace::DatagramError::Refused(large));
        assert_eq!(error, DatagramError::Refused(large));
        assert!(error.source().unwrap().is::<SendDatagramError>());
        let error = DatagramError::from(tiderace::DatagramError::ConnectionClosed(CloseReason::IdleTimeout));
        assert_eq!(error, DatagramError::Session(CloseReason::IdleTimeout.into()));
    }
}
