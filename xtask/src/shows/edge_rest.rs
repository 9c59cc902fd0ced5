//! 10,000 connections to the gateway, at rest and in use, beside Caddy and nginx: memory and processor time of the server.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    edge_load::{CONTENDERS, Contender, PAIRS, Site, ratio},
    row::{Row, Target},
};
use crate::processor;

const LIMIT: Duration = Duration::from_secs(180);
/// Connections, and requests over all of them, 64 at a time.
const CONNECTIONS: usize = 10_000;
const REQUESTS: usize = 20_000;
/// Seconds at rest: shorter than the idle timeout of QUIC, which is 30 s for all.
const REST: f64 = 17.0;
/// Time after which nothing of the begin goes on any more: our connections give memory back after 10 s without packets.
const SETTLED: Duration = Duration::from_secs(12);

/// Values of the rounds.
type Values = BTreeMap<(Contender, &'static str), Vec<f64>>;

/// All rows.
pub(super) fn measure(context: &Context, site: &Site) -> Result<Vec<Row>> {
    let (rounds, mut values) = (if context.long { 7 } else { 3 }, Values::new());
    for round in 1..=rounds {
        eprintln!("clients: {CONNECTIONS} connections, round {round} of {rounds}");
        for contender in CONTENDERS {
            match one(context, site, contender) {
                Ok(measured) => {
                    for (what, value) in measured {
                        values.entry((contender, what)).or_default().push(value);
                    }
                }
                Err(why) if contender.0 == "tiderace" => return Err(why.context(format!("over {}", contender.1))),
                Err(why) => eprintln!("clients: {} over {}: {why:#}", contender.0, contender.1),
            }
        }
    }
    Ok(rows(&values))
}

/// A fresh server with its connections.
fn one(context: &Context, site: &Site, contender: Contender) -> Result<[(&'static str, f64); 5]> {
    let (mut server, port) = site.start(context, contender.0)?;
    let pid = server.0.id();
    // A few requests let it come up in full.
    let mut few = site.load("closed", contender.1, port, &["4", "4", "400"]);
    context.commands.run("edge-rest-few", &mut few, LIMIT)?.ok()?;
    let before = processor::memory(pid)?;
    let numbers = [CONNECTIONS.to_string(), REST.to_string(), REQUESTS.to_string()];
    let rest = [&numbers[0], &numbers[1], "64", &numbers[2]];
    let mut load = context.commands.start("edge-rest", &mut site.load("rest", contender.1, port, &rest))?;
    let mut line = |key: &str| -> Result<Value> {
        let begun = Instant::now();
        loop {
            let is_alive = load.alive();
            let printed = load.printed();
            let mut lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(found) = lines.find(|line| line.get(key).is_some()) {
                return Ok(found);
            }
            ensure!(is_alive && begun.elapsed() < LIMIT, "the load did not get there: {printed}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let opened = line("open")?;
    std::thread::sleep(SETTLED);
    let (memory, spent, settled) = (processor::memory(pid)?, processor::seconds(pid)?, Instant::now());
    line("rested")?;
    let (rested, seconds) = (processor::seconds(pid)?, settled.elapsed().as_secs_f64());
    let asked = line("requests")?;
    let used = processor::seconds(pid)? - rested;
    ensure!(server.0.alive(), "the server ended: {}", server.0.printed());
    let value =
        |said: &Value, pointer: &str| said.pointer(pointer).and_then(Value::as_f64).context("a figure is missing");
    Ok([
        ("memory", (memory - before) / 1024.0 / CONNECTIONS as f64),
        ("rest", 100.0 * (rested - spent) / seconds),
        ("CPU", used / REQUESTS as f64),
        ("p99", value(&asked, "/latency_ms/p99")?),
        ("opened", CONNECTIONS as f64 / value(&opened, "/seconds")?),
    ])
}

fn rows(values: &Values) -> Vec<Row> {
    let about = "12 s after the last one has opened; the kernel's memory of TCP connections is not in it";
    let all = [
        ("memory of a connection at rest", "memory", 1.0, "KiB", about),
        ("CPU at rest", "rest", 1.0, "% of a processor", "from 12 to 17 s after the last one has opened"),
        ("CPU per request over all of them in turn", "CPU", 1e6, "µs", "20,000 requests of 1 kB, 64 at a time"),
        ("p99 of these requests", "p99", 1.0, "ms", "64 at a time, all programs on the same processors"),
        (
            "opened per second, with a request each",
            "opened",
            1.0,
            "1/s",
            "64 at a time, all programs on the same processors",
        ),
    ];
    let mut rows = Vec::new();
    for (name, what, scale, unit, detail) in all {
        let of = |contender| values.get(&(contender, what));
        // A ratio of times that are close to nothing says nothing.
        for (pair, a, b) in PAIRS.into_iter().filter(|_| what != "rest") {
            rows.push(ratio(format!("10,000 connections, {name}: {pair}"), of(a).zip(of(b))).detail(detail));
        }
        for contender in CONTENDERS {
            let scaled: Vec<f64> = of(contender).into_iter().flatten().map(|value| value * scale).collect();
            let what = format!("10,000 connections, {name}: {} {}", contender.0, contender.1);
            rows.push(if scaled.is_empty() {
                Row::absent(&what, &anyhow::anyhow!("no round had all connections to the end"))
            } else {
                Row::median(what, &scaled, unit, Target::Printed).detail(detail)
            });
        }
    }
    rows
}
