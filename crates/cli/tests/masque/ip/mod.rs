//! `tiderace masque ip` between network namespaces: a client, the gateway and a target. Each test runs in namespaces of its own, where it
//! starts again as the parts that it has; `hostile` is a client that breaks the rules, `http1` one that speaks HTTP/1.1, `proxy` a proxy of the
//! test, and `wireguard` sends datagrams of that size. Where the system gives none, it says so.

mod hostile;
mod http1;
mod proxy;
mod upgrade;
mod wireguard;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    LIMIT,
    program::interrupt,
    scratch::{Program, Scratch},
};

/// Variable with the part that this process plays.
const PART: &str = "MASQUE_IP_PART";
/// Variable with the folder of the test.
const FOLDER: &str = "MASQUE_IP_FOLDER";
const PROXY: &str = "10.1.0.1";
/// An address that the built-in rules permit. The packets stay in the namespaces.
const TARGET: &str = "93.184.216.34";
const TARGET_V6: &str = "2a00:1450::34";
/// Bytes of a download.
const CONTENT: usize = 3_000_000;
/// A payload that fits into the link of the target, and not into a QUIC datagram of 1,452 bytes.
const LARGE: usize = 1_450;

/// Namespaces of the gateway and the target beside that of the client. The gateway forwards.
const NETWORKS: &str = r#"
set -e
ip link set lo up
unshare --net sleep 1000 & proxy=$!
unshare --net sleep 1000 & target=$!
for process in $proxy $target; do
    until [ "$(readlink /proc/$process/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
done
proxy() { nsenter --net=/proc/$proxy/ns/net "$@"; }
target() { nsenter --net=/proc/$target/ns/net "$@"; }
proxy ip link set lo up
target ip link set lo up
ip link add near type veth peer name far netns $proxy
ip address add 10.1.0.2/24 dev near
ip link set near up
proxy ip address add 10.1.0.1/24 dev far
proxy ip link set far up
proxy ip link add out type veth peer name in netns $target
proxy ip address add 93.184.216.1/24 dev out
proxy ip address add 2a00:1450::1/64 dev out nodad
proxy ip link set out up
target ip address add 93.184.216.34/24 dev in
target ip address add 2a00:1450::34/64 dev in nodad
target ip link set in up
target ip route add default via 93.184.216.1
target ip route add default via 2a00:1450::1
proxy sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'
cd "$MASQUE_IP_FOLDER"
part=$MASQUE_IP_PART
MASQUE_IP_PART=target target "$0" --exact ip::part --nocapture > target.out &
proxy "$1" edge run --config edge.toml > edge.out &
until grep -q serving edge.out && grep -q listening target.out; do sleep 0.02; done
MASQUE_IP_PART=$part "$0" --exact ip::part --nocapture
"#;

const EDGE: &str = r#"
listen = "10.1.0.1:443"
certificate = "cert.pem"
key = "key.pem"
workers = 1
[admin]
socket = "admin.sock"
[metrics]
listen = "10.1.0.1:9100"
[[route]]
path = "/.well-known/masque/ip"
[route.ip-proxy]
open = true
addresses = ["10.89.0.0/16", "fd00:89::/64"]
mtu = 1500
tunnels-per-client = 100
opened-per-second = 100
[[route]]
path = "/.well-known/masque/udp"
proxy = { open = true }
"#;

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

/// Runs a part of a test in namespaces of its own.
fn run(part: &str) {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    let tried = "ip link add near type veth peer name far && ip tuntap add dev tried mode tun";
    let tried = unshare().args(["sh", "-c", tried]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("not run: this system gives no namespaces, veth(4) or TUN devices, or has no unshare(1) and ip(8)");
        return;
    }
    let scratch = Scratch::new(&format!("masque-ip-{part}"));
    scratch.certificate(PROXY);
    std::fs::write(scratch.0.join("edge.toml"), EDGE).unwrap();
    let output = unshare()
        .args(["sh", "-c", NETWORKS])
        .arg(std::env::current_exe().unwrap())
        .arg(env!("CARGO_BIN_EXE_tiderace"))
        .env(FOLDER, &scratch.0)
        .env(PART, part)
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    said.lines().filter(|line| line.starts_with("measured ")).for_each(|line| println!("{line}"));
}

/// Not a test of its own: the parts of those below.
#[test]
fn part() {
    match std::env::var(PART).as_deref() {
        Err(_) => {}
        Ok("target") => target(),
        Ok("http3") => carries(&["--http3"]),
        Ok("http2") => carries(&["--http2"]),
        Ok("scope") => scope(),
        Ok("hostile") => hostile::run(),
        Ok("http1") => http1::run(),
        Ok("rules") => proxy::rules(),
        Ok("narrow") => proxy::narrow(),
        Ok("upgrade") => upgrade::run(),
        Ok("wireguard") => wireguard::run(),
        Ok(other) => panic!("no part {other}"),
    }
}

/// Answers queries of DNS, sends large datagrams, and has content for HTTP.
fn target() {
    for address in [TARGET, TARGET_V6] {
        let address: IpAddr = address.parse().unwrap();
        let dns = UdpSocket::bind((address, 53)).unwrap();
        std::thread::spawn(move || {
            let mut query = [0; 1_500];
            while let Ok((length, from)) = dns.recv_from(&mut query) {
                // The query with the bit of an answer. An empty one asks for a large datagram.
                let answer =
                    if length == 0 { vec![7; LARGE] } else { [&query[..2], &[0x81], &query[3..length]].concat() };
                // Too large for what the system knows of the path: it is sent in fragments.
                let _ = dns.send_to(&answer, from);
            }
        });
        let http = TcpListener::bind((address, 80)).unwrap();
        std::thread::spawn(move || {
            for stream in http.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut line = String::new();
                    BufReader::new(&mut stream).read_line(&mut line).unwrap();
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {CONTENT}\r\nconnection: close\r\n\r\n");
                    stream.write_all(head.as_bytes()).unwrap();
                    stream.write_all(&vec![b'x'; CONTENT]).unwrap();
                });
            }
        });
    }
    println!("listening");
    loop {
        std::thread::park();
    }
}

/// `tiderace masque ip` at work.
struct Tunnel {
    program: Program,
    lines: BufReader<std::process::ChildStdout>,
    opened: Value,
}

impl Tunnel {
    fn start(more: &[&str]) -> Self {
        Self::start_at("tunnel", more)
    }

    fn start_at(device: &str, more: &[&str]) -> Self {
        let ca = folder().join("cert.pem");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["masque", "ip", "--json", "--tun", device, "--proxy", PROXY, "--ca"]).arg(ca).args(more);
        let mut program = Program(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(program.0.stdout.take().unwrap());
        let opened = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == "opened" {
                break event;
            }
        };
        Self { program, lines, opened }
    }

    fn end(mut self) -> Value {
        interrupt(&self.program.0);
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert_eq!(self.program.0.wait().unwrap().code(), Some(0));
        let is_closed = |event: &Value| event["event"] == "closed";
        let mut events = rest.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.find(is_closed).unwrap_or_else(|| panic!("no end: {rest}"))
    }
}

/// Sends a datagram until an answer comes: datagrams may be lost.
fn exchange(target: &str, payload: &[u8]) -> Vec<u8> {
    let target: IpAddr = target.parse().unwrap();
    let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let begun = Instant::now();
    let mut answer = vec![0; 65_536];
    loop {
        assert!(begun.elapsed() < LIMIT, "no answer of {target}");
        // The system may report what became of an earlier one.
        let _ = socket.send_to(payload, (target, 53));
        if let Ok((length, from)) = socket.recv_from(&mut answer) {
            assert_eq!(from, SocketAddr::new(target, 53));
            answer.truncate(length);
            return answer;
        }
    }
}

fn download(target: &str) -> usize {
    let mut stream = TcpStream::connect((target.parse::<IpAddr>().unwrap(), 80)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: target\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    answer.len() - head
}

/// A query for the address of a.example.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";

/// A figure of the gateway's metrics.
fn figure(name: &str) -> f64 {
    let mut stream = TcpStream::connect((PROXY, 9_100)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}

fn dropped(direction: &str, reason: &str) -> f64 {
    figure(&format!("tiderace_edge_tunnel_datagrams_dropped_total{{direction=\"{direction}\",reason=\"{reason}\"}}"))
}

fn devices() -> String {
    std::fs::read_to_string("/proc/self/net/dev").unwrap()
}

fn carries(version: &[&str]) {
    let tunnel = Tunnel::start(version);
    let addresses: Vec<&str> =
        tunnel.opened["addresses"].as_array().unwrap().iter().map(|at| at.as_str().unwrap()).collect();
    let [v4, v6] = addresses[..] else { panic!("{addresses:?}") };
    assert!(v4.starts_with("10.89.") && v4.ends_with("/32") && v6.starts_with("fd00:89::") && v6.ends_with("/128"));
    for target in [TARGET, TARGET_V6] {
        let answer = exchange(target, QUERY);
        assert_eq!((&answer[..3], &answer[3..]), (&[0x12, 0x34, 0x81][..], &QUERY[3..]));
        assert_eq!(download(target), CONTENT, "{target}");
    }
    // Where packets have a largest size, the first one is dropped. The gateway tells the target, which sends fragments from then on.
    let is_h3 = version == ["--http3"];
    assert!(exchange(TARGET, b"") == vec![7; LARGE]);
    assert_eq!(dropped("down", "too-large") > 0.0, is_h3);
    // A packet to the gateway's own address, and to a private one, is refused with a report: connecting fails at once.
    for (target, port) in [("93.184.216.1", 22), ("192.168.7.7", 80)] {
        let error = TcpStream::connect_timeout(&SocketAddr::new(target.parse().unwrap(), port), LIMIT).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{target}: {error}");
    }
    assert!(dropped("up", "prohibited") >= 2.0);
    assert_eq!(figure("tiderace_edge_tunnels{kind=\"ip\"}"), 1.0);
    assert!(devices().contains("tunnel:"));
    let closed = tunnel.end();
    assert!(closed["counts"]["down_bytes"].as_u64().unwrap() > 2 * CONTENT as u64, "{closed}");
    assert!(!devices().contains("tunnel:"), "the device is gone, and its routes with it");
}

fn scope() {
    let tunnel = Tunnel::start(&["--target", TARGET, "--protocol", "udp"]);
    assert_eq!(tunnel.opened["routes"], serde_json::json!([format!("{TARGET} to {TARGET}")]));
    assert_eq!(tunnel.opened["addresses"].as_array().unwrap().len(), 1, "of the version of the target");
    assert_eq!(exchange(TARGET, QUERY).len(), QUERY.len());
    // Another protocol is refused by this end, and another target has no route.
    let error = TcpStream::connect((TARGET, 80)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{error}");
    let error = TcpStream::connect("1.1.1.1:80").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable, "{error}");
    assert!(tunnel.end()["counts"]["foreign"].as_u64().unwrap() > 0);
    let ca = folder().join("cert.pem");
    let refused = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["masque", "ip", "--ca"]).arg(&ca).args(more);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    for (more, code, message, hint) in [
        (&["--proxy", PROXY, "--target", "10.0.0.1"][..], 1, "403", "rules of the proxy"),
        (&["--proxy", PROXY, "--target", "192.0.2.1/24"], 2, "no target", "192.0.2.0/24"),
        (&["--proxy", PROXY, "--protocol", "44"], 2, "no protocol", "tcp"),
        (&["--proxy", "https://10.1.0.1/other{?target,ipproto}"], 1, "404", "no such proxy"),
        (&["--proxy", "https://10.1.0.1/vpn", "--target", "1.1.1.1"], 1, "no variable", "{?target,ipproto}"),
        (&["--proxy", PROXY, "--tun", "a-name-that-is-too-long"], 1, "1 to 15", "ip address"),
    ] {
        let (status, said) = refused(more);
        let (error, advice) = said.split_once("\nhint: ").unwrap_or_else(|| panic!("no advice: {said}"));
        assert!(
            status == Some(code) && error.contains(message) && advice.contains(hint),
            "{more:?}: {status:?} {said}"
        );
    }
}

/// RFC 9484 §4.5 SHALL-1, SHALL-2, RFC 9484 §10 SHOULD-2, RFC 9484 §10.1 SHOULD NOT-1, SHOULD-1
#[test]
fn a_device_carries_queries_and_downloads() {
    run("http3");
}

#[test]
fn a_device_carries_queries_and_downloads_over_http2() {
    run("http2");
}

/// RFC 9484 §4.1 MUST-7, RFC 9484 §4.5 MUST-1, RFC 9484 §4.6 SHOULD-1
#[test]
fn a_tunnel_stays_within_its_scope() {
    run("scope");
}

/// RFC 9484 §4.1 MUST-1, MUST-2, RFC 9484 §4.2 SHALL-1, SHALL-3, SHALL-4, MUST-1, SHOULD-1, RFC 9484 §4.3 SHALL-1, SHALL-2, SHALL-3, SHALL-4,
/// RFC 9484 §4.7.1 SHALL-1, SHALL-2, MUST-4, RFC 9484 §4.7.2 SHOULD-1, SHALL-3, SHALL-4, SHALL-5, SHALL-6, SHOULD NOT-1, MUST-4, MUST-5,
/// MUST NOT-1, MUST NOT-2, RFC 9484 §4.7.3 MUST-3, MUST-8, MUST-9
#[test]
fn capsules_over_http1_keep_the_rules_or_end_the_tunnel() {
    run("http1");
}

/// RFC 9484 §4.4 SHALL-1, SHALL-2, RFC 9484 §4.7.1 MUST-4, MUST-5, RFC 9484 §4.7.2 MUST NOT-1, MUST NOT-2, MUST-4, MUST-5, SHALL-3, SHALL-5,
/// SHALL-6, RFC 9484 §4.7.3 MUST-3, MUST-8, MUST-9
#[test]
fn the_client_keeps_the_rules_and_gives_up_a_proxy_that_breaks_them() {
    run("rules");
}

#[test]
fn tunnels_go_on_through_upgrades_and_new_ones_open_at_once() {
    run("upgrade");
}

#[test]
fn datagrams_of_wireguard_are_not_fragmented() {
    run("wireguard");
}

/// RFC 9484 §7.2 MUST-1, MUST-3
#[test]
fn ipv6_needs_a_path_that_carries_it() {
    run("narrow");
}

/// RFC 9484 §11 MUST-1
#[test]
fn spoofed_packets_and_floods_of_requests_lead_nowhere() {
    run("hostile");
}

#[test]
fn without_the_privilege_there_is_advice() {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-current-user",
        env!("CARGO_BIN_EXE_tiderace"),
        "masque",
        "ip",
        "--proxy",
        "127.0.0.1",
    ]);
    let Ok(output) = command.stdin(Stdio::null()).output() else {
        eprintln!("not run: this system has no unshare(1)");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.starts_with("unshare:") {
        eprintln!("not run: {said}");
        return;
    }
    let advice = ["CAP_NET_ADMIN", "/dev/net/tun"].iter().any(|advice| said.contains(advice));
    assert!(output.status.code() == Some(1) && said.contains("cannot open the TUN device") && advice, "{said}");
}
