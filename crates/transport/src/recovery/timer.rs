//! Deadlines of a path: loss by time, or a probe timeout (RFC 9002 §6.2, appendix A.8).

use units::{Duration, Instant};

use super::{Recovery, SpaceId};

/// Exponents beyond this make no difference: the idle timeout comes first.
const MAX_BACKOFF: u32 = 20;

/// Progress of the handshake, as far as probe timeouts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Handshake packets can be sent.
    pub(crate) has_handshake_keys: bool,
    /// The handshake is confirmed (RFC 9001 §4.1.2).
    pub(crate) confirmed: bool,
    /// Set if the peer can send without limit: always at a server; at a client once a Handshake packet was acknowledged or the handshake is
    /// confirmed (PeerCompletedAddressValidation).
    pub(crate) peer_validated_us: bool,
    /// A server has sent all that it may to an address that is not validated (RFC 9000 §8.1).
    pub(crate) at_amplification_limit: bool,
    /// Time for which the acknowledgement at hand waited here for its keys.
    pub(crate) waited_for_keys: Duration,
}

impl Progress {
    /// Progress of a confirmed handshake.
    pub(crate) const CONFIRMED: Self = Self {
        has_handshake_keys: true,
        confirmed: true,
        peer_validated_us: true,
        at_amplification_limit: false,
        waited_for_keys: Duration::ZERO,
    };
}

/// Reason of a deadline of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    /// Loss detection by time: call [`super::on_loss_timer`].
    LossTime,
    /// Ack-eliciting packets were not acknowledged in time: call [`Recovery::on_probe_timeout`] and send one or two
    /// ack-eliciting packets in the space.
    Probe,
    /// Like [`Reason::Probe`], without packets in flight: the server may be blocked until it receives a packet.
    AntiDeadlock,
}

/// Deadline of recovery: time, packet number space, reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// May lie in the past; then it is due.
    pub(crate) at: Instant,
    /// The packet number space concerned.
    pub(crate) space: SpaceId,
    /// Action that is due.
    pub(crate) reason: Reason,
}

impl Recovery {
    /// Returns the earliest deadline of the path.
    pub(crate) fn deadline(&self, progress: &Progress) -> Option<Deadline> {
        if let Some(deadline) = self.loss_deadline() {
            // RFC 9002 §6.2.1 MUST NOT-2: no probe timeout while loss by time is pending.
            return Some(deadline);
        }
        if progress.at_amplification_limit {
            // RFC 9002 §6.2.2.1 MUST NOT-1: a server that may not send does not arm its timer.
            return None;
        }
        let backoff = 1_u32 << self.pto_count.min(MAX_BACKOFF);
        let period = self.rtt.probe_timeout();
        let mut earliest: Option<Deadline> = None;
        for space in SpaceId::ALL {
            let state = &self.spaces[space.index()];
            // RFC 9002 §6.2.1 MUST NOT-1: none for application data until the handshake is confirmed.
            if state.eliciting_in_flight == 0 || (space == SpaceId::DATA && !progress.confirmed) {
                continue;
            }
            let delay = if space == SpaceId::DATA { self.max_ack_delay } else { Duration::ZERO };
            // RFC 9002 §6.2.1 SHOULD-1: the probe timeout starts anew when something ack-eliciting is sent or
            // acknowledged, or keys go
            let at = state.last_eliciting_at + (period + delay).saturating_mul(backoff);
            // RFC 9002 §6.2.1 MUST-2: of the probe timeouts of Initial and Handshake the earlier one counts
            if earliest.is_none_or(|deadline| at < deadline.at) {
                earliest = Some(Deadline { at, space, reason: Reason::Probe });
            }
        }
        if earliest.is_none() && !progress.peer_validated_us {
            // RFC 9000 §8.1 MUST-3, MUST-4, RFC 9002 §6.2.2.1 MUST-1, MUST-2, MUST-3: the client keeps a server from
            // a deadlock, with a Handshake packet when it can. That 0-RTT packets are in flight does not help a
            // server that may not answer.
            let space = if progress.has_handshake_keys { SpaceId::Handshake } else { SpaceId::Initial };
            let at = self.last_event_at + period.saturating_mul(backoff);
            return Some(Deadline { at, space, reason: Reason::AntiDeadlock });
        }
        earliest
    }

    /// The earliest time at which a packet counts as lost.
    fn loss_deadline(&self) -> Option<Deadline> {
        let times = SpaceId::ALL.into_iter().filter_map(|space| Some((self.spaces[space.index()].loss_time?, space)));
        times.min().map(|(at, space)| Deadline { at, space, reason: Reason::LossTime })
    }

    /// A probe timeout expired: the next one comes after twice the time (RFC 9002 §6.2.1 MUST-3).
    pub(crate) fn on_probe_timeout(&mut self, now: Instant) {
        // RFC 9002 §6.2 MUST NOT-1: a probe timeout declares nothing lost
        self.pto_count = self.pto_count.saturating_add(1);
        self.last_event_at = now;
    }

    /// The probe timeout of application data without backoff: the unit in which other periods are given (RFC 9000 §8.2.4,
    /// §10.2, RFC 9001 §6.5).
    pub(crate) fn pto(&self) -> Duration {
        self.rtt.probe_timeout() + self.max_ack_delay
    }
}
