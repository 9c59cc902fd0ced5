//! CPU per GiB of a bulk transfer over loopback, ours beside quinn and the floor in the same rounds. Runs `bench/`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::{cargo, load},
    row::{Row, Target},
};

const GIB: f64 = 1_073_741_824.0;
/// Of quinn's cost.
const TARGET: f64 = 0.7;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let workspace = context.root.join("bench");
    let (rounds, size) = if context.long { ("11", "2GiB") } else { ("7", "1GiB") };
    let arguments = [
        "run",
        "--release",
        "--",
        "bulk",
        "--peers",
        "tiderace,quinn,floor",
        "--rounds",
        rounds,
        "--size",
        size,
        "--json",
    ];
    let ended = context.commands.run("cpu", &mut cargo(&workspace, arguments), Duration::from_secs(3 * 3_600))?;
    let report: Value =
        serde_json::from_str(&ended.stdout).with_context(|| format!("no report; {}", ended.reason()))?;
    let runs = report["runs"].as_array().context("the report has no runs")?;
    let failures: Vec<&str> = report["failures"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(failures.is_empty(), "{} runs failed, the first: {}", failures.len(), failures[0]);
    [("sender", "client"), ("receiver", "server")].into_iter().map(|(name, side)| row(runs, name, side)).collect()
}

fn row(runs: &[Value], name: &str, side: &str) -> Result<Row> {
    let to = |yardstick: &str| -> Vec<f64> {
        let ours = runs.iter().filter(|run| run["peer"] == "tiderace");
        let ratio = |run: &Value| {
            let beside = runs.iter().find(|other| other["peer"] == yardstick && other["round"] == run["round"])?;
            Some(seconds_per_byte(&run[side])? / seconds_per_byte(&beside[side])?)
        };
        ours.filter_map(ratio).collect()
    };
    let (to_quinn, mut to_floor) = (to("quinn"), to("floor"));
    ensure!(!to_quinn.is_empty(), "no round has both tiderace and quinn");
    to_floor.sort_by(f64::total_cmp);
    let floor = lab::stats::quantile::median(&to_floor).unwrap_or(f64::NAN);
    let size = runs.iter().filter_map(|run| run[side]["units"].as_f64()).fold(f64::INFINITY, f64::min) / GIB;
    let foreign = runs.iter().filter_map(|run| run["foreign_cores"].as_f64()).fold(0.0, f64::max);
    Ok(Row::median(format!("CPU per GiB, {name}: ours / quinn's"), &to_quinn, "", Target::AtMost(TARGET)).detail(format!(
        "median over {} rounds of {size:.2} GiB; {floor:.2} x the floor; others used up to {foreign:.2} CPUs meanwhile; {}",
        to_quinn.len(),
        load()
    )))
}

/// CPU time of one side between the first byte and the last, per byte.
fn seconds_per_byte(side: &Value) -> Option<f64> {
    let (time, bytes) = (side["cpu_ns"].as_f64()?, side["units"].as_f64()?);
    (time > 0.0 && bytes > 0.0).then_some(time / bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let run = |peer: &str, round: u32, cpu: u32| {
            let side = json!({ "cpu_ns": cpu, "units": 1_000 });
            json!({ "peer": peer, "round": round, "client": side, "server": side, "foreign_cores": 0.1 })
        };
        let mut runs = Vec::new();
        for round in 1..=7 {
            // A machine that gets slower: only ratios of the same round say 0.6.
            runs.extend([
                run("tiderace", round, 60 * round),
                run("quinn", round, 100 * round),
                run("floor", round, 30 * round),
            ]);
        }
        let row = row(&runs, "sender", "client").unwrap();
        assert_eq!((row.value, row.interval, row.passed), (Some(0.6), Some([0.6, 0.6]), true));
        assert!(row.detail.contains("2.00 x the floor"), "{}", row.detail);
    }
}
