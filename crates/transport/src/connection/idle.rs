//! Idle timeout, and a connection at rest that is blocked by flow control, which repeats its DATA_BLOCKED frames.

use units::{Duration, Instant};

use super::Connection;
use crate::timers::{Timer, Timers};

/// Bounds of the time after which a connection counts as at rest; between them it is a third of the idle timeout.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);

/// Owns the idle timeout.
pub(super) struct Idle {
    /// The idle timeout that both ends have agreed on; zero when there is none.
    pub(super) timeout: Duration,
    /// Time without activity after which the connection counts as at rest.
    rest_after: Duration,
    /// An ack-eliciting packet was sent since the last packet was received: the idle timer was restarted for it.
    pub(super) is_restarted: bool,
}

impl Idle {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, rest_after: rest_after(timeout), is_restarted: false }
    }

    /// Restarts the timers after activity.
    fn restart(&self, timers: &mut Timers, now: Instant, pto: Duration, keep_alive: Option<Duration>) {
        let idle = (!self.timeout.is_zero()).then(|| now + self.timeout.max(pto * 3));
        timers.set(Timer::Idle, idle);
        timers.set(Timer::KeepAlive, keep_alive.map(|span| now + span));
        timers.set(Timer::Rest, Some(now + self.rest_after));
    }

    /// The peer's idle timeout is known.
    // RFC 9000 §10.1: the smaller of the two values holds; zero says nothing.
    pub(super) fn agree(&mut self, theirs: Duration) {
        if !theirs.is_zero() && (self.timeout.is_zero() || theirs < self.timeout) {
            self.timeout = theirs;
            self.rest_after = rest_after(theirs);
        }
    }
}

/// Time without activity after which a connection counts as at rest.
fn rest_after(idle_timeout: Duration) -> Duration {
    if idle_timeout.is_zero() { LATEST } else { (idle_timeout / 3).clamp(SOONEST, LATEST) }
}

impl Connection {
    /// RFC 9000 §10.1 MUST-1: the idle timer restarts with every packet that is processed, and with the first
    /// ack-eliciting one that is sent after it; it is never shorter than three probe timeouts.
    pub(super) fn restart_idle(&mut self, now: Instant) {
        if !self.lifecycle.was_connected() {
            // Until then the handshake's own limit holds.
            return;
        }
        let keep_alive = self.profile.keep_alive;
        self.idle.restart(&mut self.timers, now, self.paths.active().recovery.pto(), keep_alive);
    }

    /// Called when no packet was received, and no ack-eliciting packet sent, for a while.
    pub(super) fn on_rest(&mut self, now: Instant) {
        // RFC 9000 §4.1 SHOULD-2: a sender that flow control holds back says so again while nothing else is in
        // flight, which also keeps the connection from being taken for idle.
        if !self.paths.is_in_flight() && self.packets.sources.streams.repeat_blocked() {
            self.timers.set(Timer::Rest, Some(now + self.idle.rest_after));
        }
    }
}
