//! Matrices on disk: the same bytes from one thread, from four, and after whatever happened in between.

extern crate tiderace_lab as lab;

mod fixture;

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{
    fs,
    path::{Path, PathBuf},
};

use fixture::changed;
use lab::{
    campaign::{self, Effort, Ended},
    compare::changes,
    figure::Figure,
    journal::{Damage, Journal, Records},
    plan::Plan,
    record::{MANIFEST_SCHEMA, Manifest},
    report::{LevelValue, MatrixReport, Samples, breaches, csv, html, markdown},
    scenario::Scenario,
    selftest::Check,
    stats::compare::Verdict,
    summary::Summary,
};

const MATRIX: &str = r#"
name = "test"
title = "Two downloads over short and long paths"
about = "For <tests>."
[path.down]
rate = "4 Mbit/s"
queue = "50 kB"
delay = "20 ms"
loss = "1 %"
[traffic]
workload = "bulk"
connections = 2
start-spread = "100 ms"
[run]
warmup = "500 ms"
duration = "1 s"
seeds = 2
[factors]
"path.rtt" = ["20 ms", "60 ms"]
"profile.acks.every" = [2, 8]
[[thresholds]]
figure = "goodput"
at-least = "100 kbit/s"
"#;

fn scenario(changes: &[(&str, &str)]) -> Scenario {
    changed(MATRIX, changes)
}

fn plan(changes: &[(&str, &str)]) -> Plan {
    Plan::new(scenario(changes)).unwrap()
}

fn manifest(plan: &Plan) -> Manifest {
    let contenders = plan.contenders(&plan.scenario(0).unwrap()).unwrap();
    Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        lab: "test".to_owned(),
        scenario: plan.base().clone(),
        digest: plan.base().digest(),
        contenders: contenders.iter().map(|contender| contender.identity()).collect(),
    }
}

/// A directory of its own for each test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tiderace-matrix-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn go_on(plan: &Plan, mut journal: Journal, threads: usize, stop_after: usize) -> (Ended, PathBuf) {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let effort = Effort { threads: threads.try_into().ok(), qlog: None };
    let count = |_: &lab::record::Record| {
        if done.fetch_add(1, Ordering::Relaxed) + 1 >= stop_after {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let ended = campaign::run(plan, &mut journal, &effort, &stop, &count).unwrap();
    let path = journal.path().to_owned();
    if ended == Ended::Complete {
        journal.tidy().unwrap();
    }
    (ended, path)
}

fn whole(plan: &Plan, path: &Path, threads: usize) -> Vec<u8> {
    let journal = Journal::create(path, &manifest(plan), plan.len()).unwrap();
    assert_eq!(go_on(plan, journal, threads, usize::MAX).0, Ended::Complete);
    fs::read(path).unwrap()
}

fn open(plan: &Plan, path: &Path) -> (Journal, Damage) {
    let (journal, stored, damage) = Journal::open(path, |_| plan.len()).unwrap();
    assert_eq!(stored, manifest(plan));
    (journal, damage)
}

#[test]
fn the_same_bytes_whatever_happened() {
    let scratch = Scratch::new("bytes");
    let plan = plan(&[]);
    assert_eq!(plan.len(), 16);
    let expected = whole(&plan, &scratch.file("one.jsonl"), 1);
    assert!(whole(&plan, &scratch.file("four.jsonl"), 4) == expected, "four threads");

    // Stopped after five runs, killed in the middle of a line, then damaged in the middle of the file.
    let path = scratch.file("resumed.jsonl");
    let journal = Journal::create(&path, &manifest(&plan), plan.len()).unwrap();
    assert_eq!(go_on(&plan, journal, 2, 5).0, Ended::Stopped);
    let mut bytes = fs::read(&path).unwrap();
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    assert!((6..=7).contains(&lines), "a manifest and the runs in progress when it was stopped: {lines}");
    bytes.truncate(bytes.len() - 20);
    fs::write(&path, &bytes).unwrap();
    let (journal, damage) = open(&plan, &path);
    assert!(damage.torn && damage.lines.is_empty());
    assert_eq!(journal.stored(), lines - 2, "the line without an end is lost and no other");
    assert_eq!(go_on(&plan, journal, 2, 4).0, Ended::Stopped);

    let mut bytes = fs::read(&path).unwrap();
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    let middle = usize::midpoint(ends[2], ends[3]);
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (journal, damage) = open(&plan, &path);
    assert_eq!((damage.torn, damage.lines.as_slice()), (false, &[4][..]));
    assert_eq!(journal.stored(), ends.len() - 2);
    assert_eq!(go_on(&plan, journal, 3, usize::MAX).0, Ended::Complete);
    assert!(fs::read(&path).unwrap() == expected, "a resumed matrix");
    let left: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "nothing half-written is left: {left:?}");

    // Nothing is missing any more: opening and tidying changes nothing.
    let (journal, damage) = open(&plan, &path);
    assert!(damage.is_none() && journal.missing().next().is_none());
    journal.tidy().unwrap();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn a_disk_that_is_full_loses_the_run_in_progress() {
    // A device that takes nothing: every write fails with "no space left on device".
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let plan = plan(&[]);
    let error = Journal::create(full, &manifest(&plan), plan.len()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
}

#[test]
fn records_of_another_matrix_are_refused() {
    let scratch = Scratch::new("foreign");
    let path = scratch.file("x.jsonl");
    let small = plan(&[]);
    whole(&small, &path, 2);
    let error = Journal::open(&path, |_| 3).unwrap_err().to_string();
    assert!(error.contains("and there are only 3"), "{error}");
    fs::write(&path, "{\"schema\":\"x\"}\n").unwrap();
    assert!(Journal::open(&path, |_| 3).unwrap_err().to_string().contains("the schema is `x`"));
    fs::write(&path, vec![0xff; 100]).unwrap();
    assert!(Journal::open(&path, |_| 3).is_err());
}

fn summary(changes: &[(&str, &str)], path: &Path) -> Summary {
    whole(&plan(changes), path, 2);
    Summary::read(path).unwrap()
}

#[test]
fn a_matrix_says_what_it_shows() {
    let scratch = Scratch::new("report");
    let summary = summary(&[("seeds = 2", "seeds = 3")], &scratch.file("a.jsonl"));
    assert!(summary.is_sound(), "{:?}", summary.failures);
    assert_eq!((summary.points.len(), summary.contenders.len(), summary.stored()), (4, 2, 24));
    let check = Check { name: "link arithmetic", passed: true, detail: "3 < 4".to_owned() };
    let report = MatrixReport::new(&summary, vec![check]);
    assert_eq!(report.factors[0], ("path.rtt".to_owned(), vec!["20 ms".to_owned(), "60 ms".to_owned()]));
    let goodput = report.overall.iter().find(|effect| effect.figure == "goodput").unwrap();
    let ratio = goodput.result.ratio.unwrap();
    assert!(ratio.low <= ratio.value && ratio.value <= ratio.high, "{goodput:?}");
    assert_eq!(goodput.tally.iter().sum::<usize>(), 4, "every point has a verdict of its own");
    assert_eq!(report.by_level.iter().filter(|effect| effect.figure == "goodput").count(), 4);
    assert!(report.thresholds.is_empty(), "{:?}", report.thresholds);
    assert!(report.control.reason.as_deref().unwrap().starts_with("needs 12 seeds"));

    // Fewer acknowledgements come back when they are asked for less often.
    let reverse = |every: &str| -> f64 {
        let points = (0..4).filter(|point| summary.points[*point]["profile.acks.every"] == every);
        points.flat_map(|point| summary.values(point, 0, Figure::Reverse)).flatten().sum()
    };
    assert!(reverse("8") < 0.6 * reverse("2"), "{} {}", reverse("8"), reverse("2"));

    let page =
        html(&report, &summary.manifest.scenario, &[("kernel".to_owned(), "6 <x>".to_owned())], &Samples::default());
    assert!(page.contains("&lt;tests&gt;") && page.contains("6 &lt;x&gt;") && !page.contains("<tests>"));
    for forbidden in ["http://", "https://", "<script", "@import", "url("] {
        assert!(!page.contains(forbidden), "a page that needs nothing else: {forbidden}");
    }
    assert!(page.matches("<svg").count() >= 3 && page.matches("<svg").count() == page.matches("</svg>").count());
    let text = markdown(&report);
    assert!(text.contains("| tiderace cubic | goodput | x "), "{text}");
    let table = csv(&report);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows[0], "path.rtt,profile.acks.every,contender,figure,unit,median,low,high");
    assert!(rows.iter().all(|row| row.split(',').count() == 8), "{table}");
}

#[test]
fn the_factors_of_one_contender_have_effects_of_their_own() {
    let scratch = Scratch::new("alone");
    let alone = [
        ("seeds = 2", "seeds = 6"),
        ("[factors]", "[contenders]\ncongestion = [\"cubic\"]\n[factors]"),
        ("[2, 8]", "[2, 4, 8]"),
    ];
    let summary = summary(&alone, &scratch.file("a.jsonl"));
    let report = MatrixReport::new(&summary, Vec::new());
    assert!(report.overall.is_empty() && report.contenders.len() == 1);
    let of = |factor: &str, level: &str, figure: &str| {
        let found =
            report.factor_effects.iter().find(|one| one.factor == factor && one.level == level && one.figure == figure);
        found.unwrap_or_else(|| panic!("{factor} {level} {figure}")).clone()
    };
    // A longer path is slower, with every seed and every frequency of acknowledgements.
    let rtt = of("path.rtt", "60 ms", "rtt_p95");
    assert_eq!((rtt.against.as_str(), rtt.result.verdict, rtt.result.pairs), ("20 ms", Verdict::Worse, 18), "{rtt:?}");
    assert_eq!(of("profile.acks.every", "8", "goodput").against, "2");
    let counted = report.factor_effects.iter().filter(|one| one.figure == "goodput").count();
    assert_eq!(counted, 3, "one level of the RTT and two of the acknowledgements stand against the first");
    // Over the levels, and in the cells of both.
    let figures = |values: &[LevelValue]| values.iter().filter(|value| value.figure == "goodput").count();
    assert_eq!((figures(&report.level_values), figures(&report.cells)), (5, 6));
    let (cell, point) = (&report.cells[0], &report.points[0].figures[0]);
    let same = point.iter().find(|quoted| quoted.figure == cell.figure).unwrap();
    assert_eq!(cell.median, same.median, "a cell of all factors is a point");

    let text = markdown(&report);
    assert!(text.contains("## Effect of path.rtt, against path.rtt 20 ms"), "{text}");
    let page = html(&report, &summary.manifest.scenario, &[], &Samples::default());
    assert!(page.contains("path.rtt against 20 ms") && !page.contains("nothing to compare"), "{page}");
    assert_eq!(page.matches("<td class=\"held\">").count(), 6, "the contender of each point stays in view");
    assert_eq!(page.matches("class=\"heat\"").count(), 5, "a heat map for each headline figure of one contender");
    for part in ["<h2>Results</h2>", "<h2>Distribution of RTT and latency</h2>", "goodput over profile.acks.every"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.find("<h2>Results</h2>") < page.find("<h2>What was found</h2>"), "absolute values first");
    // Every figure of the records, also one that the workload is not about.
    let table = csv(&report);
    let (_, records) = Records::open(&scratch.file("a.jsonl")).unwrap();
    for (figure, reading) in records.map(|record| record.unwrap()).next().unwrap().figures {
        assert_eq!(table.contains(&format!(",{},", figure.key())), reading.value.is_some(), "{figure:?}");
    }
}

#[test]
fn limits_and_changes() {
    let scratch = Scratch::new("limits");
    let before = summary(&[], &scratch.file("before.jsonl"));
    // The same again: nothing has changed, to the last bit.
    let again = Summary::read(&scratch.file("before.jsonl")).unwrap();
    let declared = |figure: Figure| figure.declaration().rule();
    let same = changes(&before, &again, &declared).unwrap();
    assert!(same.changes.iter().all(|change| change.identical && change.certain(0.025).0.is_none()), "{same:?}");
    assert!(same.changes.len() > 20 && same.lost.is_empty(), "{same:?}");

    let strict = summary(&[("100 kbit/s", "100 Mbit/s")], &scratch.file("strict.jsonl"));
    assert_eq!(breaches(&strict).len(), 8, "two contenders in four points");
    let silent = summary(
        &[("figure = \"goodput\"\nat-least = \"100 kbit/s\"", "figure = \"request_p50\"\nat-most = \"1 s\"")],
        &scratch.file("silent.jsonl"),
    );
    let nothing = breaches(&silent);
    assert!(nothing.len() == 8 && nothing.iter().all(|breach| breach.value.is_none()), "no sample is no pass");

    let other = summary(&[("loss = \"1 %\"", "loss = \"2 %\"")], &scratch.file("other.jsonl"));
    assert!(changes(&before, &other, &declared).unwrap_err().contains("two scenarios"));
}

#[test]
fn rankings_are_checked_against_the_law_of_loss() {
    let scratch = Scratch::new("ranking");
    let bursts = [("\"profile.acks.every\" = [2, 8]", "\"path.loss-burst\" = [1, 3, 6]")];
    let summary = summary(&bursts, &scratch.file("a.jsonl"));
    let ranking = MatrixReport::new(&summary, Vec::new()).ranking.unwrap();
    let levels: Vec<&str> = ranking.orders.iter().map(|(level, _)| level.as_str()).collect();
    assert_eq!(levels, ["1", "3", "6"]);
    assert_eq!(ranking.holds, ranking.orders.windows(2).all(|pair| pair[0].1 == pair[1].1));
}

#[test]
fn records_are_read_one_by_one() {
    let scratch = Scratch::new("stream");
    let plan = plan(&[]);
    let path = scratch.file("a.jsonl");
    whole(&plan, &path, 2);
    let (_, mut records) = Records::open(&path).unwrap();
    let runs: Vec<u64> = (&mut records).map(|record| record.unwrap().run).collect();
    assert!(runs == (0..16).collect::<Vec<u64>>() && records.damage.is_none());
    // A replay of one of them is the same record.
    let (_, mut records) = Records::open(&path).unwrap();
    let stored = records.nth(7).unwrap().unwrap();
    assert!(campaign::one(&plan, 7, &Effort::default()).unwrap() == stored);
}
