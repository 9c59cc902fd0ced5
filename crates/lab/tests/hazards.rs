//! Hazards of congestion control that are known from the field, with one run each; `cargo xtask shows congestion` takes more.
//! CPU at a small RTT is counted in instructions, by `cargo xtask shows congestion --only cost`.

use tiderace_lab::reference::{
    Failed, Finding,
    hazards::{Effort, probe_rtt, reordering},
};

fn hold(findings: Result<Vec<Finding>, Failed>) {
    for finding in findings.expect("every run can be used") {
        println!("{finding}");
        assert!(finding.passed(), "{finding}");
    }
}

/// ProbeRTT empties a part of the pipe every five seconds: half of it, for 200 ms and a round trip, and no more.
#[test]
fn the_dip_of_probe_rtt_is_half_the_pipe_for_a_moment() {
    hold(probe_rtt("bbr3", Effort { seeds: 1, seconds: 40 }));
}

/// Acknowledgements for ten packets each, on a path that swaps packets: a loss that is none is found to be none, and goodput
/// stays.
#[test]
fn reordering_and_sparse_acknowledgements() {
    for controller in ["cubic", "bbr3"] {
        hold(reordering(controller, Effort { seeds: 1, seconds: 20 }));
    }
}
