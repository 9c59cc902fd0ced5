//! Estimators of a path: figures with intervals from sent and received packets. Pure: times and packets are arguments.
//!
//! [`loss`] has the share of lost packets and their bursts, [`order`] reordering, [`delay`] RTT and variation of the one-way delay,
//! [`overload`] rate, queue and policer from a train above the path's rate, [`responsiveness`] round trips per minute.

pub(super) mod delay;
pub(super) mod ecn;
pub(super) mod loss;
pub(super) mod order;
pub(super) mod overload;
pub(super) mod responsiveness;
#[cfg(test)]
mod tests_support;

use lab::stats::distribution::normal_quantile;
use serde::Serialize;

/// An estimate with the interval that covers the true value with 95 %, by the model that the estimator names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) value: f64,
    pub(super) low: f64,
    /// `None`: no upper bound.
    pub(super) high: Option<f64>,
    /// Samples behind it.
    pub(super) samples: usize,
}

impl Estimate {
    pub(super) const fn new(value: f64, low: f64, high: f64, samples: usize) -> Self {
        Self { value, low, high: Some(high), samples }
    }

    /// A value of which only the lower bound is known.
    pub(super) const fn at_least(value: f64, samples: usize) -> Self {
        Self { value, low: value, high: None, samples }
    }

    /// The same in another unit.
    pub(super) fn scaled(self, by: f64) -> Self {
        Self { value: self.value * by, low: self.low * by, high: self.high.map(|high| high * by), ..self }
    }

    /// Returns whether `value` lies in the interval.
    #[cfg(test)]
    pub(super) fn covers(&self, value: f64) -> bool {
        self.low <= value && self.high.is_none_or(|high| value <= high)
    }
}

/// A packet that arrived. Times are microseconds of the clock of the end that they were read at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Number of the packet in its train, from 0.
    pub(super) number: u32,
    /// Sender's clock.
    pub(super) sent: u64,
    /// Receiver's clock.
    pub(super) received: u64,
}

impl Arrival {
    /// Difference of both clocks: the one-way delay and a constant.
    fn one_way(&self) -> i64 {
        self.received.wrapping_sub(self.sent).cast_signed()
    }
}

/// Wilson's interval of a share: `hits` of `count`, where `inflation` consecutive samples have the information of one.
fn share(hits: usize, count: usize, inflation: f64) -> Estimate {
    let z = normal_quantile(0.975);
    let all = to_f64(count) / inflation.max(1.0);
    if count == 0 {
        return Estimate::new(0.0, 0.0, 1.0, 0);
    }
    let p = to_f64(hits) / to_f64(count);
    let scale = 1.0 + z * z / all;
    let centre = (p + z * z / (2.0 * all)) / scale;
    let half = z / scale * (p * (1.0 - p) / all + z * z / (4.0 * all * all)).sqrt();
    // At the ends of the range the formula leaves rounding errors.
    let low = if hits == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if hits == count { 1.0 } else { (centre + half).min(1.0) };
    Estimate::new(p, low, high, count)
}

/// The value below which a share `q` of an ascending list lies.
fn at<T: Copy>(ascending: &[T], q: f64) -> Option<T> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
    let place = (to_f64(ascending.len().saturating_sub(1)) * q).round() as usize;
    ascending.get(place).copied()
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
const fn to_f64(count: usize) -> f64 {
    count as f64
}

/// Microseconds as milliseconds.
#[expect(clippy::cast_precision_loss, reason = "times far below 2^53 µs")]
pub(super) const fn milliseconds(micros: i64) -> f64 {
    micros as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_the_interval_of_wilson() {
        // 10 of 100: published as 0.0552 to 0.1744.
        let found = share(10, 100, 1.0);
        assert!((found.low - 0.0552).abs() < 1e-4 && (found.high.unwrap() - 0.1744).abs() < 1e-4, "{found:?}");
        assert_eq!(
            (share(0, 50, 1.0).low, share(50, 50, 1.0).high, share(0, 0, 1.0).high),
            (0.0, Some(1.0), Some(1.0))
        );
        // Samples that depend on one another say less.
        let (wide, narrow) = (share(10, 100, 4.0), found);
        assert!(wide.low < narrow.low && wide.high > narrow.high);
    }
}
