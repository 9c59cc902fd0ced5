//! Forward error correction: the decoder against its oracle, residual loss, latency, goodput, speed, and peers that abuse it.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use lab::reference::{Failed, Finding, fec};
use serde::Deserialize;

use super::{
    Case, Context,
    command::cargo,
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

fn residual(context: &Context) -> Result<Vec<Row>> {
    let mut rows = findings(fec::residual_loss())?;
    let arguments = ["-p", "tiderace-transport", "--test", "fec", "--", "xor_repairs_one_loss_in_each_block"];
    rows.push(binary(context, "fec-groups", &arguments, Duration::from_secs(1_800)));
    Ok(rows)
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

fn cpu(_: &Context) -> Result<Vec<Row>> {
    bail!("bench has no arm with a profile's fec so far: shares of the sender's CPU cannot be told")
}

fn real(_: &Context) -> Result<Vec<Row>> {
    bail!("`tiderace perf` has no option for fec so far")
}

fn hostile(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(1_800);
    let codes = ["-p", "tiderace-fec", "--test", "hostile"];
    let peers = ["-p", "tiderace-transport", "--test", "fec"];
    Ok(vec![binary(context, "fec-hostile-codes", &codes, limit), binary(context, "fec-hostile-peers", &peers, limit)])
}
