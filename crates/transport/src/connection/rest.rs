//! A connection that comes to rest with data in hand: repeats what keeps it from going on.

use units::{Duration, Instant};

use super::Connection;
use crate::timers::Timer;

/// Bounds of the time after which a connection counts as at rest; between them it is a third of the idle timeout.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);

/// How long nothing happens before a connection counts as at rest.
pub(super) fn rest_after(idle_timeout: Duration) -> Duration {
    if idle_timeout.is_zero() { LATEST } else { (idle_timeout / 3).clamp(SOONEST, LATEST) }
}

impl Connection {
    /// Nothing was received, and nothing sent that asks for an answer, for a while.
    pub(super) fn on_rest(&mut self, now: Instant) {
        // RFC 9000 §4.1 SHOULD-2: a sender that flow control holds back says so again while nothing else is in
        // flight, which also keeps the connection from being taken for idle.
        let in_flight = self.paths.0.iter().any(|path| path.recovery.bytes_in_flight() > 0);
        if !in_flight && self.streams.repeat_blocked() {
            self.timers.set(Timer::Rest, Some(now + self.rest_after));
        }
    }
}
