//! Connections that outlive the program or change their machine's surroundings: upgrades and reloads under load, the cost of packets between
//! processes, and several machines behind load balancers. Runs the tests that do it, in full, and reads what they have measured.

use std::{process::Command, time::Duration};

use anyhow::{Result, ensure};

use super::{
    Case, Context,
    command::{Ended, Tests, cargo, load},
    hardening::{field, lines},
    row::{Row, Target},
};

/// A build takes some minutes.
const LIMIT: Duration = Duration::from_secs(3_600);

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case(
            "upgrades",
            "upgrades and reloads with 200 connections, with eBPF and without privilege; 100 and 1,000 with --long, 10 and 100 without",
            super::continuity_upgrades::measure,
        ),
        case(
            "refused",
            "programs that cannot take over, settings that contradict the machines, and processes that are killed, change nothing for others",
            super::continuity_faults::refused,
        ),
        case(
            "killed",
            "one of two processes is killed: time until its clients are served again, and POST requests that arrive twice; 200 clients with --long, 20 without",
            super::continuity_faults::killed,
        ),
        case(
            "signer",
            "signers at 50 ms and at 5 s, gone and wrong: what handshakes and open connections notice",
            super::continuity_faults::signer,
        ),
        case(
            "signer-gain",
            "full handshakes per core of a gateway with its keys at a signer, beside keys of its own: RSA-2048 and ECDSA P-256, HTTP/3 and HTTP/2",
            super::signer_gain::measure,
        ),
        case(
            "forwarding",
            "processor time of a packet for another process or worker, beside one that is not",
            forwarding,
        ),
        case(
            "machines",
            "machines behind two load balancers, and without one: added, drained, killed, reached by mistake; the cost of a datagram",
            machines,
        ),
        case(
            "handover",
            "a client between two networks: announced, silent, flapping; 20 of each with --long, 5 without",
            handover,
        ),
        case(
            "peers",
            "downloads and requests lost by reloads and replaced programs: ours, nginx, HAProxy, Caddy; 1,000 and 100 with --long, 30 and 3 without",
            super::continuity_peers::measure,
        ),
    ]
}

/// Downloads through namespaces whose networks change in the middle.
fn handover(context: &Context) -> Result<Vec<Row>> {
    let runs = if context.long { "20" } else { "5" };
    let mut command =
        cargo(&context.root, ["test", "--locked", "--workspace", "--test", "handover", "--", "--nocapture"]);
    command.env("HANDOVERS", runs);
    let ended = context.commands.run("continuity-handover", &mut command, Duration::from_secs(3_600))?;
    ensure!(ended.succeeded(), "{}", ended.reason());
    let seen = lines(&ended.stdout, "handover: ");
    let mut rows = Vec::new();
    for (kind, target) in [
        ("announced", 1_000.0),
        ("announced, back", 1_000.0),
        ("flapping", 1_000.0),
        ("announced, dead", 1_000.0),
        ("idle", 1_000.0),
        ("silent", 3_000.0),
        ("silent, 20 connections", 3_000.0),
    ] {
        let of_kind = seen.iter().filter(|(name, _)| *name == kind);
        let mut gaps = of_kind.map(|(_, fields)| field(fields, "gap")).collect::<Result<Vec<f64>>>()?;
        ensure!(!gaps.is_empty(), "no handover, {kind}: {}", ended.reason());
        gaps.sort_by(f64::total_cmp);
        let p95 = gaps[(gaps.len() * 95).div_ceil(100) - 1];
        let (what, of) = if kind == "idle" {
            ("time until the server knows the address", "changes of connections without traffic")
        } else {
            ("time without a byte", "downloads of 800 kB/s, every byte checked")
        };
        rows.push(Row::new(format!("{what}, p95: {kind}"), p95, "ms", Target::AtMost(target)).detail(format!(
            "{} {of}; median {:.0}, most {:.0}; {}",
            gaps.len(),
            gaps[gaps.len() / 2],
            gaps[gaps.len() - 1],
            load()
        )));
    }
    Ok(rows)
}

pub(super) fn test(context: &Context, name: &str, filter: &str, settings: &[(&str, &str)]) -> Result<Ended> {
    test_of("upgrade", context, name, filter, settings)
}

pub(super) fn test_of(
    binary: &str,
    context: &Context,
    name: &str,
    filter: &str,
    settings: &[(&str, &str)],
) -> Result<Ended> {
    let mut command = cargo(
        &context.root,
        ["test", "--locked", "--release", "-p", "tiderace-cli", "--test", binary, "--no-fail-fast", "--"],
    );
    command.args([filter, "--nocapture", "--test-threads", "1"]).envs(settings.iter().copied());
    let ended = context.commands.run(name, &mut command, Duration::from_secs(7_200))?;
    ensure!(Tests::read(&ended.stdout).binaries > 0, "{}", ended.reason());
    Ok(ended)
}

/// Values of the lines `measured WHAT: VALUE`.
pub(super) fn measured(ended: &Ended, what: &str) -> Result<Vec<f64>> {
    let start = format!("measured {what}: ");
    let values = ended.stdout.lines().filter_map(|line| line.split_once(start.as_str())?.1.trim().parse().ok());
    let values: Vec<f64> = values.collect();
    ensure!(!values.is_empty(), "no `{what}`: {}", ended.reason());
    Ok(values)
}

pub(super) fn failures(ended: &Ended, what: &str) -> Row {
    let tests = Tests::read(&ended.stdout);
    Row::new(what, f64::from(tests.failed), "", Target::Exactly(0.0)).detail(format!("{} tests passed", tests.passed))
}

fn forwarding(context: &Context) -> Result<Vec<Row>> {
    let mut rows = to_another_process(context)?;
    rows.extend(to_another_worker(context)?);
    Ok(rows)
}

/// Uploads whose packets arrive at the socket of another worker (a shard of the endpoint), beside those that do not.
fn to_another_worker(context: &Context) -> Result<Vec<Row>> {
    let build = ["build", "--locked", "--profile", "dist", "-p", "tiderace", "--example", "other_shard"];
    context.commands.run("continuity-shards-build", &mut cargo(&context.root, build), LIMIT)?.ok()?;
    let mut command = Command::new(context.commands.target().join("dist/examples/other_shard"));
    let rounds = if context.long { "45" } else { "25" };
    let ended = context.commands.run("continuity-shards", command.arg(rounds), LIMIT)?.ok()?;
    let lines = ended.stdout.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>()?;
    let all = |name: &str| lines.iter().filter_map(|line| line[name].as_f64()).collect::<Vec<f64>>();
    Ok(vec![
        Row::median("a packet forwarded between workers / one that is not", &all("ratio"), "", Target::Printed).detail(format!(
            "uploads of 800 MB over one connection, without steering by the kernel; processor time of the threads of a server with two shards; {}",
            load()
        )),
        Row::median("a packet at its own worker", &all("own_ns"), "ns", Target::Printed),
        Row::median("a packet that another worker reads", &all("other_ns"), "ns", Target::Printed),
    ])
}

fn to_another_process(context: &Context) -> Result<Vec<Row>> {
    let settings = [("EDGE_ROUNDS", "7"), ("EDGE_UPLOAD", "200000000")];
    let ended = test(context, "continuity-forwarding", "another_process_costs", &settings)?;
    let row = |what: &str, of: &str, unit: &str, target| {
        Ok::<_, anyhow::Error>(Row::median(what, &measured(&ended, of)?, unit, target))
    };
    let mut rows = vec![
        row("a forwarded packet / one that is not", "ratio of a forwarded packet", "", Target::AtMost(1.5))?.detail(format!(
            "uploads over one connection before and after an upgrade; processor time of both processes, work on the content included; {}",
            load()
        )),
        row("a packet that is not forwarded", "ns of a packet before it is forwarded", "ns", Target::Printed)?,
        row(
            "a forwarded packet, at the process that reads",
            "ns of a forwarded packet at the newest process",
            "ns",
            Target::Printed,
        )?,
        row("a forwarded packet, at its own process", "ns of a forwarded packet at its owner", "ns", Target::Printed)?,
        failures(&ended, "failures of the test"),
    ];
    // Without the privilege, the test leaves kernel steering out.
    if let Ok(steered) = measured(&ended, "ratio of a steered packet") {
        rows.push(Row::median(
            "a packet that the kernel steers / one before the upgrade",
            &steered,
            "",
            Target::AtMost(1.2),
        ));
    }
    Ok(rows)
}

fn machines(context: &Context) -> Result<Vec<Row>> {
    let rounds = if context.long { "50" } else { "5" };
    let settings = [("BALANCE_ROUNDS", rounds), ("BALANCE_CONNECTIONS", "8")];
    let drained = test_of("balance", context, "continuity-drained", "come_and_drain", &settings)?;
    let returned = returned(context, &settings)?;
    let moved = test_of("balance", context, "continuity-moved", "another_load_balancer", &[])?;
    let hellos =
        test_of("balance", context, "continuity-hellos", "datagrams_of_a_hello", &[("BALANCE_HELLOS", "100")])?;
    // The default, which the tests themselves raise for busy machines.
    let failures_of_checks = [("BALANCE_FAILURES", "3")];
    let killed =
        test_of("balance", context, "continuity-machine-killed", "clients_of_a_killed_machine", &failures_of_checks)?;
    let settings = [("BALANCE_COST_ROUNDS", "7"), ("BALANCE_DOWNLOADS", "30")];
    let cost = test_of("balance", context, "continuity-balance-cost", "load_balancer_costs", &settings)?;
    let forwarded = test_of("balance", context, "continuity-forwarded", "arrive_at_the_wrong_machine", &[])?;
    let between = test_of("balance", context, "continuity-forwarded-cost", "forwarded_between_machines", &settings)?;
    let get = |ended: &Ended, what: &str| measured(ended, what).map(|values| values[0]);
    let row = |what: &str, of: &str, unit: &str, target| {
        Ok::<_, anyhow::Error>(Row::median(what, &measured(&cost, of)?, unit, target))
    };
    let rows = vec![
        failures(&drained, "connections lost while machines were added and drained").detail(format!(
            "{} requests on held connections and downloads over two load balancers, {} connections opened meanwhile; the first loss ends the \
             test",
            get(&drained, "requests")?,
            get(&drained, "connections opened")?
        )),
        failures(&moved, "connections lost by clients that change their address and their load balancer"),
        failures(&hellos, "two-datagram ClientHellos that met two machines"),
        Row::new("slowest handshake", get(&hellos, "slowest handshake, ms")?, "ms", Target::AtMost(1_000.0))
            .detail(format!("an unanswered first packet would cost a probe timeout of 1 s; {}", load())),
        failures(&killed, "connections of other machines that a killed one took with it"),
        Row::new(
            "time to a stateless reset after a machine was killed",
            get(&killed, "time to a stateless reset, ms")?,
            "ms",
            Target::AtMost(2_000.0),
        )
        .detail("health checks every 100 ms, down after three"),
        failures(&forwarded, "downloads lost whose packets arrive at the wrong machine, over IPv4 and IPv6")
            .detail(format!("{} packets forwarded, {} answers", get(&forwarded, "datagrams forwarded")?, get(&forwarded, "answers")?)),
        Row::median(
            "a packet forwarded between machines / one that is not",
            &measured(&between, "ratio of a packet between machines")?,
            "",
            Target::Printed,
        )
        .detail(format!("downloads over one connection; processor time of both machines, all work included; {}", load())),
        row("a datagram at the load balancer / at a raw relay", "ratio of a datagram", "", Target::AtMost(1.0))?.detail(format!(
            "downloads over one connection on loopback; processor time of the threads that forward; the relay has a system call for each \
             datagram and direction; {}",
            load()
        )),
        row("a datagram at the load balancer", "ns of a datagram at the load balancer", "ns", Target::Printed)?,
        row("a datagram at a raw relay", "ns of a datagram at a raw relay", "ns", Target::Printed)?,
    ];
    Ok(rows.into_iter().chain(returned).collect())
}

/// Clients that return with session tickets while machines are started, drained and ended.
fn returned(context: &Context, settings: &[(&str, &str)]) -> Result<[Row; 2]> {
    let ended = test_of("balance", context, "continuity-returned", "use_early_data", settings)?;
    let get = |what: &str| measured(&ended, what).map(|values| values[0]);
    let share = Row::new(
        "returning clients with 0-RTT while machines were added and drained",
        get("share with early data")?,
        "",
        Target::AtLeast(0.97),
    );
    Ok([
        share.detail(format!(
            "of {} returns, {} of them to another machine than the time before; {} with rejected 0-RTT; those without a ticket count, too; each \
             round starts a machine, drains the oldest one and ends it",
            get("returns")?,
            get("returns to another machine")?,
            get("returns with rejected early data")?
        )),
        failures(&ended, "failures of the test with returning clients"),
    ])
}
