//! `tiderace perf`: measures connections between two hosts or processes, over QUIC or the kernel's TCP.
//!
//! - [`server`] answers; [`client`] measures as its [`options`] say, and reports the [`outcome`].
//! - [`protocol`] is the protocol of both over QUIC. [`quic`] is the client's run, [`reach`] its connections, [`transfer`] one stream.
//! - [`beside`] has QUIC and the kernel's TCP take turns.
//! - [`datagrams`] sends datagrams at a fixed rate, [`requests`] compares kinds of connections, [`mod@tcp`] does the same over TCP.
//! - [`interval`] prints lines during a transfer, [`progress`] a bar, [`live`] lines or metrics.
//! - [`mod@lines`] are those that a server prints.
//! - [`report`] prints the result, [`prometheus`] prints it as metrics; [`samples`] has statistics of times, [`mod@fec`] counters of
//!   repair.
//! - [`cpu`] is CPU time.

mod beside;
mod client;
mod cpu;
mod datagrams;
mod ended;
mod fec;
mod interval;
mod lines;
mod live;
mod options;
mod outcome;
mod progress;
mod prometheus;
mod protocol;
mod quic;
mod reach;
mod report;
mod requests;
mod samples;
mod server;
mod tcp;
mod transfer;

use std::{process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use tiderace::{
    Profile,
    transport::{ack_frequency::AckFrequency, congestion::Algorithm, fec::FecPolicy, recovery::LossTolerance},
    units::{DataSize, ParseUnitError, Probability, ProbabilityError},
};

use crate::{
    failure::Failure,
    runtime,
    watch::{WatchArgs, Watched},
};

/// Measure QUIC, or the kernel's TCP, between two hosts.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Server(server::Args),
    Client(options::Args),
}

/// Sending options of this end, and its log.
#[derive(Debug, Parser)]
struct EndArgs {
    /// Congestion control of what this end sends [default: cubic; with --tcp the kernel's default]
    #[arg(long, value_name = "ALGORITHM")]
    cc: Option<String>,
    /// Largest UDP payload that this end sends, in bytes. Discovery starts at 1200; Ethernet carries 1472 over IPv4 and 1452 over IPv6
    #[arg(long, value_name = "SIZE", default_value = "1452", value_parser = udp_payload)]
    mtu: u16,
    /// Forward error correction of what this end sends: `off`, `receive` (recover what the peer protects), `auto`, or a code such as
    /// `rlc:1/5:40`, `rs:10+2`, `xor:10`. Both ends have to support it: an end with `off` receives none
    #[arg(long, value_name = "POLICY", default_value = "receive")]
    fec: FecPolicy,
    /// Acknowledgement frequency that this end requests of its peer (draft-ietf-quic-ack-frequency): `off` requests nothing, `fixed:N`
    /// one acknowledgement for N packets, `adaptive` follows the path
    #[arg(long, value_name = "POLICY", default_value = "off")]
    ack_frequency: AckFrequency,
    /// Share of packets whose loss congestion control ignores as long as no queue builds: up to '15 %'. For cubic, bbr2 and bbr3; auto
    /// measures the share itself
    #[arg(long, value_name = "SHARE", default_value = "0 %", value_parser = loss_tolerance)]
    loss_tolerance: LossTolerance,
    #[command(flatten)]
    watch: WatchArgs,
}

impl EndArgs {
    fn profile(&self) -> Result<Profile, Failure> {
        let congestion = self.cc.as_deref().map(congestion).transpose()?.unwrap_or_default();
        let mut profile = Profile {
            name: "perf".to_owned(),
            congestion,
            max_mtu: self.mtu,
            fec: self.fec,
            ack_frequency: self.ack_frequency,
            random_loss_tolerance: self.loss_tolerance,
            ..Profile::default()
        };
        profile.streams.max_streams_bidi = MAX_STREAMS;
        Ok(profile)
    }

    /// Records that are asked for.
    fn watch(&self) -> Result<Watched, Failure> {
        self.watch.open("tiderace perf")
    }
}

/// Streams that a client may have open on a connection: those it transfers on, and one for the report.
const MAX_STREAMS: u64 = 1_001;

/// Reads the size of a UDP payload.
fn udp_payload(text: &str) -> Result<u16, String> {
    let size: DataSize = text.parse().map_err(|error: ParseUnitError| error.to_string())?;
    let fitting = u16::try_from(size.as_bytes()).ok().filter(|bytes| (1200..=1472).contains(bytes));
    fitting.ok_or_else(|| format!("{size} is not between 1200 and 1472 bytes"))
}

/// Reads a share of packets.
fn loss_tolerance(text: &str) -> Result<LossTolerance, String> {
    let share: Probability = text.parse().map_err(|error: ProbabilityError| error.to_string())?;
    LossTolerance::try_from(share).map_err(|error| error.to_string())
}

/// Finds a congestion controller by its name.
fn congestion(name: &str) -> Result<Algorithm, Failure> {
    name.parse().map_err(|_| {
        let names = Algorithm::ALL.map(Algorithm::name);
        let failure = Failure::new(format_args!("there is no congestion controller `{name}`"));
        match lab::scenario::nearest(name, names) {
            Some(meant) => failure.hint(format_args!("did you mean `{meant}`? there are {}", names.join(", "))),
            None => failure.hint(format_args!("there are {}", names.join(", "))),
        }
    })
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    let result = match args.command {
        Command::Server(args) => runtime.block_on(server::run(args)),
        Command::Client(args) => runtime.block_on(client::run(args)),
    };
    // Whatever still runs has nothing more to say.
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

/// Unit of bytes for CPU time.
const GIB: f64 = 1_073_741_824.0;

/// CPU time for each GiB; `None` without bytes.
#[expect(clippy::cast_precision_loss, reason = "a figure for a report")]
fn per_gib(time: Duration, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| time.as_secs_f64() / (bytes as f64 / GIB))
}
