//! The programs that have to catch faults: the self-test and test binaries, built once from the copy with all faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::{
    list::{CaughtBy, Mutant},
    tree::SWITCH,
};
use crate::flaky::binaries::{Binary, list};

/// Programs built from the copy.
pub(crate) struct Programs {
    tree: PathBuf,
    selftest: PathBuf,
    /// Test binaries by name, PACKAGE::TARGET.
    tests: BTreeMap<String, Binary>,
}

/// End of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// Nothing wrong was found.
    Passed,
    /// Finding, in a few words.
    Failed(String),
    /// Ran for too long and was ended.
    Late,
}

impl Ended {
    /// The check that caught the fault, if any did.
    pub(crate) fn caught(&self) -> Option<String> {
        match self {
            Self::Passed => None,
            Self::Failed(what) => Some(what.clone()),
            Self::Late => Some("did not end".to_owned()),
        }
    }
}

impl Programs {
    /// Builds what the faults need.
    pub(crate) fn build(tree: &Path, target: &Path, mutants: &[Mutant]) -> Result<Self> {
        let cargo = |arguments: &[&str]| -> Result<String> {
            let output = Command::new(env!("CARGO"))
                .args(arguments)
                .args(["--profile", "mutants", "--locked", "--message-format=json-render-diagnostics"])
                .current_dir(tree)
                .env("CARGO_TARGET_DIR", target)
                .env_remove(SWITCH)
                .stderr(Stdio::inherit())
                .output()
                .context("cannot start cargo")?;
            ensure!(output.status.success(), "the copy with the faults does not build");
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        cargo(&["build", "-p", "tiderace-lab", "--example", "selftest"])?;
        let selftest = target.join("mutants/examples/selftest");
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for mutant in mutants {
            if let CaughtBy::Test { binary, .. } = &mutant.caught_by {
                let (package, target) = binary.split_once("::").context("PACKAGE::TARGET")?;
                wanted.entry(package).or_default().insert(target);
            }
        }
        let mut tests = BTreeMap::new();
        for (package, targets) in wanted {
            let mut arguments = vec!["test", "--no-run", "-p", package];
            for target in targets {
                match target {
                    "lib" => arguments.push("--lib"),
                    other => arguments.extend(["--test", other]),
                }
            }
            tests.extend(list(&cargo(&arguments)?)?.into_iter().map(|binary| (binary.name.clone(), binary)));
        }
        Ok(Self { tree: tree.to_owned(), selftest, tests })
    }

    /// The self-test with a fault, until the first check that fails.
    pub(crate) fn selftest(&self, fault: usize, limit: Duration) -> Result<Ended> {
        let mut command = Command::new(&self.selftest);
        command.arg("--first").current_dir(&self.tree);
        checks(command, fault, limit)
    }

    /// Runs the check that has to catch a fault; `None` when that is the self-test.
    pub(crate) fn stated(&self, by: &CaughtBy, fault: usize, limit: Duration) -> Result<Option<Ended>> {
        match by {
            CaughtBy::Selftest => Ok(None),
            CaughtBy::RunCheck(scenario) => {
                let mut command = Command::new(&self.selftest);
                command.args(["--scenario", scenario]).current_dir(&self.tree);
                checks(command, fault, limit).map(Some)
            }
            CaughtBy::Test { binary, name } => {
                let program = self.tests.get(binary).with_context(|| format!("no test binary {binary}"))?;
                let mut command = Command::new(&program.program);
                command.arg(name).current_dir(&program.folder);
                let (code, output) = match run(command, fault, limit)? {
                    Some(ended) => ended,
                    None => return Ok(Some(Ended::Late)),
                };
                ensure!(!output.contains("running 0 tests"), "{binary} has no test {name}");
                let failed = output.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
                Ok(Some(match (code, failed) {
                    (Some(0), _) => Ended::Passed,
                    (_, Some(test)) => Ended::Failed(format!("{binary} {test}")),
                    (code, None) => Ended::Failed(format!("{binary} ended with {code:?}")),
                }))
            }
        }
    }
}

/// Runs a program that prints checks as lines of JSON.
fn checks(command: Command, fault: usize, limit: Duration) -> Result<Ended> {
    #[derive(Deserialize)]
    struct Check {
        name: String,
        passed: bool,
        detail: String,
    }
    let Some((code, output)) = run(command, fault, limit)? else { return Ok(Ended::Late) };
    let checks: Vec<Check> = output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match (code, checks.iter().find(|check| !check.passed)) {
        (Some(0), None) if !checks.is_empty() => Ok(Ended::Passed),
        (_, Some(check)) => {
            let first = check.detail.split("; ").next().unwrap_or_default();
            Ok(Ended::Failed(format!("{}: {first}", check.name)))
        }
        // A panic, or checks that are not there.
        (Some(101) | None, None) => Ok(Ended::Failed("panic".to_owned())),
        (code, None) => bail!("the program ended with {code:?} and without a failed check"),
    }
}

/// Runs a program with a fault: its exit code and output; `None` when it had to be ended.
fn run(mut command: Command, fault: usize, limit: Duration) -> Result<Option<(Option<i32>, String)>> {
    command.env(SWITCH, fault.to_string()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let mut stdout = child.stdout.take().context("standard output is piped")?;
    let reader = std::thread::spawn(move || {
        let mut output = String::new();
        // What is no text is no check either.
        let _ = stdout.read_to_string(&mut output);
        output
    });
    let status = wait(&mut child, limit)?;
    let output = reader.join().unwrap_or_default();
    Ok(status.map(|code| (code, output)))
}

/// Waits for the end of a program, or ends it.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<Option<i32>>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code()));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
