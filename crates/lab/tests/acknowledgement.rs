//! Acknowledgements: on request, what they save on a path without loss, and that random loss makes the policy careful; and
//! what the receive times in them tell. The
//! seeds are fixed, so these tests say the same each time; `cargo xtask shows congestion` measures more cells for longer.

extern crate tiderace_lab as lab;

use lab::reference::{
    ack_frequency::{AckFrequency, Cell, Compared, Effort, measure, pair, rhythm},
    one_way,
};

fn check(cell: Cell) {
    for finding in measure(cell, AckFrequency::Adaptive, Effort { seeds: 6, seconds: 15 }).unwrap() {
        println!("{finding}");
        assert!(finding.passed(), "{finding}");
    }
}

#[test]
fn few_acknowledgements_are_enough_without_loss() {
    check(Cell { controller: "cubic", rate: 20, rtt: 50, loss: 0.0 });
}

#[test]
fn random_loss_makes_the_policy_careful() {
    check(Cell { controller: "cubic", rate: 20, rtt: 50, loss: 0.001 });
}

#[test]
fn an_acknowledgement_stands_for_as_many_packets_as_were_asked_for() {
    for packets in [3, 11] {
        let finding = rhythm(packets, Effort { seeds: 2, seconds: 10 }).unwrap();
        assert!(finding.passed(), "{finding}");
    }
}

/// The negative control: where the window limits, a fixed number costs goodput, and the comparison sees it.
#[test]
fn a_fixed_number_costs_where_the_window_limits() {
    let cell = Cell { controller: "cubic", rate: 50, rtt: 100, loss: 0.001 };
    let pairs: Vec<Compared> = (1..=4).map(|seed| pair(cell, AckFrequency::Fixed(20), 20, seed).unwrap()).collect();
    let mean = pairs.iter().map(|pair| pair.goodput).sum::<f64>() / 4.0;
    println!("{pairs:?}");
    assert!(mean < 0.95, "{mean}");
}

/// With clocks that agree in rate, and with clocks that drift apart as bad quartzes do.
#[test]
fn receive_times_tell_the_variation_of_each_direction() {
    for drift_ppm in [0, 50, -50] {
        for finding in one_way::measure(drift_ppm, 25, 1).unwrap() {
            println!("{finding}");
            assert!(finding.passed(), "{finding}");
        }
    }
}
