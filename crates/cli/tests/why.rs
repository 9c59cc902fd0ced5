//! `tiderace why` between real processes: over loopback, through relays, and with servers that lack something.
#![cfg(target_os = "linux")]

mod gateway;
mod pcapng;
mod program;
mod scratch;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
};

use gateway::Gateway;
use program::{Service, refused, run, run_json};
use scratch::Scratch;
use serde_json::Value;

/// A gateway that serves one file.
struct Site {
    gateway: Gateway,
    scratch: Scratch,
}

impl Site {
    fn start(name: &str, bytes: usize, settings: &str) -> Self {
        Self::with_route(name, bytes, settings, "files = \"www\"")
    }

    fn with_route(name: &str, bytes: usize, settings: &str, route: &str) -> Self {
        let scratch = Scratch::new(name);
        fs::create_dir(scratch.0.join("www")).unwrap();
        fs::write(scratch.0.join("www/object"), vec![0x5a; bytes]).unwrap();
        scratch.certificate("localhost");
        let config = format!(
            "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n{settings}\n[[route]]\n{route}\n"
        );
        let file = scratch.0.join("edge.toml");
        fs::write(&file, config).unwrap();
        Self { gateway: Gateway::start(&file), scratch }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/object", self.gateway.address.port())
    }

    fn resolve(&self) -> String {
        format!("localhost:{}:127.0.0.1", self.gateway.address.port())
    }

    /// A relay before its UDP port, with this path downwards.
    fn relay(&self, down: &str) -> Service {
        let path = self.scratch.0.join("path.toml");
        let text = format!(
            "name = \"planted\"\ntitle = \"Planted\"\nabout = \"Planted.\"\n[path.down]\nrate = \"100 Mbit/s\"\nqueue = \"1 MB\"\n{down}\n[path.up]\n\
             [traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nwarmup = \"1 s\"\nduration = \"1 s\"\n"
        );
        fs::write(&path, text).unwrap();
        let to = format!("127.0.0.1:{}", self.gateway.address.port());
        Service::start(&["relay", "--path", path.to_str().unwrap(), "--listen", "127.0.0.1:0", "--to", &to, "--json"])
    }
}

/// A back end over HTTP/1.1 that answers each request with what `answer` makes of its method, and keeps the connection.
fn back_end(answer: fn(&str) -> &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let route = format!("to = \"http://{}\"", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(first)) = lines.next() {
                    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                    if (&stream).write_all(answer(first.split(' ').next().unwrap()).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    route
}

/// A gateway whose answers over HTTP/3 are those of this back end, behind the addresses of a site that serves the object over HTTP/2.
fn beside(name: &str, answer: fn(&str) -> &'static str) -> Site {
    Site::with_route(name, 0, "", &back_end(answer))
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 400000\r\n\r\n";

fn why(site: &Site, options: &[&str]) -> Value {
    let (url, resolve) = (site.url(), site.resolve());
    run_json(&[&["why", &url, "-k", "--resolve", &resolve, "--json"], options].concat())
}

#[test]
fn both_transports_are_measured_and_everything_is_in_the_json() {
    let site = Site::start("why-plain", 300_000, "");
    let qlog = site.scratch.0.join("qlog");
    let report = why(&site, &["--rounds", "6", "--qlog", qlog.to_str().unwrap()]);
    assert_eq!(report["partial"], false, "{report}");
    let evidence = &report["evidence"];
    assert_eq!(evidence["wanted"], 300_000);
    assert!(evidence["discovery"]["alt_svc"].as_str().unwrap().contains("h3="), "{evidence}");
    let exchanges = evidence["exchanges"].as_array().unwrap();
    assert_eq!(exchanges.len(), 12);
    for exchange in exchanges {
        assert_eq!((&exchange["error"], &exchange["bytes"]), (&Value::Null, &300_000.into()), "{exchange}");
        let facts = if exchange["transport"] == "h3" { &exchange["quic"] } else { &exchange["tcp"] };
        assert!(facts.is_object() && exchange["handshake_ms"].as_f64().unwrap() > 0.0, "{exchange}");
    }
    // Transports take turns in who is first.
    assert_eq!((&exchanges[0]["transport"], &exchanges[2]["transport"]), (&"h3".into(), &"h2".into()));
    assert!(
        report["diagnosis"]["completion"]["outcome"].is_string()
            || report["diagnosis"]["completion"]["outcome"].is_object()
    );
    assert!(fs::read_dir(&qlog).unwrap().count() >= 6);
}

#[test]
fn a_policer_on_udp_is_named_and_the_report_fits_a_terminal() {
    let site = Site::start("why-policer", 1_500_000, "");
    let relay = site.relay("policer = { rate = \"8 Mbit/s\", burst = \"30 kB\" }\ndelay = \"10 ms\"");
    let report = why(&site, &["--rounds", "6", "--udp", relay.address()]);
    let completion = &report["diagnosis"]["completion"];
    assert_eq!(completion["outcome"]["slower"], "h3", "{completion}");
    // On a busy machine the server pauses as well, which is said first. The report has to show the pauses then, and the policer's losses; what
    // is said of a policer alone is judged in the diagnosis's own tests.
    let first = &completion["causes"][0];
    let shows = |name: &str, least: f64| {
        let mut figures = first["figures"].as_array().unwrap().iter();
        figures.any(|figure| figure["name"] == name && figure["value"].as_f64().unwrap() >= least)
    };
    let pauses = shows("silent for longer than a round trip", 20.0) && shows("packets lost", 0.4);
    assert!(first["cause"] == "shaped" || (first["cause"] == "send_pace" && pauses), "{completion}");
    let (url, resolve) = (site.url(), site.resolve());
    let output = run(&["why", &url, "-k", "--resolve", &resolve, "--rounds", "6", "--udp", relay.address()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("HTTP/3 is slower") && text.contains("cause: "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_small_receive_window_is_named() {
    let site = Site::start("why-window", 300_000, "");
    let relay = site.relay("delay = \"20 ms\"");
    let report = why(&site, &["--rounds", "6", "--udp", relay.address(), "--receive-window", "20 kB"]);
    let completion = &report["diagnosis"]["completion"];
    assert_eq!(completion["outcome"]["slower"], "h3", "{completion}");
    assert_eq!(completion["causes"][0]["cause"], "flow_control", "{completion}");
}

#[test]
fn udp_without_an_answer_is_blocked_where_the_server_announces_it() {
    let site = Site::start("why-blocked", 50_000, "");
    // Bound, and never read.
    let hole = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = hole.local_addr().unwrap().to_string();
    let report = why(&site, &["--rounds", "6", "--udp", &address, "--connect-timeout", "4 s"]);
    assert_eq!(report["diagnosis"]["completion"]["causes"][0]["cause"], "udp_blocked", "{report}");
    assert_eq!(report["partial"], true, "{report}");
}

#[test]
fn udp_that_passes_small_packets_alone_is_blocked() {
    let site = Site::start("why-trickle", 50_000, "");
    // Acknowledgements and small probes pass, and no first flight of a server after the first.
    let relay = site.relay("policer = { rate = \"1 kbit/s\", burst = \"1500 B\" }\ndelay = \"5 ms\"");
    let report = why(&site, &["--rounds", "6", "--udp", relay.address(), "--connect-timeout", "2 s"]);
    let first = &report["diagnosis"]["completion"]["causes"][0];
    assert_eq!(first["cause"], "udp_blocked", "{report}");
    let exchanges = report["evidence"]["exchanges"].as_array().unwrap().iter();
    let silent = exchanges.filter(|exchange| exchange["quic"]["datagrams"] == 0).count() as u64;
    assert!(first["shown"][0].as_u64().unwrap() > silent, "rounds in which something came count: {report}");
}

#[test]
fn a_server_that_sends_a_header_and_then_nothing_is_no_blocked_udp_and_no_hang() {
    let site = Site::start("why-silent", 400_000, "");
    // HEAD and GET: the header section alone.
    let silent = beside("why-silent-h3", |_| HEAD);
    let udp = silent.gateway.address.to_string();
    let report = why(&site, &["--rounds", "6", "--time", "24 s", "--udp", &udp]);
    let completion = &report["diagnosis"]["completion"];
    assert_eq!(completion["outcome"]["slower"], "h3", "{report}");
    let causes: Vec<&str> =
        completion["causes"].as_array().unwrap().iter().map(|cause| cause["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["send_pace"], "{report}");
    let exchanges = report["evidence"]["exchanges"].as_array().unwrap();
    for exchange in exchanges.iter().filter(|exchange| exchange["transport"] == "h3") {
        assert_eq!((&exchange["cut"], &exchange["bytes"]), (&"time".into(), &0.into()), "{exchange}");
    }
    // On a busy machine an answer may come too late.
    assert!(exchanges.iter().filter(|exchange| exchange["path_answers"] == true).count() >= 3, "{report}");
}

#[test]
fn a_server_that_does_not_answer_at_all_is_given_up() {
    let deaf = Site::with_route("why-deaf", 0, "", &back_end(|_| ""));
    let (url, resolve) = (deaf.url(), deaf.resolve());
    let (error, hint) = refused(&["why", &url, "-k", "--resolve", &resolve, "--connect-timeout", "4 s"]);
    assert!(error.contains("did not come within 8 s") && hint.contains("--connect-timeout"), "{error} {hint}");
}

#[test]
fn refusals_over_http3_are_no_blocked_udp() {
    let site = Site::start("why-refused", 50_000, "");
    let busy =
        beside("why-refused-h3", |_| "HTTP/1.1 429 Too Many Requests\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n");
    let (url, resolve, udp) = (site.url(), site.resolve(), busy.gateway.address.to_string());
    let (error, hint) = refused(&["why", &url, "-k", "--resolve", &resolve, "--udp", &udp]);
    assert!(error.contains("over HTTP/3 the answer is 429") && hint.contains("tiderace get"), "{error} {hint}");
    // Three refusals are enough.
    let output = run(&["why", &url, "-k", "--resolve", &resolve, "--udp", &udp, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["partial"]), (Some(2), &true.into()));
    assert_eq!(report["evidence"]["exchanges"].as_array().unwrap().len(), 6, "{report}");
}

#[test]
fn an_object_without_content_has_no_report() {
    let site = Site::start("why-empty", 0, "");
    let (url, resolve) = (site.url(), site.resolve());
    let (error, _) = refused(&["why", &url, "-k", "--resolve", &resolve, "--rounds", "2"]);
    assert!(error.contains("no content"), "{error}");
}

#[test]
fn packets_are_in_the_file_with_their_keys() {
    let site = Site::start("why-packets", 100_000, "");
    let file = site.scratch.0.join("packets.pcapng");
    let report = why(&site, &["--rounds", "2", "--pcapng", file.to_str().unwrap()]);
    let datagrams: u64 = report["evidence"]["exchanges"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|exchange| exchange["quic"]["datagrams"].as_u64())
        .sum();
    let (_, packets) = pcapng::read(&file);
    let bytes = fs::read(&file).unwrap();
    for label in pcapng::ALL {
        assert!(bytes.windows(label.len()).any(|window| window == label.as_bytes()), "{label}");
    }
    // Those that were sent are in it as well.
    assert!(datagrams > 100 && packets as u64 > datagrams, "{packets} of more than {datagrams}");
}

#[test]
fn a_server_without_http3_is_an_error_that_says_what_was_tried() {
    let site = Site::start("why-none", 10_000, "[http3]\nenabled = false");
    let (url, resolve) = (site.url(), site.resolve());
    let (error, hint) = refused(&["why", &url, "-k", "--resolve", &resolve, "--connect-timeout", "4 s"]);
    for part in ["no HTTP/3", "HTTPS record", "alt-svc: none", "tried directly", "UDP port"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(hint.contains("--udp"), "{hint}");
    // What came over HTTP/2 is not thrown away.
    let output = run(&["why", &url, "-k", "--resolve", &resolve, "--connect-timeout", "4 s", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["partial"]), (Some(2), &true.into()));
    assert!(report["evidence"]["exchanges"].as_array().unwrap().len() >= 2, "{report}");
}

#[test]
fn wrong_requests_are_refused_with_a_hint() {
    for arguments in [
        &["why", "http://localhost/"][..],
        &["why", "https://localhost/", "--time", "1 s"],
        &["why", "https://localhost/", "--bytes", "1 kB"],
        &["why", "https://localhost/", "--connect-timeout", "0 s"],
        &["why", "https://localhost:1/"],
    ] {
        refused(arguments);
    }
    let help = String::from_utf8(run(&["why", "--help"]).stdout).unwrap();
    for part in
        ["head-of-line", "--rounds", "--bytes", "--time", "--resolve", "--qlog", "--connect-timeout", "docs/why.md"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
}
