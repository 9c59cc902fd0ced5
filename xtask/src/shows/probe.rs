//! `tiderace probe` behind the emulator: paths whose parameters are drawn from a seed, and what the probe says of them.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use rand_core::RngCore;
use serde_json::Value;
use units::{RandomStream, Seed};

use super::{
    Context,
    command::{cargo, load},
    row::{Row, Target},
};

/// Paths; with `--long` more.
const PATHS: u64 = 8;
const PATHS_LONG: u64 = 40;
/// Longest run of one.
const LIMIT: Duration = Duration::from_secs(180);

/// Parameters that the probe does not know.
#[derive(Clone, Debug)]
struct Hidden {
    rtt_ms: f64,
    down: HiddenLink,
    up: HiddenLink,
}

/// One direction.
#[derive(Clone, Debug)]
struct HiddenLink {
    rate: f64,
    /// Bytes.
    queue: f64,
    /// Share and mean burst; a burst of 1 is independent loss.
    loss: (f64, f64),
    mtu: u32,
    /// Bytes of a policer's bucket. The rate is the policer's then.
    policer: Option<f64>,
}

/// A draw between two values.
fn between(random: &mut RandomStream, low: f64, high: f64) -> f64 {
    low + (high - low) * f64::from(random.next_u32()) / f64::from(u32::MAX)
}

/// A draw between two values, even in its logarithm.
fn spread(random: &mut RandomStream, low: f64, high: f64) -> f64 {
    between(random, low.ln(), high.ln()).exp()
}

impl Hidden {
    fn draw(number: u64) -> Self {
        let mut random = Seed::from_number(number).stream("probed path");
        let rtt_ms = spread(&mut random, 5.0, 200.0);
        let mut way = |fastest: f64| {
            let rate = spread(&mut random, 1e6, fastest);
            let queue = (spread(&mut random, 0.5, 4.0) * rate * rtt_ms / 8e3).clamp(20_000.0, 2e6);
            let loss = match random.next_u32() % 3 {
                0 => (0.0, 1.0),
                1 => (spread(&mut random, 0.002, 0.04), 1.0),
                _ => (spread(&mut random, 0.005, 0.03), between(&mut random, 2.0, 6.0)),
            };
            let mtu = 1_280 + random.next_u32() % 221;
            let policer = random.next_u32().is_multiple_of(5).then(|| spread(&mut random, 15_000.0, 150_000.0));
            HiddenLink { rate, queue, loss, mtu, policer }
        };
        let (down, up) = (way(80e6), way(40e6));
        Self { rtt_ms, down, up }
    }

    fn scenario(&self, number: u64) -> String {
        let way = |name: &str, of: &HiddenLink| {
            let link = match of.policer {
                Some(burst) => format!(
                    "rate = \"{:.0} bit/s\"\nqueue = \"{:.0} B\"\npolicer = {{ rate = \"{:.0} bit/s\", burst = \"{burst:.0} B\" }}",
                    of.rate * 5.0,
                    of.rate * 5.0 / 80.0,
                    of.rate
                ),
                None => format!("rate = \"{:.0} bit/s\"\nqueue = \"{:.0} B\"", of.rate, of.queue),
            };
            let loss = match of.loss {
                (0.0, _) => "none".to_owned(),
                (share, _) => format!("{:.5} %", share * 100.0),
            };
            let loss = match of.loss {
                (share, length) if share > 0.0 && length > 1.0 => {
                    format!("{{ burst = {{ mean = \"{:.5} %\", length = {length:.3} }} }}", share * 100.0)
                }
                _ => format!("\"{loss}\""),
            };
            // The devices do not know this MTU: larger packets vanish.
            format!(
                "[path.{name}]\n{link}\ndelay = \"{:.0} us\"\nloss = {loss}\nchanges = [{{ at = \"0 s\", mtu = {} }}]\n",
                self.rtt_ms * 500.0,
                of.mtu
            )
        };
        format!(
            "name = \"probed-{number}\"\ntitle = \"Drawn path\"\nabout = \"Drawn from seed {number}.\"\n{}{}\
             [traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nwarmup = \"1 s\"\nduration = \"1 s\"\n",
            way("down", &self.down),
            way("up", &self.up)
        )
    }
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let build = &mut cargo(&context.root, ["build", "-p", "tiderace-cli"]);
    context.commands.run("probe-build", build, Duration::from_secs(3_600))?.ok()?;
    let program = context.commands.target().join("debug/tiderace");
    let scratch = context.commands.scratch("probe")?;
    let paths = if context.long { PATHS_LONG } else { PATHS };
    let mut rows = Vec::new();
    for number in 1..=paths {
        let hidden = Hidden::draw(number);
        let file = scratch.join(format!("{number}.toml"));
        fs::write(&file, hidden.scenario(number)).with_context(|| format!("cannot write {}", file.display()))?;
        match probe(context, &program, &file, number) {
            Ok(report) => rows.extend(judge(number, &hidden, &report)),
            Err(error) => rows.push(Row::unmeasured(&format!("path {number}"), &error)),
        }
    }
    Ok(rows)
}

/// Probes a path. Returns the report.
fn probe(context: &Context, program: &Path, file: &Path, number: u64) -> Result<Value> {
    let server = format!("exec {} probe --serve 10.2.0.1:4433 --open --json", program.display());
    let mut command = Command::new(program);
    command.args(["lab", "shell"]).arg(file).args(["--server", &server, "--"]).arg(program);
    command.args(["probe", "10.2.0.1:4433", "--insecure", "--yes", "--json"]);
    let ended = context.commands.run(&format!("probe-{number}"), &mut command, LIMIT)?.ok()?;
    serde_json::from_str(&ended.stdout).context("the report is no JSON")
}

/// Compares the report with the truth.
fn judge(number: u64, hidden: &Hidden, report: &Value) -> Vec<Row> {
    let figure = |name: &str, direction: Option<&str>| {
        let figures = report["figures"].as_array().into_iter().flatten();
        let mut fitting = figures.filter(|figure| figure["name"] == name && figure["direction"].as_str() == direction);
        fitting.next().cloned()
    };
    let notes = report["notes"].as_array().map_or(0, Vec::len);
    let cost = |name: &str, unit: f64| report["cost"][name].as_f64().unwrap_or(f64::NAN) / unit;
    let detail = |what: String| {
        let (megabytes, seconds) = (cost("bytes", 1e6), cost("seconds", 1.0));
        format!("{what}; {megabytes:.1} MB, {seconds:.1} s, {notes} notes; {}", load())
    };
    let row = |what: &str, found: Option<f64>, unit: &str, target: Target, truth: String| {
        let what = format!("path {number}: {what}");
        match found {
            Some(value) => Row::new(what, value, unit, target).detail(detail(truth)),
            None => {
                Row::unmeasured(&what, &anyhow!("the report has no such figure; {truth}; notes: {}", report["notes"]))
            }
        }
    };
    let value = |figure: &Option<Value>| figure.as_ref().and_then(|figure| figure["value"].as_f64());
    let rtt = value(&figure("rtt-min", None));
    let mut rows = vec![row(
        "RTT less the truth",
        rtt.map(|rtt| rtt - hidden.rtt_ms),
        "ms",
        Target::Between(-0.1, 2.0),
        format!("truth {:.1} ms", hidden.rtt_ms),
    )];
    for (name, way) in [("down", &hidden.down), ("up", &hidden.up)] {
        let rate = figure("rate", Some(name));
        rows.push(row(
            &format!("rate {name} / truth"),
            value(&rate).map(|rate| rate * 1e6 / way.rate),
            "",
            Target::Between(0.9, 1.1),
            format!("truth {:.2} Mbit/s{}", way.rate / 1e6, if way.policer.is_some() { ", policed" } else { "" }),
        ));
        // Of the few packets that a bucket holds, the path's own losses take some.
        let (size, truth, target) = match way.policer {
            Some(burst) => ("policer-burst", burst, Target::Between(0.5, 2.0)),
            None => ("queue", way.queue, Target::Between(0.75, 1.25)),
        };
        rows.push(row(
            &format!("{size} {name} / truth"),
            value(&figure(size, Some(name))).map(|found| found * 1e3 / truth),
            "",
            target,
            format!("truth {:.1} kB", truth / 1e3),
        ));
        let loss = figure("loss", Some(name));
        let (low, high) =
            (loss.as_ref().map(|loss| loss["low"].as_f64()), loss.as_ref().map(|loss| loss["high"].as_f64()));
        let interval = low.flatten().zip(high.flatten());
        rows.push(row(
            &format!("true loss {name}, in the interval of the probe"),
            interval.map(|_| way.loss.0 * 100.0),
            "%",
            interval.map_or(Target::Printed, |(low, high)| Target::Between(low, high)),
            format!("mean burst {:.1}, measured {:.3} %", way.loss.1, value(&loss).unwrap_or(f64::NAN)),
        ));
        rows.push(row(
            &format!("MTU {name}"),
            value(&figure("mtu", Some(name))),
            "B",
            Target::Exactly(f64::from(way.mtu)),
            "larger packets vanish".to_owned(),
        ));
    }
    rows
}
