//! Figures of a whole matrix in little memory: read from the file run by run, one number for each figure.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use crate::{
    digest::fnv1a,
    figure::Figure,
    journal::{Damage, Records},
    plan::Plan,
    record::{Manifest, ReadError, Record, RunOutcome},
    scenario::{Point, ScenarioError},
    spread::Sampled,
    stats::compare::Pair,
};

/// A matrix in numbers.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Experiment that was run.
    pub manifest: Manifest,
    /// The points, in order.
    pub points: Vec<Point>,
    /// Names of the contenders, in order.
    pub contenders: Vec<String>,
    /// The seeds, in order.
    pub seeds: Vec<u64>,
    /// Runs that count.
    pub valid: usize,
    /// Runs that failed.
    pub failures: Vec<Failure>,
    /// Virtual seconds of all runs.
    pub virtual_seconds: f64,
    /// Packets of all runs.
    pub packets: u64,
    /// Connections that broke off or were never established, and all.
    pub connections_lost: (usize, usize),
    /// Damage of the file.
    pub damage: Damage,
    /// By point, contender, seed and figure; infinite where samples are missing, NaN where unknown.
    values: Vec<f64>,
    /// A fingerprint of each run's trace, zero where there is no run.
    traces: Vec<u64>,
    /// Flags: whether each run's figures count.
    counts: Vec<bool>,
    /// Quantiles of each run's samples by kind, infinite where samples are missing.
    spreads: Vec<BTreeMap<Sampled, Vec<f32>>>,
}

/// A run whose figures are not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Contender.
    pub contender: String,
    /// With which seed.
    pub seed: u64,
    /// Reason of the failure.
    pub reason: String,
}

/// A file that cannot be summarised.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    /// Unreadable file.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Scenario cannot be used by this version.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

impl Summary {
    /// Reads a file of records.
    ///
    /// # Errors
    /// When it is none, or its scenario is not one of this version.
    pub fn read(path: &Path) -> Result<Self, SummaryError> {
        let (manifest, mut records) = Records::open(path)?;
        let plan = Plan::new(manifest.scenario.clone())?;
        let mut summary = Self::empty(manifest, &plan);
        for record in &mut records {
            summary.add(&record.map_err(ReadError::from)?);
        }
        summary.damage = records.damage;
        Ok(summary)
    }

    /// A matrix without runs.
    pub fn empty(manifest: Manifest, plan: &Plan) -> Self {
        let run = &plan.base().run;
        let seeds: Vec<u64> = (run.seed..run.seed + u64::from(run.seeds)).collect();
        let contenders: Vec<String> = manifest.contenders.iter().map(|identity| identity.name.clone()).collect();
        let cells = plan.points().len() * contenders.len() * seeds.len();
        Self {
            points: plan.points().to_vec(),
            contenders,
            seeds,
            valid: 0,
            failures: Vec::new(),
            virtual_seconds: 0.0,
            packets: 0,
            connections_lost: (0, 0),
            damage: Damage::default(),
            values: vec![f64::NAN; cells * Figure::COUNT],
            traces: vec![0; cells],
            counts: vec![false; cells],
            spreads: vec![BTreeMap::new(); cells],
            manifest,
        }
    }

    /// Adds a run. One that is not of this matrix is left out.
    #[expect(clippy::cast_possible_truncation, reason = "quantiles for a picture")]
    pub fn add(&mut self, record: &Record) {
        let point = self.points.iter().position(|point| *point == record.point);
        let contender = self.contenders.iter().position(|name| *name == record.contender.name);
        let seed = record.seed.checked_sub(self.seeds[0]).and_then(|index| usize::try_from(index).ok());
        let (Some(point), Some(contender), Some(seed)) =
            (point, contender, seed.filter(|seed| *seed < self.seeds.len()))
        else {
            return;
        };
        let cell = self.cell(point, contender, seed);
        self.traces[cell] = fnv1a(record.trace.hash.as_bytes()).max(1);
        self.virtual_seconds += record.virtual_seconds;
        self.packets += record.trace.packets;
        match &record.outcome {
            RunOutcome::Failed(reason) => self.failures.push(Failure {
                contender: record.contender.name.clone(),
                seed: record.seed,
                reason: reason.clone(),
            }),
            RunOutcome::Valid => {
                self.valid += 1;
                self.counts[cell] = true;
                for (figure, reading) in &record.figures {
                    self.values[cell * Figure::COUNT + *figure as usize] = reading.ranked(*figure).unwrap_or(f64::NAN);
                }
                let narrow = |quantile: &Option<f64>| quantile.map_or(f32::INFINITY, |seconds| seconds as f32);
                let spreads = record.distributions.iter();
                self.spreads[cell] = spreads.map(|(kind, list)| (*kind, list.iter().map(narrow).collect())).collect();
                self.connections_lost.0 += record.connections_lost();
                self.connections_lost.1 += record.connections.len();
            }
        }
    }

    const fn cell(&self, point: usize, contender: usize, seed: usize) -> usize {
        (point * self.contenders.len() + contender) * self.seeds.len() + seed
    }

    /// Returns whether the figures of a run count.
    pub fn counts(&self, point: usize, contender: usize, seed: usize) -> bool {
        self.counts[self.cell(point, contender, seed)]
    }

    /// Figure of one run: infinite if it never occurred, `None` if it is unknown.
    pub fn value(&self, point: usize, contender: usize, seed: usize, figure: Figure) -> Option<f64> {
        let value = self.values[self.cell(point, contender, seed) * Figure::COUNT + figure as usize];
        (!value.is_nan()).then_some(value)
    }

    /// A figure over the runs that count.
    pub fn values(&self, point: usize, contender: usize, figure: Figure) -> Vec<Option<f64>> {
        let counting = (0..self.seeds.len()).filter(|&seed| self.counts(point, contender, seed));
        counting.map(|seed| self.value(point, contender, seed, figure)).collect()
    }

    /// Pairs of two contenders' values, by the seeds of which the runs of both count.
    pub fn pairs(&self, point: usize, (contender, baseline): (usize, usize), figure: Figure) -> Vec<Pair> {
        let both = |&seed: &usize| self.counts(point, contender, seed) && self.counts(point, baseline, seed);
        let pair = |seed| (self.value(point, contender, seed, figure), self.value(point, baseline, seed, figure));
        (0..self.seeds.len()).filter(both).map(pair).collect()
    }

    /// Quantiles of the samples of each valid run, infinite if they never occurred.
    pub fn quantiles(&self, point: usize, contender: usize, kind: Sampled) -> impl Iterator<Item = &[f32]> {
        let counting = (0..self.seeds.len()).filter(move |&seed| self.counts(point, contender, seed));
        counting.filter_map(move |seed| Some(self.spreads[self.cell(point, contender, seed)].get(&kind)?.as_slice()))
    }

    /// Runs in the file.
    pub fn stored(&self) -> usize {
        self.traces.iter().filter(|trace| **trace != 0).count()
    }

    /// Runs of the matrix.
    pub fn runs(&self) -> usize {
        self.traces.len()
    }

    /// One hash of all packet traces, in the order of points, contenders and seeds.
    pub fn trace_hash(&self) -> String {
        let bytes: Vec<u8> = self.traces.iter().flat_map(|trace| trace.to_le_bytes()).collect();
        format!("{:016x}", fnv1a(&bytes))
    }

    /// Returns whether everything was run and may be used.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty() && self.stored() == self.runs()
    }
}
