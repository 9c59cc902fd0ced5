//! Noise: differences that a program shows against itself (A/A), beside which the differences of a change are read.

use serde::Serialize;

use crate::{
    compare::changes,
    figure::Figure,
    stats::{
        compare::{Comparison, Rule, compare_unpaired},
        interval::RUNS_MIN,
    },
    summary::Summary,
};

/// Origin of the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseOf {
    /// Another run of the baseline.
    Again,
    /// The baseline's odd seeds against its even ones.
    Halves,
}

/// A figure of a contender against itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoiseRow {
    /// Contender.
    pub contender: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Difference.
    #[serde(flatten)]
    pub result: Comparison,
}

/// Differences of the baseline against itself.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// Origin.
    pub of: NoiseOf,
    /// Every figure of every contender that could be compared.
    pub rows: Vec<NoiseRow>,
    /// Reason why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Noise {
    /// Noise from another run of the baseline's program: with other seeds, or with the same seeds where time is real.
    ///
    /// # Errors
    /// When the two are not of one scenario; the reason in words.
    pub fn again(baseline: &Summary, again: &Summary, rule: &dyn Fn(Figure) -> Rule) -> Result<Self, String> {
        let found = changes(baseline, again, rule)?;
        if found.changes.iter().all(|change| change.identical) {
            let reason = "every run is identical: give the second run of the baseline other seeds (`--seed`)";
            return Ok(Self { of: NoiseOf::Again, rows: Vec::new(), reason: Some(reason.to_owned()) });
        }
        let row = |change: crate::compare::Change| NoiseRow {
            contender: change.contender,
            figure: change.figure,
            result: change.result,
        };
        Ok(Self { of: NoiseOf::Again, rows: found.changes.into_iter().map(row).collect(), reason: None })
    }

    /// Noise from the baseline alone: its odd seeds against its even ones.
    pub fn halves(baseline: &Summary, rule: &dyn Fn(Figure) -> Rule) -> Self {
        let none = |reason: String| Self { of: NoiseOf::Halves, rows: Vec::new(), reason: Some(reason) };
        if baseline.points.len() > 1 {
            return none("a matrix needs a second run of the baseline (`--again`)".to_owned());
        }
        if baseline.seeds.len() < 2 * RUNS_MIN {
            let needed = 2 * RUNS_MIN;
            return none(format!("it takes {needed} seeds, or a second run of the baseline (`--again`)"));
        }
        let figures: Vec<Figure> = baseline.manifest.scenario.figures().collect();
        let half = |contender: usize, figure: Figure, odd: usize| -> Vec<f64> {
            let seeds = (0..baseline.seeds.len()).filter(|seed| seed % 2 == odd);
            seeds.filter_map(|seed| baseline.value(0, contender, seed, figure)).collect()
        };
        let rows = baseline.contenders.iter().enumerate().flat_map(|(contender, name)| {
            let row = move |&figure: &Figure| {
                let (odd, even) = (half(contender, figure, 1), half(contender, figure, 0));
                let result = compare_unpaired(&odd, &even, &rule(figure))?;
                Some(NoiseRow { contender: name.clone(), figure: figure.key(), result })
            };
            figures.iter().filter_map(row)
        });
        Self { of: NoiseOf::Halves, rows: rows.collect(), reason: None }
    }

    /// The difference of a figure of a contender.
    pub fn find(&self, contender: &str, figure: &str) -> Option<&Comparison> {
        let row = self.rows.iter().find(|row| row.contender == contender && row.figure == figure);
        row.map(|row| &row.result)
    }

    /// Intervals that cover no difference, and all of them.
    pub fn covered(&self) -> (usize, usize) {
        let covered = self.rows.iter().filter(|row| row.result.difference.covers(0.0)).count();
        (covered, self.rows.len())
    }
}
