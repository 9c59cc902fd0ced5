//! Errors: of a session, of its streams, and of its establishment.

use h3_quic::Code;

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
    /// The connection has ended.
    #[error("{0}")]
    Connection(String),
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
    Refused(String),
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
