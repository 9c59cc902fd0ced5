//! Loss and the lengths of its bursts, by the two-state chain of Gilbert: a packet is lost or received, with a probability that
//! depends on the fate of the packet before it.

use serde::Serialize;

use super::{Estimate, share, to_f64};

/// Loss of a train of packets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::probe) struct Loss {
    pub(in crate::probe) sent: usize,
    pub(in crate::probe) lost: usize,
    /// Share of packets lost.
    pub(in crate::probe) share: Estimate,
    /// Mean number of packets lost in a row; `None` without a loss.
    pub(in crate::probe) burst: Option<Estimate>,
    /// Longest burst.
    pub(in crate::probe) longest: usize,
}

/// Mean burst length above which losses are not independent.
const DEPENDENT: f64 = 1.5;

impl Loss {
    /// Reads the fate of each packet in the order of sending: `true` was received.
    pub(in crate::probe) fn of(received: &[bool]) -> Self {
        let (sent, lost) = (received.len(), received.iter().filter(|arrived| !**arrived).count());
        let mut bursts = Vec::new();
        for run in received.chunk_by(|a, b| a == b).filter(|run| !run[0]) {
            bursts.push(run.len());
        }
        let count = bursts.len();
        // Each lost packet is the last of its burst with the same probability, which is the inverse of the mean length.
        let burst = (lost > 0).then(|| {
            let last = share(count, lost, 1.0);
            let length = |share: f64| if share > 0.0 { 1.0 / share } else { f64::INFINITY };
            Estimate {
                value: to_f64(lost) / to_f64(count.max(1)),
                low: length(last.high.unwrap_or(1.0)).max(1.0),
                high: Some(length(last.low)).filter(|high| high.is_finite()),
                samples: count,
            }
        });
        let share = share(lost, sent, inflation(sent, lost, count));
        Self { sent, lost, share, burst, longest: bursts.into_iter().max().unwrap_or(0) }
    }

    /// Reads it from the numbers of those of `sent` packets that arrived.
    pub(in crate::probe) fn of_numbers(sent: usize, arrived: impl Iterator<Item = u32>) -> Self {
        let mut received = vec![false; sent];
        for number in arrived {
            if let Some(fate) = usize::try_from(number).ok().and_then(|number| received.get_mut(number)) {
                *fate = true;
            }
        }
        Self::of(&received)
    }

    /// Returns whether losses come in bursts, with the confidence of the interval.
    pub(in crate::probe) fn is_bursty(&self) -> bool {
        self.burst.is_some_and(|burst| burst.value >= DEPENDENT && burst.low > 1.0 / (1.0 - self.share.value).max(0.1))
    }
}

/// Number of packets with the information of one independent packet: (1 + ρ) / (1 - ρ) for the chain's correlation ρ.
fn inflation(sent: usize, lost: usize, bursts: usize) -> f64 {
    if lost == 0 || lost == sent {
        return 1.0;
    }
    let ends = to_f64(bursts) / to_f64(lost);
    // With few bursts their length is hardly known: one standard error longer, so that the interval keeps its promise.
    let ends = ends - (ends * (1.0 - ends) / to_f64(lost)).sqrt();
    let begins = to_f64(bursts) / to_f64(sent - lost);
    let correlation = (1.0 - ends - begins).clamp(0.0, 0.99);
    (1.0 + correlation) / (1.0 - correlation)
}

#[cfg(test)]
mod tests {
    use netem::{LinkConfig, Loss as Law};
    use units::{Probability, Seed};

    use super::*;

    /// Fates of packets on a link with this law.
    fn fates(law: Law, count: u32, seed: u64) -> Vec<bool> {
        let config = LinkConfig { loss: law, ..LinkConfig::default() };
        let mut link = netem::Link::new(&config, Seed::from_number(seed)).unwrap();
        let mut now = units::Instant::ZERO;
        (0..count)
            .map(|_| {
                now += units::Duration::from_millis(1);
                super::super::tests_support::passes(&mut link, now)
            })
            .collect()
    }

    #[test]
    fn a_known_sequence_has_its_bursts() {
        let found = Loss::of(&[true, false, false, true, true, false, true, false, false, false]);
        assert_eq!((found.sent, found.lost, found.longest), (10, 6, 3));
        assert!((found.share.value - 0.6).abs() < 1e-12);
        assert!((found.burst.unwrap().value - 2.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_lost_is_bounded_by_the_number_sent() {
        let found = Loss::of(&[true; 1_000]);
        assert_eq!((found.share.value, found.share.low, found.burst, found.longest), (0.0, 0.0, None, 0));
        assert!((0.003..0.005).contains(&found.share.high.unwrap()));
        assert!(!found.is_bursty());
        assert_eq!(Loss::of(&[]).share.high, Some(1.0));
        assert_eq!(Loss::of(&[false; 3]).share.value, 1.0);
    }

    #[test]
    fn numbers_that_were_never_sent_count_for_nothing() {
        let found = Loss::of_numbers(4, [0, 2, 2, 9, u32::MAX].into_iter());
        assert_eq!((found.sent, found.lost), (4, 2));
    }

    /// Bursts of Gilbert and Elliott: intervals cover the law as often as they promise. With 100 trains at 95 %, fewer than 87
    /// happen once in 2,000 times.
    #[test]
    fn intervals_of_bursty_loss_cover_the_law() {
        let (mean, length) = (0.02, 4.0);
        let law = Law::Burst { mean: Probability::new(mean).unwrap(), length };
        let (mut shares, mut lengths, mut bursty, mut naive) = (0, 0, 0, 0);
        for seed in 0..100 {
            let fates = fates(law.clone(), 6_000, seed);
            let found = Loss::of(&fates);
            shares += u32::from(found.share.covers(mean));
            lengths += u32::from(found.burst.unwrap().covers(length));
            bursty += u32::from(found.is_bursty());
            naive += u32::from(share(found.lost, found.sent, 1.0).covers(mean));
        }
        assert!(shares >= 87 && lengths >= 87, "{shares} shares and {lengths} lengths of 100");
        assert_eq!(bursty, 100);
        assert!(naive < 80, "without the correction {naive} of 100 would do");
    }

    /// Short trains have few bursts: the interval covers the law at least nine times in ten.
    #[test]
    fn intervals_of_few_bursts_cover_the_law() {
        for (count, mean, length) in [(2_000, 0.02, 3.0), (1_500, 0.01, 4.0), (600, 0.03, 3.0), (2_000, 0.02, 1.0)] {
            let law = Law::Burst { mean: Probability::new(mean).unwrap(), length };
            let covers = |seed| Loss::of(&fates(law.clone(), count, seed)).share.covers(mean);
            let covered = (0..500).filter(|seed| covers(*seed)).count();
            assert!(covered >= 450, "{count} packets, bursts of {length}: {covered} of 500");
        }
    }

    #[test]
    fn independent_loss_is_not_taken_for_bursts() {
        let law = Law::Iid { p: Probability::new(0.05).unwrap() };
        let found: Vec<Loss> = (0..50).map(|seed| Loss::of(&fates(law.clone(), 4_000, seed))).collect();
        assert_eq!(found.iter().filter(|found| found.is_bursty()).count(), 0);
        assert!(found.iter().filter(|found| found.share.covers(0.05)).count() >= 42);
    }
}
