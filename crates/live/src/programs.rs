//! Contenders that are commands: a server and clients of any kind on an emulated network, seen from outside.
//!
//! Their processes, exit codes and CPU times are the system's, the bytes are those of the links. Everything that a command has started ends
//! with the run: see [`emu::network::Command`].

use std::{ffi::OsString, io, net::Ipv4Addr, thread, time};

use emu::network::{CLIENT, Command, Ended, Namespace, Network, NetworkError, Output, Running, SERVER, Snapshot, now};
use lab::{
    contender::{Flow, Measured, RunSpec},
    record::Commands,
    scenario::{Direction, Programs, Workload, fill},
};
use units::{Duration, Instant};

use crate::{ends::Ends, files::Files, watch::Looks, watch::Watch};

/// Arguments with which this program supervises another one: those of `tiderace lab supervise`.
const SUPERVISE: [&str; 3] = ["lab", "supervise", "--"];
/// Time that a server may take until it listens.
const LISTENS_WITHIN: time::Duration = time::Duration::from_secs(10);
/// Time between two looks at the processes. The time of their end is exact.
const LOOK: Duration = Duration::from_millis(2);
/// Exit code of a shell that has not found the command.
const NOT_FOUND: u8 = 127;

/// Result of a run of commands.
pub(crate) struct Outside {
    pub(crate) ends: Ends,
    pub(crate) commands: Commands,
    /// Reason why the run does not count, if so.
    pub(crate) failure: Option<String>,
}

/// Bytes of the transfer of a client, if the workload has a size.
fn size(spec: &RunSpec<'_>) -> Option<u64> {
    let traffic = &spec.scenario.traffic;
    let size = match traffic.direction {
        Direction::Download => traffic.response_size,
        Direction::Upload => traffic.request_size,
    };
    size.filter(|_| traffic.workload == Workload::Flows).map(units::DataSize::as_bytes)
}

/// Client of one connection.
struct Client {
    start: Instant,
    running: Option<Running>,
    /// Start by the clock of the system, once it has started.
    started: Option<Instant>,
    ended: Option<Ended>,
}

impl Client {
    /// Time that the client took, if it has ended with exit code 0.
    fn took(&self) -> Option<Duration> {
        let (started, ended) = self.started.zip(self.ended)?;
        (ended.code() == 0).then(|| ended.at - started)
    }
}

/// A run of commands.
struct Run<'a> {
    network: &'a Network,
    programs: &'a Programs,
    files: Files,
    bytes: Option<u64>,
    seconds: u64,
}

/// Runs the server, and a client for each connection, until all clients have ended or the run has.
pub(crate) fn pass(
    network: &Network,
    programs: &Programs,
    spec: &RunSpec<'_>,
    watch: Option<&Watch<'_>>,
) -> Result<Outside, String> {
    let bytes = size(spec);
    let files = Files::make(programs, bytes).map_err(|error| format!("cannot write the files of a run: {error}"))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a run lasts hours at most")]
    let seconds = spec.end.saturating_since(Instant::ZERO).as_secs_f64().ceil() as u64;
    let run = Run { network, programs, files, bytes, seconds };
    let server = run.serve()?;
    let failed = |error: NetworkError| error.to_string();
    network.begin();
    let origin = now();
    let mut clients: Vec<Client> = spec
        .connections
        .iter()
        .map(|connection| Client { start: connection.start, running: None, started: None, ended: None })
        .collect();
    let (mut before, mut server_ended, mut looks) = (None, None, Looks::new(watch));
    loop {
        let at = Instant::ZERO + (now() - origin);
        if before.is_none() && at >= spec.measure_from {
            before = Some(network.snapshot().map_err(failed)?);
        }
        if at >= spec.end || clients.iter().all(|client| client.ended.is_some()) {
            break;
        }
        looks.look(at, || clients.iter().map(|_| None).collect())?;
        for (number, client) in clients.iter_mut().enumerate() {
            run.advance(client, number, at)?;
        }
        if server_ended.is_none() {
            server_ended = ended(&server)?;
        }
        if server_ended.is_some_and(|ended| ended.code() != 0) || clients.iter().any(has_failed) {
            break;
        }
        thread::sleep(LOOK);
    }
    let after = network.snapshot().map_err(failed)?;
    let failure = run.failure(&clients, server_ended);
    run.finish(clients, (server, server_ended), spec, (origin, before.unwrap_or_else(|| after.clone()), after), failure)
}

fn has_failed(client: &Client) -> bool {
    client.ended.is_some_and(|ended| ended.code() != 0)
}

/// End of a program, if it has ended.
fn ended(running: &Running) -> Result<Option<Ended>, String> {
    running.try_wait().transpose().map_err(|error| format!("cannot wait for a command: {error}"))
}

impl Run<'_> {
    /// Starts one of the commands; `number` is that of the client.
    fn start(&self, command: &str, side: &Namespace, number: usize, log: &str) -> Result<Running, String> {
        let path = |path: std::path::PathBuf| path.display().to_string();
        let value = |name: &str| {
            Some(match name {
                "server" => SERVER.to_string(),
                "client" => CLIENT.to_string(),
                "port" => self.programs.port.to_string(),
                "bytes" => self.bytes?.to_string(),
                "seconds" => self.seconds.to_string(),
                "certificate" => path(self.files.certificate()),
                "key" => path(self.files.key()),
                "directory" => path(self.files.directory().to_owned()),
                "file" => Files::PAYLOAD.to_owned(),
                "connection" => number.to_string(),
                _ => return None,
            })
        };
        let command = fill(command, value).map_err(|name| format!("`{{{name}}}` has no value in this scenario"))?;
        let start = || -> io::Result<Running> {
            let variable = |name: &str, value: Ipv4Addr| (OsString::from(name), OsString::from(value.to_string()));
            let command = Command {
                supervisor: SUPERVISE.map(OsString::from).to_vec(),
                program: vec!["sh".into(), "-c".into(), command.into()],
                environment: vec![variable("TIDERACE_SERVER", SERVER), variable("TIDERACE_CLIENT", CLIENT)],
                without_input: true,
                output: Output::File(self.files.log(log)?),
            };
            command.start(side)
        };
        start().map_err(|error| format!("cannot start a command of `{}`: {error}", self.programs.name))
    }

    /// Starts the server and waits until it listens.
    fn serve(&self) -> Result<Running, String> {
        let (side, name, port) = (self.network.server(), &self.programs.name, self.programs.port);
        let server = self.start(&self.programs.server, side, 0, "server")?;
        let begun = time::Instant::now();
        loop {
            if let Some(ended) = ended(&server)? {
                return Err(self.told("server", ended.code(), "before it listened"));
            }
            if side.listens(Some(port)) {
                return Ok(server);
            }
            if begun.elapsed() > LISTENS_WITHIN {
                let said = self.files.last_line("server").map(|line| format!("; it said: {line}")).unwrap_or_default();
                return Err(format!(
                    "the server of `{name}` does not listen on port {port} within {} s (on {SERVER} or all addresses, by TCP or UDP; \
                     `{{port}}` in its command is that port, `port` sets another){said}",
                    LISTENS_WITHIN.as_secs()
                ));
            }
            thread::sleep(time::Duration::from_millis(5));
        }
    }

    /// Starts a client when its time has come, and notes its end.
    fn advance(&self, client: &mut Client, number: usize, at: Instant) -> Result<(), String> {
        if client.started.is_none() && client.start <= at {
            let running =
                self.start(&self.programs.client, self.network.client(), number, &format!("client-{number}"))?;
            client.started = Some(running.started());
            client.running = Some(running);
        }
        if let Some(running) = &client.running
            && client.ended.is_none()
        {
            client.ended = ended(running)?;
        }
        Ok(())
    }

    /// Reason why the run does not count: a program that ended as it should not.
    fn failure(&self, clients: &[Client], server: Option<Ended>) -> Option<String> {
        let failed = clients.iter().enumerate().find(|(_, client)| has_failed(client));
        let of_client = failed.and_then(|(number, client)| {
            Some(self.told(&format!("client-{number}"), client.ended?.code(), "and only 0 counts"))
        });
        let of_server =
            server.filter(|ended| ended.code() != 0).map(|ended| self.told("server", ended.code(), "during the run"));
        // Clients fail because of a server that has ended.
        of_server.or(of_client)
    }

    /// Sentence about a program that ended as it should not.
    fn told(&self, log: &str, code: u8, when: &str) -> String {
        let name = &self.programs.name;
        let who = log.replace('-', " ");
        let said = self.files.last_line(log).map(|line| format!("; it said: {line}")).unwrap_or_default();
        let hint = if code == NOT_FOUND { " (a command was not found: is it installed, and in PATH?)" } else { "" };
        format!("the {who} of `{name}` has ended with code {code} {when}{hint}{said}")
    }

    /// Ends everything that runs, and puts together what was seen.
    fn finish(
        &self,
        mut clients: Vec<Client>,
        (server, server_ended): (Running, Option<Ended>),
        spec: &RunSpec<'_>,
        (origin, before, after): (Instant, Snapshot, Snapshot),
        failure: Option<String>,
    ) -> Result<Outside, String> {
        let unstopped = |error: io::Error| format!("cannot end a command: {error}");
        let codes = clients.iter().map(|client| client.ended.map(|ended| ended.code())).collect();
        let mut cpu = [Duration::ZERO; 2];
        for client in &mut clients {
            let ended = match (client.running.take(), client.ended) {
                (_, Some(ended)) => ended,
                (Some(running), None) => running.stop().map_err(unstopped)?,
                (None, None) => continue,
            };
            cpu[0] += ended.cpu;
        }
        cpu[1] = match server_ended {
            Some(ended) => ended.cpu,
            None => server.stop().map_err(unstopped)?.cpu,
        };
        let measured = clients.iter().map(|client| {
            let took = client.took();
            let early = client.started.is_some_and(|started| started - origin < spec.measure_from - Instant::ZERO);
            let flow = match took {
                _ if early => Flow::Early,
                Some(took) => Flow::Took(took),
                None => Flow::Unfinished,
            };
            let delivered = took.filter(|_| !early).and(self.bytes).unwrap_or(0);
            Measured { delivered, flow: self.bytes.is_some().then_some(flow), ..Measured::default() }
        });
        let commands = Commands {
            completion: clients.iter().map(|client| client.took().map(|took| took.as_secs_f64())).collect(),
            exit_codes: codes,
            link_bytes: [after.up.offered.bytes, after.down.offered.bytes],
        };
        let ends = Ends {
            measured: measured.collect(),
            smoothed_rtts: Vec::new(),
            delivery_rate: None,
            cpu: cpu.map(|spent| u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)),
            emulator: [before, after],
        };
        Ok(Outside { ends, commands, failure })
    }
}

/// Refuses a command whose program does not exist. Only its first word is looked up, as the shell does; what follows is the shell's.
///
/// # Errors
/// The word.
pub fn find_program(command: &str) -> Result<(), String> {
    let is_assignment = |word: &&str| word.split_once('=').is_some_and(|(name, _)| !name.contains('/'));
    let Some(word) = command.split_whitespace().find(|word| !is_assignment(word)) else { return Ok(()) };
    // Quotes, variables and lists are for the shell.
    if word.contains(|c: char| "\"'$`;&|(){}<>\\*?[#~!".contains(c)) {
        return Ok(());
    }
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "command -v -- \"$1\" >/dev/null", "sh", word]);
    match shell.status() {
        Ok(status) if !status.success() => Err(word.to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up() {
        for command in ["sh -c x", "A=1 B=2 exec sh", "cd /; true", "(true)", "$HOME/x", ""] {
            assert_eq!(find_program(command), Ok(()), "{command}");
        }
        for command in ["no-such-program-here {port}", "A=1 no-such-program-here", "/no-such-program-here"] {
            assert!(find_program(command).unwrap_err().ends_with("no-such-program-here"), "{command}");
        }
    }
}
