//! A distribution in bounded memory: a histogram whose buckets grow with the value.

use units::Duration;

/// Buckets per power of two, as a power of two: a bucket is at most 1/128 of its values wide.
const PRECISION: u32 = 7;
const PER_OCTAVE: u64 = 1 << PRECISION;

/// Histogram with buckets that are at most 0.8 % wide, so that a quantile is within 0.4 % of the true one (and exact below 256). Takes at
/// most 58 KiB for any number of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Histogram {
    /// An empty histogram.
    pub const fn new() -> Self {
        Self { buckets: Vec::new(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let index = index(value);
        if index >= self.buckets.len() {
            self.grow(index);
        }
        self.buckets[index] += 1;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Counts one span of time, in nanoseconds.
    #[inline]
    pub fn record_duration(&mut self, span: Duration) {
        self.record(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.buckets.resize(index + 1, 0);
    }

    /// Number of values that were counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value, exactly.
    pub const fn min(&self) -> Option<u64> {
        if self.count == 0 { None } else { Some(self.min) }
    }

    /// The largest value, exactly.
    pub const fn max(&self) -> Option<u64> {
        if self.count == 0 { None } else { Some(self.max) }
    }

    /// The mean, exactly.
    #[expect(clippy::cast_precision_loss, reason = "a mean for a report")]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value below or at which a share `q` (0 to 1) of all values lies: the smallest recorded value whose rank is at
    /// least `q · count`, as the middle of its bucket.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                return Some(middle(index).clamp(self.min, self.max));
            }
        }
        None
    }

    /// [`Self::quantile`] of spans recorded with [`Self::record_duration`].
    pub fn quantile_duration(&self, q: f64) -> Option<Duration> {
        self.quantile(q).map(Duration::from_nanos)
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
    }
}

/// The bucket of a value: values below 256 have one each, then 128 for each power of two.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most 58 · 128")]
const fn index(value: u64) -> usize {
    if value < 2 * PER_OCTAVE {
        return value as usize;
    }
    let shift = value.ilog2() - PRECISION;
    (shift as u64 * PER_OCTAVE + (value >> shift)) as usize
}

/// The middle of a bucket.
const fn middle(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * PER_OCTAVE {
        return index;
    }
    let shift = index / PER_OCTAVE - 1;
    let low = (index - shift * PER_OCTAVE) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_cover_everything_in_order() {
        let mut last = 0;
        for bit in 0..64 {
            for value in [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, (1 << bit) | ((1 << bit) >> 1)] {
                assert!(index(value) < 58 * 128, "{value}");
            }
            assert!(index(1 << bit) > last || bit == 0);
            last = index(1 << bit);
        }
        assert!(index(u64::MAX) < 58 * 128);
    }

    #[test]
    fn an_empty_one_has_no_figures() {
        let empty = Histogram::new();
        assert_eq!((empty.min(), empty.max(), empty.mean(), empty.quantile(0.5)), (None, None, None, None));
    }

    proptest! {
        #[test]
        fn quantiles_are_close_to_the_sorted_list(
            mut values in prop::collection::vec(prop_oneof![0u64..1000, 0u64..10_000_000_000, any::<u64>()], 1..200),
            q in 0.0f64..=1.0,
        ) {
            let mut halves = [Histogram::new(), Histogram::new()];
            for (n, &value) in values.iter().enumerate() {
                halves[n % 2].record(value);
            }
            let [mut histogram, other] = halves;
            histogram.merge(&other);
            values.sort_unstable();
            prop_assert_eq!(histogram.min(), Some(values[0]));
            prop_assert_eq!(histogram.max(), values.last().copied());
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let (found, exact) = (histogram.quantile(q).unwrap(), values[rank - 1]);
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 / 250.0, "{found} {exact}");
        }
    }
}
