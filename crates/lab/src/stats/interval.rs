//! Intervals for one contender over its seeds.

use serde::Serialize;
use units::{RandomStream, Seed};

use super::{
    distribution::{normal_cdf, student_quantile, to_f64},
    quantile::median,
};

/// Runs below which no 95 % interval of a median exists: with five, even the whole range covers it only in 93.75 %.
pub const RUNS_MIN: usize = 6;

/// A value over the seeds with the interval that covers it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability with which an interval made this way covers the true value.
    pub coverage: f64,
}

/// The median of `values` and its order-statistic interval: two of the values themselves, chosen by rank so that they
/// enclose the true median with at least the probability `confidence`, whatever the distribution.
///
/// `None` when there are too few values for such an interval (for 95 %: fewer than [`RUNS_MIN`]).
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let mut ascending = values.to_vec();
    ascending.sort_by(f64::total_cmp);
    let (rank, coverage) = median_ranks(ascending.len(), confidence)?;
    let value = median(&ascending)?;
    Some(Interval { value, low: ascending[rank - 1], high: ascending[ascending.len() - rank], coverage })
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

/// Random numbers for resampling.
pub(crate) struct Resampler(RandomStream);

impl Resampler {
    /// A resampler for one purpose.
    pub(crate) fn new(seed: Seed, purpose: &str) -> Self {
        Self(seed.stream(purpose))
    }

    /// An index below `bound`.
    #[expect(clippy::cast_possible_truncation, reason = "the product shifted right by 64 is below bound")]
    pub(crate) fn index(&mut self, bound: usize) -> usize {
        use rand_core::RngCore;
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Replaces `sample` by as many draws from `values`, with replacement.
    pub(crate) fn draw(&mut self, values: &[f64], sample: &mut [f64]) {
        for slot in sample {
            *slot = values[self.index(values.len())];
        }
    }
}

/// Resamples behind each bootstrap interval: enough that the ends move by less than a twentieth of its width.
pub const RESAMPLES: usize = 4_000;

/// The mean of `values` and its bootstrap percentile interval.
///
/// The plain percentile interval is too narrow for few values (ten normal ones: 90 % instead of 95 %), because the
/// resamples have the spread √((n−1)/n)·s and follow the normal instead of Student's distribution. Therefore the
/// percentiles are moved outwards by exactly that factor, so that for normal values it agrees with the t interval.
///
/// `None` for fewer than two values.
pub fn mean_interval(values: &[f64], confidence: f64, seed: Seed) -> Option<Interval> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mut resampler = Resampler::new(seed, "bootstrap");
    let mut sample = vec![0.0; n];
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resampler.draw(values, &mut sample);
            mean(&sample)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    let widened = normal_cdf((to_f64(n) / to_f64(n - 1)).sqrt() * student_quantile(tail, n - 1));
    Some(Interval {
        value: mean(values),
        low: at(&means, widened),
        high: at(&means, 1.0 - widened),
        coverage: confidence,
    })
}

/// The difference of the means of two independent sets and its bootstrap percentile interval, widened as in [`mean_interval`]
/// for the smaller set. `None` when a set has fewer than two values.
pub fn difference_interval(a: &[f64], b: &[f64], confidence: f64, seed: Seed) -> Option<Interval> {
    let n = a.len().min(b.len());
    if n < 2 {
        return None;
    }
    let mut resampler = Resampler::new(seed, "bootstrap of two");
    let (mut one, mut other) = (vec![0.0; a.len()], vec![0.0; b.len()]);
    let mut differences: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resampler.draw(a, &mut one);
            resampler.draw(b, &mut other);
            mean(&one) - mean(&other)
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    // Welch: with equal spreads the difference has the degrees of freedom of both sets.
    let degrees = a.len() + b.len() - 2;
    let tail = (1.0 - confidence) / 2.0;
    let widened = normal_cdf((to_f64(n) / to_f64(n - 1)).sqrt() * student_quantile(tail, degrees));
    Some(Interval {
        value: mean(a) - mean(b),
        low: at(&differences, widened),
        high: at(&differences, 1.0 - widened),
        coverage: confidence,
    })
}

/// The value at the share `share` of ascending values, interpolated between neighbours.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the position lies within the slice")]
fn at(ascending: &[f64], share: f64) -> f64 {
    let position = share.clamp(0.0, 1.0) * to_f64(ascending.len() - 1);
    let below = position.floor() as usize;
    let above = (below + 1).min(ascending.len() - 1);
    ascending[below] + (ascending[above] - ascending[below]) * position.fract()
}

/// The arithmetic mean; 0 without values.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / to_f64(values.len().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of twelve uniform numbers minus six: as good as normal for this purpose.
    pub(super) fn normal(resampler: &mut Resampler) -> f64 {
        (0..12).map(|_| to_f64(resampler.index(1 << 30)) / to_f64(1 << 30)).sum::<f64>() - 6.0
    }

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
    fn ends_are_values_that_were_seen() {
        let values = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0];
        let interval = median_interval(&values, 0.95).unwrap();
        assert_eq!((interval.value, interval.low, interval.high), (5.5, 2.0, 9.0));
    }

    #[test]
    fn median_interval_covers_a_skewed_median() {
        let mut resampler = Resampler::new(Seed::from_number(7), "coverage");
        let mut covered = 0;
        for _ in 0..2_000 {
            let values: Vec<f64> = (0..10).map(|_| normal(&mut resampler).exp()).collect();
            let interval = median_interval(&values, 0.95).unwrap();
            covered += u32::from(interval.low <= 1.0 && 1.0 <= interval.high);
        }
        // Exactly 97.85 % is expected; three standard deviations of the count are 1 %.
        assert!((1_937..=1_977).contains(&covered), "{covered} of 2000");
    }

    #[test]
    fn mean_interval_covers_the_mean() {
        for n in [6, 10, 30] {
            let mut resampler = Resampler::new(Seed::from_number(8), "coverage");
            let mut covered = 0;
            for round in 0..500 {
                let values: Vec<f64> = (0..n).map(|_| normal(&mut resampler)).collect();
                let interval = mean_interval(&values, 0.95, Seed::from_number(round)).unwrap();
                covered += u32::from(interval.low <= 0.0 && 0.0 <= interval.high);
            }
            assert!((460..=492).contains(&covered), "n = {n}: {covered} of 500");
        }
    }

    #[test]
    fn agrees_with_the_t_interval() {
        let values = [4.1, 5.3, 4.8, 5.9, 5.0, 4.4, 5.6, 4.9, 5.2, 4.7];
        let spread = (values.iter().map(|x| (x - mean(&values)).powi(2)).sum::<f64>() / 9.0).sqrt();
        let half = 2.262_157 * spread / 10f64.sqrt();
        let interval = mean_interval(&values, 0.95, Seed::from_number(1)).unwrap();
        assert!((interval.high - interval.low - 2.0 * half).abs() < 0.12 * half);
    }

    #[test]
    fn same_seed_same_interval() {
        let values = [1.0, 2.0, 4.0, 8.0];
        let again = |seed| mean_interval(&values, 0.95, Seed::from_number(seed)).unwrap();
        assert_eq!(again(1), again(1));
        assert!(mean_interval(&values[..1], 0.95, Seed::from_number(1)).is_none());
    }
}
