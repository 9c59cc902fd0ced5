//! Fits a Gilbert-Elliott chain to the losses of a real path.
//!
//! Two chains are fitted. The first loses everything in its bad state and nothing in its good one; its likelihood has a closed form,
//! because the transitions are visible. The second loses a share in each state (expectation maximisation, the method of Baum and Welch).
//! The chain with the smaller Bayesian information criterion is proposed: the larger chain has to explain enough more.

use serde::Serialize;
use units::Probability;

use crate::config::Loss;

/// A chain fitted to a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Packets in the trace.
    pub packets: usize,
    /// Part of them that were lost.
    pub lost: usize,
    /// Runs of consecutive losses.
    pub bursts: usize,
    /// The longest of them.
    pub longest: usize,
    /// Share of packets lost.
    pub mean: f64,
    /// Half of its 95 % interval, with the correlated variance of the chain.
    pub mean_error: f64,
    /// Mean burst length in packets.
    pub length: f64,
    /// Half of its 95 % interval, for geometric lengths.
    pub length_error: f64,
    /// The simple chain.
    pub simple: Chain,
    /// The chain with losses in both states.
    pub full: Chain,
    /// Goodness of fit of burst lengths to a geometric distribution, which the simple chain and most of its users assume: the probability
    /// of lengths at least as far from it as these. `None` with too few bursts.
    pub geometric: Option<f64>,
}

/// The parameters of a chain and how well it explains the trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chain {
    /// From good to bad.
    pub p: f64,
    /// From bad to good.
    pub r: f64,
    /// Share lost in the good state.
    pub loss_good: f64,
    /// Share lost in the bad state.
    pub loss_bad: f64,
    /// Logarithm of the probability of the trace under the chain.
    pub log_likelihood: f64,
    /// Bayesian information criterion: the smaller the better.
    pub bic: f64,
}

/// A trace that no chain can be fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Too little.
    #[error("{0} packets are too few: at least 100 are needed")]
    Short(usize),
    /// The trace has no losses.
    #[error("no packet of the trace was lost: `loss = \"none\"` describes it")]
    NoLoss,
    /// The trace has no delivered packet.
    #[error("every packet of the trace was lost")]
    AllLost,
}

impl Fit {
    /// The chain to use, as a loss model.
    pub fn loss(&self) -> Loss {
        let clamp = |x: f64| Probability::new(x.clamp(0.0, 1.0)).unwrap_or(Probability::ZERO);
        let chain = self.proposed();
        Loss::GilbertElliott {
            p: clamp(chain.p),
            r: clamp(chain.r),
            loss_good: clamp(chain.loss_good),
            loss_bad: clamp(chain.loss_bad),
        }
    }

    /// The chain with the smaller criterion.
    pub fn proposed(&self) -> Chain {
        if self.full.bic < self.simple.bic { self.full } else { self.simple }
    }
}

/// Fits both chains to a trace: for each packet in turn whether it was lost.
///
/// # Errors
/// When the trace is too short, or has no losses or only losses.
pub fn fit(lost: &[bool]) -> Result<Fit, FitError> {
    if lost.len() < 100 {
        return Err(FitError::Short(lost.len()));
    }
    let runs = bursts(lost);
    let (all, count) = (to_f64(lost.len()), runs.iter().sum::<usize>());
    if runs.is_empty() {
        return Err(FitError::NoLoss);
    }
    if count == lost.len() {
        return Err(FitError::AllLost);
    }
    let simple = simple(lost);
    let mean = to_f64(count) / all;
    let length = to_f64(count) / to_f64(runs.len());
    Ok(Fit {
        packets: lost.len(),
        lost: count,
        bursts: runs.len(),
        longest: runs.iter().copied().max().unwrap_or(0),
        mean,
        mean_error: 1.96 * (mean * (1.0 - mean) * (2.0 * length - 1.0) / all).sqrt(),
        length,
        length_error: 1.96 * (length * (length - 1.0) / to_f64(runs.len())).sqrt(),
        simple,
        full: full(lost, simple),
        geometric: geometric(&runs, length),
    })
}

/// The lengths of the runs of losses.
fn bursts(lost: &[bool]) -> Vec<usize> {
    lost.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).collect()
}

/// Most likely transitions of the chain that shows its states.
fn simple(lost: &[bool]) -> Chain {
    let mut steps = [[0usize; 2]; 2];
    for pair in lost.windows(2) {
        steps[usize::from(pair[0])][usize::from(pair[1])] += 1;
    }
    let share = |part: usize, whole: usize| if whole == 0 { 0.5 } else { to_f64(part) / to_f64(whole) };
    let p = share(steps[0][1], steps[0][0] + steps[0][1]);
    let r = share(steps[1][0], steps[1][0] + steps[1][1]);
    // The first state is that of a random moment.
    let bad = if p + r > 0.0 { p / (p + r) } else { 0.5 };
    let term = |count: usize, probability: f64| if count == 0 { 0.0 } else { to_f64(count) * probability.ln() };
    let log_likelihood = term(steps[0][1], p)
        + term(steps[0][0], 1.0 - p)
        + term(steps[1][0], r)
        + term(steps[1][1], 1.0 - r)
        + if lost[0] { bad.ln() } else { (1.0 - bad).ln() };
    Chain { p, r, loss_good: 0.0, loss_bad: 1.0, log_likelihood, bic: bic(log_likelihood, 2, lost.len()) }
}

fn bic(log_likelihood: f64, parameters: usize, packets: usize) -> f64 {
    to_f64(parameters) * to_f64(packets).ln() - 2.0 * log_likelihood
}

/// Rounds of the estimation at most, and the gain below which it ends.
const ROUNDS: usize = 300;
const GAIN: f64 = 1e-4;

/// Expectation maximisation from several beginnings, because it climbs the nearest hill only.
fn full(lost: &[bool], simple: Chain) -> Chain {
    let beginnings = [
        Chain { loss_good: 1e-4, loss_bad: 0.9, ..simple },
        Chain { p: simple.p / 2.0, r: simple.r / 2.0, loss_good: 1e-3, loss_bad: 0.5, ..simple },
        Chain { p: 0.001, r: 0.02, loss_good: 1e-3, loss_bad: 0.3, ..simple },
    ];
    let climbed = beginnings.map(|chain| climb(lost, chain));
    climbed.into_iter().max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood)).unwrap_or(simple)
}

fn climb(lost: &[bool], mut chain: Chain) -> Chain {
    let keep = |x: f64| x.clamp(1e-9, 1.0 - 1e-9);
    let mut scratch = vec![[0.0; 2]; lost.len()];
    let mut last = f64::NEG_INFINITY;
    for _ in 0..ROUNDS {
        chain = Chain {
            p: keep(chain.p),
            r: keep(chain.r),
            loss_good: keep(chain.loss_good),
            loss_bad: keep(chain.loss_bad),
            ..chain
        };
        let (next, log_likelihood) = round(lost, &chain, &mut scratch);
        chain.log_likelihood = log_likelihood;
        if log_likelihood - last < GAIN {
            break;
        }
        last = log_likelihood;
        chain = Chain { log_likelihood, ..next };
    }
    // The states have no names: the bad one is where more is lost.
    if chain.loss_good > chain.loss_bad {
        chain = Chain { p: chain.r, r: chain.p, loss_good: chain.loss_bad, loss_bad: chain.loss_good, ..chain };
    }
    Chain { bic: bic(chain.log_likelihood, 4, lost.len()), ..chain }
}

/// One round: the likelihood of the trace under the chain, and a chain that explains it better. Forward and backward
/// probabilities are scaled at each packet, so that nothing underflows.
fn round(lost: &[bool], chain: &Chain, forward: &mut [[f64; 2]]) -> (Chain, f64) {
    let emit = |lost: bool| {
        if lost { [chain.loss_good, chain.loss_bad] } else { [1.0 - chain.loss_good, 1.0 - chain.loss_bad] }
    };
    let step = [[1.0 - chain.p, chain.p], [chain.r, 1.0 - chain.r]];
    let bad = chain.p / (chain.p + chain.r);
    let mut log_likelihood = 0.0;
    let mut scales = Vec::with_capacity(lost.len());
    let mut before = [1.0 - bad, bad];
    for (index, &fate) in lost.iter().enumerate() {
        let arrive =
            if index == 0 { before } else { [0, 1].map(|to| before[0] * step[0][to] + before[1] * step[1][to]) };
        let weight = emit(fate);
        let raw = [arrive[0] * weight[0], arrive[1] * weight[1]];
        let scale = raw[0] + raw[1];
        log_likelihood += scale.ln();
        scales.push(scale);
        before = raw.map(|x| x / scale);
        forward[index] = before;
    }
    let mut backward = [1.0; 2];
    let (mut moves, mut in_state, mut lost_in) = ([[0.0; 2]; 2], [0.0; 2], [0.0; 2]);
    for index in (0..lost.len()).rev() {
        let here = [forward[index][0] * backward[0], forward[index][1] * backward[1]];
        let sum = here[0] + here[1];
        for state in 0..2 {
            in_state[state] += here[state] / sum;
            lost_in[state] += if lost[index] { here[state] / sum } else { 0.0 };
        }
        if index > 0 {
            let weight = emit(lost[index]);
            for from in 0..2 {
                for to in 0..2 {
                    moves[from][to] +=
                        forward[index - 1][from] * step[from][to] * weight[to] * backward[to] / scales[index];
                }
            }
            backward = [0, 1].map(|from| {
                (step[from][0] * weight[0] * backward[0] + step[from][1] * weight[1] * backward[1]) / scales[index]
            });
        }
    }
    let share = |part: f64, whole: f64, other: f64| if whole > 0.0 { part / whole } else { other };
    let next = Chain {
        p: share(moves[0][1], moves[0][0] + moves[0][1], chain.p),
        r: share(moves[1][0], moves[1][0] + moves[1][1], chain.r),
        loss_good: share(lost_in[0], in_state[0], chain.loss_good),
        loss_bad: share(lost_in[1], in_state[1], chain.loss_bad),
        ..*chain
    };
    (next, log_likelihood)
}

/// Chi-square test of the burst lengths against a geometric distribution with their mean: lengths 1, 2, … each, and the tail
/// from where fewer than five are expected.
pub fn geometric(runs: &[usize], length: f64) -> Option<f64> {
    let (count, go_on) = (to_f64(runs.len()), 1.0 - 1.0 / length);
    let expected = |k: i32| count * (1.0 - go_on) * go_on.powi(k - 1);
    let tail = (1..10_000).find(|&k| expected(k) < 5.0)?;
    if tail < 3 {
        return None;
    }
    let seen = |k: i32| to_f64(runs.iter().filter(|run| i32::try_from(**run) == Ok(k)).count());
    let beyond = to_f64(runs.iter().filter(|run| i32::try_from(**run).is_ok_and(|run| run >= tail)).count());
    let beyond_expected = count * go_on.powi(tail - 1);
    let square = |seen: f64, expected: f64| (seen - expected).powi(2) / expected;
    let mut statistic: f64 = (1..tail).map(|k| square(seen(k), expected(k))).sum();
    statistic += square(beyond, beyond_expected);
    // One degree is lost to the total and one to the mean.
    let degrees = f64::from(tail - 2);
    // Wilson and Hilferty: the cube root of a chi-square variable is close to normal.
    let spread = 2.0 / (9.0 * degrees);
    let z = ((statistic / degrees).cbrt() - (1.0 - spread)) / spread.sqrt();
    Some(upper_tail(z))
}

/// Probability that a standard normal variable exceeds `z`: Abramowitz and Stegun 26.2.17, exact to 1e-7.
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = series * (-z * z / 2.0).exp() / (2.0 * core::f64::consts::PI).sqrt();
    if z >= 0.0 { tail } else { 1.0 - tail }
}

#[expect(clippy::cast_precision_loss, reason = "counts of packets are far below 2^53")]
fn to_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use units::Seed;

    use super::*;
    use crate::{PacketMeta, loss::LossProcess};

    fn trace(loss: &Loss, packets: usize) -> Vec<bool> {
        let mut process = LossProcess::new(loss, &Seed::from_number(11)).unwrap();
        (0..packets).map(|_| process.next(units::Instant::ZERO, &PacketMeta::default())).collect()
    }

    fn share(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    #[test]
    fn finds_the_chain_that_made_the_trace() {
        let fit = fit(&trace(&Loss::Burst { mean: share(0.006), length: 6.0 }, 500_000)).unwrap();
        assert!((fit.mean - 0.006).abs() < 2.0 * fit.mean_error, "{fit:?}");
        assert!((fit.length - 6.0).abs() < 2.0 * fit.length_error, "{fit:?}");
        assert!((fit.simple.p / 0.001_006 - 1.0).abs() < 0.15 && (fit.simple.r * 6.0 - 1.0).abs() < 0.15, "{fit:?}");
        assert_eq!(fit.proposed(), fit.simple, "the larger chain explains no more");
        assert!(fit.geometric.unwrap() > 0.001, "{:?}", fit.geometric);
    }

    #[test]
    fn finds_losses_that_are_not_all_of_a_burst() {
        let made =
            Loss::GilbertElliott { p: share(0.002), r: share(0.05), loss_good: share(0.001), loss_bad: share(0.4) };
        let fit = fit(&trace(&made, 300_000)).unwrap();
        let chain = fit.proposed();
        assert_eq!(chain, fit.full, "{fit:?}");
        for (found, expected) in [(chain.p, 0.002), (chain.r, 0.05), (chain.loss_good, 0.001), (chain.loss_bad, 0.4)] {
            assert!((found / expected - 1.0).abs() < 0.25, "{chain:?}");
        }
        assert!((fit.loss().mean() / made.mean() - 1.0).abs() < 0.15);
    }

    #[test]
    fn lengths_that_are_not_geometric_are_noticed() {
        // Bursts of exactly four.
        let lost: Vec<bool> = (0..100_000).map(|n| n % 500 < 4).collect();
        let fit = fit(&lost).unwrap();
        assert!(fit.geometric.unwrap() < 1e-6);
        assert_eq!((fit.longest, fit.bursts), (4, 200));
    }

    #[test]
    fn traces_that_say_nothing() {
        assert_eq!(fit(&[true; 10]), Err(FitError::Short(10)));
        assert_eq!(fit(&[false; 200]), Err(FitError::NoLoss));
        assert_eq!(fit(&[true; 200]), Err(FitError::AllLost));
    }
}
