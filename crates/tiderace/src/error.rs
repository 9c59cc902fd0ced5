//! Errors of the async API.

use std::io;

use transport::{CloseReason, streams};

/// Error of a connection that could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection ended before its handshake was complete.
    #[error("{0}")]
    Closed(#[from] CloseReason),
    /// TLS refuses the server name or the configuration.
    #[error("{0}")]
    Config(#[from] transport::ConnectError),
    /// The endpoint was closed.
    #[error("the endpoint is closed")]
    EndpointClosed,
}

/// Error of a write: no more data can be written to the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The peer does not want more of this stream.
    #[error("the peer asked to stop (code {0})")]
    Stopped(u64),
    /// The stream was finished or reset before.
    #[error("the stream is finished or reset")]
    StreamClosed,
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

/// Error of a reset with a reliable size (RESET_STREAM_AT).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResetAtError {
    /// The peer does not accept RESET_STREAM_AT. [`SendStream::reset`](crate::SendStream::reset) works with any peer.
    #[error("the peer does not accept RESET_STREAM_AT")]
    Unsupported,
    /// The reliable size is above what was written, or above that of an earlier reset.
    #[error("the reliable size is above {limit} bytes")]
    TooLarge {
        /// The largest reliable size that is possible, in bytes.
        limit: u64,
    },
    /// The peer does not want more of this stream.
    #[error("the peer asked to stop (code {0})")]
    Stopped(u64),
    /// The stream was reset before without a reliable size, or the peer has acknowledged its end.
    #[error("the stream is over")]
    StreamClosed,
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

/// Error of a read: no more data can be read from the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The peer reset the stream. Data below its reliable size was read before.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The stream was stopped or read to its end before.
    #[error("the stream is read to its end or stopped")]
    StreamClosed,
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

/// Error of reading a stream to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadToEndError {
    /// Reading failed.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The stream is longer than the caller takes.
    #[error("the stream is longer than {limit} bytes")]
    TooLong {
        /// The caller's limit, in bytes.
        limit: usize,
    },
}

/// Error of sending or receiving a datagram.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The peer takes no datagrams, or not of this size.
    #[error("{0}")]
    Refused(#[from] transport::datagrams::SendDatagramError),
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        let kind = match &error {
            WriteError::Stopped(_) => io::ErrorKind::ConnectionReset,
            WriteError::StreamClosed => io::ErrorKind::BrokenPipe,
            WriteError::ConnectionClosed(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Reset(_) => io::ErrorKind::ConnectionReset,
            ReadError::StreamClosed => io::ErrorKind::NotConnected,
            ReadError::ConnectionClosed(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// The error of a reset that the transport refused.
pub(crate) fn from_reset_at(error: streams::ResetAtError) -> ResetAtError {
    match error {
        streams::ResetAtError::Unsupported => ResetAtError::Unsupported,
        streams::ResetAtError::TooLarge { limit } => ResetAtError::TooLarge { limit },
        streams::ResetAtError::Stopped(code) => ResetAtError::Stopped(code),
        _ => ResetAtError::StreamClosed,
    }
}

/// The error of a write that the transport refused.
pub(crate) fn from_write(error: streams::WriteError) -> WriteError {
    match error {
        streams::WriteError::Stopped(code) => WriteError::Stopped(code),
        _ => WriteError::StreamClosed,
    }
}
