//! `perf --beside-tcp` between real processes over loopback: QUIC and the kernel's TCP in turns.
#![cfg(target_os = "linux")]

mod program;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use program::{Service, interrupt, refused, run, run_json, run_within, spawn};
use serde_json::Value;

fn server(options: &[&str]) -> Service {
    Service::start(&[&["perf", "server", "--beside-tcp", "--listen", "127.0.0.1:0", "--json"], options].concat())
}

/// Arguments of a client that trusts the one certificate of both transports.
fn client<'a>(server: &'a Service, options: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--beside-tcp"];
    [&fixed, options].concat()
}

fn figure<'a>(report: &'a Value, name: &str) -> &'a Value {
    let figures = report["figures"].as_array().unwrap();
    figures.iter().find(|row| row["figure"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn both_transports_take_turns_and_stand_side_by_side() {
    let server = server(&["--tcp-cc", "reno"]);
    assert_eq!(server.ready["transport"], "quic+tcp");
    let options =
        ["--bytes", "8 MB", "--upload", "--download", "--rounds", "2", "--cc", "bbr3", "--tcp-cc", "reno", "--json"];
    let report = run_json(&client(&server, &options));
    let order: Vec<&str> =
        report["runs"].as_array().unwrap().iter().map(|run| run["transport"].as_str().unwrap()).collect();
    assert_eq!(order, ["quic", "tcp", "tcp", "quic"]);
    assert_eq!((&report["rounds"], &report["partial"]), (&2.into(), &false.into()));
    assert_eq!(
        (&report["quic_congestion_control"], &report["tcp_congestion_control"]),
        (&"bbr3".into(), &"reno".into())
    );
    for run in report["runs"].as_array().unwrap() {
        assert_eq!((&run["download"]["bytes"], &run["upload"]["bytes"]), (&8_000_000.into(), &8_000_000.into()));
        // Both ends: each spends time on 16 MB that are encrypted.
        assert!(run["cpu"]["cpu_s"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["server_cpu"]["cpu_s"].as_f64().unwrap() > 0.0, "{run}");
    }
    for name in ["download", "upload", "client CPU", "server CPU", "RTT p50", "RTT min", "cwnd at the end"] {
        let row = figure(&report, name);
        for side in ["quic", "tcp"] {
            let [median, min, max] = ["median", "min", "max"].map(|of| row[side][of].as_f64().unwrap());
            assert!(min > 0.0 && min <= median && median <= max, "{row}");
        }
        assert!(row["quic_over_tcp"].as_f64().unwrap() > 0.0, "{row}");
    }
    // What a transport does not count is nothing, and no zero.
    assert!(figure(&report, "packets lost")["tcp"].is_null() && !figure(&report, "packets lost")["quic"].is_null());
    let again = figure(&report, "packets sent again");
    assert!(again["quic"].is_null() && !again["tcp"].is_null());

    let text = String::from_utf8(run(&client(&server, &["--bytes", "100 kB", "--rounds", "1"])).stdout).unwrap();
    let lost = text.lines().find(|line| line.starts_with("packets lost")).unwrap_or_else(|| panic!("{text}"));
    assert!(lost.trim_end().ends_with("–") && text.contains("1 round in turns"), "{text}");
    // A server of both answers each alone, too.
    let alone = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--bytes", "10 kB", "--json"];
    assert_eq!(run_json(&alone)["transport"], "quic");
    assert_eq!(run_json(&[&alone[..], &["--tcp"]].concat())["transport"], "tcp");
    let (code, _) = server.interrupt();
    assert_eq!(code, Some(0));
}

/// Text of `/metrics`; empty when nobody answers.
fn scrape(address: SocketAddr) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n");
        let _ = stream.read_to_string(&mut text);
    }
    text
}

#[test]
fn metrics_follow_both_and_ctrl_c_keeps_complete_rounds() {
    let server = server(&[]);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metrics = format!("--prometheus={address}");
    let options = ["--duration", "500 ms", "--rounds", "1000", "--json", &metrics];
    let mut child = spawn(&client(&server, &options));
    let begun = Instant::now();
    let mut missing = vec!["QUIC connection 1", "kernel TCP"];
    while !missing.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{missing:?}");
        let text = scrape(address);
        missing.retain(|name| !text.contains(name));
        std::thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["partial"], true);
    let runs = report["runs"].as_array().unwrap();
    let complete = runs.iter().filter(|run| run["partial"] == false).count();
    assert_eq!(report["rounds"], complete / 2, "{text}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let quic = Service::perf();
    let arguments =
        ["perf", "client", quic.address(), "--insecure", "--beside-tcp", "--bytes", "10 kB", "--rounds", "1"];
    // The server has no TCP: what was measured over QUIC is reported, and marked.
    let output = run(&arguments);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stdout.starts_with("partial: ") && stderr.contains("cannot connect to"), "{stdout} {stderr}");
    let (error, hint) = refused(&["perf", "client", "127.0.0.1:1", "--insecure", "--beside-tcp", "--prometheus"]);
    assert!(error.contains("`--beside-tcp` has several") && hint.contains("--json"), "{error} {hint}");
}

#[test]
#[should_panic(expected = "did not end within")]
fn a_program_that_does_not_end_is_killed_and_named() {
    run_within(&["perf", "server", "--listen", "127.0.0.1:0"], Duration::from_millis(300));
}
