//! Gateways that run, and a Redis beside them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::{BufRead, BufReader, Lines},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::scratch::Program;

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// `tiderace edge run` at work.
pub(crate) struct Gateway {
    program: Program,
    pub(crate) address: SocketAddr,
    /// Rest of its output.
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
}

impl Gateway {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(config: &Path) -> Self {
        Self::started(edge("run", config))
    }

    /// The same, in an environment with these variables.
    pub(crate) fn start_in(environment: &[(&str, &str)], config: &Path) -> Self {
        let mut command = edge("run", config);
        command.envs(environment.iter().copied());
        Self::started(command)
    }

    /// The same by a shell that first runs `before`, such as `ulimit -n 64`.
    pub(crate) fn start_after(before: &str, config: &Path) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before}; exec \"$0\" edge run --config \"$1\""), env!("CARGO_BIN_EXE_tiderace")]);
        shell.arg(config).env_remove("RUST_LOG").stdin(Stdio::null());
        Self::started(shell)
    }

    /// The same by a copy of the program beside the configuration, as an ordinary user without any privilege. Needs root.
    pub(crate) fn start_as(user: u32, config: &Path) -> Self {
        let program = config.with_file_name("tiderace");
        std::fs::copy(env!("CARGO_BIN_EXE_tiderace"), &program).unwrap();
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args(["--clear-groups", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", "--"]);
        command.arg(program).args(["edge", "run", "--config"]).arg(config).env_remove("RUST_LOG").stdin(Stdio::null());
        Self::started(command)
    }

    /// The same by this command.
    pub(crate) fn started(mut command: Command) -> Self {
        let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.strip_prefix("serving ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { program, address, lines }
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.program.0.id()
    }
}

/// `tiderace edge COMMAND` with this configuration.
pub(crate) fn edge(command: &str, config: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    // A log level in the developer's environment would show up in what is compared.
    program.args(["edge", command, "--config"]).arg(config).env_remove("RUST_LOG").stdin(Stdio::null());
    program
}

/// A Redis and its port, where it is installed (Debian: `redis-server`).
pub(crate) fn redis() -> Option<(Program, u16)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let redis = Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < LIMIT, "Redis does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some((redis, port))
}
