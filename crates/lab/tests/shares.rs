//! Shares of a bottleneck, with few runs; `cargo xtask shows congestion` takes the full measure.

use tiderace_lab::reference::{
    Failed, Finding,
    shares::{Effort, alike, beside},
};

fn hold(findings: Result<Vec<Finding>, Failed>) {
    for finding in findings.expect("every run can be used") {
        println!("{finding}");
        assert!(finding.passed(), "{finding}");
    }
}

// Shares of BBRv3 differ by twelve points between start offsets: medians of eight differ by chance more than the shape does, so
// they are measured over sixteen.
#[test]
fn what_bbr_gets_beside_cubic_falls_with_the_buffer() {
    hold(beside("bbr3", "cubic", Effort { offsets: 16, seconds: 40 }));
}

#[test]
fn what_newreno_gets_beside_cubic_falls_with_the_buffer() {
    // Sawteeth of tens of seconds: two of a kind need longer to show what they get.
    hold(beside("newreno", "cubic", Effort { offsets: 8, seconds: 60 }));
}

#[test]
fn flows_of_a_kind_share_evenly() {
    for buffer in [0.5, 1.0] {
        hold(alike("cubic", buffer, Effort { offsets: 6, seconds: 40 }).map(|finding| vec![finding]));
    }
}
