//! Our own stack in the laboratory.

extern crate tiderace_lab as lab;

mod figures;
mod fixture;

use figures::value;
use fixture::changed;
use lab::{
    figure::Figure,
    qlog::Logs,
    record::{Record, RunOutcome},
    roster::contenders,
    run::run_one,
    scenario::Scenario,
    tiderace::{contender, controllers},
};

// Written out: a test reads as its network, and this one and that of `experiment.rs` change apart.
const BULK: &str = r#"
name = "test"
title = "Two downloads over a lossy link"
about = "For tests."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
loss = "1 %"
[path.up]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[traffic]
workload = "bulk"
connections = 2
start-spread = "50 ms"
[run]
warmup = "1 s"
duration = "4 s"
seeds = 1
"#;

fn scenario(changes: &[(&str, &str)]) -> Scenario {
    changed(BULK, changes)
}

fn run(scenario: &Scenario, controller: &str, seed: u64) -> Record {
    run_one(scenario, contender(controller).unwrap().as_ref(), seed, None)
}

#[test]
fn every_controller_shows_every_figure() {
    let scenario = scenario(&[]);
    for controller in controllers() {
        let record = run(&scenario, controller, 1);
        assert_eq!(record.outcome, RunOutcome::Valid, "{controller}");
        for figure in Figure::always() {
            assert!(record.figures[&figure].value.is_some(), "{controller}: {figure:?} {:?}", record.figures[&figure]);
        }
        assert!((1e6..9.7e6).contains(&value(&record, Figure::Goodput)), "{:?}", record.figures);
        assert!((0.039..0.042).contains(&record.connections[0].rtt_min.unwrap()), "{:?}", record.connections);
        let (resent, lost) = (value(&record, Figure::Retransmitted), value(&record, Figure::LinkLoss));
        assert!((resent - lost).abs() < 0.01, "{resent} resent, {lost} lost");
        // ClientHello in two datagrams, certificate chain in two: one round trip, plus the time to send them.
        assert!((0.040..0.060).contains(&value(&record, Figure::Handshake)), "{}", value(&record, Figure::Handshake));
        for connection in &record.connections {
            assert_eq!((connection.closed.as_deref(), &*connection.evidence[0].value), (None, controller));
        }
    }
    assert!(contender("vegas").is_none());
}

#[test]
fn runs_repeat_bit_for_bit() {
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"1 s\"")]);
    let one = run(&scenario, "cubic", 1);
    assert_eq!(one, run(&scenario, "cubic", 1));
    assert_ne!(one.trace, run(&scenario, "cubic", 2).trace);
}

#[test]
fn requests_and_datagrams() {
    let requests = "workload = \"requests\"\nresponse-size = \"10 kB\"\nstreams = 3";
    let record = run(&scenario(&[("workload = \"bulk\"", requests), ("loss = \"1 %\"\n", "")]), "cubic", 1);
    assert_eq!(record.outcome, RunOutcome::Valid);
    // A round trip of 40 ms and the time for three responses of 10 kB at 10 Mbit/s, shared by two connections.
    assert!((0.045..0.110).contains(&value(&record, Figure::RequestP50)), "{}", value(&record, Figure::RequestP50));
    assert!(value(&record, Figure::RequestRate) > 50.0);

    let datagrams = "workload = \"datagrams\"\ndatagram-rate = \"300 kbit/s\"\ndatagram-size = \"500 B\"";
    let record = run(&scenario(&[("workload = \"bulk\"", datagrams)]), "newreno", 1);
    assert_eq!(record.outcome, RunOutcome::Valid);
    assert!((value(&record, Figure::ResidualLoss) - 0.01).abs() < 0.012, "{}", value(&record, Figure::ResidualLoss));
    assert!((0.020..0.040).contains(&value(&record, Figure::DelayP50)), "{}", value(&record, Figure::DelayP50));
}

/// Contenders of these lines of a scenario.
fn taking_part(lines: &str) -> Vec<Box<dyn lab::contender::Contender>> {
    contenders(&toml::from_str(lines).unwrap()).unwrap()
}

#[test]
fn clients_that_come_back_save_a_round_trip() {
    let flows = "workload = \"flows\"\nresponse-size = \"5 kB\"";
    let changes = [
        ("workload = \"bulk\"", flows),
        ("loss = \"1 %\"\n", ""),
        ("connections = 2", "connections = 40"),
        ("\"50 ms\"", "\"2 s\""),
        ("warmup = \"1 s\"", "warmup = \"0 s\""),
    ];
    let scenario = scenario(&changes);
    let both = taking_part(
        "profiles = [{ name = \"first\" }, { name = \"again\", early-data = true }]\nsettings = { congestion = \"cubic\" }",
    );
    let [first, again] = [0, 1].map(|which| run_one(&scenario, both[which].as_ref(), 1, None));
    let [slow, fast] = [&first, &again].map(|record| {
        assert_eq!(record.outcome, RunOutcome::Valid);
        value(record, Figure::FlowP50)
    });
    // A round trip of 40 ms, and the time of the certificates.
    assert!((0.038..0.050).contains(&(slow - fast)), "{slow} s, {fast} s");
    for connection in &again.connections {
        let shown = connection.evidence.iter().find(|evidence| evidence.factor == "early-data").unwrap();
        assert!(shown.value == "accepted" && shown.count > 100, "{shown:?}");
    }
    assert_eq!(again, run_one(&scenario, both[1].as_ref(), 1, None), "tickets and keys are others, and nothing else");
}

/// The ticket's use is told in the handshake: a path that loses the request with the first packets takes nothing from that.
#[test]
fn early_data_that_is_lost_leaves_the_run_valid() {
    let flows = "workload = \"flows\"\nresponse-size = \"5 kB\"";
    let changes = [
        ("workload = \"bulk\"", flows),
        ("loss = \"1 %\"", "loss = \"20 %\""),
        ("connections = 2", "connections = 40"),
        ("\"50 ms\"", "\"2 s\""),
        ("warmup = \"1 s\"", "warmup = \"0 s\""),
    ];
    let again =
        taking_part("profiles = [{ name = \"again\", early-data = true }]\nsettings = { congestion = \"cubic\" }");
    for seed in 1..=4 {
        let record = run_one(&scenario(&changes), again[0].as_ref(), seed, None);
        assert_eq!(record.outcome, RunOutcome::Valid, "seed {seed}");
    }
}

#[test]
fn short_flows_take_as_long_as_their_round_trips() {
    let flows = "workload = \"flows\"\nresponse-size = \"5 kB\"";
    let changes = [
        ("workload = \"bulk\"", flows),
        ("loss = \"1 %\"\n", ""),
        ("connections = 2", "connections = 80"),
        ("\"50 ms\"", "\"4 s\""),
        ("warmup = \"1 s\"", "warmup = \"0 s\""),
    ];
    let record = run(&scenario(&changes), "cubic", 1);
    assert_eq!(record.outcome, RunOutcome::Valid);
    // Two round trips of 40 ms, and the time to send handshake and response at 10 Mbit/s.
    assert!((0.085..0.110).contains(&value(&record, Figure::FlowP50)), "{}", value(&record, Figure::FlowP50));
    assert!(value(&record, Figure::FlowP95) >= value(&record, Figure::FlowP50));
    // Flows that began in the last round trips are not complete.
    assert!(value(&record, Figure::FlowsUnfinished) < 0.1);
    // A loss in the handshake or at the end of the response costs a probe timeout: the median hardly sees it, the tail does.
    let lossy = [changes[0], ("loss = \"1 %\"", "loss = \"8 %\""), changes[2], changes[3], changes[4]];
    let lossy = [1, 2, 3, 4].map(|seed| run(&scenario(&lossy), "cubic", seed));
    let mean = |figure| lossy.iter().map(|record| value(record, figure)).sum::<f64>() / 4.0;
    let (median, tail) = (value(&record, Figure::FlowP50), value(&record, Figure::FlowP95));
    assert!(mean(Figure::FlowP50) < 1.3 * median, "{} {median}", mean(Figure::FlowP50));
    assert!(mean(Figure::FlowP95) > 2.0 * tail, "{} {tail}", mean(Figure::FlowP95));
}

#[test]
fn qlog_says_what_happened() {
    let root = std::env::temp_dir().join(format!("tiderace-qlog-test-{}", std::process::id()));
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"500 ms\"")]);
    let logs = Logs { packets: true, ..Logs::newest(root.clone()) };
    let with = run_one(&scenario, contender("cubic").unwrap().as_ref(), 3, Some(&logs));
    assert_eq!(with, run(&scenario, "cubic", 3), "a log changes nothing");
    let directory = root.join("tiderace-cubic/seed-3");
    let mut names: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected: Vec<_> = ["000-client", "000-server", "001-client", "001-server"]
        .map(|name| format!("connection-{name}.sqlog"))
        .into_iter()
        .chain(["packets.pcapng".to_owned()])
        .map(std::ffi::OsString::from)
        .collect();
    assert_eq!(names, expected);
    let packets = std::fs::read(directory.join("packets.pcapng")).unwrap();
    let keys = b"SERVER_TRAFFIC_SECRET_0 ";
    let connections = packets.windows(keys.len()).filter(|window| window == keys).count();
    assert_eq!(connections, 2, "the keys of both connections");
    let delivered: u64 = with.connections.iter().filter_map(|one| one.stream_bytes_sent).sum();
    assert!(packets.len() as u64 > delivered, "{} bytes of packets, {delivered} of streams", packets.len());
    let log = std::fs::read_to_string(directory.join("connection-001-server.sqlog")).unwrap();
    let events: Vec<serde_json::Value> =
        log.split('\u{1e}').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    // The record counts from the end of the warm-up, the log from the start.
    assert!(count("quic:packet_sent") as u64 > with.connections[1].packets_sent.unwrap());
    assert!(count("quic:packet_received") > 10 && count("quic:recovery_metrics_updated") > 10);
    let data = events.iter().find(|event| event["data"]["frames"][0]["frame_type"] == "stream");
    assert!(data.is_some(), "stream frames are named");
    std::fs::remove_dir_all(&root).unwrap();
}
