//! One run of one contender: a server and a client, each its own process on its own CPU.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    job::Job,
    load::{self, Load},
    meter::{Role, SideReport},
    mode::Mode,
    peers::{Announcement, Peer},
};

/// Plan of runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// The server's CPU.
    pub server_cpu: usize,
    /// The client's CPU.
    pub client_cpu: usize,
    /// Longest wait for a quiet machine before each run, in seconds.
    pub patience_s: u64,
    /// After this many seconds each side ends itself, and the run has failed.
    pub time_limit_s: u32,
}

/// A run that ended well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Mode of the run.
    pub mode: Mode,
    /// The contender.
    pub peer: Peer,
    /// The round it belongs to, from 1; ratios are taken within a round.
    pub round: u32,
    /// CPUs others used when the wait for a quiet machine ended.
    pub foreign_cores_before: f64,
    /// False when the patience ran out first.
    pub quiet_before: bool,
    /// CPUs others used during the run.
    pub foreign_cores: f64,
    /// CPUs the host took away during the run, as far as it tells.
    pub stolen_cores: f64,
    /// Report of the client.
    pub client: SideReport,
    /// Report of the server.
    pub server: SideReport,
}

/// Ends the process if it is still there, so that a failed run leaves nothing behind.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only if the process has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(
    plan: &Plan,
    peer: Peer,
    job: Job,
    cpu: usize,
    side: &[&str],
) -> Result<(Guard, BufReader<impl Read + use<>>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["peer", peer.name()])
        .args(job.arguments())
        .args(["--cpu", &cpu.to_string()])
        .args(["--time-limit", &plan.time_limit_s.to_string()])
        .args(side)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a contender")?;
    let output = child.stdout.take().context("no output to read")?;
    Ok((Guard(child), BufReader::new(output)))
}

/// The next JSON line of a side.
fn read_line<T: DeserializeOwned>(output: &mut impl BufRead, side: &str) -> Result<T> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(!line.is_empty(), "the {side} ended without a result");
    serde_json::from_str(&line).with_context(|| format!("the {side} printed `{}`", line.trim_end()))
}

/// Waits for a quiet machine, then runs one contender once.
pub fn execute(plan: &Plan, peer: Peer, job: Job, round: u32) -> Result<Run> {
    let foreign_cores_before = load::wait_until_quiet(Duration::from_secs(plan.patience_s))?;
    let before = Load::read()?;

    let (mut server, mut server_output) = spawn(plan, peer, job, plan.server_cpu, &["server"])?;
    let Announcement { address, trust } = read_line(&mut server_output, "server")?;
    let address = address.to_string();
    let (mut client, mut client_output) =
        spawn(plan, peer, job, plan.client_cpu, &["client", "--to", &address, "--trust", &trust])?;
    let client_report: SideReport = read_line(&mut client_output, "client")?;
    let server_report: SideReport = read_line(&mut server_output, "server")?;
    for (side, guard) in [("client", &mut client), ("server", &mut server)] {
        let status = guard.0.wait()?;
        ensure!(status.success(), "the {side} ended with {status}");
    }
    verify(job, &client_report, &server_report)?;

    let foreign = before.foreign_since()?;
    Ok(Run {
        mode: job.mode,
        peer,
        round,
        foreign_cores_before,
        quiet_before: foreign_cores_before < load::QUIET_CORES,
        foreign_cores: foreign.cores,
        stolen_cores: foreign.stolen_cores,
        client: client_report,
        server: server_report,
    })
}

/// A run counts only if all of the work was done, was looked at, and took time; and if the work was what it is called.
fn verify(job: Job, client: &SideReport, server: &SideReport) -> Result<()> {
    if (client.role, server.role) != (Role::Client, Role::Server) {
        bail!("the sides changed roles");
    }
    let whole = if job.mode.moves_bytes() { client.units } else { job.amount };
    for side in [client, server] {
        // Datagrams may be lost; what arrived is what counts.
        let enough = match (job.mode, side.role) {
            (Mode::Datagrams, Role::Server) => (1..=whole).contains(&side.units),
            _ => side.units == whole,
        };
        ensure!(enough, "{} of {whole} at the {:?}", side.units, side.role);
        ensure!(side.cpu_ns > 0, "no CPU time at the {:?}", side.role);
    }
    match job.mode {
        Mode::Bulk | Mode::BulkStreams | Mode::BulkConnections | Mode::Requests | Mode::Datagrams => {
            ensure!(server.content_samples > 0, "the server compared nothing");
        }
        Mode::Handshake | Mode::PostQuantum => {
            // Where nobody counts signatures, that no session was resumed is what can be said.
            let full = server.signatures.map_or(client.resumed == Some(0), |count| count == job.amount);
            ensure!(full, "not every handshake was a full one: {server:?}");
        }
        Mode::Resumed => {
            let resumed = server.signatures.map_or(client.resumed == Some(job.amount), |count| count == 0);
            ensure!(resumed, "not every session was resumed: {server:?}");
        }
        Mode::Idle => ensure!(server.memory_growth.is_some(), "the server did not look at its memory"),
        Mode::Latency => ensure!(client.latencies.is_some(), "the client measured no latency"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::CONCURRENT;
    use crate::meter::Meter;

    fn sides(units: u64) -> (SideReport, SideReport) {
        let side = |role| SideReport { cpu_ns: 1, ..Meter::start().report(role, units) };
        (side(Role::Client), SideReport { content_samples: 1, ..side(Role::Server) })
    }

    #[test]
    fn a_short_or_unchecked_run_does_not_count() {
        let job = Job { mode: Mode::Bulk, amount: 10, in_flight: CONCURRENT };
        let (client, server) = sides(10);
        verify(job, &client, &server).unwrap();
        assert!(verify(job, &server, &client).is_err(), "roles");
        assert!(verify(job, &client, &SideReport { units: 9, ..server.clone() }).is_err(), "bytes");
        assert!(verify(job, &client, &SideReport { content_samples: 0, ..server.clone() }).is_err(), "content");
        assert!(verify(job, &client, &SideReport { cpu_ns: 0, ..server }).is_err(), "time");
    }

    #[test]
    fn a_handshake_needs_its_evidence() {
        let (client, server) = sides(5);
        let signed = |count| SideReport { signatures: Some(count), ..server.clone() };
        let full = Job { mode: Mode::Handshake, amount: 5, in_flight: CONCURRENT };
        let resumed = Job { mode: Mode::Resumed, amount: 5, in_flight: CONCURRENT };
        verify(full, &client, &signed(5)).unwrap();
        verify(resumed, &client, &signed(0)).unwrap();
        assert!(verify(full, &client, &signed(4)).is_err());
        assert!(verify(resumed, &client, &signed(1)).is_err());
        // Nobody counted, nobody said.
        assert!(verify(full, &client, &server).is_err() && verify(resumed, &client, &server).is_err());
        verify(resumed, &SideReport { resumed: Some(5), ..client }, &server).unwrap();
    }

    #[test]
    fn datagrams_may_be_lost_but_not_all() {
        let job = Job { mode: Mode::Datagrams, amount: 10, in_flight: CONCURRENT };
        let (client, server) = sides(10);
        verify(job, &client, &SideReport { units: 9, ..server.clone() }).unwrap();
        assert!(verify(job, &client, &SideReport { units: 0, ..server.clone() }).is_err());
        assert!(verify(job, &SideReport { units: 9, ..client }, &server).is_err());
    }

    #[test]
    fn says_what_a_side_printed() {
        let error = read_line::<SideReport>(&mut &b"oops\n"[..], "client").unwrap_err();
        assert!(format!("{error:#}").contains("oops"), "{error:#}");
        let error = read_line::<SideReport>(&mut &b""[..], "client").unwrap_err();
        assert!(error.to_string().contains("client ended"), "{error:#}");
    }
}
