//! `tiderace masque` through a `tiderace edge` of its own.

mod bound;
mod certificates;
#[path = "../gateway/mod.rs"]
mod gateway;
mod http2;
mod ip;
mod lossy;
#[path = "../program/mod.rs"]
mod program;
#[path = "../scratch/mod.rs"]
mod scratch;
mod socks;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use gateway::Gateway;
use program::{Service, refused, run};
use scratch::Scratch;

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

const TOKEN: &str = "0123456789abcdef";

/// A gateway with a proxy to loopback.
struct Edge {
    gateway: Gateway,
    folder: Scratch,
}

fn private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

impl Edge {
    /// With `more` in the settings of the proxy.
    fn start(name: &str, more: &str) -> Self {
        let folder = Scratch::new(&format!("masque-{name}"));
        folder.certificate("127.0.0.1");
        private(&folder.0.join("tokens"), &format!("alice {TOKEN}\n"));
        private(&folder.0.join("token"), TOKEN);
        let mut config = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n\
                      [admin]\nsocket = \"admin.sock\"\n[[route]]\npath = \"/.well-known/masque/udp\"\n\
                      [route.proxy]\ntokens = \"tokens\"\ntcp = true\nallow = \"127.0.0.1\"\n"
            .to_owned();
        config.push_str(more);
        std::fs::write(folder.0.join("edge.toml"), config).unwrap();
        let config = folder.0.join("edge.toml");
        Self { gateway: Gateway::start(&config), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.0.join(name).to_str().unwrap().to_owned()
    }

    fn arguments(&self, kind: &str, token: &str, target: &str) -> Vec<String> {
        [self.proxy_arguments(kind, token), vec![target.to_owned()]].concat()
    }

    fn proxy_arguments(&self, kind: &str, token: &str) -> Vec<String> {
        let (proxy, ca, token) = (self.gateway.address.to_string(), self.path("cert.pem"), self.path(token));
        let arguments = ["masque", kind, "--listen", "127.0.0.1:0", "--json", "--proxy", &proxy, "--ca", &ca];
        arguments.into_iter().chain(["--token-file", &token]).map(str::to_owned).collect()
    }
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// RFC 9298 §3.4 SHALL-1, SHALL-2, RFC 9298 §6 SHOULD-2
#[test]
fn programs_speak_udp_through_the_proxy() {
    let edge = Edge::start("udp", "");
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(LIMIT)).unwrap();
    let address = target.local_addr().unwrap().to_string();
    let service = Service::start(&borrowed(&edge.arguments("udp", "token", &address)));
    let listening = service.address().to_owned();
    let mut buffer = vec![0; 65_536];
    // Two programs, each with a socket of its own beyond the proxy.
    let programs = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut sources = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        program.set_read_timeout(Some(LIMIT)).unwrap();
        program.connect(&listening).unwrap();
        for size in [1, 512, 1_200] {
            let payload = vec![number as u8; size];
            program.send(&payload).unwrap();
            let (length, source) = target.recv_from(&mut buffer).unwrap();
            assert!(buffer[..length] == payload);
            sources.push(source);
            target.send_to(&payload, source).unwrap();
            let length = program.recv(&mut buffer).unwrap();
            assert!(buffer[..length] == payload);
        }
    }
    sources.dedup();
    assert_eq!(sources.len(), 2);
    let (code, lines) = service.interrupt();
    assert_eq!(code, Some(0));
    assert_eq!(lines.iter().filter(|line| line["event"] == "closed").count(), 2, "{lines:?}");
    let total = lines.last().unwrap();
    assert_eq!((&total["event"], &total["counts"]["up_datagrams"]), (&"total".into(), &6.into()), "{total}");
    assert_eq!(total["counts"]["down_bytes"], 2 * 1_713, "{total}");
}

/// A server that answers in capitals.
fn capitals() -> SocketAddr {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in target.incoming() {
            let mut stream = stream.unwrap();
            let mut content = Vec::new();
            if stream.read_to_end(&mut content).is_ok() {
                let _ = stream.write_all(&content.to_ascii_uppercase());
            }
        }
    });
    address
}

#[test]
fn connections_go_through_the_proxy() {
    let edge = Edge::start("tcp", "");
    let address = capitals().to_string();
    let service = Service::start(&borrowed(&edge.arguments("tcp", "token", &address)));
    for size in [0, 10, 300_000] {
        let mut stream = TcpStream::connect(service.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&vec![b'a'; size]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == vec![b'A'; size], "{} of {size} bytes", back.len());
    }
    let (code, lines) = service.interrupt();
    assert_eq!((code, &lines.last().unwrap()["connections"]), (Some(0), &3.into()), "{lines:?}");
}

/// RFC 9114 §4.4
#[test]
fn a_target_that_resets_resets_the_program() {
    let edge = Edge::start("target-reset", "");
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    let arguments = [edge.arguments("tcp", "token", &address), vec!["--http3".to_owned()]].concat();
    let service = Service::start(&borrowed(&arguments));
    let mut program = TcpStream::connect(service.address()).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut stream, _) = target.accept().unwrap();
    // The tunnel is open when its first byte arrives.
    program.write_all(b"x").unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    let error = program.read_exact(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let (_, lines) = service.interrupt();
    let closed = lines.iter().find(|line| line["event"] == "closed").unwrap();
    assert!(closed["reason"].as_str().unwrap().contains("code 0x10f"), "{closed}");
}

/// RFC 9298 §3.1 MUST-8, RFC 9298 §3.5 MUST-1
#[test]
fn refusals_are_told_with_advice() {
    let edge = Edge::start("refused", "");
    private(Path::new(&edge.path("other")), "fedcba9876543210");
    for (target, token, message, hint) in [
        ("127.0.0.1:25", "token", "403", "rules of the proxy"),
        ("10.0.0.1:53", "token", "the address of the target is prohibited", "rules of the proxy"),
        ("127.0.0.1:53", "other", "401", "token"),
    ] {
        let output = run(&borrowed(&edge.arguments("udp", token, target)));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        let (error, advice) = said.split_once("\nhint: ").expect("there is advice");
        assert!(error.starts_with("error: ") && error.contains(message) && advice.contains(hint), "{said}");
    }
}

#[test]
fn wrong_requests_are_told() {
    let template = "https://proxy.example/x{+target_host,target_port}";
    for (proxy, target, expected) in [
        (template, "a.example:53", "target_host,target_port"),
        ("http://proxy.example/{target_host}/{target_port}", "a.example:53", "template"),
        ("proxy.example", "a.example", "localhost:4433"),
    ] {
        let arguments = ["masque", "udp", "--proxy", proxy, "--listen", "127.0.0.1:0", target];
        let (message, hint) = refused(&arguments);
        assert!(hint.contains(expected), "{proxy}: {message}: {hint}");
    }
    let arguments =
        ["masque", "tcp", "--proxy", "a", "--listen", "127.0.0.1:0", "--token-file", "/nowhere", "a.example:80"];
    assert!(refused(&arguments).1.contains("--token-file"));
}
