//! `perf` and `relay` between real processes over loopback.

#![cfg(target_os = "linux")]

mod program;

use std::io::{BufRead, BufReader, Read};

use program::{Service, interrupt, refused, run, run_json, spawn};
use serde_json::Value;

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

#[test]
fn downloads_arrive_whole_and_are_measured() {
    let server = Service::perf();
    let report =
        run_json(&["perf", "client", server.address(), "--pin", server.fingerprint(), "--bytes", "3 MB", "--json"]);
    assert_eq!(report["download"]["bytes"], 3_000_000);
    assert_eq!(report["upload"], Value::Null);
    assert!(report["download"]["goodput_mbit_per_s"].as_f64().unwrap() > 1.0, "{report}");
    assert_eq!(report["connections"]["success_share"], 1.0);
    assert_eq!((count(&report["handshake"]["samples"]), &report["handshake"]["p99_ms"]), (1, &Value::Null));
    assert!(count(&report["sender"]["rtt"]["samples"]) > 0, "{report}");
    assert!(count(&report["sender"]["packets_sent"]) >= 3_000_000 / 1452, "{report}");
    assert!(report["cpu"]["cpu_s_per_gib"].as_f64().unwrap() > 0.0, "{report}");

    let (code, lines) = server.interrupt();
    assert_eq!(code, Some(0));
    let [connection, total] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&connection["event"], &connection["sent_bytes"]), (&"connection".into(), &3_000_000.into()));
    assert_eq!((&total["event"], &total["connections"]), (&"total".into(), &1.into()));
}

#[test]
fn both_directions_on_several_connections_and_streams() {
    let server = Service::perf();
    let report = run_json(&[
        "perf",
        "client",
        server.address(),
        "--insecure",
        "--upload",
        "--download",
        "--bytes",
        "1000001 B",
        "--connections",
        "3",
        "--streams",
        "5",
        "--mtu",
        "1400",
        "--cc",
        "newreno",
        "--json",
    ]);
    assert_eq!((&report["download"]["bytes"], &report["upload"]["bytes"]), (&1_000_001.into(), &1_000_001.into()));
    assert_eq!((&report["connections"]["completed"], count(&report["handshake"]["samples"])), (&3.into(), 3));
    assert_eq!(report["client_congestion_control"], "newreno");
    assert_eq!(report["sender"]["end"], "both ends");
}

#[test]
fn a_server_with_shards_says_what_each_has_had() {
    let server = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--shards", "2", "--json"]);
    // The kernel chooses by the client's address until it knows an ID of the server.
    let client = ["perf", "client", server.address(), "--insecure", "--bytes", "20 kB", "--connections", "2", "--json"];
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(run_json(&client)["connections"]["completed"], 2));
        }
    });
    let (code, lines) = server.interrupt();
    assert_eq!(code, Some(0));
    let shards: Vec<&Value> = lines.iter().filter(|line| line["event"] == "shard").collect();
    let connections: Vec<u64> = shards.iter().map(|line| count(&line["connections"])).collect();
    assert_eq!((connections.len(), connections.iter().sum::<u64>()), (2, 32), "{shards:?}");
    // All 16 clients come to one shard in one of 33,000 runs.
    assert!(connections.iter().all(|&connections| connections > 0), "{shards:?}");
    for more in [&["--shards", "0"][..], &["--shards", "2", "--tcp"]] {
        let output = run(&[&["perf", "server"], more].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--shards"), "{output:?}");
    }
}

#[test]
fn a_time_ends_uploads_and_downloads() {
    let server = Service::perf();
    for direction in ["--upload", "--download"] {
        let arguments = ["perf", "client", server.address(), "--insecure", direction, "--duration", "300ms", "--json"];
        let report = run_json(&arguments);
        let way = &report[&direction[2..]];
        let elapsed = way["elapsed_s"].as_f64().unwrap();
        // The end is told to the peer, and comes back with the rest: how soon is the machine's affair.
        // The time begins with the connection, and the transfer behind the handshake.
        let handshake = report["handshake"]["min_ms"].as_f64().unwrap() / 1e3;
        assert!(elapsed + handshake >= 0.29 && count(&way["bytes"]) > 0, "{report}");
    }
}

#[test]
fn intervals_add_up() {
    let server = Service::perf();
    let common = ["perf", "client", server.address(), "--insecure", "--duration", "1 s", "--interval", "100ms"];
    let report = run_json(&[&common[..], &["--upload", "--download", "--json"]].concat());
    let of = |direction: &str| -> Vec<Value> {
        report["intervals"].as_array().unwrap().iter().filter(|line| line["direction"] == direction).cloned().collect()
    };
    let [down, up] = [of("download"), of("upload")];
    // How many there are is the machine's affair; two at least, as the rest after the last tick is one.
    assert!(down.len() >= 2 && down.len() == up.len(), "{report}");
    let sum: u64 = down.iter().map(|line| count(&line["bytes"])).sum();
    assert_eq!(sum, count(&report["download"]["bytes"]), "{report}");
    for lines in [&down, &up] {
        for (line, next) in lines.iter().zip(&lines[1..]) {
            assert_eq!(line["end_s"], next["start_s"]);
        }
    }
    assert!(up.iter().all(|line| line["cwnd_bytes"].is_u64() && line["packets_lost"].is_u64()), "{report}");
    assert!(down.iter().all(|line| line.get("cwnd_bytes").is_none()), "{report}");

    let output = run(&[&common[..], &["--upload", "--csv"]].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert!(rows.len() >= 4 && rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    assert_eq!((rows[0][0], rows[1][0], rows.last().unwrap()[0]), ("kind", "interval", "total"), "{table}");
    assert_eq!(rows.iter().filter(|row| row[0] == "total").count(), 1, "{table}");

    let output = run(&common);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().next().unwrap().contains("download") && table.contains("handshake"), "{table}");
    assert!(!table.contains("cwnd"), "the client does not know the window of the server: {table}");
}

/// Ctrl-C after the first line of a client: its exit code, and the lines that follow.
fn interrupted(arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let mut client = spawn(arguments);
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    // The header, and a row.
    stdout.read_line(&mut line).unwrap();
    stdout.read_line(&mut line).unwrap();
    interrupt(&client);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    (client.wait().unwrap().code(), rest.lines().map(str::to_owned).collect())
}

#[test]
fn ctrl_c_reports_what_was_measured() {
    let server = Service::perf();
    let common = ["perf", "client", server.address(), "--insecure", "--interval", "50ms", "--csv"];
    for amount in [["--duration", "1h"], ["--bytes", "100 TB"]] {
        for direction in ["--upload", "--download"] {
            let (code, rows) = interrupted(&[&common[..], &amount, &[direction]].concat());
            let last: Vec<&str> = rows.last().unwrap().split(',').collect();
            assert_eq!((code, last[0], last[2]), (Some(1), "partial", &direction[2..]), "{rows:?}");
            assert!(last[5].parse::<u64>().unwrap() > 0, "{rows:?}");
        }
    }
}

#[test]
fn fewer_acknowledgements_can_be_asked_for() {
    let directory = std::env::temp_dir().join(format!("tiderace-perf-acks-{}", std::process::id()));
    let qlog = directory.to_str().unwrap();
    let server = Service::perf();
    for (policy, asks) in [("off", false), ("fixed:50", true)] {
        let common = ["perf", "client", server.address(), "--insecure", "--upload", "--bytes", "3M", "--json"];
        let report = run_json(&[&common[..], &["--ack-frequency", policy, "--qlog", qlog]].concat());
        assert_eq!(report["upload"]["bytes"], 3_000_000);
        let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(text.contains("\"ack_frequency\""), asks, "{policy}");
    }
}

#[test]
fn handshakes_alone() {
    let server = Service::perf();
    let arguments = ["perf", "client", server.address(), "--insecure", "--handshakes", "60", "--json"];
    let report = run_json(&arguments);
    assert_eq!(report["connections"]["completed"], 60);
    assert!(report["handshake"]["p95_ms"].as_f64().unwrap() > 0.0, "60 samples are enough for a p95: {report}");
    assert_eq!((&report["handshake"]["p99_ms"], &report["download"]), (&Value::Null, &Value::Null));
    let (_, lines) = server.interrupt();
    assert_eq!(lines.last().unwrap()["connections"], 60);
}

#[test]
fn connections_are_new_resumed_or_with_early_data() {
    let server = Service::perf();
    let common = ["perf", "client", server.address(), "--insecure", "--handshakes"];
    let report = run_json(&[&common[..], &["60", "--kinds", "0-rtt,new,resumed", "--json"]].concat());
    for (kind, of) in ["0-rtt", "new", "resumed"].iter().zip(report["handshakes"].as_array().unwrap()) {
        let counts = (&of["kind"], &of["attempted"], &of["completed"]);
        assert_eq!(counts, (&Value::from(*kind), &60.into(), &60.into()), "{report}");
        assert!(of["first_response"]["p95_ms"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(of["handshake"]["samples"], 60);
    }
    assert_eq!(report["connections"]["completed"], 180);
    let table =
        String::from_utf8(run(&[&common[..], &["2", "--kinds", "new,0-rtt", "--csv"]].concat()).stdout).unwrap();
    let rows: Vec<&str> = table.lines().collect();
    assert!(
        rows.len() == 3 && rows[1].starts_with("new,quic,2,2,") && rows[2].starts_with("0-rtt,quic,2,2,"),
        "{table}"
    );
    let table = String::from_utf8(run(&[&common[..], &["2", "--bytes", "1 kB"]].concat()).stdout).unwrap();
    assert!(table.contains("first response") && table.contains("2 of 2") && table.contains("download"), "{table}");
}

#[test]
fn random_loss_is_tolerated_up_to_15_percent() {
    let server = Service::perf();
    let common = ["perf", "client", server.address(), "--insecure", "--bytes", "10 kB", "--upload", "--loss-tolerance"];
    assert_eq!(run_json(&[&common[..], &["8 %", "--json"]].concat())["upload"]["bytes"], 10_000);
    for (share, expected) in [("16 %", "0 to 15 %"), ("much", "much")] {
        let output = run(&[&common[..], &[share]].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && message.contains(expected), "{message}");
    }
}

#[test]
fn both_ends_write_qlog() {
    let directory = std::env::temp_dir().join(format!("tiderace-perf-qlog-{}", std::process::id()));
    let qlog = directory.to_str().unwrap();
    let server = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json", "--qlog", qlog]);
    let client = ["perf", "client", server.address(), "--insecure", "--bytes", "10 kB", "--qlog", qlog, "--json"];
    // The observer of RTT samples works beside it.
    assert!(count(&run_json(&client)["sender"]["rtt"]["samples"]) > 0);
    assert_eq!(server.interrupt().0, Some(0));
    let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect();
    files.sort();
    std::fs::remove_dir_all(&directory).unwrap();
    let [(of_client, text), (of_server, _)] = &files[..] else { panic!("{files:?}") };
    assert!(of_client.to_str().unwrap().ends_with("_client.sqlog"), "{of_client:?}");
    assert!(of_server.to_str().unwrap().ends_with("_server.sqlog"), "{of_server:?}");
    let records = text.split('\u{1e}').filter(|record| !record.is_empty());
    let names: Vec<Value> =
        records.map(|record| serde_json::from_str::<Value>(record).unwrap()["name"].clone()).collect();
    assert!(
        names.contains(&"quic:packet_sent".into()) && names.contains(&"quic:connection_closed".into()),
        "{names:?}"
    );
}

/// Bytes of the ClientHello of a client with these options, by its qlog.
fn client_hello(address: &str, name: &str, options: &[&str]) -> u64 {
    let directory = std::env::temp_dir().join(format!("tiderace-perf-hello-{name}-{}", std::process::id()));
    let common = ["perf", "client", address, "--insecure", "--bytes", "1 kB", "--json", "--qlog"];
    run_json(&[&common[..], &[directory.to_str().unwrap()], options].concat());
    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let records = text.split('\u{1e}').filter(|record| !record.is_empty());
    let records = records.map(|record| serde_json::from_str::<Value>(record).unwrap());
    let sent = records
        .filter(|record| record["name"] == "quic:packet_sent" && record["data"]["header"]["packet_type"] == "initial");
    let ends = sent.flat_map(|record| record["data"]["frames"].as_array().cloned().unwrap_or_default());
    let ends = ends.filter(|frame| frame["frame_type"] == "crypto").map(|frame| {
        let length = [&frame["length"], &frame["raw"]["payload_length"], &frame["raw"]["length"]];
        count(&frame["offset"]) + length.into_iter().find_map(Value::as_u64).unwrap_or_else(|| panic!("{frame}"))
    });
    ends.max().unwrap()
}

#[test]
fn the_key_exchange_is_the_clients_choice() {
    let server = Service::perf();
    let [hybrid, x25519, p384] = [&["x25519mlkem768"], &["x25519"], &["secp384r1,x25519"]]
        .map(|of: &[&str; 1]| client_hello(server.address(), &of[0].replace(',', "-"), &["--key-exchange", of[0]]));
    // The shares: 1,184 bytes of ML-KEM-768 and 32 of X25519, 32, and 97. Each name in the list takes 2 bytes.
    let apart = |one: u64, other: u64| one as i64 - other as i64;
    assert!((apart(hybrid, x25519) - 1_184).abs() <= 32, "{hybrid} {x25519}");
    assert!((apart(p384, x25519) - 67).abs() <= 32, "{p384} {x25519}");
    let default = client_hello(server.address(), "default", &[]);
    assert!(default >= hybrid, "the default has the hybrid's share: {default} {hybrid}");
}

#[test]
fn the_table_is_for_people() {
    let server = Service::perf();
    let output = run(&["perf", "client", server.address(), "--insecure", "--bytes", "10 kB"]);
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["connections", "handshake", "download", "Mbit/s", "rtt", "p99 –", "per GiB"] {
        assert!(table.contains(word), "{table}");
    }
    assert!(String::from_utf8(output.stderr).unwrap().contains("WARNING: --insecure"));
}

#[test]
fn a_relay_adds_its_path() {
    let server = Service::perf();
    let path = std::env::temp_dir().join(format!("tiderace-relay-{}.toml", std::process::id()));
    std::fs::write(&path, PATH).unwrap();
    let arguments =
        ["relay", "--path", path.to_str().unwrap(), "--listen", "127.0.0.1:0", "--to", server.address(), "--json"];
    let relay = Service::start(&arguments);
    std::fs::remove_file(&path).unwrap();
    let report =
        run_json(&["perf", "client", relay.address(), "--pin", server.fingerprint(), "--bytes", "1 MB", "--json"]);
    assert_eq!(report["download"]["bytes"], 1_000_000);
    let rtt = report["sender"]["rtt"]["min_ms"].as_f64().unwrap();
    assert!((20.0..40.0).contains(&rtt), "the path has 20 ms: {report}");
    let goodput = report["download"]["goodput_mbit_per_s"].as_f64().unwrap();
    assert!(goodput < 20.0, "the path has 20 Mbit/s: {report}");

    let (code, lines) = relay.interrupt();
    let [total] = &lines[..] else { panic!("{lines:?}") };
    assert!(count(&total["down"]["delivered_bytes"]) > 1_000_000, "{total}");
    // A client whose handshake is slow asks from a second socket whether anything listens there.
    assert!((1..=2).contains(&count(&total["clients"])), "{total}");
    // Whether the machine was fast enough is not this test's question, but the exit code has to say the same.
    assert_eq!(
        (code, total["trusted"].as_bool()),
        if total["doubt"].is_null() { (Some(0), Some(true)) } else { (Some(1), Some(false)) }
    );
}

/// `[path.nat]` of the scenario: the client gets all bytes although the server sees another address and then another port.
#[test]
fn a_relay_changes_mappings() {
    let server = Service::perf();
    // On a slow machine the first change may come before the handshake is complete, which no connection survives (RFC 9000 §9).
    let scales = [1, 2, 4, 8, 16];
    let transferred = scales.iter().any(|scale| {
        let (first, second, bytes) = (400 * scale, 900 * scale, format!("{} MB", 4 * scale));
        let nat =
            format!("[path.nat]\nrebind = [{{ at = \"{first} ms\", address = true }}, {{ at = \"{second} ms\" }}]\n");
        let path = scenario("nat", &nat);
        let relay =
            Service::start(&["relay", "--path", &path, "--listen", "127.0.0.1:0", "--to", server.address(), "--json"]);
        std::fs::remove_file(&path).unwrap();
        // At 20 Mbit/s this takes longer than the second change.
        let client = ["perf", "client", relay.address(), "--pin", server.fingerprint(), "--bytes", &bytes, "--json"];
        let ended = run(&client).status.success();
        let (_, lines) = relay.interrupt();
        // One, when the client was silent from one change to the next.
        assert!((1..=2).contains(&count(&lines[0]["rebindings"])), "{}", lines[0]);
        assert_eq!(count(&lines[0]["clients"]), 1, "{}", lines[0]);
        assert!(lines[0]["unmapped_packets"].is_u64(), "{}", lines[0]);
        ended
    });
    assert!(transferred, "no download has survived its changes");
}

/// The path of this file's tests with something more, in a file of its own.
fn scenario(name: &str, more: &str) -> String {
    let path = std::env::temp_dir().join(format!("tiderace-relay-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, PATH.to_owned() + more).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_relay_refuses_what_it_cannot_do() {
    let other_address = "[path.nat]\nrebind = [{ at = \"1 s\" }, { at = \"2 s\", address = true }]\n";
    for (name, more, to, key) in [
        (
            "codel",
            "[path.up]\nrate = \"1 Mbit/s\"\nqueue = { codel = { bytes = \"30 kB\" } }\n",
            "127.0.0.1:9",
            "path.up.queue",
        ),
        ("address", other_address, "192.0.2.1:9", "path.nat.rebind[1].address"),
        ("factor", "[factors]\n\"path.rtt\" = [\"10 ms\", \"20 ms\"]\n", "127.0.0.1:9", "factors.\"path.rtt\""),
    ] {
        let path = scenario(name, more);
        let (error, _) = refused(&["relay", "--path", &path, "--listen", "127.0.0.1:0", "--to", to]);
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(&format!("{key}: ")), "{error}");
    }
}

const PATH: &str = r#"
name = "short"
title = "For a test"
about = "20 Mbit/s, 20 ms"

[path.down]
rate = "20 Mbit/s"
queue = "100 kB"
delay = "10 ms"

[traffic]
workload = "bulk"
connections = 1

[run]
duration = "1 s"
"#;

#[test]
fn a_port_in_use_is_said() {
    let server = Service::perf();
    for arguments in [
        &["perf", "server", "--listen", server.address()][..],
        &["relay", "--path", "mobile", "--listen", server.address(), "--to", "127.0.0.1:9"],
    ] {
        let (error, hint) = refused(arguments);
        assert!(error.contains(server.address()) && hint.contains("another program has this port"), "{error} {hint}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_said() {
    // Nothing listens, and the system says so.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (error, hint) = refused(&["perf", "client", &free, "--insecure"]);
    assert!(error.contains("the port is closed") && hint.contains("perf server"), "{error} {hint}");
    // Somebody listens and never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (error, hint) = refused(&["perf", "client", &address, "--insecure", "--timeout", "300ms"]);
    assert!(error.contains("timed out") && hint.contains("--timeout"), "{error} {hint}");
    // There is no such address, and no way to it.
    let (error, _) = refused(&["perf", "client", "host.invalid:4433", "--insecure"]);
    assert!(error.contains("host.invalid"), "{error}");
    let (_, hint) = refused(&["perf", "client", "127.0.0.1", "--insecure"]);
    assert!(hint.contains("localhost:4433"), "{hint}");
}

#[test]
fn a_server_that_is_not_trusted_is_said() {
    let server = Service::perf();
    let (error, hint) = refused(&["perf", "client", server.address(), "--timeout", "60 s"]);
    assert!(error.contains("certificate") && hint.contains("--pin"), "{error} {hint}");
    let other = "ab".repeat(32);
    let (error, _) = refused(&["perf", "client", server.address(), "--pin", &other, "--timeout", "60 s"]);
    assert!(error.contains(server.fingerprint()), "{error}");
}

#[test]
fn wrong_options_are_said() {
    for (arguments, expected) in [
        (&["perf", "client", "127.0.0.1:9", "--cc", "cubix"][..], "did you mean `cubic`?"),
        (&["perf", "client", "127.0.0.1:9", "--bytes", "0"], "more than 0"),
        (&["perf", "client", "127.0.0.1:9", "--interval", "1ms"], "--interval '1 s'"),
        (&["perf", "client", "127.0.0.1:9", "--handshakes", "5", "--interval", "1s"], "--duration"),
        (&["perf", "client", "127.0.0.1:9", "--duration", "100000 h"], "has a unit"),
        (&["relay", "--path", "mobil", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"], "did you mean `mobile`?"),
        (&["relay", "--path", "./none.toml", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"], "lab list"),
    ] {
        let (error, hint) = refused(arguments);
        assert!(hint.contains(expected), "{error} {hint}");
    }
    // Files that are no certificates.
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let (error, _) = refused(&["perf", "server", "--cert", own, "--key", own, "--listen", "127.0.0.1:0"]);
    assert!(error.contains("Cargo.toml"), "{error}");
    let (error, _) = refused(&["perf", "client", "127.0.0.1:9", "--ca", own]);
    assert!(error.contains("Cargo.toml"), "{error}");
    assert_eq!(run(&["perf", "client", "127.0.0.1:9", "--mtu", "100"]).status.code(), Some(2));
}
