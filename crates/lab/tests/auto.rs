//! Promises of the controller `auto`, with few seeds: they are fixed, so these tests say the same each time. `cargo xtask
//! shows auto` measures longer and more, and says what is missed.

extern crate tiderace_lab as lab;

use lab::reference::{
    Failed, Finding,
    auto::{self, Effort},
};

const EFFORT: Effort = Effort { seeds: 3, seconds: 15 };

fn check(findings: Result<Vec<Finding>, Failed>) {
    for finding in findings.unwrap() {
        println!("{finding}");
        assert!(finding.passed(), "{finding}");
    }
}

/// Findings whose names begin in one of these ways.
fn only(findings: Result<Vec<Finding>, Failed>, names: &[&str]) -> Result<Vec<Finding>, Failed> {
    let chosen: Vec<_> =
        findings?.into_iter().filter(|finding| names.iter().any(|name| finding.name.starts_with(name))).collect();
    assert_eq!(chosen.len(), names.len(), "{chosen:?}");
    Ok(chosen)
}

#[test]
fn random_loss_costs_little_and_causes_no_queue() {
    // Ratios to CUBIC with twenty flows lie so close to one that a few seeds do not decide: `shows` has them.
    check(only(auto::random_loss(EFFORT), &["goodput of 1 flow", "queueing delay p95 of 1 flow"]));
}

#[test]
fn cubic_gets_its_share() {
    for (rivals, buffer) in [(1, 1.0), (1, 4.0), (4, 2.0)] {
        check(auto::beside_cubic(rivals, buffer, EFFORT));
    }
}

#[test]
fn flows_of_a_kind_share() {
    for count in [2, 4] {
        check(auto::alike(count, 20, 50, EFFORT));
    }
}

#[test]
fn a_policer_is_used() {
    // What is lost there is missed, and left to `shows`.
    check(only(auto::policer(1, EFFORT), &["goodput / rate of the policer"]));
}
