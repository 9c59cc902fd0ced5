//! `cargo xtask instructions`: a guard against growing costs that holds on shared and noisy machines.
//!
//! The example `instructions` of the transport connects two endpoints in memory. Callgrind counts the instructions that each
//! side takes for a unit of work (a packet's worth of stream data, a request, a datagram, a handshake), and the counts are compared
//! with the committed table: time varies between runs by half, instructions by less than a hundredth.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};

/// Compare what the state machine costs, in instructions, with the committed table.
///
/// Counts the instructions that each side of fixed scenarios takes per unit of work, with callgrind (valgrind), and fails
/// when one is more than 3 % above bench/instructions.json. A change that makes something dearer on purpose commits the new table
/// (`--update`) and says why. One that makes it cheaper should commit it, too, so that the gain is kept.
///
/// The counts include the ciphers as valgrind's processor (AVX2, no AVX-512) executes them.
///
/// Exit code 0: nothing grew. 1: something grew. 2: it could not be counted.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Write the table instead of comparing with it
    #[arg(long)]
    update: bool,
    /// Count these scenarios only
    #[arg(long, value_name = "SCENARIO", value_parser = SCENARIOS)]
    only: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const SCENARIOS: [&str; 5] = ["bulk", "lossy", "requests", "datagrams", "handshakes"];
const SIDES: [&str; 2] = ["client", "server"];
/// Growth that fails, in percent.
const TOLERANCE: f64 = 3.0;
/// The example does its work divided by this: under callgrind it is some fifty times slower.
const SHARE: u64 = 4;
const TABLE: &str = "bench/instructions.json";

/// Instructions per unit of work, by scenario and side.
type Counts = BTreeMap<String, Count>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Count {
    unit: String,
    client: u64,
    server: u64,
}

impl Count {
    fn side(&self, side: &str) -> u64 {
        if side == "client" { self.client } else { self.server }
    }
}

/// Last line of the example.
#[derive(Debug, Deserialize)]
struct Work {
    units: u64,
    unit: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn execute(args: &Args) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let program = build(root)?;
    let mut counts = Counts::new();
    for scenario in SCENARIOS.into_iter().filter(|name| args.only.is_empty() || args.only.iter().any(|o| o == name)) {
        eprintln!("{scenario} …");
        counts.insert(scenario.to_owned(), count(&program, scenario)?);
    }
    let table = root.join(TABLE);
    if args.update {
        let mut all = read(&table).unwrap_or_default();
        all.extend(counts.clone());
        std::fs::write(&table, serde_json::to_string_pretty(&all)? + "\n")
            .with_context(|| format!("cannot write {}", table.display()))?;
    }
    let before = read(&table)?;
    let mut good = true;
    for (scenario, now) in &counts {
        let then = before.get(scenario).with_context(|| {
            format!("{TABLE} has no scenario `{scenario}`\nhint: cargo xtask instructions --update --only {scenario}")
        })?;
        for side in SIDES {
            let (now, then) = (now.side(side), then.side(side));
            let growth = 100.0 * (now as f64 / then as f64 - 1.0);
            let grew = growth > TOLERANCE;
            good &= !grew;
            if !args.json {
                let verdict = if grew { "GREW" } else { "pass" };
                println!("{verdict}  {scenario:<11} {side:<7} {now:>9} instructions  {growth:>+6.1} %");
            }
        }
        if !args.json {
            println!("                  per {}", then.unit);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&counts)?);
    }
    if !good {
        eprintln!(
            "More instructions than {TABLE} says.\nhint: if that is meant, `cargo xtask instructions --update`, commit the table, and say why."
        );
    }
    Ok(good)
}

fn read(table: &Path) -> Result<Counts> {
    let text = std::fs::read_to_string(table).with_context(|| format!("cannot read {}", table.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not such a table", table.display()))
}

/// Builds the example as it is packaged, and says where it is.
fn build(root: &Path) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--profile", "dist", "-p", "tiderace-transport", "--example", "instructions"])
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "the example does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("dist/examples/instructions"))
}

/// Counts both sides of a scenario.
fn count(program: &Path, scenario: &str) -> Result<Count> {
    let (client, work) = side(program, scenario, "client", None)?;
    let (server, _) = side(program, scenario, "server", None)?;
    Ok(Count { unit: work.unit, client: client / work.units, server: server / work.units })
}

/// Counts the instructions of one side of a scenario, with a congestion controller if one is named.
fn side(program: &Path, scenario: &str, side: &str, congestion: Option<&str>) -> Result<(u64, Work)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=instructions::{side}_turn"))
        .arg(program)
        .args([scenario, &SHARE.to_string()])
        .args(congestion)
        .output()
        .context("cannot start valgrind\nhint: apt-get install valgrind")?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{scenario} failed under valgrind:\n{log}");
    }
    let sum = collected(&log).with_context(|| format!("callgrind counted nothing:\n{log}"))?;
    ensure!(sum > 0, "callgrind found no function of that name in {scenario}");
    Ok((sum, serde_json::from_slice::<Work>(&output.stdout).context("the example said something else")?))
}

/// Instructions that the sender of the bulk scenario takes for each packet's worth of data, with each of these controllers.
pub(crate) fn controllers(names: &[&'static str]) -> Result<Vec<(&'static str, u64)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let program = build(root)?;
    let count = |&name: &&'static str| {
        let (sum, work) = side(&program, "bulk", "client", Some(name))?;
        Ok((name, sum / work.units))
    };
    names.iter().map(count).collect()
}

/// The number behind "Collected :".
fn collected(log: &str) -> Option<u64> {
    log.lines().find_map(|line| line.split_once("Collected :")).and_then(|(_, number)| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_callgrind_says() {
        let log = "==7== Events    : Ir\n==7== Collected : 1194969601\n==7== \n";
        assert_eq!(collected(log), Some(1_194_969_601));
        assert_eq!(collected("==7== nothing"), None);
    }

    #[test]
    fn the_table_has_every_scenario() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let table = read(&root.join(TABLE)).unwrap();
        for scenario in SCENARIOS {
            assert!(table.contains_key(scenario), "{scenario}");
        }
    }
}
