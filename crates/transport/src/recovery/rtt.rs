//! RTT of a path: latest, smoothed, variation and minimum (RFC 9002 §5).

use units::{Duration, Instant};

/// Timer granularity (RFC 9002 §6.1.2 RECOMMENDED-2): no time threshold and no probe timeout is shorter.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// The RTT that is assumed before the first sample (RFC 9002 §6.2.2 SHOULD-1).
pub(crate) const INITIAL_RTT: Duration = Duration::from_millis(333);

/// Factor below the minimum at which a sample shows that the estimates were never those of this path.
const RESTART_BELOW: u64 = 4;

/// Owns the estimates of one path, as nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    latest: u64,
    adjusted: u64,
    smoothed: u64,
    variation: u64,
    min: u64,
    first_sample_at: Option<Instant>,
}

impl Default for Rtt {
    fn default() -> Self {
        Self::new(INITIAL_RTT)
    }
}

impl Rtt {
    /// Estimates before the first sample, from an assumed RTT: [`INITIAL_RTT`], or that of an earlier connection or a path challenge over
    /// the same path.
    pub(crate) fn new(initial: Duration) -> Self {
        let initial = nanos(initial);
        // RFC 9002 §5.3: the variation starts at half of the assumed RTT, so that the first PTO is three times the RTT.
        Self { latest: 0, adjusted: 0, smoothed: initial, variation: initial / 2, min: 0, first_sample_at: None }
    }

    /// Adds a sample. `ack_delay` is the delay reported by the peer, limited by the caller (RFC 9002 §5.3).
    pub(crate) fn sample(&mut self, now: Instant, latest: Duration, ack_delay: Duration) {
        let (latest, ack_delay) = (nanos(latest), nanos(ack_delay));
        self.latest = latest;
        if self.first_sample_at.is_none() {
            // RFC 9002 §5.2 MUST-1: the first sample sets everything.
            self.first_sample_at = Some(now);
            self.restart(latest);
            return;
        }
        // During a handshake over a bad network the first sample can be seconds too long: a server that has used up what it
        // may send to an unvalidated address, or a client whose keys are late, hears of a packet long after it arrived. The
        // mean would need tens of samples to forget it, and meanwhile paces one packet a second and probes after a minute.
        // RFC 9002 §5.3 has no rule for this; it restarts the estimates for a path that has not been measured, as here.
        if latest.saturating_mul(RESTART_BELOW) <= self.min {
            self.restart(latest);
            return;
        }
        // RFC 9002 §5.2 MUST-2: the minimum does not take off the delay of the acknowledgement, which the peer could
        // invent.
        self.min = self.min.min(latest);
        // RFC 9002 §5.3 MUST NOT-1: the delay is taken off only when the result is not below the minimum.
        let adjusted = if latest >= self.min.saturating_add(ack_delay) { latest - ack_delay } else { latest };
        self.adjusted = adjusted;
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
    }

    /// Forgets everything but this sample.
    fn restart(&mut self, latest: u64) {
        self.min = latest;
        self.adjusted = latest;
        self.smoothed = latest;
        self.variation = latest / 2;
    }

    /// RFC 9002 §5.2 SHOULD-1, SHOULD NOT-1: after persistent congestion the minimum starts again from the newest
    /// sample.
    pub(crate) fn restart_min(&mut self) {
        self.min = self.latest;
    }

    /// The newest sample; zero before the first.
    #[inline]
    pub(crate) fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// Newest sample without the peer's acknowledgement delay, as used for the smoothed RTT. Zero before the first.
    #[inline]
    pub(crate) fn adjusted(&self) -> Duration {
        Duration::from_nanos(self.adjusted)
    }

    /// The smoothed RTT; zero before the first sample.
    // Windows grow by what arrives within a round trip; before the first sample nothing is known.
    pub(crate) fn sampled(&self) -> Duration {
        if self.min().is_some() { self.smoothed() } else { Duration::ZERO }
    }

    /// The smoothed RTT; the assumed one before the first sample.
    #[inline]
    pub(crate) fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed)
    }

    /// [`Rtt::smoothed`] in nanoseconds.
    #[inline]
    pub(crate) fn smoothed_nanos(&self) -> u64 {
        self.smoothed
    }

    /// The mean deviation.
    #[inline]
    pub(crate) fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// The smallest sample; `None` before the first.
    #[inline]
    pub(crate) fn min(&self) -> Option<Duration> {
        self.first_sample_at.map(|_| Duration::from_nanos(self.min))
    }

    /// Time at which the first sample was taken.
    #[inline]
    pub(crate) fn first_sample_at(&self) -> Option<Instant> {
        self.first_sample_at
    }

    /// The probe timeout without backoff and without the peer's delay (RFC 9002 §6.2.1).
    #[inline]
    pub(crate) fn probe_timeout(&self) -> Duration {
        // RFC 9002 §6.2.1 MUST-1: a probe timeout is at least the granularity of timers
        Duration::from_nanos(self.smoothed + (self.variation * 4).max(nanos(GRANULARITY)))
    }

    /// The RTT that loss by time is measured against (RFC 9002 §6.1.2), in nanoseconds.
    #[inline]
    pub(crate) fn conservative_nanos(&self) -> u64 {
        self.smoothed.max(self.latest)
    }
}

/// A duration in nanoseconds, at most twelve years, so that no computation from it can overflow.
#[inline]
fn nanos(span: Duration) -> u64 {
    const LIMIT: u64 = 12 * 366 * 86_400 * 1_000_000_000;
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).min(LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    // RFC 9002 §6.2.2 SHOULD-1
    #[test]
    fn first_probe_timeout_is_about_a_second() {
        let rtt = Rtt::default();
        assert_eq!(rtt.probe_timeout(), INITIAL_RTT + INITIAL_RTT / 2 * 4);
        assert_eq!(rtt.min(), None);
    }

    // RFC 9002 §5.2 MUST-1
    #[test]
    fn first_sample_sets_everything() {
        let mut rtt = Rtt::default();
        rtt.sample(at(5), 40 * MS, 30 * MS);
        assert_eq!((rtt.latest(), rtt.smoothed(), rtt.variation()), (40 * MS, 40 * MS, 20 * MS));
        assert_eq!((rtt.min(), rtt.first_sample_at()), (Some(40 * MS), Some(at(5))));
    }

    // RFC 9002 §5.2 MUST-2; RFC 9002 §5.3 MUST NOT-1
    #[test]
    fn delay_counts_only_when_plausible() {
        let mut rtt = Rtt::default();
        rtt.sample(at(0), 40 * MS, Duration::ZERO);
        // 48 - 8 = 40 is not below the minimum: taken off.
        rtt.sample(at(1), 48 * MS, 8 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation()), (40 * MS, 15 * MS));
        // 48 - 9 would be below the minimum: the sample counts as it is.
        rtt.sample(at(2), 48 * MS, 9 * MS);
        assert_eq!(rtt.smoothed(), 41 * MS);
        assert_eq!(rtt.min(), Some(40 * MS));
    }

    #[test]
    fn a_first_sample_that_was_far_too_long_is_forgotten() {
        let mut rtt = Rtt::default();
        rtt.sample(at(0), 16_000 * MS, Duration::ZERO);
        rtt.sample(at(1), 110 * MS, 3 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation(), rtt.min()), (110 * MS, 55 * MS, Some(110 * MS)));
        // A path that only became somewhat faster keeps its history.
        rtt.sample(at(2), 30 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.min()), (100 * MS, Some(30 * MS)));
    }

    // RFC 9002 §5.2 SHOULD-1
    #[test]
    fn minimum_restarts() {
        let mut rtt = Rtt::default();
        rtt.sample(at(0), 10 * MS, Duration::ZERO);
        rtt.sample(at(1), 90 * MS, Duration::ZERO);
        rtt.restart_min();
        assert_eq!(rtt.min(), Some(90 * MS));
    }

    #[test]
    fn hostile_delay_does_not_overflow() {
        let mut rtt = Rtt::default();
        rtt.sample(at(0), 10 * MS, Duration::MAX);
        rtt.sample(at(1), 10 * MS, Duration::MAX);
        assert_eq!(rtt.smoothed(), 10 * MS);
    }

    // RFC 9002 §6.2.1 MUST-1; RFC 9002 §6.1.2 RECOMMENDED-2
    #[test]
    fn a_probe_timeout_is_at_least_a_millisecond_longer_than_the_round_trip() {
        let mut rtt = Rtt::default();
        for millis in 0..200 {
            rtt.sample(at(millis), 10 * MS, Duration::ZERO);
        }
        assert!(rtt.variation() < Duration::from_micros(10));
        assert_eq!(rtt.probe_timeout(), rtt.smoothed() + MS);
    }
}
