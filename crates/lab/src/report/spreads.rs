//! Distributions of RTT and latency of the contenders at one point of a matrix, over all its seeds.

use super::points::Headlines;
use crate::{spread::Sampled, stats::distribution::to_f64, summary::Summary};

/// Distributions of one kind of sample.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    pub(super) kind: Sampled,
    /// Name and steps of each contender.
    pub(super) contenders: Vec<(String, Steps)>,
}

/// Values in seconds, ascending, each with the share of samples that do not exceed it. Missing samples have no step.
pub(super) type Steps = Vec<(f64, f64)>;

/// Distributions at the row of the headlines in which the contenders differ most.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreads {
    /// Levels of that row.
    pub(super) place: String,
    pub(super) kinds: Vec<Spread>,
}

impl Spreads {
    pub(super) fn new(summary: &Summary, headlines: &Headlines) -> Self {
        let row = widest(headlines);
        let Some(cells) = headlines.grid.cells.get(row) else { return Self::default() };
        let named = || headlines.grid.columns.iter().zip(cells);
        let kinds = Sampled::ALL.into_iter().map(|kind| {
            let contenders = named().filter_map(|(name, cell)| {
                let (point, contender) = (*cell)?;
                let steps = steps(summary.quantiles(point, contender, kind));
                (!steps.is_empty()).then(|| (name.clone(), steps))
            });
            Spread { kind, contenders: contenders.collect() }
        });
        let levels = headlines.grid.rows[row].iter().map(|(name, level)| format!("{name} {level}"));
        Self {
            place: levels.collect::<Vec<_>>().join(", "),
            kinds: kinds.filter(|spread| !spread.contenders.is_empty()).collect(),
        }
    }
}

/// The row in which the deciding figure differs most; the first of equals.
fn widest(headlines: &Headlines) -> usize {
    let Some(figure) = headlines.shown.first() else { return 0 };
    let far = |row: usize| {
        let medians =
            headlines.boards[row].rows.iter().filter(|row| row.figure == *figure).flat_map(|row| &row.medians);
        let known: Vec<f64> = medians.flatten().copied().filter(|value| value.is_finite()).collect();
        let (low, high) = known.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(*v), high.max(*v)));
        if low > 0.0 && high.is_finite() { high / low } else { high }
    };
    (0..headlines.boards.len()).rev().max_by(|a, b| far(*a).total_cmp(&far(*b))).unwrap_or(0)
}

/// The runs together, each with the same weight.
fn steps<'a>(runs: impl Iterator<Item = &'a [f32]>) -> Steps {
    let runs: Vec<&[f32]> = runs.filter(|run| !run.is_empty()).collect();
    let count = to_f64(runs.len());
    let weighted =
        runs.iter().flat_map(|run| run.iter().map(|value| (f64::from(*value), 1.0 / to_f64(run.len()) / count)));
    let mut values: Vec<(f64, f64)> = weighted.filter(|(value, _)| value.is_finite()).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut share = 0.0;
    for (_, weight) in &mut values {
        share += *weight;
        *weight = share;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_the_same_weight_and_what_never_came_has_no_step() {
        let (long, short) = ([1.0_f32, 2.0, 3.0, f32::INFINITY], [2.5_f32]);
        let found = steps([&long[..], &short[..], &[][..]].into_iter());
        let expected = [(1.0, 0.125), (2.0, 0.25), (2.5, 0.75), (3.0, 0.875)];
        assert_eq!(found.len(), expected.len());
        for (one, other) in found.iter().zip(expected) {
            assert!((one.0 - other.0).abs() < 1e-6 && (one.1 - other.1).abs() < 1e-9, "{found:?}");
        }
        assert!(steps(core::iter::empty()).is_empty());
    }
}
