//! Deadlines of a connection, and processing of an expired one.

use units::Instant;

use super::{Connection, lifecycle::CloseFrame};
use crate::{
    error::{Code, TransportError},
    events::CloseReason,
    observe::Ending,
    recovery::Allowance,
    timers::Timer,
    tls::Level,
};

impl Connection {
    /// Handles the timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut any = false;
        while let Some(timer) = self.timers.take_due(now) {
            // A silence that does not matter is rest.
            let due = timer != Timer::Silence || self.on_silence();
            if !due {
                continue;
            }
            any = true;
            self.observation.tell(now, |observer, at| observer.timer_expired(at, timer));
            match timer {
                Timer::LossDetection => self.on_recovery_timeout(now),
                // These only mean that something can be sent.
                Timer::AckDelay | Timer::Pacing | Timer::Repair | Timer::Silence => {}
                // RFC 9000 §10.1: the connection ends silently.
                Timer::Idle if self.lifecycle.was_connected() => self.end_silently(now, CloseReason::IdleTimeout),
                Timer::Idle => self.give_up_handshake(now),
                Timer::KeepAlive => self.packets.sources.control.ping.request(),
                Timer::Rest => self.on_rest(now),
                Timer::PathValidation => self.on_path_timeout(now),
                Timer::DiscardKeys => {
                    self.forget_early_keys(now);
                    let due = self.packets.keys.deadline().is_some_and(|at| at <= now);
                    self.packets.keys.on_timeout(now);
                    if due {
                        let phase = self.packets.keys.updates().saturating_sub(1);
                        self.observation
                            .tell(now, |observer, at| observer.keys_discarded(at, Level::OneRtt, Some(phase)));
                    }
                }
                Timer::Close => {
                    self.lifecycle.finish();
                    self.timers.clear_all();
                }
            }
        }
        if !any {
            self.on_quiet();
        }
    }

    /// Ends the connection without CONNECTION_CLOSE and without a draining period (RFC 9000 §10.1).
    fn end_silently(&mut self, now: Instant, reason: CloseReason) {
        if self.lifecycle.drain() {
            self.end(now, reason, Ending::Silent);
        }
        self.lifecycle.finish();
        self.timers.clear_all();
    }

    /// Ends a connection whose handshake has taken longer than permitted.
    ///
    /// The peer receives CONNECTION_CLOSE, because it may be connected already and wait for its own, longer idle timeout, as a client whose
    /// last flight was lost. A server sends it only to a validated address: the owner of another address may never have sent a packet, and
    /// a flood of half-open handshakes would become a flood of CONNECTION_CLOSE. A client sends it once a packet of the server has arrived,
    /// because the server has state only then.
    ///
    /// RFC 9000 §10.1: an endpoint that has advertised an idle timeout sends CONNECTION_CLOSE if it abandons the connection before. No
    /// error code of §20.1 fits: no rule was violated, and CONNECTION_REFUSED would tell a client not to return. This leaves `NO_ERROR`,
    /// for an abrupt end "in the absence of any error".
    fn give_up_handshake(&mut self, now: Instant) {
        let reason = CloseReason::HandshakeTimeout;
        if self.has_heard() && self.paths.active().amplification.is_validated() {
            let error = TransportError::new(Code::NO_ERROR, "the handshake took too long");
            self.close_with(now, CloseFrame::Transport(error), reason);
        } else {
            self.end_silently(now, reason);
        }
    }

    /// Updates all deadlines that follow from the state of the parts. Called when nothing more can be sent.
    pub(super) fn refresh_timers(&mut self, now: Instant) {
        let recovery = self.recovery_deadline();
        self.timers.set(Timer::LossDetection, recovery.map(|(_, deadline)| deadline.at));
        // What may not be sent anyway, because of the address, needs no waking: the peer's next datagram does that.
        let acks = self.packets.spaces.ack_deadline();
        // Nor does what waits for an answer of TLS.
        let acks = acks.filter(|_| self.datagram_room() > 0 && !self.packets.sources.handshake.is_away());
        self.timers.set(Timer::AckDelay, acks);
        let held = self.packets.has_data();
        if let Some(sender) = &mut self.packets.sources.fec.sender {
            sender.on_held(now, held);
        }
        let paced_until = if held {
            match self.paths.active_mut().recovery.allowance(now, u64::MAX) {
                Allowance::PacedUntil(at) => Some(at),
                Allowance::Bytes(_) | Allowance::WindowFull => None,
            }
        } else {
            self.paths.active_mut().recovery.on_app_limited(now);
            None
        };
        self.timers.set(Timer::Pacing, paced_until);
        // While data waits, repair follows from it.
        let repair = self.packets.sources.fec.deadline().filter(|_| !held);
        let repair = repair.into_iter().chain(self.packets.sources.copies.deadline()).min();
        self.timers.set(Timer::Repair, repair);
        let discard = self.packets.keys.deadline().into_iter().chain(self.early.deadline()).min();
        self.timers.set(Timer::DiscardKeys, discard);
        let validation = self.paths.validation_deadline();
        self.timers.set(Timer::PathValidation, validation);
    }
}
