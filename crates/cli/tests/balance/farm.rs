//! Machines and load balancers, all on this one.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Lines},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
    time::Instant,
};

use serde_json::Value;

use crate::{
    clients::Site,
    fleet::{LIMIT, large, signal},
    gateway::{Gateway, edge},
    number,
    scratch::{Program, Scratch},
};

fn balance(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.arg("balance").args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Makes a key of connection IDs.
pub(crate) fn key(file: &Path) {
    assert!(balance(&["key", file.to_str().unwrap()]).stdout(Stdio::null()).status().unwrap().success());
}

/// `tiderace balance` at work.
pub(crate) struct Balancer {
    program: Program,
    pub(crate) address: SocketAddr,
    lines: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<std::process::ChildStderr>>,
}

impl Balancer {
    pub(crate) fn start(config: &Path) -> Self {
        let mut command = balance(&[config.to_str().unwrap()]);
        let mut program = Program(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
        let errors = BufReader::new(program.0.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.strip_prefix("serving ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { program, address, lines, errors }
    }

    pub(crate) fn id(&self) -> u32 {
        self.program.0.id()
    }

    /// Takes the configuration again; returns what it says of it.
    pub(crate) fn reload(&mut self) -> String {
        signal(self.id(), "HUP");
        loop {
            let line = self.errors.next().unwrap().unwrap();
            // States of machines are told there, too.
            if line.contains("configuration") {
                return line;
            }
        }
    }

    pub(crate) fn status(&mut self) -> Value {
        signal(self.id(), "USR1");
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Waits until the status fits.
    pub(crate) fn wait_until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if fits(&status) {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "{status}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Waits until the program has ended; returns its last status.
    pub(crate) fn ended(mut self) -> Value {
        let last = self.lines.by_ref().map(Result::unwrap).last().unwrap();
        assert!(self.program.0.wait().unwrap().success());
        serde_json::from_str(&last).unwrap()
    }

    /// Waits until a machine has this state.
    pub(crate) fn wait_for(&mut self, server_id: &str, state: &str) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            let machines = status["machines"].as_array().unwrap();
            let machine = machines.iter().find(|machine| machine["server_id"] == server_id).unwrap();
            if machine["state"] == state {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{server_id} is not {state}: {status}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// A gateway of the farm.
pub(crate) struct Machine {
    pub(crate) gateway: Gateway,
    pub(crate) file: PathBuf,
}

/// Machines with a key and a ring in common.
pub(crate) struct Farm {
    pub(crate) folder: Scratch,
    certificate: Vec<u8>,
    pub(crate) machines: Vec<Machine>,
    /// Numbers of processes beside the first ones of the machines.
    pub(crate) pids: Vec<u32>,
    ip: &'static str,
    early_data: bool,
}

impl Drop for Farm {
    fn drop(&mut self) {
        // What an upgrade has started is no child of this program.
        self.pids.iter().for_each(|pid| drop(Command::new("kill").args(["-KILL", &pid.to_string()]).status()));
    }
}

/// Server ID of a machine.
pub(crate) fn server_id(machine: usize) -> String {
    format!("0a{machine:02x}")
}

impl Farm {
    /// Starts so many machines.
    pub(crate) fn new(name: &str, machines: usize) -> Self {
        Self::at("127.0.0.1", name, machines)
    }

    /// The same at another address of this machine.
    pub(crate) fn at(ip: &'static str, name: &str, machines: usize) -> Self {
        Self::start(ip, name, machines, false)
    }

    /// The same with early data. Copies do no harm: the machines have no strike register in common.
    pub(crate) fn with_early_data(name: &str, machines: usize) -> Self {
        Self::start("127.0.0.1", name, machines, true)
    }

    fn start(ip: &'static str, name: &str, machines: usize, early_data: bool) -> Self {
        let folder = Scratch::new(&format!("balance-{name}"));
        std::fs::create_dir_all(folder.0.join("www")).unwrap();
        std::fs::write(folder.0.join("www/small"), "small").unwrap();
        std::fs::write(folder.0.join("www/large"), large()).unwrap();
        let certificate = folder.certificate("localhost").cert.der().to_vec();
        let path = |name: &str| folder.0.join(name).display().to_string();
        key(&folder.0.join("lb.key"));
        let keys =
            Command::new(env!("CARGO_BIN_EXE_tiderace")).args(["edge", "keys", "--file", &path("ring")]).output();
        assert!(keys.unwrap().status.success());
        let mut this = Self { folder, certificate, machines: Vec::new(), pids: Vec::new(), ip, early_data };
        (0..machines).for_each(|_| this.add_machine());
        this
    }

    /// Starts the next machine, which names itself in its answers.
    pub(crate) fn add_machine(&mut self) {
        let number = self.machines.len() + 1;
        let file = self.folder.0.join(format!("edge-{number}.toml"));
        let id = server_id(number);
        let (copies, transport, route) = match self.early_data {
            true => ("copies-do-no-harm = true\n", "[transport]\nearly-data = true\n", "early-data = true\n"),
            false => ("", "", ""),
        };
        let text = format!(
            "listen = \"{}:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\ndrain = \"60 s\"\n\
             [keys]\nfile = \"ring\"\n{copies}{transport}[admin]\nsocket = \"edge-{number}.sock\"\n[limits]\nconnections-per-address = 5000\n\
             [log]\naccess = \"access-{number}.log\"\n\
             [load-balancer]\nserver-id = \"{id}\"\nkey = \"lb.key\"\nnetworks = \"127.0.0.0/8\"\n\
             [[route]]\nfiles = \"www\"\n{route}[route.response-headers]\nset = {{ x-machine = \"{number}\" }}\n",
            self.ip
        );
        std::fs::write(&file, text).unwrap();
        self.machines.push(Machine { gateway: Gateway::start(&file), file });
    }

    /// Writes the configuration of load balancers: these machines, of which some drain.
    pub(crate) fn configure(&self, machines: &[usize], drained: &[usize]) -> PathBuf {
        self.configure_with("", machines, drained)
    }

    /// The same with lines of `extra` in the first section.
    pub(crate) fn configure_with(&self, extra: &str, machines: &[usize], drained: &[usize]) -> PathBuf {
        // Patient enough for a busy machine: one that drains gets connections when no other answers.
        let failures = number("BALANCE_FAILURES", 20);
        let mut text = format!(
            "listen = \"127.0.0.1:0\"\nworkers = 2\n{extra}[health]\ninterval = \"100 ms\"\nfailures = {failures}\n\
             [[connection-ids]]\nkey = \"lb.key\"\n"
        );
        for number in machines {
            let (id, address) = (server_id(*number), self.machines[number - 1].gateway.address);
            let drain = drained.contains(number);
            let _ = write!(text, "[[machine]]\nserver-id = \"{id}\"\naddress = \"{address}\"\ndrain = {drain}\n");
        }
        let file = self.folder.0.join("balance.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Tells a machine of others, by number of the server ID and number of the machine at whose address it is said to be. Only these
    /// are believed to forward.
    pub(crate) fn tell(&self, machine: usize, others: &[(usize, usize)]) {
        let file = &self.machines[machine - 1].file;
        let text = std::fs::read_to_string(file).unwrap().replace("networks = \"127.0.0.0/8\"\n", "");
        let (before, rest) = text.split_once("[[route]]").unwrap();
        let before = before.split("[[load-balancer.machine]]").next().unwrap();
        let mut table = String::new();
        for (id, at) in others {
            let (id, address) = (server_id(*id), self.machines[at - 1].gateway.address);
            let _ = write!(table, "[[load-balancer.machine]]\nserver-id = \"{id}\"\naddress = \"{address}\"\n");
        }
        std::fs::write(file, format!("{before}{table}[[route]]{rest}")).unwrap();
        let output = edge("reload", file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// `tiderace edge status` of a machine.
    pub(crate) fn status(&self, machine: usize) -> Value {
        let output = edge("status", &self.machines[machine - 1].file).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The site, which shows this certificate at every address.
    pub(crate) fn site_at(&self, address: SocketAddr) -> Site {
        Site::new(address, &self.certificate)
    }

    pub(crate) fn balancer(&self) -> Balancer {
        Balancer::start(&self.folder.0.join("balance.toml"))
    }

    /// The site by a load balancer.
    pub(crate) fn site(&self, balancer: &Balancer) -> Site {
        Site::new(balancer.address, &self.certificate)
    }
}
