//! QUIC inside of a tunnel over a path that loses packets.

use std::net::SocketAddr;

use serde_json::Value;

use super::{Edge, borrowed};
use crate::program::{Service, run_json};

/// 2 % of all packets, in each direction.
const PATH: &str = r#"
name = "lossy"
title = "For a test"
about = "2 % of all packets"

[path.down]
rate = "50 Mbit/s"
queue = "500 kB"
delay = "5 ms"
loss = "2 %"
[path.up]
rate = "50 Mbit/s"
queue = "500 kB"
delay = "5 ms"
loss = "2 %"

[traffic]
workload = "bulk"
connections = 1

[run]
duration = "1 s"
"#;
const BYTES: u64 = 3_000_000;

/// The relay of a path to a gateway, for UDP alone.
fn relay(edge: &Edge, to: SocketAddr) -> Service {
    let path = edge.folder.0.join("path.toml");
    std::fs::write(&path, PATH).unwrap();
    let (path, to) = (path.to_str().unwrap(), to.to_string());
    Service::start(&["relay", "--path", path, "--listen", "127.0.0.1:0", "--to", &to, "--json"])
}

#[test]
fn quic_through_a_tunnel_through_loss() {
    let edge = Edge::start("lossy", "");
    let target = Service::perf();
    let relay = relay(&edge, edge.gateway.address);
    let mut arguments = edge.arguments("udp", "token", target.address());
    let proxy = arguments.iter().position(|argument| argument == "--proxy").unwrap();
    relay.address().clone_into(&mut arguments[proxy + 1]);
    arguments.push("--http3".to_owned());
    let tunnel = Service::start(&borrowed(&arguments));
    let pin = target.fingerprint();
    let report = run_json(&["perf", "client", tunnel.address(), "--pin", pin, "--bytes", "3 MB", "--json"]);
    assert_eq!(report["download"]["bytes"], BYTES);
    assert_eq!(report["connections"]["success_share"], 1.0);
    let (code, lines) = tunnel.interrupt();
    assert_eq!(code, Some(0));
    let closed: Vec<&Value> = lines.iter().filter(|line| line["event"] == "closed").collect();
    let protocols: Vec<_> = closed.iter().map(|line| &line["protocol"]).collect();
    assert!(!protocols.is_empty() && protocols.iter().all(|protocol| **protocol == "h3"), "{lines:?}");
    let total = relay.interrupt().1.pop().unwrap();
    let lost = |direction: &str| total[direction]["dropped"]["loss_packets"].as_u64().unwrap();
    let (up, down) = (lost("up"), lost("down"));
    // Of 3 MB in packets of at most 1,452 bytes some are lost, unless chance is 1 in 10^18.
    assert!(down > 0, "{total}");
    println!("measured bytes of QUIC through a tunnel through 2 % of loss: {BYTES}");
    println!("measured packets lost meanwhile: {}", up + down);
}
