//! The laboratory for Python: plans, runs and files of records, with Arrow between the two languages.
//!
//! A run is made with the interpreter released, so threads and the workers of a cluster run side by side. Batches go over as Arrow
//! IPC streams: whatever version of pyarrow is installed reads them.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use lab::{
    campaign::{self, Effort},
    columns,
    experiment::records_path,
    plan::Plan as Runs,
    record::{self, LAB, Record},
    scenario::{Overrides, Scenario, load, parse},
};
use pyo3::{
    exceptions::{PyIndexError, PyOSError, PyValueError},
    prelude::*,
    types::PyBytes,
};

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn unreadable(error: impl std::fmt::Display) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// All runs of a scenario: every point of its matrix with every contender and seed.
#[pyclass(frozen)]
struct Plan {
    runs: Runs,
    manifest: String,
}

impl Plan {
    fn of(scenario: Scenario) -> PyResult<Self> {
        let absent = lab::roster::absent(&scenario.contenders);
        if !absent.is_empty() {
            return Err(wrong(format!("this package does not have the stacks {}", absent.join(", "))));
        }
        let runs = Runs::new(scenario).map_err(wrong)?;
        let manifest = record::head(&runs.manifest(LAB).map_err(wrong)?).map_err(wrong)?;
        Ok(Self { runs, manifest })
    }

    fn run(&self, index: usize) -> PyResult<Record> {
        campaign::one(&self.runs, index, &Effort::default()).map_err(wrong)
    }

    fn factors(&self) -> Vec<String> {
        self.runs.base().factors.keys().cloned().collect()
    }
}

#[pymethods]
impl Plan {
    /// The plan of a preset, a scenario file, or the text of one.
    #[new]
    #[pyo3(signature = (scenario, seeds=None, seed=None))]
    fn new(scenario: &str, seeds: Option<u32>, seed: Option<u64>) -> PyResult<Self> {
        // A name or a path has one line.
        let read = if scenario.contains('\n') { parse(scenario, "the text") } else { load(scenario) };
        let overrides = Overrides { seeds, seed, ..Overrides::default() };
        Self::of(overrides.apply(read.map_err(wrong)?).map_err(wrong)?)
    }

    /// The plan that a manifest describes: the first line of a file of records.
    #[staticmethod]
    fn from_manifest(line: &str) -> PyResult<Self> {
        Self::of(record::parse_manifest(line.trim_end()).map_err(wrong)?.scenario)
    }

    /// The first line of a file with these runs.
    #[getter]
    fn manifest(&self) -> &str {
        &self.manifest
    }

    /// The name that a file with these runs has.
    #[getter]
    fn name(&self) -> PyResult<String> {
        let manifest = record::parse_manifest(&self.manifest).map_err(wrong)?;
        Ok(records_path(Path::new(""), &manifest).display().to_string())
    }

    fn __len__(&self) -> usize {
        self.runs.len()
    }

    /// Numbers of the runs with this seed.
    fn with_seed(&self, seed: u64) -> Vec<usize> {
        (0..self.runs.len()).filter(|index| self.runs.job(*index).seed == seed).collect()
    }

    /// Makes runs and returns their records as lines of a file.
    fn lines(&self, py: Python<'_>, numbers: Vec<usize>) -> PyResult<Vec<String>> {
        self.known(&numbers)?;
        py.detach(|| numbers.into_iter().map(|index| record::line(&self.run(index)?).map_err(wrong)).collect())
    }

    /// Makes runs and returns their records as an Arrow IPC stream, a row each.
    fn batch<'py>(&self, py: Python<'py>, numbers: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        self.known(&numbers)?;
        let bytes = py.detach(|| -> PyResult<Vec<u8>> {
            let records = numbers.into_iter().map(|index| self.run(index)).collect::<PyResult<Vec<_>>>()?;
            columns::ipc(&columns::batch(&self.factors(), &records, true).map_err(wrong)?).map_err(wrong)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
}

impl Plan {
    fn known(&self, numbers: &[usize]) -> PyResult<()> {
        match numbers.iter().find(|number| **number >= self.runs.len()) {
            Some(number) => Err(PyIndexError::new_err(format!("there are runs 0 to {}, no {number}", self.runs.len()))),
            None => Ok(()),
        }
    }
}

/// A file of records that grows run by run, as `tiderace lab matrix` writes it and `tiderace lab resume` continues it.
#[pyclass(frozen)]
struct Journal {
    /// Taken when the file is complete.
    file: Mutex<Option<lab::journal::Journal>>,
    path: PathBuf,
}

#[pymethods]
impl Journal {
    /// Continues the file at `path` if it holds runs of this plan, and begins it otherwise.
    #[new]
    fn new(path: PathBuf, plan: &Plan) -> PyResult<Self> {
        let manifest = record::parse_manifest(&plan.manifest).map_err(wrong)?;
        let runs = plan.runs.len();
        let opened = lab::journal::Journal::open(&path, |_| runs).ok().filter(|(_, stored, _)| *stored == manifest);
        let file = match opened {
            Some((file, ..)) => file,
            None if path.exists() => {
                return Err(unreadable(format!("{} is there already and holds something else", path.display())));
            }
            None => lab::journal::Journal::create(&path, &manifest, runs).map_err(unreadable)?,
        };
        Ok(Self { file: Mutex::new(Some(file)), path })
    }

    /// Numbers of the runs that are not there yet.
    fn missing(&self) -> PyResult<Vec<usize>> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(file.as_ref().ok_or_else(|| wrong("the file is closed"))?.missing().collect())
    }

    /// Adds a record.
    fn append(&self, line: &str) -> PyResult<()> {
        let record = record::parse_record(0, line).map_err(wrong)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_mut().ok_or_else(|| wrong("the file is closed"))?.append(&record).map_err(unreadable)
    }

    /// Brings the lines into the order of the runs and closes the file.
    fn close(&self) -> PyResult<String> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        file.ok_or_else(|| wrong("the file is closed"))?.tidy().map_err(unreadable)?;
        Ok(self.path.display().to_string())
    }
}

/// The records of a file as an Arrow IPC stream, a row per run.
#[pyfunction]
fn read<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| -> PyResult<Vec<u8>> {
        let (batch, _) = columns::read(&path, false).map_err(unreadable)?;
        columns::ipc(&batch).map_err(wrong)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// Converts a file of records to Parquet.
#[pyfunction]
fn to_parquet(py: Python<'_>, records: PathBuf, target: PathBuf) -> PyResult<()> {
    py.detach(|| columns::write_parquet(&records, &target).map(drop).map_err(unreadable))
}

/// A plan that is shared between calls: making one for a large matrix takes longer than many a run.
static PLAN: Mutex<Option<Arc<Plan>>> = Mutex::new(None);

/// Makes runs of the plan that a manifest describes, and returns their records as lines of a file.
#[pyfunction]
fn lines_of(py: Python<'_>, manifest: &str, numbers: Vec<usize>) -> PyResult<Vec<String>> {
    let known = PLAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let plan = match known.filter(|plan| plan.manifest == manifest) {
        Some(plan) => plan,
        None => {
            let plan = Arc::new(Plan::from_manifest(manifest)?);
            *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&plan));
            plan
        }
    };
    plan.lines(py, numbers)
}

#[pymodule]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Plan>()?;
    module.add_class::<Journal>()?;
    module.add_function(wrap_pyfunction!(read, module)?)?;
    module.add_function(wrap_pyfunction!(to_parquet, module)?)?;
    module.add_function(wrap_pyfunction!(lines_of, module)?)?;
    module.add("LAB", LAB)?;
    Ok(())
}
