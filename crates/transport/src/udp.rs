//! UDP payloads that are received from a socket, and that are sent to one.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use units::Instant;

use crate::acks::Ecn;

/// UDP payloads that arrived from one address to one address, in one read.
#[derive(Debug)]
pub struct Datagram {
    /// Remote address.
    pub remote: SocketAddr,
    /// Local address that received them, if the socket reports it.
    pub local: Option<IpAddr>,
    /// The mark of the network on them.
    pub ecn: Option<Ecn>,
    /// Time at which they arrived; not later than the `now` they are handled at.
    pub received_at: Instant,
    /// Size of each but the last, in bytes: a read with GRO returns several at once.
    pub segment_size: usize,
    /// The payloads, one after the other. Opened in place and handed up without a copy.
    pub payload: BytesMut,
}

/// UDP payloads that wait to be sent to one address, in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Remote address.
    pub remote: SocketAddr,
    /// Local address to send from, if it matters.
    pub local: Option<IpAddr>,
    /// The mark that they carry.
    pub ecn: Option<Ecn>,
    /// Bytes of the buffer that were filled.
    pub len: usize,
    /// Size of each payload but the last, in bytes (GSO).
    pub segment_size: usize,
}
