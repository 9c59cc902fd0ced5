//! `tiderace lab matrix --real-time`: the same records, tables and pages as in virtual time, and an early end that keeps what was run.
#![cfg(target_os = "linux")]

mod program;
mod scratch;

use std::{
    io::Read,
    process::Child,
    time::{Duration, Instant},
};

use program::{interrupt, refused, run, spawn};
use scratch::Scratch;
use serde_json::Value;

const SCENARIO: &str = r#"
name = "short"
title = "Two rates"
about = "A test."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "10 ms"
[path.up]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "10 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "300 ms"
duration = "700 ms"
seeds = 2
[factors]
"path.rate" = ["4 Mbit/s", "16 Mbit/s"]
"#;

/// Directory with the scenario, and the arguments that all tests begin with.
struct Matrix {
    scratch: Scratch,
    arguments: Vec<String>,
}

impl Matrix {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let (file, out) = (scratch.0.join("short.toml"), scratch.0.join("out"));
        std::fs::write(&file, SCENARIO).unwrap();
        let fixed = ["--real-time", "--accept-busy", "--cc", "cubic,kernel-cubic", "--out", out.to_str().unwrap()];
        let arguments = ["lab", "matrix", file.to_str().unwrap()].into_iter().chain(fixed).map(str::to_owned);
        let arguments = arguments.collect();
        Self { scratch, arguments }
    }

    fn with<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.arguments.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    /// Path and lines of the stored runs.
    fn records(&self) -> Option<(String, Vec<Value>)> {
        let entries = std::fs::read_dir(self.scratch.0.join("out")).ok()?.map(|entry| entry.unwrap().path());
        let path = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl"))?;
        let text = std::fs::read_to_string(&path).unwrap();
        // The last line may not be whole while the program writes.
        let runs = text.lines().skip(1).map_while(|line| serde_json::from_str(line).ok()).collect();
        Some((path.to_str().unwrap().to_owned(), runs))
    }

    /// Says why nothing is tested, if this system permits no emulated networks.
    fn is_refused(&self, code: Option<i32>) -> bool {
        if code == Some(2) {
            let (error, _) = refused(&self.with(&[]));
            // Not because of the matrix: a single run is refused as well.
            let out = self.scratch.0.join("out");
            assert_eq!(refused(&["lab", "run", "mobile", "--real-time", "--out", out.to_str().unwrap()]).0, error);
            eprintln!("not tested, since this system refuses: {error}");
        }
        code == Some(2)
    }
}

#[test]
fn a_matrix_in_real_time_has_records_tables_and_a_page() {
    let matrix = Matrix::new("real-time-matrix");
    let page = matrix.scratch.0.join("page.html");
    let output = run(&matrix.with(&["--json", "--html", page.to_str().unwrap()]));
    if matrix.is_refused(output.status.code()) {
        return;
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    // Four runs of each rate, a second each, and the estimate before them.
    assert!(stderr.contains("2 points x 2 contenders x 2 seeds, 8 runs to make: about 10 s in real time"), "{stderr}");
    assert!(stderr.contains("2 paths calibrated"), "{stderr}");
    assert!(stderr.contains("run 8 of 8, ") && stderr.contains("; about 0 s left"), "{stderr}");
    let (file, runs) = matrix.records().unwrap();
    // Round by round, in each all points, and contenders in turning order.
    let order: Vec<String> = runs
        .iter()
        .map(|run| {
            let (name, level) =
                (run["contender"]["name"].as_str().unwrap(), run["point"]["path.rate"].as_str().unwrap());
            format!("{} {name} {level} {}", run["run"], run["seed"])
        })
        .collect();
    let expected = [
        "0 tiderace cubic 4 Mbit/s 1",
        "1 kernel-cubic 4 Mbit/s 1",
        "2 tiderace cubic 16 Mbit/s 1",
        "3 kernel-cubic 16 Mbit/s 1",
        "4 kernel-cubic 4 Mbit/s 2",
        "5 tiderace cubic 4 Mbit/s 2",
        "6 kernel-cubic 16 Mbit/s 2",
        "7 tiderace cubic 16 Mbit/s 2",
    ];
    assert_eq!(order, expected);
    for run in &runs {
        assert!(run["real_time"]["cpu_emulator"].as_f64().unwrap() > 0.0, "{run}");
        let goodput = run["figures"]["goodput"]["value"].as_f64().unwrap();
        // The path of the point was the path of the run: no more passes than its rate.
        let rate = if run["point"]["path.rate"] == "4 Mbit/s" { 4e6 } else { 16e6 };
        let fits = goodput > 0.0 && goodput <= rate * 1.2;
        assert!(fits, "{run}");
    }
    // What was run at a point is what the point says: runs of one have the same settings, those of the other have others.
    let digest = |run: usize| runs[run]["digest"].as_str().unwrap();
    assert!([1, 4, 5].iter().all(|&run| digest(run) == digest(0)), "{runs:?}");
    assert!([3, 6, 7].iter().all(|&run| digest(run) == digest(2)) && digest(2) != digest(0), "{runs:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["contenders"], serde_json::json!(["tiderace cubic", "kernel-cubic"]));
    assert_eq!((&report["size"]["stored"], &report["size"]["runs"]), (&8.into(), &8.into()));
    assert_eq!(report["points"].as_array().unwrap().len(), 2);
    let checks: Vec<&str> =
        report["self_test"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(checks, ["packets on time", "nothing lost on this machine", "CPU for the ends (accepted as it was)"]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("seconds in real time") && !page.contains("virtual"), "{page}");

    // Stored records give the same tables, with those of real time.
    let output = run(&["lab", "report", &file]);
    let text = String::from_utf8(output.stdout).unwrap();
    let costs = text.split("In real time (medians)").nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(costs.contains("kernel-cubic, path.rate 16 Mbit/s"), "{text}");
    // They are complete, so nothing is to be run again, and a run that the machine is part of cannot be repeated.
    assert!(refused(&["lab", "replay", &file]).0.contains("a run in real time cannot be repeated"));
}

/// Waits for a program that has been asked to end, and returns its exit code with its output.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    (child.wait().unwrap().code(), output)
}

#[test]
fn ctrl_c_keeps_and_marks_what_was_run_and_resume_completes_it() {
    let matrix = Matrix::new("real-time-resume");
    let mut child = spawn(&matrix.with(&[]));
    let begun = Instant::now();
    while matrix.records().is_none_or(|(_, runs)| runs.len() < 2) {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(matrix.is_refused(status.code()), "it ended by itself: {status}");
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "no run ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let (code, report) = ended(child);
    let (file, kept) = matrix.records().unwrap();
    assert_eq!(code, Some(130), "{report}");
    assert!(kept.len() >= 2 && kept.len() < 8, "{} runs", kept.len());
    let mark = format!("{} of 8 runs", kept.len());
    assert!(report.contains(&mark) && report.contains("In real time (medians)"), "{report}");

    let output = run(&["lab", "resume", &file, "--accept-busy", "--json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(&format!("{} runs to make", 8 - kept.len())), "{stderr}");
    let (_, runs) = matrix.records().unwrap();
    assert_eq!(runs.len(), 8);
    // What was stored was not run again.
    assert!(kept.iter().all(|run| runs.contains(run)));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["size"]["stored"], 8);
}

#[test]
fn a_matrix_names_what_tcp_cannot_carry() {
    let (error, hint) = refused(&[
        "lab",
        "matrix",
        "mobile",
        "--real-time",
        "--cc",
        "kernel-cubic",
        "--vary",
        "traffic.workload=bulk,tunnel",
    ]);
    assert!(error.contains("`kernel-cubic` cannot run `traffic.workload tunnel`"), "{error}");
    assert_eq!(hint, "leave it out of --cc");
    let (error, _) = refused(&["lab", "matrix", "mobile", "--cc", "kernel-cubic", "--vary", "path.rtt=20ms,60ms"]);
    assert_eq!(error, "`kernel-cubic` is the kernel's, and runs in real time only");
}
