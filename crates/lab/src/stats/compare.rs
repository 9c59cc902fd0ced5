//! Is one contender better than another? Paired by seed, because both met the same path.

use serde::Serialize;
use units::Seed;

use super::{
    distribution::{normal_quantile, to_f64},
    interval::{Interval, RUNS_MIN, difference_interval, mean, mean_interval},
};

/// Ratios closer to 1 than this make no difference in practice: 3 %.
pub const MARGIN: f64 = 0.03;

/// Which way a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better: goodput, fairness.
    Higher,
    /// Less is better: delay, loss.
    Lower,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Better, and by an amount that the interval separates from none.
    Better,
    /// Worse, likewise.
    Worse,
    /// The whole interval lies within the margin: no difference that matters.
    Equivalent,
    /// The runs do not decide.
    Undecided,
}

/// The result of comparing a contender with a baseline on the same seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Geometric mean of contender / baseline, with its interval.
    pub ratio: Interval,
    /// Number of pairs.
    pub pairs: usize,
    /// What follows.
    pub verdict: Verdict,
    /// About how many pairs would decide with 80 % probability, if this effect and this spread are the true ones.
    /// Given when the verdict is [`Verdict::Undecided`].
    pub pairs_needed: Option<usize>,
}

/// Compares pair by pair: `pairs` holds (contender, baseline) of one seed each.
///
/// `None` when a value is not positive, for then there is no ratio, or when there is no pair.
/// The interval is a bootstrap of the mean log-ratio (see [`mean_interval`]); with fewer than [`RUNS_MIN`] pairs the
/// verdict is always undecided.
pub fn compare(pairs: &[(f64, f64)], better: Better, margin: f64, seed: Seed) -> Option<Comparison> {
    if pairs.is_empty() || pairs.iter().any(|&(a, b)| !(a > 0.0 && b > 0.0 && a.is_finite() && b.is_finite())) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|&(a, b)| (a / b).ln()).collect();
    let log = mean_interval(&logs, 0.95, seed).unwrap_or(Interval {
        value: logs[0],
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
        coverage: 0.95,
    });
    let verdict = if pairs.len() < RUNS_MIN { Verdict::Undecided } else { verdict(log, better, margin.ln_1p()) };
    let pairs_needed = (verdict == Verdict::Undecided).then(|| pairs_needed(&logs, margin.ln_1p()));
    let ratio = Interval { value: log.value.exp(), low: log.low.exp(), high: log.high.exp(), coverage: log.coverage };
    Some(Comparison { ratio, pairs: pairs.len(), verdict, pairs_needed })
}

/// Compares two sets of runs that share nothing: `contender` and `baseline` hold a value per run.
///
/// `None` as for [`compare`]. The interval is a bootstrap of the difference of the two mean logarithms.
pub fn compare_unpaired(
    contender: &[f64],
    baseline: &[f64],
    better: Better,
    margin: f64,
    seed: Seed,
) -> Option<Comparison> {
    let logs = |values: &[f64]| -> Option<Vec<f64>> {
        values.iter().map(|&value| (value > 0.0 && value.is_finite()).then(|| value.ln())).collect()
    };
    let (a, b) = (logs(contender)?, logs(baseline)?);
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let pairs = a.len().min(b.len());
    let log = difference_interval(&a, &b, 0.95, seed).unwrap_or(Interval {
        value: mean(&a) - mean(&b),
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
        coverage: 0.95,
    });
    let verdict = if pairs < RUNS_MIN { Verdict::Undecided } else { verdict(log, better, margin.ln_1p()) };
    let pairs_needed = (verdict == Verdict::Undecided).then(|| {
        // Two spreads add up where pairs have one.
        let both: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        pairs_needed(&both, margin.ln_1p())
    });
    let ratio = Interval { value: log.value.exp(), low: log.low.exp(), high: log.high.exp(), coverage: log.coverage };
    Some(Comparison { ratio, pairs, verdict, pairs_needed })
}

/// What follows from an interval of ratios that was made elsewhere, with this many blocks behind it.
pub fn judge(ratio: Interval, better: Better, margin: f64, blocks: usize) -> Verdict {
    if blocks < RUNS_MIN {
        return Verdict::Undecided;
    }
    let log = Interval { value: ratio.value.ln(), low: ratio.low.ln(), high: ratio.high.ln(), ..ratio };
    verdict(log, better, margin.ln_1p())
}

/// The verdict from the interval of the log-ratio. An effect that is certain but within the margin is no difference
/// that matters, so equivalence is asked first.
fn verdict(log: Interval, better: Better, margin: f64) -> Verdict {
    if log.low > -margin && log.high < margin {
        return Verdict::Equivalent;
    }
    match (better, log.low > 0.0, log.high < 0.0) {
        (Better::Higher, true, _) | (Better::Lower, _, true) => Verdict::Better,
        (Better::Higher, _, true) | (Better::Lower, true, _) => Verdict::Worse,
        _ => Verdict::Undecided,
    }
}

/// Pairs that would decide with 80 % probability: enough to separate the seen effect from zero, or to enclose it
/// within the margin, whichever comes first.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before the cast")]
fn pairs_needed(logs: &[f64], margin: f64) -> usize {
    let effect = mean(logs).abs();
    let degrees = to_f64(logs.len().saturating_sub(1).max(1));
    let variance = logs.iter().map(|x| (x - mean(logs)).powi(2)).sum::<f64>() / degrees;
    let quantiles = normal_quantile(0.975) + normal_quantile(0.8);
    let distance = effect.max(margin - effect);
    let needed = quantiles * quantiles * variance / (distance * distance);
    // The formula may say fewer than there are (they did not decide): at least one more.
    (needed.ceil().min(1e6) as usize).max(RUNS_MIN).max(logs.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::interval::Resampler;

    fn normal(resampler: &mut Resampler) -> f64 {
        (0..12).map(|_| to_f64(resampler.index(1 << 30)) / to_f64(1 << 30)).sum::<f64>() - 6.0
    }

    /// Pairs that share a path (spread 0.2) and differ by `effect` and noise of their own.
    fn pairs(resampler: &mut Resampler, n: usize, effect: f64, noise: f64) -> Vec<(f64, f64)> {
        (0..n)
            .map(|_| {
                let path = 5.0 * (0.2 * normal(resampler)).exp();
                (path * (effect + noise * normal(resampler)).exp(), path)
            })
            .collect()
    }

    #[test]
    fn a_against_a_finds_nothing() {
        let mut resampler = Resampler::new(Seed::from_number(3), "aa");
        let (mut covered, mut called) = (0, 0);
        for round in 0..400 {
            let result =
                compare(&pairs(&mut resampler, 10, 0.0, 0.1), Better::Higher, MARGIN, Seed::from_number(round))
                    .unwrap();
            covered += u32::from(result.ratio.low <= 1.0 && 1.0 <= result.ratio.high);
            called += u32::from(matches!(result.verdict, Verdict::Better | Verdict::Worse));
        }
        assert!(covered >= 372, "the interval covers 1 in {covered} of 400: 93 % are asked");
        assert!(called <= 28, "{called} of 400 A/A comparisons claim a difference");
    }

    #[test]
    fn unpaired_sets_that_are_alike_are_rarely_told_apart() {
        let mut resampler = Resampler::new(Seed::from_number(5), "aa");
        let mut covered = 0;
        for round in 0..400 {
            let mut set = || (0..30).map(|_| (0.2 * normal(&mut resampler)).exp()).collect::<Vec<f64>>();
            let (one, other) = (set(), set());
            let result = compare_unpaired(&one, &other, Better::Higher, MARGIN, Seed::from_number(round)).unwrap();
            covered += u32::from(result.ratio.low <= 1.0 && 1.0 <= result.ratio.high);
        }
        assert!((368..=394).contains(&covered), "{covered} of 400");
        let twice: Vec<f64> = (1..=10).map(|x| f64::from(x) * 2.0).collect();
        let once: Vec<f64> = (1..=10).map(|x| f64::from(x) / 100.0 + 1.0).collect();
        let result = compare_unpaired(&twice, &once, Better::Lower, MARGIN, Seed::from_number(1)).unwrap();
        assert_eq!(result.verdict, Verdict::Worse);
        assert_eq!(compare_unpaired(&[1.0], &[0.0], Better::Lower, MARGIN, Seed::from_number(1)), None);
    }

    #[test]
    fn verdicts() {
        let mut resampler = Resampler::new(Seed::from_number(4), "verdicts");
        let mut say = |n, effect, noise, better| {
            compare(&pairs(&mut resampler, n, effect, noise), better, MARGIN, Seed::from_number(1)).unwrap()
        };
        assert_eq!(say(10, 0.3, 0.05, Better::Higher).verdict, Verdict::Better);
        assert_eq!(say(10, 0.3, 0.05, Better::Lower).verdict, Verdict::Worse);
        assert_eq!(say(10, -0.3, 0.05, Better::Lower).verdict, Verdict::Better);
        assert_eq!(say(10, -0.3, 0.05, Better::Higher).verdict, Verdict::Worse);
        assert_eq!(say(20, 0.0, 0.01, Better::Higher).verdict, Verdict::Equivalent);
        let undecided = say(8, 0.05, 0.3, Better::Higher);
        assert_eq!(undecided.verdict, Verdict::Undecided);
        assert!(undecided.pairs_needed.unwrap() > 8);
        let few = say(3, 1.0, 0.01, Better::Higher);
        assert_eq!((few.verdict, few.pairs_needed), (Verdict::Undecided, Some(RUNS_MIN)));
    }

    #[test]
    fn known_sample_size() {
        // Spread 0.1 and effect 0.1 in the logarithm: (1.96 + 0.84)² = 7.85 pairs.
        let logs = [0.0, 0.2, 0.1 - 0.1 / 2f64.sqrt(), 0.1 + 0.1 / 2f64.sqrt(), 0.1];
        let spread = (logs.iter().map(|x| (x - 0.1f64).powi(2)).sum::<f64>() / 4.0).sqrt();
        assert!((spread - 0.0866).abs() < 1e-3);
        assert_eq!(pairs_needed(&logs, MARGIN.ln_1p()), 6, "7.85 × 0.75 = 5.9");
    }

    #[test]
    fn the_predicted_number_decides() {
        let mut resampler = Resampler::new(Seed::from_number(5), "power");
        // Effect 0.1, spread 0.15: (2.8 × 1.5)² = 17.7 pairs for 80 %.
        let decided = (0..300)
            .filter(|&round| {
                let sample = pairs(&mut resampler, 18, 0.1, 0.15);
                compare(&sample, Better::Higher, MARGIN, Seed::from_number(round)).unwrap().verdict == Verdict::Better
            })
            .count();
        assert!((210..=265).contains(&decided), "{decided} of 300");
    }

    #[test]
    fn no_ratio_without_positive_values() {
        for pairs in [&[][..], &[(0.0, 1.0)], &[(1.0, 0.0)], &[(f64::NAN, 1.0)], &[(1.0, f64::INFINITY)]] {
            assert_eq!(compare(pairs, Better::Higher, MARGIN, Seed::from_number(1)), None);
        }
        let one = compare(&[(2.0, 1.0)], Better::Higher, MARGIN, Seed::from_number(1)).unwrap();
        assert_eq!(one.verdict, Verdict::Undecided);
        assert_eq!(one.ratio.value, 2.0);
    }
}
