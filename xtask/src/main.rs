//! Measurements and checks of the project about itself. Each subcommand has a file.

#[cfg(test)]
mod architecture;
mod claims;
mod compliance;
mod dependencies;
mod dist;
mod flaky;
mod group;
mod instructions;
mod mutants;
mod processor;
mod shows;
mod site;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measurements and checks of tiderace about itself.
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
    Dist(dist::Args),
    Flaky(flaky::Args),
    Instructions(instructions::Args),
    Mutants(mutants::Args),
    Shows(shows::Args),
    Site(site::Args),
    #[command(hide = true)]
    UdpHole(shows::why_hole::Args),
    Words(words::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Claims(args) => claims::run(&args),
        Command::Compliance(args) => compliance::run(&args),
        Command::Dependencies(args) => dependencies::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Flaky(args) => flaky::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Shows(args) => shows::run(&args),
        Command::Site(args) => site::run(&args),
        Command::UdpHole(args) => shows::why_hole::run(&args),
        Command::Words(args) => words::run(&args),
    }
}
