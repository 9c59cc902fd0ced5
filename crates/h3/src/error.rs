//! What can go wrong with an exchange, and whether the request may be sent again.

use h3::{
    error::{ConnectionError, LocalError, StreamError},
    quic::ConnectionErrorIncoming,
};

/// An error code of HTTP/3 (RFC 9114 §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u64);

impl Code {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0x100);
    /// Something is wrong with this end.
    pub const INTERNAL_ERROR: Self = Self(0x102);
    /// The peer makes more work than is acceptable.
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    /// The request was not processed; it may be sent again.
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    /// The request or its answer is no longer wanted.
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    /// The message breaks a rule.
    pub const MESSAGE_ERROR: Self = Self(0x10e);
}

/// Why an exchange or a connection failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer gave the stream up.
    #[error("the peer gave the stream up (code {:#x})", .0.0)]
    Reset(Code),
    /// The message or the connection breaks a rule; this end has said so with this code.
    #[error("{reason} (code {:#x})", code.0)]
    Protocol {
        /// What the peer was told.
        code: Code,
        /// What is wrong.
        reason: String,
    },
    /// The fields of the message are larger than the peer, or this end, takes.
    #[error("the fields have {size} bytes where {limit} are taken")]
    FieldsTooLarge {
        /// Bytes as RFC 9114 §4.2.2 counts them.
        size: u64,
        /// The limit, in the same bytes.
        limit: u64,
    },
    /// The peer takes no more requests on this connection (GOAWAY).
    #[error("the peer takes no more requests on this connection")]
    GoingAway,
    /// The connection is over.
    #[error("the connection is over: {0}")]
    Closed(String),
    /// The body that was to be sent failed.
    #[error("the body could not be produced: {0}")]
    Body(String),
}

impl Error {
    /// Whether the peer has certainly not acted on the request, so that it may be sent again whatever it asks.
    pub fn is_unprocessed(&self) -> bool {
        matches!(self, Self::GoingAway | Self::Reset(Code::REQUEST_REJECTED))
    }
}

impl From<StreamError> for Error {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::RemoteTerminate { code, .. } => Self::Reset(Code(code.value())),
            StreamError::StreamError { code, reason, .. } => Self::Protocol { code: Code(code.value()), reason },
            StreamError::HeaderTooBig { actual_size, max_size, .. } => {
                Self::FieldsTooLarge { size: actual_size, limit: max_size }
            }
            StreamError::ConnectionError { 0: error, .. } => error.into(),
            StreamError::RemoteClosing { .. } => Self::GoingAway,
            other => Self::Closed(other.to_string()),
        }
    }
}

impl From<ConnectionError> for Error {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Local { error: LocalError::Application { code, reason, .. }, .. } => {
                Self::Protocol { code: Code(code.value()), reason }
            }
            ConnectionError::Local { error: LocalError::Closing { .. }, .. } => Self::GoingAway,
            ConnectionError::Remote { 0: ConnectionErrorIncoming::Undefined(error), .. } => {
                Self::Closed(error.to_string())
            }
            ConnectionError::Timeout { .. } => Self::Closed("idle for too long".to_owned()),
            other => Self::Closed(other.to_string()),
        }
    }
}
