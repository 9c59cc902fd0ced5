//! `tiderace lab compare` and `gate`: two files of records against one another, and a verdict that a build can fail on.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use lab::{
    compare::{Change, changes},
    report::breaches,
    stats::compare::{MARGIN, Verdict},
    summary::Summary,
};

use crate::{
    failure::{Failure, GATE},
    stdout::write_out,
};

/// Compare two files of records of the same scenario.
///
/// Contenders are compared by their names, runs by points and seeds.
#[derive(Debug, Parser)]
pub(super) struct CompareArgs {
    /// Records of before
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Records of after
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Fail when a contender has become worse, or a limit of the scenario does not hold.
///
/// Worse means that the whole 95 % interval of the ratio lies beyond the tolerance: chance alone does not fail a build.
///
/// Exit code 0: it passes. 2: a file cannot be read, or the two are not of one scenario. 99: it fails; also when a limit has
/// nothing that was measured, or a run is missing or failed.
#[derive(Debug, Parser)]
pub(super) struct GateArgs {
    /// The records to judge
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Records of what is known to be good
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// How much worse is still good, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    tolerance: f64,
}

fn read(path: &Path) -> Result<Summary, Failure> {
    Summary::read(path).map_err(|error| {
        Failure::new(format_args!("{}: {error}", path.display())).hint("is it a file that `tiderace lab` has written?")
    })
}

fn between(before: &Summary, after: &Summary, margin: f64) -> Result<Vec<Change>, Failure> {
    changes(before, after, margin).map_err(|reason| {
        Failure::new(reason).hint("compare records of the same scenario; only seeds and contenders may differ")
    })
}

fn line(change: &Change) -> String {
    let ratio = change.ratio;
    let verdict = match change.verdict {
        Verdict::Better => "better".to_owned(),
        Verdict::Worse => "worse".to_owned(),
        Verdict::Equivalent => "equivalent".to_owned(),
        Verdict::Undecided => match change.needed {
            Some(needed) if needed <= 1_000 => format!("undecided; about {needed} runs of each would decide"),
            _ => "undecided".to_owned(),
        },
    };
    format!(
        "{:<24} {:<18} x {:.4} [{:.4}, {:.4}]  {verdict}{}\n",
        change.contender,
        change.figure.trim(),
        ratio.value,
        ratio.low,
        ratio.high,
        if change.identical { " (every run identical)" } else { "" }
    )
}

pub(super) fn compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let changes = between(&before, &after, MARGIN)?;
    if args.json {
        let json = serde_json::to_string_pretty(&changes).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = format!("{} against {}\n\n", args.after.display(), args.before.display());
    changes.iter().for_each(|change| output += &line(change));
    output += &format!(
        "\nGeometric mean of after / before with its 95 % bootstrap interval; equivalent within {:.0} %.\n",
        MARGIN * 100.0
    );
    write_out(&output)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn gate(args: &GateArgs) -> Result<ExitCode, Failure> {
    if !(0.0..1_000.0).contains(&args.tolerance) {
        return Err(Failure::new(format_args!("--tolerance: {} is out of range", args.tolerance)));
    }
    let after = read(&args.records)?;
    let mut failed = Vec::new();
    if after.stored() < after.runs() {
        failed.push(format!("{} of {} runs are missing", after.runs() - after.stored(), after.runs()));
    }
    if let Some(first) = after.failures.first() {
        failed.push(format!(
            "{} runs failed; the first: {}, seed {}: {}",
            after.failures.len(),
            first.contender,
            first.seed,
            first.reason
        ));
    }
    for breach in breaches(&after) {
        let found = breach
            .value
            .map_or_else(|| "nothing was measured".to_owned(), |value| format!("the median is {value} in base units"));
        failed.push(format!("{}: {}: {found}", breach.limit, breach.place));
    }
    let mut output = String::new();
    if let Some(baseline) = &args.baseline {
        let before = read(baseline)?;
        let changes = between(&before, &after, args.tolerance / 100.0)?;
        for change in &changes {
            output += &line(change);
            if change.certainly_worse {
                failed.push(format!(
                    "{} {} has become worse by more than {} %",
                    change.contender,
                    change.figure.trim(),
                    args.tolerance
                ));
            }
        }
        for name in before.contenders.iter().filter(|name| !after.contenders.contains(name)) {
            failed.push(format!("{name} is in the baseline and not in {}", args.records.display()));
        }
    } else if after.manifest.scenario.thresholds.is_empty() {
        return Err(Failure::new("there is nothing to judge by: the scenario has no thresholds")
            .hint("give `--baseline FILE`, or add `[[thresholds]]` to the scenario"));
    }
    for reason in &failed {
        output += &format!("FAIL  {reason}\n");
    }
    output += if failed.is_empty() { "The gate passes.\n" } else { "The gate FAILS.\n" };
    write_out(&output)?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(GATE) })
}
