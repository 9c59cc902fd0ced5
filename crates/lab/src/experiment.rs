//! A whole experiment: a scenario with its contenders, executed, checked and stored.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    contender::Contender,
    matrix::{Cell, cells},
    record::{self, MANIFEST_SCHEMA, Manifest, Record},
    run::{Execution, run_all},
    scenario::Scenario,
    selftest::{self, Check},
};

/// A scenario and its contenders.
pub struct Experiment {
    scenario: Scenario,
    contenders: Vec<Box<dyn Contender>>,
}

impl core::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names: Vec<String> = self.contenders.iter().map(|contender| contender.identity().name).collect();
        f.debug_struct("Experiment").field("scenario", &self.scenario.name).field("contenders", &names).finish()
    }
}

/// Yield of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Yield {
    /// Experiment that was run.
    pub manifest: Manifest,
    /// The runs, in the order in which they were to be run.
    pub records: Vec<Record>,
    /// Checks of the laboratory itself.
    pub checks: Vec<Check>,
}

impl Experiment {
    /// An experiment. The first contender is the baseline of comparisons.
    pub const fn new(scenario: Scenario, contenders: Vec<Box<dyn Contender>>) -> Self {
        Self { scenario, contenders }
    }

    /// The runs in their order.
    pub fn cells(&self) -> Vec<Cell> {
        let first = self.scenario.run.seed;
        cells(self.contenders.len(), first..first + u64::from(self.scenario.run.seeds))
    }

    /// Manifest of the experiment. `lab` names the program and its version.
    pub fn manifest(&self, lab: &str) -> Manifest {
        Manifest {
            schema: MANIFEST_SCHEMA.to_owned(),
            lab: lab.to_owned(),
            scenario: self.scenario.clone(),
            digest: self.scenario.digest(),
            contenders: self.contenders.iter().map(|contender| contender.identity()).collect(),
        }
    }

    /// Runs everything, then the self-test. `done` is called after each run, from the thread that ran it.
    pub fn run(&self, lab: &str, execution: &Execution, done: &(dyn Fn(&Record) + Sync)) -> Yield {
        let records = run_all(&self.scenario, &self.contenders, &self.cells(), execution, done);
        let checks = selftest::run(&self.scenario, &self.contenders, &records);
        Yield { manifest: self.manifest(lab), records, checks }
    }
}

/// Reduces an experiment that was interrupted to the seeds, from the first, with which all contenders have run. Returns their number.
pub fn keep_whole_seeds(manifest: &mut Manifest, records: &mut Vec<Record>) -> u32 {
    let (first, planned) = (manifest.scenario.run.seed, manifest.scenario.run.seeds);
    let has_run = |seed: u64| {
        let mut names = manifest.contenders.iter();
        names.all(|identity| records.iter().any(|record| record.seed == seed && record.contender == *identity))
    };
    let whole = (0..planned).find(|number| !has_run(first + u64::from(*number))).unwrap_or(planned);
    records.retain(|record| record.seed < first + u64::from(whole));
    manifest.scenario.run.seeds = whole;
    whole
}

/// Path of an experiment's records within `directory`. Only the same experiment has the same name, and its records are the same bytes. So
/// replacing a file loses nothing.
pub fn records_path(directory: &Path, manifest: &Manifest) -> PathBuf {
    directory.join(format!("{}.jsonl", stem(manifest)))
}

/// Directory of an experiment's qlog files within `directory`.
pub fn qlog_path(directory: &Path, manifest: &Manifest) -> PathBuf {
    directory.join(stem(manifest))
}

fn stem(manifest: &Manifest) -> String {
    let text = serde_json::to_string(manifest).unwrap_or_default();
    let fingerprint = crate::digest::fnv1a(text.as_bytes());
    format!("{}-{:08x}", manifest.scenario.name, fingerprint >> 32)
}

/// Writes the records into `directory`, which is created when it is not there. The file appears under its name only
/// when it is complete.
///
/// # Errors
/// When the directory or the file cannot be written.
pub fn store(directory: &Path, manifest: &Manifest, records: &[Record]) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = records_path(directory, manifest);
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let written = write_to(&partial, manifest, records).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        // The first error is the one to report; what is left over is a file that could not be written anyway.
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| path)
}

fn write_to(path: &Path, manifest: &Manifest, records: &[Record]) -> io::Result<()> {
    let mut out = io::BufWriter::new(fs::File::create(path)?);
    record::write(&mut out, manifest, records)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}
