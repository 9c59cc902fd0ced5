//! Outputs of a matrix: its report as text, JSON, page and tables, from stored records.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Parser;
use lab::{
    report::{MatrixReport, Samples, csv, html, markdown, points, records},
    selftest::Check,
    summary::Summary,
};

use super::{Shown, metadata, sample};
use crate::{failure::Failure, stdout::write_out};

/// Outputs besides the text.
#[derive(Clone, Debug, Default, Parser)]
pub(super) struct Outputs {
    /// Write the report as a self-contained HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every point as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write every run as a row of a Parquet file; needs a build with `--features columns`
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Print the headlines in place of the Markdown.
    #[arg(skip)]
    headlines: Option<Shown>,
}

impl Outputs {
    /// The headlines on the terminal, or JSON, and no files.
    pub(super) fn headlines(shown: Shown, json: bool) -> Self {
        Self { json, ..Self::default() }.with_headlines(shown)
    }

    /// The same, with the headlines in place of the Markdown.
    pub(super) const fn with_headlines(mut self, shown: Shown) -> Self {
        self.headlines = Some(shown);
        self
    }

    /// Returns whether an output is requested that only the report of a matrix has.
    pub(super) const fn needs_matrix(&self) -> bool {
        self.html.is_some() || self.csv.is_some() || self.parquet.is_some()
    }

    /// Refuses before the runs what could not be written after them.
    pub(super) fn possible(&self) -> Result<(), Failure> {
        if cfg!(feature = "columns") || self.parquet.is_none() {
            return Ok(());
        }
        Err(Failure::unsupported("this program was built without Parquet")
            .hint("build it with `cargo build --release --features columns`, or use the Python package in python/"))
    }
}

/// Creates the report of stored records, writes the requested files and prints it.
pub(super) fn publish(path: &Path, outputs: &Outputs, checks: Vec<Check>) -> Result<MatrixReport, Failure> {
    let summary = Summary::read(path).map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    let report = MatrixReport::new(&summary, checks);
    let write = |file: &Path, text: String| {
        fs::write(file, text).map_err(|error| Failure::new(format_args!("cannot write {}: {error}", file.display())))
    };
    if let Some(file) = &outputs.html {
        let scenario = &summary.manifest.scenario;
        // What the simulator would show over time is not what was run.
        let is_real = summary.manifest.is_real_time();
        let samples = if is_real { Samples::default() } else { sample::samples(&report, scenario, path) };
        write(file, html(&report, scenario, &metadata::load(path), &samples))?;
    }
    if let Some(file) = &outputs.csv {
        write(file, csv(&report))?;
    }
    outputs.possible()?;
    #[cfg(feature = "columns")]
    if let Some(file) = &outputs.parquet {
        write_parquet(path, file)?;
    }
    if outputs.json {
        let json = serde_json::to_string(&report).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
    } else if let Some(shown) = outputs.headlines.filter(|shown| !shown.all) {
        let headlines = points(&summary, &report.self_test, shown.style());
        write_out(&format!("{headlines}\n{}", records(path)))?;
    } else {
        write_out(&format!("{}\nRecords (JSON lines): {}\n", markdown(&report), path.display()))?;
    }
    #[cfg(target_os = "linux")]
    if !outputs.json && summary.manifest.is_real_time() {
        write_out(&super::live::matrix::tables(path)?)?;
    }
    Ok(report)
}

/// Writes the records as columns.
#[cfg(feature = "columns")]
fn write_parquet(records: &Path, file: &Path) -> Result<(), Failure> {
    lab::columns::write_parquet(records, file)
        .map(drop)
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", file.display())))
}
