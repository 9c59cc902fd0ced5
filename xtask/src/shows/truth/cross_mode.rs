//! The same transfers in virtual and in real time: goodput, median and p95 of RTT agree, or a cause that was measured explains the
//! difference.
//!
//! The simulator's clock has no jitter. A program on loopback wakes up late by tens of microseconds, and so does every real end.
//! BBRv1 keeps the largest delivery rate of ten rounds, so that jitter of acknowledgements becomes an estimate above the rate, and the
//! estimate becomes a queue. The relay measures its own lateness; the simulator with that jitter on both directions is the upper end of
//! what real time may show.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{figure::Figure, record::RunOutcome, run::run_one, scenario::load, stats::quantile::median};
use serde_json::Value;

use super::super::{
    Context,
    command::{Running, load as machine_load},
    perf::{listening, program},
    row::{Row, Target},
};

const CONTROLLERS: [&str; 3] = ["cubic", "bbr1", "bbr3"];
/// Seconds of each transfer.
const SECONDS: u32 = 12;
/// Real transfers whose median counts.
const TRANSFERS: u64 = 3;
const TRANSFERS_LONG: u64 = 7;
/// Difference that the modes may have without a reason.
const TOLERANCE: f64 = 0.05;

/// Rate in Mbit/s, RTT in ms, queue in kB.
struct Cell {
    rate: u32,
    rtt: u32,
    queue: u32,
}

/// Queues of one, two, one, one and four bandwidth-delay products.
const CELLS: [Cell; 5] = [
    Cell { rate: 20, rtt: 50, queue: 125 },
    Cell { rate: 20, rtt: 50, queue: 250 },
    Cell { rate: 10, rtt: 100, queue: 125 },
    Cell { rate: 50, rtt: 40, queue: 250 },
    Cell { rate: 5, rtt: 30, queue: 75 },
];

/// Result of a transfer: goodput in Mbit/s, percentiles of RTT in ms.
#[derive(Clone, Copy, Debug)]
struct Seen {
    goodput: f64,
    p50: f64,
    p95: f64,
}

/// Delay of the relay's wake-ups, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    p50: f64,
    p99: f64,
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let scratch = context.commands.scratch("cross-mode")?;
    let transfers = if context.long { TRANSFERS_LONG } else { TRANSFERS };
    let mut rows = Vec::new();
    for cell in &CELLS {
        for controller in CONTROLLERS {
            let one = Comparison { context, program: &program, scratch: &scratch, cell, controller };
            let what = one.name();
            rows.extend(one.rows(transfers).unwrap_or_else(|error| vec![Row::unmeasured(&what, &error)]));
        }
    }
    Ok(rows)
}

/// One controller on one path.
struct Comparison<'a> {
    context: &'a Context,
    program: &'a Path,
    scratch: &'a Path,
    cell: &'a Cell,
    controller: &'static str,
}

impl Comparison<'_> {
    fn name(&self) -> String {
        let Cell { rate, rtt, queue } = self.cell;
        format!("{}, {rate} Mbit/s, {rtt} ms, {queue} kB", self.controller)
    }

    fn rows(&self, transfers: u64) -> Result<Vec<Row>> {
        let file = self.write("path", None)?;
        let simulated = self.simulated(&file)?;
        let mut real = Vec::new();
        for seed in 1..=transfers {
            real.push(self.transfer(&file, seed)?);
        }
        let all = |read: fn(&(Seen, Lateness)) -> f64| real.iter().map(read).collect::<Vec<_>>();
        let lateness = Lateness { p50: middle(&all(|one| one.1.p50)), p99: middle(&all(|one| one.1.p99)) };
        let late = self.simulated(&self.write("late", Some(lateness))?)?;
        let said = |simulated: f64, late: f64, unit: &str| {
            format!(
                "simulated {simulated:.2} {unit}, {late:.2} with the relay's lateness as jitter ({:.0} us p50, {:.0} us p99); \
                 {transfers} transfers of {SECONDS} s; {}",
                lateness.p50,
                lateness.p99,
                machine_load()
            )
        };
        let row = |figure: &str, read: fn(&Seen) -> f64, unit: &str| {
            let (simulated, late) = (read(&simulated), read(&late));
            let ratios: Vec<f64> = real.iter().map(|one| read(&one.0) / simulated).collect();
            let what = format!("{figure}, real / simulated: {}", self.name());
            Row::median(what, &ratios, "", allowed(late / simulated)).detail(said(simulated, late, unit))
        };
        Ok(vec![
            row("goodput", |seen| seen.goodput, "Mbit/s"),
            row("RTT p50", |seen| seen.p50, "ms"),
            row("RTT p95", |seen| seen.p95, "ms"),
        ])
    }

    fn write(&self, name: &str, late: Option<Lateness>) -> Result<std::path::PathBuf> {
        let Cell { rate, rtt, queue } = self.cell;
        let late = late.map_or_else(String::new, |late| {
            // Quantiles have to ascend.
            let p99 = late.p99.max(late.p50 + 1.0);
            format!(
                "jitter-period = \"100 us\"\njitter-quantiles = [[\"50 %\", \"{:.0} us\"], [\"99 %\", \"{p99:.0} us\"], \
                 [\"100 %\", \"{:.0} us\"]]\n",
                late.p50,
                p99 + 1.0
            )
        });
        let way = format!("rate = \"{rate} Mbit/s\"\nqueue = \"{queue} kB\"\ndelay = \"{} ms\"\n{late}", rtt / 2);
        let text = format!(
            "name = \"cross-mode\"\ntitle = \"One download\"\nabout = \"The same path in real and in virtual time.\"\n\
             [path.down]\n{way}[path.up]\n{way}[traffic]\nworkload = \"bulk\"\nconnections = 1\n\
             [run]\nwarmup = \"100 ms\"\nduration = \"{SECONDS} s\"\nseeds = 1\n"
        );
        let file = self.scratch.join(format!("{name}.toml"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    fn simulated(&self, file: &Path) -> Result<Seen> {
        let scenario = load(file.to_str().context("the path is not UTF-8")?)?;
        let stack = lab::tiderace::contender(self.controller).context("the controller is gone")?;
        let record = run_one(&scenario, stack.as_ref(), 1, None);
        if let RunOutcome::Failed(reason) = &record.outcome {
            bail!("simulated: {reason}");
        }
        let value = |figure: Figure| {
            record.figures.get(&figure).and_then(|reading| reading.value).with_context(|| format!("no {figure:?}"))
        };
        Ok(Seen {
            goodput: value(Figure::Goodput)? / 1e6,
            p50: value(Figure::RttP50)? * 1e3,
            p95: value(Figure::RttP95)? * 1e3,
        })
    }

    fn transfer(&self, file: &Path, seed: u64) -> Result<(Seen, Lateness)> {
        let commands = &self.context.commands;
        let start = |name: &str, arguments: &[&str]| commands.start(name, Command::new(self.program).args(arguments));
        let listen = "127.0.0.1:0";
        let mut server =
            start("cross-server", &["perf", "server", "--listen", listen, "--cc", self.controller, "--json"])?;
        let to = listening(&mut server)?;
        let (file, seed) = (file.to_string_lossy(), seed.to_string());
        let arguments = ["relay", "--path", &file, "--listen", listen, "--to", &to, "--seed", &seed, "--json"];
        let mut relay = start("cross-relay", &arguments)?;
        let address = listening(&mut relay)?;
        let duration = format!("{SECONDS} s");
        let mut client = Command::new(self.program);
        client.args(["perf", "client", &address, "--insecure", "--duration", &duration, "--json"]);
        let ended = commands.run("cross-client", &mut client, Duration::from_secs(90))?.ok()?;
        let report: Value = serde_json::from_str(&ended.stdout).context("the client's report")?;
        let rtt = |name: &str| report["sender"]["rtt"][name].as_f64().with_context(|| format!("no {name} of RTT"));
        let goodput = report["download"]["goodput_mbit_per_s"].as_f64().context("no goodput")?;
        Ok((Seen { goodput, p50: rtt("p50_ms")?, p95: rtt("p95_ms")? }, total(&mut relay)?))
    }
}

/// Ends a relay, and reads how late it was.
fn total(relay: &mut Running) -> Result<Lateness> {
    let id = relay.id().to_string();
    let status = Command::new("kill").args(["-TERM", &id]).status().context("kill")?;
    ensure!(status.success(), "the relay cannot be ended");
    let started = Instant::now();
    loop {
        let printed = relay.printed();
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(line) = lines.into_iter().find(|line| line["event"] == "total") {
            let late = |name: &str| line[name].as_f64().map(|nanos| nanos / 1e3).with_context(|| format!("no {name}"));
            return Ok(Lateness { p50: late("lateness_p50_ns")?, p99: late("lateness_p99_ns")? });
        }
        ensure!(started.elapsed() < Duration::from_secs(20), "the relay does not say what it did");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Range for a ratio of real to simulated time. `late` is what the measured lateness does to the simulator: real time may lie anywhere
/// between the two, since lateness there is not drawn for each packet anew.
fn allowed(late: f64) -> Target {
    Target::Between(1.0_f64.min(late) * (1.0 - TOLERANCE), 1.0_f64.max(late) * (1.0 + TOLERANCE))
}

fn middle(values: &[f64]) -> f64 {
    let mut ascending = values.to_vec();
    ascending.sort_by(f64::total_cmp);
    median(&ascending).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_explains_a_difference_only_in_its_direction() {
        assert!(allowed(1.0).holds(1.04) && !allowed(1.0).holds(1.06));
        assert!(allowed(1.2).holds(1.1) && allowed(1.2).holds(1.25) && !allowed(1.2).holds(1.3));
        assert!(!allowed(1.2).holds(0.94), "a queue that is shorter in real time has another cause");
    }
}
