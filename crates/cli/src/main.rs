//! The command line of tiderace. Each subcommand has a file.

mod about;
mod address;
#[cfg(target_os = "linux")]
mod balance;
#[cfg(all(test, target_os = "linux"))]
mod documents;
#[cfg(target_os = "linux")]
mod edge;
mod failure;
mod get;
mod interrupt;
mod lab;
mod logging;
mod masque;
mod meter;
mod perf;
mod printable;
mod probe;
mod proxy;
mod qlog;
mod relay;
mod runtime;
mod screen;
#[cfg(target_os = "linux")]
mod serve;
mod stdout;
mod stop;
mod stream;
mod trust;
mod watch;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// QUIC that you can measure, tune and run on bad networks.
#[derive(Debug, Parser)]
#[command(name = "tiderace", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// Each is described where its options are: a doc comment here would take the place of the long text there.
#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(target_os = "linux")]
    Balance(balance::Args),
    #[cfg(target_os = "linux")]
    Edge(edge::Args),
    Get(get::Args),
    Lab(lab::Args),
    Masque(masque::Args),
    Perf(perf::Args),
    Probe(Box<probe::Args>),
    Proxy(proxy::Args),
    Qlog(qlog::Args),
    Relay(relay::Args),
    #[cfg(target_os = "linux")]
    Serve(serve::Args),
    Stream(stream::Args),
    Why(Box<why::Args>),
    Completions(about::CompletionsArgs),
    Man(about::ManArgs),
    Version(about::VersionArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(failure) = logging::start() {
        return failure.report();
    }
    let result = match cli.command {
        #[cfg(target_os = "linux")]
        Command::Balance(args) => balance::run(args),
        #[cfg(target_os = "linux")]
        Command::Edge(args) => edge::run(args),
        Command::Get(args) => get::run(&args),
        Command::Lab(args) => lab::run(args),
        Command::Masque(args) => masque::run(&args),
        Command::Perf(args) => perf::run(args),
        Command::Probe(args) => probe::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Qlog(args) => qlog::run(args),
        Command::Relay(args) => relay::run(&args),
        #[cfg(target_os = "linux")]
        Command::Serve(args) => serve::run(&args),
        Command::Stream(args) => stream::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Completions(args) => about::completions(&args, Cli::command()),
        Command::Man(args) => about::man(&args, Cli::command()),
        Command::Version(args) => about::version(&args),
    };
    result.unwrap_or_else(failure::Failure::report)
}
