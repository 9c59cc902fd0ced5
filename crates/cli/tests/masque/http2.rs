//! Tunnels over HTTP/2, where UDP is blocked or not wanted.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use serde_json::Value;

use super::{Edge, LIMIT, borrowed, capitals};
use crate::program::{Service, run};

/// A way to a gateway on which TCP is carried, and UDP waits until it is permitted.
struct Blocked {
    address: SocketAddr,
    permitted: Arc<(Mutex<bool>, Condvar)>,
}

impl Blocked {
    fn before(gateway: SocketAddr) -> Self {
        let (listener, udp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            // Another program may have the port over TCP.
            if let Ok(listener) = TcpListener::bind(udp.local_addr().unwrap()) {
                break (listener, udp);
            }
        };
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(gateway).unwrap());
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        let permitted = Arc::new((Mutex::new(false), Condvar::new()));
        let waits = permitted.clone();
        std::thread::spawn(move || carry_datagrams(&udp, gateway, &waits));
        Self { address, permitted }
    }

    /// Carries UDP from now on, those datagrams included that wait.
    fn permit_udp(&self) {
        *self.permitted.0.lock().unwrap() = true;
        self.permitted.1.notify_all();
    }
}

/// Carries datagrams between clients and a gateway, with a socket for each client.
fn carry_datagrams(udp: &UdpSocket, gateway: SocketAddr, permitted: &(Mutex<bool>, Condvar)) {
    let mut clients: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while let Ok((length, client)) = udp.recv_from(&mut buffer) {
        drop(permitted.1.wait_while(permitted.0.lock().unwrap(), |permitted| !*permitted).unwrap());
        let socket = clients.entry(client).or_insert_with(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(gateway).unwrap();
            let (from, to) = (socket.try_clone().unwrap(), udp.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(length) = from.recv(&mut buffer) {
                    let _ = to.send_to(&buffer[..length], client);
                }
            });
            socket
        });
        let _ = socket.send(&buffer[..length]);
    }
}

fn start(edge: &Edge, proxy: SocketAddr, kind: &str, more: &[&str]) -> Service {
    let mut arguments = edge.proxy_arguments(kind, "token");
    let at = arguments.iter().position(|argument| argument == "--proxy").unwrap() + 1;
    arguments[at] = proxy.to_string();
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    Service::start(&borrowed(&arguments))
}

fn connected(lines: &[Value]) -> &Value {
    lines.iter().find(|line| line["event"] == "connected").unwrap_or_else(|| panic!("{lines:?}"))
}

#[test]
fn datagrams_go_over_http2_where_udp_is_blocked() {
    let edge = Edge::start("h2-udp", "");
    let blocked = Blocked::before(edge.gateway.address);
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(LIMIT)).unwrap();
    let address = target.local_addr().unwrap().to_string();
    let mut service = start(&edge, blocked.address, "udp", &[&address]);
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    program.connect(service.address()).unwrap();
    let mut buffer = vec![0; 65_536];
    // A query and its answer, and sizes that no QUIC datagram has.
    for (query, answer) in [(40, 512), (1_200, 1_200), (9_000, 1), (0, 9_000)] {
        program.send(&vec![b'q'; query]).unwrap();
        let (length, source) = target.recv_from(&mut buffer).unwrap();
        assert!(buffer[..length] == vec![b'q'; query]);
        target.send_to(&vec![b'a'; answer], source).unwrap();
        let length = program.recv(&mut buffer).unwrap();
        assert!(buffer[..length] == vec![b'a'; answer]);
    }
    // Said as soon as the questions over UDP have had their time.
    let said = service.lines(1);
    assert_eq!(connected(&said)["protocol"], "h2");
    assert!(connected(&said)["verdict"].as_str().unwrap().starts_with("UDP is blocked"), "{said:?}");
    let (code, lines) = service.interrupt();
    assert_eq!(code, Some(0));
    let closed = lines.iter().find(|line| line["event"] == "closed").unwrap();
    let counts = &closed["counts"];
    assert_eq!((&closed["protocol"], &counts["capsules"]), (&"h2".into(), &4.into()), "{closed}");
    assert_eq!((&counts["up_bytes"], &counts["down_bytes"]), (&10_240.into(), &10_713.into()), "{closed}");
}

#[test]
fn connections_go_over_http2_where_udp_is_blocked() {
    let edge = Edge::start("h2-tcp", "");
    let blocked = Blocked::before(edge.gateway.address);
    let address = capitals();
    let service = start(&edge, blocked.address, "tcp", &[&address.to_string()]);
    for size in [0, 10, 3_000_000] {
        let mut stream = TcpStream::connect(service.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&vec![b'a'; size]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == vec![b'A'; size], "{} of {size} bytes", back.len());
    }
    let (code, lines) = service.interrupt();
    let closed: Vec<_> = lines.iter().filter(|line| line["event"] == "closed").collect();
    assert!(closed.iter().all(|line| line["protocol"] == "h2" && line["reason"] == "ended"), "{lines:?}");
    assert_eq!((code, closed.len()), (Some(0), 3));
}

/// The program's reset is one for the target, too.
#[test]
fn what_breaks_off_over_http2_does_not_look_complete() {
    let edge = Edge::start("h2-reset", "");
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    let mut service = start(&edge, edge.gateway.address, "tcp", &["--http2", &address]);
    assert_eq!(connected(&service.lines(1))["verdict"], "QUIC was not tried: it is not wanted");
    let mut program = TcpStream::connect(service.address()).unwrap();
    program.write_all(b"x").unwrap();
    let (mut stream, _) = target.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    socket2::SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
    drop(program);
    let error = stream.read_exact(&mut byte).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let line = &service.lines(1)[0];
    assert!(line["reason"].as_str().unwrap().contains("program broke off"), "{line}");
}

/// A proxy that is reached over QUIC later than over TCP.
#[test]
fn new_tunnels_go_over_http3_as_soon_as_it_works() {
    let edge = Edge::start("h2-late", "");
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(LIMIT)).unwrap();
    let address = target.local_addr().unwrap().to_string();
    // If this machine is slow, QUIC is there first, or UDP is taken to be blocked before it is permitted.
    for _ in 0..50 {
        let blocked = Blocked::before(edge.gateway.address);
        let mut service = start(&edge, blocked.address, "udp", &[&address]);
        blocked.permit_udp();
        let first = service.lines(1);
        if !connected(&first)["verdict"].as_str().unwrap().contains("later than TCP") {
            continue;
        }
        assert_eq!(connected(&first)["protocol"], "h2");
        let second = service.lines(1);
        assert_eq!(connected(&second)["protocol"], "h3");
        // The first program gets the tunnel that was opened at the start.
        for _ in 0..2 {
            let program = UdpSocket::bind("127.0.0.1:0").unwrap();
            program.send_to(b"x", service.address()).unwrap();
            assert_eq!(target.recv(&mut [0; 2]).unwrap(), 1);
        }
        let (_, lines) = service.interrupt();
        let mut protocols: Vec<_> = lines.iter().filter_map(|line| line["protocol"].as_str()).collect();
        protocols.sort_unstable();
        assert_eq!(protocols, ["h2", "h3"], "{lines:?}");
        return;
    }
    panic!("QUIC is never ready after TCP");
}

#[test]
fn a_version_that_is_wanted_is_the_only_one() {
    let edge = Edge::start("h2-only", "");
    // Without UDP there is no HTTP/3.
    let blocked = Blocked::before(edge.gateway.address);
    let mut arguments = edge.arguments("udp", "token", "127.0.0.1:53");
    let at = arguments.iter().position(|argument| argument == "--proxy").unwrap() + 1;
    arguments[at] = blocked.address.to_string();
    arguments.extend(["--http3", "--connect-within", "1"].map(str::to_owned));
    let output = run(&borrowed(&arguments));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains("within 1 s") && said.contains("\nhint: "), "{said}");
    let mut service = start(&edge, edge.gateway.address, "socks", &["--http3"]);
    assert_eq!(connected(&service.lines(1))["protocol"], "h3");
    let mut service = start(&edge, edge.gateway.address, "socks", &["--http2"]);
    assert_eq!(connected(&service.lines(1))["protocol"], "h2");
}
