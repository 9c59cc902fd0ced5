//! What the project measures and checks about itself. Each subcommand has a file.

mod claims;
mod compliance;
mod dependencies;
mod flaky;
mod instructions;
mod mutants;
mod shows;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What tiderace measures and checks about itself.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Claims(claims::Args),
    Compliance(compliance::Args),
    Dependencies(dependencies::Args),
    Flaky(flaky::Args),
    Instructions(instructions::Args),
    Mutants(mutants::Args),
    Shows(shows::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Claims(args) => claims::run(&args),
        Command::Compliance(args) => compliance::run(&args),
        Command::Dependencies(args) => dependencies::run(&args),
        Command::Flaky(args) => flaky::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Shows(args) => shows::run(&args),
    }
}
