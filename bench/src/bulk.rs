//! `bench bulk`: every contender sends one large stream, round after round.
//!
//! Rounds are interleaved (A B C, A B C, …), so that a slow spell of the machine meets all contenders alike, and every
//! ratio is taken within a round.

use std::{process::ExitCode, thread::available_parallelism};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use units::DataSize;

use crate::{
    load::QUIET_CORES,
    peers::Peer,
    report::{self, Document, Environment},
    run::{self, Plan, Run},
    statistics,
};

/// Settings of a bulk measurement.
#[derive(Args)]
pub struct Arguments {
    /// Rounds; each runs every contender once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes per run, for example 512MiB
    #[arg(long, default_value = "2GiB")]
    size: DataSize,
    /// Contenders, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// CPUs of the receiver and of the sender
    #[arg(long, default_value = "0,1", value_parser = cpu_pair, value_name = "RECEIVER,SENDER")]
    cpus: (usize, usize),
    /// Longest wait for a quiet machine before each run, in seconds
    #[arg(long, default_value_t = 15)]
    patience: u64,
    /// Give a run up after this many seconds
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    time_limit: u32,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
}

fn cpu_pair(text: &str) -> Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.ok_or_else(|| "expected two numbers, for example 0,1".to_owned())
}

impl Arguments {
    fn peers(&self) -> Vec<Peer> {
        let mut peers = Vec::new();
        for &peer in if self.peers.is_empty() { Peer::value_variants() } else { &self.peers[..] } {
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        peers
    }

    fn plan(&self) -> Result<Plan> {
        let (server_cpu, client_cpu) = self.cpus;
        let cpus = available_parallelism().context("cannot count the CPUs")?.get();
        ensure!(
            server_cpu != client_cpu,
            "the receiver and the sender need a CPU each\nhint: this machine has {cpus}; choose two with --cpus"
        );
        ensure!(self.size > DataSize::default(), "there is nothing to send\nhint: --size 512MiB");
        Ok(Plan {
            bytes: self.size.as_bytes(),
            server_cpu,
            client_cpu,
            patience_s: self.patience,
            time_limit_s: self.time_limit,
        })
    }
}

/// One line per run on standard error.
fn narrate(run: &Run) {
    let loud = if run.quiet_before {
        String::new()
    } else {
        format!("  (machine not quiet: {:.2} of a CPU > {QUIET_CORES})", run.foreign_cores_before)
    };
    eprintln!(
        "round {} {:<10} sender {:.3} receiver {:.3} s/GiB  {:6.2} Gbit/s  foreign {:.2}  stolen {:.2}{loud}",
        run.round,
        run.peer.name(),
        statistics::seconds_per_gib(&run.sender),
        statistics::seconds_per_gib(&run.receiver),
        statistics::gbit_per_s(&run.receiver),
        run.foreign_cores,
        run.stolen_cores,
    );
}

/// A size in the largest binary unit that divides it.
fn binary_size(bytes: u64) -> String {
    let (unit, name) = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit))
        .unwrap_or((1, "bytes"));
    format!("{} {name}", bytes / unit)
}

/// Runs all rounds and prints the result. Exit code 1 when a run failed, 2 when nothing was measured.
pub fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let (plan, peers) = (arguments.plan()?, arguments.peers());
    let mut runs = Vec::new();
    let mut failures = Vec::new();
    for round in 1..=arguments.rounds {
        for &peer in &peers {
            match run::execute(&plan, peer, round) {
                Ok(run) => {
                    narrate(&run);
                    runs.push(run);
                }
                Err(error) => {
                    let failure = format!("round {round} {}: {error:#}", peer.name());
                    eprintln!("failed: {failure}");
                    failures.push(failure);
                }
            }
        }
    }
    let summary = statistics::summarise(&runs, &peers);
    ensure!(!summary.is_empty(), "no run succeeded");
    let environment = Environment::read();
    if arguments.json {
        let document =
            Document { test: "bulk", environment, plan, runs: &runs, failures: &failures, summary: &summary };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!(
            "{} per run over loopback, {} round{}; {}, Linux {}",
            binary_size(plan.bytes),
            arguments.rounds,
            if arguments.rounds == 1 { "" } else { "s" },
            environment.processor,
            environment.kernel
        );
        if let Some(tunables) = &environment.glibc_tunables {
            println!("GLIBC_TUNABLES={tunables}");
        }
        println!("\n{}\n{}", report::table(&summary), report::LEGEND.trim_end());
        let loud = runs.iter().filter(|run| !run.quiet_before).count();
        if loud > 0 {
            println!("{loud} of {} runs started on a machine that was not quiet.", runs.len());
        }
        for failure in &failures {
            println!("failed: {failure}");
        }
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_cpus_read_well() {
        assert_eq!(binary_size(2 << 30), "2 GiB");
        assert_eq!(binary_size(1_536 << 20), "1536 MiB");
        assert_eq!(binary_size(1_000_001), "1000001 bytes");
        assert_eq!(cpu_pair("2, 3"), Ok((2, 3)));
        assert!(cpu_pair("2").is_err());
    }
}
