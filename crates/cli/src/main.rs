//! The command line of tiderace: a table of contents. Each subcommand has a file.

mod about;
mod address;
#[cfg(target_os = "linux")]
mod edge;
mod failure;
mod get;
mod interrupt;
mod lab;
mod masque;
mod perf;
mod printable;
mod probe;
mod proxy;
mod qlog;
mod relay;
mod runtime;
#[cfg(target_os = "linux")]
mod serve;
mod stdout;
mod stream;
mod trust;
mod watch;

use std::{io::IsTerminal, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
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
    /// Serve HTTP/3, HTTP/2 and HTTP/1.1, and private protocols over QUIC, in front of back ends.
    #[cfg(target_os = "linux")]
    Edge(edge::Args),
    /// Ask for a URL over QUIC, raced against TCP.
    Get(get::Args),
    /// Compare transports on modelled network paths.
    Lab(lab::Args),
    /// Carry UDP or TCP through a MASQUE proxy.
    Masque(masque::Args),
    /// Measure QUIC, or the kernel's TCP, between two hosts.
    Perf(perf::Args),
    // Described where its options are: a comment here would take the place of the long text there.
    Probe(Box<probe::Args>),
    /// Serve programs on this machine as an HTTP proxy that speaks QUIC.
    Proxy(proxy::Args),
    /// Say what qlog files show.
    Qlog(qlog::Args),
    /// Put a modelled path between a client and a server.
    Relay(relay::Args),
    /// Serve a directory over HTTPS, without a configuration.
    #[cfg(target_os = "linux")]
    Serve(serve::Args),
    /// Send the standard input on a QUIC stream, and print the answer.
    Stream(stream::Args),
    /// Print completions for a shell.
    Completions(about::CompletionsArgs),
    /// Print the manual page, or write those of all commands.
    Man(about::ManArgs),
    /// Print the version.
    Version(about::VersionArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // What the verifier says, the error that ends the program says again.
    let quiet = "warn,rustls_platform_verifier=off";
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(quiet));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let result = match cli.command {
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
        Command::Completions(args) => about::completions(&args, Cli::command()),
        Command::Man(args) => about::man(&args, Cli::command()),
        Command::Version(args) => about::version(&args),
    };
    result.unwrap_or_else(failure::Failure::report)
}
