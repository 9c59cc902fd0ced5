//! The client with a proxy of this test: what it sends, and what it does with capsules that break the rules and with a narrow path.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
};

use bytes::Bytes;
use client::masque::connect_ip::{
    ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRange, AddressRequest, AssignedAddress, ROUTE_ADVERTISEMENT,
    RequestedAddress, RouteAdvertisement,
};
use h3_quic::capsule::{self, Capsule, Capsules};
use http::{Request, Response};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use tiderace::{Endpoint, Identity, Profile, RustlsServer, ServerConfig};
use tokio::sync::mpsc;

use super::{Tunnel, folder};
use crate::{LIMIT, scratch::Program};

/// A request for a tunnel, which was answered with 200.
struct Asked {
    method: http::Method,
    protocol: String,
    path: String,
    content: h3_quic::RequestBody,
    answer: Sender<Bytes, std::io::Error>,
    capsules: Capsules,
}

impl Asked {
    async fn send(&mut self, ty: u64, value: &[u8]) {
        let mut out = Vec::new();
        capsule::write(&mut out, ty, value);
        self.answer.send_data(out.into()).await.unwrap();
    }

    /// The next capsule; `None` when the stream has ended, and an error when it was given up.
    async fn next(&mut self) -> Result<Option<Capsule>, h3_quic::Error> {
        loop {
            if let Some(capsule) = self.capsules.take()? {
                return Ok(Some(capsule));
            }
            match tokio::time::timeout(LIMIT, self.content.frame()).await.expect("the client is silent") {
                None => return Ok(None),
                Some(frame) => self.capsules.push(&frame?.into_data().unwrap()),
            }
        }
    }

    /// Takes the request for addresses, and assigns one of each version and a route.
    async fn assign(&mut self) -> AddressRequest {
        let capsule = self.next().await.unwrap().unwrap();
        assert_eq!(capsule.ty, ADDRESS_REQUEST);
        let request = AddressRequest::parse(&capsule.value).unwrap();
        let assigned = request.0.iter().map(|requested| AssignedAddress {
            request_id: requested.request_id,
            prefix: if requested.prefix.address().is_ipv4() { "10.99.0.2" } else { "fd00:99::2" }.parse().unwrap(),
        });
        self.send(ADDRESS_ASSIGN, &AddressAssign(assigned.collect()).encode()).await;
        let range = AddressRange::of("198.51.100.0/24".parse().unwrap(), 0);
        self.send(ROUTE_ADVERTISEMENT, &RouteAdvertisement::of([range]).encode()).await;
        request
    }
}

/// A proxy on loopback that accepts each request and leaves the rest to the test.
fn proxy() -> (SocketAddr, mpsc::UnboundedReceiver<Asked>) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder().join("own.pem"), made.cert.pem()).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
    let profile = Profile { idle_timeout: 2 * LIMIT, ..Profile::default() };
    let config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    let endpoint = Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let address = endpoint.local_addr();
    let (asked, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            let asked = asked.clone();
            let service = move |request: Request<h3_quic::RequestBody>| {
                let (answer, body) = Channel::<Bytes, std::io::Error>::new(4);
                let protocol = request.extensions().get::<h3_quic::Protocol>();
                let _ = asked.send(Asked {
                    method: request.method().clone(),
                    protocol: protocol.map_or_else(String::new, |protocol| protocol.as_str().to_owned()),
                    path: request.uri().path().to_owned(),
                    content: request.into_body(),
                    answer,
                    capsules: Capsules::new(100_000),
                });
                async move { Response::builder().header("capsule-protocol", "?1").body(body).unwrap() }
            };
            let options = h3_quic::server::Options::default();
            tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
        }
    });
    (address, requests)
}

fn client(proxy: SocketAddr, more: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["masque", "ip", "--json", "--http3", "--tun", "own", "--proxy", &proxy.to_string(), "--ca"]);
    command.arg(folder().join("own.pem")).args(more);
    Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
}

async fn next(requests: &mut mpsc::UnboundedReceiver<Asked>) -> Asked {
    tokio::time::timeout(LIMIT, requests.recv()).await.expect("no request").unwrap()
}

/// Exit code, and what the program said.
async fn ended(mut program: Program) -> (Option<i32>, String) {
    let ended = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.0.stderr.take().unwrap(), &mut said).unwrap();
        (program.0.wait().unwrap().code(), said)
    });
    tokio::time::timeout(LIMIT, ended).await.expect("the program goes on").unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(super) fn rules() {
    runtime().block_on(async {
        let (address, mut requests) = proxy();
        the_client_asks_and_answers(address, &mut requests).await;
        malformed_capsules(address, &mut requests).await;
    });
}

async fn the_client_asks_and_answers(address: SocketAddr, requests: &mut mpsc::UnboundedReceiver<Asked>) {
    let program = client(address, &[]);
    let mut asked = next(requests).await;
    assert_eq!((asked.method.as_str(), &*asked.protocol), ("CONNECT", "connect-ip"));
    assert_eq!(asked.path, "/.well-known/masque/ip/%2A/%2A/");
    let ids: Vec<u64> = asked.assign().await.0.iter().map(|requested| requested.request_id).collect();
    assert_eq!(ids, [1, 2], "an address of each version");
    let wanted = [(5, "10.0.0.0/8"), (6, "::/128"), (7, "0.0.0.0/32")];
    let wanted = wanted.map(|(request_id, prefix)| RequestedAddress { request_id, prefix: prefix.parse().unwrap() });
    let request = AddressRequest(wanted.to_vec());
    asked.send(ADDRESS_REQUEST, &request.encode()).await;
    let capsule = asked.next().await.unwrap().expect("the client has ended the tunnel");
    assert_eq!(capsule.ty, ADDRESS_ASSIGN);
    let expected: Vec<_> = wanted.iter().map(AssignedAddress::refused).collect();
    assert_eq!(AddressAssign::parse(&capsule.value).unwrap().0, expected);
    drop(program);
}

/// The stream is reset, and does not look complete.
async fn malformed_capsules(address: SocketAddr, requests: &mut mpsc::UnboundedReceiver<Asked>) {
    for (what, ty, value) in [
        ("a version", ADDRESS_ASSIGN, &[0, 5, 1, 2, 3, 4, 32][..]),
        ("no request", ADDRESS_REQUEST, &[]),
        ("a range", ROUTE_ADVERTISEMENT, &[4, 1, 1, 1, 2, 1, 1, 1, 1, 0]),
        ("an overlap", ROUTE_ADVERTISEMENT, &[4, 1, 1, 1, 1, 1, 1, 1, 2, 0, 4, 1, 1, 1, 2, 1, 1, 1, 3, 17]),
    ] {
        let program = client(address, &[]);
        let mut asked = next(requests).await;
        asked.assign().await;
        asked.send(ty, value).await;
        let end = asked.next().await;
        assert!(end.is_err(), "{what}: {end:?}");
        let (code, said) = ended(program).await;
        assert!(code == Some(1) && said.contains("breaks the rules of capsules"), "{what}: {code:?} {said}");
    }
}

pub(super) fn narrow() {
    for device in ["lo", "near"] {
        assert!(Command::new("ip").args(["link", "set", device, "mtu", "1300"]).status().unwrap().success());
    }
    // The gateway assigns no address of IPv6 where 1,280 bytes do not get through.
    let tunnel = Tunnel::start(&["--http3"]);
    let addresses = tunnel.opened["addresses"].as_array().unwrap();
    assert!(matches!(&addresses[..], [v4] if v4.as_str().unwrap().ends_with("/32")), "{addresses:?}");
    tunnel.end();
    // The client gives the tunnel of a proxy up that does.
    runtime().block_on(async {
        let (address, mut requests) = proxy();
        let program = client(address, &["--connect-within", "3"]);
        let mut asked = next(&mut requests).await;
        asked.assign().await;
        let end = asked.next().await;
        assert!(end.is_err(), "{end:?}");
        let (code, said) = ended(program).await;
        assert!(code == Some(1) && said.contains("IPv6 needs 1280"), "{code:?} {said}");
    });
}
