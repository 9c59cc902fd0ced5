//! The gateway as its clients see it, beside Caddy and nginx, over HTTP/3 and HTTP/2: requests in an open and a closed loop, connections with one
//! request each, 10,000 connections. Rounds are interleaved.
//!
//! The same for all: a file of 1 kB, client, TLS 1.3 with AES-128-GCM and X25519, a thread or process for each processor, no access log. Client and
//! server share the processors, so rates tell what both can do together, and the processor time of the server tells them apart. `h2load` asks over
//! HTTP/2 as well, as a client that is not ours.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::{Running, load},
    edge_rest,
    edge_servers::{self as servers, Gentle},
    row::{Row, Target},
};
use crate::processor;

const LIMIT: Duration = Duration::from_secs(600);
/// The file, and its bytes.
pub(super) const PATH: &str = "/small";
const SIZE: f64 = 1_000.0;
/// Connections of a loop, and requests at a time on each of a closed one.
const CONNECTIONS: &str = "4";
const PARALLEL: &str = "16";
const REQUESTS: &str = "8000";
/// Seconds of an open loop.
const SECONDS: &str = "2";
/// Handshakes of a run, and those at a time.
const HANDSHAKES: &str = "600";
const AT_A_TIME: &str = "8";

/// Programs, built, and the files that they serve.
pub(super) struct Site {
    pub(super) program: PathBuf,
    pub(super) load: PathBuf,
    pub(super) caddy: PathBuf,
    pub(super) scratch: PathBuf,
}

/// A server and the protocol that it is asked over.
pub(super) type Contender = (&'static str, &'static str);

const OURS_H3: Contender = ("tiderace", "h3");
const OURS_H2: Contender = ("tiderace", "h2");
const CADDY_H3: Contender = ("caddy", "h3");
const CADDY_H2: Contender = ("caddy", "h2");
const NGINX_H2: Contender = ("nginx", "h2");
pub(super) const CONTENDERS: [Contender; 5] = [OURS_H3, CADDY_H3, OURS_H2, CADDY_H2, NGINX_H2];

/// Pairs that every table compares.
pub(super) const PAIRS: [(&str, Contender, Contender); 3] = [
    ("ours / Caddy's, HTTP/3", OURS_H3, CADDY_H3),
    ("ours / nginx's, HTTP/2", OURS_H2, NGINX_H2),
    ("our HTTP/3 / nginx's HTTP/2", OURS_H3, NGINX_H2),
];

/// Runs of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Run {
    Closed,
    /// An open loop at the same rate for all: half of what the slowest can do.
    Open,
    /// An open loop at half of what this one can do.
    Half,
    Full,
    Resumed,
    H2load,
}

/// Values of the rounds, by what was run and what is measured.
type Values = BTreeMap<(Contender, Run, &'static str), Vec<f64>>;

impl Site {
    /// Builds the programs.
    pub(super) fn new(context: &Context, name: &str) -> Result<Self> {
        servers::require_programs()?;
        let built = servers::build_ours(context)?;
        let caddy = servers::build_caddy(context)?;
        let scratch = context.commands.scratch(name)?;
        servers::site(&scratch, &[("small", SIZE as usize)])?;
        Ok(Self { program: built.join("tiderace"), load: built.join("examples/load"), caddy, scratch })
    }

    /// Starts a server; returns its port, too.
    pub(super) fn start(&self, context: &Context, name: &str) -> Result<(Gentle, u16)> {
        let (port, back) = (servers::port()?, servers::port()?);
        let mut running = Gentle(match name {
            "tiderace" => servers::edge(context, &self.program, &self.scratch, port, back)?,
            "caddy" => servers::caddy(context, &self.caddy, &self.scratch, port, back)?,
            _ => servers::nginx(context, &self.scratch, port, back)?,
        });
        servers::wait(port).with_context(|| running.0.printed())?;
        ensure!(running.0.alive(), "{name} ended: {}", running.0.printed());
        Ok((running, port))
    }

    /// The load in this mode.
    pub(super) fn load(&self, mode: &str, protocol: &str, port: u16, rest: &[&str]) -> Command {
        let mut command = Command::new(&self.load);
        command.args([mode, protocol, &format!("127.0.0.1:{port}")]).arg(self.scratch.join("cert.pem"));
        command.arg(PATH).args(rest);
        command
    }
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    eprintln!("clients: building tiderace and its load");
    let site = Site::new(context, "edge-load")?;
    let mut running = BTreeMap::new();
    for name in ["tiderace", "caddy", "nginx"] {
        running.insert(name, site.start(context, name)?);
    }
    let (rounds, begun) = (if context.long { 11 } else { 7 }, Instant::now());
    let (mut values, mut capacity) = (Values::new(), BTreeMap::new());
    for round in 0..=rounds {
        eprintln!("clients: round {round} of {rounds}, {:.0} s after the first began", begun.elapsed().as_secs_f64());
        for contender in CONTENDERS {
            let (server, port) = &running[contender.0];
            let turn = Turn { context, site: &site, contender, server: &server.0, port: *port, measured: Vec::new() };
            let measured = turn.take(&capacity)?;
            let rate = measured.iter().find(|(run, what, _)| (*run, *what) == (Run::Closed, "rate"));
            capacity.entry(contender).or_insert(rate.context("there is no rate")?.2);
            // The first round fills caches, and finds the rates.
            for (run, what, value) in measured.into_iter().filter(|_| round > 0) {
                values.entry((contender, run, what)).or_default().push(value);
            }
        }
    }
    for (name, (server, _)) in &mut running {
        ensure!(server.0.alive(), "{name} ended: {}", server.0.printed());
    }
    drop(running);
    let mut rows = rows(&values, &capacity);
    let of_rest = edge_rest::measure(context, &site);
    rows.extend(of_rest.unwrap_or_else(|why| vec![Row::unmeasured("10,000 connections", &why)]));
    Ok(rows)
}

/// A contender in a round.
struct Turn<'a> {
    context: &'a Context,
    site: &'a Site,
    contender: Contender,
    server: &'a Running,
    port: u16,
    measured: Vec<(Run, &'static str, f64)>,
}

impl Turn<'_> {
    /// All runs. Open loops need the capacity of all contenders.
    fn take(mut self, capacity: &BTreeMap<Contender, f64>) -> Result<Vec<(Run, &'static str, f64)>> {
        self.load(Run::Closed, "closed", &[CONNECTIONS, PARALLEL, REQUESTS])?;
        self.load(Run::Full, "handshakes", &[AT_A_TIME, HANDSHAKES, "full"])?;
        self.load(Run::Resumed, "handshakes", &[AT_A_TIME, HANDSHAKES, "resumed"])?;
        if self.contender.1 == "h2" && has_h2load() {
            self.h2load()?;
        }
        if capacity.len() == CONTENDERS.len() {
            let same = rate_of_all(capacity).to_string();
            self.load(Run::Open, "open", &[CONNECTIONS, &same, SECONDS, "1"])?;
            let half = (0.5 * capacity[&self.contender]).round().to_string();
            self.load(Run::Half, "open", &[CONNECTIONS, &half, SECONDS, "2"])?;
        }
        Ok(self.measured)
    }

    /// Runs it; returns its output, and the processor time of the server.
    fn run(&self, mut command: Command) -> Result<(String, f64)> {
        let before = processor::seconds(self.server.id())?;
        let ended = self.context.commands.run("edge-load", &mut command, LIMIT)?.ok()?;
        Ok((ended.stdout, processor::seconds(self.server.id())? - before))
    }

    fn load(&mut self, run: Run, mode: &str, rest: &[&str]) -> Result<()> {
        let (said, spent) = self.run(self.site.load(mode, self.contender.1, self.port, rest))?;
        let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let value = |pointer: &str| said.pointer(pointer).and_then(Value::as_f64);
        let count = value("/requests").or_else(|| value("/connections")).context("there is no count")?;
        if let Some(bytes) = value("/bytes") {
            ensure!(bytes == count * SIZE, "{}: {bytes} bytes in {count} answers", self.contender.0);
        }
        let rate = count / value("/seconds").context("there is no time")?;
        let figures = [
            ("CPU", Some(spent / count)),
            ("rate", Some(rate)),
            ("p50", value("/latency_ms/p50")),
            ("p99", value("/latency_ms/p99")),
            ("p99.9", value("/latency_ms/p999")),
            ("late", value("/late_ms/p99")),
            ("failed", value("/failed")),
            ("resumed", value("/resumed").map(|resumed| 100.0 * resumed / count)),
        ];
        self.measured.extend(figures.into_iter().filter_map(|(what, value)| Some((run, what, value?))));
        Ok(())
    }

    /// The closed loop by h2load.
    fn h2load(&mut self) -> Result<()> {
        let mut command = Command::new("h2load");
        command.args(["-n", REQUESTS, "-c", CONNECTIONS, "-m", PARALLEL, "-t", "2"]);
        command.args(["--tls13-ciphers", "TLS_AES_128_GCM_SHA256", "--groups", "X25519"]);
        command.arg(format!("https://localhost:{}{PATH}", self.port));
        let (said, spent) = self.run(command)?;
        ensure!(said.contains(&format!(" {REQUESTS} succeeded, 0 failed")), "{said}");
        self.measured.push((Run::H2load, "CPU", spent / REQUESTS.parse::<f64>()?));
        Ok(())
    }
}

/// Rate of an open loop that is the same for all: half of the slowest one's capacity.
fn rate_of_all(capacity: &BTreeMap<Contender, f64>) -> f64 {
    (0.5 * capacity.values().copied().fold(f64::INFINITY, f64::min)).round()
}

/// Returns whether h2load is installed.
fn has_h2load() -> bool {
    Command::new("h2load").arg("--version").output().is_ok()
}

/// The row of a ratio of two contenders, round by round.
pub(super) fn ratio(what: String, values: Option<(&Vec<f64>, &Vec<f64>)>) -> Row {
    let Some((a, b)) = values else { return Row::absent(&what, &anyhow::anyhow!("one of the two has no value")) };
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    Row::median(what, &ratios, "", Target::Printed)
}

fn rows(values: &Values, capacity: &BTreeMap<Contender, f64>) -> Vec<Row> {
    let mut rows = Vec::new();
    let open = format!("open loop of {} requests per second, half of what the slowest can do", rate_of_all(capacity));
    let runs = [
        (
            Run::Closed,
            "closed loop",
            "rate",
            format!("{CONNECTIONS} connections with {PARALLEL} requests each; {}", load()),
        ),
        (Run::Closed, "closed loop", "CPU", "processor time of the server for a request".to_owned()),
        (Run::H2load, "closed loop of h2load", "CPU", "processor time of the server for a request".to_owned()),
        (Run::Open, "open loop", "p50", open.clone()),
        (Run::Open, "open loop", "p99", open),
        (
            Run::Half,
            "open loop, half of its own capacity",
            "p99",
            format!("{SECONDS} s over {CONNECTIONS} connections"),
        ),
        (Run::Full, "connections with a request, full handshake", "rate", format!("{AT_A_TIME} at a time")),
        (Run::Full, "connections with a request, full handshake", "CPU", "processor time of the server".to_owned()),
        (Run::Resumed, "connections with a request, resumed", "rate", format!("{AT_A_TIME} at a time, no 0-RTT")),
        (Run::Resumed, "connections with a request, resumed", "CPU", "processor time of the server".to_owned()),
    ];
    for (run, name, what, detail) in runs {
        for (pair, a, b) in PAIRS.into_iter().filter(|(_, a, _)| run != Run::H2load || a.1 == "h2") {
            let of = |contender| values.get(&(contender, run, what));
            rows.push(ratio(format!("{name}, {what}: {pair}"), of(a).zip(of(b))).detail(detail.clone()));
        }
        for contender in CONTENDERS {
            let Some(of) = values.get(&(contender, run, what)) else { continue };
            let (scale, unit) = match what {
                "CPU" => (1e6, "µs"),
                "rate" => (1.0, "1/s"),
                _ => (1.0, "ms"),
            };
            let scaled: Vec<f64> = of.iter().map(|value| value * scale).collect();
            let row =
                Row::median(format!("{name}, {what}: {} {}", contender.0, contender.1), &scaled, unit, Target::Printed);
            rows.push(row.detail(also(values, contender, run)));
        }
    }
    let failed: f64 = values.iter().filter(|(key, _)| key.2 == "failed").flat_map(|(_, values)| values).sum();
    rows.push(Row::new("requests of open loops that failed", failed, "", Target::Exactly(0.0)));
    let resumed = values.iter().filter(|(key, _)| key.1 == Run::Resumed && key.2 == "resumed");
    let least = resumed.flat_map(|(_, values)| values.iter().copied()).fold(f64::INFINITY, f64::min);
    let row = Row::new("handshakes that resumed, least of all runs", least, "%", Target::AtLeast(95.0));
    rows.push(row.detail(format!("the first {AT_A_TIME} have no ticket")));
    rows
}

/// More figures of the same runs.
fn also(values: &Values, contender: Contender, run: Run) -> String {
    let of = |what: &'static str| {
        let mut found = values.get(&(contender, run, what))?.clone();
        found.sort_by(f64::total_cmp);
        Some(found[found.len() / 2])
    };
    let mut parts = Vec::new();
    parts.extend(of("rate").map(|rate| format!("{rate:.0} per second")));
    for what in ["p50", "p99", "p99.9"] {
        parts.extend(of(what).map(|ms| format!("{what} {ms:.2} ms")));
    }
    parts.extend(of("late").map(|ms| format!("the load itself late by {ms:.2} ms (p99)")));
    parts.join(", ")
}
