//! `tiderace lab selftest` and `audit`: checks of the laboratory itself, and of published tables.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::{Parser, builder::PossibleValuesParser};
use lab::{
    audit::{Severity, Table, audit},
    selftest::{Fault, NOT_CHECKED, calibrate},
};

use super::real_time;
use crate::{
    failure::{Failure, SELF_TEST, UNSOUND},
    stdout::write_out,
};

/// Check the laboratory against known answers.
///
/// Exit code 0: all checks pass. 3: a check fails; do not trust results of this program.
#[derive(Debug, Parser)]
pub(super) struct SelftestArgs {
    /// Plant this fault: the self-test has to fail
    #[arg(long, value_name = "FAULT", value_parser = PossibleValuesParser::new(Fault::ALL.map(|fault| fault.1)))]
    inject: Option<String>,
    /// Compare real time with virtual time too (V14): `tiderace perf` over loopback through `tiderace relay` against the simulator. Takes
    /// half a minute of an idle machine
    #[arg(long)]
    real_time: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Check a published table against arithmetic that every measurement has to obey.
///
/// The table is CSV with a header line, or a JSON list of objects. Columns are recognized by name (goodput_mbps, pps,
/// connections, packet_bytes, rtt_ms, p50_ms, p95_ms, p99_ms, jitter_ms, samples, …: see docs/lab.md); others are ignored.
///
/// Exit code 0: no finding. 1: a figure is impossible or doubtful. 2: the file is no such table.
#[derive(Debug, Parser)]
pub(super) struct AuditArgs {
    /// File with the table
    #[arg(value_name = "FILE")]
    table: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn selftest(args: &SelftestArgs) -> Result<ExitCode, Failure> {
    let named = |name: &String| Fault::ALL.iter().find(|fault| fault.1 == name).map(|fault| fault.0);
    let mut checks = calibrate(args.inject.as_ref().and_then(named));
    if args.real_time {
        checks.extend(real_time::checks());
    }
    let failed = checks.iter().filter(|check| !check.passed).count();
    if args.json {
        let json = serde_json::to_string_pretty(&checks).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
    } else {
        let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut output = String::new();
        for check in &checks {
            let mark = if check.passed { "pass" } else { "FAIL" };
            output += &format!("{mark}  {:<width$}  {}\n", check.name, check.detail);
        }
        for (name, why) in NOT_CHECKED.iter().filter(|_| !args.real_time) {
            output += &format!("  –   {name:<width$}  not checked: {why}\n");
        }
        output += &match failed {
            0 => format!("{} checks pass.\n", checks.len()),
            count => format!("{count} of {} checks FAIL: believe no result of this program.\n", checks.len()),
        };
        write_out(&output)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(SELF_TEST) })
}

pub(super) fn audit_table(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let path = args.table.display();
    let text =
        fs::read_to_string(&args.table).map_err(|error| Failure::new(format_args!("cannot read {path}: {error}")))?;
    let table = Table::parse(&text).map_err(|error| Failure::new(format_args!("{path}: {error}")))?;
    let findings = audit(&table);
    if args.json {
        let json = serde_json::to_string_pretty(&findings).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
    } else {
        let mut output = String::new();
        for finding in &findings {
            let severity = match finding.severity {
                Severity::Suspect => "suspect",
                Severity::Impossible => "IMPOSSIBLE",
            };
            let row = finding.row.map(|row| format!("row {row} ({})", finding.label)).unwrap_or_default();
            output += &format!("{severity:<10}  {row}: {}: {}\n", finding.rule, finding.detail);
        }
        output += &match findings.len() {
            0 => "Nothing was found. Rules whose columns are missing were not applied.\n".to_owned(),
            count => format!("{count} findings.\n"),
        };
        write_out(&output)?;
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}
