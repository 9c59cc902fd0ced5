//! `tiderace probe`: measures the path between two hosts over real UDP, QUIC and TCP.
//!
//! - [`client`] measures, [`serve`] answers; [`protocol`] has their messages over QUIC, [`wire`] the datagrams, [`port`] the socket.
//! - [`estimate`] computes figures from packets, [`results`] holds these with their cost, [`report`] prints them.
//! - [`recommend`] has the rows of docs/choose.md, [`scenario`] writes a file for the laboratory, [`check_scenario`] measures that file, [`verify`] judges
//!   contenders,
//!   [`consent`] asks before the path is loaded.

mod check_scenario;
mod client;
mod consent;
mod estimate;
mod port;
mod protocol;
mod recommend;
mod report;
mod results;
mod scenario;
mod serve;
mod verify;
mod wire;

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use tiderace::units::{DataSize, duration_text};

use crate::{
    address::plain,
    failure::{Failure, UNSOUND},
    runtime,
    stdout::{write_json_line, write_out},
    trust::{CertificateArgs, TrustArgs},
};

/// Heading of the options of the other end.
const SERVE: &str = "Serve (with --serve)";

/// Measure a path: rate, delay, loss, queue, MTU; recommend settings; write a scenario.
///
/// The other end is `tiderace probe --serve ADDRESS:PORT`. Each figure has a 95 % interval, its cost in bytes and seconds, and its
/// method. Figures: RTT idle and under load, round trips per minute, variation of the one-way delay, loss and its bursts, reordering,
/// rate, queue, signs of a policer, path MTU, ECN marks, TCP beside UDP; on request the timeout of a NAT.
///
/// Rate, queue and RTT under load fill the path for some seconds. The command asks before that at a terminal; elsewhere it needs --yes.
/// --idle leaves out everything that loads the path.
///
/// The serving end accepts clients that have its token (or any client, with --open). It sends only to hosts that the QUIC handshake has
/// validated, within its limits. It uses one UDP and TCP port, and another UDP port for datagrams (--udp-port).
///
/// Ctrl-C ends the run early. The report then has the figures up to that moment, and notes name the others.
///
/// Exit code 0: measured; notes name what could not be measured. 1: interrupted, --check-scenario found a difference, or --verify a rival that is better. 2: an option is wrong, the server cannot be
/// reached, or it refuses; with --check-scenario, this machine has no emulated networks.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace probe --serve 0.0.0.0:4433
  tiderace probe 192.0.2.1:4433 --pin FINGERPRINT --token TOKEN
  tiderace probe 192.0.2.1:4433 --pin FINGERPRINT --token TOKEN --yes --json --scenario my-path.toml
  tiderace probe 192.0.2.1:4433 --pin FINGERPRINT --token TOKEN --yes --scenario my-path.toml --check-scenario
  tiderace lab run my-path.toml
  tiderace probe 192.0.2.1:4433 --pin FINGERPRINT --token TOKEN --yes --screen
  tiderace probe 192.0.2.1:4433 --pin FINGERPRINT --token TOKEN --idle --nat-timeout '2 min'

Documentation: docs/probe.md")]
pub(crate) struct Args {
    /// Address of the serving end
    #[arg(value_name = "HOST:PORT", required_unless_present = "serve")]
    server: Option<String>,
    /// Serve on this address, with UDP and TCP, until Ctrl-C
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "server", help_heading = SERVE)]
    serve: Option<SocketAddr>,
    /// Print JSON: the report, or a line for each event of a serving end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    probe: ProbeArgs,
    #[command(flatten)]
    serving: ServeArgs,
}

/// Options of the measuring end.
#[derive(Debug, Parser)]
struct ProbeArgs {
    /// Token of the serving end, which prints it
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Limit the duration to about this time; all parts become shorter
    #[arg(long, value_name = "TIME", default_value = "30 s", value_parser = duration_text::parse)]
    time: Duration,
    /// Limit the traffic of both directions together
    #[arg(long, value_name = "SIZE", default_value = "500 MB")]
    bytes: DataSize,
    /// Load the path without asking
    #[arg(long, short, conflicts_with = "idle")]
    yes: bool,
    /// Leave out everything that loads the path
    #[arg(long)]
    idle: bool,
    /// Measure the timeout of NAT bindings up to this time; takes as long
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    nat_timeout: Option<Duration>,
    /// Show rates and round trips of each part on a screen of its own; the last line has the keys. Without a terminal, or with --json, lines
    /// every 5 s
    #[arg(long)]
    screen: bool,
    /// Write a scenario with this path, for `tiderace lab run FILE`
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Then run contenders over this path in interleaved rounds: the recommended congestion control, its rivals and the kernel's TCP. Takes
    /// 24 transfers of a tenth of --time (1 to 5 s each), and up to --bytes once more
    #[arg(long, conflicts_with_all = ["idle", "serve"])]
    verify: bool,
    /// Measure the scenario, too, on an emulated path of this machine (Linux; as root or in a user namespace), and compare the figures and
    /// the fate of ECN marks in each direction; takes as long again
    #[arg(long, conflicts_with_all = ["idle", "serve"])]
    check_scenario: bool,
    /// Wait for the handshake for at most this time
    #[arg(long, value_name = "TIME", default_value = "10 s", value_parser = duration_text::parse)]
    timeout: Duration,
    /// Verify the server's certificate for this name [default: HOST]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
}

/// Options of the serving end. `--token` is shared.
#[derive(Debug, Parser)]
struct ServeArgs {
    /// Accept clients without a token
    #[arg(long, requires = "serve", conflicts_with = "token", help_heading = SERVE)]
    open: bool,
    /// Use this UDP port for datagrams [default: any free one]
    #[arg(long, value_name = "PORT", requires = "serve", help_heading = SERVE)]
    udp_port: Option<u16>,
    /// Serve at most this many clients at a time
    #[arg(long, value_name = "N", default_value = "4", help_heading = SERVE)]
    clients: NonZeroUsize,
    /// Limit the bytes per hour of each client address, both directions together
    #[arg(long, value_name = "SIZE", default_value = "2 GB", help_heading = SERVE)]
    client_bytes: DataSize,
    /// Limit the bytes per hour of all clients
    #[arg(long, value_name = "SIZE", default_value = "20 GB", help_heading = SERVE)]
    total_bytes: DataSize,
    /// Limit the length of a session
    #[arg(long, value_name = "TIME", default_value = "15 min", value_parser = duration_text::parse, help_heading = SERVE)]
    longest: Duration,
    #[command(flatten)]
    certificate: CertificateArgs,
}

/// Limits of `--time`.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(600);

impl ProbeArgs {
    fn check(&self) -> Result<(), Failure> {
        if !TIMES.contains(&self.time) {
            return Err(
                Failure::new("`--time` is not between 5 s and 10 min").hint("the default, 30 s, does for most paths")
            );
        }
        if self.bytes.as_bytes() < 1_000_000 {
            return Err(Failure::new("`--bytes` is below 1 MB, in which hardly anything can be measured")
                .hint("a rate of R takes about R × 5 s; `--idle` takes some 100 kB"));
        }
        if self.check_scenario && !cfg!(target_os = "linux") {
            return Err(Failure::new("`--check-scenario` needs an emulated path, which this system does not have")
                .hint("write a scenario with `--scenario FILE`, and check it on Linux"));
        }
        if self.timeout.is_zero() {
            return Err(Failure::new("no handshake is complete within no time").hint("give `--timeout` more than 0"));
        }
        Ok(())
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start_parallel()?;
    let result = match (&args.serve, &args.server) {
        (Some(address), _) => {
            runtime.block_on(serve::run(*address, args.probe.token.as_ref(), &args.serving, args.json))
        }
        (None, Some(server)) => runtime.block_on(measure(server, args)),
        (None, None) => Err(Failure::new("which host?").hint("tiderace probe HOST:PORT")),
    };
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

async fn measure(server: &str, args: &Args) -> Result<ExitCode, Failure> {
    args.probe.check()?;
    let results = client::run(server, &args.probe, args.json).await?;
    let check = if args.probe.check_scenario { Some(check_scenario::run(&results, &args.probe).await) } else { None };
    let checked = check.as_ref().and_then(|result| result.as_ref().ok());
    if args.json {
        let mut report = report::json(&results, server);
        if args.probe.check_scenario {
            report["scenario_check"] = serde_json::json!(checked);
        }
        write_json_line(&report)?;
    } else {
        write_out(
            &(report::text(&results, server) + &checked.map_or_else(String::new, check_scenario::ScenarioCheck::text)),
        )?;
    }
    if let Some(file) = &args.probe.scenario {
        let name = file.file_stem().and_then(|stem| stem.to_str()).map_or_else(|| "measured".to_owned(), scenario_name);
        let text = scenario::text(&results, &name, server).ok_or_else(|| {
            Failure::new("no scenario is written: it needs a round trip and a rate of downloads")
                .hint("load the path: without `--idle`, with `--yes`")
        })?;
        std::fs::write(file, text).map_err(|error| {
            Failure::new(format_args!("cannot write {}: {}", file.display(), plain(&error))).hint("name another file")
        })?;
        eprintln!("scenario: tiderace lab run {}", file.display());
    }
    let agrees = check.transpose()?.is_none_or(|check| check.agrees);
    let is_beaten = results.verification.as_ref().is_some_and(verify::Verification::is_beaten);
    Ok(if results.is_partial || !agrees || is_beaten { ExitCode::from(UNSOUND) } else { ExitCode::SUCCESS })
}

/// Lower-case letters, digits and hyphens, as names of scenarios are.
fn scenario_name(stem: &str) -> String {
    let name: String = stem
        .to_ascii_lowercase()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .collect();
    let name = name.trim_matches('-').to_owned();
    if name.is_empty() { "measured".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_scenarios() {
        assert_eq!(scenario_name("My Path_1"), "my-path-1");
        assert_eq!(scenario_name("..."), "measured");
    }
}
