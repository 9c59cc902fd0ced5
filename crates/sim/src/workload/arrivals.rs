//! Arrival processes of messages.

use rand_core::RngCore;
use serde::{Deserialize, Serialize};
use units::{Duration, Instant, RandomStream};

/// Time at which messages come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Arrivals {
    /// At a constant rate, without drift: message `n` comes `n / per-second` after the start.
    Constant {
        /// Messages per second.
        #[serde(rename = "per-second")]
        per_second: u32,
    },
    /// Independent of one another (a Poisson process): gaps are exponential.
    Poisson {
        /// Mean number of messages per second.
        #[serde(rename = "per-second")]
        per_second: u32,
    },
    /// All at the start.
    AtOnce,
}

/// The times at which messages come. Endless.
#[derive(Clone, Debug)]
pub struct ArrivalTimes {
    arrivals: Arrivals,
    start: Instant,
    number: u64,
    /// Time of the last message of a Poisson process.
    last: Instant,
    draws: RandomStream,
}

impl ArrivalTimes {
    /// The times from `start` on. Constant rates and `AtOnce` begin at `start` itself. A rate of zero never comes.
    pub const fn new(arrivals: Arrivals, start: Instant, draws: RandomStream) -> Self {
        Self { arrivals, start, number: 0, last: start, draws }
    }
}

impl Iterator for ArrivalTimes {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        let number = self.number;
        self.number += 1;
        Some(match self.arrivals {
            Arrivals::AtOnce => self.start,
            Arrivals::Constant { per_second: 0 } | Arrivals::Poisson { per_second: 0 } => return None,
            Arrivals::Constant { per_second } => {
                let nanos = u128::from(number) * 1_000_000_000 / u128::from(per_second);
                self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            Arrivals::Poisson { per_second } => {
                self.last += exponential(self.draws.next_u64(), 1e9 / f64::from(per_second));
                self.last
            }
        })
    }
}

/// An exponential span with this mean, in nanoseconds, from one draw.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "53 random bits; the product is positive and far below 2^64"
)]
fn exponential(draw: u64, mean: f64) -> Duration {
    let uniform = ((draw >> 11) + 1) as f64 / (1u64 << 53) as f64;
    Duration::from_nanos((-ln(uniform) * mean).round() as u64)
}

/// The natural logarithm of a positive normal number, by additions, multiplications and divisions alone. The system's
/// mathematical library gives other last digits on other machines, and with them another simulation.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    #[expect(clippy::cast_possible_wrap, reason = "11 bits")]
    let mut exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    // ln m = 2 artanh s with s = (m - 1) / (m + 1), and |s| < 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..12).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent * core::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use units::Seed;

    use super::*;

    fn times(arrivals: Arrivals, seed: u64) -> ArrivalTimes {
        ArrivalTimes::new(arrivals, Instant::from_millis(5), Seed::from_number(seed).stream("arrivals"))
    }

    #[test]
    fn a_constant_rate_does_not_drift() {
        let mut times = times(Arrivals::Constant { per_second: 60 }, 1);
        assert_eq!(times.next(), Some(Instant::from_millis(5)));
        assert_eq!(times.nth(59), Some(Instant::from_millis(1005)));
        assert_eq!(times.nth(60 * 3600 - 1), Some(Instant::from_millis(3_601_005)));
    }

    #[test]
    fn gaps_of_a_poisson_process_are_exponential() {
        let times: Vec<u64> =
            times(Arrivals::Poisson { per_second: 1000 }, 1).take(100_000).map(Instant::as_nanos).collect();
        let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        #[expect(clippy::cast_precision_loss, reason = "a test")]
        let share = |limit| gaps.iter().filter(|&&gap| gap < limit).count() as f64 / gaps.len() as f64;
        // 1 - e^(-t/mean) at a tenth of the mean, the median, the mean and three times it; standard error below 0.16 %.
        for (limit, expected) in [(100_000, 0.0952), (693_147, 0.5), (1_000_000, 0.6321), (3_000_000, 0.9502)] {
            assert!((share(limit) - expected).abs() < 0.006, "{limit}: {}", share(limit));
        }
    }

    #[test]
    fn the_logarithm_is_right() {
        for x in [1.0, 0.5, 0.999_999, 1.0 / 3.0, 1.5, 2.0, 1e-16, 1e300, core::f64::consts::E] {
            assert!((ln(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn never_and_at_once() {
        assert_eq!(times(Arrivals::Constant { per_second: 0 }, 1).next(), None);
        assert!(times(Arrivals::AtOnce, 1).take(5).all(|at| at == Instant::from_millis(5)));
    }
}
