//! Runs the program as a user does.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::Value;

/// Starts it with its standard output to be read.
pub(crate) fn spawn(arguments: &[&str]) -> Child {
    tiderace(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Sends the signal of Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

fn tiderace(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    // A log level in the developer's environment would show up in what is compared.
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Time limit of [`run`]: many times what the longest test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs it to its end. One that does not come to it is killed, and what it has printed is shown.
pub(crate) fn run(arguments: &[&str]) -> Output {
    run_within(arguments, LIMIT)
}

/// Runs it to its end, as [`run`] does, with another limit.
pub(crate) fn run_within(arguments: &[&str], limit: Duration) -> Output {
    let mut child = tiderace(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let begun = Instant::now();
    let status = loop {
        // Waiting in steps that grow: most programs end at once.
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            let text = |collected: &Collected| String::from_utf8_lossy(&collected.bytes.lock().unwrap()).into_owned();
            panic!(
                "{arguments:?} did not end within {limit:?}\n--- its output\n{}\n--- its errors\n{}",
                text(&stdout),
                text(&stderr)
            );
        }
        std::thread::sleep((begun.elapsed() / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
    };
    Output { status, stdout: stdout.whole(), stderr: stderr.whole() }
}

/// Output of a program that is read while it runs.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    /// All of it, once the pipe is closed.
    fn whole(self) -> Vec<u8> {
        self.reader.join().unwrap();
        std::mem::take(&mut self.bytes.lock().unwrap())
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> Collected {
    let bytes = Arc::<Mutex<Vec<u8>>>::default();
    let all = bytes.clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(read) = pipe.read(&mut buffer) {
            if read == 0 {
                return;
            }
            all.lock().unwrap().extend_from_slice(&buffer[..read]);
        }
    });
    Collected { bytes, reader }
}

/// Runs it to its end, which has to be a good one, and reads the one JSON value that it printed.
pub(crate) fn run_json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs it to its end, which has to be a refusal: exit code 2, nothing on the standard output, one message and one
/// hint. Returns both.
pub(crate) fn refused(arguments: &[&str]) -> (String, String) {
    let output = run(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed {}", String::from_utf8_lossy(&output.stdout));
    let lines: Vec<&str> =
        stderr.lines().filter(|line| !line.starts_with("WARNING: ") && !line.starts_with("note: ")).collect();
    let [error, hint] = lines[..] else { panic!("{arguments:?} printed {stderr}") };
    let error = error.strip_prefix("error: ").unwrap_or_else(|| panic!("{error}"));
    let hint = hint.strip_prefix("hint: ").unwrap_or_else(|| panic!("{hint}"));
    (error.to_owned(), hint.to_owned())
}

/// A server or a relay at work; killed when dropped.
pub(crate) struct Service {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Line that it printed when it was ready.
    pub(crate) ready: Value,
}

impl Service {
    /// Starts it and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = tiderace(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert_eq!(ready["event"], "listening");
        Self { child, stdout, ready }
    }

    /// `perf server` on any port.
    pub(crate) fn perf() -> Self {
        Self::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json"])
    }

    pub(crate) fn address(&self) -> &str {
        self.ready["address"].as_str().unwrap()
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.ready["certificate_sha256"].as_str().unwrap()
    }

    /// Waits for the next `count` lines that it prints.
    pub(crate) fn lines(&mut self, count: usize) -> Vec<Value> {
        let next = |_| {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            serde_json::from_str(&line).unwrap()
        };
        (0..count).map(next).collect()
    }

    /// Ends it as Ctrl-C does. Returns its exit code and the lines that it has printed since it was ready.
    pub(crate) fn interrupt(mut self) -> (Option<i32>, Vec<Value>) {
        interrupt(&self.child);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let lines = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (self.child.wait().unwrap().code(), lines)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
