//! Sensitivity of comparison and gate: real runs of two profiles of one name, and records that a test alters where no setting
//! makes the difference. Each line that begins with `regression: ` says of which figure the gate was told, and whether it
//! failed because of it; `cargo xtask shows truth` reads them.

extern crate tiderace_lab as lab;

use std::sync::Mutex;

use lab::{
    campaign::{Effort, one},
    compare::{Changes, changes},
    figure::Figure,
    gate::{Gate, Kind, Tolerances, judge},
    measure::{Provenance, Reading},
    plan::Plan,
    record::{Record, RunOutcome},
    report::{MatrixReport, Report, csv, text},
    scenario::parse,
    stats::compare::Verdict,
    summary::Summary,
    versus::effect,
};

const SEEDS: u32 = 12;

/// A path, a load and the contenders in TOML.
#[derive(Clone, Copy)]
struct Setting {
    path: &'static str,
    traffic: &'static str,
    seconds: u32,
}

/// The runs of a setting with these contenders, all of which count.
fn plan(setting: Setting, contenders: &str, seeds: u32) -> Plan {
    let Setting { path, traffic, seconds } = setting;
    let file = format!(
        "name = \"gate\"\ntitle = \"Gate\"\nabout = \"For tests.\"\n{path}\n[traffic]\n{traffic}\n[run]\nwarmup = \"2 s\"\n\
         duration = \"{seconds} s\"\nseeds = {seeds}\n[contenders]\ncongestion = []\n{contenders}\n"
    );
    Plan::new(parse(&file, "gate.toml").unwrap_or_else(|error| panic!("{error}\n{file}"))).unwrap()
}

fn records(plan: &Plan) -> Vec<Record> {
    let (next, done) = (Mutex::new(0..plan.len()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(index) = { next.lock().unwrap().next() } {
            let record = one(plan, index, &Effort::default()).unwrap();
            done.lock().unwrap().push(record);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let mut records = done.into_inner().unwrap();
    records.sort_by_key(|record| record.run);
    let failed = records.iter().find(|record| record.outcome != RunOutcome::Valid);
    assert!(failed.is_none(), "{:?}", failed.map(|record| &record.outcome));
    records
}

fn summary(plan: &Plan, records: &[Record]) -> Summary {
    let mut summary = Summary::empty(plan.manifest("test").unwrap(), plan);
    records.iter().for_each(|record| summary.add(record));
    summary
}

fn of(setting: Setting, contenders: &str) -> Summary {
    let plan = plan(setting, contenders, SEEDS);
    summary(&plan, &records(&plan))
}

fn gate(before: &Summary, after: &Summary) -> Gate {
    judge(after, Some(before), &Tolerances::default()).unwrap()
}

fn between(before: &Summary, after: &Summary) -> Changes {
    changes(before, after, &|figure| figure.declaration().rule()).unwrap()
}

/// Returns whether the gate fails because of a figure; says so.
fn caught(kind: &str, figure: Figure, before: &Summary, after: &Summary) -> bool {
    let gate = gate(before, after);
    let worse = gate.failing.iter().find(|failing| failing.kind == Kind::Worse && failing.figure == Some(figure.key()));
    let found = gate.changes.iter().find(|change| change.figure == figure.key());
    let size = found.map_or_else(|| "nothing compared".to_owned(), |change| effect(figure, &change.result));
    println!("regression: {kind} | {} | caught {} | {size}", figure.key(), u8::from(!gate.passed && worse.is_some()));
    !gate.passed && worse.is_some()
}

const SHALLOW: &str = "[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"20 kB\"\ndelay = \"20 ms\"\n[path.up]\nrate = \"10 Mbit/s\"\nqueue = \"20 kB\"\ndelay = \"20 ms\"";
const DEEP: &str = "[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"200 kB\"\ndelay = \"20 ms\"\n[path.up]\nrate = \"10 Mbit/s\"\nqueue = \"200 kB\"\ndelay = \"20 ms\"";
const LOSSY: &str = "[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"100 kB\"\ndelay = \"20 ms\"\nloss = \"3 %\"\n[path.up]\nrate = \"10 Mbit/s\"\nqueue = \"100 kB\"\ndelay = \"20 ms\"";

const FAST: &str = "[path.down]\nrate = \"100 Mbit/s\"\nqueue = \"500 kB\"\ndelay = \"20 ms\"\nloss = \"3 %\"\n[path.up]\nrate = \"100 Mbit/s\"\nqueue = \"500 kB\"\ndelay = \"20 ms\"";

const BULK: &str = "workload = \"bulk\"\nconnections = 2\nstart-spread = \"500 ms\"";
const DATAGRAMS: Setting = Setting {
    path: LOSSY,
    traffic: "workload = \"datagrams\"\nconnections = 1\npacket-rate = 200\ndatagram-size = \"1000 B\"",
    seconds: 5,
};

/// A profile `x`; the field order of TOML is free.
fn profile(fields: &str) -> String {
    format!("profiles = [{{ name = \"x\", {fields} }}]")
}

const TOLERANT: &str = "congestion = \"bbr3\", random_loss_tolerance = \"15 %\"";

#[test]
fn repair_is_switched_off() {
    let before = of(DATAGRAMS, &profile(&format!("{TOLERANT}, fec = \"rlc:1/3:80\"")));
    let after = of(DATAGRAMS, &profile(TOLERANT));
    assert_eq!(before.values(0, 0, Figure::ResidualLoss), vec![Some(0.0); SEEDS as usize], "every loss is rebuilt");
    assert!(caught("repair switched off", Figure::ResidualLoss, &before, &after));

    // What never came is longer than anything: without repair the p99 is infinite, and not better.
    let found = between(&before, &after);
    let of = |figure: Figure| found.changes.iter().find(|change| change.figure == figure.key()).unwrap();
    assert_eq!(of(Figure::ResidualLoss).result.verdict, Verdict::Worse);
    assert_eq!(
        (of(Figure::DelayP99).after, of(Figure::DelayP99).result.verdict),
        (Some(f64::INFINITY), Verdict::Worse)
    );
    // The delay of what arrived says by itself what it leaves out.
    let arrived = of(Figure::ArrivedP95);
    assert_eq!(arrived.presupposes.map(|on| (on.figure, on.verdict)), Some(("residual_loss", Verdict::Worse)));

    // The other way round nothing is worse but what repair costs.
    let gate = gate(&after, &before);
    let worse: Vec<&str> = gate.failing.iter().filter_map(|failing| failing.figure).collect();
    assert!(!worse.contains(&"residual_loss") && !worse.contains(&"delay_p99"), "{worse:?}");
}

#[test]
fn no_code_against_a_code_has_a_verdict_on_loss() {
    let both = format!(
        "profiles = [{{ name = \"off\", {TOLERANT} }}, {{ name = \"code\", {TOLERANT}, fec = \"rlc:1/3:80\" }}]"
    );
    let plan = plan(DATAGRAMS, &both, 8);
    let records = records(&plan);
    let report = Report::new(plan.manifest("test").unwrap(), &records);
    let verdict =
        |figure: Figure| report.comparisons.iter().find(|row| row.figure == figure.key()).map(|row| row.result.verdict);
    assert_eq!(verdict(Figure::ResidualLoss), Some(Verdict::Better));
    assert_eq!(verdict(Figure::DelayP99), Some(Verdict::Better));
    let printed = text(&report).replace("\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(printed.contains("Never came, and counts as a delay longer than any other (∞): off "), "{printed}");
    assert!(printed.contains("while residual loss is better"), "{printed}");

    // One record, one interval, whoever prints it.
    let matrix = MatrixReport::new(&summary(&plan, &records), Vec::new());
    for effect in &matrix.overall {
        let row = report.comparisons.iter().find(|row| row.figure == effect.figure).unwrap();
        assert_eq!((row.result, row.presupposes), (effect.result, effect.presupposes), "{}", effect.figure);
    }
    for (column, quoted) in report.contenders.iter().zip(&matrix.points[0].figures) {
        for quoted in quoted {
            let cell = column.figures.iter().find(|cell| cell.figure == quoted.figure).unwrap();
            let ends = cell.interval.map(|interval| (interval.low, interval.high));
            assert_eq!((cell.median, ends), (Some(quoted.median), quoted.interval), "{}", quoted.figure);
        }
    }
    assert!(matrix.overall.len() > 10 && csv(&matrix).contains("delay_p99,s,inf,inf,inf"), "{}", csv(&matrix));
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let cells = json["contenders"][0]["figures"].as_array().unwrap();
    assert_eq!(cells.iter().find(|cell| cell["figure"] == "delay_p99").unwrap()["median"], "inf");
}

/// Real runs with settings that make one figure worse each.
#[test]
fn settings_that_make_a_figure_worse() {
    let lossy = Setting { path: LOSSY, traffic: BULK, seconds: 6 };
    let slow = "congestion = \"newreno\"";
    assert!(caught(
        "a controller that backs off",
        Figure::Goodput,
        &of(lossy, &profile(TOLERANT)),
        &of(lossy, &profile(slow))
    ));

    let deep = Setting { path: DEEP, traffic: BULK, seconds: 6 };
    let (short, full) = (of(deep, &profile("congestion = \"bbr3\"")), of(deep, &profile("congestion = \"cubic\"")));
    assert!(caught("a controller that fills the buffer", Figure::QueueDelayP99, &short, &full));

    let shallow = Setting { path: SHALLOW, traffic: BULK, seconds: 6 };
    let (gentle, rough) =
        (of(shallow, &profile("congestion = \"cubic\"")), of(shallow, &profile("congestion = \"bbr1\"")));
    assert!(caught("a controller that overflows it", Figure::LinkLoss, &gentle, &rough));

    let traffic = "workload = \"requests\"\nconnections = 8\nresponse-size = \"20 kB\"\nstart-spread = \"500 ms\"";
    let requests = Setting { path: LOSSY, traffic, seconds: 20 };
    let (fast, late) = (of(requests, &profile(TOLERANT)), of(requests, &profile(slow)));
    assert!(caught("requests behind a small window", Figure::RequestP99, &fast, &late));

    let traffic = "workload = \"bulk\"\nconnections = 1";
    let plain = Setting { path: DEEP, traffic, seconds: 6 };
    let (few, many) = (
        of(plain, &profile("congestion = \"cubic\", acks = { every = 10 }")),
        of(plain, &profile("congestion = \"cubic\", acks = { every = 1 }")),
    );
    assert!(caught("ten times the acknowledgements", Figure::Reverse, &few, &many));

    let traffic = "workload = \"flows\"\nconnections = 540\nstart-spread = \"6 s\"\nresponse-size = \"40 kB\"";
    let flows = Setting { path: FAST, traffic, seconds: 8 };
    let (quick, held) = (of(flows, &profile(TOLERANT)), of(flows, &profile(slow)));
    assert!(caught("flows behind a small window", Figure::FlowP99, &quick, &held));

    let traffic = "workload = \"video\"\nconnections = 1\n[traffic.video]\nsegment = \"2 s\"\nbuffer = \"6 s\"\nladder = [\"3 Mbit/s\"]";
    let video = Setting { path: LOSSY, traffic, seconds: 40 };
    let (smooth, halting) = (of(video, &profile(TOLERANT)), of(video, &profile(slow)));
    assert!(caught("video behind a small window", Figure::VideoStalls, &smooth, &halting));

    // Rivals: the second takes more of the path than it did.
    let rivals = |second: &str| {
        format!(
            "profiles = [{{ name = \"mine\", congestion = \"cubic\" }}, {{ name = \"other\", congestion = \"{second}\" }}]\n\
             rivals = [[\"mine\", \"other\"]]"
        )
    };
    let shared = Setting { path: SHALLOW, traffic: BULK, seconds: 10 };
    let (fair, greedy) = (of(shared, &rivals("cubic")), of(shared, &rivals("bbr1")));
    for figure in [Figure::Share, Figure::HarmFirst] {
        assert!(caught("a rival that takes more", figure, &fair, &greedy), "{}", figure.key());
    }
}

/// Records with one figure altered in every run, where no setting makes only that worse.
#[test]
fn records_that_are_altered() {
    let setting = Setting { path: DEEP, traffic: BULK, seconds: 3 };
    let traffic = "workload = \"flows\"\nconnections = 40\nstart-spread = \"3 s\"\nresponse-size = \"5 kB\"";
    let flows = Setting { path: DEEP, traffic, seconds: 4 };
    let altered = |setting: Setting, figure: Figure, change: &dyn Fn(&mut Reading)| {
        let plan = plan(setting, &profile("congestion = \"cubic\""), SEEDS);
        let mut records = records(&plan);
        let before = summary(&plan, &records);
        for record in &mut records {
            change(record.figures.get_mut(&figure).unwrap());
        }
        (before, summary(&plan, &records))
    };
    let set = |reading: &mut Reading, value: f64| reading.value = Some(value);
    let (before, after) = altered(setting, Figure::Jain, &|reading| set(reading, 0.5));
    assert!(caught("one connection starves", Figure::Jain, &before, &after));
    let (before, after) = altered(flows, Figure::FlowsUnfinished, &|reading| set(reading, 0.02));
    assert!(caught("flows that do not end", Figure::FlowsUnfinished, &before, &after));
    let never = |reading: &mut Reading| (reading.value, reading.provenance) = (None, Provenance::Censored);
    let (before, after) = altered(flows, Figure::FlowP50, &never);
    let failing = gate(&before, &after).failing;
    assert!(
        failing.iter().any(|failing| failing.figure == Some("flow_p50") && failing.reason.contains("∞")),
        "{failing:?}"
    );

    // A run without goodput does not vanish.
    let (before, after) = altered(setting, Figure::Goodput, &|reading| set(reading, 0.0));
    assert!(gate(&before, &after).failing.iter().any(|failing| failing.figure == Some("goodput")));

    // A figure that is gone fails, wholly or in a single run, and nothing else does.
    let refused = |reading: &mut Reading| (reading.value, reading.provenance) = (None, Provenance::Refused);
    let (before, after) = altered(setting, Figure::RttP99, &refused);
    let failing = gate(&before, &after).failing;
    let kinds: Vec<(Kind, Option<&str>)> = failing.iter().map(|failing| (failing.kind, failing.figure)).collect();
    assert_eq!(kinds, [(Kind::MissingFigure, Some("rtt_p99"))], "{failing:?}");
    assert!(failing[0].reason.ends_with("RTT p99 has no value in 12 of 12 runs that had one"), "{failing:?}");

    // A tolerance that is asked for is kept.
    let (before, after) = altered(setting, Figure::Jain, &|reading| set(reading, reading.value.unwrap_or(1.0) - 0.05));
    assert!(!gate(&before, &after).passed);
    let mut wide = Tolerances::default();
    wide.set("jain", "0.1").unwrap();
    assert!(judge(&after, Some(&before), &wide).unwrap().passed);
}

/// Regression at one point of many is found, where the seeds are enough to say so.
#[test]
fn one_point_of_many_is_enough() {
    let factor = "[factors]\n\"path.rtt\" = [\"10 ms\", \"15 ms\", \"20 ms\", \"25 ms\", \"30 ms\", \"35 ms\"]";
    let setting = Setting { path: DEEP, traffic: "workload = \"bulk\"\nconnections = 1", seconds: 1 };
    let contenders = format!("{}\n{factor}", profile("congestion = \"cubic\""));
    let plan = plan(setting, &contenders, 14);
    let mut records = records(&plan);
    let before = summary(&plan, &records);
    for record in records.iter_mut().filter(|record| record.point["path.rtt"] == "20 ms") {
        let goodput = record.figures.get_mut(&Figure::Goodput).unwrap();
        goodput.value = goodput.value.map(|value| value * 0.5);
    }
    let gate = gate(&before, &summary(&plan, &records));
    let reasons: Vec<&str> = gate.failing.iter().map(|failing| failing.reason.as_str()).collect();
    assert!(reasons.len() == 1 && reasons[0].contains("at path.rtt 20 ms, in 14 of 14 runs"), "{reasons:?}");
    assert!(gate.chance <= 0.05, "{}", gate.chance);
}

/// Chance alone fails no gate: the same profile with other random numbers of the stack, which is other runs of the same kind.
#[test]
fn nothing_is_worse_against_itself() {
    let setting = Setting { path: LOSSY, traffic: BULK, seconds: 4 };
    let before = of(setting, &profile("congestion = \"cubic\""));
    let same = gate(&before, &before);
    assert!(same.passed && same.changes.iter().all(|change| change.identical) && same.chance == 0.0);

    // Another setting without effect on what is compared changes every packet.
    let after = of(setting, &profile("congestion = \"cubic\", idle_timeout = \"31 s\""));
    let mut wide = Tolerances::default();
    wide.set("all", "3 %").unwrap();
    let gate = judge(&after, Some(&before), &wide).unwrap();
    println!("unlike: {:?}", gate.failing);
    assert!(gate.chance <= 0.05 && gate.seeds_needed.is_none(), "{} {:?}", gate.chance, gate.seeds_needed);
}
