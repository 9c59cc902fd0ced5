//! Forward error correction: the decoder against its oracle, residual loss, latency, goodput, speed, and peers that abuse it.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::reference::{Failed, Finding, fec};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Case, Context,
    command::{cargo, load as machine_load},
    perf::{listening, program},
    row::{Row, Target},
    tests::binary,
};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("oracle", "the decoder against a rank oracle, 10^6 blocks and windows", oracle),
        case("residual", "residual loss of datagrams at 5 %, independent and in bursts, and of groups", residual),
        case("overhead", "what fixed rates take of the wire", |_| findings(fec::overhead())),
        case("latency", "messages in order and requests, beside plain QUIC and copies", |_| findings(fec::latency())),
        case("goodput", "bulk transfers with auto and with fixed rates", |_| findings(fec::goodput())),
        case("flows", "tolerated loss, expiry, and protection by stream and flow", flows),
        case("restraint", "where auto protects nothing", |_| findings(fec::restraint())),
        case("codes-speed", "encoding beside reed-solomon-erasure with its vector instructions", speed),
        case("cpu", "what coding takes of the sender's CPU", cpu),
        case("real", "two processes through the relay", real),
        case("hostile", "symbols, windows and repair of hostile peers", hostile),
    ]
}

fn findings(findings: Result<Vec<Finding>, Failed>) -> Result<Vec<Row>> {
    Ok(findings.map_err(|error| anyhow!("{error}"))?.into_iter().map(Row::from).collect())
}

fn oracle(context: &Context) -> Result<Vec<Row>> {
    let arguments = ["-p", "tiderace-fec", "--release", "--test", "oracle", "--", "--include-ignored"];
    Ok(vec![binary(context, "fec-oracle", &arguments, Duration::from_secs(3_600))])
}

fn residual(_: &Context) -> Result<Vec<Row>> {
    findings(fec::residual_loss())
}

/// A line of `bench/codes --json`.
#[derive(Debug, Deserialize)]
struct Speed {
    code: String,
    kernel: String,
    ns: f64,
    ratio: f64,
    low: f64,
    high: f64,
}

fn speed(context: &Context) -> Result<Vec<Row>> {
    let mut command =
        cargo(&context.root, ["run", "--release", "--manifest-path", "bench/codes/Cargo.toml", "--", "--json"]);
    let ended = context.commands.run("fec-speed", &mut command, Duration::from_secs(1_800))?.ok()?;
    let speeds: Vec<Speed> = serde_json::from_str(&ended.stdout).context("the output of bench/codes")?;
    let speed = |kernel: &str| speeds.iter().find(|speed| speed.code == "10+2" && speed.kernel == kernel);
    let Some(best) = ["GFNI-512", "GFNI-256"].iter().find_map(|kernel| speed(kernel)) else {
        bail!("this processor has no GFNI");
    };
    let what = format!("encoding 10+2, 1,200 B, {}: times as fast as reed-solomon-erasure", best.kernel);
    let mut row = Row::new(what, best.ratio, "", Target::AtLeast(2.4));
    row.interval = Some([best.low, best.high]);
    Ok(vec![row.detail(format!("{:.0} ns per block; middle half of 61 rounds, interleaved", best.ns))])
}

/// A client of `tiderace perf` that uploads with this code; what it reports.
fn upload(
    context: &Context,
    program: &Path,
    to: &str,
    code: &str,
    seconds: u32,
    profiler: Option<&Path>,
) -> Result<Value> {
    let duration = format!("{seconds} s");
    let arguments = ["perf", "client", to, "--insecure", "--upload", "--duration", &duration, "--fec", code, "--json"];
    let mut command = match profiler {
        None => Command::new(program),
        Some(file) => {
            let mut command = Command::new("perf");
            command.args(["record", "-q", "-e", "cpu-clock", "-F", "1997", "--call-graph", "dwarf,1024", "-o"]);
            command.arg(file).arg("--").arg(program);
            command
        }
    };
    let ended = context.commands.run("fec-client", command.args(arguments), Duration::from_secs(120))?.ok()?;
    serde_json::from_str(&ended.stdout).context("the client's report")
}

/// The share of CPU samples of a profile that lie in the coding of symbols: in the crate `fec`, or in what it calls.
fn share_of_coding(context: &Context, profile: &Path) -> Result<(f64, usize)> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "-F", "ip,sym", "-i"]).arg(profile);
    let ended = context.commands.run("fec-profile", &mut command, Duration::from_secs(300))?.ok()?;
    let stacks = ended.stdout.split("\n\n").filter(|stack| !stack.trim().is_empty());
    let (mut all, mut coding) = (0_usize, 0_usize);
    for stack in stacks {
        all += 1;
        let in_crate = |line: &str| line.split_whitespace().nth(1).is_some_and(|symbol| symbol.starts_with("fec::"));
        coding += usize::from(stack.lines().any(|line| in_crate(line) || line.contains("<fec::")));
    }
    ensure!(all > 500, "only {all} samples of the profile can be read");
    Ok((coding as f64 / all as f64, all))
}

/// CPU share of coding at the sender, in samples of its own process, and the cost of all repair per useful byte.
fn cpu(context: &Context) -> Result<Vec<Row>> {
    const SECONDS: u32 = 4;
    const ROUNDS: usize = 7;
    let program = program(context)?;
    let scratch = context.commands.scratch("fec-cpu")?;
    let arguments = ["perf", "server", "--listen", "127.0.0.1:0", "--json"];
    let mut server = context.commands.start("fec-server", Command::new(&program).args(arguments))?;
    let to = listening(&mut server)?;
    let cost = |report: &Value| report["cpu"]["cpu_s_per_gib"].as_f64().context("no CPU time in the client's report");
    let codes = [("rs:10+2", 8.0), ("rlc:1/5:40", 35.0)];
    let mut costs: Vec<[f64; 3]> = Vec::new();
    let mut wire = [0.0; 2];
    for _ in 0..ROUNDS {
        let mut round = [cost(&upload(context, &program, &to, "off", SECONDS, None)?)?, 0.0, 0.0];
        for (place, (code, _)) in codes.iter().enumerate() {
            let report = upload(context, &program, &to, code, SECONDS, None)?;
            wire[place] = report["fec"][0]["repair_share_of_wire"].as_f64().context("the report has no repair")?;
            round[place + 1] = cost(&report)?;
        }
        costs.push(round);
    }
    let mut rows = Vec::new();
    for (place, (code, limit)) in codes.into_iter().enumerate() {
        let what = format!("coding of the sender's CPU, {code}");
        let mut shares = Vec::new();
        let mut samples = 0;
        for round in 0..ROUNDS.min(6) {
            let file = scratch.join(format!("{place}-{round}.data"));
            upload(context, &program, &to, code, 2, Some(&file))?;
            let (share, all) = share_of_coding(context, &file)?;
            fs::remove_file(&file)?;
            shares.push(share * 100.0);
            samples += all;
        }
        let coding = shares.iter().sum::<f64>() / shares.len() as f64 / 100.0;
        rows.push(Row::median(what, &shares, "%", Target::AtMost(limit)).detail(format!(
            "samples of cpu-clock with the crate fec in their call chain, {samples} in all; upload over loopback; {}",
            machine_load()
        )));
        let ratios: Vec<f64> = costs.iter().map(|round| round[place + 1] / round[0]).collect();
        // What the sender would need if only coding and the packets of repair came on top.
        let limit = 1.0 / (1.0 - wire[place]) / (1.0 - coding);
        let what = format!("CPU of the sender per useful byte, {code} / off");
        rows.push(Row::median(what, &ratios, "", Target::AtMost(limit)).detail(format!(
            "(1 + {:.1} % more packets) x the share of coding above; {ROUNDS} interleaved rounds of {SECONDS} s",
            100.0 * wire[place] / (1.0 - wire[place])
        )));
    }
    Ok(rows)
}

/// Two processes through the relay, 5 % lost on the way of the data.
fn real(context: &Context) -> Result<Vec<Row>> {
    const TRANSFERS: usize = 6;
    let program = program(context)?;
    let file = context.commands.scratch("fec-real")?.join("path.toml");
    fs::write(&file, LOSSY).with_context(|| format!("cannot write {}", file.display()))?;
    let mut rows = Vec::new();
    for (code, share) in [("rlc:1/5:40", 16.7), ("rs:10+2", 16.7), ("rlc:1/10:40", 9.1)] {
        let (mut recovered, mut residual, mut overhead) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 1..=TRANSFERS {
            let report = relayed(context, &program, &file, code, seed)?;
            let number =
                |name: &str| report["fec"][0][name].as_f64().with_context(|| format!("no {name} in the report"));
            recovered.push(number("recovered_packets")?);
            residual.push(100.0 * number("residual_loss_share")?);
            overhead.push(100.0 * number("repair_share_of_wire")?);
        }
        let detail = format!("{TRANSFERS} uploads of 5 s, 10 Mbit/s, 40 ms; {}", machine_load());
        let told = |what: &str, values: &[f64], unit: &str, target| {
            Row::median(format!("{what}, {code}, 5 % lost by the relay"), values, unit, target).detail(detail.clone())
        };
        rows.push(told("packets rebuilt", &recovered, "", Target::AtLeast(1.0)));
        rows.push(told("residual loss of protected packets", &residual, "%", Target::AtMost(1.0)));
        rows.push(told("repair on the wire", &overhead, "%", Target::Between(share - 1.0, share + 1.0)));
    }
    Ok(rows)
}

const LOSSY: &str = "name = \"fec-real\"\ntitle = \"fec\"\nabout = \"fec\"\n[path.up]\nrate = \"10 Mbit/s\"\nqueue = \"100 kB\"\n\
    delay = \"20 ms\"\nloss = \"5 %\"\n[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"100 kB\"\ndelay = \"20 ms\"\n[traffic]\nworkload = \"bulk\"\n\
    connections = 1\n[run]\nduration = \"5 s\"\nseeds = 1\n";

/// Report of the client of one upload through the relay.
fn relayed(context: &Context, program: &Path, file: &Path, code: &str, seed: usize) -> Result<Value> {
    let start = |name: &str, arguments: &[&str]| context.commands.start(name, Command::new(program).args(arguments));
    let mut server = start("fec-server", &["perf", "server", "--listen", "127.0.0.1:0", "--json"])?;
    let to = listening(&mut server)?;
    let (file, seed) = (file.to_string_lossy(), seed.to_string());
    let arguments = ["relay", "--path", &file, "--listen", "127.0.0.1:0", "--to", &to, "--seed", &seed, "--json"];
    let mut relay = start("fec-relay", &arguments)?;
    upload(context, program, &listening(&mut relay)?, code, 5, None)
}

fn flows(context: &Context) -> Result<Vec<Row>> {
    let tests = ["a_flow_gets_the_protection", "what_is_worthless", "protection_is_chosen"];
    let each = |name: &str| {
        let arguments = ["-p", "tiderace-transport", "--test", "protocol", "--", name];
        binary(context, "fec-flows", &arguments, Duration::from_secs(1_800))
    };
    Ok(tests.map(each).into())
}

fn hostile(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(1_800);
    let codes = ["--workspace", "--test", "hostile"];
    let peers = ["-p", "tiderace-transport", "--test", "protocol", "fec::"];
    Ok(vec![binary(context, "fec-hostile-codes", &codes, limit), binary(context, "fec-hostile-peers", &peers, limit)])
}
