//! Events of a connection for its application.

use bytes::Bytes;

use crate::{
    error::{MigrateError, TransportError},
    streams::StreamEvent,
};

/// Something that the application may want to act on. Drained with `poll_event`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The handshake is complete; the peer is who the certificate says, as far as it was asked.
    Connected,
    /// Early data was accepted or refused by the server. On a client it comes with the server's first answer; what was
    /// refused is sent again by itself. On a server it comes before the early data: until [`Event::Connected`] all that
    /// arrives may be a copy of what was sent before.
    EarlyData {
        /// The server's decision.
        accepted: bool,
    },
    /// A stream changed.
    Stream(StreamEvent),
    /// Datagrams wait to be read.
    DatagramsReadable,
    /// The queue of datagrams to be sent has room again, after it was said to have none.
    DatagramsWritable,
    /// Datagrams of ours left the full queue unsent, the oldest first: how many since the last such event.
    DatagramsDropped {
        /// Number of datagrams.
        count: u64,
    },
    /// Datagrams of the peer were dropped because they were not read in time: how many since the last such event.
    DatagramsUnread {
        /// Number of datagrams.
        count: u64,
    },
    /// A token with which the next connection to this server skips the validation of its address.
    TokenReceived(Bytes),
    /// The connection goes on over another path, which is validated: the peer's address changed, or this client moved.
    Migrated,
    /// The path that this client was to move to does not work; the connection stays where it was.
    MigrationFailed,
    /// The connection is over; nothing follows.
    Closed(CloseReason),
}

/// Why a connection is over, and whose doing it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The application at this end closed it.
    #[error("closed by this application (code {code})")]
    ThisApplication {
        /// The application's code.
        code: u64,
    },
    /// The application at the other end closed it.
    #[error("closed by the peer's application (code {code}{})", quoted(reason))]
    PeerApplication {
        /// The application's code.
        code: u64,
        /// The application's words, as they came.
        reason: Bytes,
    },
    /// The peer broke a rule of the protocol.
    #[error("the peer misbehaved: {0}")]
    PeerMisbehaved(TransportError),
    /// The peer says that this end broke a rule, or that it cannot go on.
    #[error("the peer closed the connection: {error}")]
    PeerClosed {
        /// Error in the peer's frame.
        error: TransportError,
    },
    /// The connection held too much memory, its peer's data or other layers' for it.
    #[error("{}", memory_words(*process))]
    Memory {
        /// The process had no memory left, and this was one of the connections that held the most. Otherwise the connection
        /// held more than its own budget.
        process: bool,
    },
    /// The TLS handshake failed at this end: the certificate, the protocol, the parameters.
    #[error("handshake failed: {0}")]
    HandshakeFailed(TransportError),
    /// The peer has lost its state (stateless reset).
    #[error("the peer no longer knows the connection (stateless reset)")]
    Reset,
    /// Nothing was heard for longer than the idle timeout.
    #[error("idle for too long")]
    IdleTimeout,
    /// The socket of this client was replaced by one with another address, and the connection may not follow there.
    #[error("the connection may not follow the client to its new address: {0}")]
    Stranded(MigrateError),
    /// The handshake did not complete in time. The peer, if it is there, reads of it as [`PeerClosed`](Self::PeerClosed) with
    /// [`Code::NO_ERROR`](crate::Code::NO_ERROR).
    #[error("the handshake timed out: nothing usable came from the peer")]
    HandshakeTimeout,
    /// The peer supports none of our versions.
    #[error("no version in common: the peer offers {offered:x?}")]
    VersionMismatch {
        /// The peer's versions.
        offered: Vec<u32>,
    },
}

/// What the peer is told, too.
pub(crate) const fn memory_words(process: bool) -> &'static str {
    if process {
        "memory: all connections together hold too much"
    } else {
        "memory: the connection holds more than its budget"
    }
}

fn quoted(reason: &Bytes) -> String {
    if reason.is_empty() { String::new() } else { format!(", `{}`", String::from_utf8_lossy(reason).escape_debug()) }
}
