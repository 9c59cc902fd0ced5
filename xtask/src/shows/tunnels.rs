//! Measurements of tunnels (CONNECT-UDP, CONNECT-IP): what they carry, and what attackers do with them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::{Ended, cargo},
    edge::measured,
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(3_600);
/// Text of tests that the system does not let run.
const NOT_RUN: &str = "not run:";

/// Tests of one attack.
struct Attack {
    what: &'static str,
    binary: Binary,
    tests: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binary {
    /// Unit tests of the gateway and of HTTP/3.
    Units,
    /// The gateway over sockets.
    Gateway,
    /// The program in network namespaces.
    Program,
}

/// Sessions that `--long` begins and closes. Without, the test has its own number.
const SESSIONS: &str = "1000000";

const ATTACKS: [Attack; 15] = [
    Attack {
        what: "DNS rebinding: a name with another address at its second look-up",
        binary: Binary::Units,
        tests: &["masque::tests::a_name_that_changes_its_address_leads_to_the_one_that_was_judged"],
    },
    Attack {
        what: "IPv4-mapped and other addresses of this machine and private networks",
        binary: Binary::Units,
        tests: &[
            "masque::tests::names_and_addresses_of_this_machine_lead_nowhere",
            "masque::ip::policy::tests::packets_go_to_public_hosts_from_the_client_s_address_alone",
        ],
    },
    Attack {
        what: "the gateway itself as a target",
        binary: Binary::Gateway,
        tests: &["masque::refused::what_is_allowed_does_not_lead_to_the_gateway_itself"],
    },
    Attack {
        what: "redirects by a target: over HTTP, and from another address over UDP",
        binary: Binary::Gateway,
        tests: &["masque::refused::a_redirect_of_a_target_leads_around_no_rule"],
    },
    Attack {
        what: "port 25 and prohibited targets, each counted",
        binary: Binary::Gateway,
        tests: &["masque::refused::what_is_refused_is_told_and_counted"],
    },
    Attack {
        what: "capsules that are too long, or do not end",
        binary: Binary::Gateway,
        tests: &["masque::capsules_that_are_too_long_or_break_off_end_the_tunnel"],
    },
    Attack {
        what: "unknown context IDs, each counted",
        binary: Binary::Gateway,
        tests: &["masque::datagrams_over_http3"],
    },
    Attack {
        what: "bound UDP: prohibited peers in each datagram and registration",
        binary: Binary::Gateway,
        tests: &["masque::bound::the_rules_for_targets_hold_for_each_datagram"],
    },
    Attack {
        what: "bound UDP: peers to which the client has not sent",
        binary: Binary::Gateway,
        tests: &["masque::bound::only_peers_that_were_spoken_to_are_heard"],
    },
    Attack {
        what: "bound UDP: a million capsules, answers that nobody reads",
        binary: Binary::Units,
        tests: &[
            "masque::bound::tests::a_million_capsules_hold_a_bounded_amount",
            "masque::bound::tests::a_client_that_does_not_read_answers_is_aborted",
            "connect_udp::bound::contexts::tests::a_million_registrations_hold_a_bounded_number",
        ],
    },
    Attack {
        what: "floods: slow targets, tunnels without end",
        binary: Binary::Gateway,
        tests: &[
            "masque::a_flood_to_a_target_that_reads_nothing_holds_nothing",
            "masque::refused::a_client_that_opens_tunnels_without_end_is_bounded",
        ],
    },
    Attack {
        what: "WebTransport: sessions begun and closed without end, on one connection and on many",
        binary: Binary::Gateway,
        tests: &["webtransport::churn::sessions_without_end_leave_nothing"],
    },
    Attack {
        what: "WebTransport: sessions beyond the limits of a client, and those that are given up, each counted",
        binary: Binary::Gateway,
        tests: &[
            "webtransport::churn::a_client_that_begins_sessions_without_end_is_bounded",
            "webtransport::churn::a_client_that_gives_sessions_up_without_end_loses_its_connection",
        ],
    },
    Attack {
        what: "spoofed and malformed packets, requests for addresses without end",
        binary: Binary::Program,
        tests: &["ip::spoofed_packets_and_floods_of_requests_lead_nowhere"],
    },
    Attack {
        what: "malformed capsules about addresses and routes, both roles",
        binary: Binary::Program,
        tests: &[
            "ip::capsules_over_http1_keep_the_rules_or_end_the_tunnel",
            "ip::the_client_keeps_the_rules_and_gives_up_a_proxy_that_breaks_them",
        ],
    },
];

impl Binary {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Units => &["--lib"],
            Self::Gateway => &["--test", "gateway"],
            Self::Program => &["--test", "masque"],
        }
    }
}

/// Runs tests one after the other. Returns which passed: one that the system does not let run is not among them.
fn run(context: &Context, name: &str, binary: Binary, tests: &[&str]) -> Result<(Vec<String>, Ended)> {
    let mut command = cargo(&context.root, ["test", "--locked", "--workspace", "--no-fail-fast"]);
    command.args(binary.arguments()).arg("--").args(tests).args(["--exact", "--nocapture", "--test-threads", "1"]);
    if context.long {
        command.env("EDGE_SESSIONS", SESSIONS);
    }
    let ended = context.commands.run(name, &mut command, LIMIT)?;
    ensure!(ended.stdout.contains("test result:"), "{}", ended.reason());
    Ok((if ended.stderr.contains(NOT_RUN) { Vec::new() } else { passed(&ended.stdout) }, ended))
}

/// Names of the tests that passed. What a test prints may stand between its name and its result.
fn passed(stdout: &str) -> Vec<String> {
    let mut passed = Vec::new();
    let mut begun = None;
    for line in stdout.lines() {
        let rest = match line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            Some((name, rest)) => {
                begun = Some(name.to_owned());
                rest
            }
            None => line,
        };
        match rest {
            "ok" => passed.extend(begun.take()),
            "FAILED" => begun = None,
            _ => {}
        }
    }
    passed
}

/// Row of an attack: tests that did not pass.
fn row(attack: &Attack, passed: &[String]) -> Row {
    let missing: Vec<&str> =
        attack.tests.iter().copied().filter(|test| !passed.iter().any(|name| name == test)).collect();
    let count = f64::from(u32::try_from(missing.len()).unwrap_or(u32::MAX));
    let detail = match &missing[..] {
        [] => format!("refused or bounded: {}", attack.tests.join(", ")),
        missing => format!("failed or not run: {}", missing.join(", ")),
    };
    Row::new(attack.what, count, "", Target::Exactly(0.0)).detail(detail)
}

pub(crate) fn attacks(context: &Context) -> Result<Vec<Row>> {
    let (mut rows, mut churned) = (BTreeMap::new(), Vec::new());
    for (binary, name) in [
        (Binary::Units, "tunnel-attacks-units"),
        (Binary::Gateway, "tunnel-attacks-gateway"),
        (Binary::Program, "tunnel-attacks-program"),
    ] {
        let of_binary = || ATTACKS.iter().enumerate().filter(|(_, attack)| attack.binary == binary);
        let tests: Vec<&str> = of_binary().flat_map(|(_, attack)| attack.tests).copied().collect();
        let (passed, ended) = run(context, name, binary, &tests)?;
        rows.extend(of_binary().map(|(number, attack)| (number, row(attack, &passed))));
        if binary == Binary::Gateway {
            churned = churn(context, &ended);
        }
    }
    Ok(rows.into_values().chain(churned).collect())
}

/// Rows of sessions that were begun and closed without end, as their test has measured them.
fn churn(context: &Context, ended: &Ended) -> Vec<Row> {
    let values = measured(&ended.stdout);
    let sessions = if context.long { SESSIONS.parse().unwrap_or(f64::NAN) } else { 4_000.0 };
    [
        ("sessions that were begun and closed", "", Target::AtLeast(sessions)),
        ("sessions that were open at a time", "", Target::AtMost(64.0)),
        ("bytes that the gateway held for them", "B", Target::AtMost(f64::from(4 << 20))),
        ("KiB by which the process grew meanwhile", "KiB", Target::AtMost(f64::from(32 << 10))),
    ]
    .into_iter()
    // A value that was not measured is a miss.
    .map(|(what, unit, target)| Row::new(what, values.get(what).copied().unwrap_or(f64::NAN), unit, target))
    .collect()
}

pub(crate) fn carried(context: &Context) -> Result<Vec<Row>> {
    const TESTS: [&str; 8] = [
        "ip::a_device_carries_queries_and_downloads",
        "ip::a_device_carries_queries_and_downloads_over_http2",
        "ip::a_tunnel_stays_within_its_scope",
        "ip::ipv6_needs_a_path_that_carries_it",
        "ip::datagrams_of_wireguard_are_not_fragmented",
        "lossy::quic_through_a_tunnel_through_loss",
        "programs_speak_udp_through_the_proxy",
        "bound::one_tunnel_leads_to_all_targets",
    ];
    let (passed, ended) = run(context, "tunnels", Binary::Program, &TESTS)?;
    let values = measured(&ended.stdout);
    let get = |what: &str| values.get(what).copied().with_context(|| format!("no `{what}`: {}", ended.reason()));
    let missing: Vec<&str> = TESTS.into_iter().filter(|test| !passed.iter().any(|name| name == test)).collect();
    let failed = f64::from(u32::try_from(missing.len())?);
    let failed = Row::new("tests of tunnels that did not pass", failed, "", Target::Exactly(0.0));
    let mut rows = vec![match &missing[..] {
        [] => {
            failed.detail("CONNECT-IP in namespaces over HTTP/3 and HTTP/2, CONNECT-UDP and bound UDP by the program")
        }
        missing => failed.detail(missing.join(", ")),
    }];
    for (what, target, detail) in [
        ("datagrams of 1312 bytes that came back", Target::Exactly(300.0), "WireGuard at an MTU of 1280, CONNECT-UDP"),
        ("IP packets of 1280 bytes that came back", Target::Exactly(600.0), "IPv4 and IPv6, CONNECT-IP"),
        ("fragments", Target::Exactly(0.0), "made or put together on the way to the proxy, inside and outside"),
        ("bytes of QUIC through a tunnel through 2 % of loss", Target::Exactly(3e6), "every byte, over HTTP/3"),
        ("packets lost meanwhile", Target::AtLeast(1.0), "of the tunnel's connection, by the relay's count"),
    ] {
        match get(what) {
            Ok(value) => rows.push(Row::new(what, value, "", target).detail(detail)),
            Err(error) => rows.push(Row::unmeasured(what, &error)),
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_prints_does_not_hide_its_result() {
        let stdout = "test a::b ... ok\ntest c ... measured x: 1\nok\ntest d ... FAILED\ntest e ... said\nFAILED\nok\n";
        assert_eq!(passed(stdout), ["a::b", "c"]);
        let attack = Attack { what: "x", binary: Binary::Units, tests: &["c", "d"] };
        assert!(!row(&attack, &passed(stdout)).passed);
        assert!(row(&Attack { tests: &["c"], ..attack }, &passed(stdout)).passed);
    }

    /// A test that has another name would be a miss, and a name that occurs nowhere a mistake.
    #[test]
    fn the_tests_of_attacks_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut sources = String::new();
        for folder in [
            "crates/edge/src/masque",
            "crates/edge/tests/gateway/masque",
            "crates/edge/tests/gateway/webtransport",
            "crates/cli/tests/masque",
            "crates/h3/src/connect_udp",
        ] {
            read(&root.join(folder), &mut sources);
        }
        for test in ATTACKS.iter().flat_map(|attack| attack.tests) {
            let name = test.rsplit("::").next().unwrap();
            assert!(sources.contains(&format!("fn {name}(")), "{test}");
        }
    }

    fn read(folder: &std::path::Path, sources: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, sources);
            } else {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
}
