//! Report on a matrix: each further contender against the first, over all points, by the levels of each factor, and point by point;
//! dependence of the ranking on the loss model; and the A/A control, which must find no difference.

use serde::{Serialize, Serializer};

use super::{
    factors::{FactorEffect, LevelValue, factor_effects, level_values},
    points::Headlines,
    spreads::Spreads,
};
use crate::{
    breach::{Breach, breaches},
    figure::Figure,
    record::Manifest,
    regret::Regret,
    scenario::CELL,
    selftest::Check,
    stats::{
        compare::{Comparison, Pair, Verdict, compare, compare_over_points, compare_unpaired},
        distribution::to_f64,
        interval::{RUNS_MIN, centre, extended},
        quantile::median,
    },
    summary::{Failure, Summary},
    versus::{Presupposed, name_presupposed},
};

/// Schema of the JSON form.
pub const MATRIX_SCHEMA: &str = "tiderace-lab-matrix/2";

/// Report on a matrix.
#[derive(Clone, Debug, Serialize)]
pub struct MatrixReport {
    /// [`MATRIX_SCHEMA`].
    pub schema: &'static str,
    /// The scenario's name and title.
    pub name: String,
    /// One line.
    pub title: String,
    /// Purpose of the scenario.
    pub about: String,
    /// The program that ran it.
    pub lab: String,
    /// Names of the contenders; the first is the baseline.
    pub contenders: Vec<String>,
    /// Versions and parameters of the contenders at the first point.
    pub identities: Vec<crate::contender::Identity>,
    /// Names of the factors with their levels.
    pub factors: Vec<(String, Vec<String>)>,
    /// Numbers of points, seeds, runs of the matrix, and stored runs.
    pub size: Size,
    /// Checks of the laboratory itself.
    pub self_test: Vec<Check>,
    /// Over all points.
    pub overall: Vec<Effect>,
    /// For the levels of each factor.
    pub by_level: Vec<Effect>,
    /// Each level of each factor against its first, of one contender.
    pub factor_effects: Vec<FactorEffect>,
    /// Headline figures over the levels of each factor.
    pub level_values: Vec<LevelValue>,
    /// Headline figures of each cell of two factors.
    pub cells: Vec<LevelValue>,
    /// Losses against the best fixed setting, if the scenario has judged contenders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regret: Option<Regret>,
    /// Ranking: whether the order of contenders holds for all burst lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranking: Option<Ranking>,
    /// The baseline against itself.
    pub control: Control,
    /// Limits that do not hold.
    pub thresholds: Vec<Breach>,
    /// Key of the figure that decides on the best contender.
    pub deciding: &'static str,
    /// Point by point.
    pub points: Vec<PointRow>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
    /// One hash of all packet traces.
    pub trace_hash: String,
    /// Virtual seconds and packets of all runs.
    pub simulated: (f64, u64),
    /// Connections that broke off or were never established, and all.
    pub connections_lost: (usize, usize),
    /// Lines of the file that were damaged.
    pub damaged_lines: usize,
    /// Absolute values, and the best contender of each point.
    #[serde(skip)]
    pub(super) headlines: Headlines,
    /// First line of the file of records.
    #[serde(skip)]
    pub(super) manifest: Manifest,
    /// Distributions of samples at one row of the headlines.
    #[serde(skip)]
    pub(super) spreads: Spreads,
}

/// Size of a matrix.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Combinations of levels.
    pub points: usize,
    /// Seeds of each.
    pub seeds: usize,
    /// Runs in all.
    pub runs: usize,
    /// Number of stored runs.
    pub stored: usize,
}

/// Effect of a contender against the baseline in one figure, over all points or those of one level.
#[derive(Clone, Debug, Serialize)]
pub struct Effect {
    /// The factor and its level; `None` over all points.
    pub level: Option<(String, String)>,
    /// Contenders under comparison.
    pub contender: String,
    /// With whom.
    pub baseline: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Result: of the medians of points, or of all pairs of runs when there are few points.
    #[serde(flatten)]
    pub result: Comparison,
    /// The figure that this one presupposes, where that differs too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presupposes: Option<Presupposed>,
    /// Points in which the contender alone is better, worse, equivalent, undecided; counted over all points only.
    pub tally: [usize; Verdict::COUNT],
}

/// The order of contenders by goodput for each burst length.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// Burst length, and names from the most goodput to the least.
    pub orders: Vec<(String, Vec<String>)>,
    /// All orders are the same.
    pub holds: bool,
}

/// The baseline's runs with odd and even seeds against each other: they differ by luck alone.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Control {
    /// Comparisons that could be made: a figure in a point each.
    pub comparisons: usize,
    /// Number of those whose 95 % interval covers no difference.
    pub covered: usize,
    /// Reason why none could be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One point: a row per contender.
#[derive(Clone, Debug, Serialize)]
pub struct PointRow {
    /// The levels, in the order of [`MatrixReport::factors`].
    pub levels: Vec<String>,
    /// For each contender its figures: key, median, low, high.
    pub figures: Vec<Vec<Quoted>>,
    /// For each further contender: the deciding figure against the baseline.
    pub verdicts: Vec<Option<Comparison>>,
}

/// A median over the seeds with its interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quoted {
    /// Key of the figure.
    pub figure: &'static str,
    /// Median, in the base unit; `"inf"` if it never occurred.
    #[serde(serialize_with = "extended")]
    pub median: f64,
    /// 95 % interval, from six seeds on.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ends")]
    pub interval: Option<(f64, f64)>,
}

/// Two ends, of which either may be infinite.
#[expect(clippy::ref_option, reason = "serde gives a reference")]
fn ends<S: Serializer>(ends: &Option<(f64, f64)>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeTuple;
    #[derive(Serialize)]
    struct End(#[serde(serialize_with = "extended")] f64);
    let Some((low, high)) = ends else { return serializer.serialize_none() };
    let mut pair = serializer.serialize_tuple(2)?;
    pair.serialize_element(&End(*low))?;
    pair.serialize_element(&End(*high))?;
    pair.end()
}

impl MatrixReport {
    /// Creates the report. `checks` are those of the self-test.
    pub fn new(summary: &Summary, checks: Vec<Check>) -> Self {
        let scenario = &summary.manifest.scenario;
        let names = || summary.points.first().into_iter().flat_map(|point| point.keys().cloned());
        let factors: Vec<(String, Vec<String>)> = names().map(|name| (name.clone(), levels(summary, &name))).collect();
        // Cells have names and no order: each is a point, and nothing is learnt from one beside another.
        let varied: Vec<(String, Vec<String>)> = factors.iter().filter(|(name, _)| name != CELL).cloned().collect();
        let all: Vec<usize> = (0..summary.points.len()).collect();
        let by_level = varied.iter().flat_map(|(name, levels)| {
            levels.iter().flat_map(|level| {
                let chosen: Vec<usize> =
                    all.iter().copied().filter(|&point| summary.points[point][name] == *level).collect();
                effects(summary, &chosen, Some((name.clone(), level.clone())))
            })
        });
        let (level_values, cells) = level_values(summary, &varied);
        let headlines = Headlines::new(summary);
        Self {
            schema: MATRIX_SCHEMA,
            factor_effects: factor_effects(summary, &varied),
            regret: Regret::of(summary),
            manifest: summary.manifest.clone(),
            level_values,
            cells,
            spreads: Spreads::new(summary, &headlines),
            headlines,
            name: scenario.name.clone(),
            title: scenario.title.clone(),
            about: scenario.about.clone(),
            lab: summary.manifest.lab.clone(),
            contenders: summary.contenders.clone(),
            identities: summary.manifest.contenders.clone(),
            size: Size {
                points: summary.points.len(),
                seeds: summary.seeds.len(),
                runs: summary.runs(),
                stored: summary.stored(),
            },
            self_test: checks,
            overall: effects(summary, &all, None),
            by_level: by_level.collect(),
            ranking: ranking(summary),
            control: control(summary),
            thresholds: breaches(summary),
            deciding: deciding(summary).key(),
            points: all.iter().map(|&point| row(summary, point)).collect(),
            factors,
            failures: summary.failures.clone(),
            trace_hash: summary.trace_hash(),
            simulated: (summary.virtual_seconds, summary.packets),
            connections_lost: summary.connections_lost,
            damaged_lines: summary.damage.lines.len(),
        }
    }

    /// The factors that have levels to compare: not the cells.
    pub(super) fn varied(&self) -> impl Iterator<Item = &(String, Vec<String>)> {
        self.factors.iter().filter(|(name, _)| name != CELL)
    }

    /// Returns whether the self-test passed, every run was made, and every run counts.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty()
            && self.size.stored == self.size.runs
            && self.self_test.iter().all(|check| check.passed)
    }
}

/// The levels of a factor, in the order of the file.
fn levels(summary: &Summary, name: &str) -> Vec<String> {
    let mut levels: Vec<String> = Vec::new();
    for point in &summary.points {
        if !levels.contains(&point[name]) {
            levels.push(point[name].clone());
        }
    }
    levels
}

/// Every further contender against the first: over all points in every figure of the workload, by levels in its headlines.
fn effects(summary: &Summary, points: &[usize], level: Option<(String, String)>) -> Vec<Effect> {
    let scenario = &summary.manifest.scenario;
    let figures = || scenario.figures().filter(|figure| figure.better().is_some());
    let headlines = scenario.headlines();
    let mut effects = Vec::new();
    for contender in 1..summary.contenders.len() {
        let pairs = |figure| points.iter().map(|&point| summary.pairs(point, (contender, 0), figure)).collect();
        let results: Vec<(Figure, Comparison, [usize; Verdict::COUNT])> = figures()
            .filter(|figure| level.is_none() || headlines.contains(figure))
            .filter_map(|figure| {
                let (pairs, rule): (Vec<Vec<Pair>>, _) = (pairs(figure), figure.declaration().rule());
                let mut tally = [0; Verdict::COUNT];
                if level.is_none() && points.len() > 1 {
                    let verdicts = pairs.iter().filter_map(|pairs| compare(pairs, &rule));
                    verdicts.for_each(|result| tally[result.verdict as usize] += 1);
                }
                Some((figure, compare_over_points(&pairs, &rule)?, tally))
            })
            .collect();
        let plain: Vec<(Figure, Comparison)> = results.iter().map(|(figure, result, _)| (*figure, *result)).collect();
        effects.extend(name_presupposed(&plain).zip(&results).map(|((figure, result, presupposes), (.., tally))| {
            Effect {
                level: level.clone(),
                contender: summary.contenders[contender].clone(),
                baseline: summary.contenders[0].clone(),
                figure: figure.key(),
                result,
                presupposes,
                tally: *tally,
            }
        }));
    }
    effects
}

/// The order of contenders by the median of their goodputs' medians, for each level of the burst length.
fn ranking(summary: &Summary) -> Option<Ranking> {
    const FACTOR: &str = "path.loss-burst";
    if summary.contenders.len() < 2 || !summary.points.first()?.contains_key(FACTOR) {
        return None;
    }
    let orders: Vec<(String, Vec<String>)> = levels(summary, FACTOR)
        .into_iter()
        .map(|level| {
            let points = || (0..summary.points.len()).filter(|&point| summary.points[point][FACTOR] == level);
            let centre = |contender: usize| {
                let medians =
                    points().filter_map(|point| Some(centre(&summary.values(point, contender, Figure::Goodput))?.0));
                let mut medians: Vec<f64> = medians.collect();
                medians.sort_by(f64::total_cmp);
                median(&medians).unwrap_or(0.0)
            };
            let mut order: Vec<(f64, &String)> =
                summary.contenders.iter().enumerate().map(|(index, name)| (centre(index), name)).collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0));
            (level, order.into_iter().map(|(_, name)| name.clone()).collect())
        })
        .collect();
    let holds = orders.windows(2).all(|pair| pair[0].1 == pair[1].1);
    Some(Ranking { orders, holds })
}

/// A against A: the baseline's odd seeds against its even ones.
fn control(summary: &Summary) -> Control {
    let mut control = Control::default();
    if summary.seeds.len() < 2 * RUNS_MIN {
        let needed = 2 * RUNS_MIN;
        control.reason = Some(format!("needs {needed} seeds, there are {}", summary.seeds.len()));
        return control;
    }
    for point in 0..summary.points.len() {
        for figure in summary.manifest.scenario.figures() {
            let half = |odd: usize| -> Vec<f64> {
                let seeds = (0..summary.seeds.len()).filter(|seed| seed % 2 == odd);
                seeds.filter_map(|seed| summary.value(point, 0, seed, figure)).collect()
            };
            if let Some(result) = compare_unpaired(&half(1), &half(0), &figure.declaration().rule()) {
                control.comparisons += 1;
                control.covered += usize::from(result.difference.covers(0.0));
            }
        }
    }
    control
}

/// The figure that decides the comparison: the first headline that has better and worse.
fn deciding(summary: &Summary) -> Figure {
    let headlines = summary.manifest.scenario.headlines();
    headlines.into_iter().find(|figure| figure.better().is_some()).unwrap_or(Figure::Goodput)
}

fn row(summary: &Summary, point: usize) -> PointRow {
    let quoted = |contender: usize, figure: Figure| {
        let (median, interval) = centre(&summary.values(point, contender, figure))?;
        let interval = interval.map(|interval| (interval.low, interval.high));
        Some(Quoted { figure: figure.key(), median, interval })
    };
    // Every figure of the records, also one that the workload is not about.
    let figures = (0..summary.contenders.len())
        .map(|contender| Figure::all().filter_map(|figure| quoted(contender, figure)).collect());
    let deciding = deciding(summary);
    let verdicts = (1..summary.contenders.len())
        .map(|contender| compare(&summary.pairs(point, (contender, 0), deciding), &deciding.declaration().rule()));
    PointRow {
        levels: summary.points[point].values().cloned().collect(),
        figures: figures.collect(),
        verdicts: verdicts.collect(),
    }
}

/// A share as a number of per cent, for texts.
pub(super) fn percent(part: usize, whole: usize) -> f64 {
    100.0 * to_f64(part) / to_f64(whole.max(1))
}
