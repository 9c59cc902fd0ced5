//! Samples of connections that matched a policy, for each policy and arm: with the policy, and without it (control group). Each is a
//! bounded reservoir sample, however many connections there were.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use tiderace::Stats;

/// Connections that are kept of each arm.
const KEPT: usize = 2_000;
/// Bytes of content from which on an answer counts for the rate.
pub(crate) const LARGE: u64 = 64 * 1024;
/// Packets from which on a ratio is reported.
const ENOUGH: u64 = 100;

/// Arm of the comparison that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arm {
    With,
    Without,
}

impl Arm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::With => "with",
            Self::Without => "without",
        }
    }
}

/// Sample of one connection. What could not be measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Bytes per second of large answers, from their fields to their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// The smoothed round trip over the smallest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queueing: Option<f64>,
    /// Share of lost packets; with half a packet more, so that a ratio between two of them exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<f64>,
}

impl Sample {
    pub(crate) fn new(stats: &Stats, (bytes, seconds): (u64, f64)) -> Self {
        let queueing = (stats.min_rtt > 0).then(|| stats.smoothed_rtt as f64 / stats.min_rtt as f64);
        let loss = (stats.packets_sent >= ENOUGH)
            .then(|| (stats.packets_lost as f64 + 0.5) / (stats.packets_sent as f64 + 1.0));
        Self { rate: (bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds), queueing, loss }
    }
}

/// Samples kept of an arm.
#[derive(Default, Serialize)]
struct ArmSamples {
    connections: u64,
    samples: Vec<Sample>,
}

/// All arms of all policies. They outlive reloads: a policy is known by its name.
#[derive(Default)]
pub(crate) struct Arms {
    kept: Mutex<BTreeMap<(String, Arm), ArmSamples>>,
    lots: RandomState,
}

impl Arms {
    pub(crate) fn add(&self, policy: &str, arm: Arm, sample: Sample) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let arm = kept.entry((policy.to_owned(), arm)).or_default();
        arm.connections += 1;
        if arm.samples.len() < KEPT {
            arm.samples.push(sample);
            return;
        }
        // Each of all connections is kept with the same probability.
        let lot = self.lots.hash_one((policy, arm.connections)) % arm.connections;
        if let Some(place) = usize::try_from(lot).ok().and_then(|lot| arm.samples.get_mut(lot)) {
            *place = sample;
        }
    }

    /// Returns all statistics, by policy and arm.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = serde_json::Map::new();
        for ((policy, arm), kept) in kept.iter() {
            let entry = all.entry(policy.clone()).or_insert_with(|| serde_json::json!({}));
            entry[arm.name()] = serde_json::json!(kept);
        }
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_sample_of_equal_chances() {
        let arms = Arms::default();
        let total = 20_000;
        for number in 0..total {
            arms.add("p", Arm::With, Sample { rate: Some(f64::from(number)), ..Sample::default() });
        }
        arms.add("p", Arm::Without, Sample::default());
        let json = arms.to_json();
        assert_eq!(json["p"]["with"]["connections"], total);
        assert_eq!(json["p"]["without"]["samples"].as_array().unwrap().len(), 1);
        let samples = json["p"]["with"]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), KEPT);
        let mean = samples.iter().map(|sample| sample["rate"].as_f64().unwrap()).sum::<f64>() / KEPT as f64;
        // Six standard errors of the mean of 2,000 out of a uniform distribution.
        assert!((mean - 10_000.0).abs() < 6.0 * 20_000.0 / 12_f64.sqrt() / (KEPT as f64).sqrt(), "{mean}");
    }

    #[test]
    fn what_a_connection_could_not_show_is_absent() {
        let none = Sample::new(&Stats::default(), (0, 0.0));
        assert_eq!(none, Sample::default());
        let stats = Stats { min_rtt: 10, smoothed_rtt: 15, packets_sent: 199, packets_lost: 1, ..Stats::default() };
        let some = Sample::new(&stats, (LARGE, 2.0));
        assert_eq!((some.rate, some.queueing, some.loss), (Some(32_768.0), Some(1.5), Some(0.0075)));
    }
}
