//! `tiderace edge compare`: policies of a running gateway against their control groups.

mod clients;
mod connections;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use lab::trial::{self, networks::NetworkTable, record::Records};
use serde_json::{Value, json};

use self::connections::Policy;
use super::{Running, ask, refusal};
use crate::{
    failure::Failure,
    stdout::{write_json_line, write_out},
};

/// A policy with transport settings and a share is compared by connection: rate, queueing, loss.
///
/// A policy with `http3 = false` is compared by client, QUIC against TCP: time of requests (p50, p95, p99) and failures. A client counts in
/// the arm that it was assigned to, whatever it uses. The time of a request lasts from its header section, or for the first one of a
/// connection from the beginning of the connection, to the acknowledgement of the whole response. A request is a failure if its response
/// did not arrive completely. A client counts for 32 requests at most.
#[derive(Debug, Parser)]
#[command(after_help = "Example, with a table of networks:
  tiderace edge compare --config edge.toml --networks operators.txt

A table has a network and its name on each line; the longest prefix wins:
  192.0.2.0/24     Example Mobile, north
  2001:db8::/32    Example Mobile, north")]
pub(super) struct Compare {
    #[command(flatten)]
    running: Running,
    /// Compare clients also by network, with the names in this file
    #[arg(long, value_name = "FILE")]
    networks: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads a table of networks.
fn table(path: &Path) -> Result<NetworkTable, Failure> {
    let file = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format_args!("{file}: cannot read the file: {error}")))?;
    NetworkTable::parse(&text).map_err(|error| Failure::new(format_args!("{file}:{error}")).hint(error.hint.as_str()))
}

/// The records in a gateway's answer. A gateway of an earlier version has none.
fn trials(answer: &Value) -> Result<Vec<(String, Records)>, Failure> {
    let all = answer["trials"].as_object().into_iter().flatten();
    let read = |(policy, records): (&String, &Value)| {
        let records = serde_json::from_value(records.clone()).map_err(|error| {
            Failure::new(format_args!("the gateway's records of `{policy}` cannot be read: {error}"))
                .hint("is the gateway of another version than this program?")
        });
        Ok((policy.clone(), records?))
    };
    all.map(read).collect()
}

pub(super) fn run(args: &Compare) -> Result<ExitCode, Failure> {
    let networks = args.networks.as_deref().map(table).transpose()?;
    let answer = ask(&args.running, "arms")?;
    let arms = answer["arms"].as_object().ok_or_else(|| refusal(&answer))?;
    let policies: Vec<Policy> = arms.iter().map(|(policy, arms)| Policy::compare(policy, arms)).collect();
    let trials = trials(&ask(&args.running, "trials")?)?;
    let reports: Vec<_> =
        trials.iter().map(|(policy, records)| (policy, trial::compare(records, networks.as_ref()))).collect();
    if args.json {
        let reports: serde_json::Map<String, Value> =
            reports.iter().map(|(policy, report)| ((*policy).clone(), json!(report))).collect();
        return write_json_line(&json!({"connections": policies, "clients": reports})).map(|()| ExitCode::SUCCESS);
    }
    if policies.is_empty() && reports.is_empty() {
        return write_out("no connection or request that a policy fits has ended yet\n").map(|()| ExitCode::SUCCESS);
    }
    let policies = policies.iter().map(Policy::text);
    let text: String = policies.chain(reports.iter().map(|(policy, report)| clients::text(policy, report))).collect();
    write_out(&text).map(|()| ExitCode::SUCCESS)
}
