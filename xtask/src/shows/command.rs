//! Starting programs: what they print goes into a file of its own, and a program that hangs is ended.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::group::{GroupedChild, Groups};

/// Starts programs for one run of `shows`.
#[derive(Debug)]
pub(crate) struct Commands {
    target: PathBuf,
    logs: PathBuf,
    groups: Groups,
}

/// End of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Seconds from start to end.
    pub(crate) seconds: f64,
    /// The file with everything it printed on its standard error.
    pub(crate) log: PathBuf,
}

impl Ended {
    pub(crate) fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// The program's own words for what went wrong.
    pub(crate) fn reason(&self) -> String {
        let lines = || self.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let telling = lines().find(|line| line.starts_with("error")).or_else(|| lines().next_back());
        let code = self.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        format!("{} ({code}; {})", telling.unwrap_or("it said nothing"), self.log.display())
    }

    /// An error unless it ended well.
    pub(crate) fn ok(self) -> Result<Self> {
        if self.succeeded() {
            return Ok(self);
        }
        bail!("{}", self.reason())
    }
}

impl Commands {
    /// Keeps what programs print in `target/shows`.
    pub(crate) fn new(root: &Path) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let logs = target.join("shows");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        Ok(Self { target, logs, groups: Groups::default() })
    }

    /// Lets the programs that are started end when a signal asks this one to end. Called before other threads are started.
    pub(crate) fn end_with_this_program(&self) -> Result<()> {
        self.groups.end_with_this_program().context("cannot wait for signals")
    }

    /// Target directory of cargo.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A fresh directory for what a case writes.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.logs.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot empty {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Runs a program to its end, for `limit` at most. `name` names the files with what it prints.
    pub(crate) fn run(&self, name: &str, command: &mut Command, limit: Duration) -> Result<Ended> {
        let started = Instant::now();
        let mut running = self.start(name, command)?;
        loop {
            if running.process.child.try_wait()?.is_some() {
                return running.end(started);
            }
            if started.elapsed() > limit {
                let log = running.stderr.clone();
                drop(running);
                bail!("`{name}` was ended after {} s; {}", limit.as_secs(), log.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a program that runs beside the measurement.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> Result<Running> {
        let (stdout, stderr) = (self.logs.join(format!("{name}.out")), self.logs.join(format!("{name}.log")));
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot create {}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&stdout)?).stderr(create(&stderr)?);
        let program = command.get_program().to_string_lossy().into_owned();
        let process = self.groups.start(command).with_context(|| format!("cannot start {program}"))?;
        Ok(Running { process, stdout, stderr })
    }
}

/// A program at work. Ended when dropped, with what it has started.
#[derive(Debug)]
pub(crate) struct Running {
    process: GroupedChild,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    /// Output so far, standard output and error.
    pub(crate) fn printed(&self) -> String {
        [&self.stdout, &self.stderr].map(|path| read(path)).concat()
    }

    /// Process.
    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns whether it is still there.
    pub(crate) fn alive(&mut self) -> bool {
        matches!(self.process.child.try_wait(), Ok(None))
    }

    fn end(mut self, started: Instant) -> Result<Ended> {
        let status = self.process.child.wait()?;
        let seconds = started.elapsed().as_secs_f64();
        let (stdout, stderr) = (read(&self.stdout), read(&self.stderr));
        Ok(Ended { code: status.code(), stdout, stderr, seconds, log: self.stderr })
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// `cargo` with these arguments, in this directory.
pub(crate) fn cargo<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(directory).args(arguments);
    command
}

/// The one-minute load, so that a timing can be judged.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.as_deref().and_then(|text| text.split_whitespace().next()).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, load {load}")
}

/// Tests that passed and failed, from what `cargo test` printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) ignored: u32,
    pub(crate) binaries: u32,
}

impl Tests {
    /// Sums the `test result:` lines.
    pub(crate) fn read(stdout: &str) -> Self {
        let mut sum = Self::default();
        for line in stdout.lines().filter_map(|line| line.trim().strip_prefix("test result:")) {
            let count = |what: &str| -> u32 {
                let field = line.split([';', '.']).find(|field| field.trim().ends_with(what));
                field.and_then(|field| field.split_whitespace().next()?.parse().ok()).unwrap_or(0)
            };
            sum.passed += count("passed");
            sum.failed += count("failed");
            sum.ignored += count("ignored");
            sum.binaries += 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_test() {
        let text = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s\n\
                    test result: FAILED. 10 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        assert_eq!(Tests::read(text), Tests { passed: 12, failed: 3, ignored: 1, binaries: 2 });
        assert_eq!(Tests::read("error: could not compile"), Tests::default());
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let commands =
            Commands::new(&std::env::temp_dir().join(format!("tiderace-xtask-{}", std::process::id()))).unwrap();
        let error = commands.run("hangs", Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("was ended after 0 s"), "{error}");
        let ended = commands.run("fails", Command::new("ls").arg("/nonexistent"), Duration::from_secs(20)).unwrap();
        assert!(!ended.succeeded() && ended.ok().unwrap_err().to_string().contains("/nonexistent"));
    }
}
