//! Comparison of two independent sets of clusters, such as clients with many requests each.
//!
//! Requests of one client resemble each other, so clients are resampled and not requests (cluster bootstrap). The interval is the estimate
//! with the bootstrap's standard error and a quantile of the normal distribution, which serves every confidence: a report with many
//! comparisons asks for more than 95 % of each.

use units::Seed;

use super::{
    compare::{Comparison, Rule},
    distribution::{normal_cdf, normal_quantile, to_f64},
    interval::{Interval, Resampler},
    quantile::samples_needed,
};

/// Resamples of each side.
const RESAMPLES: usize = 400;
/// Clusters of a side below which a standard error says little.
pub const CLUSTERS_MIN: usize = 30;
/// Clusters that a quantile needs with a sample beyond it: with fewer, a few clusters are the result.
pub const BEYOND_MIN: usize = 10;

/// Reason why there is no comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooFew {
    /// Clusters with a sample.
    #[error("{have} clients in an arm, {CLUSTERS_MIN} at least")]
    Clusters {
        /// Clusters of the smaller side.
        have: usize,
    },
    /// Samples of all clusters together.
    #[error("{have} requests in an arm, {needed} at least")]
    Samples {
        /// Samples of the smaller side.
        have: usize,
        /// Samples that the quantile needs.
        needed: usize,
    },
    /// Clusters with a sample at the quantile or beyond.
    #[error("{have} clients of an arm beyond the quantile, {BEYOND_MIN} at least")]
    Beyond {
        /// Clusters of the smaller side.
        have: usize,
    },
}

/// Times a cluster was drawn, for each cluster.
fn draw(random: &mut Resampler, weights: &mut [u32]) {
    weights.fill(0);
    for _ in 0..weights.len() {
        weights[random.index(weights.len())] += 1;
    }
}

/// Samples of one side, ascending, with the number of their cluster.
struct Side {
    samples: Vec<(f64, usize)>,
    /// Samples of each cluster.
    sizes: Vec<u64>,
    clusters: usize,
}

impl Side {
    fn new(clusters: &[Vec<f64>]) -> Self {
        let with: Vec<&Vec<f64>> = clusters.iter().filter(|cluster| !cluster.is_empty()).collect();
        let numbered = with.iter().enumerate();
        let mut samples: Vec<(f64, usize)> =
            numbered.flat_map(|(number, cluster)| cluster.iter().map(move |sample| (*sample, number))).collect();
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { samples, sizes: with.iter().map(|cluster| cluster.len() as u64).collect(), clusters: with.len() }
    }

    /// The nearest-rank quantile of samples that count as often as their cluster.
    fn quantile(&self, quantile: f64, weights: &[u32]) -> f64 {
        let total: u64 = self.sizes.iter().zip(weights).map(|(size, weight)| size * u64::from(*weight)).sum();
        // The tiny term keeps products that are whole numbers at their rank.
        let rank = (quantile * as_f64(total) - 1e-9).max(0.5);
        let mut passed = 0_u64;
        for (sample, cluster) in &self.samples {
            passed += u64::from(weights[*cluster]);
            if as_f64(passed) >= rank {
                return *sample;
            }
        }
        self.samples.last().map_or(f64::NAN, |(sample, _)| *sample)
    }

    /// Clusters with a sample at `value` or beyond.
    fn beyond(&self, value: f64) -> usize {
        let mut seen = vec![false; self.clusters];
        for (sample, cluster) in self.samples.iter().rev() {
            if *sample < value {
                break;
            }
            seen[*cluster] = true;
        }
        seen.into_iter().filter(|seen| *seen).count()
    }

    /// Value and standard error of the logarithm of a quantile.
    fn log_quantile(&self, quantile: f64, random: &mut Resampler) -> (f64, f64) {
        let value = self.quantile(quantile, &vec![1; self.clusters]).ln();
        let mut weights = vec![0; self.clusters];
        let resampled = (0..RESAMPLES).map(|_| {
            draw(random, &mut weights);
            self.quantile(quantile, &weights).ln()
        });
        (value, deviation(&resampled.collect::<Vec<f64>>()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Standard deviation of values.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / to_f64(values.len());
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / to_f64(values.len() - 1)).sqrt()
}

/// Clusters of each side that would decide with 80 % probability: to separate the effect from none, or to show that it lies
/// within the tolerance, whichever comes first.
fn needed(effect: f64, error: f64, margin: f64, z: f64, clusters: usize) -> Option<usize> {
    let lean = effect.abs().max(margin - effect.abs());
    let times = ((z + normal_quantile(0.8)) * error / lean).powi(2);
    times.is_finite().then(|| more_by(clusters, times))
}

/// Multiple of the clusters. They did not decide, so at least one more.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn more_by(clusters: usize, times: f64) -> usize {
    ((to_f64(clusters) * times).ceil() as usize).max(clusters + 1)
}

/// Compares a quantile of all samples of a contender with that of a baseline: by the ratio, with an interval of this confidence. Samples are
/// above 0.
///
/// # Errors
/// When there are too few clusters or samples for the quantile.
pub fn compare_quantile(
    contender: &[Vec<f64>],
    baseline: &[Vec<f64>],
    quantile: f64,
    rule: &Rule,
    confidence: f64,
) -> Result<Comparison, TooFew> {
    let [own, other] = [contender, baseline].map(Side::new);
    let clusters = own.clusters.min(other.clusters);
    if clusters < CLUSTERS_MIN {
        return Err(TooFew::Clusters { have: clusters });
    }
    let (have, needed_samples) = (own.samples.len().min(other.samples.len()), samples_needed(quantile));
    if have < needed_samples {
        return Err(TooFew::Samples { have, needed: needed_samples });
    }
    let beyond = |side: &Side| side.beyond(side.quantile(quantile, &vec![1; side.clusters]));
    let have = beyond(&own).min(beyond(&other));
    if have < BEYOND_MIN {
        return Err(TooFew::Beyond { have });
    }
    let random = |purpose| Resampler::new(Seed::from_number(1), purpose);
    let (own_log, own_error) = own.log_quantile(quantile, &mut random("contender"));
    let (other_log, other_error) = other.log_quantile(quantile, &mut random("baseline"));
    let (effect, error) = (own_log - other_log, own_error.hypot(other_error));
    let z = normal_quantile(f64::midpoint(1.0, confidence));
    let log = Interval { value: effect, low: effect - z * error, high: effect + z * error, coverage: confidence };
    // Of the same interval, so that ratio and difference never disagree.
    let base = other_log.exp();
    let difference = log.map(|log| base * log.exp_m1());
    let more = needed(effect, error, rule.tolerance.relative.ln_1p(), z, clusters);
    Ok(rule.conclude(difference, Some(log), (clusters, 0), more))
}

/// Counts of one cluster: events, and cases in which there may be one. Cases need not be whole numbers.
pub type Counts = (f64, f64);

/// Share of events of one side, with Wilson's interval for as many independent cases as its clusters are worth.
fn share_interval(counts: &[Counts], z: f64, random: &mut Resampler) -> (f64, f64, f64) {
    let share = |weights: &[u32]| {
        let (mut events, mut cases) = (0.0, 0.0);
        for ((event, case), weight) in counts.iter().zip(weights) {
            events += event * f64::from(*weight);
            cases += case * f64::from(*weight);
        }
        events / cases
    };
    let value = share(&vec![1; counts.len()]);
    let mut weights = vec![0; counts.len()];
    let resampled = (0..RESAMPLES).map(|_| {
        draw(random, &mut weights);
        share(&weights)
    });
    let error = deviation(&resampled.collect::<Vec<f64>>());
    // Without an event, or with nothing else, all resamples are equal: each cluster is one case then.
    let cases = if error > 0.0 { value * (1.0 - value) / error.powi(2) } else { to_f64(counts.len()) };
    let (square, scale) = (z * z, 1.0 + z * z / cases);
    let middle = (value + square / (2.0 * cases)) / scale;
    let half = z / scale * (value * (1.0 - value) / cases + square / (4.0 * cases * cases)).sqrt();
    (value, middle - half, middle + half)
}

/// Compares the share of events among all cases of a contender with that of a baseline: by the difference.
///
/// # Errors
/// When there are too few clusters.
pub fn compare_share(
    contender: &[Counts],
    baseline: &[Counts],
    rule: &Rule,
    confidence: f64,
) -> Result<Comparison, TooFew> {
    let with_cases = |side: &[Counts]| side.iter().copied().filter(|(_, cases)| *cases > 0.0).collect::<Vec<Counts>>();
    let [own, other] = [contender, baseline].map(with_cases);
    let clusters = own.len().min(other.len());
    if clusters < CLUSTERS_MIN {
        return Err(TooFew::Clusters { have: clusters });
    }
    let z = normal_quantile(f64::midpoint(1.0, confidence));
    let side =
        |counts: &[Counts], purpose| share_interval(counts, z, &mut Resampler::new(Seed::from_number(1), purpose));
    let ((own, own_low, own_high), (other, other_low, other_high)) =
        (side(&own, "contender"), side(&other, "baseline"));
    // Newcombe (1998), method 10: an interval by the standard error alone is too narrow where a rare event was seen too seldom by chance.
    let low = own - other - (own - own_low).hypot(other_high - other);
    let high = own - other + (own_high - own).hypot(other - other_low);
    let (effect, error) = (own - other, (high - low) / (2.0 * z));
    let difference = Interval { value: effect, low, high, coverage: confidence };
    let more = if own + other > 0.0 {
        needed(effect, error, rule.tolerance.absolute, z, clusters)
    } else {
        // As long as nothing happens, the interval shrinks with the number, and not with its root.
        Some(more_by(clusters, high / rule.tolerance.absolute))
    };
    Ok(rule.conclude(difference, None, (clusters, 0), more))
}

/// Probability with which chance alone divides so many clusters at least as unequally as `first` and `second`, if each belongs to the first
/// part with the probability `share` (χ² with one degree of freedom). `None` when fewer than 5 are expected in a part: it says little then.
pub fn imbalance(first: usize, second: usize, share: f64) -> Option<f64> {
    let total = to_f64(first + second);
    let expected = total * share;
    if expected.min(total - expected) < 5.0 {
        return None;
    }
    let deviation = (total * share * (1.0 - share)).sqrt();
    Some(2.0 * normal_cdf(-(to_f64(first) - expected).abs() / deviation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{
        compare::{Better, Scale, Tolerance, Verdict},
        coverage::{Draws, Law},
    };

    const LESS: Rule = Rule {
        better: Some(Better::Lower),
        scale: Scale::Ratio,
        tolerance: Tolerance { relative: 0.03, absolute: 0.0 },
    };
    const SHARE: Rule = Rule {
        better: Some(Better::Lower),
        scale: Scale::Difference,
        tolerance: Tolerance { relative: 0.0, absolute: 0.005 },
    };

    /// Clients whose requests resemble each other: a factor for the client, another one for the request.
    fn clients(draws: &mut Draws, count: usize, factor: f64) -> Vec<Vec<f64>> {
        let own = Law::Normal.runs(count, draws);
        own.iter()
            .enumerate()
            .map(|(number, own)| {
                let requests = Law::Normal.runs(5 + number % 30, draws);
                requests.iter().map(|request| factor * (0.5 * own + 0.2 * request).exp()).collect()
            })
            .collect()
    }

    #[test]
    fn intervals_cover_what_they_promise() {
        let mut draws = Draws::new(7);
        for (quantile, count, rounds) in [(0.5, 60, 200), (0.95, 200, 100), (0.99, 400, 60)] {
            let covered = (0..rounds).filter(|_| {
                let (own, other) = (clients(&mut draws, count, 0.8), clients(&mut draws, 2 * count, 1.0));
                compare_quantile(&own, &other, quantile, &LESS, 0.95).unwrap().ratio.unwrap().covers(0.8)
            });
            // Four standard deviations below 95 %.
            let least = to_f64(rounds) * 0.95 - 4.0 * (to_f64(rounds) * 0.95 * 0.05).sqrt();
            let covered = covered.count();
            assert!(to_f64(covered) >= least, "p{}: {covered} of {rounds}", 100.0 * quantile);
        }
    }

    #[test]
    fn requests_of_one_client_are_no_evidence_of_their_own() {
        // Each client has one time, fifty times over: requests taken as independent would give an interval seven times as narrow.
        let mut draws = Draws::new(3);
        let mut side = || -> Vec<Vec<f64>> {
            let own = Law::Normal.runs(100, &mut draws);
            own.iter().map(|own| vec![own.exp(); 50]).collect()
        };
        let (once, other) = (side(), side());
        let wide = compare_quantile(&once, &other, 0.5, &LESS, 0.95).unwrap();
        let single = |side: &[Vec<f64>]| side.iter().map(|client| client[..1].to_vec()).collect::<Vec<_>>();
        let same = compare_quantile(&single(&once), &single(&other), 0.5, &LESS, 0.95).unwrap();
        assert_eq!(wide, same);
    }

    #[test]
    fn too_little_is_no_comparison() {
        let few = vec![vec![1.0; 100]; CLUSTERS_MIN - 1];
        let many = vec![vec![1.0; 100]; CLUSTERS_MIN];
        let of = |own: &[Vec<f64>], quantile| compare_quantile(own, &many, quantile, &LESS, 0.95);
        assert_eq!(of(&few, 0.5), Err(TooFew::Clusters { have: 29 }));
        assert_eq!(of(&[], 0.5), Err(TooFew::Clusters { have: 0 }));
        assert_eq!(of(&vec![vec![1.0]; 40], 0.95), Err(TooFew::Samples { have: 40, needed: 60 }));
        let mut slow = many.clone();
        slow[0] = vec![9.0; 1_000];
        assert_eq!(of(&slow, 0.95), Err(TooFew::Beyond { have: 1 }));
        assert_eq!(of(&many, 0.99).unwrap().verdict, Verdict::Equivalent);
    }

    #[test]
    fn shares() {
        let side = |count: usize, failing: usize| -> Vec<Counts> {
            (0..count).map(|number| (if number < failing { 1.0 } else { 0.0 }, 10.0)).collect()
        };
        let of = |own: (usize, usize), other: (usize, usize)| {
            compare_share(&side(own.0, own.1), &side(other.0, other.1), &SHARE, 0.95).unwrap()
        };
        let worse = of((1_000, 400), (1_000, 100));
        assert_eq!(worse.verdict, Verdict::Worse);
        assert!(worse.difference.covers(0.03), "{worse:?}");
        assert_eq!(of((1_000, 100), (1_000, 400)).verdict, Verdict::Better);
        assert_eq!(of((2_000, 200), (2_000, 200)).verdict, Verdict::Equivalent);
        // None of forty has failed, and one of fourteen might.
        let none = of((40, 0), (40, 0));
        assert_eq!((none.verdict, none.difference.value), (Verdict::Undecided, 0.0));
        assert_eq!(of((2_000, 0), (2_000, 0)).verdict, Verdict::Equivalent);
        assert!(compare_share(&side(29, 0), &side(900, 0), &SHARE, 0.95).is_err());
    }

    #[test]
    fn rare_events_in_unequal_sides_are_covered() {
        let mut draws = Draws::new(11);
        let confidence = 0.999;
        let mut side = |count: usize| -> Vec<Counts> {
            let chances = Law::Exponential.runs(count * 5, &mut draws);
            // One request in a hundred fails.
            let failed = |client: &[f64]| client.iter().filter(|draw| **draw > 100.0_f64.ln()).count();
            chances.chunks(5).map(|client| (to_f64(failed(client)), 5.0)).collect()
        };
        let rounds = 300;
        let wrong = (0..rounds).filter(|_| {
            let result = compare_share(&side(1_600), &side(400), &SHARE, confidence).unwrap();
            !result.difference.covers(0.0)
        });
        // 0.3 are expected, and more than 3 come once in four thousand times.
        assert!(wrong.count() <= 3);
    }

    #[test]
    fn unequal_parts() {
        assert!(imbalance(500, 500, 0.5).unwrap() > 0.99);
        assert!((imbalance(1_049, 951, 0.5).unwrap() - 0.028).abs() < 1e-3, "2.19 standard deviations");
        assert!(imbalance(600, 400, 0.5).unwrap() < 1e-6);
        assert!(imbalance(100, 900, 0.1).unwrap() > 0.99);
        for (first, second, share) in [(0, 0, 0.5), (0, 9, 0.5), (100, 0, 1.0), (0, 100, 0.0)] {
            assert_eq!(imbalance(first, second, share), None);
        }
    }
}
