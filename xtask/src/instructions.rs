//! `cargo xtask instructions`: a guard against growing costs that holds on shared and noisy machines.
//!
//! The example `instructions` of the transport connects two endpoints in memory. Callgrind counts the instructions that each
//! side takes for a unit of work (a packet's worth of stream data, a request, a datagram, a handshake), and the counts are compared
//! with the committed table: time varies between runs by half, instructions by less than a hundredth.
//!
//! The example `beside_idle` of the driver makes requests over real sockets, beside idle connections and beside none. Its counts vary more,
//! so that only their ratio is compared: it shows work that a pass of the driver does for each connection.

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
/// The scenario `idle` makes requests through the driver beside 300 idle connections: it fails when they take more than 1.15 times
/// the instructions of those beside none.
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
    #[arg(long, value_name = "SCENARIO", value_parser = NAMES)]
    only: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const IDLE: &str = "idle";
const NAMES: [&str; 6] = ["bulk", "lossy", "requests", "datagrams", "handshakes", IDLE];
/// All with counts in the table.
const SCENARIOS: &[&str] = NAMES.split_at(5).0;
/// Idle connections beside the busy one.
const IDLE_CONNECTIONS: u64 = 300;
/// Most instructions of a request beside them, over those beside none. A look at each of them in each pass makes it 1.24.
const MOST_BESIDE_IDLE: f64 = 1.15;
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

/// Instructions of a request through both drivers.
#[derive(Clone, Copy, Debug, Serialize)]
struct BesideIdle {
    alone: u64,
    beside_idle: u64,
}

impl BesideIdle {
    fn ratio(self) -> f64 {
        self.beside_idle as f64 / self.alone as f64
    }
}

/// Document that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    counts: &'a Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<BesideIdle>,
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
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut counts = Counts::new();
    if SCENARIOS.iter().any(|name| wanted(name)) {
        let program = build(root, "tiderace-transport", "instructions")?;
        for scenario in SCENARIOS.iter().copied().filter(|name| wanted(name)) {
            eprintln!("{scenario} …");
            counts.insert(scenario.to_owned(), count(&program, scenario)?);
        }
    }
    let idle = wanted(IDLE).then(|| beside_idle(root)).transpose()?;
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
    let grew_beside_idle = idle.is_some_and(|counts| counts.ratio() > MOST_BESIDE_IDLE);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&Report { counts: &counts, idle })?);
    } else if let Some(counts) = idle {
        let verdict = if grew_beside_idle { "GREW" } else { "pass" };
        println!(
            "{verdict}  {IDLE:<11} both    {:>9} instructions  {:>6.3} of those alone",
            counts.beside_idle,
            counts.ratio()
        );
        println!("                  per request, beside {IDLE_CONNECTIONS} idle connections");
    }
    if grew_beside_idle {
        eprintln!(
            "A request takes more instructions beside idle connections: more than {MOST_BESIDE_IDLE} times.\n\
             hint: look for work that each pass of the driver does for every connection."
        );
    }
    if !good {
        eprintln!(
            "More instructions than {TABLE} says.\nhint: if that is meant, `cargo xtask instructions --update`, commit the table, and say why."
        );
    }
    Ok(good && !grew_beside_idle)
}

fn read(table: &Path) -> Result<Counts> {
    let text = std::fs::read_to_string(table).with_context(|| format!("cannot read {}", table.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not such a table", table.display()))
}

/// Builds an example as it is packaged, and says where it is.
fn build(root: &Path, package: &str, example: &str) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--profile", "dist", "-p", package, "--example", example])
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "the example {example} does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("dist/examples").join(example))
}

/// Counts both sides of a scenario.
fn count(program: &Path, scenario: &str) -> Result<Count> {
    let (client, work) = side(program, scenario, "client", None)?;
    let (server, _) = side(program, scenario, "server", None)?;
    Ok(Count { unit: work.unit, client: client / work.units, server: server / work.units })
}

/// Counts the instructions of one side of a scenario, with a congestion controller if one is named.
fn side(program: &Path, scenario: &str, side: &str, congestion: Option<&str>) -> Result<(u64, Work)> {
    let share = SHARE.to_string();
    let arguments: Vec<&str> = [scenario, &share].into_iter().chain(congestion).collect();
    within(program, &format!("instructions::{side}_turn"), &arguments)
}

/// Counts the instructions of a request through both drivers, beside idle connections and beside none.
fn beside_idle(root: &Path) -> Result<BesideIdle> {
    let program = build(root, "tiderace", "beside_idle")?;
    let count = |connections: u64| {
        eprintln!("{IDLE}, {connections} idle connections …");
        let (sum, work) = within(&program, "beside_idle::busy", &[&connections.to_string()])?;
        anyhow::Ok(sum / work.units)
    };
    Ok(BesideIdle { alone: count(0)?, beside_idle: count(IDLE_CONNECTIONS)? })
}

/// Counts the instructions inside a function of an example.
fn within(program: &Path, function: &str, arguments: &[&str]) -> Result<(u64, Work)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(program)
        .args(arguments)
        .output()
        .context("cannot start valgrind\nhint: apt-get install valgrind")?;
    let log = String::from_utf8_lossy(&output.stderr);
    let name = format!("{} {}", program.display(), arguments.join(" "));
    if !output.status.success() {
        bail!("{name} failed under valgrind:\n{log}");
    }
    let sum = collected(&log).with_context(|| format!("callgrind counted nothing:\n{log}"))?;
    ensure!(sum > 0, "callgrind found no function {function} in {name}");
    Ok((sum, serde_json::from_slice::<Work>(&output.stdout).context("the example said something else")?))
}

/// Instructions that the sender of the bulk scenario takes for each packet's worth of data, with each of these controllers.
pub(crate) fn controllers(names: &[&'static str]) -> Result<Vec<(&'static str, u64)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let program = build(root, "tiderace-transport", "instructions")?;
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
            assert!(table.contains_key(*scenario), "{scenario}");
        }
    }
}
