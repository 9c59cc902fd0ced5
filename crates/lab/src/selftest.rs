//! Self-test: known answers of the laboratory's parts, which have to be right before a report is made.
//!
//! [`calibrate`] checks the whole laboratory. [`run`] checks a scenario: both links obey its settings, and a run repeats bit for bit.

mod anchors;
mod calibration;
mod card;
mod chain;
mod codes;
mod control;
mod figures;
mod links;
mod losses;
mod own;

use serde::Serialize;

use crate::{
    contender::Contender,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::Scenario,
};

pub use calibration::{Fault, NOT_CHECKED, calibrate, calibrate_while};

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Result: `true` when it holds.
    pub passed: bool,
    /// Expected and seen values.
    pub detail: String,
}

/// Runs all checks. `records` are those of the experiment: the first valid one is repeated.
pub fn run(scenario: &Scenario, contenders: &[Box<dyn Contender>], records: &[Record]) -> Vec<Check> {
    own::checks(scenario).into_iter().chain(repeatability(scenario, contenders, records)).collect()
}

/// The same seed gives the same packets and figures.
fn repeatability(scenario: &Scenario, contenders: &[Box<dyn Contender>], records: &[Record]) -> Option<Check> {
    let first = records.iter().find(|record| record.outcome == RunOutcome::Valid)?;
    let contender = contenders.iter().find(|contender| contender.identity() == first.contender)?;
    let again = run_one(scenario, contender.as_ref(), first.seed, None);
    let passed = again == *first;
    let detail = format!(
        "{} with seed {} twice: trace {} and {}",
        first.contender.name, first.seed, first.trace.hash, again.trace.hash
    );
    Some(Check { name: "repeatability", passed, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{PRESETS, load};

    #[test]
    fn presets_pass() {
        for preset in PRESETS {
            let scenario = load(preset.name).unwrap();
            let checks = run(&scenario, &[], &[]);
            assert!(!checks.is_empty(), "{}", preset.name);
            for check in checks {
                assert!(check.passed, "{}: {check:?}", preset.name);
            }
        }
    }
}
