//! The command line of tiderace: a table of contents. Each subcommand has a file.

mod failure;
mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// QUIC that you can measure, tune and run on bad networks.
#[derive(Debug, Parser)]
#[command(name = "tiderace", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare transports on modelled network paths.
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match cli.command {
        Command::Lab(args) => lab::run(args),
    };
    result.unwrap_or_else(failure::Failure::report)
}
