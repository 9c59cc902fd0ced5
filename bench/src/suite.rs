//! The driver: every contender in every mode asked for, round after round.
//!
//! Rounds are interleaved (A B C, A B C, …), so that a slow spell of the machine meets all contenders alike, and every
//! ratio is taken within a round.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread::available_parallelism,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use units::DataSize;

use crate::{
    document,
    environment::Environment,
    job::{CONCURRENT, Job},
    load::QUIET_CORES,
    mode::Mode,
    peers::Peer,
    report::{self, Document, Saved},
    run::{self, Plan, Run},
    statistics::{self, Side, Summary},
};

/// Settings of a measurement.
#[derive(Args)]
pub struct Arguments {
    /// Rounds; each runs every contender once in every mode
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes per bulk run, for example 512MiB
    #[arg(long, default_value = "2GiB")]
    size: DataSize,
    /// Multiply what runs of the other modes do, for example 0.1
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Requests in progress at the same time (`rr`, and the capacity of `latency`)
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    in_flight: usize,
    /// Contenders, separated by commas; by default all that this build has, without quic-go
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Contenders beside those, for example quic-go
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    also: Vec<Peer>,
    /// CPUs of the server (or receiver) and of the client (or sender)
    #[arg(long, default_value = "0,1", value_parser = cpu_pair, value_name = "SERVER,CLIENT")]
    cpus: (usize, usize),
    /// Longest wait for a quiet machine before each run, in seconds
    #[arg(long, default_value_t = 15)]
    patience: u64,
    /// Give a run up after this many seconds
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    time_limit: u32,
    /// Print one JSON document instead of the tables
    #[arg(long)]
    json: bool,
    /// Write the JSON document to a file too
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Go on from a measurement saved before, with the same build: its rounds count beside the new ones. For machines that are
    /// quiet for minutes, not for an hour
    #[arg(long, value_name = "FILE")]
    onto: Option<PathBuf>,
}

/// Settings of `bench all`.
#[derive(Args)]
pub struct AllArguments {
    #[command(flatten)]
    common: Arguments,
    /// Modes, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Leave docs/performance.md as it is
    #[arg(long)]
    no_write: bool,
}

fn cpu_pair(text: &str) -> Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.ok_or_else(|| "expected two numbers, for example 0,1".to_owned())
}

/// `given` without repetitions, or all.
fn chosen<T: ValueEnum + Copy + PartialEq>(given: &[T], default: impl Fn(&T) -> bool) -> Vec<T> {
    let mut values: Vec<T> = Vec::new();
    let all: Vec<T> = T::value_variants().iter().filter(|value| default(value)).copied().collect();
    for &value in if given.is_empty() { &all[..] } else { given } {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

impl Arguments {
    fn plan(&self) -> Result<Plan> {
        let (server_cpu, client_cpu) = self.cpus;
        let cpus = available_parallelism().context("cannot count the CPUs")?.get();
        ensure!(
            server_cpu != client_cpu,
            "server and client need a CPU each\nhint: this machine has {cpus}; choose two with --cpus"
        );
        ensure!(self.size > DataSize::default(), "there is nothing to send\nhint: --size 512MiB");
        ensure!(self.in_flight > 0, "no request would be made\nhint: --in-flight 30");
        ensure!(self.scale > 0.0 && self.scale <= 1_000.0, "--scale is a positive number\nhint: --scale 0.1");
        Ok(Plan { server_cpu, client_cpu, patience_s: self.patience, time_limit_s: self.time_limit })
    }

    fn job(&self, mode: Mode) -> Job {
        Job { mode, amount: mode.amount(self.size.as_bytes(), self.scale), in_flight: self.in_flight }
    }
}

/// One line per run on standard error.
fn narrate(run: &Run) {
    let loud = if run.quiet_before {
        String::new()
    } else {
        format!("  (machine not quiet: {:.2} of a CPU > {QUIET_CORES})", run.foreign_cores_before)
    };
    let (client, server) = run.mode.sides();
    let mut text = format!("round {} {:<16} {:<12}", run.round, run.mode.name(), run.peer.name());
    for (name, side) in [(client, Side::Client), (server, Side::Server)] {
        if let Some(cost) = statistics::cost_of(run, side) {
            // A String takes everything.
            let _ = write!(text, "  {name} {}", report::figure_text(run.mode, cost));
        }
    }
    eprintln!("{text}  foreign {:.2}  stolen {:.2}{loud}", run.foreign_cores, run.stolen_cores);
}

/// Result of a measurement.
pub struct Outcome {
    /// Environment.
    pub environment: Environment,
    /// The modes, in their order.
    pub modes: Vec<Mode>,
    /// The contenders, in their order.
    pub peers: Vec<Peer>,
    /// Jobs of each mode's runs.
    pub jobs: Vec<Job>,
    /// Rounds.
    pub rounds: u32,
    /// Runs that ended well.
    pub runs: Vec<Run>,
    /// Jobs without a result.
    pub failures: Vec<String>,
    /// The figures.
    pub summary: Vec<Summary>,
}

impl Outcome {
    /// The lines of a mode's table.
    pub fn peers_of(&self, mode: Mode) -> Vec<Peer> {
        // Those made for one purpose would be a line of nothing elsewhere.
        let special =
            |peer: Peer| matches!(peer, Peer::Udp | Peer::UdpGso | Peer::TideraceInPlace | Peer::TideraceService);
        self.peers.iter().copied().filter(|&peer| peer.can(mode) || !special(peer)).collect()
    }
}

/// The runs of a saved measurement, which did what `jobs` do, and its failures.
fn earlier(file: &Path, jobs: &[Job]) -> Result<(Vec<Run>, Vec<String>)> {
    let saved: Saved = serde_json::from_slice(&fs::read(file)?)?;
    ensure!(
        saved.schema == report::SCHEMA,
        "it has the form `{}`, this build writes `{}`",
        saved.schema,
        report::SCHEMA
    );
    let same =
        saved.amounts.len() == jobs.len() && jobs.iter().all(|job| saved.amounts.contains(&(job.mode, job.amount)));
    ensure!(same, "its runs did other work\nhint: the same modes, --size and --scale as then");
    Ok((saved.runs, saved.failures))
}

fn measure(arguments: &Arguments, plan: &Plan, modes: &[Mode]) -> Result<Outcome> {
    let mut peers = chosen(&arguments.peers, |peer: &Peer| peer.is_default());
    peers.extend(arguments.also.iter().filter(|peer| !arguments.peers.contains(peer)));
    for &peer in &peers {
        peer.prepare()?;
    }
    let jobs: Vec<Job> = modes.iter().map(|&mode| arguments.job(mode)).collect();
    let (mut runs, mut failures) = match &arguments.onto {
        Some(_) if arguments.in_flight != CONCURRENT => {
            bail!("a saved file does not say how many requests were in flight\nhint: measure without --onto")
        }
        Some(file) => earlier(file, &jobs).with_context(|| format!("go on from {}", file.display()))?,
        None => (Vec::new(), Vec::new()),
    };
    let before = runs.iter().map(|run: &Run| run.round).max().unwrap_or(0);
    let rounds = before + arguments.rounds;
    for round in before + 1..=rounds {
        for &job in &jobs {
            for &peer in peers.iter().filter(|peer| peer.can(job.mode)) {
                match run::execute(plan, peer, job, round) {
                    Ok(run) => {
                        narrate(&run);
                        runs.push(run);
                    }
                    Err(error) => {
                        let failure = format!("round {round} {} {}: {error:#}", job.mode.name(), peer.name());
                        eprintln!("failed: {failure}");
                        failures.push(failure);
                    }
                }
            }
        }
    }
    let summary: Vec<Summary> = modes.iter().flat_map(|&mode| statistics::summarise(&runs, mode, &peers)).collect();
    ensure!(!summary.is_empty(), "no run succeeded");
    let (environment, modes) = (Environment::read(), modes.to_vec());
    Ok(Outcome { environment, modes, peers, jobs, rounds, runs, failures, summary })
}

fn publish(arguments: &Arguments, plan: Plan, outcome: &Outcome) -> Result<ExitCode> {
    let document = Document {
        schema: report::SCHEMA,
        environment: &outcome.environment,
        plan,
        amounts: outcome.jobs.iter().map(|job| (job.mode, job.amount)).collect(),
        runs: &outcome.runs,
        failures: &outcome.failures,
        summary: &outcome.summary,
    };
    let json = serde_json::to_string_pretty(&document)?;
    if let Some(path) = &arguments.save {
        fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        println!("{json}");
    } else {
        println!("{}", document::generated(outcome).trim_end());
    }
    Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Measures one mode. Exit code 1 when a run failed; an error when nothing was measured.
pub fn execute(arguments: &Arguments, mode: Mode) -> Result<ExitCode> {
    let plan = arguments.plan()?;
    let outcome = measure(arguments, &plan, &[mode])?;
    publish(arguments, plan, &outcome)
}

/// Measures all modes and writes `docs/performance.md`.
pub fn execute_all(arguments: &AllArguments) -> Result<ExitCode> {
    let plan = arguments.common.plan()?;
    if !arguments.no_write {
        ensure!(
            arguments.common.in_flight == CONCURRENT,
            "the tables of the document have {CONCURRENT} requests in flight\nhint: --no-write"
        );
        // Before an hour of work rather than after it.
        document::check()?;
    }
    let outcome = measure(&arguments.common, &plan, &chosen(&arguments.modes, |_| true))?;
    let code = publish(&arguments.common, plan, &outcome)?;
    if !arguments.no_write {
        document::write(&outcome)?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_cpus_read_well() {
        assert_eq!(cpu_pair("2, 3"), Ok((2, 3)));
        assert!(cpu_pair("2").is_err());
        assert_eq!(chosen(&[Mode::Idle, Mode::Bulk, Mode::Idle], |_| true), [Mode::Idle, Mode::Bulk]);
        assert_eq!(chosen::<Mode>(&[], |_| true), Mode::value_variants());
    }
}
