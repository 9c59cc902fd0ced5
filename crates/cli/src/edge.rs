//! `tiderace edge`: the gateway, and commands to a running one.

mod compare;
mod signer;
mod status;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{Parser, Subcommand};
use edge::{
    ActivationSockets, ConfigError, Process, ProcessError, UpgradeError,
    admin::{self, AskError},
    config,
};
use serde_json::Value;

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    runtime,
    stdout::{write_json_line, write_out},
};

/// Serve HTTP/3, HTTP/2 and HTTP/1.1, and private protocols over QUIC, in front of back ends.
///
/// One file holds the configuration; `tiderace edge reference` prints all settings. SIGHUP, or `tiderace edge reload`, reloads it
/// without losing a connection. SIGUSR2, or `tiderace edge upgrade`, replaces the program, also without losing a connection. SIGTERM
/// drains: the gateway completes the requests in progress, and ends.
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
    /// Run a gateway until SIGTERM or Ctrl-C
    ///
    /// An address for which the service manager has opened sockets (LISTEN_FDS, as systemd's socket units do) is served on these.
    Run(Run),
    /// Check a configuration. Exit code 0: a gateway would start with it. 2: it would not
    Check(CheckArgs),
    /// Reload the configuration of a running gateway. Exit code 2: the new one is wrong, and the old one stays in use
    Reload(Running),
    /// Replace the program of a running gateway without losing a connection. Exit code 2: the new one does not start, and the old one
    /// continues
    Upgrade(Upgrade),
    /// Print the state of a running gateway as text or (`--json`) as JSON
    Status(status::Status),
    /// List the QUIC connections of a running gateway, newest first, as JSON
    Connections(Running),
    /// Capture QUIC connections of a running gateway: qlog, packets, and the keys that decrypt them
    Capture(Capture),
    /// Compare, for each policy, the connections or clients under it with its control group
    Compare(compare::Compare),
    /// Create a key ring for several gateways, or add a key to an existing one
    Keys(Keys),
    /// Sign the handshakes of gateways on a machine that alone has the private keys
    Signer(signer::Args),
    /// Print everything that may stand in a configuration, as Markdown
    Reference,
    /// Describe the configuration for other programs
    Config(ConfigArgs),
}

#[derive(Debug, Parser)]
struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the JSON Schema (draft 2020-12), with which editors complete and check a configuration
    Schema,
}

/// Gateways with the same key ring accept each other's session tickets and address tokens, and send each other's stateless resets.
///
/// Run this command on one machine, copy the file to the others, and name it in `keys.file` of all of them. Running gateways read a
/// changed file within seconds. To rotate, run the command again, for example once a day: the new key is used after `--lead`, and old
/// keys are removed after `--overlap`.
#[derive(Debug, Parser)]
struct Keys {
    /// File of the key ring. A new file is readable by its owner only
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Use the new key after this time; the file has to reach all machines before
    #[arg(long, value_name = "TIME", default_value = "10 min")]
    lead: config::Span,
    /// Accept old keys for this time after that; tickets are valid for 24 hours
    #[arg(long, value_name = "TIME", default_value = "25 h")]
    overlap: config::Span,
}

#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    file: File,
    /// Take over from the gateway that started this process, over the socket on standard input
    #[arg(long, hide = true)]
    take_over: bool,
}

/// The running gateway starts the program, which reads the configuration, takes over the sockets and serves every new connection.
/// Open connections stay with the old process until they end, or `upgrade.drain` has ended. SIGUSR2 does the same with the program at
/// the path of the running one. To downgrade, name an older program.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace edge upgrade --config edge.toml --program /usr/local/bin/tiderace
  tiderace edge status --config edge.toml")]
struct Upgrade {
    #[command(flatten)]
    running: Running,
    /// New program [default: the file at the path of the running one]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

#[derive(Debug, Parser)]
struct File {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// The check does everything that `run` does at its start, and leaves nothing behind. Faults with which a gateway would still start are
/// warnings: names that do not resolve, certificates that have expired or are for other names.
#[derive(Debug, Parser)]
struct CheckArgs {
    #[command(flatten)]
    file: File,
    /// Do not try the addresses of the gateway
    #[arg(long)]
    no_addresses: bool,
    /// Do not look up the names of back ends, and do not ask the signer
    #[arg(long)]
    no_names: bool,
    /// Wait for the names for at most this time
    #[arg(long, value_name = "TIME", default_value = "3 s")]
    names_timeout: config::Span,
}

#[derive(Debug, Parser)]
struct Running {
    /// Configuration file that names the admin socket
    #[arg(long, value_name = "FILE", required_unless_present = "socket")]
    config: Option<PathBuf>,
    /// Admin socket
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
}

/// A capture is a folder that only its owner can open: a qlog file for each connection; packets.pcapng, which Wireshark decrypts with
/// the keys in it; keys.log with the same keys for other programs; capture.json. It contains the content of the connections.
///
/// The configuration has to allow captures: `[capture] enabled = true`. Keys exist for connections that begin during the capture. Of
/// an earlier connection, only the qlog shows the content of packets. Ctrl-C ends the capture.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace edge capture --config edge.toml --client 192.0.2.7 --for 30s
  tiderace qlog show captures/capture-1700000000000")]
struct Capture {
    #[command(flatten)]
    running: Running,
    /// Capture the present and new connections of this client: an address, or an address with a port
    #[arg(long, value_name = "ADDR", required_unless_present = "cid", conflicts_with = "cid")]
    client: Option<String>,
    /// Capture one open connection, named by one of its IDs in hexadecimal; `tiderace edge connections` lists them
    #[arg(long, value_name = "ID")]
    cid: Option<String>,
    /// Capture for this time, at most `capture.max-time`
    #[arg(long = "for", value_name = "TIME", default_value = "10 s")]
    time: config::Span,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
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
        Command::Run(run) => serve(&run),
        Command::Check(args) => check(&args),
        Command::Reload(running) => reload(&running),
        Command::Upgrade(args) => upgrade(&args),
        Command::Status(args) => status::run(&args),
        Command::Connections(running) => show(&running, "connections"),
        Command::Capture(args) => capture(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Keys(keys) => rotate(&keys),
        Command::Signer(args) => signer::run(args),
        Command::Reference => write_out(&config::reference::markdown()).map(|()| ExitCode::SUCCESS),
        Command::Config(ConfigArgs { command: ConfigCommand::Schema }) => schema(),
    }
}

fn serve(args: &Run) -> Result<ExitCode, Failure> {
    let stream = match args.take_over {
        true => Some(edge::upgrade::inherited_stream().map_err(|error| not_upgraded(&error))?),
        false => None,
    };
    // Before the runtime opens descriptors.
    let sockets = match args.take_over {
        true => ActivationSockets::default(),
        false => ActivationSockets::from_environment().map_err(ProcessError::from)?,
    };
    let start = |file: &Path| match stream {
        Some(stream) => Process::take_over(file, stream),
        None => Process::start_with(file, sockets),
    };
    let tell = |address| write_out(&format!("serving {address}\n"));
    serve_with(&args.file.config, start, true, tell, Failure::from)
}

/// Runs a gateway with this configuration until the process is asked to stop. `tell` is called with the addresses on which it serves,
/// `explain` with the error of a gateway that cannot start.
pub(crate) fn serve_until_ended(
    file: &Path,
    tell: impl Fn(std::net::SocketAddr) -> Result<(), Failure>,
    explain: impl FnOnce(ProcessError) -> Failure,
) -> Result<ExitCode, Failure> {
    serve_with(file, Process::start, false, tell, explain)
}

/// Like [`serve_until_ended`], with the gateway that `start` returns. If it `is_upgradable`, another process can take over.
fn serve_with(
    file: &Path,
    start: impl FnOnce(&Path) -> Result<Arc<Process>, ProcessError>,
    is_upgradable: bool,
    tell: impl Fn(std::net::SocketAddr) -> Result<(), Failure>,
    explain: impl FnOnce(ProcessError) -> Failure,
) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    runtime.block_on(async {
        // Before anything is served: a request to end that comes at once is not missed.
        let mut interrupt = Interrupt::listen()?;
        let hang_up = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        let mut hang_up = hang_up.map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")))?;
        let upgrade =
            is_upgradable.then(|| tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined2()));
        let upgrade = upgrade.transpose();
        let upgrade = upgrade.map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")))?;
        let process = start(file).map_err(explain)?;
        let upgrading = upgrade.map(|signals| tokio::spawn(upgrade_on_signals(process.clone(), signals)));
        for address in process.addresses() {
            tell(address)?;
        }
        for address in process.redirecting() {
            write_out(&format!("redirecting {address} to https\n"))?;
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
        if let Some(upgrading) = upgrading {
            upgrading.abort();
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// On each signal, starts a new process that replaces this one.
async fn upgrade_on_signals(process: Arc<Process>, mut signals: tokio::signal::unix::Signal) {
    while signals.recv().await.is_some() {
        match process.upgrade(None).await {
            Ok(pid) => eprintln!("process {pid} serves; this one ends its connections"),
            Err(error) => {
                eprintln!("error: this process goes on: {error}");
                if let Some(hint) = error.hint() {
                    eprintln!("hint: {hint}");
                }
            }
        }
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let file = &args.file.config;
    let examination =
        config::Examination { addresses: !args.no_addresses, names: (!args.no_names).then_some(args.names_timeout.0) };
    let examined = runtime::start()?.block_on(config::examine(file, examination))?;
    for warning in &examined.warnings {
        eprintln!("warning: {warning}");
        if let Some(hint) = &warning.hint {
            eprintln!("hint: {hint}");
        }
    }
    let config = examined.config;
    let (routes, streams) = (config.routes.len(), config.streams.len());
    let verdict = match examined.warnings.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "the gateway would start, with 1 warning".to_owned(),
        count => format!("the gateway would start, with {count} warnings"),
    };
    write_out(&format!("{}: {routes} routes, {streams} streams, {verdict}\n", file.display()))?;
    let ports: Vec<u16> = config.listen.0.iter().filter_map(|text| text.rsplit_once(':')?.1.parse().ok()).collect();
    for record in edge::process::https_records(&config, &ports) {
        write_out(&format!("publish in DNS: {record}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn schema() -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(&config::schema()).map_err(Failure::new)?;
    write_out(&format!("{text}\n")).map(|()| ExitCode::SUCCESS)
}

fn reload(running: &Running) -> Result<ExitCode, Failure> {
    let answer = ask(running, "reload")?;
    match answer["generation"].as_u64() {
        Some(generation) => write_out(&format!("configuration {generation} is in use\n")).map(|()| ExitCode::SUCCESS),
        None => Err(refusal(&answer)),
    }
}

fn upgrade(args: &Upgrade) -> Result<ExitCode, Failure> {
    // The gateway may have another working directory.
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(|error| Failure::new(&error))?;
    let answer = ask(&args.running, &format!("upgrade {}", serde_json::json!({"program": program})))?;
    match (answer["process"].as_u64(), answer["pid"].as_u64()) {
        (Some(process), Some(pid)) => {
            write_out(&format!("process {process} (PID {pid}) serves\n")).map(|()| ExitCode::SUCCESS)
        }
        _ => Err(refusal(&answer)),
    }
}

fn show(running: &Running, command: &str) -> Result<ExitCode, Failure> {
    let answer = ask(running, command)?;
    if answer["error"].is_string() {
        return Err(refusal(&answer));
    }
    write_json_line(&answer).map(|()| ExitCode::SUCCESS)
}

fn capture(args: &Capture) -> Result<ExitCode, Failure> {
    let order = serde_json::json!({
        "client": args.client,
        "cid": args.cid,
        "seconds": args.time.0.as_secs_f64(),
    });
    let answer = ask(&args.running, &format!("capture {order}"))?;
    if answer["error"].is_string() {
        return Err(refusal(&answer));
    }
    if args.json {
        return write_json_line(&answer).map(|()| ExitCode::SUCCESS);
    }
    let count = |name: &str| answer[name].as_u64().unwrap_or(0);
    let connections = answer["connections"].as_array().map_or(0, Vec::len);
    let bundle = answer["bundle"].as_str().unwrap_or_default();
    let ended = match answer["ended_by"].as_str() {
        Some("size") => "capture.max-size",
        Some("connection") => "the end of the connection",
        _ => "its time",
    };
    let mut text = format!(
        "{bundle}: {connections} connections, {} packets, {} keys; ended by {ended}\n",
        count("packets"),
        count("keys")
    );
    let missing = (count("connections_left_out"), count("items_left_out"));
    if missing != (0, 0) {
        text.push_str(&format!(
            "left out: {} connections beyond capture.max-connections, {} pieces for which the disk was too slow\n",
            missing.0, missing.1
        ));
    }
    write_out(&text)?;
    eprintln!("hint: tiderace qlog show {bundle}");
    Ok(ExitCode::SUCCESS)
}

fn rotate(keys: &Keys) -> Result<ExitCode, Failure> {
    let now = edge::keys::now();
    let done = edge::keys::rotate(&keys.file, now, keys.lead.0, keys.overlap.0).map_err(Failure::new)?;
    let when = |at: u64| match at.saturating_sub(now) {
        0 => "at once".to_owned(),
        seconds => format!("in {}", config::Span::secs(seconds)),
    };
    let mut text = format!("{}: key {} is used {}", keys.file.display(), done.id, when(done.from));
    if let Some(until) = done.others_until {
        text.push_str(&format!(", the others end {} at the latest", when(until)));
    }
    write_out(&format!("{text}\n")).map(|()| ExitCode::SUCCESS)
}

fn refusal(answer: &Value) -> Failure {
    let failure = Failure::new(answer["error"].as_str().unwrap_or("the gateway gives no answer"));
    match answer["hint"].as_str() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// An upgrade that does not come about, with its advice.
fn not_upgraded(error: &UpgradeError) -> Failure {
    let failure = Failure::new(error);
    match error.hint() {
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
        match error {
            AskError::System(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                failure.hint("only the user of the gateway, and root, may use its socket")
            }
            _ => failure.hint("is the gateway running?"),
        }
    })
}

/// The socket path in a configuration. Other errors are ignored here: the running gateway reports them.
fn socket_of(file: &Path) -> Result<PathBuf, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format_args!("{}: cannot read the file: {error}", file.display())))?;
    let socket = config::admin_socket(&text).ok_or_else(|| {
        Failure::new(format_args!("{}: no admin socket is named", file.display()))
            .hint("[admin] with socket = \"edge.sock\", or send SIGHUP to reload")
    })?;
    Ok(file.parent().unwrap_or_else(|| Path::new(".")).join(socket))
}
