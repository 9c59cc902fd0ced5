//! A gateway whose program is replaced repeatedly, and all of its processes.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    gateway::{Gateway, edge},
    scratch::Scratch,
};

/// Time limit for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Content of the large file.
pub(crate) fn large() -> Vec<u8> {
    (0..LARGE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

pub(crate) const LARGE: usize = 6_000_000;

/// User and group `nobody`.
const NOBODY: u32 = 65_534;

/// The processes of a gateway; all are gone when this is dropped.
pub(crate) struct Fleet {
    pub(crate) folder: Scratch,
    pub(crate) file: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) certificate: Vec<u8>,
    pids: BTreeSet<u32>,
    first: Gateway,
    /// Workers in the configuration.
    workers: u8,
}

impl Fleet {
    /// Starts the first process, with `extra` in the configuration.
    pub(crate) fn start(name: &str, extra: &str) -> Self {
        Self::with(name, extra, "")
    }

    /// The same, with `sections` behind it.
    pub(crate) fn with(name: &str, extra: &str, sections: &str) -> Self {
        Self::build(name, extra, sections, &[])
    }

    /// The same, in an environment with these variables.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn start_in(name: &str, extra: &str, environment: &[(&str, &str)]) -> Self {
        Self::build(name, extra, "", environment)
    }

    /// The same as a user without privileges; as the own one, if that is not root.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn unprivileged(name: &str, extra: &str, sections: &str) -> Self {
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        Self::run(name, [extra, sections], |file| {
            let gateway = if own == 0 {
                give(file.parent().unwrap(), NOBODY);
                Gateway::start_as(NOBODY, file)
            } else {
                Gateway::start(file)
            };
            assert_eq!(privileges(gateway.id()), 0, "the gateway has privileges");
            gateway
        })
    }

    fn build(name: &str, extra: &str, sections: &str, environment: &[(&str, &str)]) -> Self {
        Self::run(name, [extra, sections], |file| Gateway::start_in(environment, file))
    }

    /// The same by `start`, which gets the file of the configuration.
    pub(crate) fn run(name: &str, [extra, sections]: [&str; 2], start: impl FnOnce(&Path) -> Gateway) -> Self {
        let folder = Scratch::new(&format!("upgrade-{name}"));
        std::fs::create_dir_all(folder.0.join("www")).unwrap();
        std::fs::write(folder.0.join("www/small"), "small").unwrap();
        std::fs::write(folder.0.join("www/large"), large()).unwrap();
        let certificate = folder.certificate("localhost").cert.der().to_vec();
        let file = folder.0.join("edge.toml");
        let workers = 2;
        configure(&file, extra, sections, 0, workers);
        let first = start(&file);
        let pids = BTreeSet::from([first.id()]);
        Self { address: first.address, folder, file, certificate, pids, first, workers }
    }

    /// `tiderace edge upgrade`.
    pub(crate) fn try_upgrade(&mut self, arguments: &[&str]) -> Output {
        let output = edge("upgrade", &self.file).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pid: Option<u32> = text.split_once("(PID ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
        self.pids.extend(pid);
        output
    }

    /// An upgrade that has to come about; the number and the process ID of the new process.
    pub(crate) fn upgrade(&mut self) -> (u64, u32) {
        let output = self.try_upgrade(&[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let last = self.status()["processes"].as_array().unwrap().last().unwrap().clone();
        (last["process"].as_u64().unwrap(), u32::try_from(last["pid"].as_u64().unwrap()).unwrap())
    }

    /// An upgrade that has to fail with exit code 2; what it said.
    pub(crate) fn refused(&mut self, arguments: &[&str]) -> String {
        let output = self.try_upgrade(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        stderr
    }

    /// Sets the number of workers of processes that start from here on.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn set_workers(&mut self, workers: u8) {
        let text = std::fs::read_to_string(&self.file).unwrap();
        let before = format!("workers = {}\n", self.workers);
        assert!(text.contains(&before), "{text}");
        std::fs::write(&self.file, text.replace(&before, &format!("workers = {workers}\n"))).unwrap();
        self.workers = workers;
    }

    pub(crate) fn reload(&self, number: u64, extra: &str) {
        self.reload_with(number, extra, "");
    }

    /// The same, with `sections` behind it.
    pub(crate) fn reload_with(&self, number: u64, extra: &str, sections: &str) {
        configure(&self.file, extra, sections, number, self.workers);
        let output = edge("reload", &self.file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Status, or what the command says when no process gives it.
    pub(crate) fn try_status(&self) -> Result<Value, String> {
        let output = edge("status", &self.file).arg("--json").output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Notes a process that was started by another one.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn note(&mut self, pid: u32) {
        self.pids.insert(pid);
    }

    /// The process ID of the first process.
    pub(crate) fn first_id(&self) -> u32 {
        self.first.id()
    }

    /// Processes that have not ended.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.pids.iter().copied().filter(|pid| is_running(*pid)).collect()
    }

    /// Waits until this process has ended.
    pub(crate) fn wait_for_end(&self, pid: u32) {
        let begun = Instant::now();
        while is_running(pid) {
            assert!(begun.elapsed() < LIMIT, "{pid} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for pid in self.running() {
            signal(pid, "KILL");
        }
    }
}

/// Gives a folder, and all that is in it, to a user.
pub(crate) fn give(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    for entry in std::fs::read_dir(path).into_iter().flatten() {
        give(&entry.unwrap().path(), user);
    }
}

/// Capabilities that a process has or may get, as bits; the user root counts as all.
pub(crate) fn privileges(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    if field("Uid") == "0" {
        return u64::MAX;
    }
    ["CapInh", "CapPrm", "CapEff", "CapAmb"]
        .iter()
        .map(|name| u64::from_str_radix(&field(name), 16).unwrap())
        .fold(0, |a, b| a | b)
}

/// Sends a signal to a process of a fleet.
pub(crate) fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Returns whether a process is there and no mere entry in the table of processes.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn configure(file: &Path, extra: &str, sections: &str, number: u64, workers: u8) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = {workers}\n{extra}\
         [admin]\nsocket = \"edge.sock\"\n[limits]\nconnections = {}\nconnections-per-address = 5000\n\
         [[route]]\nfiles = \"www\"\n{sections}",
        10_000 + number
    );
    std::fs::write(file, text).unwrap();
}
