//! `docs/performance.md`: the part between two marks is written here, the text around it by people.

use std::{fmt::Write, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{job::Job, report, suite::Outcome};

const BEGIN: &str = "<!-- bench all: begin -->";
const END: &str = "<!-- bench all: end -->";

/// Beside the workspace that this program was built from.
fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md")
}

/// Text before and after the generated part.
fn around(text: &str) -> Option<(&str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some((before, after))
}

fn read() -> Result<String> {
    let path = path();
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}\nhint: --no-write prints the tables only", path.display()))?;
    ensure!(around(&text).is_some(), "{} has no `{BEGIN}` and `{END}`", path.display());
    Ok(text)
}

/// Checks that there is a place to write to.
pub fn check() -> Result<()> {
    read().map(|_| ())
}

/// Replaces the generated part.
pub fn write(outcome: &Outcome) -> Result<()> {
    let text = read()?;
    let (before, after) = around(&text).context("the marks are gone")?;
    let path = path();
    fs::write(&path, format!("{before}{BEGIN}\n{}{END}{after}", generated(outcome)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// A size in the largest binary unit that divides it.
fn binary_size(bytes: u64) -> String {
    let (unit, name) = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit))
        .unwrap_or((1, "bytes"));
    format!("{} {name}", bytes / unit)
}

fn amount(job: &Job) -> String {
    if job.mode.moves_bytes() {
        format!("{} per run", binary_size(job.amount))
    } else {
        format!("{} per run", job.amount)
    }
}

/// All tables, with where and how they were made.
pub fn generated(outcome: &Outcome) -> String {
    let mut text = String::new();
    // A String takes everything, so the results of `write!` say nothing.
    let _ = writeln!(
        text,
        "{} round{}; {}.",
        outcome.rounds,
        if outcome.rounds == 1 { "" } else { "s" },
        outcome.environment.line()
    );
    let loud = outcome.runs.iter().filter(|run| !run.quiet_before).count();
    let most = |pick: fn(&crate::run::Run) -> f64| outcome.runs.iter().map(pick).fold(0.0, f64::max);
    let _ = writeln!(
        text,
        "While runs were made, other processes used at most {:.2} CPUs, and the host took at most {:.2} away; {loud} of {} runs \
         started on a machine that was not quiet.",
        most(|run| run.foreign_cores),
        most(|run| run.stolen_cores),
        outcome.runs.len()
    );
    for (&mode, job) in outcome.modes.iter().zip(&outcome.jobs) {
        let peers = outcome.peers_of(mode);
        let _ = writeln!(text, "\n### {} (`{}`, {})\n", mode.title(), mode.name(), amount(job));
        let _ = writeln!(text, "{}", report::table(mode, &outcome.summary, &peers));
        let _ = writeln!(text, "{}", report::legend(mode));
        let evidence = report::evidence(mode, &outcome.runs, &peers);
        if !evidence.is_empty() {
            text.push('\n');
        }
        for line in evidence {
            let _ = writeln!(text, "- {line}");
        }
    }
    if !outcome.failures.is_empty() {
        text.push('\n');
    }
    for failure in &outcome.failures {
        let _ = writeln!(text, "- failed: {failure}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(binary_size(2 << 30), "2 GiB");
        assert_eq!(binary_size(1_536 << 20), "1536 MiB");
        assert_eq!(binary_size(1_000_001), "1000001 bytes");
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        assert_eq!(around(&text), Some(("above\n", "\nbelow\n")));
        assert_eq!(around("no marks"), None);
    }
}
