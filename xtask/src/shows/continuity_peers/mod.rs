//! Downloads and requests that are lost when a gateway is reloaded, or its program replaced: ours, nginx, HAProxy and Caddy, under the same load.
//!
//! The settings of each are a file beside this one. Each serves the same two files; HAProxy passes them on from nginx, which it has as its
//! back end and which is left alone meanwhile. What is not installed has a row without a value, with a hint.

mod load;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use self::load::{Clients, LARGE, Load, Outcome, version};
use super::{
    Context,
    command::{cargo, load},
    edge_servers::{self as servers, Gentle},
    row::{Row, Target},
};

/// Bytes of a small answer.
const SMALL: usize = 1_000;
/// Time that the build may take.
const LIMIT: Duration = Duration::from_secs(3_600);
/// Pause before and after all operations, and while two masters of nginx settle.
const SETTLE: Duration = Duration::from_millis(500);
/// Pause between two reloads. Requests are made all the time, so that each reload meets some of them.
const BETWEEN_RELOADS: Duration = Duration::from_millis(100);
/// Pause between two upgrades, in which the processes settle.
const BETWEEN_UPGRADES: Duration = Duration::from_millis(500);

/// Gateway to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Own,
    Nginx,
    HaProxy,
    Caddy,
}

/// Operation under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Reload,
    /// The program itself is replaced.
    Upgrade,
}

/// Programs, ports and folder of all peers.
struct Site {
    folder: PathBuf,
    own: PathBuf,
    caddy: Option<PathBuf>,
    plain: u16,
}

/// Server at work. nginx replaces its program only as a daemon, which the process that was started here is not.
struct Server {
    program: Gentle,
    /// File with the daemon's process ID.
    file: Option<PathBuf>,
}

impl Server {
    fn pid(&self) -> u32 {
        self.file.as_ref().and_then(|file| read_pid(file)).unwrap_or_else(|| self.program.0.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = self.file.as_ref().and_then(|file| read_pid(file)) {
            // It may have ended.
            let _ = signal(pid, "TERM");
            let begun = Instant::now();
            while Path::new(&format!("/proc/{pid}")).exists() && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn read_pid(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// All rows.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let (reloads, upgrades) = if context.long { (1_000, 100) } else { (30, 3) };
    let mut build =
        cargo(&context.root, ["build", "--locked", "--profile", "dist", "-p", "tiderace-cli", "--bin", "tiderace"]);
    context.commands.run("continuity-peers-build", &mut build, LIMIT)?.ok()?;
    let folder = std::path::absolute(context.commands.scratch("continuity-peers")?)?;
    servers::site(&folder, &[("small", SMALL), ("large", LARGE)])?;
    let both = ["cert.pem", "key.pem"].map(|name| std::fs::read(folder.join(name)));
    std::fs::write(folder.join("both.pem"), both.into_iter().collect::<Result<Vec<_>, _>>()?.concat())?;
    let own = context.commands.target().join("dist/tiderace");
    let site = Site { folder, own, caddy: servers::build_caddy(context).ok(), plain: servers::port()? };
    let mut rows = Vec::new();
    for (peer, protocol, operation) in [
        (Peer::Own, "--http3", Operation::Reload),
        (Peer::Own, "--http2", Operation::Reload),
        (Peer::Own, "--http3", Operation::Upgrade),
        (Peer::Own, "--http2", Operation::Upgrade),
        (Peer::Nginx, "--http2", Operation::Reload),
        (Peer::Nginx, "--http2", Operation::Upgrade),
        (Peer::HaProxy, "--http2", Operation::Reload),
        (Peer::Caddy, "--http3", Operation::Reload),
        (Peer::Caddy, "--http2", Operation::Reload),
    ] {
        let times = match (peer, operation) {
            (_, Operation::Reload) => reloads,
            // A second one is ignored until the connections of the first process have ended.
            (Peer::Nginx, Operation::Upgrade) => 1,
            (_, Operation::Upgrade) => upgrades,
        };
        eprintln!("  {}, {}: {times} {} …", peer.name(), protocol.trim_start_matches("--"), operation.name());
        rows.extend(site.row(context, peer, protocol, operation, times)?);
    }
    Ok(rows)
}

impl Operation {
    /// Name of several.
    fn name(self) -> &'static str {
        match self {
            Self::Reload => "reloads",
            Self::Upgrade => "replacements of the program",
        }
    }
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "ours",
            Self::Nginx => "nginx",
            Self::HaProxy => "HAProxy",
            Self::Caddy => "Caddy",
        }
    }

    /// Advice where it is not installed.
    fn hint(self) -> &'static str {
        match self {
            Self::Own => "cargo build",
            Self::Nginx => "apt-get install nginx",
            Self::HaProxy => "apt-get install haproxy nginx",
            Self::Caddy => "install Go, which builds Caddy",
        }
    }

    fn settings(self) -> (&'static str, &'static str) {
        match self {
            Self::Own => ("edge.toml", include_str!("edge.toml")),
            Self::Nginx => ("nginx.conf", include_str!("nginx.conf")),
            Self::HaProxy => ("haproxy.cfg", include_str!("haproxy.cfg")),
            Self::Caddy => ("Caddyfile", include_str!("Caddyfile")),
        }
    }
}

impl Site {
    /// Version of a peer's program; `None` where there is none.
    fn version(&self, peer: Peer) -> Option<String> {
        match peer {
            Peer::Own => version(&self.own, "--version"),
            Peer::Nginx => version(Path::new("nginx"), "-v"),
            // Its back end is nginx.
            Peer::HaProxy => version(Path::new("nginx"), "-v").and_then(|_| version(Path::new("haproxy"), "-v")),
            // What `go install` builds does not know its version.
            Peer::Caddy => {
                self.caddy.as_ref().and(servers::CADDY.split_once("@v")).map(|(_, version)| format!("Caddy {version}"))
            }
        }
    }

    fn row(
        &self,
        context: &Context,
        peer: Peer,
        protocol: &'static str,
        operation: Operation,
        times: u32,
    ) -> Result<[Row; 2]> {
        let what = operation.name();
        let http = protocol.trim_start_matches("--http");
        let (name, target) = (peer.name(), if peer == Peer::Own { Target::Exactly(0.0) } else { Target::Printed });
        let of_downloads = format!("downloads lost, {name}, HTTP/{http}, {times} {what}");
        let of_requests = format!("requests lost, {name}, HTTP/{http}, {times} {what}");
        let Some(version) = self.version(peer) else {
            let why = anyhow::anyhow!("not installed; hint: {}", peer.hint());
            return Ok([of_downloads, of_requests].map(|name| Row::absent(&name, &why)));
        };
        let outcome = self.outcome(context, peer, protocol, operation, times);
        let outcome = outcome.with_context(|| format!("{name}, HTTP/{http}, {what}"))?;
        let took = outcome.took.as_secs_f64();
        let row = |name: String, lost: u32, all: u32| {
            Row::new(name, f64::from(lost), "", target)
                .detail(format!("of {all}; within {took:.0} s; {version}; {}", load()))
        };
        Ok([
            row(of_downloads, outcome.downloads_lost, outcome.downloads),
            row(of_requests, outcome.requests_lost, outcome.requests),
        ])
    }

    fn outcome(
        &self,
        context: &Context,
        peer: Peer,
        protocol: &'static str,
        operation: Operation,
        times: u32,
    ) -> Result<Outcome> {
        let (port, admin) = (servers::port()?, servers::port()?);
        let back_end = match peer {
            Peer::HaProxy => {
                // Its TLS is not used.
                let unused = servers::port()?;
                let back_end = self.start(context, Peer::Nginx, unused, admin)?;
                servers::wait(self.plain)?;
                Some(back_end)
            }
            _ => None,
        };
        let running = self.start(context, peer, port, admin)?;
        servers::wait(port).with_context(|| running.program.0.printed())?;
        let clients = Clients { program: self.own.clone(), protocol, roots: self.folder.join("cert.pem"), port };
        let load = Load::start(&clients);
        let mut newest = running.pid();
        std::thread::sleep(SETTLE);
        let between = if operation == Operation::Reload { BETWEEN_RELOADS } else { BETWEEN_UPGRADES };
        for _ in 0..times {
            std::thread::sleep(between);
            newest = self.operate(peer, operation, newest)?;
        }
        std::thread::sleep(SETTLE);
        let outcome = load.finish()?;
        ensure!(Path::new(&format!("/proc/{newest}")).exists(), "it has ended: {}", running.program.0.printed());
        if peer == Peer::Own && operation == Operation::Upgrade {
            // The last one is not the process that was started here.
            signal(newest, "TERM")?;
        }
        drop((running, back_end));
        Ok(outcome)
    }

    fn start(&self, context: &Context, peer: Peer, port: u16, admin: u16) -> Result<Server> {
        let (file, text) = peer.settings();
        let folder = self.folder.display().to_string();
        let text = text.replace("{folder}", &folder).replace("{port}", &port.to_string());
        let text = text.replace("{plain}", &self.plain.to_string()).replace("{admin}", &admin.to_string());
        let file = self.folder.join(file);
        std::fs::write(&file, text)?;
        let mut command = match peer {
            Peer::Own => Command::new(&self.own),
            // It starts itself again by the path that it was started with.
            Peer::Nginx => Command::new(absolute("nginx")?),
            Peer::HaProxy => Command::new("haproxy"),
            Peer::Caddy => Command::new(self.caddy.as_ref().context("Caddy was not built")?),
        };
        match peer {
            Peer::Own => command.args(["edge", "run", "--config"]),
            Peer::Nginx => command.arg("-c"),
            Peer::HaProxy => command.args(["-W", "-f"]),
            Peer::Caddy => command.env("HOME", &self.folder).args(["run", "--adapter", "caddyfile", "--config"]),
        };
        let program = context.commands.start(&format!("continuity-peers-{}", peer.name()), command.arg(file))?;
        let file = (peer == Peer::Nginx).then(|| self.folder.join("nginx.pid"));
        Ok(Server { program: Gentle(program), file })
    }

    /// Reloads a peer, or replaces its program. Returns the process that serves from then on.
    fn operate(&self, peer: Peer, operation: Operation, pid: u32) -> Result<u32> {
        let file = self.folder.join(peer.settings().0);
        match (peer, operation) {
            (Peer::Own, Operation::Reload) => {
                run(Command::new(&self.own).args(["edge", "reload", "--config"]).arg(file))?;
            }
            (Peer::Own, Operation::Upgrade) => {
                let text = run(Command::new(&self.own).args(["edge", "upgrade", "--config"]).arg(file))?;
                let pid = text.split_once("(PID ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
                return pid.context("no process ID");
            }
            (Peer::Nginx, Operation::Reload) => signal_for_worker(pid, "HUP")?,
            (Peer::Nginx, Operation::Upgrade) => return self.replace_nginx(pid),
            (Peer::HaProxy, Operation::Reload) => signal_for_worker(pid, "USR2")?,
            (Peer::Caddy, Operation::Reload) => {
                let caddy = self.caddy.as_ref().context("Caddy was not built")?;
                let mut command = Command::new(caddy);
                // It would leave an unchanged configuration as it is.
                command.args(["reload", "--force", "--adapter", "caddyfile", "--config"]).arg(file);
                run(command.env("HOME", &self.folder))?;
            }
            (Peer::HaProxy | Peer::Caddy, Operation::Upgrade) => bail!("it has no such operation"),
        }
        Ok(pid)
    }

    /// Replaces nginx as its documentation says: USR2 to the old master, and QUIT when the new one has written its file.
    fn replace_nginx(&self, old: u32) -> Result<u32> {
        signal(old, "USR2")?;
        let begun = Instant::now();
        loop {
            if let Some(new) = read_pid(&self.folder.join("nginx.pid"))
                && new != old
            {
                std::thread::sleep(SETTLE);
                signal(old, "QUIT")?;
                return Ok(new);
            }
            ensure!(begun.elapsed() < Duration::from_secs(30), "no new master");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Path of a program that the system finds.
fn absolute(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.exists());
    found.with_context(|| format!("there is no {program}"))
}

/// Signals a master, and waits until it has started another worker: signals that come sooner than that count as one.
fn signal_for_worker(pid: u32, name: &str) -> Result<()> {
    let workers = || -> Result<BTreeSet<u32>> {
        let file = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    };
    let (before, begun) = (workers()?, Instant::now());
    signal(pid, name)?;
    while workers()?.is_subset(&before) {
        ensure!(begun.elapsed() < Duration::from_secs(30), "no new worker");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn signal(pid: u32, name: &str) -> Result<()> {
    run(Command::new("kill").args([&format!("-{name}"), &pid.to_string()])).map(drop)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
