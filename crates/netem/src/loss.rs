//! Which packets the wire loses: none, each for itself, or in bursts (Gilbert-Elliott).

use rand_core::RngCore;
use units::{Probability, RandomStream, Seed};

use crate::{ConfigError, config::Loss, draw::Chance};

/// A loss model at work. Every packet makes two draws: one decides the state, one the loss within it.
#[derive(Clone, Debug)]
pub(crate) enum LossProcess {
    None,
    Iid { lost: Chance, draws: RandomStream },
    Chain { bad: bool, to_bad: Chance, to_good: Chance, lost_in_good: Chance, lost_in_bad: Chance, draws: RandomStream },
}

impl LossProcess {
    pub(crate) fn new(config: &Loss, seed: &Seed) -> Result<Self, ConfigError> {
        let draws = seed.stream("loss");
        Ok(match *config {
            Loss::None => Self::None,
            Loss::Iid { p } => Self::Iid { lost: Chance::new(p), draws },
            Loss::Burst { mean, length } => return Self::new(&Loss::from_bursts(mean, length)?, seed),
            Loss::GilbertElliott { p, r, loss_good, loss_bad } => {
                // The chain starts where it would be found at a random moment, so that the mean holds from the first
                // packet on.
                let stationary =
                    Probability::new(p.get() / (p.get() + r.get())).map_err(|_| ConfigError::FrozenChain)?;
                Self::Chain {
                    bad: Chance::new(stationary).decides(seed.stream("loss start").next_u64()),
                    to_bad: Chance::new(p),
                    to_good: Chance::new(r),
                    lost_in_good: Chance::new(loss_good),
                    lost_in_bad: Chance::new(loss_bad),
                    draws,
                }
            }
        })
    }

    /// Whether the next packet is lost.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        match self {
            Self::None => false,
            Self::Iid { lost, draws } => {
                // The draw that a chain would use for its state: drawn and not used, so that the draws for the loss
                // itself are the same under both models.
                draws.next_u64();
                lost.decides(draws.next_u64())
            }
            Self::Chain { bad, to_bad, to_good, lost_in_good, lost_in_bad, draws } => {
                let (state, loss) = (draws.next_u64(), draws.next_u64());
                let lost = if *bad { lost_in_bad.decides(loss) } else { lost_in_good.decides(loss) };
                *bad = if *bad { !to_good.decides(state) } else { to_bad.decides(state) };
                lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    fn lost(config: &Loss, seed: u64, packets: usize) -> Vec<bool> {
        let mut process = LossProcess::new(config, &Seed::from_number(seed)).unwrap();
        (0..packets).map(|_| process.next()).collect()
    }

    #[test]
    fn what_is_lost_at_one_percent_is_lost_at_two() {
        let one = lost(&Loss::Iid { p: probability(0.01) }, 3, 100_000);
        let two = lost(&Loss::Iid { p: probability(0.02) }, 3, 100_000);
        assert!(one.iter().zip(&two).all(|(one, two)| !one || *two));
        assert!(one.iter().any(|lost| *lost));
        assert_ne!(one, two);
    }

    #[test]
    fn a_chain_that_alternates() {
        let config = Loss::GilbertElliott {
            p: Probability::ONE,
            r: Probability::ONE,
            loss_good: Probability::ZERO,
            loss_bad: Probability::ONE,
        };
        let lost = lost(&config, 1, 100);
        assert!(lost.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn starts_in_the_stationary_state() {
        // Half of the time bad: half of the seeds must lose their first packet.
        let config = Loss::from_bursts(probability(0.5), 1000.0).unwrap();
        let first = (0..2000).filter(|&seed| lost(&config, seed, 1)[0]).count();
        // Binomial(2000, ½): standard deviation 22; five of them.
        assert!((890..=1110).contains(&first), "{first}");
    }

    #[test]
    fn losses_within_a_state() {
        let config = Loss::GilbertElliott {
            p: probability(0.001),
            r: probability(0.1),
            loss_good: probability(0.001),
            loss_bad: probability(0.5),
        };
        let count = lost(&config, 9, 2_000_000).iter().filter(|lost| **lost).count();
        #[expect(clippy::cast_precision_loss, reason = "a count below 2^53")]
        let share = count as f64 / 2e6;
        // 0.1/0.101 · 0.001 + 0.001/0.101 · 0.5 = 0.594 %; correlated standard error about 0.015 %.
        assert!((share - config.mean()).abs() < 0.000_75, "{share} against {}", config.mean());
    }
}
