//! `tiderace edge signer`: private keys on a machine of their own.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use edge::signer::{self, SignerServer, SignerStartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    runtime,
    stdout::{write_json_line, write_out},
};

/// Sign the handshakes of gateways, which then have no private keys.
///
/// Gateways with `[signer]` connect to it over TLS; both sides show certificates. It signs what a TLS server signs in its handshake, and
/// nothing else. The keys are in files, or in a device (`[pkcs11]`: a hardware security module, a USB token, SoftHSM).
///
/// SIGHUP takes configuration and keys again. SIGUSR1 prints keys and counters as JSON, and so does the end.
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example, a whole configuration:
  listen = \"10.0.0.5:7443\"
  certificate = \"signer.pem\"
  key = \"signer.key\"
  clients = \"gateways-ca.pem\"
  [[identity]]
  certificate = \"cert.pem\"
  key = \"key.pem\""
)]
pub(super) struct Args {
    /// The configuration
    #[arg(value_name = "CONFIG", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with a configuration. Exit code 2: something is
    Check {
        /// The configuration
        #[arg(value_name = "CONFIG")]
        config: PathBuf,
    },
    /// Print everything that may stand in a configuration, as Markdown
    Reference,
}

impl From<SignerStartError> for Failure {
    fn from(error: SignerStartError) -> Self {
        let failure = Self::new(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// Runs the command.
pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    match (args.command, args.config) {
        (Some(Command::Check { config }), _) => {
            let keys = signer::check(&config)?;
            write_out(&format!("{}: {keys} keys, nothing is wrong\n", config.display()))?;
        }
        (Some(Command::Reference), _) => write_out(&signer::reference::markdown())?,
        (None, Some(config)) => serve(&config)?,
        // The parser asks for the configuration.
        (None, None) => return Err(Failure::new("expected a configuration")),
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(config: &Path) -> Result<(), Failure> {
    let listen_for =
        |kind| signal(kind).map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")));
    runtime::start()?.block_on(async {
        // Before anything is served: a signal that comes at once is not missed.
        let mut interrupt = Interrupt::listen()?;
        let (mut hang_up, mut ask) = (listen_for(SignalKind::hangup())?, listen_for(SignalKind::user_defined1())?);
        let server = SignerServer::start(config)?;
        for address in server.addresses() {
            write_out(&format!("signing at {address}\n"))?;
        }
        if let Some(address) = server.metrics() {
            write_out(&format!("metrics at http://{address}/metrics\n"))?;
        }
        loop {
            tokio::select! {
                () = interrupt.wait() => break,
                _ = hang_up.recv() => reload(&server),
                _ = ask.recv() => write_json_line(&server.status())?,
            }
        }
        write_json_line(&server.status())
    })
}

fn reload(server: &SignerServer) {
    match server.reload() {
        Ok(()) => eprintln!("the new configuration is in use"),
        Err(error) => {
            eprintln!("error: the configuration in use stays: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
        }
    }
}
