//! `tiderace relay`: a modelled path between UDP programs, in real time.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use emu::{Relay, RelayConfig, RelayError, Statistics};
use lab::scenario::{Scenario, ScenarioError, load};
use netem::{DropReason, LinkCounters, Queue};
use serde_json::{Value, json};
use units::Seed;

use crate::{
    address,
    failure::{Failure, UNSOUND},
    interrupt::Interrupt,
    runtime,
    stdout::{write_json_line, write_out},
    watch,
};

/// Put a modelled path between a client and a server.
///
/// Clients send to the relay instead of the server. Every packet passes the path of a scenario with its rate, queue, delay, loss and
/// NAT. The link model is the one that `tiderace lab` runs in virtual time. Times of the scenario count from the first packet. The
/// relay needs no privileges. Ctrl-C ends it and prints totals.
///
/// Exit code 0: the path behaved as configured. 1: it did not, because this machine was too slow or too busy; the last line gives the
/// reason. 2: an option, the scenario or an address is wrong, or the relay does not support a key of the scenario; the message names
/// the key.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace perf server --listen 127.0.0.1:4433
  tiderace relay --path mobile --listen 127.0.0.1:4434 --to 127.0.0.1:4433
  tiderace perf client 127.0.0.1:4434 --insecure")]
pub(crate) struct Args {
    /// Use the path of this scenario: a preset (see `tiderace lab list`) or a file
    #[arg(long, value_name = "SCENARIO|FILE")]
    path: String,
    /// Listen on this address; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Forward to this server
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Seed of the path's random numbers [default: the scenario's first]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the packets that clients send and receive to this file (pcapng), for Wireshark
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
    /// Add the keys of this TLS key log to that file when the relay ends; clients and servers write the log that SSLKEYLOGFILE names
    #[arg(long, value_name = "FILE", requires = "pcapng")]
    keys: Option<PathBuf>,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Interval between checks that the relay still works.
const LOOK: Duration = Duration::from_millis(500);

impl From<RelayError> for Failure {
    fn from(error: RelayError) -> Self {
        let text = error.to_string();
        let failure = Self::new(text.split(" (os error").next().unwrap_or_default());
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// Runs the relay until it is asked to end.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let scenario = load(&args.path)?;
    let to = address::resolve(&args.to)?.address;
    refuse_impossible(&scenario, &args.path, to)?;
    let seed = args.seed.unwrap_or(scenario.run.seed);
    let packets = args.pcapng.as_deref().map(watch::create).transpose()?;
    let config = RelayConfig {
        up: scenario.path.up().clone(),
        down: scenario.path.down.clone(),
        nat: scenario.path.nat.clone(),
        seed: Seed::from_number(seed),
        packets: packets.clone(),
        ..RelayConfig::new(args.listen, to)
    };
    let runtime = runtime::start()?;
    let statistics = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let relay = Relay::start(&config)?;
        announce(args, &scenario.name, seed, relay.address(), to)?;
        loop {
            tokio::select! {
                () = interrupt.wait() => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            if relay.statistics().is_err() {
                break;
            }
        }
        // If it has stopped by itself, this says why.
        Ok::<_, Failure>(relay.stop()?)
    })?;
    if let Some(packets) = packets {
        watch::finish(&packets, args.keys.as_deref());
    }
    let doubt = statistics.doubt();
    if args.json {
        write_json_line(&json(&statistics, doubt.as_deref()))?;
    } else {
        write_out(&format!("{statistics}\n"))?;
        if let Some(doubt) = &doubt {
            write_out(&format!("do not trust this run: {doubt}\n"))?;
        }
    }
    Ok(if doubt.is_some() { ExitCode::from(UNSOUND) } else { ExitCode::SUCCESS })
}

/// Names the first key of the scenario that the relay could not obey.
fn refuse_impossible(scenario: &Scenario, origin: &str, to: SocketAddr) -> Result<(), Failure> {
    let refuse = |field: String, message: &str, hint: &str| {
        let (message, hint) = (message.to_owned(), Some(hint.to_owned()));
        Err(ScenarioError { origin: origin.to_owned(), line: None, field: Some(field), message, hint }.into())
    };
    for (direction, link) in [("down", Some(&scenario.path.down)), ("up", scenario.path.up.as_ref())] {
        if matches!(link.map(|link| &link.queue), Some(Queue::Codel(_) | Queue::FqCodel(_))) {
            let message = "the relay has drop-tail queues only; CoDel and FQ-CoDel work in the simulator";
            return refuse(format!("path.{direction}.queue"), message, "give the queue a size, such as \"125 kB\"");
        }
    }
    let rebind = scenario.path.nat.iter().flat_map(|nat| &nat.rebind);
    if !(to.is_ipv4() && to.ip().is_loopback())
        && let Some(index) = rebind.clone().position(|rebinding| rebinding.address)
    {
        let message = "the relay has a second address only for a server on 127.0.0.0/8";
        let hint = "run the server on this machine, or leave `address` out: then the port changes";
        return refuse(format!("path.nat.rebind[{index}].address"), message, hint);
    }
    if let Some(factor) = scenario.varied_path() {
        let message = "the relay has one path, and this scenario varies it";
        return refuse(format!("factors.\"{factor}\""), message, "write a file with one value of it in [path]");
    }
    Ok(())
}

fn announce(args: &Args, path: &str, seed: u64, address: SocketAddr, to: SocketAddr) -> Result<(), Failure> {
    if args.json {
        return write_json_line(&json!({
            "event": "listening", "address": address.to_string(), "to": to.to_string(), "path": path, "seed": seed,
        }));
    }
    eprintln!("{address} leads to {to} by the path of `{path}` (seed {seed}), Ctrl-C ends");
    Ok(())
}

fn json(statistics: &Statistics, doubt: Option<&str>) -> Value {
    let late = |share| statistics.lateness.quantile(share);
    json!({
        "event": "total",
        "up": link(&statistics.up), "down": link(&statistics.down),
        "lateness_p50_ns": late(0.5), "lateness_p99_ns": late(0.99), "lateness_p999_ns": late(0.999),
        "sent_packets": statistics.sent, "held_packets": statistics.held, "clients": statistics.clients,
        "refused_packets": statistics.refused, "overflowed_packets": statistics.overflowed,
        "kernel_dropped_packets": statistics.kernel_dropped, "send_failed_packets": statistics.send_failed,
        "orphaned_packets": statistics.orphaned, "rebindings": statistics.rebindings,
        "unmapped_packets": statistics.unmapped, "unreachable_reports": statistics.unreachable,
        "real_time_priority": statistics.preferred,
        "trusted": doubt.is_none(), "doubt": doubt,
    })
}

fn link(counters: &LinkCounters) -> Value {
    let dropped: serde_json::Map<String, Value> = DropReason::ALL
        .iter()
        .map(|&reason| (format!("{}_packets", reason.name()), counters.dropped(reason).packets.into()))
        .collect();
    json!({
        "offered_packets": counters.offered.packets, "offered_bytes": counters.offered.bytes,
        "delivered_packets": counters.delivered.packets, "delivered_bytes": counters.delivered.bytes,
        "dropped": dropped, "duplicated_packets": counters.duplicated, "corrupted_packets": counters.corrupted,
        "reordered_packets": counters.reordered, "queue_peak_bytes": counters.queue_peak_bytes,
    })
}
