//! `bench`: what it costs a CPU to move bytes, measured side by side.
//!
//! One binary plays all parts. `bench bulk` is the driver: it starts itself again as `bench peer …`, once as the receiver
//! and once as the sender of each contender, reads the JSON line that each side prints, and draws the table.

mod bulk;
mod content;
mod identity;
mod load;
mod meter;
mod peers;
mod report;
mod run;
mod statistics;
mod sys;

use clap::{Parser, Subcommand};

/// Measure the CPU cost of transports over loopback, side by side.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send a bulk stream with each contender in turn and compare CPU seconds per GiB
    Bulk(bulk::Arguments),
    /// Play one side of one contender (started by the driver; useful by hand under a profiler)
    Peer(peers::Arguments),
}

fn main() -> std::process::ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Bulk(arguments) => bulk::execute(&arguments),
        Command::Peer(arguments) => peers::execute(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}
