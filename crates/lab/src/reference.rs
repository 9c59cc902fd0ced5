//! Reference results: experiments with known answers.
//!
//! They show that the laboratory finds results that follow from standards and arithmetic. [`loss_response`] compares the controllers with
//! the model of RFC 9438, [`full_queue`] the delay that CUBIC causes with the size of the buffer, [`mod@ack_frequency`] acknowledgement
//! frequencies. [`flows`] runs different connections on one path: [`shares`] for their shares, [`hazards`] for known hazards, [`mod@auto`]
//! for the controller of that name. [`mod@fec`] compares codes with theory. [`speed`] measures the cost of simulation. Tests and `cargo
//! xtask shows` run the same functions. The seeds are fixed, so everything but the speed repeats bit for bit.

pub mod ack_frequency;
pub mod auto;
pub mod bbr;
pub mod cold;
pub mod fec;
pub mod flows;
pub mod full_queue;
pub mod hazards;
pub mod loss_response;
pub mod one_way;
pub mod random_loss;
pub mod shares;
pub mod speed;
pub mod tolerance;

use core::{
    num::NonZeroUsize,
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
};
use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{
    contender::Contender,
    figure::Figure,
    matrix::cells,
    record::{Record, RunOutcome},
    run::{Execution, run_all},
    scenario::{Scenario, parse},
    settings::profiles,
    stats::{
        interval::{Interval, median_interval},
        quantile::median,
    },
    tiderace::with_setup,
};

/// A measured value beside the range it has to lie in.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Name of the measurement, for people: `newreno at 1 % loss`.
    pub name: String,
    /// Median over the runs.
    pub value: f64,
    /// 95 % interval, when there are enough runs for one.
    pub interval: Option<Interval>,
    /// Range in which the value has to lie.
    pub target: RangeInclusive<f64>,
    /// Unit of value and target.
    pub unit: &'static str,
    /// Origin of the value.
    pub detail: String,
}

impl Finding {
    /// Returns whether the value lies where it has to.
    pub fn passed(&self) -> bool {
        self.target.contains(&self.value)
    }
}

impl core::fmt::Display for Finding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {:.3} {}", self.name, self.value, self.unit)?;
        if let Some(interval) = &self.interval {
            write!(f, " [{:.3}, {:.3}]", interval.low, interval.high)?;
        }
        write!(f, ", target {:.3} to {:.3}; {}", self.target.start(), self.target.end(), self.detail)
    }
}

/// Error of an experiment without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub String);

/// Our stack with one controller.
fn stack(controller: &str) -> Result<Box<dyn Contender>, Failed> {
    crate::tiderace::contender(controller).ok_or_else(|| Failed(format!("there is no controller `{controller}`")))
}

/// A scenario that this module wrote as text.
fn scenario(text: &str) -> Result<Scenario, Failed> {
    parse(text, "reference").map_err(|error| Failed(error.to_string()))
}

/// Runs every seed of the scenario on all cores. One run that cannot be used is a failure: the others would have been
/// chosen by their result.
fn runs(scenario: &Scenario, controller: &str) -> Result<Vec<Record>, Failed> {
    let first = scenario.run.seed;
    let cells = cells(1, first..first + u64::from(scenario.run.seeds));
    let records = run_all(scenario, &[stack(controller)?], &cells, &Execution::default(), &|_| {});
    for record in &records {
        if let RunOutcome::Failed(reason) = &record.outcome {
            return Err(Failed(format!("seed {}: {reason}", record.seed)));
        }
    }
    Ok(records)
}

/// Runs of one kind, numbered from 0, on all cores; their results in the order of the numbers.
fn on_all_cores<T: Send>(count: u64, run: impl Fn(u64) -> Result<T, Failed> + Sync) -> Result<Vec<T>, Failed> {
    let (next, results) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let result = run(number);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get) as u64;
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A figure of a run.
fn figure(record: &Record, figure: Figure) -> Result<f64, Failed> {
    let reading = record.figures.get(&figure);
    reading.and_then(|reading| reading.value).ok_or_else(|| {
        let reason = reading.and_then(|reading| reading.reason.clone()).unwrap_or_else(|| "no value".to_owned());
        Failed(format!("seed {}: {}: {reason}", record.seed, figure.label()))
    })
}

/// A median and its 95 % interval.
pub type Centre = (f64, Option<Interval>);

/// The median and its 95 % interval.
fn centre(values: &[f64]) -> Result<Centre, Failed> {
    let mut ascending = values.to_vec();
    ascending.sort_by(f64::total_cmp);
    let value = median(&ascending).ok_or_else(|| Failed("no run".to_owned()))?;
    Ok((value, median_interval(values, 0.95)))
}

/// The same times a factor and less an offset.
fn scaled((value, interval): Centre, by: f64, less: f64) -> Centre {
    let interval = interval.map(|interval| Interval {
        low: interval.low * by - less,
        high: interval.high * by - less,
        ..interval
    });
    (value * by - less, interval)
}

/// No target: the value is only reported.
const TOLD: RangeInclusive<f64> = f64::NEG_INFINITY..=f64::INFINITY;

fn at_most(most: f64) -> RangeInclusive<f64> {
    f64::NEG_INFINITY..=most
}

fn at_least(least: f64) -> RangeInclusive<f64> {
    least..=f64::INFINITY
}

fn finding(
    name: String,
    (value, interval): Centre,
    target: RangeInclusive<f64>,
    unit: &'static str,
    detail: String,
) -> Finding {
    Finding { name, value, interval, target, unit, detail }
}

/// Records of all seeds of a scenario with one profile, whose name is `profile`.
///
/// # Errors
/// When the scenario contradicts itself, or a run cannot be used.
fn records_of(text: &str, profile: &str) -> Result<Vec<Record>, Failed> {
    let scenario = scenario(text)?;
    let profiles =
        profiles(&scenario.contenders).map_err(|fault| Failed(format!("{}: {}", fault.field, fault.message)))?;
    let contenders: Vec<_> = profiles.into_iter().map(with_setup).collect();
    let first = scenario.run.seed;
    let cells = cells(1, first..first + u64::from(scenario.run.seeds));
    let records = run_all(&scenario, &contenders, &cells, &Execution::default(), &|_| {});
    for record in &records {
        if let RunOutcome::Failed(reason) = &record.outcome {
            return Err(Failed(format!("{profile}, seed {}: {reason}", record.seed)));
        }
    }
    Ok(records)
}
