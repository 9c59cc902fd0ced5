//! Failures of a request at a back end, over TCP or QUIC.

use std::{error, fmt};

use hyper_util::client::legacy;

use crate::ending::Ending;

/// Failure of a request: there is no response.
#[derive(Debug)]
pub(super) enum SendError {
    /// TCP failed. With the failure of QUIC that led there, if there was one.
    Tcp(legacy::Error, Option<String>),
    /// HTTP/3 failed.
    Quic(h3_quic::Error),
    /// The back end permitted no stream in the time of the queue.
    Queued,
    /// The content of the request failed before there was a response.
    Content,
}

impl SendError {
    /// Returns whether there was no connection.
    pub(super) fn is_connect(&self) -> bool {
        matches!(self, Self::Tcp(error, _) if error.is_connect())
    }

    /// Returns whether the back end has certainly not acted on the request (RFC 9114 §4.1.1, §5.2), so that any may be sent again.
    pub(super) fn is_unprocessed(&self) -> bool {
        self.is_connect() || matches!(self, Self::Quic(error) if error.is_unprocessed())
    }

    /// Label of metrics, and the ending of the request.
    pub(super) fn outcome(&self) -> (&'static str, Ending) {
        match self {
            _ if self.is_connect() => ("unreachable", Ending::Unreachable),
            Self::Queued => ("queued", Ending::Queued),
            // The gateway gave the connection up.
            Self::Quic(h3_quic::Error::Closed(tiderace::CloseReason::Memory { .. })) => ("broken", Ending::Memory),
            _ => ("broken", Ending::Broken),
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(error, None) => error.fmt(f),
            Self::Tcp(error, Some(quic)) => write!(f, "over QUIC: {quic}; over TCP: {error}"),
            Self::Quic(error) => error.fmt(f),
            Self::Queued => f.write_str("no stream for the request in time"),
            Self::Content => f.write_str("the content of the request broke off"),
        }
    }
}

impl error::Error for SendError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Tcp(error, _) => error.source(),
            Self::Quic(error) => error.source(),
            Self::Queued | Self::Content => None,
        }
    }
}
