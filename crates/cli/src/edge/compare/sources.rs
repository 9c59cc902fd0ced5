//! Gateways of a comparison: their records, from admin sockets and files, each gateway once.
//!
//! A file has what a gateway has answered: `tiderace edge compare --save FILE` writes it on the machine of the gateway.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::Parser;
use lab::trial::{
    merge::{merge, spread},
    record::Records,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    edge::{Running, ask, refusal},
    failure::Failure,
};

/// Schema of a file of records.
const SCHEMA: &str = "tiderace-edge-records/1";
/// Arms of a policy with transport settings.
const ARMS: [&str; 2] = ["with", "without"];

/// Gateways to compare.
#[derive(Debug, Parser)]
pub(super) struct Sources {
    /// Configuration file that names the admin socket of a gateway; may be repeated
    #[arg(long, value_name = "FILE", required_unless_present_any = ["socket", "records"])]
    config: Vec<PathBuf>,
    /// Admin socket of a gateway; may be repeated
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Records of a gateway, from `tiderace edge compare --save FILE` on its machine; may be repeated
    #[arg(long, value_name = "FILE")]
    records: Vec<PathBuf>,
}

/// Records of one gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    /// Socket or file, as it was named.
    source: String,
    /// Random name of the gateway's process. A gateway of an earlier version has none.
    instance: Option<String>,
    /// Samples of connections, by policy and arm.
    arms: Value,
    /// Records of clients, by policy.
    trials: Value,
}

impl Sources {
    /// Asks all gateways and reads all files.
    ///
    /// # Errors
    /// When a gateway does not answer, a file cannot be read, or a gateway is there twice: a comparison without one of them, or with one
    /// counted twice, would be of other clients than those that were asked for.
    pub(super) fn read(&self) -> Result<Vec<Gateway>, Failure> {
        let configs = self.config.iter().map(|file| (file, Running { config: Some(file.clone()), socket: None }));
        let sockets = self.socket.iter().map(|path| (path, Running { config: None, socket: Some(path.clone()) }));
        let mut all: Vec<Gateway> =
            configs.chain(sockets).map(|(named, running)| Gateway::ask(named, &running)).collect::<Result<_, _>>()?;
        for file in &self.records {
            all.push(Gateway::read(file)?);
        }
        each_once(&all)?;
        Ok(all)
    }
}

/// Refuses a gateway that is named twice, and one that cannot be told from the others.
fn each_once(all: &[Gateway]) -> Result<(), Failure> {
    if all.len() < 2 {
        return Ok(());
    }
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for gateway in all {
        let Some(instance) = &gateway.instance else {
            return Err(Failure::new(format_args!(
                "{}: the gateway is of an earlier version, and cannot be told from the others",
                gateway.source
            ))
            .hint("compare it alone, or run the same version everywhere"));
        };
        if let Some(other) = seen.insert(instance, &gateway.source) {
            return Err(Failure::new(format_args!(
                "{other} and {} are of the same gateway, whose clients would count twice",
                gateway.source
            ))
            .hint("name each gateway once; of files of one gateway, the newest"));
        }
    }
    Ok(())
}

impl Gateway {
    /// Gateway that has only records of clients.
    #[cfg(test)]
    pub(super) fn of(trials: Value) -> Self {
        Self { source: "test".to_owned(), instance: None, arms: json!({}), trials }
    }

    /// Asks a gateway that runs.
    fn ask(named: &Path, running: &Running) -> Result<Self, Failure> {
        let answer = ask(running, "arms")?;
        if !answer["arms"].is_object() {
            return Err(refusal(&answer));
        }
        // A gateway of an earlier version has no trials.
        let trials = ask(running, "trials")?["trials"].take();
        let instance = answer["gateway"].as_str().map(str::to_owned);
        Ok(Self { source: named.display().to_string(), instance, arms: answer["arms"].clone(), trials })
    }

    /// Reads the records in a file.
    fn read(path: &Path) -> Result<Self, Failure> {
        let source = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::new(format_args!("{source}: cannot read the file: {error}")))?;
        Self::parse(&source, &text)
    }

    fn parse(source: &str, text: &str) -> Result<Self, Failure> {
        let mut value: Value = serde_json::from_str(text).unwrap_or_default();
        if value["schema"] != SCHEMA {
            let found = value["schema"].as_str().unwrap_or("something else");
            return Err(Failure::new(format_args!("{source}: expected records ({SCHEMA}), found {found}")).hint(
                "`tiderace edge compare --config edge.toml --save FILE` writes them on the machine of the gateway",
            ));
        }
        let instance = value["gateway"].as_str().map(str::to_owned);
        Ok(Self { source: source.to_owned(), instance, arms: value["arms"].take(), trials: value["trials"].take() })
    }

    /// Writes the records into a file, which only its owner can read, or onto the standard output for `-`: they have addresses of clients.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn save(&self, path: &Path) -> Result<(), Failure> {
        use std::os::unix::fs::OpenOptionsExt;

        let value =
            json!({"schema": SCHEMA, "gateway": self.instance, "arms": self.arms, "trials": self.trials}).to_string();
        if path == Path::new("-") {
            return crate::stdout::write_out(&(value + "\n"));
        }
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        file.and_then(|mut file| writeln!(file, "{value}"))
            .map_err(|error| Failure::new(format_args!("{}: cannot write the file: {error}", path.display())))
    }
}

/// Samples of connections by policy, of all gateways: each arm as thin as where it is thinnest.
pub(super) fn arms(gateways: &[Gateway]) -> BTreeMap<String, Value> {
    let mut merged = BTreeMap::new();
    for policy in policies(gateways, |gateway| &gateway.arms) {
        let arms = ARMS.map(|arm| {
            let parts: Vec<&Value> = gateways.iter().map(|gateway| &gateway.arms[&policy][arm]).collect();
            (arm.to_owned(), merged_arm(&parts))
        });
        merged.insert(policy, Value::Object(arms.into_iter().collect()));
    }
    merged
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of samples"
)]
fn merged_arm(parts: &[&Value]) -> Value {
    let connections = |part: &Value| part["connections"].as_u64().unwrap_or(0);
    let samples = |part: &Value| part["samples"].as_array().map(Vec::len).unwrap_or_default();
    let density = |part: &Value| samples(part) as f64 / connections(part).max(1) as f64;
    // An arm without connections takes nothing from the others.
    let having = || parts.iter().filter(|part| connections(part) > 0);
    let thinnest = having().map(|part| density(part)).fold(1.0, f64::min);
    let taken: Vec<Value> = having()
        .flat_map(|part| {
            let wanted = (samples(part) as f64 * thinnest / density(part)).round() as usize;
            spread(part["samples"].as_array().cloned().unwrap_or_default(), wanted)
        })
        .collect();
    json!({"connections": having().map(|part| connections(part)).sum::<u64>(), "samples": taken})
}

/// Records of clients by policy, of all gateways.
///
/// # Errors
/// When records cannot be read, or those of a policy cannot be merged.
pub(super) fn trials(gateways: &[Gateway]) -> Result<Vec<(String, Records)>, Failure> {
    let mut merged = Vec::new();
    for policy in policies(gateways, |gateway| &gateway.trials) {
        let having = gateways.iter().filter(|gateway| gateway.trials[&policy].is_object());
        let parts: Vec<(String, Records)> = having
            .map(|gateway| {
                let records = Records::deserialize(&gateway.trials[&policy]).map_err(|error| {
                    let source = &gateway.source;
                    Failure::new(format_args!("{source}: the records of `{policy}` cannot be read: {error}"))
                        .hint("is the gateway of another version than this program?")
                })?;
                Ok((gateway.source.clone(), records))
            })
            .collect::<Result<_, Failure>>()?;
        let records = merge(parts)
            .map_err(|error| Failure::new(format_args!("policy `{policy}`: {error}")).hint(error.hint()))?;
        merged.extend(records.map(|records| (policy, records)));
    }
    Ok(merged)
}

/// Names of policies that any gateway has.
fn policies(gateways: &[Gateway], of: fn(&Gateway) -> &Value) -> BTreeSet<String> {
    gateways.iter().filter_map(|gateway| of(gateway).as_object()).flat_map(|map| map.keys().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(source: &str, instance: Option<&str>) -> Gateway {
        let instance = instance.map(str::to_owned);
        Gateway { source: source.to_owned(), instance, arms: json!({}), trials: Value::Null }
    }

    #[test]
    fn a_gateway_counts_once() {
        assert!(each_once(&[gateway("a", Some("1")), gateway("b", Some("2"))]).is_ok());
        assert!(each_once(&[gateway("old", None)]).is_ok());
        let twice = each_once(&[gateway("a", Some("1")), gateway("b", Some("2")), gateway("c", Some("1"))]);
        assert!(twice.unwrap_err().message().starts_with("a and c are of the same gateway"));
        let old = each_once(&[gateway("a", Some("1")), gateway("old", None)]).unwrap_err();
        assert!(old.message().starts_with("old: the gateway is of an earlier version"), "{old:?}");
    }

    #[test]
    fn files_read_back_and_others_are_refused() {
        let folder = std::env::temp_dir().join(format!("tiderace-records-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("gw.json");
        let arms = json!({"p": {"with": {"connections": 2, "samples": [{"rate": 1.0}]}}});
        Gateway { arms: arms.clone(), ..gateway("gw", Some("7")) }.save(&file).unwrap();
        let read = Gateway::read(&file).unwrap();
        assert_eq!((read.instance.as_deref(), &read.arms, &read.trials), (Some("7"), &arms, &Value::Null));
        fs::remove_dir_all(&folder).unwrap();
        for text in ["", "{}", r#"{"schema": "tiderace-lab-run/2"}"#] {
            let failure = Gateway::parse("x.json", text).unwrap_err();
            assert!(failure.message().starts_with("x.json: expected records"), "{failure:?}");
        }
        assert!(Gateway::read(&folder.join("none")).is_err());
    }

    #[test]
    fn each_connection_has_the_same_chance_in_the_merged_arm() {
        // 1,000 of 10,000 connections at one gateway, and all of 100 at the other.
        let samples = |count: u32, rate: f64| vec![json!({"rate": rate}); count as usize];
        let busy = json!({"p": {"with": {"connections": 10_000, "samples": samples(1_000, 1.0)}}});
        let idle = json!({"p": {"with": {"connections": 100, "samples": samples(100, 2.0)}}});
        let gateways =
            [Gateway { arms: busy, ..gateway("a", Some("1")) }, Gateway { arms: idle, ..gateway("b", Some("2")) }];
        let merged = arms(&gateways);
        assert_eq!(merged["p"]["with"]["connections"], 10_100);
        let rates = |rate: f64| {
            merged["p"]["with"]["samples"].as_array().unwrap().iter().filter(|one| one["rate"] == rate).count()
        };
        assert_eq!((rates(1.0), rates(2.0)), (1_000, 10));
        assert_eq!(merged["p"]["without"], json!({"connections": 0, "samples": []}));
    }
}
