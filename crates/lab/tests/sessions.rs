//! Figures of videos, pages and feeds against what follows from the path.

extern crate tiderace_lab as lab;

mod figures;

use figures::value;
use lab::{
    figure::Figure,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::parse,
};

/// A run over a path without loss, 50 ms, with this rate in Mbit/s and this traffic.
fn run(rate: &str, traffic: &str) -> Record {
    let text = format!(
        r#"
name = "sessions"
title = "Known sessions"
about = "For tests."
[path.down]
rate = "{rate} Mbit/s"
queue = "100 kB"
delay = "25 ms"
[path.up]
rate = "10 Mbit/s"
queue = "100 kB"
delay = "25 ms"
[run]
duration = "40 s"
seeds = 1
[traffic]
connections = 1
{traffic}
"#
    );
    let scenario = parse(&text, "test").unwrap();
    let contender = lab::tiderace::contender("cubic").unwrap();
    let record = run_one(&scenario, contender.as_ref(), 1, None);
    assert_eq!(record.outcome, RunOutcome::Valid);
    record
}

#[test]
fn a_video_fits_the_path_and_stands_still_where_nothing_fits() {
    let wide = run("10", "workload = \"video\"");
    assert_eq!(value(&wide, Figure::VideoStalled), 0.0);
    // Four fifths of some 9.5 Mbit/s carry 5, not 8.
    let rate = value(&wide, Figure::VideoRate);
    assert!((4.0e6..=5.0e6).contains(&rate), "{rate}");
    assert!(value(&wide, Figure::VideoSwitches) < 0.1);
    // Handshake, request, 100 kB at 10 Mbit/s.
    let start = value(&wide, Figure::VideoStart);
    assert!((0.18..0.5).contains(&start), "{start}");

    // The lowest bitrate is 0.4 Mbit/s: three quarters of it come through, so that a third of the playing time is missing.
    let narrow = run("0.3", "workload = \"video\"");
    let stalled = value(&narrow, Figure::VideoStalled);
    assert!((0.2..0.45).contains(&stalled), "{stalled}");
    assert_eq!(value(&narrow, Figure::VideoRate), 400e3);
}

#[test]
fn a_page_takes_its_levels_and_its_bytes() {
    let record = run("10", "workload = \"page\"");
    // 1.24 MB at 10 Mbit/s take 1.0 s, and handshake and three levels four round trips.
    let took = value(&record, Figure::FlowP50);
    assert!((1.1..1.8).contains(&took), "{took}");
    assert_eq!(value(&record, Figure::FlowsUnfinished), 0.0);
}

#[test]
fn a_feed_shows_what_fits_and_answers_go_first() {
    let roomy = run("10", "workload = \"feed\"");
    assert_eq!(value(&roomy, Figure::FeedSeen), 1.0);
    assert_eq!(value(&roomy, Figure::FeedWasted), 0.0);
    // 376 kB each second do not fit into 2 Mbit/s. Images come one after the other, so that the first are complete; what is
    // in the queue when a screen is left, up to 0.4 s of it, is of no use.
    let tight = run("2", "workload = \"feed\"");
    let seen = value(&tight, Figure::FeedSeen);
    assert!((0.15..0.7).contains(&seen), "{seen}");
    let wasted = value(&tight, Figure::FeedWasted);
    assert!((0.05..0.8).contains(&wasted), "{wasted}");
    // Answers of 16 kB go ahead of the images, but not ahead of what is in the queue already.
    let (with, without) = (value(&tight, Figure::RequestP50), value(&roomy, Figure::RequestP50));
    assert!(with < without + 0.6, "{with} {without}");
    // Goodput is what somebody could use or watch arrive, and no more than the path.
    assert!(value(&tight, Figure::Goodput) < 2e6);
}
