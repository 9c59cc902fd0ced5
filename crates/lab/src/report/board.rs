//! Main figures of some contenders side by side: medians over the seeds, and the differences that the seeds decide.
//!
//! [`crate::stats::compare`] makes all decisions.

use std::collections::BTreeMap;

use crate::{
    figure::Figure,
    record::{Record, RunOutcome},
    stats::{
        compare::{Better, Comparison, Pair, Verdict, compare},
        interval::{Interval, centre},
    },
    summary::Summary,
};

/// A contender's figures, seed by seed. `None` is a seed without a run that counts; a figure that is not there is unknown.
pub(super) type Runs = Vec<Option<BTreeMap<Figure, f64>>>;

/// Headline figures of contenders.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// Names of the contenders.
    pub(super) columns: Vec<String>,
    /// One row per figure.
    pub(super) rows: Vec<Row>,
    /// Seeds.
    pub(super) seeds: usize,
}

/// One figure of all contenders.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) figure: Figure,
    /// Median over the seeds; `None` where a run lacks the figure.
    pub(super) medians: Vec<Option<f64>>,
    /// Intervals of the medians; `None` below six seeds.
    pub(super) intervals: Vec<Option<Interval>>,
    /// Outcome: the best contenders.
    pub(super) outcome: Outcome,
    /// Standings of the contenders against the best median. Empty without a best one.
    pub(super) standings: Vec<Standing>,
}

/// Best contenders in a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Leaders: the best median and those within the tolerance of it. All others are worse.
    Leads(Vec<usize>),
    /// All lie within the tolerance of the best median.
    Even,
    /// The first has the best median, but the seeds do not separate it from the second. About this many seeds would.
    Open(usize, usize, Option<usize>),
    /// The figure has no better and worse, or a contender lacks it.
    None,
}

/// Standing of a contender against another one in a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    /// Better; the interval of the median difference (first minus second) leaves out 0.
    Ahead(Interval),
    /// Worse, likewise.
    Behind,
    /// No difference that matters.
    Level,
    /// The seeds do not decide.
    Undecided,
}

impl Board {
    /// Compares the runs of contenders, whose seeds are the same ones in the same order.
    pub(super) fn new(columns: Vec<String>, runs: &[Runs], figures: &[Figure]) -> Self {
        let rows = figures.iter().map(|&figure| row(figure, runs));
        // A figure that nobody has is no headline.
        let rows = rows.filter(|row| row.medians.iter().any(Option::is_some)).collect();
        Self { columns, rows, seeds: runs.first().map_or(0, Vec::len) }
    }
}

/// The runs of a contender in the order of `seeds`.
pub(super) fn runs_of(records: &[&Record], seeds: impl Iterator<Item = u64>, figures: &[Figure]) -> Runs {
    let run = |seed| {
        let record = records.iter().find(|record| record.seed == seed && record.outcome == RunOutcome::Valid)?;
        let value = |&figure: &Figure| Some((figure, record.figures.get(&figure)?.ranked(figure)?));
        Some(figures.iter().filter_map(value).collect())
    };
    seeds.map(run).collect()
}

/// The runs of a contender at a point of a matrix.
pub(super) fn runs_at(summary: &Summary, (point, contender): (usize, usize), figures: &[Figure]) -> Runs {
    let run = |seed| {
        let value = |figure: Figure| Some((figure, summary.value(point, contender, seed, figure)?));
        summary.counts(point, contender, seed).then(|| figures.iter().filter_map(|&figure| value(figure)).collect())
    };
    (0..summary.seeds.len()).map(run).collect()
}

fn row(figure: Figure, runs: &[Runs]) -> Row {
    let centres = runs.iter().map(|runs| centre_of(runs, figure));
    let (medians, intervals): (Vec<Option<f64>>, Vec<Option<Interval>>) =
        centres.map(|found| found.map_or((None, None), |(median, interval)| (Some(median), interval))).unzip();
    let (outcome, standings) = decide(figure, runs, &medians);
    Row { figure, medians, intervals, outcome, standings }
}

fn centre_of(runs: &Runs, figure: Figure) -> Option<(f64, Option<Interval>)> {
    let values: Vec<Option<f64>> = runs.iter().flatten().map(|run| run.get(&figure).copied()).collect();
    centre(&values)
}

fn decide(figure: Figure, runs: &[Runs], medians: &[Option<f64>]) -> (Outcome, Vec<Standing>) {
    let nothing = (Outcome::None, Vec::new());
    let (Some(better), Some(medians)) = (figure.better(), medians.iter().copied().collect::<Option<Vec<f64>>>()) else {
        return nothing;
    };
    if medians.len() < 2 {
        return nothing;
    }
    let order = |a: &usize, b: &usize| match better {
        Better::Higher => medians[*b].total_cmp(&medians[*a]),
        Better::Lower => medians[*a].total_cmp(&medians[*b]),
    };
    let mut ranked: Vec<usize> = (0..medians.len()).collect();
    ranked.sort_by(order);
    let best = ranked[0];
    let standings: Vec<Standing> = (runs.iter().enumerate())
        .map(|(index, other)| if index == best { Standing::Level } else { standing(figure, &runs[best], other) })
        .collect();
    let open = ranked.iter().find(|&&index| matches!(standings[index], Standing::Undecided | Standing::Behind));
    let level = || ranked.iter().copied().filter(|&index| standings[index] == Standing::Level);
    let outcome = match open {
        Some(&rival) => {
            let needed = compared(figure, &runs[best], &runs[rival]).and_then(|result| result.pairs_needed);
            Outcome::Open(best, rival, needed)
        }
        None if level().count() == medians.len() => Outcome::Even,
        None => Outcome::Leads(level().collect()),
    };
    (outcome, standings)
}

/// Standing of `first` against `second`, seed by seed.
pub(super) fn standing(figure: Figure, first: &Runs, second: &Runs) -> Standing {
    let Some(result) = compared(figure, first, second) else { return Standing::Undecided };
    match result.verdict {
        Verdict::Better => Standing::Ahead(result.difference),
        Verdict::Worse => Standing::Behind,
        Verdict::Equivalent => Standing::Level,
        Verdict::Undecided | Verdict::Different => Standing::Undecided,
    }
}

fn compared(figure: Figure, first: &Runs, second: &Runs) -> Option<Comparison> {
    let both = first.iter().zip(second).filter_map(|(one, other)| Some((one.as_ref()?, other.as_ref()?)));
    let pairs: Vec<Pair> = both.map(|(one, other)| (one.get(&figure).copied(), other.get(&figure).copied())).collect();
    compare(&pairs, &figure.declaration().rule())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values in the unit that is printed.
    fn runs(figure: Figure, values: &[f64]) -> Runs {
        let scale = figure.unit().printed().1;
        values.iter().map(|value| Some(BTreeMap::from([(figure, *value / scale)]))).collect()
    }

    fn outcome(figure: Figure, contenders: &[&[f64]]) -> Outcome {
        let runs: Vec<Runs> = contenders.iter().map(|values| runs(figure, values)).collect();
        let names = (0..contenders.len()).map(|index| index.to_string()).collect();
        Board::new(names, &runs, &[figure]).rows[0].outcome.clone()
    }

    #[test]
    fn who_leads() {
        let (low, high) = ([10.0, 11.0, 12.0, 10.5, 11.5, 10.2], [12.0, 13.0, 14.0, 12.5, 13.5, 12.2]);
        let near = high.map(|value| value * 1.01);
        assert_eq!(outcome(Figure::Goodput, &[&low, &high]), Outcome::Leads(vec![1]));
        assert_eq!(outcome(Figure::RttP95, &[&low, &high]), Outcome::Leads(vec![0]));
        assert_eq!(outcome(Figure::Goodput, &[&low, &high, &near]), Outcome::Leads(vec![2, 1]));
        assert_eq!(outcome(Figure::Goodput, &[&high, &near]), Outcome::Even);
        // One seed of six says otherwise: not decided at 95 %.
        let mut once = high;
        once[2] = 11.0;
        assert!(matches!(outcome(Figure::Goodput, &[&low, &once]), Outcome::Open(1, 0, Some(7..))));
        let few = outcome(Figure::Goodput, &[&low[..5], &high[..5]]);
        assert!(matches!(few, Outcome::Open(1, 0, _)), "five seeds are too few");
        assert_eq!(outcome(Figure::Share, &[&low, &high]), Outcome::None, "no better and worse");
    }

    #[test]
    fn zeros_and_what_never_came_count_like_any_other_value() {
        let (zero, some) = ([0.0; 6], [2.0, 3.0, 2.0, 4.0, 2.0, 3.0]);
        assert_eq!(outcome(Figure::ResidualLoss, &[&some, &zero]), Outcome::Leads(vec![1]));
        assert_eq!(outcome(Figure::ResidualLoss, &[&zero, &zero]), Outcome::Even);
        // Dropping the zeros would leave the pairs in which the second is worse.
        let mixed = [0.0, 0.0, 0.0, 0.0, 9.0, 9.0];
        assert!(matches!(outcome(Figure::ResidualLoss, &[&some, &mixed]), Outcome::Open(1, 0, _)));
        let never = [f64::INFINITY; 6];
        assert_eq!(outcome(Figure::DelayP99, &[&never, &some]), Outcome::Leads(vec![1]));
        assert_eq!(outcome(Figure::DelayP99, &[&never, &never]), Outcome::Even);
    }

    #[test]
    fn a_figure_that_a_run_lacks_decides_nothing() {
        let figure = Figure::RequestP99;
        let mut holes = runs(figure, &[1.0; 7]);
        holes[3] = Some(BTreeMap::new());
        assert_eq!(standing(figure, &runs(figure, &[2.0; 7]), &holes), Standing::Undecided);
        // A run that failed is not there for either.
        holes[3] = None;
        assert_eq!(standing(figure, &runs(figure, &[2.0; 7]), &holes), Standing::Behind);
        let row = &Board::new(vec!["a".into(), "b".into()], &[holes.clone(), holes], &[figure]).rows[0];
        assert_eq!((row.medians[0], &row.outcome), (Some(1e-3), &Outcome::Even));
    }
}
