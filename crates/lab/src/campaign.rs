//! Execution of the missing runs of a journal, on all cores, until it is complete or interrupted.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{
    io,
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{journal::Journal, plan::Plan, qlog::Logs, record::Record, run::run_one, scenario::ScenarioError};

/// Settings of a campaign's execution.
#[derive(Clone, Debug, Default)]
pub struct Effort {
    /// Threads; `None` takes one for each core.
    pub threads: Option<NonZeroUsize>,
    /// Directory for qlog files.
    pub qlog: Option<Logs>,
}

/// End of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every run is in the journal.
    Complete,
    /// Stopped on request; what was finished by then is in the journal.
    Stopped,
}

/// Error that ended a campaign.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The journal cannot be written. What was stored before stays.
    #[error("cannot write the records: {0}")]
    Io(#[from] io::Error),
    /// A point cannot be made.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Runs everything that the journal does not have. `stop` ends it after the runs in progress; `done` is called after each run,
/// from the thread that ran it.
///
/// # Errors
/// When a record cannot be stored. No further run starts then.
pub fn run(
    plan: &Plan,
    journal: &mut Journal,
    effort: &Effort,
    stop: &AtomicBool,
    done: &(dyn Fn(&Record) + Sync),
) -> Result<Ended, CampaignError> {
    let missing: Vec<usize> = journal.missing().collect();
    let threads = effort.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let journal = Mutex::new(journal);
    let failure: Mutex<Option<CampaignError>> = Mutex::new(None);
    let halt = AtomicBool::new(false);
    let fail = |error: CampaignError| {
        halt.store(true, Ordering::Relaxed);
        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    let work = || {
        while !stop.load(Ordering::Relaxed) && !halt.load(Ordering::Relaxed) {
            let Some(&index) = missing.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let record = match one(plan, index, effort) {
                Ok(record) => record,
                Err(error) => return fail(error.into()),
            };
            // A run that ended after the stop is whole as well.
            if let Err(error) = journal.lock().unwrap_or_else(PoisonError::into_inner).append(&record) {
                return fail(error.into());
            }
            done(&record);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(missing.len()) {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let complete = journal.into_inner().unwrap_or_else(PoisonError::into_inner).missing().next().is_none();
    Ok(if complete { Ended::Complete } else { Ended::Stopped })
}

/// One run of the plan, as it goes into the journal.
///
/// # Errors
/// Never for a plan that could be made.
pub fn one(plan: &Plan, index: usize, effort: &Effort) -> Result<Record, ScenarioError> {
    let job = plan.job(index);
    let scenario = plan.scenario(job.point)?;
    let contenders = plan.contenders(&scenario)?;
    let mut record = run_one(&scenario, contenders[job.contender].as_ref(), job.seed, effort.qlog.as_ref());
    record.run = index as u64;
    record.point.clone_from(&plan.points()[job.point]);
    Ok(record)
}
