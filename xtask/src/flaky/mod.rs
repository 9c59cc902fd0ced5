//! `cargo xtask flaky`: runs every test binary many times under unkind conditions, and tells which tests do not always pass.
//!
//! A test whose verdict depends on the speed of the machine passes on the desk and fails elsewhere. So each binary runs many
//! rounds: as it is, beside busy loops, on one core, and with a processor that stands still three quarters of the time.

pub(crate) mod binaries;
mod condition;
mod round;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::Serialize;

use self::{
    binaries::Binary,
    condition::{Busy, Condition},
    round::{Outcome, Round},
};

/// Run every test binary many times under unkind conditions, and list the tests that do not always pass.
///
/// Builds the tests as `cargo test` does, and runs each binary as many rounds under each condition: as it is (plain), beside
/// four busy loops (busy), on one core (one-core), and stopped three quarters of the time (slow), every other round of it
/// beside the busy loops. Rounds go round robin over the binaries, so that a time limit cuts all of them alike.
///
/// The output of each failed round stays in target/flaky/. Documentation tests are no binaries and are not run.
///
/// Exit code 0: every round passed. 1: a round failed. 2: the tests do not build, or none has that name.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Rounds of each binary under each condition
    #[arg(long, value_name = "N", default_value_t = 100)]
    rounds: u32,
    /// Run this binary only, as PACKAGE::TARGET (tiderace-edge::gateway, tiderace-edge::lib), or all of a PACKAGE
    #[arg(long, value_name = "BINARY")]
    only: Vec<String>,
    /// Run under this condition only
    #[arg(long, value_name = "CONDITION", value_enum)]
    condition: Vec<Condition>,
    /// Rounds that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Begin no round after so many minutes; each condition gets its share
    #[arg(long, value_name = "MINUTES")]
    time_limit: Option<f64>,
    /// Seconds after which a round counts as hung
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    patience: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The rounds of a binary under a condition.
#[derive(Debug, Serialize)]
struct Line {
    binary: String,
    condition: Condition,
    /// Rounds that were asked for, that ran, and that failed.
    asked: u32,
    rounds: u32,
    red: u32,
    /// Failures of each test. A round that ended without naming one counts under the reason, in brackets.
    failed: BTreeMap<String, u32>,
    /// Tests that the binary has and that were not run, as far as a round has told.
    ignored: u64,
    /// The longest round, in seconds.
    longest_s: f64,
    outputs: Vec<PathBuf>,
}

impl Line {
    fn new(binary: &Binary, condition: Condition, asked: u32) -> Self {
        Self {
            binary: binary.name.clone(),
            condition,
            asked,
            rounds: 0,
            red: 0,
            failed: BTreeMap::new(),
            ignored: 0,
            longest_s: 0.0,
            outputs: Vec::new(),
        }
    }

    fn add(&mut self, round: Round) {
        self.rounds += 1;
        self.longest_s = self.longest_s.max(round.took.as_secs_f64());
        self.ignored = self.ignored.max(round.ignored);
        if let Outcome::Red { failed } = round.outcome {
            self.red += 1;
            for name in failed {
                *self.failed.entry(name).or_default() += 1;
            }
            self.outputs.push(round.output);
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the rounds; `true` when none failed.
fn execute(args: &Args) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let mut binaries = binaries::build(root, &args.only)?;
    let outputs = binaries::target(root).join("flaky");
    binaries::keep(&mut binaries, &outputs.join("programs"))?;
    let conditions: BTreeSet<Condition> = match args.condition.as_slice() {
        [] => Condition::ALL.into(),
        some => some.iter().copied().collect(),
    };
    let end = args.time_limit.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let mut lines = Vec::new();
    for (done, &condition) in conditions.iter().enumerate() {
        let left = (conditions.len() - done) as u32;
        let end = end.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / left);
        lines.extend(under(condition, &binaries, args, end, &outputs)?);
    }
    report(&lines, args.json)?;
    Ok(lines.iter().all(|line| line.red == 0))
}

/// The rounds of all binaries under a condition, until `end`.
fn under(
    condition: Condition,
    binaries: &[Binary],
    args: &Args,
    end: Option<Instant>,
    outputs: &Path,
) -> Result<Vec<Line>> {
    let lines = binaries.iter().map(|binary| Line::new(binary, condition, args.rounds)).collect();
    let lines: Mutex<Vec<Line>> = Mutex::new(lines);
    let next = AtomicUsize::new(0);
    let count = binaries.len() * args.rounds as usize;
    let _busy = (condition == Condition::Busy).then(Busy::start);
    let work = || -> Result<()> {
        // The children of this thread inherit what it may run on.
        condition.settle()?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(());
            }
            let (at, turn) = (number % binaries.len(), number / binaries.len());
            let binary = &binaries[at];
            let _busy = (condition == Condition::Slow && turn % 2 == 1).then(Busy::start);
            let output = outputs.join(format!("{}-{condition}-{turn}.txt", binary.name.replace("::", "-")));
            let round = round::run(binary, condition, Duration::from_secs(args.patience), output)?;
            let red = matches!(round.outcome, Outcome::Red { .. });
            let (verdict, took) = (if red { "RED " } else { "pass" }, round.took.as_secs_f64());
            let failed = match &round.outcome {
                Outcome::Red { failed } => format!(": {}", failed.join(", ")),
                Outcome::Passed => String::new(),
            };
            eprintln!("{verdict} {condition:<8} {:>4} {} ({took:.1} s){failed}", turn + 1, binary.name);
            lines.lock().expect("no round panics")[at].add(round);
        }
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("no round panics"))
    })?;
    Ok(lines.into_inner().expect("no round panics"))
}

fn report(lines: &[Line], json: bool) -> Result<()> {
    ensure!(!lines.is_empty(), "nothing ran");
    if json {
        println!("{}", serde_json::to_string_pretty(lines)?);
        return Ok(());
    }
    println!("{:<44} {:<9} {:>7} {:>5} {:>9}", "binary", "condition", "rounds", "red", "longest");
    for line in lines {
        let Line { binary, condition, rounds, red, longest_s, .. } = line;
        println!("{binary:<44} {condition:<9} {rounds:>7} {red:>5} {longest_s:>7.1} s");
        for (name, count) in &line.failed {
            println!("    {count:>4} × {name}");
        }
        for output in &line.outputs {
            println!("           {}", output.display());
        }
    }
    let cut = lines.iter().filter(|line| line.rounds < line.asked);
    for line in cut {
        println!("cut short: {} {}: {} rounds of {}", line.binary, line.condition, line.rounds, line.asked);
    }
    let mut ignored: Vec<_> = lines.iter().filter(|line| line.ignored > 0).map(|l| (&l.binary, l.ignored)).collect();
    ignored.dedup();
    for (binary, count) in ignored {
        println!("ignored by its own mark: {count} in {binary}");
    }
    let (rounds, red) = lines.iter().fold((0, 0), |sum, line| (sum.0 + line.rounds, sum.1 + line.red));
    println!("{rounds} rounds, {red} red");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_rounds_and_names() {
        let binary = Binary { name: "a::lib".to_owned(), program: PathBuf::new(), folder: PathBuf::new() };
        let mut line = Line::new(&binary, Condition::Plain, 3);
        let round = |outcome| Round { outcome, took: Duration::from_secs(2), ignored: 1, output: "out".into() };
        line.add(round(Outcome::Passed));
        line.add(round(Outcome::Red { failed: vec!["x".to_owned(), "y".to_owned()] }));
        line.add(round(Outcome::Red { failed: vec!["x".to_owned()] }));
        assert_eq!((line.rounds, line.red, line.outputs.len()), (3, 2, 2));
        assert_eq!(line.failed, BTreeMap::from([("x".to_owned(), 2), ("y".to_owned(), 1)]));
    }
}
