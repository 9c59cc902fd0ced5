//! Measurements of `bench/` beside other stacks, each value beside its target: CPU per byte, handshake and request, memory per
//! connection, datagrams per core.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case, Context,
    command::{cargo, load},
    counts, edge_cost, edge_load, flood, interop,
    row::{Row, Target},
    speed_shards,
};

/// Of the floor, the sending and the receiving side of a bulk transfer.
const SENDER_TO_FLOOR: f64 = 1.10;
const RECEIVER_TO_FLOOR: f64 = 1.30;
/// Of quinn, on either side of a bulk transfer.
const BULK_TO_QUINN: f64 = 0.43;
/// Of kernel TCP with TLS, both sides of a bulk transfer together.
const BULK_TO_TCP: f64 = 1.15;
/// 50 connections, of one.
const CONNECTIONS_TO_ONE: f64 = 1.10;
/// Of quinn, the server's side of a request.
const REQUEST_TO_QUINN: f64 = 0.48;
/// The same of a service.
const SERVED_TO_QUINN: f64 = 0.38;
/// Requests per second, of quinn's.
const RATE_TO_QUINN: f64 = 1.3;
/// Of quinn, p99 of requests at half of the capacity.
const P99_TO_QUINN: f64 = 1.0;
/// Of TCP with TLS, the server's side of a full handshake.
const HANDSHAKE_TO_TCP: f64 = 1.15;
/// Of TCP with TLS, the server's side of a resumed handshake.
const RESUMED_TO_TCP: f64 = 1.2;
/// An idle connection at the server, in KiB.
const IDLE_KIB: f64 = 10.5;
/// Percent of a processor that 10,000 idle connections take.
const IDLE_PERCENT: f64 = 0.1;

/// The cases in their order.
pub(super) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("bulk", "CPU per GiB beside the floor, quinn and TCP+TLS; 50 connections beside one", bulk),
        case("requests", "CPU per small request, and requests per second, beside quinn", requests),
        case("latency", "latency of requests at shares of the capacity, and beside a transfer", latency),
        case("handshakes", "CPU and signatures per full and resumed handshake beside TCP+TLS", handshakes),
        case("counts", "allocations per request and handshake, whatever the machine does beside", counts::measure),
        case("idle", "memory of an idle connection, CPU time of 10,000", idle),
        case("gateway", "files and proxied answers beside nginx, HAProxy and Caddy", edge_cost::measure),
        case("clients", "the gateway as clients see it: open loop, handshakes, 10,000 connections", edge_load::measure),
        case("datagrams", "datagrams per core beside raw UDP sockets", datagrams),
        case("flood", "latency of a connection under 5,000 handshakes per second", flood::flood),
        case("shards", "CPU per byte at a server with two shards beside one", speed_shards::measure),
        case("many", "cost of a packet beside 10,000 idle connections", flood::idle_beside),
        case("interop", "pairs of QUIC stacks on bad networks in virtual time", interop::measure),
    ]
}

/// CPU per GiB.
fn bulk(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "bulk,bulk-connections", "floor,tcp-rustls,tiderace,quinn")?;
    let mut rows = Vec::new();
    for (yardstick, targets) in
        [("floor", [SENDER_TO_FLOOR, RECEIVER_TO_FLOOR]), ("quinn", [BULK_TO_QUINN, BULK_TO_QUINN])]
    {
        for (target, (name, side)) in targets.into_iter().zip([("sender", Side::Client), ("receiver", Side::Server)]) {
            let what = format!("CPU per GiB, {name}: ours / {yardstick}");
            rows.push(report.ratio(what, ("bulk", "tiderace"), ("bulk", yardstick), side, target));
        }
    }
    let (one, many) = (("bulk", "tiderace"), ("bulk-connections", "tiderace"));
    rows.push(report.ratio("CPU per GiB: 50 connections / one".to_owned(), many, one, Side::Sum, CONNECTIONS_TO_ONE));
    let tcp = ("bulk", "tcp-rustls");
    rows.push(report.ratio("CPU per GiB, both sides: ours / TCP+TLS".to_owned(), one, tcp, Side::Sum, BULK_TO_TCP));
    let lost = |peer| report.values("bulk", peer, |run| run["client"]["datagrams"]["lost"].as_f64());
    let quinn = median(lost("quinn")).map_or_else(|| "–".to_owned(), |lost| format!("{lost:.0}"));
    let row = Row::median("packets lost on loopback, 2 GiB", &lost("tiderace"), "", Target::Exactly(0.0));
    rows.push(row.detail(format!("quinn: {quinn}; {}", report.about("bulk"))));
    Ok(rows)
}

/// CPU time that packets without encryption, but with integrity, would save.
pub(super) fn integrity(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "bulk", "floor,floor-integrity,tiderace")?;
    let mut rows = Vec::new();
    for (name, side) in [("sender", Side::Client), ("receiver", Side::Server)] {
        let what = format!("CPU per GiB, {name}: packets of the floor not encrypted / encrypted");
        rows.push(report.ratio(what, ("bulk", "floor-integrity"), ("bulk", "floor"), side, Target::Printed));
        let saved = report.values("bulk", "tiderace", |run| {
            let of = |peer| {
                let found = report.runs("bulk", peer).find(|other| other["round"] == run["round"])?;
                side.cost(found)
            };
            Some(100.0 * (of("floor")? - of("floor-integrity")?) / side.cost(run)?)
        });
        let row =
            Row::median(format!("part of our {name}'s CPU time that this would save"), &saved, "%", Target::Printed);
        rows.push(row.detail(report.about("bulk")));
    }
    Ok(rows)
}

/// CPU per request.
fn requests(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "rr", "tiderace,tiderace-service,quinn")?;
    let beside =
        |what: &str, peer, target| report.ratio(what.to_owned(), ("rr", peer), ("rr", "quinn"), Side::Server, target);
    let rate = |what: &str, peer| {
        let ratios = report.values("rr", peer, |run| {
            let other = report.runs("rr", "quinn").find(|other| other["round"] == run["round"])?;
            Some(other["client"]["wall_ns"].as_f64()? / run["client"]["wall_ns"].as_f64()?)
        });
        Row::median(what, &ratios, "", Target::AtLeast(RATE_TO_QUINN)).detail(report.about("rr"))
    };
    Ok(vec![
        beside("CPU per request, server: ours / quinn", "tiderace", REQUEST_TO_QUINN),
        beside("CPU per request, server: ours as a service / quinn", "tiderace-service", SERVED_TO_QUINN),
        rate("requests per second: ours / quinn", "tiderace"),
        rate("requests per second: ours as a service / quinn", "tiderace-service"),
    ])
}

/// Latency of requests under load.
fn latency(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "latency", "tiderace,quinn")?;
    let of = |run: &Value, condition: &str, field: &str| {
        let latencies = run["client"]["latencies"].as_array()?;
        latencies.iter().find(|latency| latency["condition"] == condition)?[field].as_f64()
    };
    let mut rows = Vec::new();
    for condition in ["50 %", "80 %", "95 %", "transfer on the same connection", "transfer on another"] {
        for (name, field) in [("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")] {
            let ratios = report.values("latency", "tiderace", |run| {
                let other = report.runs("latency", "quinn").find(|other| other["round"] == run["round"])?;
                Some(of(run, condition, field)? / of(other, condition, field)?)
            });
            let target =
                if (condition, name) == ("50 %", "p99") { Target::AtMost(P99_TO_QUINN) } else { Target::Printed };
            let own = |peer| median(report.values("latency", peer, |run| of(run, condition, field)));
            let shown = |peer| own(peer).map_or_else(|| "–".to_owned(), |value| format!("{value:.0} µs"));
            let row = Row::median(format!("{name} of a request, {condition}: ours / quinn"), &ratios, "", target);
            rows.push(row.detail(format!("{} and {}; {}", shown("tiderace"), shown("quinn"), report.about("latency"))));
        }
    }
    Ok(rows)
}

/// CPU and asymmetric operations per handshake.
fn handshakes(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "hs,hsr,hs-ml-kem", "tcp-rustls,tiderace,quinn")?;
    let against_tcp = |what: &str, mode, target| {
        report.ratio(what.to_owned(), (mode, "tiderace"), (mode, "tcp-rustls"), Side::Server, target)
    };
    let count = |what: &str, mode, side: &str, field: &str, target| {
        let values =
            report.values(mode, "tiderace", |run| Some(run[side][field].as_f64()? / run[side]["units"].as_f64()?));
        Row::median(what, &values, "", Target::Exactly(target)).detail(report.about(mode))
    };
    Ok(vec![
        against_tcp("CPU per full handshake, server: ours / TCP+TLS", "hs", HANDSHAKE_TO_TCP),
        against_tcp("CPU per resumed handshake, server: ours / TCP+TLS", "hsr", RESUMED_TO_TCP),
        report.ratio(
            "CPU per full handshake with X25519MLKEM768, server: ours / TCP+TLS".to_owned(),
            ("hs-ml-kem", "tiderace"),
            ("hs-ml-kem", "tcp-rustls"),
            Side::Server,
            Target::Printed,
        ),
        report.ratio(
            "CPU per full handshake, server: ours / quinn".to_owned(),
            ("hs", "tiderace"),
            ("hs", "quinn"),
            Side::Server,
            Target::Printed,
        ),
        count("part of resumed handshakes with 0-RTT", "hsr", "client", "early", 1.0),
        count("signatures per full handshake", "hs", "server", "signatures", 1.0),
        count("signatures per resumed handshake", "hsr", "server", "signatures", 0.0),
    ])
}

/// Memory per connection.
fn idle(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "idle", "tiderace,quinn")?;
    let kib = |peer| {
        report.values("idle", peer, |run| {
            Some(run["server"]["memory_growth"].as_f64()? / run["server"]["units"].as_f64()? / 1024.0)
        })
    };
    let beside = median(kib("quinn")).map_or_else(|| "–".to_owned(), |quinn| format!("{quinn:.1}"));
    let row = Row::median("memory of an idle connection, server", &kib("tiderace"), "KiB", Target::AtMost(IDLE_KIB));
    let memory = row.detail(format!("quinn: {beside} KiB; {}", report.about("idle")));
    let mut rest =
        cargo(&context.root, ["run", "--locked", "--profile", "dist", "-p", "tiderace", "--example", "rest"]);
    let ended = context.commands.run("rest", &mut rest, Duration::from_secs(3_600))?.ok()?;
    let seen: Value = serde_json::from_str(ended.stdout.trim()).context("the example said something else")?;
    let percent = seen["cpu_percent"].as_f64().context("the example counted nothing")?;
    let time = Row::new("CPU time of 10,000 idle connections", percent, "%", Target::AtMost(IDLE_PERCENT));
    Ok(vec![memory, time.detail(format!("of a processor; {}; {}", ended.stdout.trim(), load()))])
}

/// Datagrams per core, beside raw sockets: printed without a target.
fn datagrams(context: &Context) -> Result<Vec<Row>> {
    let report = Report::get(context, "dgram", "floor,udp-gso,udp,tiderace,quinn")?;
    let sides = [("sent", Side::Client), ("received", Side::Server)];
    Ok(sides
        .into_iter()
        .map(|(name, side)| {
            let rates =
                |peer| report.values("dgram", peer, |run| Some(1e6 / side.cost(run).filter(|&cost| cost > 0.0)?));
            let beside: Vec<String> = ["udp", "udp-gso", "floor", "quinn"]
                .into_iter()
                .filter_map(|peer| Some(format!("{peer} {:.0}", median(rates(peer))?)))
                .collect();
            Row::median(format!("datagrams of 1,200 B {name} per core"), &rates("tiderace"), "k/s", Target::Printed)
                .detail(format!("beside: {}; {}", beside.join(", "), report.about("dgram")))
        })
        .collect())
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
    Sum,
}

impl Side {
    /// CPU time per unit of work, in nanoseconds.
    fn cost(self, run: &Value) -> Option<f64> {
        let of = |side: &str| Some(run[side]["cpu_ns"].as_f64()? / run[side]["units"].as_f64()?);
        match self {
            Self::Client => of("client"),
            Self::Server => of("server"),
            Self::Sum => Some(of("client")? + of("server")?),
        }
    }
}

/// Output of `bench`.
struct Report(Value);

impl Report {
    /// From the file that was given, or measured.
    fn get(context: &Context, modes: &str, peers: &str) -> Result<Self> {
        let text = match &context.from {
            Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
            None => measure(context, modes, peers)?,
        };
        let report: Value = serde_json::from_str(&text).context("this is no report of bench")?;
        ensure!(report["runs"].is_array(), "the report has no runs");
        Ok(Self(report))
    }

    fn runs<'a>(&'a self, mode: &'a str, peer: &'a str) -> impl Iterator<Item = &'a Value> {
        let runs = self.0["runs"].as_array().map_or(&[][..], Vec::as_slice);
        runs.iter().filter(move |run| run["mode"] == mode && run["peer"] == peer)
    }

    fn values(&self, mode: &str, peer: &str, pick: impl Fn(&Value) -> Option<f64>) -> Vec<f64> {
        self.runs(mode, peer).filter_map(pick).collect()
    }

    /// The cost of one mode and contender divided by that of another in the same round.
    fn ratio(
        &self,
        what: String,
        own: (&str, &str),
        beside: (&str, &str),
        side: Side,
        target: impl Into<Target>,
    ) -> Row {
        let ratios = self.values(own.0, own.1, |run| {
            let other = self.runs(beside.0, beside.1).find(|other| other["round"] == run["round"])?;
            Some(side.cost(run)? / side.cost(other)?)
        });
        Row::median(what, &ratios, "", target.into()).detail(self.about(own.0))
    }

    /// Conditions of the measurement.
    fn about(&self, mode: &str) -> String {
        let runs = || self.0["runs"].as_array().into_iter().flatten().filter(move |run| run["mode"] == mode);
        let rounds = runs().filter_map(|run| run["round"].as_u64()).max().unwrap_or(0);
        let foreign = runs().filter_map(|run| run["foreign_cores"].as_f64()).fold(0.0, f64::max);
        let failures = self.0["failures"].as_array().map_or(0, Vec::len);
        let failed = if failures == 0 { String::new() } else { format!("; {failures} runs failed") };
        format!("{rounds} rounds; others used up to {foreign:.2} CPUs meanwhile; {}{failed}", load())
    }
}

fn measure(context: &Context, modes: &str, peers: &str) -> Result<String> {
    let workspace = context.root.join("bench");
    let rounds = if context.long { "11" } else { "7" };
    let arguments = ["run", "--release", "--", "all", "--no-write", "--json", "--rounds", rounds];
    let chosen = ["--modes", modes, "--peers", peers];
    let name = format!("speed-{}", modes.split(',').next().unwrap_or(modes));
    let mut command = cargo(&workspace, arguments.into_iter().chain(chosen));
    let ended = context.commands.run(&name, &mut command, Duration::from_secs(3 * 3_600))?;
    ensure!(!ended.stdout.is_empty(), "no report: {}", ended.reason());
    Ok(ended.stdout)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    lab::stats::quantile::median(&values)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(mode: &str, peer: &str, round: u32, cpu: u32) -> Value {
        let side = json!({ "cpu_ns": cpu, "units": 1_000 });
        json!({ "mode": mode, "peer": peer, "round": round, "client": side, "server": side, "foreign_cores": 0.1 })
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_mode() {
        let mut runs = Vec::new();
        for round in 1..=7 {
            // A machine that gets slower: only ratios of the same round say 0.4 and 1.2.
            runs.extend([
                run("rr", "tiderace", round, 40 * round),
                run("rr", "quinn", round, 100 * round),
                run("bulk", "tiderace", round, 50 * round),
                run("bulk-connections", "tiderace", round, 60 * round),
            ]);
        }
        let report = Report(json!({ "runs": runs, "failures": [] }));
        let row = report.ratio("x".to_owned(), ("rr", "tiderace"), ("rr", "quinn"), Side::Server, 0.35);
        let near = |value: Option<f64>, target: f64| value.is_some_and(|value| (value - target).abs() < 1e-9);
        assert!(near(row.value, 0.4) && !row.passed, "{row:?}");
        assert!(row.interval.is_some_and(|ends| ends.iter().all(|end| near(Some(*end), 0.4))), "{row:?}");
        let many =
            report.ratio("x".to_owned(), ("bulk-connections", "tiderace"), ("bulk", "tiderace"), Side::Sum, 1.25);
        assert!(near(many.value, 1.2) && many.passed, "{many:?}");
        assert!(many.detail.starts_with("7 rounds"), "{}", many.detail);
    }

    #[test]
    fn what_no_run_has_is_a_miss() {
        let report = Report(json!({ "runs": [run("hsr", "tiderace", 1, 5)], "failures": [] }));
        let row = report.ratio("x".to_owned(), ("hsr", "tiderace"), ("hsr", "tcp-rustls"), Side::Server, 1.0);
        assert!(!row.passed && row.value.is_none());
    }
}
