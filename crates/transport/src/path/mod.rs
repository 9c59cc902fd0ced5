//! One way through the network, from one address to another, with everything that is measured on it.
//!
//! Recovery, congestion control, pacing and the packet size belong to the path, not to the connection: a change of
//! address starts them afresh, and with several paths each has its own.

mod amplification;
mod challenge;
mod ecn;
mod mtu;
mod paths;
mod spin;

use std::net::{IpAddr, SocketAddr};

use units::Instant;

pub(crate) use amplification::AmplificationLimit;
pub(crate) use challenge::{Challenge, Outcome};
pub(crate) use ecn::EcnMarks;
pub(crate) use mtu::{BASE as BASE_MTU, MtuDiscovery};
pub(crate) use paths::{ArrivalPath, Paths};
pub(crate) use spin::Spin;

use crate::recovery::{EcnFeedback, Recovery};

/// Owns the state of one path.
pub(crate) struct Path {
    pub(crate) remote: SocketAddr,
    /// The address of ours that the peer sends to, when the socket can tell.
    pub(crate) local: Option<IpAddr>,
    /// Amplification limit until the address is validated.
    pub(crate) amplification: AmplificationLimit,
    /// Proof that the peer receives at this address.
    pub(crate) challenge: Challenge,
    /// Datagrams of 1,200 bytes have passed in both directions.
    pub(crate) proven: bool,
    /// A client moves here as soon as the path is proven.
    pub(crate) destined: bool,
    /// RTT, bytes in flight, congestion control, pacing.
    pub(crate) recovery: Recovery,
    /// Largest UDP payload that is sent on this path, in bytes.
    pub(crate) mtu: u16,
    /// Looks for a larger one.
    pub(crate) discovery: MtuDiscovery,
    /// Whether packets are marked ECT(0).
    pub(crate) marks: EcnMarks,
    pub(crate) spin: Spin,
}

impl Path {
    pub(crate) fn new(
        remote: SocketAddr,
        local: Option<IpAddr>,
        amplification: AmplificationLimit,
        recovery: Recovery,
        discovery: MtuDiscovery,
        marks: EcnMarks,
        spin: Spin,
    ) -> Self {
        let (challenge, mtu) = (Challenge::default(), discovery.current());
        let (proven, destined) = (false, false);
        Self { remote, local, amplification, challenge, proven, destined, recovery, mtu, discovery, marks, spin }
    }

    /// Returns whether a datagram between these addresses is on this path for sure.
    #[inline]
    pub(crate) fn is(&self, remote: SocketAddr, local: Option<IpAddr>) -> bool {
        self.remote == remote && self.local == local
    }

    /// Returns whether it may be: where a socket or the application did not name the address of this end, any will do.
    #[inline]
    pub(crate) fn may_be(&self, remote: SocketAddr, local: Option<IpAddr>) -> bool {
        self.remote == remote && (self.local == local || self.local.is_none() || local.is_none())
    }

    /// What an acknowledgement says about marks.
    #[inline]
    pub(crate) fn on_ecn(&mut self, feedback: EcnFeedback) {
        match feedback {
            EcnFeedback::Valid { .. } => self.marks.on_valid(),
            // RFC 9000 §13.4.2.2 MUST-1, MUST-2: a path that does not bring the marks back is not marked any more.
            EcnFeedback::Failed => self.marks.on_failed(),
            EcnFeedback::None => {}
        }
    }

    /// The peer takes no datagrams above `max` bytes.
    pub(crate) fn limit_mtu(&mut self, now: Instant, max: u16) {
        let mtu = self.discovery.limit(max);
        self.set_mtu(now, mtu);
    }

    /// Datagrams have this size from here on.
    pub(crate) fn set_mtu(&mut self, now: Instant, mtu: u16) {
        if self.mtu != mtu {
            self.mtu = mtu;
            self.recovery.set_mtu(now, mtu);
        }
    }
}
