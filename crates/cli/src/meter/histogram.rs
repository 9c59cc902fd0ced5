//! RTT samples by size, as Prometheus counts them.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
pub(crate) const BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Counts of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Samples in each bucket alone; the last are those beyond all bounds.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    pub(crate) fn record(&mut self, sample: Duration) {
        let seconds = sample.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[place] += 1;
        self.sum += seconds;
    }

    /// Adds the samples of another.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, others)| *own += others);
        self.sum += other.sum;
    }

    /// Bounds with the samples that do not exceed them.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut below = 0;
        BOUNDS.iter().zip(self.counts).map(move |(bound, count)| {
            below += count;
            (*bound, below)
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the samples in seconds.
    pub(crate) const fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fall_into_their_buckets() {
        let mut histogram = Histogram::default();
        for millis in [1, 3, 5, 60_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let cumulative: Vec<(f64, u64)> = histogram.cumulative().collect();
        assert_eq!(cumulative[..4], [(0.001, 1), (0.002, 1), (0.005, 3), (0.01, 3)]);
        assert_eq!((cumulative[11].1, histogram.count()), (3, 4));
        assert!((histogram.sum() - 60.009).abs() < 1e-9);
    }
}
