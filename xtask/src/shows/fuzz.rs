//! Fuzzing: every target for its share of the time, on top of the committed corpora, and those that drive whole connections for longer.
//! Needs a nightly compiler and cargo-fuzz.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    Context,
    row::{Row, Target},
};

/// Seconds of all targets together, in a slice and in the whole.
const SLICE: u64 = 240;
const WHOLE: u64 = 2 * 3_600;

/// The targets that drive a connection past its handshake, and seconds of all of them together.
const CONNECTIONS: [&str; 3] = ["connected", "edge_h3", "qmux_peer"];
const CONNECTIONS_SLICE: u64 = 180;
const CONNECTIONS_WHOLE: u64 = 8 * 3_600;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let folder = context.root.join("fuzz");
    let mut targets: Vec<String> = fs::read_dir(folder.join("fuzz_targets"))
        .context("fuzz/fuzz_targets")?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    ensure!(!targets.is_empty(), "there are no targets");
    let share = if context.long { WHOLE } else { SLICE } / targets.len() as u64;
    let mut findings = Vec::new();
    for target in &targets {
        let mut command = Command::new("cargo");
        command.current_dir(&context.root).args(["+nightly", "fuzz", "run", target, "--"]);
        command.arg(format!("-max_total_time={share}"));
        let name = format!("fuzz-{target}");
        let ended = context.commands.run(&name, &mut command, Duration::from_secs(share + 3_600))?;
        if !ended.succeeded() {
            findings.push(format!("{target}: {}", ended.reason()));
        }
    }
    let count = f64::from(u32::try_from(findings.len())?);
    let detail = format!("{} targets, {share} s each: {}\n{}", targets.len(), targets.join(", "), findings.join("\n"));
    Ok(vec![Row::new("fuzz targets with a finding", count, "", Target::Exactly(0.0)).detail(detail)])
}

/// Executions and findings of the targets that drive whole connections. What the fuzzer adds to a corpus stays in `target/shows`.
pub(crate) fn connections(context: &Context) -> Result<Vec<Row>> {
    let mut version = Command::new("cargo");
    version.current_dir(&context.root).args(["+nightly", "fuzz", "--version"]);
    let there = context.commands.run("fuzz-version", &mut version, Duration::from_secs(60))?;
    if !there.succeeded() {
        bail!("a nightly compiler and cargo-fuzz are needed: {}", there.reason());
    }
    let share = if context.long { CONNECTIONS_WHOLE } else { CONNECTIONS_SLICE } / CONNECTIONS.len() as u64;
    let mut rows = Vec::new();
    for target in CONNECTIONS {
        rows.extend(
            connection(context, target, share)
                .unwrap_or_else(|error| vec![Row::unmeasured(&format!("executions: {target}"), &error)]),
        );
    }
    Ok(rows)
}

fn connection(context: &Context, target: &str, share: u64) -> Result<Vec<Row>> {
    // Sanitizers look for what safe code cannot do; without them there are several times as many executions.
    let fuzz = |what: &str| {
        let mut command = Command::new("cargo");
        command.current_dir(&context.root).args(["+nightly", "fuzz", what, "--sanitizer", "none", target]);
        command
    };
    let limit = Duration::from_secs(share + 3_600);
    context.commands.run(&format!("fuzz-build-{target}"), &mut fuzz("build"), limit)?.ok()?;
    let mut command = fuzz("run");
    let found = context.commands.scratch(&format!("fuzz-corpus-{target}"))?;
    command.arg(found).arg(context.root.join("fuzz/corpus").join(target));
    command.args(["--", &format!("-max_total_time={share}"), "-print_final_stats=1", "-timeout=300"]);
    let ended = context.commands.run(&format!("fuzz-{target}"), &mut command, limit)?;
    let executions = executions(&ended.stderr).with_context(|| format!("{target}: {}", ended.reason()))?;
    let findings = f64::from(u8::from(!ended.succeeded()));
    let why = if ended.succeeded() { String::new() } else { format!("; {}", ended.reason()) };
    Ok(vec![
        Row::new(format!("executions: {target}"), executions, "", Target::AtLeast(1.0))
            .detail(format!("within {share} s, the committed corpus included")),
        Row::new(format!("findings: {target}"), findings, "", Target::Exactly(0.0))
            .detail(format!("{:.0} s{why}", ended.seconds)),
    ])
}

/// Number of runs that libFuzzer reports at its end.
fn executions(log: &str) -> Option<f64> {
    let line = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_executed() {
        let log =
            "Done 77 runs in 2 second(s)\nstat::number_of_executed_units: 77\nstat::average_exec_per_sec:     38\n";
        assert_eq!(executions(log), Some(77.0));
        assert_eq!(executions("error: no such target"), None);
    }
}
