//! Propagation delay of the path, and the time of its next measurement (draft "BBR.min_rtt: Estimated Minimum Round-Trip Time", "ProbeRTT
//! Logic").

use units::{Duration, Instant};

/// MinRTTFilterLen: how long a minimum holds.
const FILTER: Duration = Duration::from_secs(10);

/// Owns the two minima: the estimate, and the one that schedules ProbeRTT.
#[derive(Clone, Debug)]
pub(super) struct MinRtt {
    /// Nanoseconds; `u64::MAX` before the first sample.
    min: u64,
    stamp: Instant,
    /// ProbeRTTInterval: the time without a new minimum after which one is looked for.
    interval: Duration,
    probe_min: u64,
    probe_stamp: Instant,
    expired: bool,
}

impl MinRtt {
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        Self { min: u64::MAX, stamp: now, interval, probe_min: u64::MAX, probe_stamp: now, expired: false }
    }

    /// Takes in an acknowledgement, with or without a sample.
    #[inline]
    pub(super) fn update(&mut self, now: Instant, rtt: Option<u64>) {
        self.expired = now > self.probe_stamp + self.interval;
        if let Some(rtt) = rtt
            && (rtt < self.probe_min || self.expired)
        {
            self.probe_min = rtt;
            self.probe_stamp = now;
        }
        if self.probe_min < self.min || now > self.stamp + FILTER {
            self.min = self.probe_min;
            self.stamp = self.probe_stamp;
        }
    }

    /// Returns whether the minimum is so old that a new one has to be probed for.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.expired
    }

    /// Records a probe for the minimum: the next one is an interval away.
    pub(super) fn probed(&mut self, now: Instant) {
        self.probe_stamp = now;
    }

    /// The estimate in nanoseconds; `None` before the first sample.
    #[inline]
    pub(super) fn get(&self) -> Option<u64> {
        (self.min != u64::MAX).then_some(self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_minimum_expires_and_a_probe_is_due_before() {
        let mut rtt = MinRtt::new(at(0), Duration::from_secs(5));
        assert_eq!(rtt.get(), None);
        rtt.update(at(100), Some(50));
        for millis in (200..=5100).step_by(100) {
            rtt.update(at(millis), Some(60));
            assert!(!rtt.is_due());
        }
        rtt.update(at(5101), Some(60));
        assert!(rtt.is_due());
        assert_eq!(rtt.get(), Some(50), "the estimate still holds");
        rtt.update(at(10_000), Some(60));
        assert_eq!(rtt.get(), Some(50));
        rtt.update(at(10_101), Some(70));
        assert_eq!(rtt.get(), Some(60), "the minimum of the last interval takes its place");
    }
}
