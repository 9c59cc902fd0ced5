//! Queue that stands full, seen from where samples of the RTT lie within their own range.
//!
//! A flow that begins behind a full queue takes its delay for that of the path, and one behind a short buffer never sees much delay:
//! the RTT exceeds its minimum by little, and losses look random. But samples behind a full queue lie at the top of their range, since a
//! queue cannot become longer and falls now and then; behind an empty one they lie at the bottom, since nothing can be faster. Symmetric
//! jitter lies in the middle.

use units::Duration;

/// Samples after which the older half of the range is forgotten.
const SPAN: u32 = 256;
/// Samples over which the position is averaged, and before which it is unknown.
const MEAN: u32 = 64;
/// The range has to be this share of the delay that counts as a queue: within less, the sender's own packets move the RTT.
const RANGE_SHARE: f64 = 0.25;
/// Position from which on a queue stands …
const HIGH: f64 = 0.6;
/// … and below which it is empty, if the latest sample lies in the lower half.
const LOW: f64 = 0.25;
const MIDDLE: f64 = 0.5;

/// Smallest and largest sample, in seconds.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    fn of(sample: f64) -> Self {
        Self { low: sample, high: sample }
    }

    fn with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// Owns the recent range of the RTT on one path.
#[derive(Clone, Debug, Default)]
pub(super) struct StandingQueue {
    /// The newest samples and the [`SPAN`] before; `None` before the first.
    ranges: Option<[Range; 2]>,
    /// Samples in the newest range.
    newest: u32,
    /// Samples that the mean is of, up to [`MEAN`].
    averaged: u32,
    /// In seconds, as is the latest sample.
    mean: f64,
    latest: f64,
}

impl StandingQueue {
    /// Takes an RTT sample, without delay that is not the forward path's.
    pub(super) fn on_rtt(&mut self, sample: Duration) {
        let sample = sample.as_secs_f64();
        let one = Range::of(sample);
        let [newest, before] = self.ranges.unwrap_or([one; 2]);
        self.ranges = Some(if self.newest == SPAN { [one, newest] } else { [newest.with(one), before] });
        self.newest = if self.newest == SPAN { 1 } else { self.newest + 1 };
        self.averaged = (self.averaged + 1).min(MEAN);
        self.latest = sample;
        self.mean += (sample - self.mean) / f64::from(self.averaged);
    }

    /// Positions of the mean and of the latest sample within the range, from 0 to 1. `None` where they say nothing: after few samples, or
    /// within a range that is short beside the delay that counts as a queue.
    fn positions(&self, threshold: Duration) -> Option<(f64, f64)> {
        let [newest, before] = self.ranges?;
        let range = newest.with(before);
        let width = range.high - range.low;
        let told = self.averaged == MEAN && width > 0.0 && width >= threshold.as_secs_f64() * RANGE_SHARE;
        told.then(|| ((self.mean - range.low) / width, (self.latest - range.low) / width))
    }

    /// True while a queue stands.
    pub(super) fn stands(&self, threshold: Duration) -> bool {
        self.positions(threshold).is_some_and(|(mean, _)| mean > HIGH)
    }

    /// True while the queue is known to be empty: most of the time, and now. A flow that probes for bandwidth behind a short buffer has an empty
    /// queue most of the time, and its losses in the moments when it is full.
    pub(super) fn is_empty(&self, threshold: Duration) -> bool {
        self.positions(threshold).is_some_and(|(mean, latest)| mean < LOW && latest < MIDDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_millis(4);

    /// Samples of 40 ms and the given numbers of tenths of a millisecond, again and again.
    fn after(tenths: &[u64], samples: usize) -> StandingQueue {
        let mut queue = StandingQueue::default();
        for tenth in tenths.iter().cycle().take(samples) {
            queue.on_rtt(Duration::from_micros(40_000 + tenth * 100));
        }
        queue
    }

    #[test]
    fn a_full_queue_lies_at_the_top_of_its_range() {
        let queue = after(&[30, 29, 30, 28, 30, 10, 30, 29], 200);
        assert!(queue.stands(THRESHOLD) && !queue.is_empty(THRESHOLD));
    }

    #[test]
    fn an_empty_queue_lies_at_the_bottom() {
        let queue = after(&[0, 1, 0, 2, 0, 20, 0, 1], 200);
        assert!(!queue.stands(THRESHOLD) && queue.is_empty(THRESHOLD));
    }

    #[test]
    fn a_queue_that_fills_now_and_then_is_empty_between() {
        let samples = [0, 0, 1, 0, 0, 0, 1, 0, 0, 30];
        assert!(after(&samples, 209).is_empty(THRESHOLD));
        assert!(!after(&samples, 210).is_empty(THRESHOLD), "it is full now");
    }

    #[test]
    fn symmetric_jitter_is_neither() {
        let queue = after(&[0, 5, 10, 15, 20, 25, 30], 200);
        assert!(!queue.stands(THRESHOLD) && !queue.is_empty(THRESHOLD));
    }

    #[test]
    fn few_samples_and_a_short_range_say_nothing() {
        let few = after(&[30, 10, 30, 30], 63);
        assert!(!few.stands(THRESHOLD) && !few.is_empty(THRESHOLD));
        let short = after(&[9, 1, 9, 9], 200);
        assert!(!short.stands(THRESHOLD), "0.8 ms of 1");
        assert!(short.stands(THRESHOLD / 2), "0.8 ms of 0.5");
        let constant = after(&[9], 200);
        assert!(!constant.stands(Duration::ZERO) && !constant.is_empty(Duration::ZERO));
    }

    /// A route that became longer is no queue for longer than the range remembers.
    #[test]
    fn the_range_forgets() {
        let mut queue = after(&[0, 1, 0, 2], 300);
        for tenth in [30, 31, 30, 30, 30, 50].iter().cycle().take(200) {
            queue.on_rtt(Duration::from_micros(40_000 + tenth * 100));
        }
        assert!(queue.stands(THRESHOLD), "the old range is remembered");
        for tenth in [30, 31, 30, 30, 30, 50].iter().cycle().take(400) {
            queue.on_rtt(Duration::from_micros(40_000 + tenth * 100));
        }
        assert!(queue.is_empty(THRESHOLD), "and forgotten");
    }
}
