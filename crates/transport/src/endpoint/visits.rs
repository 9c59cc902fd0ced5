//! Outcomes of connection attempts at a server, reported when they happen: once for each event of a connection, never for a packet of one.

use std::{net::SocketAddr, sync::Arc};

use super::Endpoint;
use crate::{connection::Connection, events::CloseReason};

/// Event of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Visit<'a> {
    /// A first packet was answered with Version Negotiation. Not told of reserved versions (RFC 9000 §15), with which nobody
    /// means to connect.
    Negotiated {
        /// There were versions to choose from; a server that sheds offers none.
        offered: bool,
    },
    /// A first packet was answered with a Retry: the client is to prove its address.
    Retried,
    /// A first packet found a limit, or its Retry token was no good: the client was told that it is refused, or, when too many
    /// handshakes wait for TLS, told nothing.
    Refused,
    /// A connection began: its first packet was authentic. Its address may be forged all the same.
    Begun,
    /// The handshake of a connection is complete.
    Completed,
    /// A connection is over.
    Ended {
        /// Why.
        reason: &'a CloseReason,
        /// The handshake was complete.
        completed: bool,
        /// The client had acknowledged a packet: what this end sends does arrive.
        reached: bool,
        /// Something was under way: packets without acknowledgement, or a bidirectional stream that was not at its end.
        busy: bool,
    },
}

/// Is told of visits. It is called by whoever drives the endpoint: it must be quick, and must not ask the endpoint.
pub trait VisitLog: Send + Sync {
    /// This has happened to a client, known by the address that it came from first.
    fn note(&self, remote: SocketAddr, visit: Visit<'_>);
}

impl Endpoint {
    /// From here on `log` is told what becomes of those who come to this endpoint as a server.
    pub fn set_visit_log(&mut self, log: Option<Arc<dyn VisitLog>>) {
        self.visits = log;
    }

    /// Tells of a visit, if anybody wants to know.
    pub(super) fn note_visit(&self, remote: SocketAddr, visit: Visit<'_>) {
        if let Some(log) = &self.visits {
            log.note(remote, visit);
        }
    }
}

/// The end of a connection as its visit.
pub(super) fn ended<'a>(connection: &Connection, reason: &'a CloseReason) -> Visit<'a> {
    Visit::Ended {
        reason,
        completed: connection.was_connected(),
        reached: connection.is_reached(),
        busy: connection.is_busy(),
    }
}
