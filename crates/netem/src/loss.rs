//! Loss processes: none, i.i.d., bursts (Gilbert-Elliott), a number of each group, or a trace.

use std::sync::Arc;

use rand_core::RngCore;
use units::{Instant, Probability, RandomStream, Seed};

use crate::{
    ConfigError, PacketMeta,
    config::Loss,
    draw::{Chance, up_to},
};

/// A loss model at work. Every packet makes two draws: one decides the state, one the loss within it.
#[derive(Clone, Debug)]
pub(crate) enum LossProcess {
    None,
    Iid { lost: Chance, draws: RandomStream },
    Chain { bad: bool, to_bad: Chance, to_good: Chance, lost_in_good: Chance, lost_in_bad: Chance, draws: RandomStream },
    Group { size: u32, drop: u32, min_bytes: u32, from: Instant, seed: Seed, flows: Vec<Group> },
    Trace { lost: Arc<Vec<bool>>, next: usize },
}

/// Position of a flow in its group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Packets of the group still to come, and how many of them are to be lost.
    left: u32,
    to_lose: u32,
    draws: RandomStream,
}

impl LossProcess {
    pub(crate) fn new(config: &Loss, seed: &Seed) -> Result<Self, ConfigError> {
        let draws = seed.stream("loss");
        config.check()?;
        Ok(match *config {
            Loss::Group { size, drop, min_bytes, after } => {
                let (from, seed) = (Instant::ZERO + after, seed.child("loss group", 0));
                Self::Group { size, drop, min_bytes, from, seed, flows: Vec::new() }
            }
            Loss::Trace(ref trace) => {
                let last = trace.lost.len() as u64 - 1;
                let start = up_to(&mut seed.stream("loss start"), last);
                Self::Trace { lost: Arc::clone(&trace.lost), next: usize::try_from(start).unwrap_or(0) }
            }
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

    /// Returns whether this packet, the next one, is lost.
    #[inline]
    pub(crate) fn next(&mut self, now: Instant, packet: &PacketMeta) -> bool {
        match self {
            Self::Group { .. } => self.next_of_group(now, packet),
            Self::Trace { lost, next } => {
                let fate = lost[*next];
                *next = if *next + 1 == lost.len() { 0 } else { *next + 1 };
                fate
            }
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

    /// Chooses exactly so many of each group, each choice of places as likely as any other: a packet is taken with the
    /// probability (still to lose) / (still to come).
    fn next_of_group(&mut self, now: Instant, packet: &PacketMeta) -> bool {
        let Self::Group { size, drop, min_bytes, from, seed, flows } = self else { return false };
        if packet.size < *min_bytes || now < *from {
            return false;
        }
        let flow = usize::try_from(packet.flow).unwrap_or(usize::MAX);
        while flows.len() <= flow {
            let draws = seed.child("flow", flows.len() as u64).stream("places");
            flows.push(Group { left: 0, to_lose: 0, draws });
        }
        let group = &mut flows[flow];
        if group.left == 0 {
            (group.left, group.to_lose) = (*size, *drop);
        }
        let lost = up_to(&mut group.draws, u64::from(group.left) - 1) < u64::from(group.to_lose);
        group.left -= 1;
        group.to_lose -= u32::from(lost);
        lost
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
        (0..packets).map(|_| process.next(Instant::ZERO, &PacketMeta { size: 1500, ..PacketMeta::default() })).collect()
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
    fn exactly_so_many_of_each_group() {
        let mut process = LossProcess::new(
            &Loss::Group { size: 11, drop: 2, min_bytes: 600, after: units::Duration::ZERO },
            &Seed::from_number(1),
        )
        .unwrap();
        let mut places = [0; 11];
        for group in 0..1_000 {
            let mut lost = 0;
            for place in &mut places {
                // Small packets and another flow in between change nothing.
                assert!(!process.next(Instant::ZERO, &PacketMeta { size: 60, ..PacketMeta::default() }));
                process.next(Instant::ZERO, &PacketMeta { size: 1500, flow: 3, ..PacketMeta::default() });
                let this = process.next(Instant::ZERO, &PacketMeta { size: 1500, ..PacketMeta::default() });
                *place += u32::from(this);
                lost += u32::from(this);
            }
            assert_eq!(lost, 2, "group {group}");
        }
        // Each place 2000 / 11 = 182 times, with a standard deviation of 12.
        assert!(places.iter().all(|count| (130..235).contains(count)), "{places:?}");
    }

    #[test]
    fn a_trace_repeats_from_a_place_that_the_seed_chooses() {
        let trace = crate::config::LossTrace::parse("t", "# seen on a Monday\n0001\n10, 0").unwrap();
        assert_eq!(trace.lost.len(), 7);
        let config = Loss::Trace(trace.clone());
        assert!((config.mean() - 2.0 / 7.0).abs() < 1e-12);
        let seen = lost(&config, 4, 21);
        assert!(seen[..7] == seen[7..14] && seen.iter().filter(|lost| **lost).count() == 6, "{seen:?}");
        let starts: std::collections::BTreeSet<Vec<bool>> = (0..50).map(|seed| lost(&config, seed, 7)).collect();
        assert_eq!(starts.len(), 7);
        assert!(crate::config::LossTrace::parse("t", "012").is_err());
        let json = through_text(&config);
        assert_eq!(json, config);
    }

    /// Through text and back.
    fn through_text(loss: &Loss) -> Loss {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct File {
            loss: Loss,
        }
        let text = toml::to_string(&File { loss: loss.clone() }).unwrap();
        toml::from_str::<File>(&text).unwrap().loss
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
