//! The client of a request.

use std::{net::SocketAddr, sync::Arc};

use http::HeaderValue;
use tiderace::ConnectionBudget;

use crate::{ending::Cause, policy::PolicyProgress};

/// Client of a request: address, protocol, connection.
#[derive(Clone)]
pub(crate) struct Peer {
    /// The last address at which the client has shown that it receives. For a request in early data it may be the one that the
    /// first packet claimed to come from: back ends see `early-data` beside it.
    pub(crate) remote: SocketAddr,
    pub(crate) protocol: &'static str,
    /// `alt-svc` for those that came over TCP.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// The connection of HTTP/3.
    pub(crate) quic: Option<tiderace::Connection>,
    /// The request came in early data: the handshake is not complete.
    pub(crate) early: bool,
    /// The way of a QUIC connection through the policies.
    pub(crate) progress: Option<Arc<PolicyProgress>>,
    /// Budget for what the client makes this end hold on its connection.
    pub(crate) memory: ConnectionBudget,
    /// Reason why this end closes the connection, once it does; QUIC has its own.
    pub(crate) cause: Cause,
}
