//! `tiderace lab compare` and `gate`: comparison of two files of records, and a verdict for builds.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use lab::{
    compare::{Change, Changes, changes},
    figure::Figure,
    gate::{Gate, Tolerances, judge},
    noise::Noise,
    report::{pull_request, wrapped},
    stats::interval::RUNS_MIN,
    summary::Summary,
    versus::{Digits, effect, words},
};

use crate::{
    failure::{Failure, GATE},
    stdout::write_out,
};

/// Compare two files of records of the same scenario, in every figure of its workload.
///
/// Contenders are matched by name, runs by point and seed. A change is the median of the ratios, or of the differences where a ratio has
/// no meaning, with an interval of at least 95 %. Zeros, values that never occurred (∞) and unknown values are included.
#[derive(Debug, Parser)]
pub(super) struct CompareArgs {
    /// Old records
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// New records
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Fail if a figure of the workload is worse or missing, or if a limit of the scenario is exceeded.
///
/// Worse means beyond the tolerance in so many runs that chance alone fails at most one gate in twenty, whatever the number of figures;
/// with too few seeds for that, in all runs. Figures without a better direction fail if they change.
///
/// With --markdown it prints what a pull request should show: the verdict, a table with intervals, and beside each change the
/// noise of an A/A run, which is how much the baseline differs from itself. docs/ci.md has a workflow.
///
/// Exit code 0: passed. 2: a file cannot be read, the files are of different scenarios, or a tolerance is wrong. 99: failed, also if a
/// figure, a contender, a run or the subject of a limit is missing, or if a run failed.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab gate new.jsonl --baseline good.jsonl
  tiderace lab gate new.jsonl --baseline good.jsonl --tolerance 5 --tolerance rtt_p95='10 ms'
  tiderace lab gate new.jsonl --baseline good.jsonl --tolerances gate.toml --json
  tiderace lab gate new.jsonl --baseline good.jsonl --again good-again.jsonl --markdown")]
pub(super) struct GateArgs {
    /// Records to judge
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Records of a known good version
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Tolerance of a figure: FIGURE=AMOUNT such as goodput='5 %', rtt_p95='10 ms', residual_loss='0.2 points', or a
    /// percentage for all figures that have ratios; may be repeated
    #[arg(long, value_name = "[FIGURE=]AMOUNT")]
    tolerance: Vec<String>,
    /// TOML file of tolerances, such as `goodput = "5 %"`; --tolerance takes precedence
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
    /// Records of the baseline's program, run again (A/A): with other seeds, or in real time. Without them the noise is that
    /// between the baseline's odd and even seeds
    #[arg(long, value_name = "FILE", requires = "baseline")]
    again: Option<PathBuf>,
    /// Print as JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print as Markdown, for a pull request
    #[arg(long)]
    markdown: bool,
}

fn read(path: &Path) -> Result<Summary, Failure> {
    Summary::read(path).map_err(|error| {
        Failure::new(format_args!("{}: {error}", path.display())).hint("is it a file that `tiderace lab` has written?")
    })
}

/// Adds a hint to an error about scenarios.
fn of_one_scenario<T>(found: Result<T, String>) -> Result<T, Failure> {
    found.map_err(|reason| {
        Failure::new(reason).hint("compare records of the same scenario; only seeds and contenders may differ")
    })
}

/// Table for each contender: old value, new value, verdict.
fn table(changes: &[Change], shown: &dyn Fn(&Change) -> bool) -> String {
    let mut output = String::new();
    let mut contender = None;
    for change in changes.iter().filter(|change| shown(change)) {
        let Some(figure) = change.figure() else { continue };
        if contender != Some(&change.contender) {
            contender = Some(&change.contender);
            output += &format!("{}\n", change.contender);
        }
        let (unit, scale) = figure.unit().printed();
        let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| Digits(value * scale).short());
        let (label, medians) = (figure.label().trim(), [value(change.before), value(change.after)].join(" → "));
        let words = if change.identical { "identical".to_owned() } else { words(&change.result, change.presupposes) };
        let size = if change.identical { String::new() } else { effect(figure, &change.result) };
        let line = format!("  {label:<18} {:<23} {size}", format!("{medians} {unit}"));
        // Words of a line stay together where they fit: effect and verdict may go to the next one.
        output += &wrapped(&format!("{}  {words}", line.trim_end()), 21);
    }
    output
}

/// Tables of the comparisons, and the list of lost figures.
fn legend(found: &Changes) -> String {
    let identical = found.changes.iter().filter(|change| change.identical).count();
    let mut output = String::new();
    for lost in &found.lost {
        let label = Figure::from_key(lost.figure).map_or(lost.figure, |figure| figure.label().trim());
        let (gone, before) = (lost.gone, lost.before);
        output +=
            &wrapped(&format!("{}: {label} has no value in {gone} of {before} runs that had one", lost.contender), 2);
    }
    if identical > 0 {
        output += &format!("{identical} figures are identical in every run.\n");
    }
    output
        + &wrapped(
            "Medians before → after; the median over the runs of after / before, or of the difference where a ratio has no \
         meaning, with its interval of at least 95\u{a0}%. Equivalent: no difference that matters (see docs/lab.md).",
            0,
        )
}

pub(super) fn compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let found = of_one_scenario(changes(&before, &after, &|figure| figure.declaration().rule()))?;
    if args.json {
        return write_json(&found).map(|()| ExitCode::SUCCESS);
    }
    let title = format!("{} against {}", args.after.display(), args.before.display());
    let all_identical = found.changes.iter().all(|change| change.identical);
    let table = if all_identical {
        "Nothing has changed: every run is identical in every figure.\n".to_owned()
    } else {
        table(&found.changes, &|change| !change.identical)
    };
    write_out(&format!("{}\n{table}\n{}", wrapped(&title, 2), legend(&found)))?;
    Ok(ExitCode::SUCCESS)
}

fn write_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::new(format_args!("{error}")))?;
    write_out(&(json + "\n"))
}

/// The tolerances of the file and of the options.
fn tolerances(args: &GateArgs) -> Result<Tolerances, Failure> {
    let mut tolerances = Tolerances::default();
    if let Some(path) = &args.tolerances {
        let wrong = |reason: String| {
            Failure::new(format_args!("{}: {reason}", path.display())).hint("a line is for example `goodput = \"5 %\"`")
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        tolerances = Tolerances::from_toml(&text).map_err(wrong)?;
    }
    for text in &args.tolerance {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), value.to_owned()),
            // A bare number is per cent.
            None => ("all", if text.contains('%') { text.clone() } else { format!("{text} %") }),
        };
        tolerances.set(name, &value).map_err(|reason| Failure::new(format_args!("--tolerance: {reason}")))?;
    }
    Ok(tolerances)
}

pub(super) fn gate(args: &GateArgs) -> Result<ExitCode, Failure> {
    let tolerances = tolerances(args)?;
    let after = read(&args.records)?;
    let before = args.baseline.as_deref().map(read).transpose()?;
    if before.is_none() && after.manifest.scenario.thresholds.is_empty() {
        return Err(Failure::new("there is nothing to judge by: the scenario has no thresholds")
            .hint("give `--baseline FILE`, or add `[[thresholds]]` to the scenario"));
    }
    let gate = of_one_scenario(judge(&after, before.as_ref(), &tolerances))?;
    let code = if gate.passed { ExitCode::SUCCESS } else { ExitCode::from(GATE) };
    if args.json {
        return write_json(&gate).map(|()| code);
    }
    if args.markdown {
        let noise = before.as_ref().map(|before| noise(args, before, &tolerances)).transpose()?;
        write_out(&pull_request(&gate, &after, before.as_ref(), noise.as_ref()))?;
        return Ok(code);
    }
    write_out(&told(&gate, before.is_some()))?;
    Ok(code)
}

/// Noise of the baseline, by another run of it or by its halves.
fn noise(args: &GateArgs, before: &Summary, tolerances: &Tolerances) -> Result<Noise, Failure> {
    let rule = |figure: Figure| tolerances.rule(figure);
    match args.again.as_deref() {
        Some(path) => of_one_scenario(Noise::again(before, &read(path)?, &rule)),
        None => Ok(Noise::halves(before, &rule)),
    }
}

/// Text of a gate: changes, reasons of the failure, and confidence.
fn told(gate: &Gate, against: bool) -> String {
    let mut output = table(&gate.changes, &|change| !change.identical);
    if !output.is_empty() {
        output.push('\n');
    }
    for failing in &gate.failing {
        output += &wrapped(&format!("FAIL  {}", failing.reason), 6);
    }
    if against {
        let identical = gate.changes.iter().filter(|change| change.identical).count();
        output += &wrapped(&format!("{} figures compared, {identical} identical in every run.", gate.changes.len()), 0);
        if let Some(needed) = gate.seeds_needed {
            let pairs = gate.changes.iter().map(|change| change.result.pairs).min().unwrap_or(0);
            let trust = if pairs < RUNS_MIN {
                format!("too few seeds to find what is worse: take {needed}, {RUNS_MIN} at least")
            } else {
                format!("chance alone may fail this gate: with {needed} seeds at most one in twenty")
            };
            output += &wrapped(&format!("Note: {trust}."), 6);
        }
    }
    output + if gate.passed { "The gate passes.\n" } else { "The gate FAILS.\n" }
}
