//! A network path from one address to another, with all measurements on it.
//!
//! Recovery, congestion control, pacing and the packet size belong to the path, not to the connection. A change of address starts them
//! again, and with several paths each has its own.

mod amplification;
mod challenge;
mod ecn;
mod mtu;
mod paths;
mod spin;
mod validation;

use std::net::{IpAddr, SocketAddr};

use units::Instant;

pub(crate) use amplification::AmplificationLimit;
pub(crate) use challenge::{Challenge, Outcome};
pub(crate) use ecn::EcnMarks;
pub(crate) use mtu::{BASE as BASE_MTU, MtuDiscovery};
pub(crate) use paths::{ArrivalPath, Paths};
pub(crate) use spin::Spin;
pub use validation::MoveState;
pub(crate) use validation::{Failure, Validated};

use crate::recovery::{EcnFeedback, Recovery};

/// Owns the state of one path.
pub(crate) struct Path {
    pub(crate) remote: SocketAddr,
    /// Local address that the peer sends to, when the socket reports it.
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
    /// Search for a larger size.
    pub(crate) discovery: MtuDiscovery,
    /// ECN marking of sent packets.
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

    /// Returns whether only the peer's port lies between this path and one between these addresses, as NATs change it.
    pub(crate) fn differs_in_port(&self, remote: SocketAddr, local: Option<IpAddr>) -> bool {
        self.proven && self.remote.ip() == remote.ip() && self.local == local
    }

    /// Recovery of a path that continues this one, with datagrams of `mtu` bytes.
    // RFC 9000 §9.4 MUST-1, MUST NOT-1: a new path starts with a new congestion controller and a new RTT, unless
    // only the peer's port has changed, as NATs do.
    pub(crate) fn continued(&self, now: Instant, mtu: u16) -> Recovery {
        let mut recovery = self.recovery.continued(now);
        recovery.set_mtu(now, mtu);
        recovery
    }

    /// Takes the ECN feedback of an acknowledgement.
    #[inline]
    pub(crate) fn on_ecn(&mut self, feedback: EcnFeedback) {
        match feedback {
            EcnFeedback::Valid { .. } => self.marks.on_valid(),
            // RFC 9000 §13.4.2.2 MUST-1, MUST-2: a path that does not bring the marks back is not marked any more.
            EcnFeedback::Failed => self.marks.on_failed(),
            EcnFeedback::None => {}
        }
    }

    /// A batch of `len` bytes left that was cut at `size`: counts datagrams that would have been larger if the path allowed.
    // RFC 8899 §3 MUST NOT-1: nothing but a probe is larger than the size in use
    #[inline]
    pub(crate) fn on_datagrams_sent(&mut self, now: Instant, size: usize, len: usize) {
        if size == usize::from(self.mtu) {
            self.discovery.on_full_datagrams(now, (len / size) as u32);
        }
    }

    /// Looks, after losses, whether the path has ceased to carry datagrams of the size in use. Returns the size that is safe then.
    pub(crate) fn on_black_hole(&mut self, now: Instant) -> Option<u16> {
        (self.recovery.take_black_hole() && self.mtu > BASE_MTU).then(|| self.discovery.on_black_hole(now))
    }

    /// Bytes that the next datagram may have; 0 while so little may go to the address that `least` do not fit.
    #[inline]
    pub(crate) fn room(&self, least: usize) -> usize {
        let room = usize::try_from(self.amplification.budget()).unwrap_or(usize::MAX).min(self.mtu.into());
        if room < least { 0 } else { room }
    }

    /// The peer takes no datagrams above `max` bytes.
    pub(crate) fn limit_mtu(&mut self, now: Instant, max: u16) {
        let mtu = self.discovery.limit(max);
        self.set_mtu(now, mtu);
    }

    /// Sets the size of datagrams. Returns the one before, if it was another one.
    pub(crate) fn set_mtu(&mut self, now: Instant, mtu: u16) -> Option<u16> {
        let old = std::mem::replace(&mut self.mtu, mtu);
        if old == mtu {
            return None;
        }
        self.recovery.set_mtu(now, mtu);
        Some(old)
    }
}
