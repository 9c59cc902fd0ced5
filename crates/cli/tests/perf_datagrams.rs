//! `perf --datagrams` and `--prometheus` between real processes over loopback.

#![cfg(target_os = "linux")]

mod program;

use std::io::{BufRead, BufReader, Read};

use program::{Service, interrupt, refused, run, run_json, spawn};
use serde_json::Value;

/// Arguments of a client that trusts anybody.
fn client<'a>(address: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["perf", "client", address, "--insecure"], options].concat()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// The accounts of both ends fit together.
fn balanced(of: &Value) {
    let [offered, unsent, received, lost, unread] =
        ["offered", "unsent", "received", "lost", "unread"].map(|name| count(&of[name]));
    assert_eq!(offered, unsent + received + lost + unread, "{of}");
}

#[test]
fn datagrams_go_both_ways_at_their_rate() {
    let server = Service::perf();
    let options =
        ["--datagrams", "--rate", "8M", "--size", "1000", "--duration", "500ms", "--upload", "--download", "--json"];
    let report = run_json(&client(server.address(), &options));
    for (direction, of) in ["download", "upload"].iter().zip(report["datagrams"].as_array().unwrap()) {
        assert_eq!(of["direction"], *direction);
        // By the plan 500; a machine that is late at the end offers less.
        assert!((1..=500).contains(&count(&of["offered"])) && of["asked_mbit_per_s"] == 8.0, "{report}");
        balanced(of);
        assert!(count(&of["received"]) > 0, "{report}");
        assert_eq!(count(&of["received"]) * 1_000, count(&report[direction]["bytes"]), "{report}");
        assert!(of["delay_variation"]["p50_ms"].as_f64().unwrap() >= 0.0, "{report}");
        // One host, one clock.
        assert!(of["one_way_delay"]["min_ms"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!((&report["connections"]["completed"], &report["sender"]["end"]), (&1.into(), &"both ends".into()));
    let (_, lines) = server.interrupt();
    assert!(count(&lines[0]["received_bytes"]) > 0 && count(&lines[0]["sent_bytes"]) > 0, "{lines:?}");
}

#[test]
fn a_packet_rate_counts_datagrams_of_any_size() {
    let server = Service::perf();
    for (size, mbit_per_s) in [("200", 1.6), ("1000", 8.0)] {
        let options = ["--datagrams", "--packet-rate", "1000", "--size", size, "--duration", "200ms", "--json"];
        let report = run_json(&client(server.address(), &options));
        let of = &report["datagrams"][0];
        assert!((1..=200).contains(&count(&of["offered"])) && of["asked_mbit_per_s"] == mbit_per_s, "{report}");
        balanced(of);
    }
}

#[test]
fn a_path_loses_reorders_and_delays() {
    let server = Service::perf();
    let relay = relay("lossy", "rate = \"100 Mbit/s\"\nqueue = \"1 MB\"\ndelay = \"10 ms\"\nloss = \"10 %\"", &server);
    let options = ["--datagrams", "--rate", "4M", "--size", "500", "--duration", "2s", "--json", "--timeout", "60s"];
    let report = run_json(&client(relay.address(), &options));
    let of = &report["datagrams"][0];
    balanced(of);
    // A tenth of 2,000 or somewhat less is lost: none of 1,000 would be, once in 10^45 runs.
    assert!(count(&of["lost"]) > 0 && of["lost_share"].as_f64().unwrap() > 0.0, "{report}");
    assert!(of["one_way_delay"]["min_ms"].as_f64().unwrap() >= 10.0, "the path has 10 ms: {report}");
}

/// A relay before the server, over a path with these settings in both directions.
fn relay(name: &str, settings: &str, server: &Service) -> Service {
    let scenario = format!(
        "name = \"{name}\"\ntitle = \"For a test\"\nabout = \"A path\"\n[path.down]\n{settings}\n[path.up]\n{settings}\n\
         [traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nduration = \"1 s\"\n"
    );
    let path = std::env::temp_dir().join(format!("tiderace-perf-datagrams-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, scenario).unwrap();
    let arguments =
        ["relay", "--path", path.to_str().unwrap(), "--listen", "127.0.0.1:0", "--to", server.address(), "--json"];
    let relay = Service::start(&arguments);
    std::fs::remove_file(&path).unwrap();
    relay
}

#[test]
fn a_rate_above_the_path_is_held_back_at_the_sender() {
    let server = Service::perf();
    let relay = relay("slow", "rate = \"2 Mbit/s\"\nqueue = \"20 kB\"\ndelay = \"5 ms\"", &server);
    // Fifty times what the path carries: most never leave, and the account says so.
    let options = ["--datagrams", "--rate", "100M", "--duration", "1s", "--upload", "--json", "--timeout", "60s"];
    let report = run_json(&client(relay.address(), &options));
    let of = &report["datagrams"][0];
    balanced(of);
    assert!(count(&of["unsent"]) > count(&of["received"]) && count(&of["received"]) > 0, "{report}");
}

#[test]
fn tables_and_lines_show_datagrams() {
    let server = Service::perf();
    let options = ["--datagrams", "--rate", "1M", "--duration", "300ms", "--upload"];
    let table = String::from_utf8(run(&client(server.address(), &options)).stdout).unwrap();
    for word in ["datagrams", "out of order", "never left", "jitter", "variation", "one way"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let output = run(&client(server.address(), &[&options[..], &["--csv", "--interval", "100ms"]].concat()));
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let (header, total) = (&rows[0], rows.last().unwrap());
    assert!(rows.iter().all(|row| row.len() == header.len()), "{table}");
    let sent = header.iter().position(|name| *name == "datagrams_sent").unwrap();
    // 1 Mbit/s for 300 ms in datagrams of 1000 bytes: due at 0, 8, … 296 ms, unless the machine is late at the end.
    assert!(total[0] == "total" && (1..=38).contains(&total[sent].parse().unwrap()), "{table}");
    assert!(rows[1][0] == "interval" && rows[1][sent].is_empty(), "{table}");
}

#[test]
fn ctrl_c_reports_what_was_measured() {
    let server = Service::perf();
    for direction in ["--upload", "--download"] {
        let options = ["--datagrams", "--rate", "2M", "--duration", "1h", direction, "--interval", "50ms", "--csv"];
        let mut child = spawn(&client(server.address(), &options));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..2 {
            stdout.read_line(&mut String::new()).unwrap();
        }
        interrupt(&child);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{rest}");
        assert!(rest.lines().last().unwrap().starts_with(&format!("partial,quic,{},", &direction[2..])), "{rest}");
    }
}

#[test]
fn impossible_datagrams_are_said() {
    let narrow = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json", "--mtu", "1200"]);
    let common = ["--datagrams", "--rate", "1M", "--duration", "100ms"];
    for (options, expected) in [
        (&["--datagrams", "--rate", "0M"][..], "--rate 20M"),
        (&["--datagrams", "--packet-rate", "0"], "--packet-rate 500"),
        (&["--datagrams", "--rate", "1M", "--size", "15"], "at least 16"),
        (&["--datagrams", "--rate", "1M", "--size", "9000"], "at least 16"),
    ] {
        let (error, hint) = refused(&client("127.0.0.1:9", options));
        assert!(hint.contains(expected), "{error} {hint}");
    }
    // Headers and the tag need some of the 1452 bytes; and the server sends no packets above 1200.
    for (size, direction) in [("1450", "--upload"), ("1300", "--download")] {
        let options = [&common[..], &["--size", size, direction]].concat();
        let (error, hint) = refused(&client(narrow.address(), &options));
        assert!(error.contains("does not fit") && hint.contains("--size 1"), "{error} {hint}");
    }
    for (options, expected) in [
        (&["--datagrams"][..], "--rate"),
        (&["--rate", "1M"], "--datagrams"),
        (&["--packet-rate", "500"], "--datagrams"),
        (&["--datagrams", "--rate", "1M", "--packet-rate", "500"], "--packet-rate"),
        (&["--datagrams", "--rate", "1M", "--tcp"], "--tcp"),
        (&["--datagrams", "--rate", "1M", "--bytes", "1M"], "--bytes"),
        (&["--datagrams", "--rate", "fast"], "fast"),
        (&["--datagrams", "--rate", "0"], "a rate needs a unit"),
    ] {
        let output = run(&client("127.0.0.1:9", options));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && message.contains(expected), "{message}");
    }
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (error, _) = refused(&client(&free, &common));
    assert!(error.contains("the port is closed"), "{error}");
}

#[test]
fn prometheus_gets_what_was_measured() {
    let server = Service::perf();
    let text = |options: &[&str]| {
        let output = run(&client(server.address(), &[options, &["--prometheus"]].concat()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let value = |text: &str, name: &str, label: &str| -> Option<f64> {
        let line =
            text.lines().find(|line| line.starts_with(&format!("tiderace_perf_{name}{{")) && line.contains(label))?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    let transfer = text(&["--bytes", "1 MB"]);
    assert_eq!(value(&transfer, "received_bytes", "direction=\"download\""), Some(1e6), "{transfer}");
    assert!(value(&transfer, "goodput_bits_per_second", "transport=\"quic\"").unwrap() > 0.0, "{transfer}");
    assert_eq!(value(&transfer, "partial", server.address()), Some(0.0), "{transfer}");
    assert_eq!(value(&transfer, "received_bytes", "upload"), None, "what was not measured has no series: {transfer}");
    let datagrams = text(&["--datagrams", "--rate", "1M", "--duration", "80ms", "--upload"]);
    assert!((1.0..=10.0).contains(&value(&datagrams, "datagrams", "fate=\"offered\"").unwrap()), "{datagrams}");
    assert!(value(&datagrams, "jitter_seconds", "upload").unwrap() >= 0.0, "{datagrams}");
    let kinds = text(&["--handshakes", "2", "--kinds", "resumed"]);
    assert!(value(&kinds, "first_response_seconds", "kind=\"resumed\"").unwrap() > 0.0, "{kinds}");
    assert!(kinds.ends_with("# EOF\n") && kinds.contains("# HELP tiderace_perf_handshake_seconds "), "{kinds}");
    assert_eq!(run(&client("127.0.0.1:9", &["--prometheus", "--json"])).status.code(), Some(2));
}
