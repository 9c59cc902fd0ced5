//! Flow control: what may be sent, what may be received, and how the receive windows tune themselves.
//!
//! The window starts small, because it is memory that every peer can claim, and doubles whenever the application consumed
//! data at a rate that would use it up within two round trips: then it is the window that limits the sender, or soon will.
//! It thus ends between two and four bandwidth-delay products; a slow reader never makes it grow.

use units::{Duration, Instant};

/// The time of the last batch of datagrams, and the round trip, as far as known: what tuning measures with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: Instant,
    /// Zero until it is known; nothing is tuned before.
    pub(super) rtt: Duration,
}

/// Credit that the peer gave us, for a stream or for the connection.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// The limit the peer announced, an absolute offset.
    pub(super) limit: u64,
    /// How far we have gone.
    pub(super) used: u64,
    /// The limit for which a BLOCKED frame was already made.
    blocked_at: Option<u64>,
}

impl Credit {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Bytes that may still be sent.
    #[inline]
    pub(super) fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Takes a new limit; false when it changes nothing.
    pub(super) fn raise(&mut self, limit: u64) -> bool {
        // RFC 9000 §4.1: a MAX_DATA or MAX_STREAM_DATA frame that does not increase the limit is ignored.
        let raised = limit > self.limit;
        self.limit = self.limit.max(limit);
        raised
    }

    /// Whether the peer has to be told that this limit blocks us: once per limit.
    pub(super) fn report_blocked(&mut self) -> bool {
        let fresh = self.available() == 0 && self.blocked_at != Some(self.limit);
        if fresh {
            self.blocked_at = Some(self.limit);
        }
        fresh
    }

    /// Everything that was sent was for nothing and is sent again; no limit is known.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

/// Credit that we give the peer, for a stream or for the connection.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// The limit the peer knows of, or at least was told.
    announced: u64,
    /// Bytes that the application has taken, or that were thrown away for it.
    consumed: u64,
    /// How far the limit is ahead of what was consumed.
    window: u64,
    max: u64,
    /// When the credit announced last was given, and what was consumed by then.
    epoch: Instant,
    consumed_at_epoch: u64,
}

impl ReceiveWindow {
    pub(super) fn new(window: u64, max: u64, now: Instant) -> Self {
        Self { announced: window, consumed: 0, window, max: max.max(window), epoch: now, consumed_at_epoch: 0 }
    }

    /// The largest offset (of a stream) or sum of offsets (of the connection) that the peer may use.
    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.announced
    }

    /// Bytes consumed since the beginning.
    #[inline]
    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Notes that `bytes` more were consumed; true when new credit should be announced.
    #[inline]
    pub(super) fn consume(&mut self, bytes: u64) -> bool {
        self.consumed += bytes;
        self.due()
    }

    /// RFC 9000 §4.2: credit early enough that the sender is not blocked, rarely enough that the frames cost nothing:
    /// when half of the window is used.
    #[inline]
    fn due(&self) -> bool {
        self.next_limit() - self.announced >= self.window.div_ceil(2)
    }

    fn next_limit(&self) -> u64 {
        // The limit never moves back, also when the window is smaller than what was announced for the start.
        (self.consumed + self.window).min(wire::varint::MAX).max(self.announced)
    }

    /// Whether any credit could be given.
    pub(super) fn has_unannounced(&self) -> bool {
        self.next_limit() > self.announced
    }

    /// Widens the window when it was used up too fast. Called once per announcement. True when it grew.
    pub(super) fn tune(&mut self, clock: &Clock) -> bool {
        let consumed = self.consumed - self.consumed_at_epoch;
        let elapsed = clock.now.nanos_since(self.epoch);
        self.epoch = clock.now;
        self.consumed_at_epoch = self.consumed;
        // consumed / elapsed × 2 RTT ≥ window, without dividing.
        let too_small = !clock.rtt.is_zero()
            && u128::from(consumed) * 2 * clock.rtt.as_nanos() >= u128::from(self.window) * u128::from(elapsed);
        let before = self.window;
        if too_small {
            self.window = self.window.saturating_mul(2).min(self.max);
        }
        self.window > before
    }

    /// Makes the window at least this wide, within its maximum.
    pub(super) fn widen(&mut self, window: u64) {
        self.window = self.window.max(window.min(self.max));
    }

    /// The limit to announce in a frame that is being written.
    pub(super) fn announce(&mut self) -> u64 {
        self.announced = self.next_limit();
        self.announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(ms: u64, rtt_ms: u64) -> Clock {
        Clock { now: Instant::from_millis(ms), rtt: Duration::from_millis(rtt_ms) }
    }

    #[test]
    fn credit_is_given_at_half_of_the_window() {
        let mut w = ReceiveWindow::new(1000, 1000, Instant::ZERO);
        assert!(!w.consume(499));
        assert!(w.has_unannounced());
        assert!(w.consume(1));
        assert_eq!(w.limit(), 1000);
        assert_eq!(w.announce(), 1500);
        assert!(!w.consume(499));
        assert!(w.consume(1));
    }

    #[test]
    fn a_fast_reader_doubles_the_window_a_slow_one_does_not() {
        let mut w = ReceiveWindow::new(1000, 3000, Instant::ZERO);
        w.consume(500);
        // 500 bytes in 100 ms are 1000 within 2 RTT of 100 ms.
        assert!(w.tune(&clock(100, 100)));
        assert_eq!(w.announce(), 2500);
        w.consume(1000);
        assert!(!w.tune(&clock(400, 100)), "1000 bytes in 300 ms do not use 2000 bytes in 200 ms");
        w.consume(1000);
        assert!(w.tune(&clock(401, 100)));
        assert_eq!(w.window(), 3000, "no further than the maximum");
        w.consume(1000);
        assert!(!w.tune(&clock(402, 100)));
    }

    #[test]
    fn nothing_is_tuned_before_the_round_trip_is_known() {
        let mut w = ReceiveWindow::new(1000, 8000, Instant::ZERO);
        w.consume(1000);
        assert!(!w.tune(&Clock::default()));
    }

    /// RFC 9000 §4.1: a smaller limit than before has no effect.
    #[test]
    fn limits_never_shrink() {
        let mut credit = Credit::new(10);
        assert!(!credit.raise(9));
        assert_eq!(credit.limit, 10);
        credit.used = 10;
        assert!(credit.report_blocked());
        assert!(!credit.report_blocked());
        assert!(credit.raise(11));
        assert!(!credit.report_blocked(), "not blocked");
        credit.used = 11;
        assert!(credit.report_blocked());
    }
}
