//! Round trips, and variation of the one-way delay.

use lab::stats::interval::median_interval;
use serde::Serialize;

use super::{Arrival, Estimate, at, milliseconds, to_f64};

/// Round-trip times in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::probe) struct RoundTrips {
    /// Smallest: the empty path, and this machine.
    pub(in crate::probe) smallest: Estimate,
    pub(in crate::probe) median: Estimate,
    /// `None` below 60 samples.
    pub(in crate::probe) p95: Option<f64>,
    pub(in crate::probe) mean: f64,
}

/// Number of samples that a 95th percentile needs.
const P95_SAMPLES: usize = 60;

impl RoundTrips {
    /// `None` without a sample. Times are microseconds.
    pub(in crate::probe) fn of(micros: &[u64]) -> Option<Self> {
        let mut times: Vec<f64> =
            micros.iter().map(|time| milliseconds(i64::try_from(*time).unwrap_or(i64::MAX))).collect();
        times.sort_by(f64::total_cmp);
        let (first, count) = (*times.first()?, times.len());
        let median = match median_interval(&times, 0.95) {
            Some(found) => Estimate::new(found.value, found.low, found.high, count),
            None => Estimate::new(at(&times, 0.5)?, first, *times.last()?, count),
        };
        // The path's own minimum is no larger; it is smaller by as much as the smallest samples lie apart.
        let spread = at(&times, 0.1)? - first;
        let smallest = Estimate::new(first, (first - spread).max(0.0), first, count);
        let p95 = (count >= P95_SAMPLES).then(|| at(&times, 0.95)).flatten();
        Some(Self { smallest, median, p95, mean: times.iter().sum::<f64>() / to_f64(count) })
    }
}

/// One-way delay above its smallest value in ms (RFC 5481 §4.2): needs no common clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::probe) struct Variation {
    pub(in crate::probe) median: Estimate,
    pub(in crate::probe) p95: f64,
    pub(in crate::probe) most: f64,
}

impl Variation {
    /// `None` without an arrival.
    pub(in crate::probe) fn of(arrivals: &[Arrival]) -> Option<Self> {
        let smallest = arrivals.iter().map(Arrival::one_way).min()?;
        let mut above: Vec<f64> =
            arrivals.iter().map(|arrival| milliseconds(arrival.one_way().saturating_sub(smallest))).collect();
        above.sort_by(f64::total_cmp);
        let (first, last) = (*above.first()?, *above.last()?);
        let median = match median_interval(&above, 0.95) {
            Some(found) => Estimate::new(found.value, found.low, found.high, above.len()),
            None => Estimate::new(at(&above, 0.5)?, first, last, above.len()),
        };
        Some(Self { median, p95: at(&above, 0.95)?, most: last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_have_their_order_statistics() {
        let times: Vec<u64> = (1..=100).map(|ms| ms * 1_000).collect();
        let found = RoundTrips::of(&times).unwrap();
        assert_eq!((found.smallest.value, found.smallest.high, found.p95), (1.0, Some(1.0), Some(95.0)));
        assert!(found.median.covers(50.5) && found.median.low > 35.0 && found.median.high.unwrap() < 65.0, "{found:?}");
        assert!((found.mean - 50.5).abs() < 1e-9);
        assert_eq!(RoundTrips::of(&[]), None);
        assert_eq!(RoundTrips::of(&[5_000]).unwrap().p95, None);
    }

    #[test]
    fn variation_does_not_depend_on_the_clocks() {
        for offset in [0_u64, 7_000_000, 0_u64.wrapping_sub(3_000_000)] {
            let arrivals: Vec<Arrival> = (0..101)
                .map(|number| {
                    let sent = 10_000_000 + u64::from(number) * 1_000;
                    Arrival {
                        number,
                        sent,
                        received: sent.wrapping_add(offset) + 20_000 + u64::from(number % 11) * 1_000,
                    }
                })
                .collect();
            let found = Variation::of(&arrivals).unwrap();
            assert_eq!((found.most, found.p95), (10.0, 10.0));
            assert!(found.median.covers(5.0), "{found:?}");
        }
    }
}
