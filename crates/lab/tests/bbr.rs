//! Known facts of BBR, with few seeds; `cargo xtask shows congestion` takes the full measure.

use tiderace_lab::reference::{
    Failed, Finding,
    bbr::{CELLS, Effort, fairness, loss, queue},
};

fn holds(finding: Result<Finding, Failed>) {
    let finding = finding.expect("every run can be used");
    println!("{finding}");
    assert!(finding.passed(), "{finding}");
}

#[test]
fn goodput_holds_up_to_the_limit_of_each_version_and_breaks_beyond() {
    for cell in CELLS {
        holds(loss(cell, Effort { seeds: 2, seconds: 25 }));
    }
}

#[test]
fn the_queue_does_not_follow_the_buffer() {
    for buffer in [1.0, 8.0] {
        holds(queue(buffer, Effort { seeds: 2, seconds: 25 }));
    }
}

#[test]
fn two_flows_share() {
    holds(fairness(Effort { seeds: 10, seconds: 40 }));
}
