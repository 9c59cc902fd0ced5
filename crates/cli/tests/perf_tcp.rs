//! `perf --tcp` between real processes over loopback.

#![cfg(target_os = "linux")]

mod program;
mod scratch;

use std::io::{BufRead, BufReader, Read};

use program::{Service, interrupt, refused, run, run_json, spawn};
use scratch::{Program, Scratch};
use serde_json::Value;

fn server(options: &[&str]) -> Service {
    Service::start(&[&["perf", "server", "--tcp", "--listen", "127.0.0.1:0", "--json"], options].concat())
}

/// Arguments of a client of this server that trusts anybody.
fn client<'a>(server: &'a Service, options: &[&'a str]) -> Vec<&'a str> {
    [&["perf", "client", server.address(), "--tcp", "--insecure"], options].concat()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

#[test]
fn bytes_arrive_whole_and_the_kernel_is_asked() {
    let mut server = server(&["--cc", "reno"]);
    let options = ["--upload", "--download", "--bytes", "3000001 B", "--connections", "2", "--cc", "reno", "--json"];
    let report = run_json(&client(&server, &options));
    assert_eq!(report["transport"], "tcp");
    assert_eq!((&report["download"]["bytes"], &report["upload"]["bytes"]), (&3_000_001.into(), &3_000_001.into()));
    assert_eq!(
        (&report["connections"]["completed"], &report["connections"]["success_share"]),
        (&4.into(), &1.0.into())
    );
    assert_eq!(report["client_congestion_control"], "reno");
    assert_eq!(report["client_udp_payload_bytes"], Value::Null);
    for (direction, of) in ["download", "upload"].iter().zip(report["tcp"].as_array().unwrap()) {
        assert_eq!(
            (&of["direction"], &of["congestion_control"]),
            (&Value::from(*direction), &"reno".into()),
            "{report}"
        );
        assert_eq!(of["connections"], 2);
        // Records and headers of TLS come on top.
        assert!(count(&of["bytes_sent"]) - count(&of["bytes_retransmitted"]) > 3_000_001, "{report}");
        assert!(count(&of["packets_sent"]) > count(&of["packets_retransmitted"]), "{report}");
        assert!(of["min_rtt_ms"].as_f64().unwrap() > 0.0 && count(&of["cwnd_bytes"]) > 0, "{report}");
        assert!(of["delivery_rate_mbit_per_s"].as_f64().unwrap() > 0.0, "{report}");
    }
    let sender = &report["sender"];
    assert_eq!((&sender["end"], &sender["packets_lost"]), (&"both ends".into(), &Value::Null));
    assert!(sender["packets_retransmitted"].is_u64() && sender["retransmitted_share"].is_number(), "{report}");

    // The client may be gone before the server has noticed the end of its last connections.
    let ended = server.lines(4);
    assert!(ended.iter().all(|line| line["closed"] == "done"), "{ended:?}");
    let (code, lines) = server.interrupt();
    assert_eq!(code, Some(0));
    let total = lines.last().unwrap();
    assert_eq!((&total["connections"], &total["received_bytes"]), (&4.into(), &3_000_001.into()));
}

#[test]
fn the_default_is_the_kernels() {
    let server = server(&[]);
    let report = run_json(&client(&server, &["--upload", "--bytes", "100 kB", "--json"]));
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(report["tcp"][0]["congestion_control"], default.trim());
    assert_eq!(report["client_congestion_control"], default.trim());
}

#[test]
fn a_time_ends_uploads_and_downloads() {
    let server = server(&[]);
    for direction in ["--upload", "--download"] {
        let report = run_json(&client(&server, &[direction, "--duration", "300ms", "--json"]));
        let of = &report[&direction[2..]];
        let handshake = report["handshake"]["min_ms"].as_f64().unwrap() / 1e3;
        assert!(of["elapsed_s"].as_f64().unwrap() + handshake >= 0.29 && count(&of["bytes"]) > 0, "{report}");
        assert!(count(&report["sender"]["rtt"]["samples"]) > 0, "{report}");
    }
}

#[test]
fn intervals_add_up_and_show_what_the_kernel_sent_again() {
    let server = server(&[]);
    let options = ["--upload", "--download", "--duration", "1 s", "--interval", "100ms", "--json"];
    let report = run_json(&client(&server, &options));
    let lines = report["intervals"].as_array().unwrap();
    let of = |direction: &str| lines.iter().filter(|line| line["direction"] == direction).collect::<Vec<_>>();
    let sum: u64 = of("download").iter().map(|line| count(&line["bytes"])).sum();
    assert_eq!(sum, count(&report["download"]["bytes"]), "{report}");
    let up = of("upload");
    assert!(up.iter().all(|line| line["cwnd_bytes"].is_u64() && line["packets_retransmitted"].is_u64()), "{report}");
    assert!(lines.iter().all(|line| line.get("packets_lost").is_none()), "{report}");
    let output = run(&client(&server, &["--upload", "--duration", "300 ms", "--interval", "100ms", "--csv"]));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().skip(1).all(|row| row.contains(",tcp,upload,")), "{table}");
    let text = String::from_utf8(run(&client(&server, &["--upload", "--bytes", "100 kB"])).stdout).unwrap();
    for word in ["packets sent again", "delivery rate", "min RTT", "of the bytes"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn ctrl_c_reports_what_was_measured() {
    let server = server(&[]);
    for direction in ["--upload", "--download"] {
        let mut child = spawn(&client(&server, &[direction, "--bytes", "100 TB", "--interval", "50ms", "--csv"]));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..2 {
            stdout.read_line(&mut String::new()).unwrap();
        }
        interrupt(&child);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let last: Vec<&str> = rest.lines().last().unwrap().split(',').collect();
        assert_eq!((last[0], last[1], last[2]), ("partial", "tcp", &direction[2..]), "{rest}");
        assert!(last[5].parse::<u64>().unwrap() > 0, "{rest}");
    }
}

#[test]
fn connections_are_new_or_resumed() {
    let server = server(&[]);
    let report = run_json(&client(&server, &["--handshakes", "60", "--kinds", "new,resumed", "--json"]));
    for (kind, of) in ["new", "resumed"].iter().zip(report["handshakes"].as_array().unwrap()) {
        assert_eq!((&of["kind"], &of["completed"], &of["attempted"]), (&Value::from(*kind), &60.into(), &60.into()));
        assert!(of["first_response"]["p95_ms"].as_f64() > of["handshake"]["min_ms"].as_f64(), "{report}");
    }
    assert_eq!((&report["connections"]["completed"], &report["download"]), (&120.into(), &Value::Null));
    let (_, hint) = refused(&client(&server, &["--handshakes", "3", "--kinds", "0-rtt"]));
    assert!(hint.contains("without `--tcp`"), "{hint}");
}

#[test]
fn unknown_congestion_controls_are_said_at_both_ends() {
    for (arguments, meant) in [
        (&["perf", "client", "127.0.0.1:9", "--tcp", "--cc", "newreno"][..], "reno"),
        (&["perf", "server", "--tcp", "--listen", "127.0.0.1:0", "--cc", "newreno"], "reno"),
        (&["perf", "client", "127.0.0.1:9", "--tcp", "--cc", "nothing-like-it"], "reno"),
    ] {
        let (error, hint) = refused(arguments);
        assert!(error.contains("this kernel has no congestion control") && hint.contains(meant), "{error} {hint}");
    }
}

#[test]
fn servers_that_are_not_there_are_said() {
    // Nothing listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (error, hint) = refused(&["perf", "client", &free, "--tcp", "--insecure"]);
    assert!(error.contains("refused") && hint.contains("perf server --tcp"), "{error} {hint}");
    // Somebody listens and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (error, hint) = refused(&["perf", "client", &address, "--tcp", "--insecure", "--timeout", "300ms"]);
    assert!(error.contains("timed out") && hint.contains("--timeout"), "{error} {hint}");
    // A server over QUIC alone.
    let quic = Service::perf();
    let (_, hint) = refused(&["perf", "client", quic.address(), "--tcp", "--insecure"]);
    assert!(hint.contains("perf server --tcp"), "{hint}");
    // The port is in use.
    let server = server(&[]);
    let (error, hint) = refused(&["perf", "server", "--tcp", "--listen", server.address()]);
    assert!(error.contains(server.address()) && hint.contains("another program"), "{error} {hint}");
}

#[test]
fn servers_that_are_not_trusted_or_speak_something_else_are_said() {
    let server = server(&[]);
    let (error, hint) = refused(&["perf", "client", server.address(), "--tcp", "--timeout", "60 s"]);
    assert!(error.contains("certificate") && hint.contains("--pin"), "{error} {hint}");
    let pinned = ["perf", "client", server.address(), "--tcp", "--pin", server.fingerprint(), "--bytes", "1", "--json"];
    assert_eq!(run_json(&pinned)["download"]["bytes"], 1);
    // Another protocol: HTTPS, and none at all.
    let folder = Scratch::new("perf-tcp");
    let mut site = Program(spawn(&["serve", folder.0.to_str().unwrap(), "--listen", "127.0.0.1:0"]));
    let mut line = String::new();
    BufReader::new(site.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().rsplit_once("https://").unwrap().1.trim_end_matches('/');
    let (error, hint) = refused(&["perf", "client", address, "--tcp", "--insecure"]);
    assert!(hint.contains("another protocol"), "{error} {hint}");
    let (error, hint) = refused(&["perf", "client", address, "--insecure"]);
    assert!(hint.contains("another protocol"), "{error} {hint}");
    let echo = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = echo.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = echo.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"220 mail.example.org ready\r\n").unwrap();
        // Until the client has seen enough.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let (error, hint) = refused(&["perf", "client", &address, "--tcp", "--insecure", "--timeout", "60 s"]);
    assert!(hint.contains("another protocol"), "{error} {hint}");
    answering.join().unwrap();
}

#[test]
fn options_of_quic_alone_are_refused() {
    for option in [["--streams", "2"], ["--mtu", "1300"], ["--fec", "off"], ["--ack-frequency", "off"], ["--qlog", "d"]]
    {
        let output = run(&[&["perf", "client", "127.0.0.1:9", "--tcp"][..], &option].concat());
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("cannot be used with") && message.contains(option[0]), "{message}");
    }
}
