//! Effects of factors: effect of each level on one contender, figures over the levels, and cells of two factors.

use serde::Serialize;

use super::board::{Board, Runs, runs_at};
use crate::{
    figure::Figure,
    report::brief::is_best,
    scenario::Point,
    stats::{
        compare::{Comparison, Pair, compare_over_points},
        interval::{Interval, RUNS_MIN, centre, extended},
    },
    summary::Summary,
    versus::{Presupposed, name_presupposed},
};

/// Effect of a level of a factor against the factor's first level, for one contender, with the same seeds and all other settings equal.
#[derive(Clone, Debug, Serialize)]
pub struct FactorEffect {
    /// Factor.
    pub factor: String,
    /// Level under comparison.
    pub level: String,
    /// First level.
    pub against: String,
    /// Contender.
    pub contender: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Result over the points that differ in the factor alone.
    #[serde(flatten)]
    pub result: Comparison,
    /// The figure that this one presupposes, where that differs too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presupposes: Option<Presupposed>,
}

/// A figure of a contender over the points of one level of a factor, or of one cell of two.
#[derive(Clone, Debug, Serialize)]
pub struct LevelValue {
    /// One factor or two, each with its level.
    pub levels: Vec<(String, String)>,
    /// Contender.
    pub contender: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Median, in the base unit: of the medians of points, or of all runs when there are few points.
    #[serde(serialize_with = "extended")]
    pub median: f64,
    /// Interval of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Returns whether no contender is better, by more than matters, and every other is worse with 95 % confidence.
    pub best: bool,
}

/// Names of the factors with their levels, in the order of the file.
pub(super) type Factors = [(String, Vec<String>)];

/// Each further level of each factor against its first.
pub(super) fn factor_effects(summary: &Summary, factors: &Factors) -> Vec<FactorEffect> {
    let figures: Vec<Figure> =
        summary.manifest.scenario.headlines().into_iter().filter(|figure| figure.better().is_some()).collect();
    let mut effects = Vec::new();
    for (factor, levels) in factors {
        let Some((first, others)) = levels.split_first() else { continue };
        for level in others {
            let partners = partners(&summary.points, factor, level, first);
            for contender in 0..summary.contenders.len() {
                let result = |figure: &Figure| {
                    let pairs: Vec<Vec<Pair>> =
                        partners.iter().map(|&points| pairs(summary, contender, points, *figure)).collect();
                    Some((*figure, compare_over_points(&pairs, &figure.declaration().rule())?))
                };
                let results: Vec<(Figure, Comparison)> = figures.iter().filter_map(result).collect();
                effects.extend(name_presupposed(&results).map(|(figure, result, presupposes)| FactorEffect {
                    factor: factor.clone(),
                    level: level.clone(),
                    against: first.clone(),
                    contender: summary.contenders[contender].clone(),
                    figure: figure.key(),
                    result,
                    presupposes,
                }));
            }
        }
    }
    effects
}

/// Points that differ in one factor alone.
fn partners(points: &[Point], factor: &str, level: &str, first: &str) -> Vec<(usize, usize)> {
    let with = |point: &Point| {
        let mut point = point.clone();
        point.insert(factor.to_owned(), first.to_owned());
        points.iter().position(|other| *other == point)
    };
    let chosen = points.iter().enumerate().filter(|(_, point)| point.get(factor).is_some_and(|at| at == level));
    chosen.filter_map(|(index, point)| Some((index, with(point)?))).collect()
}

/// A contender at two points, by the seeds of which both runs count.
fn pairs(summary: &Summary, contender: usize, (point, other): (usize, usize), figure: Figure) -> Vec<Pair> {
    let both = |&seed: &usize| summary.counts(point, contender, seed) && summary.counts(other, contender, seed);
    let value = |point, seed| summary.value(point, contender, seed, figure);
    (0..summary.seeds.len()).filter(both).map(|seed| (value(point, seed), value(other, seed))).collect()
}

/// The headline figures over the levels of each factor, and for each cell of two factors.
pub(super) fn level_values(summary: &Summary, factors: &Factors) -> (Vec<LevelValue>, Vec<LevelValue>) {
    let figures = summary.manifest.scenario.headlines();
    let mut single = Vec::new();
    for (factor, levels) in factors.iter().filter(|(_, levels)| levels.len() > 1) {
        for level in levels {
            single.extend(values(summary, vec![(factor.clone(), level.clone())], &figures));
        }
    }
    let mut cells = Vec::new();
    for (index, (one, rows)) in factors.iter().enumerate() {
        for (other, columns) in &factors[index + 1..] {
            if rows.len() < 2 || columns.len() < 2 {
                continue;
            }
            for row in rows {
                for column in columns {
                    let levels = vec![(one.clone(), row.clone()), (other.clone(), column.clone())];
                    cells.extend(values(summary, levels, &figures));
                }
            }
        }
    }
    (single, cells)
}

/// The figures of all contenders over the points with these levels.
fn values(summary: &Summary, levels: Vec<(String, String)>, figures: &[Figure]) -> Vec<LevelValue> {
    let matches = |point: &Point| levels.iter().all(|(name, level)| point.get(name) == Some(level));
    let chosen: Vec<usize> = (0..summary.points.len()).filter(|&point| matches(&summary.points[point])).collect();
    let runs: Vec<Runs> = (0..summary.contenders.len())
        .map(|contender| chosen.iter().flat_map(|&point| runs_at(summary, (point, contender), figures)).collect())
        .collect();
    let board = Board::new(summary.contenders.clone(), &runs, figures);
    let mut values = Vec::new();
    for &figure in figures {
        let row = board.rows.iter().find(|row| row.figure == figure);
        for (contender, name) in summary.contenders.iter().enumerate() {
            let medians = || chosen.iter().map(|&point| Some(centre(&summary.values(point, contender, figure))?.0));
            let all = || chosen.iter().flat_map(|&point| summary.values(point, contender, figure));
            let found = if chosen.len() < RUNS_MIN {
                centre(&all().collect::<Vec<_>>())
            } else {
                centre(&medians().collect::<Vec<_>>())
            };
            if let Some((median, interval)) = found {
                values.push(LevelValue {
                    levels: levels.clone(),
                    contender: name.clone(),
                    figure: figure.key(),
                    median,
                    interval,
                    best: row.is_some_and(|row| is_best(row, contender)),
                });
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_differ_in_one_factor_alone() {
        let point = |a: &str, b: &str| Point::from([("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())]);
        let points = [point("1", "x"), point("1", "y"), point("2", "x"), point("2", "y")];
        assert_eq!(partners(&points, "a", "2", "1"), [(2, 0), (3, 1)]);
        assert_eq!(partners(&points, "b", "y", "x"), [(1, 0), (3, 2)]);
        assert!(partners(&points, "c", "2", "1").is_empty());
    }
}
