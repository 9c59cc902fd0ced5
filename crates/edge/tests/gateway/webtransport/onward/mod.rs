//! Sessions to back ends that speak WebTransport: their streams and datagrams here, their ends in `ends`, streams that wait for memory in
//! `memory`, who gets none in `refused`.

mod ends;
mod memory;
mod refused;

use std::sync::Arc;

use http::request::Parts;
use tiderace::Connection;
use tokio::{sync::mpsc, task::JoinHandle};
use webtransport::{Origins, SendStream, server};

use super::*;
use crate::{
    quic_back_ends::origin::{certified, gateway, listen},
    site::Directory,
};

/// A back end that accepts sessions.
struct Host {
    address: SocketAddr,
    certificate: String,
    begun: mpsc::UnboundedReceiver<(Session, Arc<Parts>, Connection)>,
    task: JoinHandle<()>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Host {
    /// One that hands sessions over, with the second protocol that is offered.
    fn start(config: Config, profile: Profile) -> Self {
        let made = certified();
        let endpoint = listen("127.0.0.1:0".parse().unwrap(), &made, profile);
        let (address, certificate) = (endpoint.local_addr(), made.cert.pem());
        let (sessions, begun) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(connection) = endpoint.accept().await {
                let (sessions, config, quic) = (sessions.clone(), config.clone(), connection.clone());
                let handler = move |request: server::SessionRequest| {
                    let (sessions, quic) = (sessions.clone(), quic.clone());
                    async move {
                        let head = Arc::new(request.head().clone());
                        let protocol = request.protocols().len().checked_sub(1).map(|last| last.min(1));
                        let (session, response) = request.accept(protocol);
                        sessions.send((session, head, quic)).unwrap();
                        response
                    }
                };
                let options = h3_quic::server::Options::default();
                tokio::spawn(server::serve(connection, config, options, std::future::pending(), handler));
            }
        });
        Self { address, certificate, begun, task }
    }

    fn open() -> Self {
        Self::start(Config { origins: Origins::Any, ..Config::default() }, profile())
    }

    async fn session(&mut self) -> Session {
        within(self.begun.recv()).await.unwrap().0
    }
}

/// A route to a back end that speaks WebTransport.
fn onward(address: SocketAddr, more: &str) -> String {
    let tls = "tls = { roots = 'ROOTS', name = 'app.internal' }";
    let section = "[route.webtransport]\norigins = \"https://www.example.org\"";
    format!("[[route]]\npath = \"/session\"\n{tls}\n{section}\nto = \"h3://{address}\"\n{more}\n")
}

/// A gateway in front of a back end.
fn in_front(name: &str, host: &Host, more: &str) -> (Site, Directory) {
    gateway(name, &host.certificate, &onward(host.address, more))
}

/// Both ends of a session through a gateway.
struct Joined {
    host: Host,
    site: Site,
    client: Session,
    back_end: Session,
    _roots: Directory,
    endpoint: Endpoint,
}

async fn joined(name: &str, config: Config, more: &str) -> Joined {
    let mut host = Host::open();
    let (site, roots) = in_front(name, &host, more);
    let (endpoint, mut client) = client(&site, config).await;
    let (client, back_end) = tokio::join!(begin(&mut client), host.session());
    Joined { host, site, client: client.unwrap(), back_end, _roots: roots, endpoint }
}

/// Sends data on a stream, and compares what the other side reads.
async fn pass(mut send: SendStream, mut recv: webtransport::RecvStream, data: Bytes) {
    let expected = data.clone();
    let sending = async move {
        send.write_chunk(data).await.unwrap();
        send.finish().unwrap();
    };
    let receiving = async {
        let read = recv.read_to_end(expected.len() + 1).await.unwrap();
        assert!(read == expected, "{} bytes of {} came, or others", read.len(), expected.len());
    };
    within(async { tokio::join!(sending, receiving) }).await;
}

/// Streams of both kinds that `one` opens, with data both ways.
async fn streams_of(one: &Session, other: &Session, count: usize) {
    for number in 0..count {
        let ((send, recv), ()) = tokio::join!(async { within(one.open_bi()).await.unwrap() }, async {});
        let mut first = send;
        first.write_all(b"").await.unwrap();
        let (back, there) = within(other.accept_bi()).await.unwrap();
        let (up, down) = (pattern(size(number)), pattern(size(number + 5) + number).slice(number..));
        tokio::join!(pass(first, there, up), pass(back, recv, down));
        let send = within(one.open_uni()).await.unwrap();
        let recv = within(other.accept_uni()).await.unwrap();
        pass(send, recv, pattern(size(number + 3))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_both_sides_and_kinds_pass() {
    let Joined { site, client, back_end, .. } = &joined("wt-onward", Config::default(), "").await;
    assert!(client.has_flow_control() && back_end.has_flow_control());
    streams_of(client, back_end, 12).await;
    streams_of(back_end, client, 12).await;
    until(|| streams(site, "completed"), 48.0).await;
    client.close(0, "");
    let line = line_with(site, "path", "/session").await;
    let bytes = |number| size(number) + size(number + 3) + size(number + 5);
    let all: usize = (0..12).map(|number| 2 * bytes(number)).sum();
    assert_eq!(line["bytes"].as_u64().unwrap() + line["bytes_up"].as_u64().unwrap(), all as u64, "{line}");
    assert_eq!((line["streams"].as_u64(), line["reason"].as_str()), (Some(48), Some("complete")), "{line}");
    until(|| open_sessions(site), 0.0).await;
}

/// A browser has no flow control of sessions; the back end has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_browser_pass_and_those_beyond_the_limit_are_reset() {
    let joined = joined("wt-onward-browser", browser(), "streams-per-session = 8").await;
    let Joined { site, client, back_end, .. } = &joined;
    assert!(!client.has_flow_control() && back_end.has_flow_control());
    streams_of(client, back_end, 6).await;
    streams_of(back_end, client, 6).await;
    until(|| streams(site, "completed"), 24.0).await;
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(within(client.open_bi()).await.unwrap());
        open.push(within(back_end.accept_bi()).await.unwrap());
    }
    let (mut send, mut recv) = within(client.open_bi()).await.unwrap();
    assert_eq!(within(send.stopped()).await, WriteError::Stopped(Some(4)));
    assert_eq!(within(recv.read_chunk(1)).await, Err(ReadError::Reset(Some(4))));
    assert_eq!(streams(site, "excess"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_datagrams_pass_each_way() {
    let Joined { site, client, back_end, .. } = &joined("wt-onward-datagrams", Config::default(), "").await;
    for (one, other, direction) in [(client, back_end, "up"), (back_end, client, "down")] {
        let payload = |number: u32| [&number.to_be_bytes()[..], &pattern((number as usize * 37) % 1_000)].concat();
        let mut missing: std::collections::BTreeSet<Vec<u8>> = (0..1_000).map(payload).collect();
        for window in (0..1_000).collect::<Vec<u32>>().chunks(10) {
            for number in window {
                one.send_datagram(&payload(*number)).unwrap();
            }
            for _ in window {
                let came = within(other.read_datagram()).await.unwrap();
                assert!(missing.remove(&came[..]), "{} bytes that were not sent, or twice", came.len());
            }
        }
        let line = format!("tiderace_edge_tunnel_datagrams_total{{kind=\"webtransport\",direction=\"{direction}\"}}");
        assert_eq!(site.figure(&line), 1_000.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_back_end_gets_the_fields_of_the_request_and_chooses_the_protocol() {
    let mut host = Host::open();
    let more = "protocols = [\"chat-1\", \"chat-2\"]";
    let route = onward(host.address, more).replace("[route.web", "rewrite = \"/v2\"\n[route.web");
    let (site, _roots) = gateway("wt-onward-fields", &host.certificate, &route);
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let request = Request::get("https://localhost/session/room?a=b")
        .header("origin", "https://www.example.org")
        .header("cookie", "a=b")
        .header("x-forwarded-for", "192.0.2.1")
        .body(())
        .unwrap();
    let session = within(client.connect(request, &["chat-3", "chat-2", "chat-1"])).await.unwrap();
    // Of those that the gateway lets through the host takes the second.
    assert_eq!(session.protocol(), Some("chat-1"));
    let (there, head, _) = within(host.begun.recv()).await.unwrap();
    assert_eq!(there.protocol(), Some("chat-1"));
    let field = |name: &str| head.headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(field("origin"), ["https://www.example.org"]);
    assert_eq!(field("cookie"), ["a=b"]);
    assert_eq!(field("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(field("x-forwarded-host"), ["localhost"]);
    assert_eq!(field("wt-available-protocols"), ["\"chat-2\", \"chat-1\""]);
    assert_eq!(head.uri.path_and_query().unwrap(), "/v2/room?a=b");
    assert_eq!(head.uri.authority().unwrap().as_str(), host.address.to_string());
}

/// The back end reads nothing: the client is held up, and the gateway holds a bounded amount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_side_holds_the_other_up() {
    let Joined { client, back_end, .. } = &joined("wt-onward-slow", Config::default(), "").await;
    for (one, other) in [(client, back_end), (back_end, client)] {
        let mut send = within(one.open_uni()).await.unwrap();
        let mut recv = within(other.accept_uni()).await.unwrap();
        let data = pattern(64 * 1024);
        let mut written = 0;
        while tokio::time::timeout(Duration::from_millis(500), send.write_chunk(data.clone())).await.is_ok() {
            written += data.len();
            assert!(written < 16 << 20, "nothing holds the sender up");
        }
        // Another stream of the session has no credit either, and another session would: datagrams still pass.
        one.send_datagram(b"beside it").unwrap();
        assert_eq!(within(other.read_datagram()).await.unwrap(), "beside it");
        let mut read = 0;
        while read < written {
            read += within(recv.read_chunk(1 << 20)).await.unwrap().unwrap().len();
        }
        println!("measured bytes under way to a side that does not read: {written}");
    }
}

/// Client, gateway, gateway, back end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_pass_two_gateways() {
    let mut host = Host::open();
    let (behind, _roots) = in_front("wt-onward-behind", &host, "");
    let pem = crate::site::read(&behind.directory.0.join("cert.pem"));
    let route = onward(behind.address, "").replace("app.internal", "localhost");
    let (front, _more_roots) = gateway("wt-onward-front", &pem, &route);
    let (_endpoint, mut client) = client(&front, Config::default()).await;
    let page = Request::get(URI).header("origin", "https://www.example.org").body(()).unwrap();
    let (session, there) = tokio::join!(within(client.connect(page, &[])), host.session());
    let session = session.unwrap();
    streams_of(&session, &there, 6).await;
    streams_of(&there, &session, 6).await;
    session.send_datagram(b"up").unwrap();
    assert_eq!(within(there.read_datagram()).await.unwrap(), "up");
    there.drain();
    within(session.draining()).await;
    session.close(77, "good bye");
    let end = within(there.closed()).await;
    assert_eq!(end, webtransport::SessionEnd::ClosedByPeer { code: 77, reason: "good bye".to_owned() });
    // The second gateway checks the origin, too.
    let other = Request::get(URI).header("origin", "https://evil.example").body(()).unwrap();
    let refused = within(client.connect(other, &[])).await;
    assert!(matches!(refused, Err(ConnectError::Refused(http::StatusCode::FORBIDDEN))), "{refused:?}");
}
