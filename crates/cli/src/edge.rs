//! `tiderace edge`: the gateway, and how to talk to one that runs.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use edge::{ConfigError, Process, ProcessError, admin, config};
use serde_json::Value;

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    stdout::{write_json_line, write_out},
};

/// Serve HTTP/3, HTTP/2 and HTTP/1.1, and private protocols over QUIC, in front of back ends.
///
/// One file says everything; `tiderace edge reference` prints what may stand in it. SIGHUP, or `tiderace edge reload`, makes
/// a gateway that runs take a new one without losing a connection. SIGTERM makes it end when what is under way has ended.
#[derive(Debug, Parser)]
#[command(after_help = "Example, a whole configuration:
  listen = \"[::]:443\"
  certificate = \"cert.pem\"
  key = \"key.pem\"
  [[route]]
  to = \"http://127.0.0.1:8080\"")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until asked to end
    Run(File),
    /// Say what is wrong with a configuration. Exit code 0: nothing. 2: something
    Check(File),
    /// Make a gateway that runs take its configuration again. Exit code 2: it is wrong, and the old one stays in use
    Reload(Running),
    /// Print what a gateway that runs does, as JSON
    Status(Running),
    /// Print everything that may stand in a configuration, as Markdown
    Reference,
}

#[derive(Debug, Parser)]
struct File {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Parser)]
struct Running {
    /// Its configuration, which names the socket
    #[arg(long, value_name = "FILE", required_unless_present = "socket")]
    config: Option<PathBuf>,
    /// The socket
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let failure = Self::new(&error);
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Self {
        let failure = Self::new(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Run(file) => serve(&file.config),
        Command::Check(file) => check(&file.config),
        Command::Reload(running) => reload(&running),
        Command::Status(running) => status(&running),
        Command::Reference => write_out(&config::reference::markdown()).map(|()| ExitCode::SUCCESS),
    }
}

fn serve(file: &Path) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format_args!("cannot start: {error}")))?;
    runtime.block_on(async {
        // Before anything is served: a request to end that comes at once is not missed.
        let mut interrupt = Interrupt::listen()?;
        let hang_up = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        let mut hang_up = hang_up.map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")))?;
        let process = Process::start(file)?;
        for address in process.addresses() {
            write_out(&format!("serving {address}\n"))?;
        }
        for record in process.https_records() {
            write_out(&format!("publish in DNS: {record}\n"))?;
        }
        let reloading = {
            let process = process.clone();
            tokio::spawn(async move {
                while hang_up.recv().await.is_some() {
                    match process.reload().await {
                        Ok(generation) => eprintln!("configuration {generation} is in use"),
                        Err(error) => {
                            eprintln!("error: the configuration in use stays: {error}");
                            if let Some(hint) = error.hint() {
                                eprintln!("hint: {hint}");
                            }
                        }
                    }
                }
            })
        };
        process.run(interrupt.wait()).await;
        reloading.abort();
        Ok(ExitCode::SUCCESS)
    })
}

fn check(file: &Path) -> Result<ExitCode, Failure> {
    let config = config::load(file)?;
    let (routes, streams) = (config.routes.len(), config.streams.len());
    write_out(&format!("{}: {routes} routes, {streams} streams, nothing is wrong\n", file.display()))?;
    let port = config.listen.0.iter().find_map(|text| text.rsplit_once(':')?.1.parse().ok()).unwrap_or(443);
    for record in edge::process::https_records(&config, port) {
        write_out(&format!("publish in DNS: {record}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn reload(running: &Running) -> Result<ExitCode, Failure> {
    let answer = ask(running, "reload")?;
    match answer["generation"].as_u64() {
        Some(generation) => write_out(&format!("configuration {generation} is in use\n")).map(|()| ExitCode::SUCCESS),
        None => Err(refusal(&answer)),
    }
}

fn status(running: &Running) -> Result<ExitCode, Failure> {
    let answer = ask(running, "status")?;
    if answer["error"].is_string() {
        return Err(refusal(&answer));
    }
    write_json_line(&answer).map(|()| ExitCode::SUCCESS)
}

fn refusal(answer: &Value) -> Failure {
    let failure = Failure::new(answer["error"].as_str().unwrap_or("the gateway gives no answer"));
    match answer["hint"].as_str() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn ask(running: &Running, command: &str) -> Result<Value, Failure> {
    let socket = match (&running.socket, &running.config) {
        (Some(socket), _) => socket.clone(),
        (None, Some(file)) => socket_of(file)?,
        (None, None) => return Err(Failure::new("expected --config or --socket")),
    };
    admin::ask(&socket, command).map_err(|error| {
        let failure = Failure::new(format_args!("{}: {error}", socket.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.hint("only the user of the gateway, and root, may use its socket")
            }
            _ => failure.hint("is the gateway running?"),
        }
    })
}

/// The socket that a configuration names. The rest of it may be wrong: the gateway that runs is the one to say so.
fn socket_of(file: &Path) -> Result<PathBuf, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format_args!("{}: cannot read the file: {error}", file.display())))?;
    let socket = config::admin_socket(&text).ok_or_else(|| {
        Failure::new(format_args!("{}: no admin socket is named", file.display()))
            .hint("[admin] with socket = \"edge.sock\", or send SIGHUP to reload")
    })?;
    Ok(file.parent().unwrap_or_else(|| Path::new(".")).join(socket))
}
