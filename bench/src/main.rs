//! `bench`: what it costs a CPU to move bytes, make connections and answer requests, measured side by side.
//!
//! One binary plays all parts. `bench all` and its kin are the driver: it starts itself again as `bench peer …`, once as the
//! server and once as the client of each contender, reads the JSON line that each side prints, and draws the tables.

mod content;
mod document;
mod environment;
mod identity;
mod job;
mod load;
mod meter;
mod mode;
mod peers;
mod report;
mod run;
mod stack;
mod statistics;
mod suite;
mod sys;
mod workload;

use clap::{Parser, Subcommand};

use self::mode::Mode;

/// Measure the CPU cost of transports over loopback, side by side.
#[derive(Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all modes in turn and write docs/performance.md
    All(suite::AllArguments),
    /// One stream from client to server: CPU seconds per GiB
    Bulk(suite::Arguments),
    /// The same bytes on 100 streams of one connection
    BulkStreams(suite::Arguments),
    /// The same bytes over 50 connections
    BulkConnections(suite::Arguments),
    /// Full handshakes: CPU time of each
    Hs(suite::Arguments),
    /// Full handshakes with X25519MLKEM768, the key exchange that most clients prefer
    HsMlKem(suite::Arguments),
    /// Resumed handshakes, with 0-RTT where the stack has it
    Hsr(suite::Arguments),
    /// Requests of 100 B and answers of 1 KiB, 100 streams at a time: CPU time of each
    Rr(suite::Arguments),
    /// Datagrams of 1,200 B: how many per CPU second, beside raw UDP sockets
    Dgram(suite::Arguments),
    /// Memory of an idle connection
    Idle(suite::Arguments),
    /// Latency of requests at 50, 80 and 95 % of the capacity, and beside a transfer
    Latency(suite::Arguments),
    /// Play one side of one contender (started by the driver; useful by hand under a profiler)
    Peer(peers::Arguments),
}

fn main() -> std::process::ExitCode {
    let outcome = match Arguments::parse().command {
        Command::All(arguments) => suite::execute_all(&arguments),
        Command::Bulk(arguments) => suite::execute(&arguments, Mode::Bulk),
        Command::BulkStreams(arguments) => suite::execute(&arguments, Mode::BulkStreams),
        Command::BulkConnections(arguments) => suite::execute(&arguments, Mode::BulkConnections),
        Command::Hs(arguments) => suite::execute(&arguments, Mode::Handshake),
        Command::HsMlKem(arguments) => suite::execute(&arguments, Mode::PostQuantum),
        Command::Hsr(arguments) => suite::execute(&arguments, Mode::Resumed),
        Command::Rr(arguments) => suite::execute(&arguments, Mode::Requests),
        Command::Dgram(arguments) => suite::execute(&arguments, Mode::Datagrams),
        Command::Idle(arguments) => suite::execute(&arguments, Mode::Idle),
        Command::Latency(arguments) => suite::execute(&arguments, Mode::Latency),
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
