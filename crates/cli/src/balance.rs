//! `tiderace balance`: several machines behind one address.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use edge::balance::{self, BalanceError, Balancer, KeyFileError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    runtime,
    stdout::{write_json_line, write_out},
};

/// Spread QUIC and TCP over several machines behind one address.
///
/// A packet goes to the machine that its connection ID names (QUIC-LB), wherever the client is; a client without a connection goes by its
/// address, and so does TCP. The machines are gateways with `[load-balancer]`, which get the client's address with each datagram and in
/// front of each connection (PROXY protocol) and answer through the load balancer. Nothing is kept of clients of QUIC: several load
/// balancers with one configuration choose alike.
///
/// SIGHUP takes the configuration again, to add, drain and remove machines. SIGTERM lets connections of TCP end, for `drain` at most; a
/// second one ends the program. SIGUSR1 prints machines and counters as JSON, and so does the end.
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example:
  tiderace balance key lb.key
  tiderace balance balance.toml

A whole configuration:
  listen = \"[::]:443\"
  [[connection-ids]]
  key = \"lb.key\"
  [[machine]]
  server-id = \"0a01\"
  address = \"10.0.0.1:443\""
)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(value_name = "CONFIG", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration. Exit code 2: it has an error
    Check {
        /// Configuration file
        #[arg(value_name = "CONFIG")]
        config: PathBuf,
    },
    /// Create a key for connection IDs, to be copied to all machines and load balancers
    Key {
        /// New file, readable by its owner only
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print all settings of the configuration as Markdown
    Reference,
    /// Print the JSON Schema (draft 2020-12) of the configuration, with which editors complete and check it
    Schema,
}

impl From<BalanceError> for Failure {
    fn from(error: BalanceError) -> Self {
        let failure = Self::new(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<KeyFileError> for Failure {
    fn from(error: KeyFileError) -> Self {
        Self::new(&error).hint(error.hint())
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match (args.command, args.config) {
        (Some(Command::Check { config }), _) => {
            let machines = balance::check(&config)?;
            write_out(&format!("{}: {machines} machines, nothing is wrong\n", config.display()))?;
        }
        (Some(Command::Key { file }), _) => {
            balance::make_key(&file)?;
            write_out(&format!("{} has a new key: copy it to all machines and load balancers\n", file.display()))?;
        }
        (Some(Command::Reference), _) => write_out(&balance::reference::markdown())?,
        (Some(Command::Schema), _) => write_json_line(&balance::reference::schema())?,
        (None, Some(config)) => serve(&config)?,
        // The parser asks for the configuration.
        (None, None) => return Err(Failure::new("expected a configuration")),
    }
    Ok(ExitCode::SUCCESS)
}

fn listen_for(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")))
}

fn serve(config: &Path) -> Result<(), Failure> {
    runtime::start()?.block_on(async {
        // Before anything is served: a signal that comes at once is not missed.
        let mut interrupt = Interrupt::listen()?;
        let (mut hang_up, mut ask) = (listen_for(SignalKind::hangup())?, listen_for(SignalKind::user_defined1())?);
        let balancer = Balancer::start(config)?;
        for address in balancer.addresses() {
            write_out(&format!("serving {address}\n"))?;
        }
        if let Some(address) = balancer.metrics() {
            write_out(&format!("metrics at http://{address}/metrics\n"))?;
        }
        loop {
            tokio::select! {
                () = interrupt.wait() => break,
                _ = hang_up.recv() => reload(&balancer),
                _ = ask.recv() => write_json_line(&balancer.status())?,
            }
        }
        let mut drain = std::pin::pin!(balancer.drain());
        loop {
            tokio::select! {
                () = &mut drain => break,
                () = interrupt.wait() => break,
                _ = ask.recv() => write_json_line(&balancer.status())?,
                _ = hang_up.recv() => eprintln!("error: the configuration in use stays: the load balancer ends"),
            }
        }
        write_json_line(&balancer.status())
    })
}

fn reload(balancer: &Balancer) {
    match balancer.reload() {
        Ok(()) => eprintln!("the new configuration is in use"),
        Err(error) => {
            eprintln!("error: the configuration in use stays: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
        }
    }
}
