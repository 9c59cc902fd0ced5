//! Reports on records, as text and JSON.
//!
//! [`Report`] holds the numbers. [`brief`] prints the main figures of the workload and the best contender; [`points`] does so for a
//! scenario with factors; [`text`] prints all figures. The report itself serializes as JSON. The same records give the same report.

mod board;
mod brief;
mod factors;
mod headline;
mod html;
mod matrix;
mod plain;
mod plot;
mod points;
mod pull_request;
mod regret;
mod repair;
mod series;
mod spreads;
mod style;
mod text;
mod verdict;

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    figure::Figure,
    measure::{Provenance, Reading},
    record::{Manifest, Record, RunOutcome},
    selftest::Check,
    stats::{
        compare::{Comparison, Pair, compare},
        interval::{Interval, centre, extended_option},
    },
    versus::{Presupposed, name_presupposed},
};

pub use brief::{brief, records};
pub use factors::{FactorEffect, LevelValue};
pub use html::{Samples, html};
pub use matrix::{Control, Effect, MATRIX_SCHEMA, MatrixReport, PointRow, Quoted, Ranking, Size};
pub use plain::{csv, markdown};
pub use plot::{Along, Curve, Measured, curves};
pub use points::{LISTED, points, varied};
pub use pull_request::pull_request;
pub use series::TimeSeries;
pub use style::{Style, wrap as wrapped};
pub use text::text;

pub use crate::{
    breach::{Breach, breaches},
    summary::Failure,
};

/// Style of pages: that of pictures, and rules that only pages need.
const PAGE_STYLE: &str = concat!(include_str!("report/style.css"), include_str!("report/page.css"));

/// Schema of the JSON form.
pub const REPORT_SCHEMA: &str = "tiderace-lab-report/2";

/// Report on an experiment's records.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: &'static str,
    /// Experiment that was run.
    pub manifest: Manifest,
    /// Checks of the laboratory itself. Empty for a report from stored records.
    pub self_test: Vec<Check>,
    /// One column per contender, in the manifest's order.
    pub contenders: Vec<Column>,
    /// Each further contender against the first one.
    pub comparisons: Vec<ComparisonRow>,
    /// Virtual seconds of all runs.
    pub virtual_seconds: f64,
    /// Runs that failed.
    pub failures: Vec<Failure>,
    /// The file with the records, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<PathBuf>,
    /// Contenders of runs in real time that the simulator has too, by both clocks. Empty for a report in virtual time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub both_clocks: Vec<BothClocks>,
    /// The headline figures, with the best contender of each.
    #[serde(skip)]
    board: board::Board,
}

/// One contender in real time and simulated, with the same seeds: medians over the runs that count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BothClocks {
    /// Name of the contender.
    pub contender: String,
    /// Goodput in bits per second.
    pub goodput: ByClock,
    /// 95 % interval of the median over the seeds of goodput in real time less the simulated one, as a share of that; `None` with fewer than
    /// six seeds.
    pub goodput_interval: Option<[f64; 2]>,
    /// Median RTT in seconds; `None` for a contender that does not report it.
    pub rtt_p50: Option<ByClock>,
    /// Interval of the difference of the median RTT in seconds, as that of goodput.
    pub rtt_interval: Option<[f64; 2]>,
    /// True if goodput and RTT differ by no more than the limits of agreement.
    pub agrees: bool,
    /// True if they differ by more, and the intervals include differences that do not: more seeds decide.
    pub may_be_chance: bool,
}

/// One figure by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByClock {
    /// Measured in real time.
    pub real_time: f64,
    /// Of the simulator.
    pub simulated: f64,
}

/// Figures of one contender's runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Runs that count.
    pub runs: usize,
    /// One hash of the packet traces of all its runs.
    pub trace_hash: String,
    /// Packets in them.
    pub packets: u64,
    /// Connections that ended before their run did, or were never established.
    pub connections_lost: usize,
    /// Connections in all.
    pub connections: usize,
    /// Figures by key.
    pub figures: Vec<Cell>,
}

/// One figure of one contender over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Key of the figure.
    pub figure: &'static str,
    /// Base unit of the values.
    pub unit: &'static str,
    /// Median over the runs, `"inf"` if it never occurred; `None` without a value in every run.
    #[serde(serialize_with = "extended_option")]
    pub median: Option<f64>,
    /// Interval; `None` below six runs.
    pub interval: Option<Interval>,
    /// Provenance of the values, or the reason why there is none.
    pub provenance: Provenance,
    /// Reason why there is none, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of samples of all runs that never occurred, and number of all samples, if some did not. Percentiles count them as larger than
    /// any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never: Option<(usize, usize)>,
}

/// One figure of two contenders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// Contenders under comparison.
    pub contender: String,
    /// With whom.
    pub baseline: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Result of the comparison.
    #[serde(flatten)]
    pub result: Comparison,
    /// The figure that this one presupposes, where that differs too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presupposes: Option<Presupposed>,
}

impl Report {
    /// Makes the report of records. Records of another scenario or of contenders outside of the manifest are left out.
    pub fn new(manifest: Manifest, records: &[Record]) -> Self {
        let records: Vec<&Record> = records.iter().filter(|record| record.digest == manifest.digest).collect();
        let by_contender: Vec<Vec<&Record>> = manifest
            .contenders
            .iter()
            .map(|identity| {
                let mut own: Vec<_> = records.iter().copied().filter(|record| record.contender == *identity).collect();
                own.sort_by_key(|record| record.seed);
                own
            })
            .collect();
        let contenders = manifest.contenders.iter().zip(&by_contender);
        let contenders = contenders.map(|(identity, runs)| column(&identity.name, &identity.version, runs)).collect();
        let failures = records.iter().filter_map(|record| match &record.outcome {
            RunOutcome::Valid => None,
            RunOutcome::Failed(reason) => {
                Some(Failure { contender: record.contender.name.clone(), seed: record.seed, reason: reason.clone() })
            }
        });
        Self {
            schema: REPORT_SCHEMA,
            board: board(&manifest, &by_contender),
            contenders,
            comparisons: comparisons(&manifest, &by_contender),
            virtual_seconds: records.iter().map(|record| record.virtual_seconds).sum(),
            failures: failures.collect(),
            self_test: Vec::new(),
            records: None,
            both_clocks: Vec::new(),
            manifest,
        }
    }

    /// Returns whether the self-test has passed and every run is valid.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty() && self.self_test.iter().all(|check| check.passed)
    }

    /// The figure of a contender.
    pub fn cell(&self, contender: usize, figure: Figure) -> Option<&Cell> {
        self.contenders.get(contender)?.figures.iter().find(|cell| cell.figure == figure.key())
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// Never in practice: everything in it can be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// The headline figures of the scenario.
fn board(manifest: &Manifest, by_contender: &[Vec<&Record>]) -> board::Board {
    let figures = manifest.scenario.headlines();
    let run = &manifest.scenario.run;
    let seeds = run.seed..run.seed + u64::from(run.seeds);
    let runs: Vec<board::Runs> = by_contender.iter().map(|own| board::runs_of(own, seeds.clone(), &figures)).collect();
    let names = manifest.contenders.iter().map(|identity| text::column_name(&identity.name, manifest)).collect();
    board::Board::new(names, &runs, &figures)
}

fn column(name: &str, version: &str, runs: &[&Record]) -> Column {
    let valid: Vec<&Record> = runs.iter().copied().filter(|record| record.outcome == RunOutcome::Valid).collect();
    let hashes: Vec<&str> = runs.iter().map(|record| record.trace.hash.as_str()).collect();
    let connections = || valid.iter().flat_map(|record| &record.connections);
    let figures = Figure::all()
        .filter(|figure| figure.declaration().always || valid.iter().any(|record| record.figures.contains_key(figure)));
    Column {
        name: name.to_owned(),
        version: version.to_owned(),
        runs: valid.len(),
        trace_hash: format!("{:016x}", crate::digest::fnv1a(hashes.join("\n").as_bytes())),
        packets: runs.iter().map(|record| record.trace.packets).sum(),
        connections_lost: valid.iter().map(|record| record.connections_lost()).sum(),
        connections: connections().count(),
        figures: figures.map(|figure| cell(figure, &valid)).collect(),
    }
}

/// One figure over the runs. A figure that is unknown in one of them is unknown: leaving out the runs that could not
/// report it would choose the runs by their result.
fn cell(figure: Figure, runs: &[&Record]) -> Cell {
    let empty = Reading { value: None, provenance: Provenance::Empty, samples: None, never: None, reason: None };
    let readings: Vec<&Reading> = runs.iter().map(|run| run.figures.get(&figure).unwrap_or(&empty)).collect();
    let values: Vec<Option<f64>> = readings.iter().map(|reading| reading.ranked(figure)).collect();
    let found = centre(&values);
    let unknown = readings.iter().zip(&values).find(|(_, value)| value.is_none()).map(|(reading, _)| reading);
    let blamed = unknown.or(readings.first());
    let sum = |read: fn(&Reading) -> Option<usize>| readings.iter().filter_map(|reading| read(reading)).sum();
    let never: (usize, usize) = (sum(|reading| reading.never), sum(|reading| reading.samples));
    Cell {
        figure: figure.key(),
        unit: figure.unit().base(),
        median: found.map(|(median, _)| median),
        interval: found.and_then(|(_, interval)| interval),
        provenance: blamed.map_or(Provenance::Empty, |reading| reading.provenance),
        reason: blamed.and_then(|reading| reading.reason.clone()),
        never: Some(never).filter(|never| never.0 > 0),
    }
}

/// Compares each further contender with the first, seed by seed.
fn comparisons(manifest: &Manifest, by_contender: &[Vec<&Record>]) -> Vec<ComparisonRow> {
    let Some((baseline, others)) = by_contender.split_first() else { return Vec::new() };
    let mut rows = Vec::new();
    for (index, runs) in others.iter().enumerate() {
        let judged = manifest.scenario.figures().filter(|figure| figure.better().is_some());
        let results: Vec<(Figure, Comparison)> = judged
            .filter_map(|figure| Some((figure, compare(&pairs(figure, runs, baseline), &figure.declaration().rule())?)))
            .collect();
        rows.extend(name_presupposed(&results).map(|(figure, result, presupposes)| ComparisonRow {
            contender: manifest.contenders[index + 1].name.clone(),
            baseline: manifest.contenders[0].name.clone(),
            figure: figure.key(),
            result,
            presupposes,
        }));
    }
    rows
}

/// The values of the seeds of which the runs of both count.
fn pairs(figure: Figure, contender: &[&Record], baseline: &[&Record]) -> Vec<Pair> {
    let counts = |record: &&&Record| record.outcome == RunOutcome::Valid;
    let value = |record: &Record| record.figures.get(&figure)?.ranked(figure);
    let pair = |record: &&Record| {
        let other = baseline.iter().filter(counts).find(|other| other.seed == record.seed)?;
        Some((value(record), value(other)))
    };
    contender.iter().filter(counts).filter_map(pair).collect()
}
