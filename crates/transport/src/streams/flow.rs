//! Flow control: send credit, receive credit, and tuning of the receive windows.
//!
//! The window starts small, because it is memory that every peer can claim. It grows to a multiple of the data that the application
//! consumes within a round trip. The window of the connection grows to four times that amount: twice, because credit is sent when half of
//! the window is used and takes half of a round trip; and twice again, because a sender in slow start doubles from one round trip to the
//! next. Growth is decided when data arrives, by the time of arrival. So an application that reads rarely, and then much, does not make it
//! grow.

use units::{Duration, Instant};

/// Factor of the connection's window over what is consumed in a round trip.
pub(super) const CONNECTION_AHEAD: u64 = 4;

/// Factor of a stream's window. Larger, because the share of each stream differs from one round trip to the next, and the
/// connection's window bounds the memory.
pub(super) const STREAM_AHEAD: u64 = 8;

/// Time of the last batch of datagrams, and the RTT as far as known: the inputs of window tuning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: Instant,
    /// Zero until it is known, when tuning begins.
    pub(super) rtt: Duration,
}

/// Credit that the peer gave us, for a stream or for the connection.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// The limit the peer announced, an absolute offset.
    pub(super) limit: u64,
    /// Offset up to which the limit is used.
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

    /// Sets a new limit; returns false if it changes nothing.
    pub(super) fn raise(&mut self, limit: u64) -> bool {
        // RFC 9000 §4.1 MUST-2: a MAX_DATA or MAX_STREAM_DATA frame that does not increase the limit is ignored.
        // RFC 9000 §13.3 MUST-2: frames that are out of date do no harm
        let raised = limit > self.limit;
        self.limit = self.limit.max(limit);
        raised
    }

    /// Returns whether to send a BLOCKED frame for this limit: once per limit.
    pub(super) fn report_blocked(&mut self) -> bool {
        let fresh = self.available() == 0 && self.blocked_at != Some(self.limit);
        if fresh {
            self.blocked_at = Some(self.limit);
        }
        fresh
    }

    /// Forgets the limit and the sent bytes: the server has rejected early data, and all of it is sent again.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

/// Credit that we give the peer, for a stream or for the connection.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// Limit that the peer knows, or at least was sent.
    announced: u64,
    /// Bytes that the application has taken, or that were thrown away for it.
    consumed: u64,
    /// Distance of the limit from the consumed bytes.
    window: u64,
    max: u64,
    /// Factor of the window over what is consumed in a round trip.
    ahead: u64,
    /// Start of the running round trip, and the bytes consumed by then.
    round: Instant,
    consumed_at_round: u64,
    /// The time of the last observation.
    observed: Instant,
}

impl ReceiveWindow {
    pub(super) fn new(window: u64, max: u64, ahead: u64, now: Instant) -> Self {
        Self {
            announced: window,
            consumed: 0,
            window,
            max: max.max(window),
            ahead,
            round: now,
            consumed_at_round: 0,
            observed: now,
        }
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

    /// Distance of the limit from the consumed bytes.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Notes that `bytes` more were consumed; true when new credit should be announced.
    #[inline]
    pub(super) fn consume(&mut self, bytes: u64) -> bool {
        self.consumed += bytes;
        self.is_due()
    }

    /// RFC 9000 §4.2 MUST NOT-1: credit early enough that the sender is not blocked, rarely enough that the frames
    /// cost nothing: when half of the window is used.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.next_limit() - self.announced >= self.window.div_ceil(2)
    }

    fn next_limit(&self) -> u64 {
        // The limit never moves back, also when the window is smaller than what was announced for the start.
        (self.consumed + self.window).min(wire::varint::MAX).max(self.announced)
    }

    /// Returns whether any credit could be given.
    pub(super) fn has_unannounced(&self) -> bool {
        self.next_limit() > self.announced
    }

    /// Widens the window when the application consumes at a rate that it could limit. To be called when data arrives. True
    /// when new credit should be announced because of it.
    #[inline]
    pub(super) fn observe(&mut self, clock: &Clock) -> bool {
        clock.now != self.observed && self.measure(clock)
    }

    fn measure(&mut self, clock: &Clock) -> bool {
        self.observed = clock.now;
        let elapsed = clock.now.saturating_since(self.round);
        let mut consumed = self.consumed - self.consumed_at_round;
        if elapsed > clock.rtt {
            let scaled = u128::from(consumed) * clock.rtt.as_nanos() / elapsed.as_nanos();
            consumed = u64::try_from(scaled).unwrap_or(u64::MAX);
            self.round = clock.now;
            self.consumed_at_round = self.consumed;
        }
        let needed = consumed.saturating_mul(self.ahead);
        if needed <= self.window || self.window == self.max || clock.rtt.is_zero() {
            return false;
        }
        // At least doubling bounds the number of announcements that growth causes.
        self.window = needed.max(self.window.saturating_mul(2)).min(self.max);
        self.is_due()
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

    // RFC 9000 §4.2 MUST NOT-1
    #[test]
    fn credit_is_given_at_half_of_the_window() {
        let mut w = ReceiveWindow::new(1000, 1000, CONNECTION_AHEAD, Instant::ZERO);
        assert!(!w.consume(499));
        assert!(w.has_unannounced());
        assert!(w.consume(1));
        assert_eq!(w.limit(), 1000);
        assert_eq!(w.announce(), 1500);
        assert!(!w.consume(499));
        assert!(w.consume(1));
    }

    #[test]
    fn the_window_is_four_times_what_is_consumed_in_a_round_trip() {
        let mut w = ReceiveWindow::new(1000, 10_000, CONNECTION_AHEAD, Instant::ZERO);
        w.consume(250);
        assert!(!w.observe(&clock(50, 100)));
        w.consume(50);
        assert!(!w.observe(&clock(50, 100)), "looked at once for each instant");
        assert!(w.observe(&clock(60, 100)), "300 within one round trip need more than 1000");
        assert_eq!((w.window(), w.announce()), (2000, 2300));
        // Over more than a round trip the rate counts: 900 in 300 ms are 300 in 100 ms.
        w.consume(600);
        assert!(!w.observe(&clock(300, 100)));
        assert_eq!(w.window(), 2000);
        w.consume(2000);
        assert!(w.observe(&clock(310, 100)));
        assert_eq!(w.window(), 8000);
        w.consume(8000);
        assert!(w.observe(&clock(320, 100)));
        assert_eq!(w.window(), 10_000, "no further than the maximum");
    }

    /// The whole window is read at once, every ten round trips, whereupon it is filled again within one.
    #[test]
    fn a_reader_that_comes_seldom_does_not_widen_the_window() {
        let mut w = ReceiveWindow::new(1000, 100_000, CONNECTION_AHEAD, Instant::ZERO);
        for period in 1..20 {
            w.consume(1000);
            w.announce();
            for step in 0..10 {
                w.observe(&clock(period * 1000 + step * 10, 100));
            }
        }
        assert_eq!(w.window(), 1000);
    }

    #[test]
    fn nothing_is_tuned_before_the_round_trip_is_known() {
        let mut w = ReceiveWindow::new(1000, 8000, CONNECTION_AHEAD, Instant::ZERO);
        w.consume(1000);
        assert!(!w.observe(&clock(0, 0)) && !w.observe(&clock(1, 0)));
        assert_eq!(w.window(), 1000);
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
