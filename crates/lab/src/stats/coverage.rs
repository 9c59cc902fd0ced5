//! Coverage of intervals by simulation, on which the choice of methods is based.
//!
//! The distributions are those of runs of a laboratory: symmetric noise, a long tail, a run in ten that fails, bimodal runs, and figures
//! that are counts.

use units::Seed;

use super::{distribution::to_f64, interval::Resampler};

/// A distribution of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Symmetric noise.
    Normal,
    /// A long tail.
    Exponential,
    /// Nine equal runs, and a tenth with a fraction of the value.
    OneBadInTen,
    /// Two ways that a run can take, sixty to forty.
    Bimodal,
    /// Counts: the same few values repeatedly, zero among them.
    Ties,
}

impl Law {
    /// All laws with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Normal, "normal"),
        (Self::Exponential, "exponential"),
        (Self::OneBadInTen, "one bad in ten"),
        (Self::Bimodal, "bimodal"),
        (Self::Ties, "ties"),
    ];

    /// The median of the law.
    pub fn median(self) -> f64 {
        match self {
            Self::Normal => 10.0,
            Self::Exponential => core::f64::consts::LN_2,
            // 5/9 of the good ones lie above the median of all: z = -0.1397.
            Self::OneBadInTen => super::distribution::normal_quantile(4.0 / 9.0).mul_add(0.5, 10.0),
            // The two ways do not overlap: 5/6 of the lower one lie below.
            Self::Bimodal => super::distribution::normal_quantile(5.0 / 6.0).mul_add(0.1, 4.0),
            Self::Ties => 1.0,
        }
    }

    fn draw(self, random: &mut Resampler) -> f64 {
        match self {
            Self::Normal => 10.0 + normal(random),
            Self::Exponential => -(1.0 - uniform(random)).ln(),
            Self::OneBadInTen if uniform(random) < 0.1 => 1.0 + 0.1 * normal(random),
            Self::OneBadInTen => 10.0 + 0.5 * normal(random),
            Self::Bimodal if uniform(random) < 0.6 => 4.0 + 0.1 * normal(random),
            Self::Bimodal => 9.0 + 0.1 * normal(random),
            // 0, 1 and 2 with 30, 50 and 20 %.
            Self::Ties => match uniform(random) {
                x if x < 0.3 => 0.0,
                x if x < 0.8 => 1.0,
                _ => 2.0,
            },
        }
    }

    /// Runs by this law.
    pub fn runs(self, count: usize, random: &mut Draws) -> Vec<f64> {
        (0..count).map(|_| self.draw(&mut random.0)).collect()
    }
}

/// Random numbers for simulations.
pub struct Draws(Resampler);

impl Draws {
    /// The draws of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Resampler::new(Seed::from_number(seed), "coverage"))
    }
}

fn uniform(random: &mut Resampler) -> f64 {
    to_f64(random.index(1 << 30)) / to_f64(1 << 30)
}

/// The sum of twelve uniform numbers minus six: as good as normal for this purpose.
fn normal(random: &mut Resampler) -> f64 {
    (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
}

/// Share of `rounds` in which `covers` returns true for runs of a distribution. `None` if a method gives no interval.
pub fn coverage(
    law: Law,
    count: usize,
    rounds: usize,
    seed: u64,
    covers: impl Fn(&[f64]) -> Option<bool>,
) -> Option<f64> {
    let mut random = Draws::new(seed);
    let mut covered = 0;
    for _ in 0..rounds {
        covered += usize::from(covers(&law.runs(count, &mut random))?);
    }
    Some(to_f64(covered) / to_f64(rounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{
        compare::{Better, Rule, Scale, Tolerance, compare, compare_unpaired},
        interval::{RUNS_MIN, median_interval},
    };

    const ROUNDS: usize = 4_000;
    /// Smallest coverage that passes. The methods promise 95 %, and this many rounds do not deviate by 2 %.
    const LEAST: f64 = 0.93;

    fn everywhere(promise: impl Fn(Law, usize) -> Option<f64>) {
        for (law, name) in Law::ALL {
            for count in [6, 10, 20] {
                let share = promise(law, count).unwrap_or_else(|| panic!("{name}, {count}: no interval"));
                assert!(share >= LEAST, "{name}, {count} runs: {share}");
            }
            assert_eq!(promise(law, RUNS_MIN - 1), None, "{name}: five runs give an interval");
        }
    }

    #[test]
    fn medians_are_those_of_the_laws() {
        let mut draws = Draws::new(1);
        for (law, name) in Law::ALL {
            let runs = law.runs(100_000, &mut draws);
            let below = to_f64(runs.iter().filter(|x| **x < law.median()).count()) / 1e5;
            let above = to_f64(runs.iter().filter(|x| **x > law.median()).count()) / 1e5;
            assert!(below < 0.505 && above < 0.505, "{name}: {below} {above}");
        }
    }

    #[test]
    fn a_contender_over_its_seeds() {
        everywhere(|law, count| {
            coverage(law, count, ROUNDS, 1, |runs| Some(median_interval(runs, 0.95)?.covers(law.median())))
        });
    }

    const RULE: Rule = Rule {
        better: Some(Better::Lower),
        scale: Scale::Both,
        tolerance: Tolerance { relative: 0.03, absolute: 0.0 },
    };

    #[test]
    fn pairs_that_differ_by_a_law() {
        everywhere(|law, count| {
            coverage(law, count, ROUNDS, 2, |runs| {
                let pairs: Vec<_> = runs.iter().map(|run| (Some(100.0 + run), Some(100.0))).collect();
                let result = compare(&pairs, &RULE)?;
                (count >= RUNS_MIN).then(|| result.difference.covers(law.median()))
            })
        });
    }

    #[test]
    fn sets_that_share_nothing() {
        everywhere(|law, count| {
            let mut random = Draws::new(3);
            let mut covered = 0;
            for _ in 0..ROUNDS {
                let own: Vec<f64> = law.runs(count, &mut random).iter().map(|run| run + 3.0).collect();
                let result = compare_unpaired(&own, &law.runs(count, &mut random), &RULE)?;
                if result.difference.low == f64::NEG_INFINITY {
                    return None;
                }
                covered += usize::from(result.difference.covers(3.0));
            }
            Some(to_f64(covered) / to_f64(ROUNDS))
        });
    }

    /// Counter-example: Student's interval around the mean promises 95 % and reaches half of it.
    #[test]
    fn a_mean_has_no_such_interval() {
        use crate::stats::distribution::student_quantile;
        let mean = 0.9 * 10.0 + 0.1 * 1.0;
        let share = coverage(Law::OneBadInTen, 6, ROUNDS, 4, |runs| {
            let centre = runs.iter().sum::<f64>() / 6.0;
            let spread = (runs.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / 5.0).sqrt();
            Some((centre - mean).abs() <= student_quantile(0.975, 5) * spread / 6f64.sqrt())
        });
        assert!(share.unwrap() < 0.7, "{share:?}");
    }
}
