//! Datagrams of SOCKS5 programs over one tunnel for all targets (bound UDP).

use std::net::UdpSocket;

use serde_json::Value;

use super::{
    Edge,
    socks::{MANY, Program, exchange, find, of_ip, of_name, start, target},
};

const BOUND: &str = "bound-udp = true\nbound-udp-addresses = \"127.0.0.1\"\n";

fn of(target: &UdpSocket) -> Vec<u8> {
    of_ip(target.local_addr().unwrap())
}

fn bound(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["event"] == "bound").collect()
}

fn closed<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == "closed" && line["kind"] == kind).collect()
}

#[test]
fn one_tunnel_leads_to_all_targets() {
    let edge = Edge::start("bound", &format!("{MANY}{BOUND}"));
    for version in ["--http3", "--http2"] {
        let service = start(&edge, &[version]);
        let (_program, socket) = Program::associated(&service);
        let targets: Vec<UdpSocket> = (0..20).map(|_| target()).collect();
        let mut sources = Vec::new();
        // Repeated payloads get a context ID, and sizes that no QUIC datagram of the beginning has get through.
        for size in [0, 30, 1_200, 500] {
            for target in &targets {
                sources.push(exchange(&socket, &of(target), target, &vec![7; size]));
            }
        }
        sources.dedup();
        assert_eq!(sources.len(), 1, "{sources:?}");
        // A name is the proxy's to resolve: it has a tunnel of its own.
        let named = target();
        let source = exchange(&socket, &of_name("localhost", named.local_addr().unwrap().port()), &named, b"name");
        assert_ne!(source, sources[0]);
        // Of another IP version than the proxy has: neither.
        let v6 = [&[0; 3][..], &[4], &[0; 15], &[1, 0, 53], b"x"].concat();
        socket.send(&v6).unwrap();
        // Others are not heard.
        let stranger = UdpSocket::bind("127.0.0.9:0").unwrap();
        stranger.send_to(b"stranger", sources[0]).unwrap();
        exchange(&socket, &of(&targets[0]), &targets[0], b"last");
        let (code, lines) = service.interrupt();
        assert_eq!(code, Some(0));
        let [opened] = bound(&lines)[..] else { panic!("{lines:?}") };
        assert_eq!(opened["public"], serde_json::json!([sources[0].to_string()]));
        assert_eq!(opened["protocol"], version[2..].replace("http", "h"));
        let [all] = closed(&lines, "bound")[..] else { panic!("{lines:?}") };
        assert_eq!((&all["contexts"], &all["protocol"]), (&20.into(), &opened["protocol"]), "{all}");
        let counts = &all["counts"];
        assert!(counts["up_datagrams"].as_u64() >= Some(81) && counts["down_datagrams"].as_u64() >= Some(81), "{all}");
        let port = named.local_addr().unwrap().port();
        assert!(find(&lines, "target", &format!("localhost:{port}"))["counts"]["up_datagrams"].as_u64() >= Some(1));
        assert!(find(&lines, "target", "[::1]:53")["reason"].as_str().unwrap().contains("prohibited"));
    }
}

#[test]
fn a_proxy_without_bound_udp_has_a_tunnel_for_each_target() {
    let edge = Edge::start("bound-without", MANY);
    let service = start(&edge, &[]);
    let mut sources = Vec::new();
    for _ in 0..2 {
        let (_program, socket) = Program::associated(&service);
        for target in [target(), target()] {
            sources.push(exchange(&socket, &of(&target), &target, b"hello"));
        }
    }
    sources.sort_unstable();
    sources.dedup();
    assert_eq!(sources.len(), 4, "{sources:?}");
    let (_, lines) = service.interrupt();
    // Said once, and asked once.
    let [told] = bound(&lines)[..] else { panic!("{lines:?}") };
    assert_eq!(told["public"], Value::Null);

    let edge = Edge::start("bound-unwanted", &format!("{MANY}{BOUND}"));
    let service = start(&edge, &["--no-bound"]);
    let (_program, socket) = Program::associated(&service);
    let [one, other] = [target(), target()].map(|target| exchange(&socket, &of(&target), &target, b"hello"));
    assert_ne!(one, other);
    let (_, lines) = service.interrupt();
    assert!(bound(&lines).is_empty() && closed(&lines, "bound").is_empty(), "{lines:?}");
}

/// Two programs have two tunnels. One that has fallen silent is opened again.
#[test]
fn each_program_has_a_tunnel_that_is_opened_again() {
    let edge = Edge::start("bound-silent", &format!("{MANY}{BOUND}"));
    let mut service = start(&edge, &["--idle", "1"]);
    let target = target();
    let programs = [(); 2].map(|()| Program::associated(&service));
    let sources = [0, 1].map(|number| exchange(&programs[number].1, &of(&target), &target, b"first"));
    assert_ne!(sources[0], sources[1]);
    let mut lines = Vec::new();
    while closed(&lines, "bound").len() < 2 {
        lines.extend(service.lines(1));
    }
    assert!(closed(&lines, "bound").iter().all(|line| line["reason"] == "silent"), "{lines:?}");
    exchange(&programs[0].1, &of(&target), &target, b"again");
    let (_, rest) = service.interrupt();
    lines.extend(rest);
    assert!(bound(&lines).len() >= 3 && bound(&lines).iter().all(|line| line["public"].is_array()), "{lines:?}");
}
