//! Cost of requests and bytes at the edge, beside nginx, Caddy and HAProxy, over HTTP/3 and HTTP/2: files, and the answers of a back end. What is
//! measured is the processor time of the gateway. Rounds are interleaved.
//!
//! The same for all: content, client, connections, TLS_AES_128_GCM_SHA256 (the client offers no other), a thread or process for each processor, HTTP/1.1
//! to the back end over connections that are kept, no access log. TLS is done by each program itself, not by the kernel: `sendfile` is on in nginx and has no
//! effect on files over TLS.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::load,
    edge_servers::{self as servers, BACK, Gentle},
    row::{Row, Target},
};
use crate::processor;

const LIMIT: Duration = Duration::from_secs(3_600);
/// Bytes of the files.
const SMALL: usize = 1_000;
const MEDIUM: usize = 100_000;
const BIG: usize = 10_000_000;
const LARGE: usize = 64 << 20;

/// No more than a peer.
const PEER: Target = Target::AtMost(1.0);

/// A server under load.
struct Server {
    name: &'static str,
    protocol: &'static str,
    running: usize,
}

impl Server {
    /// Returns whether it can do this work: HAProxy has no files.
    fn can(&self, work: &Work) -> bool {
        self.name != "haproxy" || work.is_proxied()
    }
}

/// Amount of work.
struct Work {
    /// As a row names it.
    name: &'static str,
    path: String,
    /// Bytes of an answer.
    size: usize,
    /// Requests at a time on each of four connections, and altogether.
    parallel: &'static str,
    requests: &'static str,
    /// Most that HTTP/3 may cost, in HTTP/2.
    own: f64,
}

impl Work {
    fn is_proxied(&self) -> bool {
        self.path.starts_with(BACK)
    }

    /// Returns whether bytes count, and not requests.
    fn is_large(&self) -> bool {
        self.size >= BIG
    }

    /// Requests, or GiB.
    fn amount(&self, requests: f64) -> f64 {
        if self.is_large() { requests * self.size as f64 / f64::from(1 << 30) } else { requests }
    }
}

fn works() -> [Work; 6] {
    let small = |name, path| Work { name, path, size: SMALL, parallel: "16", requests: "12000", own: 1.1 };
    let large = |name, path| Work { name, path, size: LARGE, parallel: "1", requests: "12", own: 1.43 };
    let sized = |name, path: &str, size, parallel, requests| {
        let path = path.to_owned();
        Work { name, path, size, parallel, requests, own: 1.43 }
    };
    [
        small("per request of 1 kB", "/small".to_owned()),
        sized("per request of 100 kB", "/medium", MEDIUM, "16", "4000"),
        sized("per GiB of 10 MB files", "/big", BIG, "2", "64"),
        large("per GiB of 64 MiB files", "/large".to_owned()),
        small("per request of 1 kB from a back end", format!("{BACK}/small")),
        large("per GiB of 64 MiB from a back end", format!("{BACK}/large")),
    ]
}

/// Measured values, by server, protocol and work.
type Values = BTreeMap<(&'static str, &'static str, usize), Vec<f64>>;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    servers::require_programs()?;
    eprintln!("gateway: building tiderace and its load");
    let built = servers::build_ours(context)?;
    let (program, load_program) = (built.join("tiderace"), built.join("examples/load"));
    let caddy = servers::build_caddy(context)?;
    let scratch = context.commands.scratch("edge-cost")?;
    servers::site(&scratch, &[("small", SMALL), ("medium", MEDIUM), ("big", BIG), ("large", LARGE)])?;
    let ports = [servers::port()?, servers::port()?, servers::port()?, servers::port()?, servers::port()?];
    let back = ports[4];
    let mut running = [
        Gentle(servers::edge(context, &program, &scratch, ports[0], back)?),
        Gentle(servers::caddy(context, &caddy, &scratch, ports[1], back)?),
        Gentle(servers::nginx(context, &scratch, ports[2], back)?),
        Gentle(servers::haproxy(context, &scratch, ports[3], back)?),
        Gentle(servers::back_end(context, &scratch, back)?),
    ];
    let servers = [
        ("tiderace", "h3", 0),
        ("tiderace", "h2", 0),
        ("caddy", "h3", 1),
        ("caddy", "h2", 1),
        ("nginx", "h2", 2),
        ("haproxy", "h2", 3),
    ]
    .map(|(name, protocol, running)| Server { name, protocol, running });
    for (at, port) in ports.iter().enumerate() {
        servers::wait(*port).with_context(|| running[at].0.printed())?;
    }
    let works = works();
    let rounds = if context.long { 11 } else { 7 };
    let begun = Instant::now();
    let (mut cost, mut rate) = (Values::new(), Values::new());
    for round in 0..=rounds {
        eprintln!("gateway: round {round} of {rounds}, {:.0} s after the first began", begun.elapsed().as_secs_f64());
        for server in &servers {
            for (at, work) in works.iter().enumerate().filter(|(_, work)| server.can(work)) {
                let mut command = std::process::Command::new(&load_program);
                command.args(["closed", server.protocol, &format!("127.0.0.1:{}", ports[server.running])]);
                command.arg(scratch.join("cert.pem")).args([&work.path, "4", work.parallel, work.requests]);
                let pid = running[server.running].0.id();
                let before = processor::seconds(pid)?;
                let ended = context.commands.run("edge-cost-load", &mut command, LIMIT)?.ok()?;
                let spent = processor::seconds(pid)? - before;
                let servers::Closed { requests, bytes, seconds } = servers::Closed::read(&ended.stdout)?;
                ensure!(bytes == requests * work.size as f64, "{}: {bytes} bytes in {requests} answers", server.name);
                // The first round fills caches.
                if round > 0 {
                    let key = (server.name, server.protocol, at);
                    cost.entry(key).or_default().push(spent / work.amount(requests));
                    rate.entry(key).or_default().push(work.amount(requests) / seconds);
                }
            }
        }
    }
    for server in &mut running {
        ensure!(server.0.alive(), "a server ended: {}", server.0.printed());
    }
    Ok(works.iter().enumerate().flat_map(|(at, work)| rows(work, at, &cost, &rate)).collect())
}

fn rows(work: &Work, at: usize, cost: &Values, rate: &Values) -> Vec<Row> {
    let per = work.name;
    let row = |what: &str, a: (&'static str, &'static str), b: (&'static str, &'static str), target| {
        let (a, b) = (&cost[&(a.0, a.1, at)], &cost[&(b.0, b.1, at)]);
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        Row::median(format!("CPU {per}: {what}"), &ratios, "", target)
    };
    let (h3, h2) = (("tiderace", "h3"), ("tiderace", "h2"));
    let mut rows = vec![
        row("HTTP/3 / own HTTP/2", h3, h2, Target::AtMost(work.own)).detail(load()),
        row("Caddy's HTTP/3 / ours", ("caddy", "h3"), h3, Target::AtLeast(if work.size == SMALL { 5.0 } else { 4.0 })),
        row("ours over HTTP/2 / nginx's", h2, ("nginx", "h2"), if work.is_proxied() { Target::Printed } else { PEER }),
        row("ours over HTTP/3 / nginx's HTTP/2", h3, ("nginx", "h2"), Target::Printed),
    ];
    if work.is_proxied() {
        let target = if work.is_large() { Target::Printed } else { PEER };
        rows.push(row("ours over HTTP/2 / HAProxy's", h2, ("haproxy", "h2"), target));
    }
    for (key, values) in cost.iter().filter(|(key, _)| key.2 == at) {
        let (scale, unit, what) = if work.is_large() { (1.0, "s", "GiB") } else { (1e6, "µs", "requests") };
        let values: Vec<f64> = values.iter().map(|value| value * scale).collect();
        let mut speeds = rate[key].clone();
        speeds.sort_by(f64::total_cmp);
        let speed = speeds[speeds.len() / 2];
        rows.push(
            Row::median(format!("CPU {per}: {} {}", key.0, key.1), &values, unit, Target::Printed)
                .detail(format!("{speed:.1} {what} per second, all programs on the same processors")),
        );
    }
    rows
}
