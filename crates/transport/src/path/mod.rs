//! One way through the network, from one address to another, with everything that is measured on it.
//!
//! Recovery, congestion control, pacing and the packet size belong to the path, not to the connection: a change of
//! address starts them afresh, and with several paths each has its own.

mod amplification;
mod challenge;

use std::net::{IpAddr, SocketAddr};

pub(crate) use amplification::AmplificationLimit;
pub(crate) use challenge::{Challenge, Outcome};

use crate::recovery::Recovery;

/// Owns the state of one path.
pub(crate) struct Path {
    pub(crate) remote: SocketAddr,
    /// The address of ours that the peer sends to, when the socket can tell.
    pub(crate) local: Option<IpAddr>,
    /// How much may be sent before the address is validated.
    pub(crate) amplification: AmplificationLimit,
    /// Proof that the peer receives at this address.
    pub(crate) challenge: Challenge,
    /// RTT, bytes in flight, congestion control, pacing.
    pub(crate) recovery: Recovery,
    /// Largest UDP payload that is sent on this path, in bytes.
    pub(crate) mtu: u16,
}

impl Path {
    pub(crate) fn new(
        remote: SocketAddr,
        local: Option<IpAddr>,
        amplification: AmplificationLimit,
        recovery: Recovery,
        mtu: u16,
    ) -> Self {
        Self { remote, local, amplification, challenge: Challenge::default(), recovery, mtu }
    }
}
