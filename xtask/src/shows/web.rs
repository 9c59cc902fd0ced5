//! Measurements of the web through the gateway: WebTransport to TCP and UDP, MASQUE, and a real browser.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Case, Context,
    command::cargo,
    edge::{failures, measured, test},
    row::{Row, Target},
    speed, tunnel_cost, tunnels,
};

const LIMIT: Duration = Duration::from_secs(3_600);
/// Bytes that both ends of a cell compare, and datagrams.
const BYTES_OF_CELL: f64 = 5_517_318.0;
const DATAGRAMS_OF_CELL: f64 = 2_000.0;
/// Checks of the pages.
const CHECKS: f64 = 8.0;

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("target", "WebTransport through the gateway to TCP and UDP, with our own client", target),
        case("masque", "CONNECT-UDP and CONNECT through the gateway", masque),
        case(
            "tunnels",
            "CONNECT-UDP and CONNECT-IP in namespaces, at WireGuard's size, and through loss",
            tunnels::carried,
        ),
        case(
            "reloads",
            "tunnels and sessions through reloads and upgrades; 1,000 and 100 with --long, 100 and 10 without",
            reloads,
        ),
        case("tunnel-attacks", "targets, capsules, contexts, packets and floods of attackers", tunnels::attacks),
        case(
            "tunnel-cost",
            "CPU of CONNECT-UDP and CONNECT-IP per GiB, beside a plain relay and a download; needs an idle machine",
            tunnel_cost::measure,
        ),
        case(
            "integrity",
            "CPU time that packets without encryption would save; needs an idle machine",
            speed::integrity,
        ),
        case("peers", "WebTransport with stacks by others and Chromium, both roles, also through the gateway", peers),
        case("masque-peers", "CONNECT-UDP with masque-go and CONNECT-IP with connect-ip-go, both roles", masque_peers),
        case("chromium", "a page in Chromium through the gateway; a miss where there is none", chromium),
    ]
}

fn target(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "web-target", "gateway", "webtransport::", &[])?;
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    Ok(vec![
        Row::new(
            "streams whose bytes came back",
            get("streams whose bytes came back from TCP")?,
            "",
            Target::Exactly(100.0),
        )
        .detail("side by side in one session, of 0 bytes to 1 MB, every byte compared"),
        Row::new("datagrams that came back", get("datagrams that came back from UDP")?, "", Target::Exactly(1_000.0))
            .detail("each once, every byte compared"),
        failures(&ended, "failures of the tests of sessions"),
    ])
}

fn reloads(context: &Context) -> Result<Vec<Row>> {
    let (upgrades, reloads) = if context.long { ("100", "1000") } else { ("10", "100") };
    let settings = [("EDGE_UPGRADES", upgrades), ("EDGE_RELOADS", reloads)];
    let ended = test(context, "web-reloads", "upgrade", "tunnels_and_sessions_outlive", &settings)?;
    let values = measured(&ended.stdout);
    let done = |what: &str, wanted: &str| {
        let value = values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()))?;
        anyhow::Ok(Row::new(what, value, "", Target::AtLeast(wanted.parse()?)))
    };
    Ok(vec![
        failures(&ended, "tunnels and sessions that were lost").detail(
            "CONNECT-UDP, bound UDP and CONNECT over HTTP/3, and a session of WebTransport: one of each from the first process to the last \
             upgrade, one of each from every process into the next; all are used after each reload; the first loss ends the test",
        ),
        done("upgrades", upgrades)?,
        done("reloads", reloads)?,
    ])
}

fn masque(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "web-masque", "gateway", "masque::", &[])?;
    Ok(vec![failures(&ended, "failures of the tests of MASQUE")])
}

/// Runs `interop/sessions/run.py`. A peer that cannot be built here is a missing cell.
fn peers(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("web-peers-build", &mut build, LIMIT)?.ok()?;
    let mut matrix = Command::new("python3");
    matrix.arg(context.root.join("interop/sessions/run.py")).arg(context.commands.target().join("debug/tiderace"));
    matrix.arg("--peers").arg(context.commands.target().join("peers"));
    let ended = context.commands.run("web-peers", &mut matrix, LIMIT)?;
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    let cells = get("cells")?;
    let (closes, defects) =
        (get("closes with code and message")?, get("closes that a known defect of the peer prevents")?);
    let seen: Vec<&str> = ended.stdout.lines().filter(|line| !line.starts_with("measured ")).collect();
    Ok(vec![
        Row::new("cells of client and server that are right", get("cells that are right")?, "", Target::Exactly(cells))
            .detail(seen.join("\n")),
        Row::new("bytes compared", get("bytes compared")?, "B", Target::Exactly(cells * BYTES_OF_CELL))
            .detail("100 streams in each cell, of 5 bytes to 500 kB, compared by both ends"),
        Row::new("datagrams compared", get("datagrams compared")?, "", Target::Exactly(cells * DATAGRAMS_OF_CELL))
            .detail("1,000 in each cell, at the server and back at the client"),
        Row::new(
            "cells that agree on an application protocol",
            get("cells that agree on an application protocol")?,
            "",
            Target::Exactly(cells - get("cells whose client offers no application protocol")?),
        )
        .detail("the client offers two, the server has the second; wtransport and Chromium offer none"),
        Row::new("closes with code and message", closes, "", Target::Exactly(2.0 * cells - defects))
            .detail(format!("one by each end in each cell; a known defect of the peer prevents {defects}")),
    ])
}

/// The scripts end with the first check that fails, and print a line for each that has passed.
fn masque_peers(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("web-masque-build", &mut build, LIMIT)?.ok()?;
    [("masque-go", "CONNECT-UDP", 3.0), ("connect-ip-go", "CONNECT-IP", 4.0)]
        .into_iter()
        .map(|(peer, what, checks)| {
            let mut script = Command::new(context.root.join("interop").join(peer).join("run"));
            script.arg(context.commands.target().join("debug/tiderace"));
            let ended = context.commands.run(&format!("web-{peer}"), &mut script, LIMIT)?;
            let passed: Vec<&str> = ended.stdout.lines().filter(|line| line.contains(" -> ")).collect();
            let mut detail = passed.join("\n");
            if !ended.succeeded() {
                detail.push_str(&format!(
                    "\nnot complete; needs go, python3, openssl, unshare and ip: {}",
                    ended.reason()
                ));
            }
            let row = Row::new(
                format!("checks of {what} with {peer}"),
                f64::from(u32::try_from(passed.len())?),
                "",
                Target::Exactly(checks),
            );
            Ok(row.detail(detail))
        })
        .collect()
}

fn chromium(context: &Context) -> Result<Vec<Row>> {
    let what = "checks of a page in Chromium";
    if Command::new("chromium").arg("--version").output().is_err() {
        let detail = "not run: there is no `chromium` on the path (Debian: apt-get install chromium)";
        // What was not measured is no pass.
        return Ok(vec![Row::new(what, f64::NAN, "", Target::Exactly(CHECKS)).detail(detail)]);
    }
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("web-build", &mut build, LIMIT)?.ok()?;
    let mut page = Command::new("python3");
    page.arg(context.root.join("interop/clients/webtransport_gateway.py"));
    page.arg(context.commands.target().join("debug/tiderace"));
    let ended = context.commands.run("web-chromium", &mut page, LIMIT)?;
    let results: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("measured ")).collect();
    anyhow::ensure!(!results.is_empty(), "{}", ended.reason());
    let good = results.iter().filter(|line| line.ends_with(": ok")).count();
    let row = Row::new(what, f64::from(u32::try_from(good)?), "", Target::Exactly(CHECKS));
    Ok(vec![row.detail(results.join("\n"))])
}
