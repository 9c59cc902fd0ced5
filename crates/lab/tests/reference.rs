//! Experiments with known answers: the models of RFC 9438 and the arithmetic of a full queue. The seeds are fixed, so these
//! tests say the same each time.

extern crate tiderace_lab as lab;

use lab::reference::{Failed, Finding, full_queue, loss_response};

fn check(finding: Result<Finding, Failed>) {
    let finding = finding.unwrap();
    println!("{finding}");
    assert!(finding.passed(), "{finding}");
    assert!(finding.interval.is_some(), "{finding}: too few seeds");
}

#[test]
fn goodput_under_random_loss_is_the_models() {
    for cell in loss_response::CELLS {
        check(loss_response::measure(cell, loss_response::Effort::default()));
    }
}

#[test]
fn cubic_fills_the_buffer_whatever_its_size() {
    for buffer in full_queue::BUFFERS {
        check(full_queue::measure(buffer, full_queue::Effort::default()));
    }
}

/// The negative control: the model tells a sender that loses ten times as much from one that does not.
#[test]
fn a_wrong_loss_rate_would_be_noticed() {
    let [low, high] = [0.001, 0.01].map(|loss| loss_response::model_window("newreno", 0.1, loss));
    let finding = loss_response::measure(
        loss_response::Cell { controller: "newreno", loss: 0.01 },
        loss_response::Effort { seeds: 6, seconds: 30 },
    );
    let against_the_wrong_model = finding.unwrap().value * high / low;
    assert!(!(1.0 - loss_response::TOLERANCE..=1.0 + loss_response::TOLERANCE).contains(&against_the_wrong_model));
}
