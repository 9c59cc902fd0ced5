//! The rate of a period, drawn from a distribution.

use rand_core::RngCore;
use units::{RandomStream, Seed};

use crate::{
    config::VaryingRate,
    draw::{Chance, inverse},
};

/// Rates of the periods of one link.
#[derive(Clone, Debug)]
pub(crate) struct RateDraws {
    quantiles: Vec<(f64, u64)>,
    period: u64,
    stays: Chance,
    draws: RandomStream,
    /// The period that `rate` belongs to.
    index: u64,
    rate: u64,
}

impl RateDraws {
    pub(crate) fn new(config: &VaryingRate, seed: &Seed) -> Self {
        let mut draws = Self {
            quantiles: config.quantiles.iter().map(|(share, rate)| (share.get(), rate.as_bps())).collect(),
            period: u64::try_from(config.period.as_nanos()).unwrap_or(u64::MAX).max(1),
            stays: Chance::new(config.stays),
            draws: seed.stream("rate"),
            index: 0,
            rate: 0,
        };
        draws.turn(0);
        draws
    }

    /// The rate in bit/s at a nanosecond, and the one at which its period ends.
    pub(crate) fn at(&mut self, now: u64) -> (u64, u64) {
        let wanted = now / self.period;
        if wanted != self.index {
            self.turn(wanted);
        }
        (self.rate, (wanted + 1).saturating_mul(self.period))
    }

    /// Draws the rate of a period: that of the last one, up to it, that did not keep what was before. The place in the stream is that
    /// of the period, so that the rate does not depend on which packets passed.
    #[cold]
    fn turn(&mut self, wanted: u64) {
        let mut place = wanted;
        loop {
            // Two 32-bit words for each of two 64-bit draws.
            self.draws.set_word_pos(u128::from(place) * 4);
            let (keeps, value) = (self.draws.next_u64(), self.draws.next_u64());
            if place == 0 || !self.stays.decides(keeps) {
                let least = self.quantiles.first().map_or(1, |first| first.1);
                (self.index, self.rate) = (wanted, inverse(&self.quantiles, least, value).max(1));
                return;
            }
            place -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use units::{Bitrate, Duration, Probability};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn draws(stays: f64, seed: u64) -> RateDraws {
        let share = |share| Probability::new(share).unwrap();
        let quantiles = vec![
            (share(0.0), Bitrate::from_mbps(2)),
            (share(0.5), Bitrate::from_mbps(13)),
            (share(0.9), Bitrate::from_mbps(20)),
            (share(1.0), Bitrate::from_mbps(30)),
        ];
        let config = VaryingRate { quantiles, period: Duration::from_secs(1), stays: share(stays) };
        RateDraws::new(&config, &Seed::from_number(seed))
    }

    #[test]
    fn the_distribution_is_met_with_and_without_memory() {
        for (stays, off) in [(0.0, 0.01), (0.8, 0.03)] {
            let mut draws = draws(stays, 3);
            let mut seen: Vec<u64> = (0..40_000).map(|n| draws.at(n * SECOND).0).collect();
            seen.sort_unstable();
            for (share, mbps) in [(0.5, 13.0), (0.9, 20.0)] {
                let below = seen.partition_point(|rate| (*rate as f64) < mbps * 1e6) as f64 / 40_000.0;
                assert!((below - share).abs() < off, "{share} of {stays}: {below}");
            }
        }
    }

    #[test]
    fn rates_last_as_long_as_their_memory() {
        let mut draws = draws(0.8, 5);
        let seen: Vec<u64> = (0..40_000).map(|n| draws.at(n * SECOND).0).collect();
        let kept = seen.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64 / 39_999.0;
        assert!((kept - 0.8).abs() < 0.01, "{kept}");
    }

    #[test]
    fn the_rate_depends_on_time_and_seed_alone() {
        let mut one = draws(0.8, 7);
        let all: Vec<u64> = (0..200).map(|n| one.at(n * SECOND).0).collect();
        let mut other = draws(0.8, 7);
        // Backwards and with gaps.
        let some: Vec<u64> = (0..200).rev().step_by(7).map(|n| other.at(n * SECOND + 5).0).collect();
        assert_eq!(some, all.iter().rev().step_by(7).copied().collect::<Vec<_>>());
        assert_eq!(one.at(3 * SECOND + 9).1, 4 * SECOND);
        let mut third = draws(0.8, 8);
        assert_ne!((0..200).map(|n| third.at(n * SECOND).0).collect::<Vec<_>>(), all);
    }
}
