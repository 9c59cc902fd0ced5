//! `tiderace masque socks` as programs use it, some of which break the rules.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Edge, LIMIT, borrowed, capitals, private};
use crate::program::{Service, refused};

/// Time after which a datagram is sent again: UDP may lose it.
const AGAIN: Duration = Duration::from_secs(2);
/// Limits of the proxy that no test is to reach.
pub(super) const MANY: &str = "tunnels-per-client = 1000\nopened-per-second = 100000\n";

const CONNECT: u8 = 1;
const BIND: u8 = 2;
const ASSOCIATE: u8 = 3;

pub(super) fn start(edge: &Edge, more: &[&str]) -> Service {
    let mut arguments = edge.proxy_arguments("socks", "token");
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    Service::start(&borrowed(&arguments))
}

pub(super) fn of_ip(address: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(address) = address else { panic!("{address}") };
    [&[1][..], &address.ip().octets(), &address.port().to_be_bytes()].concat()
}

pub(super) fn of_name(name: &str, port: u16) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// A program that speaks SOCKS5.
pub(super) struct Program(TcpStream);

impl Program {
    fn connect(service: &Service) -> Self {
        let stream = TcpStream::connect(service.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    /// With the methods agreed on.
    fn greeted(service: &Service) -> Self {
        let mut this = Self::connect(service);
        assert_eq!(this.ask::<2>(&[5, 1, 0]), [5, 0]);
        this
    }

    /// Sends bytes, and reads an answer of this length.
    fn ask<const N: usize>(&mut self, bytes: &[u8]) -> [u8; N] {
        self.0.write_all(bytes).unwrap();
        let mut answer = [0; N];
        self.0.read_exact(&mut answer).unwrap();
        answer
    }

    /// Sends a request and `more` behind it. Returns code and address of the answer.
    fn request(&mut self, command: u8, address: &[u8], more: &[u8]) -> (u8, SocketAddr) {
        let answer = self.ask::<10>(&[&[5, command, 0], address, more].concat());
        let [5, code, 0, 1, a, b, c, d, high, low] = answer else { panic!("{answer:?}") };
        (code, SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into())
    }

    /// All until the end. A reset is an end, too.
    fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        rest
    }

    /// With a port for datagrams, and the socket for them.
    pub(super) fn associated(service: &Service) -> (Self, UdpSocket) {
        let mut this = Self::greeted(service);
        let (code, relay) = this.request(ASSOCIATE, &of_ip("0.0.0.0:0".parse().unwrap()), &[]);
        assert_eq!((code, relay.ip()), (0, Ipv4Addr::LOCALHOST.into()));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(relay).unwrap();
        (this, socket)
    }
}

pub(super) fn target() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(AGAIN)).unwrap();
    socket
}

/// Sends a payload to a target until it arrives, and back until it arrives. Returns the address that the target saw.
pub(super) fn exchange(program: &UdpSocket, address: &[u8], target: &UdpSocket, payload: &[u8]) -> SocketAddr {
    let begun = Instant::now();
    let datagram = [&[0; 3], address, payload].concat();
    program.set_read_timeout(Some(AGAIN)).unwrap();
    let mut buffer = vec![0; 65_536];
    loop {
        assert!(begun.elapsed() < LIMIT, "{} bytes do not arrive", payload.len());
        program.send(&datagram).unwrap();
        let Ok((length, source)) = target.recv_from(&mut buffer) else { continue };
        if buffer[..length] != *payload {
            continue;
        }
        target.send_to(payload, source).unwrap();
        while let Ok(length) = program.recv(&mut buffer) {
            // Others are late answers.
            if buffer[..length] == datagram {
                return source;
            }
        }
    }
}

/// The next events but those about the proxy, which come at their own time.
fn events(service: &mut Service, count: usize) -> Vec<Value> {
    let lines = std::iter::repeat_with(|| service.lines(1).remove(0));
    lines.filter(|line| line["event"] != "connected" && line["event"] != "bound").take(count).collect()
}

pub(super) fn find<'a>(lines: &'a [Value], what: &str, value: &str) -> &'a Value {
    lines.iter().find(|line| line[what] == value).unwrap_or_else(|| panic!("no {what} {value} in {lines:?}"))
}

#[test]
fn connections_go_to_the_targets_that_programs_name() {
    let edge = Edge::start("socks-tcp", MANY);
    let service = start(&edge, &[]);
    let target = capitals();
    for (address, size) in [(of_ip(target), 10), (of_name("localhost", target.port()), 300_000)] {
        // The first bytes come with the request.
        let mut program = Program::greeted(&service);
        let (code, _) = program.request(CONNECT, &address, b"first,");
        assert_eq!(code, 0);
        program.0.write_all(&vec![b'a'; size]).unwrap();
        program.0.shutdown(Shutdown::Write).unwrap();
        let back = program.rest();
        assert!(back == [b"FIRST,", &vec![b'A'; size][..]].concat(), "{} bytes", back.len());
    }
    let (code, lines) = service.interrupt();
    assert_eq!(code, Some(0));
    // The name is the proxy's to resolve.
    let named = find(&lines, "target", &format!("localhost:{}", target.port()));
    assert_eq!((&named["reason"], &named["reply"], &named["up_bytes"]), (&"ended".into(), &0.into(), &300_006.into()));
    assert_eq!(lines.last().unwrap()["connections"], 2, "{lines:?}");
}

#[test]
fn curl_gets_what_it_asks_for() {
    let edge = Edge::start("socks-curl", MANY);
    let service = start(&edge, &[]);
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in target.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").unwrap();
        }
    });
    for (option, host) in [("--socks5-hostname", "localhost"), ("--socks5", "127.0.0.1")] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--noproxy", "", option, service.address()]);
        let Ok(output) = curl.arg(format!("http://{host}:{port}/")).stdin(Stdio::null()).output() else {
            println!("there is no curl: nothing is shown");
            return;
        };
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello", "{output:?}");
    }
    // Its exit code 97 is about the proxy.
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--noproxy", "", "--socks5-hostname", service.address(), "http://127.0.0.1:25/"]);
    assert_eq!(curl.stdin(Stdio::null()).status().unwrap().code(), Some(97));
}

#[test]
fn datagrams_go_to_the_targets_that_programs_name() {
    let edge = Edge::start("socks-udp", MANY);
    let service = start(&edge, &[]);
    let (program, socket) = Program::associated(&service);
    let (one, other) = (target(), target());
    let name = of_name("localhost", other.local_addr().unwrap().port());
    let source = exchange(&socket, &of_ip(one.local_addr().unwrap()), &one, b"to an address");
    assert_ne!(exchange(&socket, &name, &other, &[7; 1_200]), source);
    // A tunnel stays for the next datagram.
    assert_eq!(exchange(&socket, &of_ip(one.local_addr().unwrap()), &one, b"again"), source);

    // What is dropped: of another program, a fragment, without a whole header, to port 0.
    let foreign = UdpSocket::bind("127.0.0.1:0").unwrap();
    let whole = [&[0; 3][..], &of_ip(one.local_addr().unwrap()), b"dropped"].concat();
    foreign.send_to(&whole, socket.peer_addr().unwrap()).unwrap();
    let mut fragment = whole.clone();
    fragment[2] = 1;
    for dropped in [&fragment[..], &whole[..9], b"", &[0, 0, 0, 1, 127, 0, 0, 1, 0, 0]] {
        socket.send(dropped).unwrap();
    }
    // Loopback keeps the order of one socket, and the foreign datagram was sent before.
    assert_eq!(exchange(&socket, &of_ip(one.local_addr().unwrap()), &one, b"last"), source);
    drop(program);
    let mut service = service;
    // Each tunnel ends, and then the association.
    let lines = events(&mut service, 3);
    let end = find(&lines, "kind", "association");
    assert_eq!(end["reason"], "the program has left");
    let expected = [("foreign", 1), ("fragments", 1), ("malformed", 3), ("full", 0), ("evicted_tunnels", 0)];
    assert!(expected.iter().all(|(what, count)| end["drops"][what] == *count), "{end}");
    for target in [format!("localhost:{}", other.local_addr().unwrap().port()), one.local_addr().unwrap().to_string()] {
        assert_eq!(find(&lines, "target", &target)["reason"], "the program has left");
    }
    let (code, lines) = service.interrupt();
    assert_eq!((code, &lines.last().unwrap()["associations"]), (Some(0), &1.into()), "{lines:?}");
}

#[test]
fn a_program_that_announces_its_port_is_heard_from_there_only() {
    let edge = Edge::start("socks-port", MANY);
    let mut service = start(&edge, &[]);
    let (socket, early) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut program = Program::greeted(&service);
    let (code, relay) = program.request(ASSOCIATE, &of_ip(socket.local_addr().unwrap()), &[]);
    assert_eq!(code, 0);
    let target = target();
    let address = of_ip(target.local_addr().unwrap());
    early.send_to(&[&[0; 3][..], &address, b"first"].concat(), relay).unwrap();
    socket.connect(relay).unwrap();
    exchange(&socket, &address, &target, b"own");
    drop(program);
    let lines = events(&mut service, 2);
    assert_eq!(find(&lines, "kind", "association")["drops"]["foreign"], 1);
}

#[test]
fn refusals_have_codes() {
    let edge = Edge::start("socks-refused", MANY);
    let mut service = start(&edge, &[]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (command, address, expected) in [
        (CONNECT, of_ip("127.0.0.1:25".parse().unwrap()), 2),
        (CONNECT, of_ip("10.0.0.1:80".parse().unwrap()), 2),
        (CONNECT, of_ip(closed), 5),
        (CONNECT, of_ip("127.0.0.1:0".parse().unwrap()), 1),
        (CONNECT, of_name("no name", 80), 1),
        (BIND, of_ip(closed), 7),
        (9, of_ip(closed), 7),
        (CONNECT, vec![9, 0, 0], 8),
    ] {
        let mut program = Program::greeted(&service);
        let (code, _) = program.request(command, &address, &[]);
        assert_eq!(code, expected, "{command} {address:?}");
        assert!(program.rest().is_empty());
        let line = &events(&mut service, 1)[0];
        assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
    }
    // A refused datagram has no answer in SOCKS5; the event tells.
    let (_program, socket) = Program::associated(&service);
    socket.send(&[&[0; 3][..], &of_ip("127.0.0.1:25".parse().unwrap()), b"mail"].concat()).unwrap();
    let line = &events(&mut service, 1)[0];
    assert!(line["reason"].as_str().unwrap().contains("403") && line["target"] == "127.0.0.1:25", "{line}");
    assert!(line["hint"].as_str().unwrap().contains("rules of the proxy"), "{line}");
}

#[test]
fn slow_and_senseless_handshakes_end() {
    let edge = Edge::start("socks-garbage", MANY);
    let mut service = start(&edge, &["--handshake-within", "1", "--max-connections", "1"]);
    let mut slow = Program::connect(&service);
    slow.0.write_all(&[5]).unwrap();
    // This one waits until the other has ended.
    let next = Program::greeted(&service);
    assert!(slow.rest().is_empty());
    assert!(events(&mut service, 1)[0]["reason"].as_str().unwrap().contains("within 1 s"));
    drop(next);
    assert!(events(&mut service, 1)[0]["reason"].as_str().unwrap().contains("left"));
    for (garbage, answer, reason) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], &b""[..], "HTTP"),
        (&[4, 1, 0, 80, 127, 0, 0, 1, 0], b"", "SOCKS4"),
        (&[5, 1, 2], &[5, 0xff], "method"),
        (&[5, 0], &[5, 0xff], "method"),
        (&[5, 1, 0, 4, 1, 0, 1], &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0], "SOCKS4"),
    ] {
        let mut program = Program::connect(&service);
        program.0.write_all(garbage).unwrap();
        assert_eq!(program.rest(), answer, "{garbage:?}");
        let line = &events(&mut service, 1)[0];
        assert!(line["event"] == "refused" && line["reason"].as_str().unwrap().contains(reason), "{line}");
    }
}

#[test]
fn programs_say_a_password_where_one_is_asked_for() {
    let edge = Edge::start("socks-password", MANY);
    private(std::path::Path::new(&edge.path("users")), "alice:secret\n");
    let service = start(&edge, &["--users", &edge.path("users")]);
    let target = capitals();
    let mut program = Program::connect(&service);
    assert_eq!(program.ask::<2>(&[5, 1, 0]), [5, 0xff]);
    let mut program = Program::connect(&service);
    assert_eq!(program.ask::<2>(&[5, 2, 0, 2]), [5, 2]);
    assert_eq!(program.ask::<2>(b"\x01\x05alice\x05secre"), [1, 1]);
    assert!(program.rest().is_empty());
    let mut program = Program::connect(&service);
    assert_eq!(program.ask::<2>(&[5, 2, 0, 2]), [5, 2]);
    assert_eq!(program.ask::<2>(b"\x01\x05alice\x06secret"), [1, 0]);
    assert_eq!(program.request(CONNECT, &of_ip(target), b"x").0, 0);
    program.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(program.rest(), b"X");
}

#[test]
fn a_program_that_leaves_ends_its_tunnel() {
    let edge = Edge::start("socks-left", MANY);
    let mut service = start(&edge, &[]);
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = Program::greeted(&service);
    assert_eq!(program.request(CONNECT, &of_ip(target.local_addr().unwrap()), b"x").0, 0);
    let (mut stream, _) = target.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    socket2::SockRef::from(&program.0).set_linger(Some(Duration::ZERO)).unwrap();
    drop(program);
    // It broke off, and does not look complete.
    let error = stream.read_exact(&mut byte).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(events(&mut service, 1)[0]["reason"].as_str().unwrap().contains("program broke off"));
}

#[test]
fn a_program_has_a_hundred_targets() {
    let edge = Edge::start("socks-many", MANY);
    let targets: Vec<UdpSocket> = (0..100).map(|_| target()).collect();
    let round = |socket: &UdpSocket, text: &str| -> Vec<SocketAddr> {
        let targets = targets.iter().enumerate();
        targets
            .map(|(number, target)| {
                let payload = format!("{text} {number}");
                exchange(socket, &of_ip(target.local_addr().unwrap()), target, payload.as_bytes())
            })
            .collect()
    };
    let service = start(&edge, &["--max-tunnels", "100"]);
    let (_program, socket) = Program::associated(&service);
    let first = round(&socket, "first");
    assert_eq!(first, round(&socket, "second"), "each tunnel is used again");
    let (_, lines) = service.interrupt();
    assert_eq!(lines.iter().filter(|line| line["counts"]["up_datagrams"] == 2).count(), 100, "{lines:?}");

    // With less room, the tunnels that were not used for the longest time end.
    let service = start(&edge, &["--max-tunnels", "10"]);
    let (_program, socket) = Program::associated(&service);
    let first = round(&socket, "third");
    let (old, new) = (&targets[0], &targets[99]);
    let again = exchange(&socket, &of_ip(new.local_addr().unwrap()), new, b"new");
    assert_eq!(again, first[99]);
    exchange(&socket, &of_ip(old.local_addr().unwrap()), old, b"old");
    let (_, lines) = service.interrupt();
    assert_eq!(find(&lines, "kind", "association")["drops"]["evicted_tunnels"], 91, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line["reason"] == "evicted").count(), 91);
}

#[test]
fn other_machines_are_served_only_on_demand() {
    let socks = ["masque", "socks", "--proxy", "a.example", "--listen", "0.0.0.0:0"];
    assert!(refused(&socks).1.contains("--allow-remote"));
    let without = ["masque", "socks", "--proxy", "a.example", "--users", "/nowhere"];
    assert!(refused(&without).1.contains("--users"));
}
