//! Intervals over the seeds, by ranks: two of the values, chosen so that they enclose the median with a known probability whatever the
//! distribution.
//!
//! The target is the median of runs, for every figure. The mean has no interval with reliable coverage for few runs: if one run in ten
//! fails, half of all sets of six contain no such run, and nothing in them shows it. Ranks also place results without a number: a value
//! that never occurred is longer than any other, and an unknown one may lie anywhere.

use rand_core::RngCore;
use serde::{Serialize, Serializer};
use units::{RandomStream, Seed};

use super::{
    distribution::{normal_cdf, to_f64},
    quantile::median,
};

/// Runs below which no 95 % interval of a median exists: with five, even the whole range covers it only in 93.75 %.
pub const RUNS_MIN: usize = 6;

/// Runs to take: an interval of ten leaves out the most extreme run at either end, that of six has to hold them.
pub const RUNS_RECOMMENDED: usize = 10;

/// Confidence of the intervals in reports.
pub const CONFIDENCE: f64 = 0.95;

/// A value over the seeds with the interval that covers it. In JSON an infinite end is the text `"inf"` or `"-inf"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    #[serde(serialize_with = "extended")]
    pub value: f64,
    /// Lower end.
    #[serde(serialize_with = "extended")]
    pub low: f64,
    /// Upper end.
    #[serde(serialize_with = "extended")]
    pub high: f64,
    /// Probability with which an interval made this way covers the true value.
    pub coverage: f64,
}

impl Interval {
    /// An estimate without an interval, because there are too few runs.
    pub const fn unbounded(value: f64) -> Self {
        Self { value, low: f64::NEG_INFINITY, high: f64::INFINITY, coverage: 1.0 }
    }

    /// The same of `change` of the value, which must not reverse the order.
    pub(crate) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self { value: change(self.value), low: change(self.low), high: change(self.high), coverage: self.coverage }
    }

    /// Returns whether `value` lies in it.
    pub fn covers(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// Writes a number, and infinity as text: JSON has no infinite numbers.
///
/// # Errors
/// Those of the serializer.
pub fn extended<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_infinite() {
        serializer.serialize_str(if *value > 0.0 { "inf" } else { "-inf" })
    } else {
        serializer.serialize_f64(*value)
    }
}

/// [`extended`] for a value that may not be there.
///
/// # Errors
/// Those of the serializer.
pub fn extended_option<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => extended(value, serializer),
        None => serializer.serialize_none(),
    }
}

/// Median of `values` and its order-statistic interval, which encloses the true median with at least the probability `confidence`, whatever
/// the distribution. Values may be infinite.
///
/// `None` when there are too few values for such an interval (for 95 %: fewer than [`RUNS_MIN`]).
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let values: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
    median_interval_with_unknown(&values, confidence)
}

/// Median of a figure over its runs, and its interval if there are enough of them. `None` if a run's value is unknown: leaving it out would
/// select the runs by their result.
pub fn centre(values: &[Option<f64>]) -> Option<(f64, Option<Interval>)> {
    let mut ascending = values.iter().copied().collect::<Option<Vec<f64>>>()?;
    ascending.sort_by(f64::total_cmp);
    Some((median(&ascending)?, median_interval(&ascending, CONFIDENCE)))
}

/// [`median_interval`] of values of which some are unknown: the interval encloses what it would be with any values in their place.
pub fn median_interval_with_unknown(values: &[Option<f64>], confidence: f64) -> Option<Interval> {
    let mut ascending: Vec<f64> = values.iter().copied().flatten().collect();
    ascending.sort_by(f64::total_cmp);
    let unknown = values.len() - ascending.len();
    let (rank, coverage) = median_ranks(values.len(), confidence)?;
    let value = median(&ascending)?;
    // The unknown ones lie below all others for the lower end, and above them for the upper one.
    let low = (rank - 1).checked_sub(unknown).map_or(f64::NEG_INFINITY, |index| ascending[index]);
    let high = ascending.get(values.len() - rank).copied().unwrap_or(f64::INFINITY);
    Some(Interval { value, low, high, coverage })
}

/// The rank `k` (from 1) such that the k-th smallest and k-th largest of `count` values enclose the median with at
/// least `confidence`, and the exact coverage.
pub fn median_ranks(count: usize, confidence: f64) -> Option<(usize, f64)> {
    // The number of values below the median is binomial(count, ½). In logarithms, because ½^count underflows.
    let mut log_term = -to_f64(count) * core::f64::consts::LN_2;
    let (mut below, mut best) = (0.0, None);
    for k in 1..=count / 2 {
        below += log_term.exp();
        if below > (1.0 - confidence) / 2.0 {
            break;
        }
        best = Some((k, 1.0 - 2.0 * below));
        log_term += (to_f64(count - k + 1) / to_f64(k)).ln();
    }
    best
}

/// The rank `k` (from 1) such that the k-th smallest and k-th largest of all differences between `first` and `second` values
/// enclose the shift between two distributions of one shape (Mann and Whitney; Hodges and Lehmann), and the coverage.
pub fn shift_ranks(first: usize, second: usize, confidence: f64) -> Option<(usize, f64)> {
    let pairs = first * second;
    let tail = (1.0 - confidence) / 2.0;
    let mut best = None;
    if first + second > EXACT {
        // Normal approximation with the correction for continuity.
        let deviation = (to_f64(pairs) * to_f64(first + second + 1) / 12.0).sqrt();
        let at_most = |u: usize| normal_cdf((to_f64(u) + 0.5 - to_f64(pairs) / 2.0) / deviation);
        let (mut low, mut high) = (0, pairs / 2);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if at_most(middle - 1) <= tail { low = middle } else { high = middle - 1 }
        }
        return (low > 0).then(|| (low, 1.0 - 2.0 * at_most(low - 1)));
    }
    let counts = mann_whitney(first, second);
    let all: f64 = counts.iter().sum();
    let mut below = 0.0;
    for k in 1..=pairs / 2 {
        below += counts[k - 1] / all;
        if below > tail {
            break;
        }
        best = Some((k, 1.0 - 2.0 * below));
    }
    best
}

/// Values up to which the distribution of Mann and Whitney's U is counted: its numbers are exact in 53 bits.
const EXACT: usize = 50;

/// In how many orders of `first` and `second` values U is 0, 1, 2, …: the coefficients of a Gaussian binomial.
fn mann_whitney(first: usize, second: usize) -> Vec<f64> {
    let size = first * second + 1;
    let mut counts = vec![0.0; size];
    counts[0] = 1.0;
    for i in 1..=first {
        for u in (second + i..size).rev() {
            counts[u] -= counts[u - second - i];
        }
        for u in i..size {
            counts[u] += counts[u - i];
        }
    }
    counts
}

/// Random numbers for simulations of statistics.
pub(crate) struct Resampler(RandomStream);

impl Resampler {
    /// The numbers for one purpose.
    pub(crate) fn new(seed: Seed, purpose: &str) -> Self {
        Self(seed.stream(purpose))
    }

    /// An index below `bound`.
    #[expect(clippy::cast_possible_truncation, reason = "the product shifted right by 64 is below bound")]
    pub(crate) fn index(&mut self, bound: usize) -> usize {
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_the_literature() {
        for (count, rank, coverage) in [(6, 1, 0.969), (10, 2, 0.979), (20, 6, 0.959), (30, 10, 0.957)] {
            let (k, c) = median_ranks(count, 0.95).unwrap();
            assert_eq!(k, rank, "{count}");
            assert!((c - coverage).abs() < 1e-3, "{count}: {c}");
        }
        assert_eq!(median_ranks(5, 0.95), None);
        assert_eq!(median_ranks(0, 0.95), None);
        assert!(median_ranks(10_000, 0.95).unwrap().0 > 4_800, "no underflow with many runs");
    }

    #[test]
    fn ranks_of_mann_and_whitney() {
        // Critical values of U at 5 % on both sides, from the tables: 5 of 36, 23 of 100, 127 of 400; k is one more.
        for (first, second, critical) in [(6, 6, 5), (6, 10, 11), (10, 10, 23), (20, 20, 127)] {
            let (k, coverage) = shift_ranks(first, second, 0.95).unwrap();
            assert_eq!(k, critical + 1, "{first} and {second}");
            assert!((0.95..0.97).contains(&coverage), "{coverage}");
        }
        assert_eq!(mann_whitney(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(shift_ranks(2, 3, 0.95), None);
        // Where counting ends and the approximation begins, there is no step.
        let (exact, approximate) = (shift_ranks(25, 25, 0.95).unwrap(), shift_ranks(25, 26, 0.95).unwrap());
        assert!((to_f64(exact.0) / 625.0 - to_f64(approximate.0) / 650.0).abs() < 0.004, "{exact:?} {approximate:?}");
    }

    #[test]
    fn ends_are_values_that_were_seen() {
        let values = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0];
        let interval = median_interval(&values, 0.95).unwrap();
        assert_eq!((interval.value, interval.low, interval.high), (5.5, 2.0, 9.0));
    }

    #[test]
    fn what_never_came_and_what_is_unknown_have_ranks() {
        let mut values: Vec<Option<f64>> = (1..=10).map(|value| Some(f64::from(value))).collect();
        values[9] = Some(f64::INFINITY);
        let ends = |values: &[Option<f64>]| {
            let interval = median_interval_with_unknown(values, 0.95).unwrap();
            (interval.low, interval.high)
        };
        assert_eq!(ends(&values), (2.0, 9.0));
        values[8] = Some(f64::INFINITY);
        assert_eq!(ends(&values), (2.0, f64::INFINITY));
        // An unknown value may be the smallest or the largest.
        let mut values: Vec<Option<f64>> = (1..=10).map(|value| Some(f64::from(value))).collect();
        values[4] = None;
        assert_eq!(ends(&values), (1.0, 10.0));
        values[5] = None;
        assert_eq!(ends(&values), (f64::NEG_INFINITY, f64::INFINITY));
        assert_eq!(median_interval_with_unknown(&[None; 6], 0.95), None);
    }

    #[test]
    fn json_has_words_for_infinity() {
        let json = serde_json::to_string(&Interval::unbounded(1.5)).unwrap();
        assert_eq!(json, r#"{"value":1.5,"low":"-inf","high":"inf","coverage":1.0}"#);
    }
}
