//! How often an interval covers what it is an interval of, by simulation: the measure by which methods are chosen.
//!
//! The laws are those that runs of a laboratory have: symmetric noise, a long tail, a run in ten that goes wrong, two ways
//! that a run can take, and figures that are counts.

use units::Seed;

use super::{distribution::to_f64, interval::Resampler};

/// A distribution of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Symmetric noise.
    Normal,
    /// A long tail.
    Exponential,
    /// Nine runs alike, and a tenth that gets a fraction.
    OneBadInTen,
    /// Two ways that a run can take, sixty to forty.
    Bimodal,
    /// Counts: the same few values again and again, zero among them.
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

/// The share of `rounds` in which `covers` says so of runs by a law. `None` when a method gives no interval.
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
