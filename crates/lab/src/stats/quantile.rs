//! Percentiles of many samples, and the number of samples that they need.

use super::distribution::to_f64;

/// Samples needed before a p99 is quoted (DESIGN: a p99 from fewer than 300 samples describes one or two packets).
pub const P99_SAMPLES_MIN: usize = 300;
/// Samples needed before a p95 is quoted: as many beyond it as [`P99_SAMPLES_MIN`] leaves beyond the p99.
pub const P95_SAMPLES_MIN: usize = 60;

/// A percentile that is not quoted because there are too few samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs {needed} samples, there are {have}")]
pub struct TooFewSamples {
    /// Samples the percentile needs.
    pub needed: usize,
    /// Samples there are.
    pub have: usize,
}

/// Samples that a quantile needs so that about three lie beyond it; the median needs one.
pub fn samples_needed(quantile: f64) -> usize {
    if quantile >= 0.999 {
        3_000
    } else if quantile >= 0.99 {
        P99_SAMPLES_MIN
    } else if quantile >= 0.95 {
        P95_SAMPLES_MIN
    } else {
        1
    }
}

/// The nearest-rank quantile of ascending samples: the smallest sample that at least the share `quantile` does not
/// exceed. It is always a value that was seen.
///
/// # Errors
/// When there are fewer samples than [`samples_needed`].
pub fn quantile<T: Copy>(ascending: &[T], quantile: f64) -> Result<T, TooFewSamples> {
    let (needed, have) = (samples_needed(quantile), ascending.len());
    if have < needed {
        return Err(TooFewSamples { needed, have });
    }
    Ok(ascending[rank(have, quantile)])
}

/// Index of the nearest-rank quantile among `count` ascending samples, `count` at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the product lies within 0..=count")]
fn rank(count: usize, quantile: f64) -> usize {
    // The tiny term keeps 0.95 × 20 = 19.000000000000004 at rank 19.
    let rank = (quantile * to_f64(count) - 1e-9).ceil();
    (rank as usize).clamp(1, count) - 1
}

/// The median of ascending values: the middle one, or half-way between the middle two. `None` without values.
///
/// Half-way between the two infinities is 0.
pub fn median(ascending: &[f64]) -> Option<f64> {
    let n = ascending.len();
    if n == 0 {
        return None;
    }
    let (low, high) = (ascending[(n - 1) / 2], ascending[n / 2]);
    Some(if low == f64::NEG_INFINITY && high == f64::INFINITY { 0.0 } else { f64::midpoint(low, high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let samples: Vec<u32> = (1..=1000).collect();
        assert_eq!(quantile(&samples, 0.0), Ok(1));
        assert_eq!(quantile(&samples, 0.5), Ok(500));
        assert_eq!(quantile(&samples, 0.95), Ok(950));
        assert_eq!(quantile(&samples, 0.99), Ok(990));
        assert_eq!(quantile(&samples, 1.0), Err(TooFewSamples { needed: 3_000, have: 1_000 }));
        assert_eq!(quantile(&samples[..1], 0.5), Ok(1));
    }

    #[test]
    fn p99_is_refused_below_300() {
        let samples = vec![1.0; 300];
        assert!(quantile(&samples, 0.99).is_ok());
        let refused = quantile(&samples[..299], 0.99).unwrap_err();
        assert_eq!(refused.to_string(), "needs 300 samples, there are 299");
        assert!(quantile::<f64>(&[], 0.5).is_err());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, f64::INFINITY]), Some(f64::INFINITY));
        assert_eq!(median(&[f64::NEG_INFINITY, f64::INFINITY]), Some(0.0));
    }
}
