//! Tunnels over HTTP/1.1 by hand: the request and its answer, and capsules about addresses, regular and malformed ones.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    sync::Arc,
};

use client::masque::connect_ip::{
    ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRequest, Prefix, ROUTE_ADVERTISEMENT, RequestedAddress,
    RouteAdvertisement,
};
use h3_quic::capsule::{self, Capsule, Capsules};
use rustls::{
    ClientConnection, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use super::{PROXY, folder};
use crate::LIMIT;

const PATH: &str = "/.well-known/masque/ip/*/*/";
const UPGRADE: &str = "connection: Upgrade\r\nupgrade: connect-ip\r\n";

/// Connection to the gateway behind an answer.
struct Stream {
    stream: StreamOwned<ClientConnection, TcpStream>,
    capsules: Capsules,
    /// Head of the answer.
    head: String,
}

impl Stream {
    /// Sends a request, and reads the head of the answer.
    fn ask(method: &str, path: &str, fields: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(folder().join("cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let socket = TcpStream::connect((PROXY, 443)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let tls = ClientConnection::new(Arc::new(config), ServerName::try_from(PROXY).unwrap()).unwrap();
        let mut stream = StreamOwned::new(tls, socket);
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {PROXY}\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        Self { stream, capsules: Capsules::new(100_000), head }
    }

    fn open() -> Self {
        let this = Self::ask("GET", PATH, &format!("{UPGRADE}capsule-protocol: ?1\r\n"));
        assert!(this.head.starts_with("http/1.1 101 "), "{}", this.head);
        this
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn send(&mut self, ty: u64, value: &[u8]) {
        let mut out = Vec::new();
        capsule::write(&mut out, ty, value);
        self.stream.write_all(&out).unwrap();
    }

    /// The next capsule; `None` when the gateway has ended the connection.
    fn next(&mut self) -> Option<Capsule> {
        loop {
            if let Some(capsule) = self.capsules.take().unwrap() {
                return Some(capsule);
            }
            let mut buffer = [0; 4_096];
            match self.stream.read(&mut buffer) {
                Ok(length @ 1..) => self.capsules.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the gateway is silent"),
                _ => return None,
            }
        }
    }

    fn assigned(&mut self) -> AddressAssign {
        let capsule = self.next().expect("the tunnel has ended");
        assert_eq!(capsule.ty, ADDRESS_ASSIGN);
        AddressAssign::parse(&capsule.value).unwrap()
    }
}

fn requests(list: &[(u64, &str)]) -> Vec<u8> {
    let requested = list
        .iter()
        .map(|(request_id, prefix)| RequestedAddress { request_id: *request_id, prefix: prefix.parse().unwrap() });
    AddressRequest(requested.collect()).encode()
}

pub(super) fn run() {
    the_answer_is_a_tunnel();
    each_request_has_its_answer();
    malformed_requests();
    malformed_capsules();
}

fn the_answer_is_a_tunnel() {
    let mut stream = Stream::open();
    for field in ["connection: upgrade", "upgrade: connect-ip", "capsule-protocol: ?1"] {
        assert_eq!(stream.head.matches(&format!("\r\n{field}\r\n")).count(), 1, "{field}: {}", stream.head);
    }
    let unasked = stream.assigned();
    assert!(unasked.0.iter().all(|entry| entry.request_id == 0) && unasked.prefixes().len() == 2, "{unasked:?}");
    let routes = stream.next().unwrap();
    assert_eq!(routes.ty, ROUTE_ADVERTISEMENT);
    assert_eq!(RouteAdvertisement::parse(&routes.value).unwrap().0.len(), 2);
}

fn each_request_has_its_answer() {
    let mut stream = Stream::open();
    let own = stream.assigned().prefixes();
    stream.next();
    let of = |is_v4: bool| own.iter().copied().find(|prefix| prefix.address().is_ipv4() == is_v4).unwrap();
    stream.send(ADDRESS_REQUEST, &requests(&[(7, "0.0.0.0/32"), (9, "0.0.0.0/24"), (8, "::/128")]));
    let entries = |assigned: AddressAssign| -> Vec<(u64, Prefix)> {
        assigned.0.iter().map(|entry| (entry.request_id, entry.prefix)).collect()
    };
    let refused = Prefix::of(IpAddr::from([0; 4]));
    assert_eq!(entries(stream.assigned()), [(7, of(true)), (9, refused), (8, of(false))]);
    stream.send(ADDRESS_REQUEST, &requests(&[(10, "0.0.0.0/32")]));
    assert_eq!(entries(stream.assigned()), [(10, of(true)), (0, of(false))], "no refusal comes twice");
}

fn malformed_requests() {
    for (method, path, fields) in [
        ("POST", PATH, format!("{UPGRADE}content-length: 0\r\n")),
        ("GET", PATH, "upgrade: connect-ip\r\n".to_owned()),
        ("GET", PATH, "connection: Upgrade\r\nupgrade: websocket\r\n".to_owned()),
        ("GET", PATH, String::new()),
        ("GET", "/.well-known/masque/ip/192.0.2.1%2F24/*/", UPGRADE.to_owned()),
        ("GET", "/.well-known/masque/ip/*/256/", UPGRADE.to_owned()),
        ("GET", "/.well-known/masque/ip/a%20b/*/", UPGRADE.to_owned()),
    ] {
        assert_eq!(Stream::ask(method, path, &fields).status(), "400", "{method} {path} {fields}");
    }
}

fn malformed_capsules() {
    let twice = [requests(&[(1, "::/128")]), requests(&[(1, "::/128")])];
    let malformed: [(&str, u64, Vec<Vec<u8>>); 8] = [
        ("a version", ADDRESS_ASSIGN, vec![vec![0, 5, 1, 2, 3, 4, 32]]),
        ("a prefix", ADDRESS_ASSIGN, vec![vec![0, 4, 1, 2, 3, 4, 33]]),
        ("no request", ADDRESS_REQUEST, vec![vec![]]),
        ("the ID 0", ADDRESS_REQUEST, vec![requests(&[(0, "::/128")])]),
        ("an ID twice", ADDRESS_REQUEST, twice.to_vec()),
        ("a range", ROUTE_ADVERTISEMENT, vec![vec![4, 1, 1, 1, 2, 1, 1, 1, 1, 0]]),
        ("the order", ROUTE_ADVERTISEMENT, vec![vec![4, 1, 1, 1, 2, 1, 1, 1, 2, 0, 4, 1, 1, 1, 1, 1, 1, 1, 1, 0]]),
        ("an overlap", ROUTE_ADVERTISEMENT, vec![vec![4, 1, 1, 1, 1, 1, 1, 1, 2, 0, 4, 1, 1, 1, 2, 1, 1, 1, 3, 17]]),
    ];
    for (what, ty, values) in malformed {
        let mut stream = Stream::open();
        stream.assigned();
        stream.next();
        for value in &values[..values.len() - 1] {
            stream.send(ty, value);
            stream.assigned();
        }
        stream.send(ty, &values[values.len() - 1]);
        assert_eq!(stream.next(), None, "{what}: the tunnel goes on");
    }
}
