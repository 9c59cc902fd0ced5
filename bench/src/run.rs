//! One run of one contender: a receiver and a sender, each its own process on its own CPU.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    load::{self, Load},
    meter::{Role, SideReport},
    peers::{Announcement, Peer},
};

/// How runs are made.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Bytes per run.
    pub bytes: u64,
    /// The receiver's CPU.
    pub server_cpu: usize,
    /// The sender's CPU.
    pub client_cpu: usize,
    /// Longest wait for a quiet machine before each run, in seconds.
    pub patience_s: u64,
    /// After this many seconds each side ends itself, and the run has failed.
    pub time_limit_s: u32,
}

/// A run that ended well.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
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
    /// What the sender reports.
    pub sender: SideReport,
    /// What the receiver reports.
    pub receiver: SideReport,
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

fn spawn(plan: &Plan, peer: Peer, cpu: usize, side: &[&str]) -> Result<(Guard, BufReader<impl Read + use<>>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["peer", peer.name()])
        .args(["--bytes", &plan.bytes.to_string()])
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
pub fn execute(plan: &Plan, peer: Peer, round: u32) -> Result<Run> {
    let foreign_cores_before = load::wait_until_quiet(Duration::from_secs(plan.patience_s))?;
    let before = Load::read()?;

    let (mut server, mut server_output) = spawn(plan, peer, plan.server_cpu, &["server"])?;
    let Announcement { address, trust } = read_line(&mut server_output, "server")?;
    let address = address.to_string();
    let (mut client, mut client_output) =
        spawn(plan, peer, plan.client_cpu, &["client", "--to", &address, "--trust", &trust])?;
    let sender: SideReport = read_line(&mut client_output, "client")?;
    let receiver: SideReport = read_line(&mut server_output, "server")?;
    for (side, guard) in [("client", &mut client), ("server", &mut server)] {
        let status = guard.0.wait()?;
        ensure!(status.success(), "the {side} ended with {status}");
    }
    verify(plan, &sender, &receiver)?;

    let foreign = before.foreign_since()?;
    Ok(Run {
        peer,
        round,
        foreign_cores_before,
        quiet_before: foreign_cores_before < load::QUIET_CORES,
        foreign_cores: foreign.cores,
        stolen_cores: foreign.stolen_cores,
        sender,
        receiver,
    })
}

/// A run counts only if all bytes arrived, were looked at, and took time.
fn verify(plan: &Plan, sender: &SideReport, receiver: &SideReport) -> Result<()> {
    if (sender.role, receiver.role) != (Role::Sender, Role::Receiver) {
        bail!("the sides changed roles");
    }
    for side in [sender, receiver] {
        ensure!(side.bytes == plan.bytes, "{} of {} bytes at the {:?}", side.bytes, plan.bytes, side.role);
        ensure!(side.transfer_cpu_ns > 0, "no CPU time at the {:?}", side.role);
    }
    ensure!(receiver.content_samples > 0, "the receiver compared nothing");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;

    #[test]
    fn a_short_or_unchecked_run_does_not_count() {
        let plan = Plan { bytes: 10, server_cpu: 0, client_cpu: 0, patience_s: 0, time_limit_s: 1 };
        let mut meter = Meter::first_byte();
        std::hint::black_box((0..1_000_000_u64).fold(0, |a, b| a ^ std::hint::black_box(b)));
        meter.last_byte();
        let sender = meter.report(Role::Sender, 10);
        let receiver = SideReport { content_samples: 1, ..meter.report(Role::Receiver, 10) };
        verify(&plan, &sender, &receiver).unwrap();
        assert!(verify(&plan, &receiver, &sender).is_err(), "roles");
        assert!(verify(&plan, &sender, &SideReport { bytes: 9, ..receiver.clone() }).is_err(), "bytes");
        assert!(verify(&plan, &sender, &SideReport { content_samples: 0, ..receiver.clone() }).is_err(), "content");
    }

    #[test]
    fn says_what_a_side_printed() {
        let error = read_line::<SideReport>(&mut &b"oops\n"[..], "client").unwrap_err();
        assert!(format!("{error:#}").contains("oops"), "{error:#}");
        let error = read_line::<SideReport>(&mut &b""[..], "client").unwrap_err();
        assert!(error.to_string().contains("client ended"), "{error:#}");
    }
}
