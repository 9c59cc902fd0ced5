//! Two clocks, one link model: `tiderace perf` through `tiderace relay` over real sockets, against the same path and the same
//! stack in virtual time.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::{figure::Figure, record::RunOutcome, run::run_one, scenario::load};
use serde_json::Value;

use super::{
    Context,
    command::{Running, cargo, load as machine_load},
    row::{Row, Target},
};

/// Seconds of each transfer.
const SECONDS: u32 = 8;
/// Transfers over real sockets for each path.
const TRANSFERS: u64 = 7;
/// Runs in the simulator, which are cheap.
const SIMULATED: u64 = 21;

/// The paths: name and loss. Without loss the bottleneck decides; with loss the controller does.
const PATHS: [(&str, &str); 2] = [("clean", "0 %"), ("lossy", "1 %")];

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let known =
        context.commands.run("perf-help", Command::new(&program).args(["perf", "--help"]), Duration::from_secs(20))?;
    ensure!(known.succeeded(), "the program has no `perf`: {}", known.reason());
    let scratch = context.commands.scratch("perf")?;
    let rows = PATHS.iter().map(|&(name, loss)| {
        let file = scratch.join(format!("{name}.toml"));
        fs::write(&file, scenario(name, loss)).with_context(|| format!("cannot write {}", file.display()))?;
        let what = format!("perf through the relay / simulator, {loss} loss");
        Ok(compare(context, &program, name, loss, &file).unwrap_or_else(|error| Row::unmeasured(&what, &error)))
    });
    rows.collect()
}

/// The program `tiderace` as it is packaged.
pub(crate) fn program(context: &Context) -> Result<std::path::PathBuf> {
    let limit = Duration::from_secs(3_600);
    context.commands.run("build", &mut cargo(&context.root, ["build", "--profile", "dist"]), limit)?.ok()?;
    Ok(context.commands.target().join("dist/tiderace"))
}

fn scenario(name: &str, loss: &str) -> String {
    // The handshake is not part of a transfer: the simulator measures from 100 ms on.
    format!(
        r#"
name = "perf-{name}"
title = "One download over 20 Mbit/s and 50 ms"
about = "The same path in real and in virtual time."
[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
loss = "{loss}"
[path.up]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "100 ms"
duration = "{SECONDS} s"
seeds = 1
"#
    )
}

fn compare(context: &Context, program: &Path, name: &str, loss: &str, file: &Path) -> Result<Row> {
    let simulated = simulated(file)?;
    let mut goodputs = Vec::new();
    for seed in 1..=TRANSFERS {
        goodputs.push(transfer(context, program, file, seed).with_context(|| format!("transfer {seed} of {name}"))?);
    }
    let ratios: Vec<f64> = goodputs.iter().map(|goodput| goodput / simulated).collect();
    let seen = middle(&goodputs);
    let what = format!("perf through the relay / simulator, {loss} loss");
    Ok(Row::median(what, &ratios, "", Target::Between(0.9, 1.1)).detail(format!(
        "{seen:.2} Mbit/s over {TRANSFERS} transfers of {SECONDS} s, simulated {simulated:.2} (median of {SIMULATED} seeds); CUBIC; {}",
        machine_load()
    )))
}

/// The simulator's median goodput in Mbit/s.
fn simulated(file: &Path) -> Result<f64> {
    let scenario = load(file.to_str().context("the path is not UTF-8")?)?;
    let stack = lab::tiderace::contender("cubic").context("there is no `cubic`")?;
    let mut goodputs = Vec::new();
    for seed in 1..=SIMULATED {
        let record = run_one(&scenario, stack.as_ref(), seed, None);
        if let RunOutcome::Failed(reason) = record.outcome {
            bail!("simulated seed {seed}: {reason}");
        }
        let goodput = record.figures.get(&Figure::Goodput).and_then(|reading| reading.value);
        goodputs.push(goodput.context("no goodput")? / 1e6);
    }
    Ok(middle(&goodputs))
}

/// Goodput of one real transfer in Mbit/s.
fn transfer(context: &Context, program: &Path, file: &Path, seed: u64) -> Result<f64> {
    let start = |name: &str, arguments: &[&str]| context.commands.start(name, Command::new(program).args(arguments));
    let mut server = start("perf-server", &["perf", "server", "--listen", "127.0.0.1:0", "--cc", "cubic", "--json"])?;
    let to = listening(&mut server)?;
    let (file, seed) = (file.to_string_lossy(), seed.to_string());
    let listen = "127.0.0.1:0";
    let arguments = ["relay", "--path", &file, "--listen", listen, "--to", &to, "--seed", &seed, "--json"];
    let mut relay = start("perf-relay", &arguments)?;
    let address = listening(&mut relay)?;
    let duration = format!("{SECONDS} s");
    let mut client = Command::new(program);
    client.args(["perf", "client", &address, "--insecure", "--duration", &duration, "--json"]);
    let ended = context.commands.run("perf-client", &mut client, Duration::from_secs(60))?.ok()?;
    let report: Value = serde_json::from_str(&ended.stdout).context("the client's report")?;
    report["download"]["goodput_mbit_per_s"].as_f64().ok_or_else(|| anyhow!("no goodput in the client's report"))
}

/// Waits for the line that says where a program listens.
pub(crate) fn listening(running: &mut Running) -> Result<String> {
    let started = Instant::now();
    loop {
        let printed = running.printed();
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for line in lines {
            if let Some(address) = line["address"].as_str() {
                return Ok(address.to_owned());
            }
        }
        ensure!(running.alive(), "it ended: {}", printed.trim());
        ensure!(started.elapsed() < Duration::from_secs(60), "it does not say within 60 s where it listens");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn middle(values: &[f64]) -> f64 {
    let mut ascending = values.to_vec();
    ascending.sort_by(f64::total_cmp);
    lab::stats::quantile::median(&ascending).unwrap_or(f64::NAN)
}
