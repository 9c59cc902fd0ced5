//! Events of a connection for its application.

use bytes::Bytes;

use crate::{
    error::{MigrateError, TransportError},
    streams::StreamEvent,
    tls::HandshakeFault,
};

/// Event for the application. Drained with `poll_event`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The handshake is complete; the peer's certificate was verified as configured.
    Connected,
    /// Decision of the server on early data. On a client it comes with the server's first answer; refused data is sent again
    /// automatically. On a server it comes before the early data: until [`Event::Connected`] all data may be a replay.
    EarlyData {
        /// The server's decision.
        accepted: bool,
    },
    /// Event of a stream.
    Stream(StreamEvent),
    /// Datagrams wait to be read.
    DatagramsReadable,
    /// The queue of datagrams to be sent has room again, after it had none.
    DatagramsWritable,
    /// Datagrams of this end were dropped from the full queue unsent, the oldest first.
    DatagramsDropped {
        /// Number of datagrams since the last such event.
        count: u64,
    },
    /// Datagrams of the peer were dropped because they were not read in time.
    DatagramsUnread {
        /// Number of datagrams since the last such event.
        count: u64,
    },
    /// Token with which the next connection to this server skips address validation (RFC 9000 §8.1.3).
    TokenReceived(Bytes),
    /// The connection uses another path, which is validated: the peer's address changed, or this client migrated.
    Migrated,
    /// The path that this client was to migrate to does not work; the connection stays on its path.
    MigrationFailed,
    /// The connection has ended; no event follows.
    Closed(CloseReason),
}

/// Reason why a connection has ended, and the party that ended it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Close by the application at this end.
    #[error("closed by this application (code {code})")]
    ThisApplication {
        /// The application's code.
        code: u64,
    },
    /// Close by the peer's application.
    #[error("closed by the peer's application (code {code}{})", quoted(reason))]
    PeerApplication {
        /// The application's code.
        code: u64,
        /// Reason phrase of the application, as received.
        reason: Bytes,
    },
    /// Protocol violation of the peer.
    #[error("the peer misbehaved: {0}")]
    PeerMisbehaved(TransportError),
    /// Close by the peer's transport: it reports a violation of this end, or cannot continue.
    #[error("the peer closed the connection: {error}")]
    PeerClosed {
        /// Error in the peer's frame.
        error: TransportError,
    },
    /// The connection held too much memory, for data of its peer or for other layers.
    #[error("{}", memory_words(*process))]
    Memory {
        /// The process had no memory left, and this was one of the connections that held the most. Otherwise the connection
        /// held more than its own budget.
        process: bool,
    },
    /// The TLS handshake failed at this end: the certificate, the protocol, the parameters.
    #[error("handshake failed: {error}")]
    HandshakeFailed {
        /// Error that the peer receives.
        error: TransportError,
        /// Cause, which often has more detail than the alert in the error.
        fault: HandshakeFault,
    },
    /// The peer has lost its state (stateless reset).
    #[error("the peer no longer knows the connection (stateless reset)")]
    Reset,
    /// A panic has left the endpoint between two steps, and its connections are given up. The peer receives a stateless reset when
    /// another endpoint with the same keys reads its packets.
    #[error("the endpoint has lost its state by a panic")]
    StateLost,
    /// Idle timeout: no packet was received for this time.
    #[error("idle for too long")]
    IdleTimeout,
    /// The socket of this client was replaced by one with another address, and the connection may not migrate there.
    #[error("the connection may not follow the client to its new address: {0}")]
    Stranded(MigrateError),
    /// The handshake did not complete in time. A reachable peer sees [`PeerClosed`](Self::PeerClosed) with
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

/// Reason phrase of a close for lack of memory, for the CONNECTION_CLOSE frame and the log.
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
