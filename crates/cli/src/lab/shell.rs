//! `tiderace lab shell`: any program behind a modelled path.

use std::{
    ffi::OsString,
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use emu::network::{
    self, CLIENT, DeviceKind, Namespace, Network, NetworkConfig, NetworkError, Output, Privilege, Running, SERVER,
};
use lab::scenario::{Scenario, load};
use units::Seed;

use super::device::DeviceChoice;
use crate::{failure::Failure, interrupt::Interrupt, runtime};

/// Run any program behind the path of a scenario.
///
/// COMMAND runs on the client side of an emulated network. Everything that it sends to the server's address 10.2.0.1 passes the path:
/// rate, queue, delay, loss, NAT and changes over time. The link model is the one that `tiderace lab run` uses in virtual time. --server
/// runs on the server side. Times of the scenario count from the first packet. The network contains nothing else: no internet, no
/// services of this machine.
///
/// The command needs root, or a system that permits user namespaces. It uses TUN devices, or where /dev/net/tun is missing veth pairs; the
/// totals say which. As root, packets are delivered closer to their time: the emulator runs before ordinary programs, and idle processors stay
/// awake, which costs power. Both sides are unnamed network namespaces of Linux. They end with COMMAND, and so do all processes that COMMAND
/// and --server have started, even when this program is killed.
///
/// TIDERACE_SERVER and TIDERACE_CLIENT hold the addresses of server and client. Totals of the path are printed to standard error at the
/// end, with a warning if this machine was too slow or too busy for reliable figures.
///
/// Exit code: that of COMMAND; 128 + N if signal N ended it; 127 if it cannot be started. 2: the scenario or an option is wrong, or the
/// system does not permit such a network.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab shell mobile -- ping -c 5 10.2.0.1
  tiderace lab shell okru-mobile --server 'iperf3 -s' -- iperf3 -c 10.2.0.1 -C bbr -R
  tiderace lab shell ./my-path.toml --server 'python3 -m http.server 8000' -- curl -O http://10.2.0.1:8000/file
  tiderace lab shell mobile                                     # your shell, on the client side")]
pub(crate) struct ShellArgs {
    /// Use the path of this scenario: a preset (see `tiderace lab list`) or a file
    #[arg(value_name = "SCENARIO|FILE")]
    scenario: String,
    /// Run this with `sh -c` on the server side; COMMAND starts as soon as it listens
    #[arg(long, value_name = "COMMAND")]
    server: Option<OsString>,
    /// Seed of the path's random numbers [default: the scenario's first]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Devices of the network
    #[arg(long, value_name = "KIND", default_value = "auto")]
    device: DeviceChoice,
    /// Print neither addresses nor totals of the path
    #[arg(long)]
    quiet: bool,
    /// Program and its arguments [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Supervise a program (internal).
#[derive(Debug, Parser)]
pub(crate) struct SuperviseArgs {
    /// Program and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<OsString>,
}

/// Time that a server may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// Time between two looks at its state.
const LOOK: Duration = Duration::from_millis(10);

impl From<NetworkError> for Failure {
    fn from(error: NetworkError) -> Self {
        let text = error.to_string();
        let failure = Self::new(text.split(" (os error").next().unwrap_or_default());
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The emulated network of a scenario's path.
pub(super) fn settings(scenario: &Scenario, seed: u64, device: Option<DeviceKind>) -> Result<NetworkConfig, Failure> {
    if let Some(factor) = scenario.varied_path() {
        return Err(Failure::new(format_args!(
            "an emulated network has one path, and `{}` varies {factor}",
            scenario.name
        ))
        .hint("write a file with one value of it in [path]"));
    }
    let (up, down) = (scenario.path.up().clone(), scenario.path.down.clone());
    Ok(NetworkConfig {
        nat: scenario.path.nat.clone(),
        device,
        ..NetworkConfig::new(up, down, Seed::from_number(seed).child("network", 0))
    })
}

/// Runs the command and passes on how it ended.
pub(crate) fn run(args: &ShellArgs) -> Result<ExitCode, Failure> {
    let scenario = load(&args.scenario)?;
    let seed = args.seed.unwrap_or(scenario.run.seed);
    let config = settings(&scenario, seed, args.device.kind())?;
    Privilege::acquire()?;
    let runtime = runtime::start()?;
    runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let network = Network::start(&config)?;
        if !args.quiet {
            eprintln!(
                "{SERVER} is the server behind the path of `{}` (seed {seed}), {CLIENT} the client",
                scenario.name
            );
        }
        let server = args.server.as_ref().map(|command| serve(command, &network)).transpose()?;
        let program = if args.command.is_empty() {
            vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())]
        } else {
            args.command.clone()
        };
        let client = start(program, network.client(), false)?;
        // On a terminal, Ctrl-C reaches COMMAND as well: it is up to COMMAND whether that ends it.
        let interactive = std::io::stdin().is_terminal();
        let code = loop {
            if let Some(ended) = client.try_wait() {
                break ended
                    .map(|ended| ended.code())
                    .map_err(|error| Failure::new(format_args!("cannot wait for COMMAND: {error}")))?;
            }
            tokio::select! {
                () = interrupt.wait(), if !interactive => break 130,
                () = tokio::time::sleep(LOOK) => {}
            }
        };
        drop((client, server));
        let statistics = network.stop()?;
        if !args.quiet {
            eprintln!("{statistics}");
        }
        // A program that has met another path than the one asked for should know in any case.
        if let Some(doubt) = statistics.doubt() {
            eprintln!("do not trust this run: {doubt}");
        }
        Ok(ExitCode::from(code))
    })
}

/// Runs the supervisor of a program.
pub(crate) fn supervise(args: &SuperviseArgs) -> Result<ExitCode, Failure> {
    let code = network::supervise(&args.command);
    code.map(ExitCode::from).map_err(|error| Failure::new(format_args!("cannot wait for the program: {error}")))
}

fn start(program: Vec<OsString>, side: &Namespace, server: bool) -> Result<Running, Failure> {
    let variable = |name: &str, value: std::net::Ipv4Addr| (OsString::from(name), OsString::from(value.to_string()));
    let command = network::Command {
        supervisor: ["lab", "supervise", "--"].map(OsString::from).to_vec(),
        program,
        environment: vec![variable("TIDERACE_SERVER", SERVER), variable("TIDERACE_CLIENT", CLIENT)],
        without_input: server,
        output: if server { Output::Error } else { Output::Inherited },
    };
    command.start(side).map_err(|error| Failure::new(format_args!("cannot start a program behind the path: {error}")))
}

/// Starts a server and waits until it listens.
fn serve(command: &OsString, network: &Network) -> Result<Running, Failure> {
    let shell = ["sh".into(), "-c".into(), command.clone()];
    let server = start(shell.to_vec(), network.server(), true)?;
    let begun = Instant::now();
    loop {
        if let Some(ended) = server.try_wait() {
            let code = ended.map_or(1, |ended| ended.code());
            return Err(Failure::new(format_args!("the server has ended with code {code} before it listened"))
                .hint("what it said stands above"));
        }
        if network.server().listens(None) {
            return Ok(server);
        }
        if begun.elapsed() > LISTENS_WITHIN {
            return Err(Failure::new(format_args!("the server does not listen within {} s", LISTENS_WITHIN.as_secs()))
                .hint("it has to listen on 10.2.0.1 or on all addresses, by TCP or UDP over IPv4"));
        }
        std::thread::sleep(LOOK);
    }
}
