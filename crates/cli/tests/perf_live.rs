//! Figures of `tiderace perf` while it runs: metrics for Prometheus, lines, and the judgement of a soak.
#![cfg(target_os = "linux")]

mod program;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use program::{Service, refused, run};
use serde_json::Value;

/// Limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Text of `/metrics`, once a server answers.
fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Scrapes until the text has all parts.
fn until(address: SocketAddr, parts: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        let text = scrape(address).unwrap_or_default();
        if parts.iter().all(|part| text.contains(part)) {
            return text;
        }
        assert!(begun.elapsed() < LIMIT, "{parts:?}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn client(server: &Service, options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["perf", "client", server.address(), "--pin", server.fingerprint()]).args(options);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn both_ends_serve_their_figures_while_they_run() {
    let [at_server, at_client] = [free_port(), free_port()];
    let (option, own) = (at_server.to_string(), format!("--prometheus={at_client}"));
    let server = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json", "--prometheus", &option]);
    // Ended when the figures have been seen.
    let options = ["--upload", "--connections", "2", "--duration", "600 s", "--cc", "bbr3", &own];
    let mut client = client(&server, &options);
    let parts = [
        "tiderace_live_sent_bytes_total{",
        "tiderace_live_goodput_bits_per_second{",
        "tiderace_live_smoothed_rtt_seconds{",
        "tiderace_live_congestion_window_bytes{",
        "tiderace_live_in_flight_bytes{",
        "tiderace_live_delivery_rate_bits_per_second{",
        "tiderace_live_packets_lost_total{",
        "tiderace_live_packets_repaired_total{",
        "tiderace_live_acks_received_total{",
        "tiderace_live_rtt_seconds_bucket{",
        "tiderace_live_controller_state{",
        "tiderace_live_resident_memory_bytes{",
        "tiderace_live_seconds_left{",
        "subject=\"connection 2\"",
    ];
    let text = until(at_client, &parts);
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    let received = until(at_server, &["tiderace_live_received_bytes_total{run=\"perf server\""]);
    assert!(!received.contains("seconds_left"), "{received}");
    // The server's CUBIC keeps no delivery rate.
    assert!(!received.contains("delivery_rate"), "{received}");
    // Counters only grow.
    let sum = |text: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with("tiderace_live_sent_bytes_total{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let first = sum(&text);
    let begun = Instant::now();
    while sum(&scrape(at_client).unwrap_or_default()) <= first {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(50));
    }
    program::interrupt(&client);
    assert_eq!(client.wait().unwrap().code(), Some(1), "a run that is interrupted is partial");
    // Connections that are over have no series.
    let begun = Instant::now();
    while scrape(at_server).unwrap().contains("received_bytes") {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_soak_ends_by_itself_and_has_figures_and_memory_over_time() {
    let server = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json"]);
    let client = client(&server, &["--soak", "4 s", "--json"]);
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["soak"]["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{report}");
    for row in rows {
        assert!(row["memory"].as_u64().unwrap() > 1 << 20, "{row}");
    }
    // The first row may have nothing before it to compare with.
    assert!(rows.len() < 2 || rows.iter().any(|row| row["mbit_per_s"].is_number()), "{report}");
    // Four rows decide nothing about growth, and it is said.
    assert_eq!(report["soak"]["growth"], Value::Null);
    let server = Service::start(&["perf", "server", "--listen", "127.0.0.1:0", "--json", "--soak", "2 s"]);
    drop(server);
    let ended = run(&["perf", "server", "--listen", "127.0.0.1:0", "--soak", "2 s"]);
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success() && text.contains("memory: not judged"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_with_a_hint() {
    let server = Service::perf();
    let base = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--duration", "1 s"];
    let (error, hint) = refused(&[&base[..], &["--prometheus=203.0.113.9:9465"]].concat());
    assert!(error.contains("everybody") && hint.contains("127.0.0.1"), "{error} {hint}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--prometheus={}", taken.local_addr().unwrap());
    let (error, hint) = refused(&[&base[..], &[&option]].concat());
    assert!(error.contains("cannot listen") && hint.contains("port"), "{error} {hint}");
    let (_, hint) = refused(&[&base[..], &["--prometheus", "--json"]].concat());
    assert!(hint.contains("--prometheus=ADDRESS"), "{hint}");
}
