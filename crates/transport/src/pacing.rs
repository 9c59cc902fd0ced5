//! Pacing: a token bucket that fills at the pacing rate (RFC 9002 §7.7).
//!
//! Packets are sent in bursts of a quantum (about a millisecond of the rate, within one GSO send), because a timer per packet would cost
//! more than the packet. The bucket holds a quantum plus the tokens of one tick of an ordinary timer, so a late wake-up does not lower the
//! rate. If even the largest burst takes less time than a timer can resolve, nothing is paced.

use units::{Bitrate, Duration, Instant};

/// The time that one quantum takes, in milliseconds.
const QUANTUM_MILLIS: u64 = 1;

/// Delay of a timer that does not lower the rate, in milliseconds.
const TICK_MILLIS: u64 = 1;

/// A timer resolves 100 us; bursts that take less are not worth one.
const RESOLUTIONS_PER_SECOND: u64 = 10_000;

/// Segments in one GSO send at most.
const MAX_SEGMENTS: u64 = 64;

/// Datagrams that may leave at once after idling (RFC 9002 §7.7 SHOULD-2: the initial window).
const IDLE_BURST: u64 = 10;

/// No path is paced slower.
const SLOWEST: Bitrate = Bitrate::from_bps(800);

/// Bits times nanoseconds that make a byte: the rate is bits per second.
const BYTE_NANOS: u64 = 8_000_000_000;

/// Owns the credit of one path.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    mtu: u64,
    /// `None` without pacing.
    rate: Option<Bitrate>,
    quantum: u64,
    capacity: u64,
    /// Bytes that may leave; below zero after packets that may not wait.
    credit: i64,
    /// Remainder of the last refill, in bits times nanoseconds: less than a byte.
    remainder: u64,
    refilled_at: Instant,
}

impl Pacer {
    /// A pacer that lets everything pass until it is given a rate.
    pub(crate) fn new(mtu: u16, now: Instant) -> Self {
        let mtu = u64::from(mtu);
        let capacity = IDLE_BURST * mtu;
        Self {
            mtu,
            rate: None,
            quantum: MAX_SEGMENTS * mtu,
            capacity,
            credit: signed(capacity),
            remainder: 0,
            refilled_at: now,
        }
    }

    /// Sets the rate; `None` ends pacing. `max_quantum` bounds the burst, beside the limits of GSO, also after idling;
    /// `u64::MAX` leaves both to the pacer.
    pub(crate) fn set_rate(&mut self, now: Instant, rate: Option<Bitrate>, max_quantum: u64) {
        self.refill(now);
        let max_burst = MAX_SEGMENTS * self.mtu;
        // A rate of zero would never let the packet out that measures a better one.
        let rate = rate.map(|rate| rate.max(SLOWEST));
        // In the time that a timer resolves, at most the largest burst leaves; without a division.
        self.rate = rate.filter(|rate| rate.as_bps() <= max_burst * 8 * RESOLUTIONS_PER_SECOND);
        if let Some(rate) = self.rate {
            let per_milli = rate.as_bps() / 8 / 1000;
            self.quantum = (per_milli * QUANTUM_MILLIS).min(max_quantum).clamp(2 * self.mtu, max_burst);
            // A controller that says how large bursts may be has reasons; others get the burst that the standard permits.
            let idle_burst = if max_quantum == u64::MAX { IDLE_BURST * self.mtu } else { 0 };
            self.capacity = (self.quantum + per_milli * TICK_MILLIS).max(idle_burst);
            self.credit = self.credit.min(signed(self.capacity));
        }
    }

    /// The size of the datagrams changed.
    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = u64::from(mtu);
    }

    /// Bytes that may leave at `now`, of `want` that are ready: all, a burst of at least a quantum, or none.
    #[inline]
    // RFC 9002 §7.7 SHOULD-1: sending is paced
    // RFC 9002 §7.7 MUST-1: bursts are paced or bounded
    pub(crate) fn budget(&mut self, now: Instant, want: u64) -> u64 {
        if self.rate.is_none() {
            return u64::MAX;
        }
        self.refill(now);
        let credit = u64::try_from(self.credit).unwrap_or(0);
        if credit >= want.min(self.quantum) { credit } else { 0 }
    }

    /// Time at which [`Pacer::budget`] permits a part of `want`; `None` if it does at `now`.
    pub(crate) fn next_release(&mut self, now: Instant, want: u64) -> Option<Instant> {
        let rate = self.rate?;
        self.refill(now);
        let missing =
            u64::try_from(signed(want.min(self.quantum)) - self.credit).ok().filter(|&missing| missing > 0)?;
        let bits = u128::from(missing) * u128::from(BYTE_NANOS) - u128::from(self.remainder);
        let nanos = bits.div_ceil(u128::from(rate.as_bps()));
        Some(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Subtracts the bytes of a sent packet. Packets that may not wait (probes) overdraw the bucket.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: u16) {
        if self.rate.is_some() {
            self.credit = (self.credit - i64::from(bytes)).max(-signed(self.capacity));
        }
    }

    /// Pacing rate; `None` while nothing is paced.
    pub(crate) fn rate(&self) -> Option<Bitrate> {
        self.rate
    }

    /// Adds what has flowed in since the last time.
    #[inline]
    fn refill(&mut self, now: Instant) {
        let elapsed = now.nanos_since(self.refilled_at);
        if elapsed == 0 {
            return;
        }
        self.refilled_at = now;
        let Some(rate) = self.rate else {
            self.credit = signed(self.capacity);
            return;
        };
        let bits = u128::from(rate.as_bps()) * u128::from(elapsed) + u128::from(self.remainder);
        // Nearly always the short division does.
        let (bytes, remainder) = match u64::try_from(bits) {
            Ok(bits) => (bits / BYTE_NANOS, bits % BYTE_NANOS),
            Err(_) => (u64::try_from(bits / u128::from(BYTE_NANOS)).unwrap_or(u64::MAX), 0),
        };
        let room = u64::try_from(signed(self.capacity) - self.credit).unwrap_or(0);
        if bytes >= room {
            self.credit = signed(self.capacity);
            self.remainder = 0;
        } else {
            self.credit += signed(bytes);
            self.remainder = remainder;
        }
    }
}

/// Amounts of data are far below 2^63.
#[inline]
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MTU: u16 = 1452;

    fn pacer(rate: Bitrate) -> Pacer {
        let mut pacer = Pacer::new(MTU, Instant::ZERO);
        pacer.set_rate(Instant::ZERO, Some(rate), u64::MAX);
        pacer
    }

    /// Sends as much as the pacer lets it for `span`; returns the bytes after the initial burst.
    fn drive(pacer: &mut Pacer, span: Duration, mut lateness: impl FnMut() -> Duration) -> (u64, u64) {
        let (mut now, end) = (Instant::ZERO, Instant::ZERO + span);
        let (mut total, mut wakeups) = (0, 0);
        while now < end {
            while pacer.budget(now, u64::MAX) > 0 {
                let burst = pacer.budget(now, u64::MAX);
                for _ in 0..burst / u64::from(MTU) {
                    pacer.on_sent(MTU);
                    total += u64::from(MTU);
                }
                // The rest of the burst is less than a packet; it stays as credit.
                if burst < u64::from(MTU) {
                    break;
                }
            }
            wakeups += 1;
            now = pacer.next_release(now, u64::MAX).expect("the credit is used up") + lateness();
        }
        (total, wakeups)
    }

    proptest! {
        #[test]
        fn long_run_rate_is_exact(bps in 500_000u64..2_000_000_000, seed in 0u64..1000) {
            let rate = Bitrate::from_bps(bps);
            let mut pacer = pacer(rate);
            prop_assume!(pacer.rate().is_some());
            let span = Duration::from_secs(20);
            let mut state = seed;
            let (total, _) = drive(&mut pacer, span, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Duration::from_nanos((state >> 33) % 900_000)
            });
            let expected = rate.in_time(span).as_bytes();
            let slack = expected / 1000 + pacer.capacity + pacer.quantum;
            prop_assert!(total.abs_diff(expected) <= slack, "{} instead of {}", total, expected);
        }
    }

    #[test]
    fn long_run_rate_without_lateness() {
        for mbps in [1, 7, 20, 100, 333, 1000] {
            let rate = Bitrate::from_mbps(mbps);
            let mut pacer = pacer(rate);
            let span = Duration::from_secs(200);
            let (total, _) = drive(&mut pacer, span, || Duration::ZERO);
            let expected = rate.in_time(span).as_bytes();
            assert!(total.abs_diff(expected) * 1000 <= expected, "{mbps}: {total} instead of {expected}");
        }
    }

    // RFC 9002 §7.7 MUST-1
    #[test]
    fn bursts_fit_gso_and_timers() {
        // A millisecond at 100 Mbit/s is 12.5 kB.
        assert_eq!(pacer(Bitrate::from_mbps(100)).quantum, 12_500);
        assert_eq!(pacer(Bitrate::from_mbps(1)).quantum, 2 * u64::from(MTU));
        assert_eq!(pacer(Bitrate::from_mbps(2000)).quantum, 64 * u64::from(MTU));
        let (_, wakeups) = drive(&mut pacer(Bitrate::from_mbps(100)), Duration::from_secs(1), || Duration::ZERO);
        assert!(wakeups <= 1100, "{wakeups} timers in a second");
    }

    #[test]
    fn what_a_timer_cannot_resolve_is_not_paced() {
        let mut fast = pacer(Bitrate::from_mbps(10_000));
        assert_eq!(
            (fast.budget(Instant::ZERO, u64::MAX), fast.next_release(Instant::ZERO, u64::MAX)),
            (u64::MAX, None)
        );
    }

    // RFC 9002 §7.7 SHOULD-2
    #[test]
    fn the_initial_window_leaves_at_once() {
        let mut pacer = pacer(Bitrate::from_mbps(1));
        assert_eq!(pacer.budget(Instant::ZERO, u64::MAX), 10 * u64::from(MTU));
        for _ in 0..10 {
            pacer.on_sent(MTU);
        }
        assert_eq!(pacer.budget(Instant::ZERO, u64::MAX), 0);
        // One packet that is all there is need not wait for a whole quantum.
        let one = pacer.next_release(Instant::ZERO, u64::from(MTU)).unwrap();
        assert_eq!(one, Instant::from_micros(11_616));
        assert_eq!(pacer.budget(one, u64::from(MTU)), u64::from(MTU));
        assert_eq!(pacer.budget(one, u64::MAX), 0);
        assert_eq!(pacer.next_release(one, u64::MAX), Some(Instant::from_micros(2 * 11_616)));
    }

    #[test]
    fn probes_overdraw() {
        let mut pacer = pacer(Bitrate::from_mbps(1));
        for _ in 0..11 {
            pacer.on_sent(MTU);
        }
        assert_eq!(pacer.next_release(Instant::ZERO, u64::from(MTU)), Some(Instant::from_micros(2 * 11_616)));
    }
}
