//! `tiderace edge compare`: policies of gateways against their control groups.

mod clients;
mod connections;
mod sources;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use lab::trial::{self, networks::NetworkTable};
use serde_json::{Value, json};

use self::{connections::Policy, sources::Sources};
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
///
/// Of several gateways, the records are merged by policy and arm, and compared as those of one: --config, --socket and --records may be
/// repeated and combined. A client of several gateways is one client. --save writes the records of a gateway into a file on its machine.
/// The policies need the same name, share and key everywhere. When a gateway does not answer, nothing is compared.
#[derive(Debug, Parser)]
#[command(after_help = "Examples, with a table of networks, and of several gateways:
  tiderace edge compare --config edge.toml --networks operators.txt
  tiderace edge compare --config edge.toml --save gw1.json
  ssh gw2 tiderace edge compare --config edge.toml --save - > gw2.json
  tiderace edge compare --records gw1.json --records gw2.json

A table has a network and its name on each line; the longest prefix wins:
  192.0.2.0/24     Example Mobile, north
  2001:db8::/32    Example Mobile, north")]
pub(super) struct Compare {
    #[command(flatten)]
    sources: Sources,
    /// Write the records of the gateway into this file and compare nothing; `-` is the standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["networks", "json", "records"])]
    save: Option<PathBuf>,
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

pub(super) fn run(args: &Compare) -> Result<ExitCode, Failure> {
    let networks = args.networks.as_deref().map(table).transpose()?;
    let gateways = args.sources.read()?;
    if let Some(file) = &args.save {
        let [gateway] = &gateways[..] else {
            return Err(
                Failure::new("--save is for the records of one gateway").hint("name one, with --config or --socket")
            );
        };
        return gateway.save(file).map(|()| ExitCode::SUCCESS);
    }
    let arms = sources::arms(&gateways);
    let policies: Vec<Policy> = arms.iter().map(|(policy, arms)| Policy::compare(policy, arms)).collect();
    let trials = sources::trials(&gateways)?;
    let reports: Vec<_> =
        trials.iter().map(|(policy, records)| (policy, trial::compare(records, networks.as_ref()))).collect();
    if args.json {
        let reports: serde_json::Map<String, Value> =
            reports.iter().map(|(policy, report)| ((*policy).clone(), json!(report))).collect();
        let report = json!({"gateways": gateways.len(), "connections": policies, "clients": reports});
        return write_json_line(&report).map(|()| ExitCode::SUCCESS);
    }
    if policies.is_empty() && reports.is_empty() {
        return write_out("no connection or request that a policy fits has ended yet\n").map(|()| ExitCode::SUCCESS);
    }
    let policies = policies.iter().map(Policy::text);
    let head = if gateways.len() > 1 { format!("{} gateways together\n", gateways.len()) } else { String::new() };
    let text: String = std::iter::once(head)
        .chain(policies)
        .chain(reports.iter().map(|(policy, report)| clients::text(policy, report)))
        .collect();
    write_out(&text).map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use lab::{stats::compare::Verdict, trial::record::Records};

    use super::*;

    /// Records of a gateway, read as from a file.
    fn trials(trials: &Value) -> Result<Vec<(String, Records)>, Failure> {
        sources::trials(&[sources::Gateway::of(trials["trials"].clone())])
    }

    /// Records of a gateway: clients of both arms, with ten requests of about `ms` each.
    fn records(clients: u32, quic_ms: f64) -> Value {
        let client = |number: u32| {
            let (arm, ms) = if number.is_multiple_of(2) { ("tcp", 100.0) } else { ("quic", quic_ms) };
            let times = vec![json!([ms + f64::from(number % 9), "unreported"]); 10];
            json!({
                "client": format!("10.0.{}.{}", number / 200, number % 200), "arm": arm, "in_both": false, "off_arm": 0,
                "over_quic": 0, "counts": {"unreported": [10, 0]}, "times_ms": times,
            })
        };
        let all: Vec<Value> = (0..clients).map(client).collect();
        json!({"trials": {"live": {"share": 0.5, "since": 1, "requests": 1, "clients_seen": clients, "clients": all}}})
    }

    #[test]
    fn the_better_arm_has_its_name() {
        for (ms, verdict, word) in [(70.0, Verdict::Better, "QUIC is better"), (130.0, Verdict::Worse, "TCP is better")]
        {
            let all = trials(&records(400, ms)).unwrap();
            let report = trial::compare(&all[0].1, None);
            assert_eq!(report.tables[0].rows[0].figures[0].result.unwrap().verdict, verdict);
            let text = clients::text(&all[0].0, &report);
            assert!(text.lines().any(|line| line.starts_with("    p50") && line.ends_with(word)), "{text}");
        }
        let all = trials(&records(1, 100.0)).unwrap();
        let text = clients::text("live", &trial::compare(&all[0].1, None));
        assert!(text.contains("not comparable: no client is in the QUIC arm") && text.contains("hint: "), "{text}");
    }

    #[test]
    fn answers_of_other_versions() {
        assert!(trials(&json!({"error": "there is no command `trials`"})).unwrap().is_empty());
        assert!(trials(&json!({"trials": {"live": {"share": 0.5}}})).is_err());
    }

    #[test]
    fn a_bad_table_is_refused_with_file_and_line() {
        let folder = std::env::temp_dir().join(format!("tiderace-operators-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("operators.txt");
        std::fs::write(&file, "192.0.2.0/24 A\nnonsense\n").unwrap();
        let failure = table(&file).unwrap_err();
        assert!(failure.message().starts_with(&format!("{}:2: expected a network", file.display())), "{failure:?}");
        assert!(table(&folder.join("none")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
