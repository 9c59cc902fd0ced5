//! Shares of a bottleneck: two downloads with different controllers, over the size of the buffer.
//!
//! This holds for every measured implementation, and in the literature (Cao et al., IMC 2019): the share of BBR beside CUBIC falls as the
//! buffer grows, and so does the share of NewReno. Two flows of a kind share evenly, in the median over start offsets; a single run may not
//! (Floyd & Jacobson's phase effects).

use transport::Profile;
use units::{Bitrate, Duration};

use super::{
    Failed, Finding, centre,
    flows::{self, Flow, Plan},
    on_all_cores,
};
use crate::stats::{
    compare::{Rule, Scale, Tolerance, compare_unpaired},
    fairness::jain,
    interval::Interval,
};

/// Buffers in bandwidth-delay products.
pub const BUFFERS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
/// Rise of a share from one buffer to the next larger one at most: runs differ.
pub const RISE: f64 = 0.05;
/// Jain's index of two flows of a kind, at least.
pub const ALIKE: f64 = 0.95;

/// Length and number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of start offsets.
    pub offsets: u32,
    /// Virtual seconds measured in each run.
    pub seconds: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { offsets: 10, seconds: 60 }
    }
}

/// Goodput of two downloads over 20 Mbit/s and 50 ms, in Mbit/s, for each start offset: half of them lets the first begin,
/// half the second.
///
/// # Errors
/// When there is no such controller, or a run cannot be used.
pub fn pairs(first: &str, second: &str, buffer: f64, effort: Effort) -> Result<Vec<[f64; 2]>, Failed> {
    let plan = plan(buffer, effort);
    let profile = |name: &str| -> Result<Profile, Failed> {
        let congestion = name.parse().map_err(|error| Failed(format!("{error}")))?;
        Ok(Profile { congestion, ..Profile::default() })
    };
    let profiles = [profile(first)?, profile(second)?];
    on_all_cores(effort.offsets.into(), |index| {
        // From 3 s before to 3 s after, never together.
        #[expect(clippy::cast_precision_loss, reason = "a few offsets")]
        let offset = (index as f64 + 0.5) / f64::from(effort.offsets) * 6.0 - 3.0;
        let starts = [offset.max(0.0), (-offset).max(0.0)].map(Duration::from_secs_f64);
        let flow = |place: usize| Flow { start: starts[place], ..Flow::new(profiles[place].clone()) };
        let outcome = flows::run(&plan, &[flow(0), flow(1)], index + 1)?;
        Ok([0, 1].map(|place: usize| outcome.flows[place].goodput / 1e6))
    })
}

/// Goodput of one download alone, in Mbit/s.
fn alone(controller: &str, buffer: f64, effort: Effort) -> Result<f64, Failed> {
    let plan = plan(buffer, effort);
    let congestion = controller.parse().map_err(|error| Failed(format!("{error}")))?;
    let outcome = flows::run(&plan, &[Flow::new(Profile { congestion, ..Profile::default() })], 1)?;
    Ok(outcome.flows[0].goodput / 1e6)
}

fn plan(buffer: f64, effort: Effort) -> Plan {
    Plan {
        warmup: Duration::from_secs(20),
        duration: Duration::from_secs(effort.seconds.into()),
        ..Plan::new(Bitrate::from_mbps(20), Duration::from_millis(50), buffer, 0.0)
    }
}

/// The share of the first controller beside the second, for each of [`BUFFERS`], and how much it rises at most from one to
/// the next.
///
/// # Errors
/// When a run cannot be used.
pub fn beside(first: &'static str, second: &'static str, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    let mut all: Vec<Vec<f64>> = Vec::new();
    for buffer in BUFFERS {
        let pairs = pairs(first, second, buffer, effort)?;
        let alone = alone(second, buffer, effort)?;
        // Ware et al. (HotNets 2019): the part of what it had alone that the other takes from it.
        let harms: Vec<f64> = pairs.iter().map(|[_, b]| 100.0 * (1.0 - b / alone)).collect();
        let shares: Vec<f64> = pairs.iter().map(|[a, b]| 100.0 * a / (a + b)).collect();
        let (value, interval) = centre(&shares)?;
        all.push(shares);
        findings.push(Finding {
            name: format!("share of {first} beside {second}, {buffer} BDP"),
            value,
            interval,
            // Neither starves; the shape is judged below.
            target: 2.0..=98.0,
            unit: "%",
            detail: format!(
                "20 Mbit/s, 50 ms; harm to {second}: {:.0} % of the {alone:.1} Mbit/s that it gets alone; {} start offsets x {} s",
                centre(&harms)?.0,
                effort.offsets,
                effort.seconds
            ),
        });
    }
    let rises = BUFFERS.windows(2).zip(all.windows(2)).map(|(buffers, shares)| (buffers, rise(&shares[0], &shares[1])));
    let largest = rises.max_by(|(_, a), (_, b)| a.value.total_cmp(&b.value));
    let (buffers, rise) = largest.ok_or_else(|| Failed("there are no buffers".to_owned()))?;
    findings.push(Finding {
        name: format!("share of {first} beside {second}: rise from one buffer to the next larger one"),
        value: rise.value,
        interval: Some(rise),
        target: f64::NEG_INFINITY..=100.0 * RISE,
        unit: "points",
        detail: format!(
            "the largest of four, from {} to {} BDP: shift between two sets of {} start offsets, interval of Mann and Whitney",
            buffers[0], buffers[1], effort.offsets
        ),
    });
    Ok(findings)
}

/// By how much `after` lies above `before`, with its interval.
fn rise(before: &[f64], after: &[f64]) -> Interval {
    let tolerance = Tolerance { relative: 0.0, absolute: 0.0 };
    let rule = Rule { better: None, scale: Scale::Difference, tolerance };
    compare_unpaired(after, before, &rule).map_or(Interval::unbounded(f64::NAN), |result| result.difference)
}

/// Jain's index of two flows of a kind.
///
/// # Errors
/// When a run cannot be used.
pub fn alike(controller: &'static str, buffer: f64, effort: Effort) -> Result<Finding, Failed> {
    let pairs = pairs(controller, controller, buffer, effort)?;
    let indices: Option<Vec<f64>> = pairs.iter().map(|pair| jain(pair)).collect();
    let indices = indices.ok_or_else(|| Failed("nothing was delivered".to_owned()))?;
    let (value, interval) = centre(&indices)?;
    let least = indices.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Finding {
        name: format!("two {controller} flows, {buffer} BDP, Jain's index"),
        value,
        interval,
        target: ALIKE..=1.0,
        unit: "",
        detail: format!(
            "20 Mbit/s, 50 ms; {least:.3} at the least over {} offsets x {} s",
            effort.offsets, effort.seconds
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_has_an_interval_that_covers_it() {
        let before: Vec<f64> = (0..20).map(|i| 50.0 + f64::from(i % 5)).collect();
        let after: Vec<f64> = before.iter().map(|share| share + 3.0).collect();
        let rise = rise(&before, &after);
        assert!((rise.value - 3.0).abs() < 1e-9 && rise.low < 3.0 && rise.high > 3.0, "{rise:?}");
        assert!(rise.low > 0.0 && rise.high < 6.0, "{rise:?}");
    }
}
