//! A rate that follows a distribution.

use serde::{Deserialize, Serialize};
use units::{Bitrate, Duration, Probability};

/// Rate that is drawn anew in each period, so that it has a published distribution over time, in place of `rate`.
///
/// ```toml
/// varying-rate = { quantiles = [["0 %", "2 Mbit/s"], ["50 %", "13 Mbit/s"], ["100 %", "30 Mbit/s"]], period = "1 s", stays = "60 %" }
/// ```
///
/// The rate at a time depends on the seed and on nothing that passed before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VaryingRate {
    /// Pairs of a share and the rate that this share of the time does not exceed, with straight lines in between. What is below
    /// the first share has the first rate.
    pub quantiles: Vec<(Probability, Bitrate)>,
    /// Length of a period.
    #[serde(with = "units::duration_text")]
    pub period: Duration,
    /// Share of the periods that keep the rate of the one before. A rate then lasts for `period / (1 - stays)` on average, and the
    /// distribution stays the same.
    #[serde(default)]
    pub stays: Probability,
}

impl VaryingRate {
    /// The longest memory: a rate that lasts for a hundred periods.
    pub const STAYS_MAX: f64 = 0.99;

    /// Returns whether it is a distribution.
    pub(super) fn is_sound(&self) -> bool {
        let ascends = self.quantiles.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1);
        let ends = self.quantiles.last().is_some_and(|last| last.0 == Probability::ONE);
        let begins = self.quantiles.first().is_some_and(|first| first.1.as_bps() > 0);
        ascends && ends && begins && !self.period.is_zero() && self.stays.get() <= Self::STAYS_MAX
    }

    /// The mean over a long time.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bits per second below 2^53"
    )]
    pub fn mean(&self) -> Bitrate {
        let rate = |rate: Bitrate| rate.as_bps() as f64;
        let first = self.quantiles.first().map_or(0.0, |(share, least)| share.get() * rate(*least));
        let between = self.quantiles.windows(2).map(|pair| {
            let [(from, low), (to, high)] = [pair[0], pair[1]];
            (to.get() - from.get()) * (rate(low) + rate(high)) / 2.0
        });
        Bitrate::from_bps((first + between.sum::<f64>()).round() as u64)
    }

    /// The lowest rate.
    pub fn least(&self) -> Bitrate {
        self.quantiles.first().map_or(Bitrate::from_bps(0), |first| first.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(quantiles: &[(f64, u64)]) -> VaryingRate {
        let pair = |&(share, mbps): &(f64, u64)| (Probability::new(share).unwrap(), Bitrate::from_mbps(mbps));
        VaryingRate {
            quantiles: quantiles.iter().map(pair).collect(),
            period: Duration::from_secs(1),
            stays: Probability::ZERO,
        }
    }

    #[test]
    fn the_mean_is_the_area() {
        assert_eq!(rate(&[(0.0, 2), (0.5, 10), (1.0, 30)]).mean(), Bitrate::from_mbps(13));
        // The lowest half is constant.
        assert_eq!(rate(&[(0.5, 10), (1.0, 30)]).mean(), Bitrate::from_mbps(15));
        assert_eq!(rate(&[(1.0, 7)]).mean(), Bitrate::from_mbps(7));
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        assert!(rate(&[(0.0, 2), (1.0, 3)]).is_sound());
        for wrong in [&[][..], &[(0.5, 2)], &[(0.5, 3), (1.0, 2)], &[(0.5, 1), (0.5, 2), (1.0, 3)], &[(1.0, 0)]] {
            assert!(!rate(wrong).is_sound(), "{wrong:?}");
        }
        assert!(!VaryingRate { period: Duration::ZERO, ..rate(&[(1.0, 2)]) }.is_sound());
        assert!(!VaryingRate { stays: Probability::ONE, ..rate(&[(1.0, 2)]) }.is_sound());
    }
}
