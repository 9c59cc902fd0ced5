//! A transfer of an hour over an emulated network: does memory stay flat at both ends?

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::{cargo, load},
    row::{Row, Target},
};

/// Time that the server is there beyond the client's run, so that it ends by itself as well.
const LATER: Duration = Duration::from_secs(30);

/// An hour, or six with `--long`.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(3_600);
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("soak-build", &mut build, limit)?.ok()?;
    let program = context.commands.target().join("debug/tiderace").display().to_string();
    let length = Duration::from_secs(if context.long { 6 * 3_600 } else { 3_600 });
    let answer = context.commands.target().join("shows/soak-server.json").display().to_string();
    let (ours, theirs) = (length.as_secs(), (length + LATER).as_secs());
    let server = format!("{program} perf server --listen 10.2.0.1:4433 --soak {theirs}s --json > {answer}");
    let client = format!("{program} perf client 10.2.0.1:4433 --insecure --soak {ours}s --json");
    let client = format!("{client} && sleep {}", 2 * LATER.as_secs());
    let mut command = Command::new(&program);
    command.args(["lab", "shell", "mobile", "--server", &server, "--", "sh", "-c", &client]);
    let ended = context.commands.run("soak", &mut command, length + limit)?.ok()?;
    let client: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let text = std::fs::read_to_string(&answer).with_context(|| format!("read {answer}"))?;
    let mut server = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let server = server.rfind(|line| line["event"] == "soak").context("the server judged nothing")?;
    ["client", "server"].into_iter().zip([&client["soak"], &server["soak"]]).map(|(end, soak)| row(end, soak)).collect()
}

fn row(end: &str, soak: &Value) -> Result<Row> {
    let growth = &soak["growth"];
    let of = |name: &str| growth[name].as_f64().with_context(|| format!("the {end} did not judge its memory"));
    let (first, last, per_hour) = (of("first")?, of("last")?, of("per_hour")?);
    let rows = soak["rows"].as_array().map_or(0, Vec::len);
    let span = soak["rows"].as_array().and_then(|rows| rows.last()?["at_s"].as_f64()).unwrap_or(0.0);
    ensure!(rows > 0, "the {end} has no rows");
    let grown = (last / first - 1.0) * 100.0;
    let what = format!("memory of the {end}, growth from the first third to the last");
    let (first, last, per_hour) = (first / 1e6, last / 1e6, per_hour / 1e6);
    let detail = format!("{first:.1} to {last:.1} MB, {per_hour:+.2} MB an hour, over {span:.0} s; {}", load());
    // The program's own judgement: a few pages more are no growth, though they are many percent of a small process.
    Ok(Row {
        target: "≤ 5 % or 4 MiB".to_owned(),
        passed: growth["is_flat"] == true,
        ..Row::new(what, grown, "%", Target::Printed).detail(detail)
    })
}
