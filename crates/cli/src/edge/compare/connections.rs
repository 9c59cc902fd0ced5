//! Policies with transport settings: connections under a policy against its control group. The draw is by connection, and so is the
//! comparison.

use lab::{
    stats::compare::{Better, Comparison, MARGIN, Rule, Scale, Tolerance, compare_unpaired},
    versus,
};
use serde::Serialize;
use serde_json::Value;

/// The figures of an arm: name, comparison rule, and description.
const FIGURES: [(&str, Rule, &str); 3] = [
    ("rate", rule(Better::Higher, 0.0), "bytes per second of answers above 64 KiB"),
    ("queueing", rule(Better::Lower, 0.0), "smoothed over smallest round trip"),
    ("loss", rule(Better::Lower, 0.001), "packets lost"),
];

const fn rule(better: Better, absolute: f64) -> Rule {
    Rule { better: Some(better), scale: Scale::Ratio, tolerance: Tolerance { relative: MARGIN, absolute } }
}

/// Comparison of one figure.
#[derive(Serialize)]
struct FigureRow {
    figure: &'static str,
    #[serde(skip)]
    about: &'static str,
    with: usize,
    without: usize,
    /// `None` when an arm has no value.
    result: Option<Comparison>,
}

/// Comparison of a policy with its control group.
#[derive(Serialize)]
pub(super) struct Policy {
    policy: String,
    connections_with: u64,
    connections_without: u64,
    figures: Vec<FigureRow>,
}

impl Policy {
    /// Compares the samples of a gateway's answer.
    pub(super) fn compare(policy: &str, arms: &Value) -> Self {
        let count = |arm: &str| arms[arm]["connections"].as_u64().unwrap_or(0);
        let row = |(figure, rule, about): (&'static str, Rule, &'static str)| {
            let values = |arm: &str| -> Vec<f64> {
                let samples = arms[arm]["samples"].as_array().map(Vec::as_slice).unwrap_or_default();
                samples.iter().filter_map(|sample| sample[figure].as_f64()).collect()
            };
            let (with, without) = (values("with"), values("without"));
            let result = compare_unpaired(&with, &without, &rule);
            FigureRow { figure, about, with: with.len(), without: without.len(), result }
        };
        Self {
            policy: policy.to_owned(),
            connections_with: count("with"),
            connections_without: count("without"),
            figures: FIGURES.into_iter().map(row).collect(),
        }
    }

    /// The comparison as text.
    pub(super) fn text(&self) -> String {
        let Self { policy, connections_with, connections_without, figures } = self;
        let mut text = format!("{policy}: {connections_with} connections with it, {connections_without} without\n");
        for FigureRow { figure, about, with, without, result } in figures {
            let line = match result {
                None => "nothing to compare".to_owned(),
                Some(result) => {
                    let needed = result.pairs_needed.map(|runs| format!(", about {runs} of each would decide"));
                    let size = match result.ratio {
                        Some(ratio) => format!("{:.3} [{:.3}, {:.3}] × without", ratio.value, ratio.low, ratio.high),
                        None => format!("{:+.4} against without", result.difference.value),
                    };
                    format!("{size}: {}{}", versus::word(result.verdict), needed.unwrap_or_default())
                }
            };
            text.push_str(&format!("  {figure:<9} {line}  ({about}; {with} and {without})\n"));
        }
        text
    }
}
