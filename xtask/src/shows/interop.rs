//! Differential interoperability: pairs of QUIC stacks over seeded bad networks in virtual time, every byte compared. Runs
//! the command of the workspace `interop/`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::cargo,
    row::{Row, Target},
};

/// Seeds per pair of a slice and of the whole.
const SLICE: u64 = 25;
const WHOLE: u64 = 1_000;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let workspace = context.root.join("interop");
    ensure!(workspace.join("Cargo.toml").exists(), "there is no workspace {}", workspace.display());
    let seeds = if context.long { WHOLE } else { SLICE };
    let mut arguments = vec!["run", "--locked", "--release", "-p", "virtual"];
    if context.long {
        arguments.extend(["--features", "quiche"]);
    }
    let seeds_text = seeds.to_string();
    arguments.extend(["--", "--json", "--seeds", &seeds_text]);
    let mut command = cargo(&workspace, &arguments);
    bindgen(context, &mut command);
    let ended = context.commands.run("interop", &mut command, Duration::from_secs(8 * 3_600))?;
    let report: Value =
        serde_json::from_str(&ended.stdout).with_context(|| format!("no report; {}", ended.reason()))?;
    let pairs = report["pairs"].as_array().context("the report has no pairs")?;
    let sum = |field: &str| -> u64 { pairs.iter().filter_map(|pair| pair[field].as_u64()).sum() };
    let ours: Vec<String> = pairs.iter().filter_map(with_ours).collect();
    let failures = report["failures"].as_array().map_or(0, Vec::len);
    let again = report["failures"][0]["again"].as_str().map_or_else(String::new, |again| format!("\nfirst: {again}"));
    let ran = report["seeds"].as_u64().context("the report does not say how many seeds ran")?;
    let slice = if ran >= WHOLE { "the whole measure" } else { "a slice; --long runs 1,000, with quiche" };
    let peers: std::collections::BTreeSet<&str> =
        ours.iter().flat_map(|pair| pair.split(':')).filter(|stack| *stack != "tiderace").collect();
    let small = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let wanted = if context.long { 3 } else { 2 };
    Ok(vec![
        Row::new("runs with a wrong byte, a stall or a panic", small(failures), "", Target::Exactly(0.0)).detail(format!(
            "{} good runs of {} pairs x {ran} seeds ({slice}); {} MB compared, {} packets, {} lost; {:.0} s{}{again}",
            sum("good"),
            pairs.len(),
            sum("bytes_compared") / 1_000_000,
            sum("packets"),
            sum("dropped"),
            ended.seconds,
            excused(pairs)
        )),
        Row::new("stacks that ours talked with, in both roles", small(both(&ours, &peers)), "", Target::AtLeast(f64::from(wanted)))
            .detail(if ours.is_empty() { "our stack is in no pair".to_owned() } else { ours.join(", ") }),
    ])
}

/// `client:server` of a pair that our stack is in.
fn with_ours(pair: &Value) -> Option<String> {
    let (client, server) = (pair["client"].as_str()?, pair["server"].as_str()?);
    ((client == "tiderace") != (server == "tiderace")).then(|| format!("{client}:{server}"))
}

/// Runs that ended otherwise than planned by a known defect of the peer or by the network: neither good nor failed, so
/// they are named.
fn excused(pairs: &[Value]) -> String {
    let mut reasons = std::collections::BTreeMap::<&str, u64>::new();
    for (reason, count) in pairs.iter().filter_map(|pair| pair["excused"].as_object()).flatten() {
        *reasons.entry(reason).or_default() += count.as_u64().unwrap_or(0);
    }
    let starved = pairs.iter().filter_map(|pair| pair["starved"].as_u64()).sum::<u64>();
    if starved > 0 {
        reasons.insert("the network let nothing through for the whole idle timeout", starved);
    }
    reasons.iter().map(|(reason, count)| format!("\nneither good nor failed, {count} runs: {reason}")).collect()
}

/// Peers that were client and server of ours.
fn both(pairs: &[String], peers: &std::collections::BTreeSet<&str>) -> usize {
    let has = |pair: String| pairs.contains(&pair);
    peers.iter().filter(|peer| has(format!("tiderace:{peer}")) && has(format!("{peer}:tiderace"))).count()
}

/// `interop/run` fetches libclang for quiche's bindings where the system has none.
fn bindgen(context: &Context, command: &mut std::process::Command) {
    let python = context.root.join("interop/target/peers/libclang/lib");
    let found = std::fs::read_dir(python).ok().into_iter().flatten().flatten();
    let native = found.map(|version| version.path().join("site-packages/clang/native")).find(|path| path.exists());
    if let (None, Some(native)) = (std::env::var_os("LIBCLANG_PATH"), native) {
        let include = std::process::Command::new("cc").arg("-print-file-name=include").output().ok();
        let include =
            include.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        command.env("LIBCLANG_PATH", native).env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{include}"));
    }
}
