//! Two files of records of one scenario: what has changed from one to the other.

use serde::Serialize;
use units::Seed;

use crate::{
    figure::Figure,
    stats::{
        compare::{Better, Verdict, compare, compare_unpaired, judge},
        interval::{Interval, RUNS_MIN, mean, mean_interval},
    },
    summary::Summary,
};

/// Figures that a change is looked for in.
const WATCHED: [Figure; 9] = [
    Figure::Goodput,
    Figure::ResidualLoss,
    Figure::DelayP95,
    Figure::RequestP50,
    Figure::RequestP95,
    Figure::RttP95,
    Figure::Handshake,
    Figure::Retransmitted,
    Figure::Overhead,
];

/// A contender's figure after against before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Who.
    pub contender: String,
    /// Label of the figure.
    pub figure: &'static str,
    /// After / before with its interval.
    pub ratio: Interval,
    /// What follows.
    pub verdict: Verdict,
    /// About how many runs of each would decide, when these do not.
    pub needed: Option<usize>,
    /// The whole interval lies on the bad side, beyond the margin.
    pub certainly_worse: bool,
    /// Every run has the same value before and after.
    pub identical: bool,
}

/// Every contender that both have, in every figure that both have.
///
/// # Errors
/// When the two are not of the same scenario; the reason in words.
pub fn changes(before: &Summary, after: &Summary, margin: f64) -> Result<Vec<Change>, String> {
    if before.manifest.digest != after.manifest.digest || before.points != after.points {
        return Err(format!(
            "these are two scenarios: `{}` ({}) and `{}` ({})",
            before.manifest.scenario.name, before.manifest.digest, after.manifest.scenario.name, after.manifest.digest
        ));
    }
    let mut changes = Vec::new();
    for (index, name) in after.contenders.iter().enumerate() {
        let Some(other) = before.contenders.iter().position(|other| other == name) else { continue };
        for figure in WATCHED {
            changes.extend(change(before, after, (other, index), figure, margin));
        }
    }
    if changes.is_empty() {
        return Err("they have no contender with a figure in common".to_owned());
    }
    Ok(changes)
}

fn change(
    before: &Summary,
    after: &Summary,
    (old, new): (usize, usize),
    figure: Figure,
    margin: f64,
) -> Option<Change> {
    let better = figure.better()?;
    let seed = Seed::from_number(3).child(figure.key(), new as u64);
    let mut blocks = Vec::new();
    let mut all = Vec::new();
    let mut identical = true;
    for point in 0..after.points.len() {
        // The same seed met the same path: pairs. Seeds that only one has say nothing about the change of a point.
        let pair = |index: usize| {
            let other = before.seeds.iter().position(|seed| *seed == after.seeds[index])?;
            Some((after.value(point, new, index, figure)?, before.value(point, old, other, figure)?))
        };
        let pairs: Vec<(f64, f64)> = (0..after.seeds.len()).filter_map(pair).collect();
        #[expect(clippy::float_cmp, reason = "identical runs have identical bits")]
        let same = pairs.iter().all(|(a, b)| a == b);
        identical &= same;
        let positive: Vec<(f64, f64)> = pairs.into_iter().filter(|(a, b)| *a > 0.0 && *b > 0.0).collect();
        if !positive.is_empty() {
            blocks.push(mean(&positive.iter().map(|(a, b)| (a / b).ln()).collect::<Vec<_>>()));
            all.extend(positive);
        }
    }
    let (ratio, verdict, needed) = if all.is_empty() {
        // No seed in common: two sets of runs.
        let values = |summary: &Summary, contender| -> Vec<f64> {
            (0..summary.points.len()).flat_map(|point| summary.values(point, contender, figure)).collect()
        };
        identical = false;
        let result = compare_unpaired(&values(after, new), &values(before, old), better, margin, seed)?;
        (result.ratio, result.verdict, result.pairs_needed)
    } else if blocks.len() >= RUNS_MIN {
        let log = mean_interval(&blocks, 0.95, seed)?;
        let ratio =
            Interval { value: log.value.exp(), low: log.low.exp(), high: log.high.exp(), coverage: log.coverage };
        (ratio, judge(ratio, better, margin, blocks.len()), None)
    } else {
        let result = compare(&all, better, margin, seed)?;
        (result.ratio, result.verdict, result.pairs_needed)
    };
    // Nothing has changed at all: however few the runs, more of them would say the same.
    let (verdict, needed) = if identical { (Verdict::Equivalent, None) } else { (verdict, needed) };
    let enough = blocks.len().max(all.len()) >= RUNS_MIN || all.is_empty();
    let certainly_worse = enough
        && verdict == Verdict::Worse
        && match better {
            Better::Higher => ratio.high < 1.0 / (1.0 + margin),
            Better::Lower => ratio.low > 1.0 + margin,
        };
    Some(Change {
        contender: after.contenders[new].clone(),
        figure: figure.label(),
        ratio,
        verdict,
        needed,
        certainly_worse,
        identical,
    })
}
