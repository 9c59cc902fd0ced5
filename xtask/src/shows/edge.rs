//! The edge and the client: clients that people use, reloads under load, clients that come back, policies, wrong
//! configurations, hostile clients, and the verdicts of the race. Runs the tests
//! that do it, in full, and reads what they have measured.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Case, Context,
    command::{Ended, Tests, cargo, load},
    edge_acme, edge_clients, edge_cost, edge_unit, edge_watch,
    row::{Row, Target},
};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("clients", "quic-go, aioquic, curl and Chromium load a page, also without UDP", edge_clients::measure),
        case("reloads", "1,000 reloads under load of HTTP/3, HTTP/2 and stream mode", reloads),
        case("returning", "clients that come back to any of three gateways, and copies of what they sent", returning),
        case("redis", "a real Redis behind the gateway, over streams of QUIC", redis),
        case(
            "policies",
            "which congestion control a connection gets, by name, network, route, path and share",
            policies,
        ),
        case("cost", "processor time of a request and of a GiB, beside nginx and Caddy", edge_cost::measure),
        case("watching", "a real Prometheus with the rules and the dashboard of deploy/", edge_watch::measure),
        case(
            "verdicts",
            "what the client concludes, and what a race costs, in virtual time and through the relay",
            verdicts,
        ),
        case(
            "acme",
            "a certificate from a real Pebble: got, replaced in time, kept through failures",
            edge_acme::measure,
        ),
        case("unit", "the unit of deploy/, as systemd reads it", edge_unit::measure),
        case("security", "smuggling, floods, slow clients, oversized fields, the admin socket", security),
        case("bad-config", "a wrong configuration changes nothing; errors name file, line and field", bad_config),
    ]
}

pub(super) fn test(
    context: &Context,
    name: &str,
    target: &str,
    filter: &str,
    settings: &[(&str, &str)],
) -> Result<Ended> {
    let mut command =
        cargo(&context.root, ["test", "--locked", "--workspace", "--test", target, "--no-fail-fast", "--"]);
    command.args([filter, "--nocapture", "--test-threads", "1"]).envs(settings.iter().copied());
    let ended = context.commands.run(name, &mut command, Duration::from_secs(3_600))?;
    ensure!(Tests::read(&ended.stdout).binaries > 0, "{}", ended.reason());
    Ok(ended)
}

/// Lines of the form `measured WHAT: VALUE`.
pub(super) fn measured(stdout: &str) -> BTreeMap<&str, f64> {
    let values = stdout.lines().filter_map(|line| {
        let (what, value) = line.split_once("measured ")?.1.rsplit_once(": ")?;
        Some((what, value.trim().parse().ok()?))
    });
    values.collect()
}

pub(super) fn failures(ended: &Ended, what: &str) -> Row {
    let tests = Tests::read(&ended.stdout);
    Row::new(what, f64::from(tests.failed), "", Target::Exactly(0.0)).detail(format!("{} tests passed", tests.passed))
}

fn reloads(context: &Context) -> Result<Vec<Row>> {
    let settings = [("EDGE_RELOADS", "1000"), ("EDGE_CONNECTIONS", "66")];
    let ended = test(context, "edge-reloads", "reload", "reloads_under_load", &settings)?;
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    Ok(vec![
        Row::new("reloads", get("reloads")?, "", Target::AtLeast(1_000.0)),
        Row::new("connections held", get("connections held")?, "", Target::AtLeast(199.0)),
        failures(&ended, "lost connections or failed requests").detail(format!(
            "{} requests and exchanges, {} connections opened meanwhile with two-datagram ClientHellos, one client that changes its \
             address all the time; the first loss ends the test",
            get("requests and exchanges")?,
            get("connections opened under reloads")?
        )),
        Row::new("slowest handshake", get("slowest handshake under reloads, ms")?, "ms", Target::AtMost(1_000.0))
            .detail(format!(
                "an unanswered first packet would cost a probe timeout of 1 s; the median is {:.0} ms, with clients, back end and \
                 gateway on the same processors; {}",
                get("median handshake under reloads, ms")?,
                load()
            )),
        Row::new("first packets turned away", get("first packets turned away")?, "", Target::Exactly(0.0)),
    ])
}

fn returning(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "edge-returning", "returning", "", &[("EDGE_POPULATION", "100")])?;
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    let real = get("registers that are a real Redis")?;
    Ok(vec![
        Row::new("connections with early data", get("share with early data")?, "", Target::AtLeast(0.97)).detail(format!(
            "of {} by 100 clients that came before, each to another of three processes than the time before; the ring was rotated \
             and a process replaced meanwhile; register: {}",
            get("returns")?,
            if real == 1.0 { "Redis" } else { "a stand-in, because there is no redis-server" }
        )),
        Row::new("requests served twice", get("requests served twice")?, "", Target::Exactly(0.0))
            .detail(format!("{} copies of first flights were sent to all three", get("copies sent")?)),
        failures(&ended, "failures of the test"),
    ])
}

fn redis(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "edge-redis", "redis", "", &[])?;
    ensure!(
        !ended.stdout.contains("not measured: there is no redis-server"),
        "there is no redis-server on this machine (Debian: apt-get install redis-server)"
    );
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    let size = get("bytes of a large answer")?;
    Ok(vec![
        Row::new(
            "bytes of a large answer that came back",
            get("bytes of a large answer that came back")?,
            "B",
            Target::Exactly(size),
        ),
        Row::new(
            "streams that got their own answers",
            get("streams that got their own answers")?,
            "",
            Target::Exactly(100.0),
        )
        .detail("100 at the same time over one connection, each a connection of Redis with its own commands"),
        Row::new("commands that Redis counted", get("commands that Redis counted")?, "", Target::Exactly(100.0)),
        failures(&ended, "failures of the test"),
    ])
}

fn policies(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "edge-policies", "gateway", "policies::", &[])?;
    Ok(vec![failures(&ended, "failures of the tests of policies")])
}

fn verdicts(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "client-verdicts", "verdicts", "", &[("CLIENT_SEEDS", "1000")])?;
    let mut rows = verdict_rows(&ended, "in virtual time", "1,000 seeds", "which is a model")?;
    let runs = [("CLIENT_RELAY_RUNS", RELAY_RUNS), ("CLIENT_RELAY_AT_ONCE", "24")];
    let relayed = test(context, "client-verdicts-relay", "relay_verdicts", "", &runs)?;
    let detail = format!("{RELAY_RUNS} seeds, UDP through the relay in real time");
    rows.extend(verdict_rows(&relayed, "through the relay", &detail, "which is real; connect() takes no time there")?);
    Ok(rows)
}

/// Runs of a case through the relay.
const RELAY_RUNS: &str = "1000";

/// Measurements that the cases of a test printed.
fn verdict_rows(ended: &Ended, how: &str, runs: &str, tcp: &str) -> Result<Vec<Row>> {
    let values = measured(&ended.stdout);
    let mut rows = Vec::new();
    for (what, share) in
        values.iter().filter_map(|(what, share)| Some((what.strip_prefix("share of right verdicts, ")?, *share)))
    {
        rows.push(Row::new(format!("right verdicts, {what}, {how}"), share, "", Target::AtLeast(0.99)).detail(runs));
        let p99 = |way: &str| values.get(format!("p99 in ms, {what}, {way}").as_str()).copied();
        let (raced, alone) = p99("raced").zip(p99("TCP alone")).context("no times")?;
        rows.push(
            Row::new(
                format!("p99 to the first byte beyond TCP alone, {what}, {how}"),
                raced - alone,
                "ms",
                Target::AtMost(300.0),
            )
            .detail(format!("{raced} ms raced, {alone} ms with TCP alone, {tcp}")),
        );
    }
    ensure!(!rows.is_empty(), "{}", ended.reason());
    Ok(rows)
}

fn security(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "edge-security", "gateway", "security::", &[])?;
    let abuse = test(context, "edge-abuse", "gateway", "abuse::", &[])?;
    let capture = test(context, "edge-capture", "gateway", "capture::", &[])?;
    let tried = measured(&abuse.stdout).get("abuses of fields tried").copied().with_context(|| abuse.reason())?;
    Ok(vec![
        failures(&ended, "failures of the security tests"),
        failures(&abuse, "abuses of fields that reached a back end")
            .detail(format!("{tried} tried, byte by byte, over HTTP/2 and HTTP/3; the first that gets through fails")),
        failures(&capture, "captures without permission, or beyond their bounds"),
    ])
}

fn bad_config(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "edge-bad-config", "reload", "a_wrong_configuration", &[])?;
    Ok(vec![failures(&ended, "wrong configurations that changed something")])
}
