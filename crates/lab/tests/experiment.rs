//! Whole experiments with a toy transport: from the scenario to the report.

extern crate tiderace_lab as lab;

mod figures;
mod fixture;
mod toy;

use figures::value;
use fixture::changed;
use lab::{
    contender::Contender,
    experiment::{Experiment, Yield, store},
    figure::Figure,
    matrix::cells,
    measure::Provenance,
    record::{MANIFEST_SCHEMA, Manifest, Record, RunOutcome, read, write},
    report::{Report, Style, brief, text},
    run::{Execution, run_all, run_one},
    scenario::Scenario,
    stats::compare::Verdict,
};
use toy::{Toy, Trick};

const BULK: &str = r#"
name = "test"
title = "Four downloads over a lossy link"
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
connections = 4
start-spread = "100 ms"
[run]
warmup = "1 s"
duration = "4 s"
seeds = 8
"#;

fn scenario(changes: &[(&str, &str)]) -> Scenario {
    changed(BULK, changes)
}

fn experiment(scenario: &Scenario, contenders: &[Box<dyn Contender>], threads: usize) -> (Manifest, Vec<Record>) {
    let seeds = (0..u64::from(scenario.run.seeds)).map(|i| scenario.run.seed + i);
    let execution = Execution { threads: threads.try_into().ok(), qlog: None };
    let records = run_all(scenario, contenders, &cells(contenders.len(), seeds), &execution, &|_| {});
    let manifest = Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        lab: "test".to_owned(),
        digest: scenario.digest(),
        scenario: scenario.clone(),
        contenders: contenders.iter().map(|contender| contender.identity()).collect(),
    };
    (manifest, records)
}

fn run(scenario: &Scenario, trick: Trick, seed: u64) -> Record {
    run_one(scenario, Toy::contender(50, trick).as_ref(), seed, None)
}

#[test]
fn from_the_scenario_to_the_report() {
    let scenario = scenario(&[("loss = \"1 %\"", "loss = \"3 %\"")]);
    let contenders = [Toy::contender(50, Trick::None), Toy::contender(85, Trick::None)];
    let (manifest, records) = experiment(&scenario, &contenders, 2);
    assert!(records.iter().all(|record| record.outcome == RunOutcome::Valid), "{records:?}");

    let mut file = Vec::new();
    write(&mut file, &manifest, &records).unwrap();
    let (manifest_again, records_again) = read(&file[..]).unwrap();
    assert!(
        (&manifest_again, &records_again) == (&manifest, &records),
        "what is written reads back as the same values"
    );

    let report = Report::new(manifest, &records);
    assert_eq!(report.contenders.len(), 2);
    for figure in Figure::always() {
        let cell = report.cell(0, figure).unwrap();
        let interval = cell.interval.unwrap_or_else(|| panic!("{figure:?} has no interval"));
        assert!(interval.low <= cell.median.unwrap() && cell.median.unwrap() <= interval.high);
    }
    let goodput = report.comparisons.iter().find(|row| row.figure == "goodput").unwrap();
    assert_eq!(goodput.result.verdict, Verdict::Better, "a window that shrinks less carries more: {goodput:?}");

    let printed = text(&report);
    for figure in Figure::always() {
        assert!(printed.contains(figure.label()), "{printed}");
    }
    assert!(printed.contains("toy 85 compared with toy 50"), "{printed}");
    assert!(
        printed.contains("10 Mbit/s, drop-tail queue 50 kB (40 ms), delay 20 ms, loss 3 %\n            (independent)"),
        "{printed}"
    );
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    let headlines = brief(&report, Style::default()).replace('\n', " ");
    assert!(headlines.contains("toy 85 wins with goodput"), "{headlines}");
    assert!(headlines.contains("connections, RTT 40 ms, 3 % independent loss and seeds 1 to 8,"), "{headlines}");
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["contenders"][1]["name"], "toy 85");
}

#[test]
fn figures_agree_with_the_path() {
    let record = run(&scenario(&[]), Trick::None, 1);
    // 1 % random loss plus what the queue drops; the minimum RTT is the path plus the time to send a packet.
    let (link, queue) = (value(&record, Figure::LinkLoss), value(&record, Figure::QueueLoss));
    assert!((0.005..0.016).contains(&(link - queue)), "{link} {queue}");
    let resent = value(&record, Figure::Retransmitted);
    assert!(resent >= link * 0.7 && resent < 0.1, "{resent} resent at {link} loss");
    let p50 = value(&record, Figure::RttP50);
    assert!((0.040..0.090).contains(&p50), "{p50}");
    assert!((0.010..=0.040).contains(&value(&record, Figure::QueueDelayP99)), "the queue holds 40 ms");
    assert!(value(&record, Figure::RttP99) <= 0.040 + 0.040 + 0.006, "the queue bounds the delay");
    assert!((value(&record, Figure::Jitter) - (value(&record, Figure::RttP95) - p50)).abs() < 1e-12);
    // Goodput is at most the rate less headers, and the link carried it.
    let goodput = value(&record, Figure::Goodput);
    assert!((3e6..9.8e6).contains(&goodput), "{goodput}");
    let carried = (record.link.offered - record.link.dropped_queue - record.link.dropped_loss) as f64;
    let payload = goodput * 4.0 / 8.0 / carried;
    assert!((1_100.0..=1_210.0).contains(&payload), "{payload} bytes per packet that arrived");
    assert!((value(&record, Figure::Handshake) - 0.040).abs() < 0.005);
}

#[test]
fn same_seed_same_bytes_whatever_the_threads() {
    let scenario = scenario(&[("seeds = 8", "seeds = 3"), ("duration = \"4 s\"", "duration = \"1 s\"")]);
    let contenders = [Toy::contender(50, Trick::None), Toy::contender(70, Trick::None)];
    let lines = |threads| {
        let (manifest, records) = experiment(&scenario, &contenders, threads);
        let mut file = Vec::new();
        write(&mut file, &manifest, &records).unwrap();
        (file, records)
    };
    let ((one, records), (four, _)) = (lines(1), lines(4));
    assert!(one == four, "records differ between one thread and four");
    let mut hashes: Vec<&str> = records.iter().map(|record| record.trace.hash.as_str()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 6, "another seed or contender gives another trace");
}

#[test]
fn a_against_a_is_identical() {
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"1 s\"")]);
    let contenders = [Toy::contender(50, Trick::None), Toy::contender(50, Trick::Silent)];
    let (manifest, records) = experiment(&scenario, &contenders, 2);
    let report = Report::new(manifest, &records);
    assert_eq!(report.contenders[0].trace_hash, report.contenders[1].trace_hash);
    let goodput = report.comparisons.iter().find(|row| row.figure == "goodput").unwrap();
    let ratio = goodput.result.ratio.unwrap();
    assert_eq!((ratio.low, ratio.high), (1.0, 1.0));
    assert_eq!(goodput.result.verdict, Verdict::Equivalent);
}

#[test]
fn what_cannot_be_reported_is_a_dash() {
    let scenario = scenario(&[("seeds = 8", "seeds = 1")]);
    let contenders = [Toy::contender(50, Trick::Silent)];
    let (manifest, records) = experiment(&scenario, &contenders, 1);
    for figure in [Figure::RttP50, Figure::RttP99, Figure::Jitter, Figure::Bufferbloat, Figure::Retransmitted] {
        assert_eq!(records[0].figures[&figure].provenance, Provenance::Unsupported, "{figure:?}");
    }
    let printed = text(&Report::new(manifest, &records));
    let row = printed.lines().find(|line| line.starts_with("retransmitted")).unwrap();
    assert!(row.ends_with(" –"), "{row}");
    assert!(printed.contains("Intervals need at least 6"), "{printed}");
}

#[test]
fn runs_without_evidence_or_with_wrong_bytes_fail() {
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"1 s\""), ("seeds = 8", "seeds = 1")]);
    for (trick, expected) in [
        (Trick::OtherController, "no evidence of congestion `aimd-50` on connection 0: its counters say `aimd-99`"),
        (Trick::Unbuildable, "the toy is broken"),
        (Trick::Deaf, "no connection was established (no reason was given)"),
    ] {
        assert_eq!(run(&scenario, trick, 1).outcome, RunOutcome::Failed(expected.to_owned()));
    }
    let RunOutcome::Failed(reason) = run(&scenario, Trick::Corrupts, 1).outcome else { panic!("it must fail") };
    assert!(reason.contains("bytes arrived wrong"), "{reason}");

    let contenders = [Toy::contender(50, Trick::OtherController)];
    let (manifest, records) = experiment(&scenario, &contenders, 1);
    let report = Report::new(manifest, &records);
    assert_eq!((report.contenders[0].runs, report.failures.len()), (0, 1));
    assert_eq!(report.cell(0, Figure::Goodput).unwrap().median, None, "figures of failed runs are not used");
    assert!(text(&report).contains("Failed: 1 runs"), "{}", text(&report));
}

#[test]
fn uploads_load_the_other_direction() {
    let upload = scenario(&[("connections = 4", "connections = 4\ndirection = \"upload\"\nstreams = 3")]);
    let record = run(&upload, Trick::None, 1);
    assert_eq!(record.outcome, RunOutcome::Valid);
    // The way up has no random loss: all that is lost, the queue dropped.
    assert!(value(&record, Figure::Goodput) > 8e6, "{}", value(&record, Figure::Goodput));
    assert_eq!(value(&record, Figure::LinkLoss), value(&record, Figure::QueueLoss));
}

#[test]
fn requests_take_as_long_as_the_path_says() {
    let requests = "workload = \"requests\"\nresponse-size = \"10 kB\"\nstreams = 2";
    let scenario = scenario(&[("workload = \"bulk\"", requests), ("loss = \"1 %\"\n", ""), ("10 Mbit/s", "1 Gbit/s")]);
    let record = run(&scenario, Trick::None, 1);
    assert_eq!(record.outcome, RunOutcome::Valid, "{record:?}");
    let p50 = value(&record, Figure::RequestP50);
    assert!((0.040..0.042).contains(&p50), "one round trip of 40 ms and nine packets: {p50}");
    // 4 connections with 2 slots, each request 40 ms: 200 per second.
    assert!((value(&record, Figure::RequestRate) - 200.0).abs() < 10.0);
    assert!((value(&record, Figure::Goodput) - 200.0 * 80_000.0).abs() < 0.06 * 16e6);
}

#[test]
fn datagrams_are_missed_as_often_as_the_link_drops_them() {
    let datagrams = "workload = \"datagrams\"\ndatagram-rate = \"1 Mbit/s\"\ndatagram-size = \"500 B\"";
    let scenario = scenario(&[("workload = \"bulk\"", datagrams), ("loss = \"1 %\"", "loss = \"10 %\"")]);
    let record = run(&scenario, Trick::None, 1);
    assert_eq!(record.outcome, RunOutcome::Valid, "{record:?}");
    // 4 connections × 250 per second × 4 s: three standard deviations of the share are 1.4 %.
    assert!((value(&record, Figure::ResidualLoss) - 0.1).abs() < 0.015, "{}", value(&record, Figure::ResidualLoss));
    assert!((value(&record, Figure::Goodput) - 0.9 * 4e6).abs() < 0.1e6);
    assert!((0.020..0.024).contains(&value(&record, Figure::ArrivedP99)), "{}", value(&record, Figure::ArrivedP99));
    // One in ten never came: more than a p95 leaves out.
    let all = &record.figures[&Figure::DelayP95];
    assert_eq!(
        (all.value, all.provenance, all.ranked(Figure::DelayP95)),
        (None, Provenance::Censored, Some(f64::INFINITY))
    );
    let missed = all.never.unwrap() as f64 / all.samples.unwrap() as f64;
    assert!((missed - value(&record, Figure::ResidualLoss)).abs() < 1e-9, "{all:?}");
    assert!(value(&record, Figure::DelayP50) >= value(&record, Figure::ArrivedP50));
}

#[test]
fn broken_records_are_refused() {
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"100 ms\""), ("seeds = 8", "seeds = 1")]);
    let (manifest, records) = experiment(&scenario, &[Toy::contender(50, Trick::None)], 1);
    let mut file = Vec::new();
    write(&mut file, &manifest, &records).unwrap();
    let text = String::from_utf8(file).unwrap();
    for (broken, expected) in [
        (String::new(), "the file is empty"),
        (text.replace("tiderace-lab-run/2", "tiderace-lab-run/9"), "line 2: the schema is `tiderace-lab-run/9`"),
        (text.replace("\"goodput\":{", "\"speed\":{"), "line 2: the line is damaged"),
        (text[..text.len() - 10].to_owned(), "line 2: this is no line of a file with records (EOF"),
    ] {
        let error = read(broken.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn an_experiment_stores_what_it_yields() {
    let scenario = scenario(&[("duration = \"4 s\"", "duration = \"500 ms\""), ("seeds = 8", "seeds = 2")]);
    let experiment = Experiment::new(scenario, vec![Toy::contender(50, Trick::None), Toy::contender(70, Trick::None)]);
    let done = std::sync::atomic::AtomicUsize::new(0);
    let count = |_: &Record| {
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let Yield { manifest, records, checks } = experiment.run("test 1", &Execution::default(), &count);
    assert_eq!((done.into_inner(), records.len()), (4, 4));
    let names: Vec<_> = checks.iter().map(|check| (check.name, check.passed)).collect();
    assert_eq!(names, [("link arithmetic", true), ("loss", true), ("repeatability", true)], "{checks:?}");

    let directory = std::env::temp_dir().join(format!("tiderace-lab-test-{}", std::process::id()));
    let path = store(&directory, &manifest, &records).unwrap();
    let stored = read(std::io::BufReader::new(std::fs::File::open(&path).unwrap())).unwrap();
    assert!(stored == (manifest.clone(), records.clone()));
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files, std::slice::from_ref(&path), "nothing half-written is left");
    // A directory that cannot be written: a file stands in its place.
    assert!(store(&path, &manifest, &records).is_err());
    std::fs::remove_dir_all(&directory).unwrap();

    let mut report = Report::new(manifest, &records);
    (report.self_test, report.records) = (checks, Some(path));
    assert!(report.is_sound());
    let printed = text(&report);
    assert!(printed.contains("Self-test: 3 passed"), "{printed}");
    assert!(printed.trim_end().ends_with(".jsonl"), "{printed}");
}
