//! One run of a test binary, and what its output says.

use std::{
    fs::{self, File},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{binaries::Binary, condition::Condition};
use crate::group::signal;
use anyhow::{Context, Result};

/// Interval between looks whether a round has ended.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Red {
        /// The tests that failed, or the reason in brackets.
        failed: Vec<String>,
    },
}

/// Result of a round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// Tests that were not run.
    pub(super) ignored: u64,
    /// File with the output of a failed round.
    pub(super) output: PathBuf,
}

/// Runs `binary` once; the output stays when it fails.
pub(super) fn run(binary: &Binary, condition: Condition, patience: Duration, output: PathBuf) -> Result<Round> {
    let mut command = Command::new(&binary.program);
    command
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .env("CARGO", env!("CARGO"))
        .env("INSTA_UPDATE", "no")
        .env("RUST_BACKTRACE", "1");
    execute(command, condition, patience, output)
}

fn execute(mut command: Command, condition: Condition, patience: Duration, output: PathBuf) -> Result<Round> {
    let file = File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stderr(file.try_clone()?)
        .stdout(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let ended = watch(&mut child, condition, begun + patience)?;
    let took = begun.elapsed();
    let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
    let outcome = judge(ended, &text);
    if outcome == Outcome::Passed {
        fs::remove_file(&output)?;
    }
    Ok(Round { outcome, took, ignored: ignored(&text), output })
}

/// Waits for the end, and stops and continues the process meanwhile if the condition says so. `None` when it was killed at `end`.
fn watch(child: &mut Child, condition: Condition, end: Instant) -> Result<Option<ExitStatus>> {
    let group = child.id().try_into()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            signal(group, libc::SIGKILL);
            child.wait()?;
            return Ok(None);
        }
        match condition.duty() {
            None => thread::sleep(LOOK),
            Some((runs, stands)) => {
                thread::sleep(runs);
                signal(group, libc::SIGSTOP);
                thread::sleep(stands);
                signal(group, libc::SIGCONT);
            }
        }
    }
}

fn judge(ended: Option<ExitStatus>, text: &str) -> Outcome {
    let reason = match ended {
        Some(status) if status.success() => return Outcome::Passed,
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("(exit code {code})"),
            (None, signal) => format!("(signal {})", signal.unwrap_or_default()),
        },
        None => "(hung)".to_owned(),
    };
    let mut failed = failures(text);
    if ended.is_none() {
        failed.extend(unfinished(text).into_iter().map(|name| format!("{name} (hung)")));
    }
    if failed.is_empty() {
        failed.push(reason);
    }
    Outcome::Red { failed }
}

/// The names under the last `failures:` of the harness.
fn failures(text: &str) -> Vec<String> {
    let Some((_, list)) = text.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

/// Tests that the harness has called slow and not finished.
fn unfinished(text: &str) -> Vec<String> {
    let slow = text.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("test ")?.split_once(" has been running for over")?;
        let finished = text.contains(&format!("test {name} ... "));
        (!finished).then(|| name.to_owned())
    });
    slow.collect()
}

/// The number before `ignored` in the harness's last line.
fn ignored(text: &str) -> u64 {
    let line = text.lines().rfind(|line| line.starts_with("test result:"));
    let count = line.and_then(|line| line.split("; ").find_map(|part| part.strip_suffix(" ignored")));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "running 3 tests\ntest a ... FAILED\ntest b::c ... ok\n\nfailures:\n\n---- a stdout ----\nfailures:\nx\n\n\
        failures:\n    a\n    d::e\n\ntest result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured\n";

    fn shell(name: &str, script: &str, condition: Condition, patience: Duration) -> (Round, bool) {
        let output = std::env::temp_dir().join(format!("tiderace-flaky-{name}-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let round = execute(command, condition, patience, output).unwrap();
        let kept = fs::remove_file(&round.output).is_ok();
        (round, kept)
    }

    const PATIENT: Duration = Duration::from_secs(600);

    fn red(names: &[&str]) -> Outcome {
        Outcome::Red { failed: names.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn names_are_those_of_the_last_list() {
        assert_eq!(failures(TEXT), ["a", "d::e"]);
        assert_eq!(ignored(TEXT), 4);
        assert_eq!((failures("no list"), ignored("")), (Vec::new(), 0));
    }

    #[test]
    fn a_test_that_was_called_slow_and_has_not_ended_hangs() {
        let text = "test a has been running for over 60 seconds\ntest b has been running for over 60 seconds\n\
            test a ... ok\n";
        assert_eq!(unfinished(text), ["b"]);
        assert_eq!(judge(None, text), red(&["b (hung)"]));
    }

    #[test]
    fn only_what_fails_leaves_its_output() {
        let (round, kept) =
            shell("passes", "echo 'test result: ok. 1 passed; 0 failed; 2 ignored; 0 x'", Condition::Plain, PATIENT);
        assert_eq!((round.outcome, round.ignored, kept), (Outcome::Passed, 2, false));
        let (round, kept) = shell("fails", "printf '\\nfailures:\\n    x\\n\\n'; exit 101", Condition::Plain, PATIENT);
        assert_eq!((round.outcome, kept), (red(&["x"]), true));
        let (round, kept) = shell("dies", "kill -ABRT $$", Condition::Plain, PATIENT);
        assert_eq!((round.outcome, kept), (red(&["(signal 6)"]), true));
    }

    #[test]
    fn what_hangs_is_ended_with_its_children() {
        let (round, kept) = shell("hangs", "sleep 100000 & wait", Condition::Slow, Duration::from_millis(100));
        assert_eq!((round.outcome, kept), (red(&["(hung)"]), true));
    }

    /// Stopped and continued, a program still ends by itself.
    #[test]
    fn a_slow_round_comes_to_its_end() {
        let (round, _) = shell("slow", "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done", Condition::Slow, PATIENT);
        assert_eq!(round.outcome, Outcome::Passed);
    }
}
