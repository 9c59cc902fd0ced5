//! Figures of live broadcasts over WebTransport against what follows from the path.

extern crate tiderace_lab as lab;

mod figures;

use figures::value;
use lab::{
    figure::Figure,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::parse,
};

/// A run over a path of 50 ms with this rate in Mbit/s, this queue in kB and this loss, with these fields of the broadcast and of the traffic.
fn run((rate, queue, loss): (&str, &str, &str), live: &str, traffic: &str, settings: &str) -> Record {
    let text = format!(
        r#"
name = "broadcast"
title = "Known broadcasts"
about = "For tests."
[path.down]
rate = "{rate} Mbit/s"
queue = "{queue} kB"
delay = "25 ms"
loss = "{loss}"
[path.up]
rate = "10 Mbit/s"
queue = "100 kB"
delay = "25 ms"
[run]
warmup = "4 s"
duration = "40 s"
seeds = 1
[traffic]
workload = "webtransport"
connections = 1
{traffic}
[traffic.webtransport]
{live}
[contenders]
congestion = ["cubic"]
{settings}
"#
    );
    let scenario = parse(&text, "test").unwrap();
    let contenders = lab::roster::contenders(&scenario.contenders).unwrap();
    let record = run_one(&scenario, contenders[0].as_ref(), 1, None);
    assert_eq!(record.outcome, RunOutcome::Valid);
    record
}

#[test]
fn without_loss_everything_is_in_time() {
    for direction in ["", "direction = \"upload\""] {
        let record = run(("10", "100", "0 %"), "", direction, "");
        assert_eq!(value(&record, Figure::PicturesInTime), 1.0);
        assert_eq!(value(&record, Figure::AudioInTime), 1.0);
        assert_eq!(value(&record, Figure::GroupsReset), 0.0);
        assert_eq!(value(&record, Figure::PicturesWasted), 0.0);
        // 8 kB with headers take 6.7 ms at 10 Mbit/s, and 25 ms to arrive.
        let p50 = value(&record, Figure::PictureP50);
        assert!((0.0316..0.036).contains(&p50), "{p50}");
        // One picture in 30 has 40 kB, for which 33.5 ms are needed beside the 25, and less than two round trips more.
        let p99 = value(&record, Figure::PictureP99);
        assert!((0.0585..0.16).contains(&p99), "{p99}");
        // 40 kB and 29 times 8 kB in 1.2 s, and 160 bytes each 20 ms: 1.88 Mbit/s.
        let goodput = value(&record, Figure::Goodput);
        assert!((1.84e6..1.92e6).contains(&goodput), "{goodput}");
    }
}

#[test]
fn losses_cost_pictures_a_round_trip() {
    // 3 kB take three packets: at 1 % loss about one picture in 33 waits for a retransmission, so p99 has one and p50 none.
    let small = "key-size = \"6 kB\"\ndelta-size = \"3 kB\"";
    let lossless = run(("10", "100", "0 %"), small, "", "");
    let lossy = run(("10", "100", "1 %"), small, "", "");
    let of = |figure| (value(&lossy, figure), value(&lossless, figure));
    let (with, without) = of(Figure::PictureP50);
    assert!((with - without).abs() < 0.003, "{with} {without}");
    // Acknowledgement and retransmission take a round trip, and what follows in the group waits with them.
    let (with, without) = of(Figure::PictureP99);
    assert!((without + 0.04..without + 0.2).contains(&with), "{with} {without}");
    assert!(value(&lossy, Figure::PicturesInTime) > 0.995);
    // A datagram is not sent again: one in a hundred is missing.
    let audio = value(&lossy, Figure::AudioInTime);
    assert!((0.975..0.998).contains(&audio), "{audio}");
}

#[test]
fn where_not_all_fits_the_newest_wins() {
    // 1.2 Mbit/s carry some 157 kB in the 1.2 s of a group, less headers and audio: the key picture and 14 or 15 of 29 others. The rest
    // waits behind the next group until it is late.
    let budget = "latency = \"1 s\"";
    for settings in ["", "settings = { streams = { reset-stream-at = true } }"] {
        let record = run(("1.2", "20", "0 %"), budget, "", settings);
        assert_eq!(value(&record, Figure::GroupsReset), 1.0);
        let in_time = value(&record, Figure::PicturesInTime);
        assert!((0.42..0.56).contains(&in_time), "{in_time}");
        let wasted = value(&record, Figure::PicturesWasted);
        assert!((0.0..0.15).contains(&wasted), "{wasted}");
        // Audio does not wait for pictures at the sender.
        assert!(value(&record, Figure::AudioInTime) > 0.97);
        assert!(value(&record, Figure::Goodput) < 1.2e6);
    }
    // Where a group lasts as long as the broadcast there is none that is newer: after it is reset nothing is left to be seen.
    let endless = run(("1.2", "20", "0 %"), &format!("{budget}\ngroup = 1000"), "", "");
    assert!(value(&endless, Figure::PicturesInTime) < 0.1);
    // In a queue of 0.7 s pictures are late that were sent in time.
    let bloated = run(("1.2", "100", "0 %"), budget, "", "");
    assert!(value(&bloated, Figure::PicturesWasted) > 0.3);
}
