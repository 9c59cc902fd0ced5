//! Errors of exchanges, and whether the request may be repeated.

use std::{error, fmt, sync::Arc};

use tiderace::{CloseReason, ReadError, WriteError};

/// An error code of HTTP/3 (RFC 9114 §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u64);

impl Code {
    /// A stream whose session did not come (draft-ietf-webtrans-http3 §4.6).
    pub const WT_BUFFERED_STREAM_REJECTED: Self = Self(0x3994_bd84);
    /// A stream whose session has ended (draft-ietf-webtrans-http3 §6).
    pub const WT_SESSION_GONE: Self = Self(0x170d_7b68);
    /// First error code of applications for streams of sessions (WT_APPLICATION_ERROR, draft-ietf-webtrans-http3 §4.4).
    pub const WT_APPLICATION_FIRST: Self = Self(0x52e4_a40f_a8db);
    /// Last error code of applications for streams of sessions.
    pub const WT_APPLICATION_LAST: Self = Self(0x52e5_ac98_3162);
    /// The peer violates the flow control of a session (draft-ietf-webtrans-http3 §5).
    pub const WT_FLOW_CONTROL_ERROR: Self = Self(0x045d_4487);
    /// No application protocol was agreed on for a session (draft-ietf-webtrans-http3 §3.3).
    pub const WT_ALPN_ERROR: Self = Self(0x0817_b3dd);
    /// The connection lacks what sessions need (draft-ietf-webtrans-http3 §3.1).
    pub const WT_REQUIREMENTS_NOT_MET: Self = Self(0x212c_0d48);
    /// A datagram, or a capsule, that is malformed (RFC 9297 §5.2).
    pub const DATAGRAM_ERROR: Self = Self(0x33);
    /// No error.
    pub const NO_ERROR: Self = Self(0x100);
    /// Violation by the peer without a more specific code.
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    /// An internal error of this end.
    pub const INTERNAL_ERROR: Self = Self(0x102);
    /// A stream that the peer may not open.
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    /// A stream that the connection needs was closed.
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    /// A frame has no place where it stands.
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    /// A frame is cut off, or has a wrong length.
    pub const FRAME_ERROR: Self = Self(0x106);
    /// The peer makes more work than is acceptable.
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    /// A number of a stream or a push is wrong.
    pub const ID_ERROR: Self = Self(0x108);
    /// Settings make no sense.
    pub const SETTINGS_ERROR: Self = Self(0x109);
    /// A control stream does not begin with settings.
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    /// The request was not processed; it may be sent again.
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    /// The request or its answer is no longer wanted.
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    /// The request's stream ended in its middle.
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    /// The message breaks a rule.
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    /// The TCP connection of a CONNECT request was reset or closed abnormally.
    pub const CONNECT_ERROR: Self = Self(0x10f);
    /// A field section cannot be decompressed (RFC 9204 §6).
    pub const DECOMPRESSION_FAILED: Self = Self(0x200);
    /// Invalid instruction on the encoder stream (RFC 9204 §6).
    pub const ENCODER_STREAM_ERROR: Self = Self(0x201);
    /// Invalid instruction on the decoder stream (RFC 9204 §6).
    pub const DECODER_STREAM_ERROR: Self = Self(0x202);
}

/// Violation of a rule by the peer, with the error code for it.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// Error of an exchange or of a connection.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer gave the stream up.
    #[error("the peer gave the stream up (code {:#x})", .0.0)]
    Reset(Code),
    /// The message or the connection violates a rule; this end has closed it with this code.
    #[error("{reason} (code {:#x})", code.0)]
    Protocol {
        /// Error code sent to the peer.
        code: Code,
        /// Violated rule.
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
    /// The peer does not understand extended CONNECT (RFC 9220 §3).
    #[error("the peer does not understand extended CONNECT")]
    NoConnectProtocol,
    /// The peer did not read for too long.
    #[error("the peer takes nothing of what is sent to it")]
    Stalled,
    /// The request lacks what a request needs.
    #[error("the request {0}")]
    Request(#[source] RequestFault),
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    Closed(#[source] CloseReason),
    /// The stream was finished, reset or stopped at this end before.
    #[error("the stream is over")]
    StreamClosed,
    /// The peer took longer than it may for this.
    #[error("{0} did not come in time")]
    TimedOut(Awaited),
    /// The body that was to be sent failed.
    #[error("the body could not be produced: {0}")]
    Body(#[source] BodyError),
}

/// Fault of a request that this end does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFault {
    /// No host in its URI and in `host`.
    #[error("names no host")]
    NoHost,
    /// CONNECT without a port (RFC 9114 §4.4).
    #[error("is a CONNECT without a port")]
    NoPort,
}

/// Part of the exchange that a timeout limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// Header section of a request.
    HeaderSection,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderSection => "the header section",
        })
    }
}

/// Error of a body that was to be sent, shared by the copies of an [`Error`].
#[derive(Clone, Debug)]
pub struct BodyError(Arc<dyn error::Error + Send + Sync>);

impl BodyError {
    pub(crate) fn new(error: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }

    /// Error as the body has returned it, to be downcast.
    pub fn get_ref(&self) -> &(dyn error::Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl BodyError {
    /// The code of the first [`ResetWith`] among the error and its sources.
    pub(crate) fn code(&self) -> Option<Code> {
        let mut next: Option<&(dyn error::Error + 'static)> = Some(self.get_ref());
        while let Some(error) = next {
            if let Some(ResetWith(code)) = error.downcast_ref() {
                return Some(*code);
            }
            next = error.source();
        }
        None
    }
}

/// Error of a body, or a source of one, that names the code of the stream's reset. Without it the code is
/// [`Code::REQUEST_CANCELLED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is reset with code {:#x}", .0.0)]
pub struct ResetWith(pub Code);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl error::Error for BodyError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.0)
    }
}

impl Error {
    /// The code of the reset that follows from this error of the sending side.
    pub(crate) fn reset_code(&self) -> Code {
        let of_body = if let Self::Body(error) = self { error.code() } else { None };
        of_body.unwrap_or(Code::REQUEST_CANCELLED)
    }

    /// Returns whether the peer has certainly not acted on the request, so that any request may be sent again.
    // RFC 9114 §5.4 MUST-1: a connection that ended without GOAWAY says nothing about it
    pub fn is_unprocessed(&self) -> bool {
        matches!(self, Self::GoingAway | Self::Reset(Code::REQUEST_REJECTED))
    }
}

impl From<Violation> for Error {
    fn from(Violation { code, reason }: Violation) -> Self {
        Self::Protocol { code, reason }
    }
}

impl From<CloseReason> for Error {
    fn from(reason: CloseReason) -> Self {
        Self::Closed(reason)
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Reset(Code(code)),
            WriteError::ConnectionClosed(reason) => reason.into(),
            _ => Self::StreamClosed,
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(Code(code)),
            ReadError::ConnectionClosed(reason) => reason.into(),
            _ => Self::StreamClosed,
        }
    }
}

#[cfg(test)]
mod tests {
    use error::Error as _;

    use super::*;

    #[test]
    fn errors_go_where_question_marks_send_them() {
        fn takes<E: error::Error + Send + Sync + 'static>() {}
        takes::<Error>();
        takes::<BodyError>();
    }

    #[test]
    fn the_cause_of_an_error_can_be_told() {
        let closed = Error::from(CloseReason::IdleTimeout);
        let cause = closed.source().and_then(|source| source.downcast_ref::<CloseReason>());
        assert_eq!(cause, Some(&CloseReason::IdleTimeout));

        let failed = Error::Body(BodyError::new(std::io::Error::other("disk")));
        assert_eq!(failed.to_string(), "the body could not be produced: disk");
        let Error::Body(body) = &failed.clone() else { panic!("{failed}") };
        assert!(body.get_ref().is::<std::io::Error>());
        let cause = failed.source().and_then(|body| body.source());
        assert!(cause.is_some_and(|cause| cause.is::<std::io::Error>()), "{cause:?}");
    }
}
