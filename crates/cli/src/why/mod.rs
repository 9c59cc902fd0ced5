//! `tiderace why`: one object over HTTP/3 and over HTTP/2, and what holds the slower one back.
//!
//! - [`rounds`] makes exchanges, [`exchange`] is one of them; [`observe`], [`handshake`], [`streams`], [`tcp`], [`cpu`] and
//!   [`arrivals`] watch it.
//! - [`evidence`] is what was seen, [`diagnosis`] turns it into verdicts, [`report`] prints both.
//! - [`discover`] finds HTTP/3.

mod arrivals;
mod cpu;
mod diagnosis;
mod discover;
mod evidence;
mod exchange;
mod handshake;
mod observe;
mod report;
mod rounds;
mod streams;
mod tcp;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use client::Trust;
use tiderace::units::{DataSize, duration_text};

use self::{
    evidence::{Evidence, Transport},
    rounds::Budget,
};
use crate::{
    failure::Failure,
    get::request::{Field, Resolved},
    runtime,
    stdout::{write_json_line, write_out},
    watch::WatchArgs,
};

/// Heading of the options about connections.
const CONNECTION: &str = "Connection";

/// Say why HTTP/3 is slower than HTTP/2 for a URL, or the other way round, or that it is not.
///
/// The object is fetched over HTTP/3 and over HTTP/2 on the kernel's TCP, in rounds that take turns, each on a connection of its own
/// from the same address. Small requests (HEAD) on the same connections show how long others wait. The verdict names the slower
/// transport with an interval, the causes with the figures that support them, and what is missing where the data do not suffice.
///
/// Causes: congestion control of the server, flow control window, UDP shaped or blocked, MTU black hole, pace of the server, CPU of
/// this client, handshake, reordering taken for loss, too few acknowledgements, bufferbloat, head-of-line blocking. Only downloads
/// are compared: the server's side is seen through what arrives here.
///
/// Each round transfers the object twice; --bytes and --time limit all of them together, and larger objects are cut. An object of some
/// megabytes shows most.
///
/// Exit code 0: there is a verdict, which may be that the data do not suffice. 2: an option is wrong, or the server does not speak both.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace why https://www.example.org/large.bin
  tiderace why https://www.example.org/large.bin --rounds 20 --bytes '1 GB' --json
  tiderace why -k https://localhost:8443/file --resolve localhost:8443:192.0.2.1

Documentation: docs/why.md")]
pub(crate) struct Args {
    /// URL to fetch: https://…
    #[arg(value_name = "URL")]
    url: String,
    /// Rounds, each with one transfer over either transport; fewer than 6 give no interval, 9 and more bear an outlier
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Transfer at most about so many bytes in all rounds together
    #[arg(long, value_name = "SIZE", default_value = "100 MB")]
    bytes: DataSize,
    /// Transfer for at most about so long in all rounds together
    #[arg(long, value_name = "TIME", default_value = "60 s", value_parser = duration_text::parse)]
    time: Duration,
    /// Send this field; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    fields: Vec<Field>,
    /// Print JSON: the verdicts, and everything that was measured
    #[arg(long)]
    json: bool,
    /// Take any certificate. An attacker on the path can pose as the server
    #[arg(short = 'k', long, conflicts_with = "ca", help_heading = CONNECTION)]
    insecure: bool,
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE", visible_alias = "cacert", help_heading = CONNECTION)]
    ca: Option<std::path::PathBuf>,
    /// Use this address for a host and port in place of a look-up
    #[arg(long, value_name = "HOST:PORT:ADDRESS", help_heading = CONNECTION)]
    resolve: Vec<Resolved>,
    /// Wait for a connection for at most so long
    #[arg(long, value_name = "TIME", default_value = "10 s", value_parser = duration_text::parse, help_heading = CONNECTION)]
    connect_timeout: Duration,
    /// Speak QUIC to this address in place of the one that is found, such as a relay
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = CONNECTION)]
    udp: Option<SocketAddr>,
    /// Give the server this credit over HTTP/3 (flow control window), which does not grow
    #[arg(long, value_name = "SIZE", help_heading = CONNECTION)]
    receive_window: Option<DataSize>,
    #[command(flatten)]
    watch: WatchArgs,
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        if self.time < Duration::from_secs(2) {
            return Err(
                Failure::new("`--time` is below 2 s").hint("the default, 60 s, does for 10 rounds of most objects")
            );
        }
        if self.bytes.as_bytes() < 10_000 {
            return Err(Failure::new("`--bytes` is below 10 kB").hint("a verdict on rates needs some megabytes"));
        }
        if self.connect_timeout.is_zero() {
            return Err(
                Failure::new("no connection is there within no time").hint("give `--connect-timeout` more than 0")
            );
        }
        Ok(())
    }

    fn trust(&self) -> Result<Trust, Failure> {
        match &self.ca {
            None if self.insecure => Ok(Trust::Anyone),
            None => Ok(Trust::Platform),
            Some(path) => std::fs::read(path).map(Trust::Pem).map_err(|error| {
                Failure::new(format_args!("cannot read {}: {error}", path.display())).hint("--ca takes a PEM file")
            }),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.check()?;
    // One thread: its clocks are those of the receiver.
    let runtime = runtime::start()?;
    let result = runtime.block_on(explain(args));
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

async fn explain(args: &Args) -> Result<ExitCode, Failure> {
    if args.insecure {
        eprintln!(
            "WARNING: --insecure: the server's certificate is not checked. Anybody on the path can pose as the server."
        );
    }
    let watched = args.watch.open("tiderace why")?;
    let (target, found) = discover::find(args, watched.of_client()).await?;
    let share = args.bytes.as_bytes() / (2 * u64::from(args.rounds));
    let wanted = found.length.map_or(share, |length| length.min(share));
    let is_whole = found.length == Some(wanted);
    let mut evidence = Evidence { discovery: found.discovery, wanted, ..Evidence::default() };
    let budget = Budget { rounds: args.rounds, is_whole, bytes: args.bytes.as_bytes(), time: args.time };
    rounds::run(&target, budget, &mut evidence).await?;
    watched.finish();
    settle_wanted(&mut evidence);
    if let Some(failure) = discover::missing(&evidence, &target).await {
        if args.json && !evidence.exchanges.is_empty() {
            write_json_line(&report::json(&evidence, None, &args.url))?;
        }
        return Err(failure);
    }
    let is_over = evidence.ended_early.as_deref().is_some_and(|why| why.starts_with(rounds::INTERRUPTED));
    if !is_over && evidence.of(Transport::H3).any(|exchange| exchange.error.is_none()) {
        evidence.resumption = target.resume().await;
    }
    let diagnosis = diagnosis::diagnose(&evidence);
    if args.json {
        write_json_line(&report::json(&evidence, Some(&diagnosis), &args.url))?;
    } else {
        write_out(&report::text(&evidence, &diagnosis, &args.url))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The object's length is known once it has been transferred.
fn settle_wanted(evidence: &mut Evidence) {
    let whole = evidence.exchanges.iter().filter(|exchange| exchange.error.is_none() && exchange.cut.is_none());
    if let Some(length) = whole.map(|exchange| exchange.bytes).max() {
        evidence.wanted = evidence.wanted.min(length.max(1));
    }
}
