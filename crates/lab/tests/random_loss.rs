//! Loss that is no congestion, ignored: what it gains, and that neighbours do not pay for it. The seeds are fixed, so
//! these tests say the same each time; `cargo xtask shows congestion` measures longer.

extern crate tiderace_lab as lab;

use lab::reference::{Failed, Finding, random_loss};

fn check(findings: Result<Vec<Finding>, Failed>) {
    for finding in findings.unwrap() {
        println!("{finding}");
        assert!(finding.passed(), "{finding}");
    }
}

#[test]
fn random_loss_costs_little_and_causes_no_queue() {
    for controller in ["cubic", "bbr3"] {
        check(random_loss::alone(controller, 6, 20));
    }
}

#[test]
fn neighbours_get_what_they_got_before() {
    for controller in ["cubic", "bbr3"] {
        for buffer in [0.5, 2.0] {
            check(random_loss::beside_cubic(controller, buffer, 10, 20));
        }
    }
}
