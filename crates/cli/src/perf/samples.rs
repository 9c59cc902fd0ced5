//! RTT samples of a connection in bounded memory, and statistics of a set of samples.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lab::stats::quantile::quantile;
use serde::Serialize;
use tiderace::{
    transport::observe::{Observer, RecoveryMetrics},
    units::Instant,
};

use crate::meter::histogram::Histogram;

/// Samples kept at most.
const LIMIT: usize = 4096;

/// Every n-th of the samples that were seen, n being the smallest power of two with which they fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Samples {
    seen: u64,
    /// n: one of so many samples is kept.
    stride: u64,
    nanos: Vec<u64>,
}

impl Samples {
    pub(super) const fn new() -> Self {
        Self { seen: 0, stride: 1, nanos: Vec::new() }
    }

    pub(super) fn record(&mut self, sample: Duration) {
        if self.seen.is_multiple_of(self.stride) {
            if self.nanos.len() == LIMIT {
                self.thin(self.stride * 2);
            }
            if self.seen.is_multiple_of(self.stride) {
                self.nanos.push(u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        self.seen += 1;
    }

    /// Keeps only so many that one of `stride` is left.
    fn thin(&mut self, stride: u64) {
        let step = usize::try_from(stride / self.stride).unwrap_or(usize::MAX).max(1);
        let mut place = 0;
        self.nanos.retain(|_| {
            place += 1;
            (place - 1) % step == 0
        });
        self.stride = self.stride.max(stride);
    }

    /// Adds what another connection has seen, each connection with the weight of its samples.
    pub(super) fn merge(&mut self, mut other: Self) {
        let stride = self.stride.max(other.stride);
        self.thin(stride);
        other.thin(stride);
        self.nanos.append(&mut other.nanos);
        self.seen = self.seen.saturating_add(other.seen);
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.seen, self.stride].iter().chain(&self.nanos) {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// Reads what [`Self::encode`] wrote. `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let mut numbers = numbers.iter().map(|number| u64::from_be_bytes(*number));
        let (seen, stride) = (numbers.next()?, numbers.next()?);
        let nanos: Vec<u64> = numbers.collect();
        (stride.is_power_of_two() && nanos.len() <= LIMIT).then_some(Self { seen, stride, nanos })
    }

    /// Number of samples that were recorded.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// The samples with each number of nanoseconds changed by `change`, which keeps their order.
    pub(super) fn map(&self, change: impl Fn(u64) -> u64) -> Self {
        Self { nanos: self.nanos.iter().map(|nanos| change(*nanos)).collect(), ..self.clone() }
    }

    /// Summary of the samples; `None` without any.
    pub(super) fn summary(&self) -> Option<Summary> {
        let mut ascending = self.nanos.clone();
        ascending.sort_unstable();
        let at = |share| quantile(&ascending, share).ok().map(millis);
        Some(Summary {
            samples: self.seen,
            min_ms: millis(*ascending.first()?),
            p50_ms: at(0.5)?,
            p95_ms: at(0.95),
            p99_ms: at(0.99),
        })
    }
}

/// A set of times. Percentiles are left out when there are too few samples for them: p95 needs 60, p99 needs 300.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) samples: u64,
    pub(super) min_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a figure for a report")]
fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// Observations of a connection.
#[derive(Debug)]
struct Seen {
    samples: Samples,
    histogram: Histogram,
    state: Option<&'static str>,
}

/// Collects the RTT samples of a connection, and the state of its congestion controller. Clones share what they have collected.
#[derive(Clone, Debug)]
pub(super) struct RttSamples(Arc<Mutex<Seen>>);

impl RttSamples {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen { samples: Samples::new(), histogram: Histogram::default(), state: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of samples so far.
    pub(super) fn seen(&self) -> u64 {
        self.lock().samples.seen
    }

    pub(super) fn get(&self) -> Samples {
        self.lock().samples.clone()
    }

    /// All samples by their size.
    pub(super) fn histogram(&self) -> Histogram {
        self.lock().histogram
    }

    /// State of the congestion controller, once it has been told.
    pub(super) fn state(&self) -> Option<&'static str> {
        self.lock().state
    }
}

impl Observer for RttSamples {
    fn rtt_sample(&mut self, _now: Instant, _latest: Duration, adjusted: Duration) {
        let mut seen = self.lock();
        seen.samples.record(adjusted);
        seen.histogram.record(adjusted);
    }

    fn metrics(&mut self, _now: Instant, metrics: &RecoveryMetrics) {
        self.lock().state = Some(metrics.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(millis: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::new();
        millis.into_iter().for_each(|ms| samples.record(Duration::from_millis(ms)));
        samples
    }

    #[test]
    fn few_samples_give_no_tail() {
        assert_eq!(Samples::new().summary(), None);
        let of = |count| samples(1..=count).summary().unwrap();
        assert_eq!((of(59).p95_ms, of(60).p95_ms), (None, Some(57.0)));
        assert_eq!((of(299).p99_ms, of(300).p99_ms), (None, Some(297.0)));
        assert_eq!((of(1).min_ms, of(1).p50_ms, of(1).samples), (1.0, 1.0, 1));
    }

    #[test]
    fn memory_is_bounded_and_the_distribution_kept() {
        let many = samples((0..1_000_000).map(|i| i % 1_000));
        assert!(many.nanos.len() <= LIMIT && many.nanos.len() > LIMIT / 4, "{}", many.nanos.len());
        let summary = many.summary().unwrap();
        assert_eq!(summary.samples, 1_000_000);
        assert!((summary.p50_ms - 500.0).abs() < 20.0, "{summary:?}");
        assert!((summary.p99_ms.unwrap() - 990.0).abs() < 20.0, "{summary:?}");
    }

    #[test]
    fn kept_samples_are_every_nth() {
        let all = samples(0..10_000);
        assert_eq!(all.stride, 4);
        let expected: Vec<u64> = (0..10_000).step_by(4).map(|ms| ms * 1_000_000).collect();
        assert_eq!(all.nanos, expected);
    }

    #[test]
    fn merged_sets_weigh_what_they_saw() {
        // Three quarters of the samples are 1 ms: so is the median, although fewer of them were kept.
        let mut merged = samples(std::iter::repeat_n(1, 9_000));
        merged.merge(samples(std::iter::repeat_n(100, 3_000)));
        assert_eq!((merged.seen, merged.stride), (12_000, 4));
        let summary = merged.summary().unwrap();
        assert_eq!((summary.p50_ms, summary.p95_ms), (1.0, Some(100.0)));
    }

    #[test]
    fn bytes_and_back() {
        let mut bytes = Vec::new();
        let original = samples(0..5_000);
        original.encode(&mut bytes);
        assert_eq!(Samples::decode(&bytes), Some(original));
        assert_eq!(Samples::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Samples::decode(&[0; 16]), None);
        assert_eq!(Samples::decode(&[]), None);
    }
}
