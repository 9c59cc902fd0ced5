//! `cargo run --release -p virtual -- [--seeds N] [--from S] [--pair CLIENT:SERVER]... [--json]`

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::Parser;
use virtual_interop::{
    report::{failed, run_all},
    run::{Failure, Identities, LOG, Pair, TRACE},
    stacks::Stack,
};

/// Let pairs of QUIC stacks talk over seeded bad networks in virtual time, and compare every byte.
#[derive(Parser)]
struct Arguments {
    /// Number of seeds for each pair.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// A pair, client first, for example quinn:noq. May be given again. Without it: all that matter.
    #[arg(long = "pair", value_name = "CLIENT:SERVER")]
    pairs: Vec<String>,
    /// Number of threads.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    threads: usize,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
    /// Print every datagram, and what the stacks log, for one seed and one pair.
    #[arg(long)]
    trace: bool,
    /// Write what is known of each failed run to this directory: the last datagrams of both ends, their counters, and the
    /// qlog of ends that write one. Stacks with randomness of their own do not fail a second time. Slows the runs down.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print each run's figures to standard error.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match Arguments::try_parse().map_err(anyhow::Error::from).and_then(run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(usage) => usage.exit(),
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(2)
            }
        },
    }
}

/// Runs everything; whether all went as planned.
fn run(arguments: Arguments) -> Result<bool> {
    #[cfg(feature = "quiche")]
    anyhow::ensure!(virtual_interop::clock::works(), "this platform does not let a program stand in for its clock");
    let pairs = pairs(&arguments.pairs)?;
    TRACE.store(arguments.trace, Ordering::Relaxed);
    if arguments.trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .without_time()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
    if let Some(directory) = &arguments.keep {
        std::fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        LOG.store(true, Ordering::Relaxed);
    }
    let identities = Identities::new()?;
    // A panic is caught and reported with its seed; its backtrace would only hide the report.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    let (start, total, done) = (Instant::now(), arguments.seeds * pairs.len() as u64, AtomicU64::new(0));
    let progress = std::io::stderr().is_terminal() && !arguments.verbose;
    let report =
        run_all(arguments.from, arguments.seeds, &pairs, arguments.threads, &identities, &|seed, pair, result| {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            match result {
                Err(failure) if failure.known_defect.is_some() => {}
                Err(failure) => {
                    eprintln!("{}", failed(seed, pair, failure.clone()));
                    if let Some(Err(error)) = arguments.keep.as_ref().map(|to| keep(to, seed, pair, failure)) {
                        eprintln!("error: keep what is known of it: {error:#}");
                    }
                }
                Ok(figures) if arguments.verbose => eprintln!("seed {seed} {pair}: {figures:?}"),
                Ok(_) if progress && done.is_multiple_of(16) => eprint!("\r{done} of {total} runs "),
                Ok(_) => {}
            }
        });
    if progress {
        eprint!("\r                            \r");
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    eprintln!("{total} runs in {:.1} s", start.elapsed().as_secs_f64());
    Ok(report.failures.is_empty())
}

/// Writes what is known of a failed run.
fn keep(directory: &Path, seed: u64, pair: Pair, failure: &Failure) -> Result<()> {
    let name = format!("{}-{}-{seed}", pair.client, pair.server);
    let mut text = format!("{}\n", failed(seed, pair, failure.clone()));
    for (side, account) in ["client", "server"].iter().zip(failure.accounts.iter()) {
        text.push_str(&format!("\n{side}\n{}\n{}\n", account.figures, account.steps.join("\n")));
        if !account.qlog.is_empty() {
            std::fs::write(directory.join(format!("{name}-{side}.sqlog")), &account.qlog)?;
        }
    }
    std::fs::write(directory.join(format!("{name}.txt")), text)?;
    Ok(())
}

/// The pairs asked for, or all that matter.
fn pairs(asked: &[String]) -> Result<Vec<Pair>> {
    if asked.is_empty() {
        return Ok(Stack::pairs());
    }
    asked
        .iter()
        .map(|text| {
            let (client, server) =
                text.split_once(':').with_context(|| format!("`{text}` is no pair\nhint: write --pair quinn:noq"))?;
            Ok(Pair { client: client.parse()?, server: server.parse()? })
        })
        .collect()
}
