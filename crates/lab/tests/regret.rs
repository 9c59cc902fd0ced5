//! Cells of a scenario, contenders beside another one, and what contenders lose against the best fixed setting.

extern crate tiderace_lab as lab;

use std::{path::Path, sync::atomic::AtomicBool};

use lab::{
    campaign::{self, Effort},
    contender::Contender,
    figure::Figure,
    journal::Journal,
    plan::Plan,
    record::{LAB, RunOutcome},
    regret::{CellValues, Loss, Regret},
    report::{MatrixReport, markdown},
    rivals::Rivals,
    roster::contenders,
    run::run_one,
    scenario::{CELL, PRESETS, Point, Selection, load, parse},
    summary::Summary,
    tiderace::contender,
};
use netem::Loss as LinkLoss;
use units::Duration;

const SHARED: &str = r#"
name = "shared"
title = "Shared"
about = "Two kinds on one path."
[path.down]
rate = "10 Mbit/s"
queue = "60 kB"
delay = "20 ms"
[traffic]
workload = "bulk"
connections = 2
[run]
warmup = "5 s"
duration = "20 s"
seeds = 1
"#;

fn selection(text: &str) -> Selection {
    toml::from_str(text).unwrap()
}

fn identities(selection: &Selection) -> Vec<String> {
    contenders(selection).unwrap().iter().map(|contender| contender.identity().name).collect()
}

#[test]
fn cells_are_points_beside_factors() {
    let preset = PRESETS.iter().find(|preset| preset.name == "mobile").unwrap();
    let cells = r#"
        [cells]
        "a: long" = { "path.rtt" = "200 ms", "path.jitter" = "2 ms", "path.queue" = "2 BDP", "traffic.connections" = 3 }
        "b: policed" = { "path.down.policer" = { rate = "5 Mbit/s", burst = "30 kB" }, "contenders.beside" = "cubic" }
        [factors]
        "path.loss" = ["0 %", "1 %"]
    "#;
    let scenario = parse(&format!("{}\n{cells}", preset.text), "test.toml").unwrap();
    assert!(scenario.has_points());
    let points = scenario.points().unwrap();
    assert_eq!(points.len(), 4);
    let long = scenario.at(&points[0]).unwrap();
    assert_eq!((long.path.base_rtt(), long.traffic.connections), (Duration::from_millis(200), 3));
    assert_eq!(long.path.down.jitter, Duration::from_millis(2));
    assert_eq!(long.path.down.loss, LinkLoss::None);
    assert!(!long.has_points());
    let policed = scenario.at(&points[3]).unwrap();
    assert!(policed.path.down.policer.is_some() && policed.path.down.loss.mean() > 0.0);
    assert_eq!(policed.contenders.beside.as_deref(), Some("cubic"));
    let unknown = Point::from([(CELL.to_owned(), "c".to_owned())]);
    assert!(scenario.at(&unknown).unwrap_err().to_string().contains("no such cell"));
    let wrong = cells.replace("traffic.connections", "traffic.conections");
    let wrong = parse(&format!("{}\n{wrong}", preset.text), "test.toml").unwrap();
    let error = wrong.at(&wrong.points().unwrap()[0]).unwrap_err();
    assert!(error.to_string().contains("conections"), "{error}");
}

#[test]
fn cells_that_judge_are_not_those_to_tune_on() {
    let [train, judges] = ["auto-regret", "auto-regret-holdout"].map(|name| load(name).unwrap());
    assert!(train.cells.len() + judges.cells.len() >= 300 && judges.cells.len() >= 100);
    assert!(train.cells.keys().all(|name| name.starts_with('t')));
    assert!(judges.cells.keys().all(|name| name.starts_with('h')));
    for (name, cell) in &judges.cells {
        assert!(train.cells.values().all(|other| other != cell), "{name} is in both");
    }
    assert_eq!(train.contenders, judges.contenders);
}

#[test]
fn everybody_runs_beside_one() {
    let all = selection("congestion = [\"cubic\", \"auto\"]\nbeside = \"bbr3\"");
    assert_eq!(identities(&all), ["tiderace cubic", "tiderace auto"]);
    assert!(contenders(&all).unwrap().iter().all(|contender| contender.kinds() == 2));
    let Err(fault) = contenders(&selection("beside = \"bbr4\"")) else { panic!("it was taken") };
    assert_eq!(fault.field, "contenders.beside");
}

#[test]
fn beside_another_a_contender_keeps_its_name_and_has_a_share() {
    let scenario = parse(SHARED, "a test").unwrap();
    let pair = Rivals::beside(contender("newreno").unwrap(), contender("cubic").unwrap());
    assert_eq!(pair.identity().name, contender("newreno").unwrap().identity().name);
    let record = run_one(&scenario, &pair, 1, None);
    assert_eq!(record.outcome, RunOutcome::Valid);
    let share = record.figures[&Figure::Share].value.unwrap();
    let own = record.connections[0].goodput / record.figures[&Figure::Goodput].value.unwrap();
    assert!((share - own).abs() < 1e-9, "{share} {own}");
    assert!(!record.figures.contains_key(&Figure::HarmFirst));
}

fn cell(name: &str, goodput: [f64; 3], queueing: [f64; 3]) -> CellValues {
    let some = |values: [f64; 3]| values.into_iter().map(Some).collect();
    CellValues { name: name.to_owned(), goodput: some(goodput), queueing: some(queueing), time: Vec::new() }
}

fn names() -> Vec<String> {
    ["cubic", "bbr3", "auto"].map(str::to_owned).into()
}

#[test]
fn the_best_fixed_setting_is_the_measure_in_each_cell() {
    let cells = [
        cell("clean", [10.0, 9.8, 9.0], [0.050, 0.020, 0.010]),
        // The short queue of a setting that leaves the path empty is no measure.
        cell("lossy", [1.0, 8.0, 16.0], [0.002, 0.040, 0.004]),
    ];
    let regret = Regret::new(names(), vec![2], &cells);
    let goodput = regret.total(2, Loss::Goodput).unwrap();
    assert_eq!((goodput.cells, goodput.beyond), (2, 0));
    assert!((goodput.mean - (0.9_f64 * 2.0).sqrt()).abs() < 1e-12, "{goodput:?}");
    let worst = regret.worst(2, Loss::Goodput);
    assert_eq!((worst[0].cell.as_str(), worst[0].best), ("clean", (10.0, 0)));
    assert!((worst[0].lost() - 0.1).abs() < 1e-12 && (worst[1].lost() + 1.0).abs() < 1e-12);
    let queueing: Vec<(f64, usize)> = regret.worst(2, Loss::Queueing).iter().map(|entry| entry.best).collect();
    assert_eq!(queueing, [(0.020, 1), (0.040, 1)]);
    // A fixed setting is measured with the same rule: CUBIC loses seven eighths in the second cell.
    let cubic = regret.total(0, Loss::Goodput).unwrap();
    assert!((cubic.mean - 0.125_f64.sqrt()).abs() < 1e-12 && cubic.beyond == 1, "{cubic:?}");
    assert_eq!(regret.total(2, Loss::Time), None);
}

#[test]
fn times_that_never_end_and_values_that_are_missing() {
    let mut never = CellValues { name: "never".to_owned(), ..CellValues::default() };
    never.time = vec![Some(f64::INFINITY), Some(2.0), Some(f64::INFINITY)];
    let mut missing = cell("missing", [1.0; 3], [0.01; 3]);
    missing.goodput[0] = None;
    let regret = Regret::new(names(), vec![2], &[never, missing]);
    assert_eq!(regret.worst(2, Loss::Time)[0].ratio, 100.0);
    assert_eq!(regret.incomplete, ["missing: goodput"]);
    assert_eq!(regret.total(2, Loss::Goodput), None);
    assert_eq!(regret.total(2, Loss::Queueing).unwrap().mean, 1.0);
}

/// Prints the regret of the held-out cells; `cargo xtask shows auto --only regret` judges it.
#[test]
#[ignore = "nine hundred runs"]
fn regret_of_the_cells_that_are_held_out() {
    let name = std::env::var("TIDERACE_REGRET").unwrap_or_else(|_| "auto-regret-holdout".to_owned());
    let plan = Plan::new(load(&name).unwrap()).unwrap();
    let manifest = plan.manifest(LAB).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.jsonl"));
    let mut journal = match Journal::open(&path, |_| plan.len()) {
        Ok((journal, stored, _)) if stored == manifest => journal,
        _ => Journal::create(&path, &manifest, plan.len()).unwrap(),
    };
    campaign::run(&plan, &mut journal, &Effort::default(), &AtomicBool::new(false), &|_| {}).unwrap();
    let summary = Summary::read(&journal.tidy().unwrap()).unwrap();
    println!("{}", markdown(&MatrixReport::new(&summary, Vec::new())));
    assert!(summary.is_sound(), "{:?}", summary.failures);
}
