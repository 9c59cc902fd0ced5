//! Events of connection attempts at a server, reported once each, at their time. Single packets of a connection are not reported.

use std::{net::SocketAddr, sync::Arc};

use super::Endpoint;
use crate::{connection::Connection, events::CloseReason};

/// Event of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptEvent<'a> {
    /// Version Negotiation in answer to a first packet (RFC 9000 §6). Reserved versions (§15) are not reported: a packet with
    /// one is no attempt to connect.
    Negotiated {
        /// The server has versions to list; one that sheds load lists none.
        offered: bool,
    },
    /// Retry in answer to a first packet: the client has to validate its address (RFC 9000 §8.1.2).
    Retried,
    /// Refusal of a first packet because a limit was reached or its Retry token was invalid. The client receives CONNECTION_CLOSE, or
    /// nothing if too many handshakes wait for TLS.
    Refused,
    /// Start of a connection: its first packet was authentic. Its source address is not validated yet and may be forged.
    Begun,
    /// Completion of the handshake.
    Completed,
    /// End of a connection.
    Ended {
        /// Reason of the end.
        reason: &'a CloseReason,
        /// The handshake was complete.
        completed: bool,
        /// The client had acknowledged a packet: packets to its address do arrive.
        reached: bool,
        /// Packets were unacknowledged, or a bidirectional stream was not at its end.
        busy: bool,
    },
}

/// Receiver of the events of connection attempts. The task that drives the endpoint calls it, so a call must not block and must
/// not use the endpoint.
pub trait AttemptLog: Send + Sync {
    /// Records an event of the client whose first packet came from `remote`.
    fn note(&self, remote: SocketAddr, event: AttemptEvent<'_>);
}

impl Endpoint {
    /// Sets the receiver of events of connection attempts at this endpoint as a server; `None` removes it.
    pub fn set_attempt_log(&mut self, log: Option<Arc<dyn AttemptLog>>) {
        self.attempts = log;
    }

    /// Reports an event to the receiver, if there is one.
    pub(super) fn note_attempt(&self, remote: SocketAddr, event: AttemptEvent<'_>) {
        if let Some(log) = &self.attempts {
            log.note(remote, event);
        }
    }
}

/// Event at the end of a connection.
pub(super) fn ended<'a>(connection: &Connection, reason: &'a CloseReason) -> AttemptEvent<'a> {
    AttemptEvent::Ended {
        reason,
        completed: connection.was_connected(),
        reached: connection.is_reached(),
        busy: connection.is_busy(),
    }
}
