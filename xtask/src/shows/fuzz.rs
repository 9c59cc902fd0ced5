//! Fuzzing: every target for its share of the time, on top of the committed corpora. Needs a nightly compiler and cargo-fuzz.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    row::{Row, Target},
};

/// Seconds of all targets together, in a slice and in the whole.
const SLICE: u64 = 240;
const WHOLE: u64 = 2 * 3_600;

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
