//! Sessions of WebTransport to back ends: their streams and datagrams here, those to back ends that speak WebTransport in `onward`, who gets none
//! in `refused`, floods in `limits`, sessions without end in `churn`, their ends
//! in `ends`, reloads and stops in `drains`.

mod churn;
mod drains;
mod ends;
mod limits;
mod onward;
mod page;
mod refused;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::Request;
use tiderace::{Endpoint, Profile, transport::streams::StreamsConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket, UnixListener},
    task::JoinSet,
};
use webtransport::{Client, Config, ConnectError, Limits, ReadError, Session, WriteError};

use crate::site::{LIMIT, Site, pattern, until, within};

const URI: &str = "https://localhost/session";

/// A route with sessions at `/session`.
fn route(more: &str) -> String {
    format!("[[route]]\npath = \"/session\"\n[route.webtransport]\norigins = \"https://www.example.org\"\n{more}\n")
}

/// A route whose streams go to this address.
fn to(address: SocketAddr, more: &str) -> String {
    route(&format!("to = \"tcp://{address}\"\n{more}"))
}

/// A listener of a back end, and its address.
async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A back end that sends back what comes.
async fn echo() -> SocketAddr {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

/// A back end over UDP that sends back what comes.
async fn echo_udp() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    });
    address
}

/// Settings of a browser, which has no flow control of sessions.
fn browser() -> Config {
    Config { limits: Limits::NONE, ..Config::default() }
}

fn profile() -> Profile {
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    Profile { streams, ..crate::site::patient() }
}

/// A client with a connection of its own.
async fn client(site: &Site, config: Config) -> (Endpoint, Client) {
    let (endpoint, connection) = site.quic_with(b"h3", profile()).await.unwrap();
    (endpoint, Client::begin(connection, config).await.unwrap())
}

async fn begin(client: &mut Client) -> Result<Session, ConnectError> {
    within(client.connect(Request::get(URI).body(()).unwrap(), &[])).await
}

/// A session on a connection of its own.
async fn session(site: &Site) -> (Endpoint, Session) {
    let (endpoint, mut client) = client(site, Config::default()).await;
    let session = begin(&mut client).await.unwrap();
    (endpoint, session)
}

/// Waits for the line of the access log about a session, one of those whose `field` is `value`.
async fn line_with(site: &Site, field: &str, value: &str) -> serde_json::Value {
    let log = site.directory.0.join("access.log");
    let begun = std::time::Instant::now();
    loop {
        let text = crate::site::read(&log);
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        if let Some(line) = lines.find(|line| line[field].as_str() == Some(value)) {
            return line;
        }
        assert!(begun.elapsed() < LIMIT, "no line has {field} = {value}: {text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn open_sessions(site: &Site) -> f64 {
    site.figure("tiderace_edge_tunnels{kind=\"webtransport\"}")
}

fn streams(site: &Site, result: &str) -> f64 {
    site.figure(&format!("tiderace_edge_streams_total{{protocol=\"webtransport\",result=\"{result}\"}}"))
}

/// Sends `data` on a stream of its own and compares every byte of what comes back.
async fn exchange(session: Session, data: Bytes) {
    let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
    let expected = data.clone();
    let sending = async move {
        send.write_chunk(data).await.unwrap();
        send.finish().unwrap();
    };
    let receiving = async {
        let back = recv.read_to_end(expected.len() + 1).await.unwrap();
        assert!(back == expected, "{} bytes of {} came back, or others", back.len(), expected.len());
    };
    within(async { tokio::join!(sending, receiving) }).await;
}

/// Sizes of streams: none, one, around a read of the gateway, and beyond all windows.
fn size(number: usize) -> usize {
    match number % 10 {
        0 => 0,
        1 => 1,
        2 => 16 * 1024 - 1,
        3 => 16 * 1024,
        4 => 16 * 1024 + 1,
        9 => 1_000_000 + number,
        n => n * 7_919 + number,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_go_to_tcp_and_come_back() {
    let back_end = echo().await;
    let site = Site::start("wt-streams", &to(back_end, ""));
    let (_endpoint, session) = session(&site).await;
    assert!(session.has_flow_control());
    let mut exchanges = JoinSet::new();
    for number in 0..100 {
        let data = pattern(size(number) + number).slice(number..);
        exchanges.spawn(exchange(session.clone(), data));
    }
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
    until(|| streams(&site, "completed"), 100.0).await;
    println!("measured streams whose bytes came back from TCP: 100");
    assert_eq!(open_sessions(&site), 1.0);
    session.close(0, "");
    until(|| open_sessions(&site), 0.0).await;
    let line = line_with(&site, "path", "/session").await;
    let bytes: usize = (0..100).map(size).sum();
    assert_eq!((line["status"].as_u64(), line["reason"].as_str()), (Some(200), Some("complete")), "{line}");
    assert_eq!((line["bytes"].as_u64(), line["bytes_up"].as_u64()), (Some(bytes as u64), Some(bytes as u64)), "{line}");
    assert_eq!((line["streams"].as_u64(), line["error"].as_str()), (Some(100), None), "{line}");
    assert_eq!(line["target"].as_str(), Some(&*format!("tcp://{back_end}")), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_has_streams_too() {
    let back_end = echo().await;
    let site = Site::start("wt-browser", &to(back_end, ""));
    let (_endpoint, mut client) = client(&site, browser()).await;
    let page = Request::get(URI).header("origin", "https://www.example.org").body(()).unwrap();
    let session = within(client.connect(page, &[])).await.unwrap();
    assert!(!session.has_flow_control());
    let mut exchanges: JoinSet<_> = (0..50).map(|number| exchange(session.clone(), pattern(size(number)))).collect();
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_datagrams_go_to_udp_and_come_back() {
    let back_end = echo_udp().await;
    let site = Site::start("wt-datagrams", &route(&format!("datagrams-to = \"udp://{back_end}\"")));
    let (_endpoint, session) = session(&site).await;
    // Sizes from none to all that a packet of the beginning holds.
    let payload = |number: u32| {
        let content = pattern((number as usize * 37) % 1_000);
        if number == 500 { Vec::new() } else { [&number.to_be_bytes()[..], &content].concat() }
    };
    let mut missing: std::collections::BTreeSet<Vec<u8>> = (0..1_000).map(payload).collect();
    for window in (0..1_000).collect::<Vec<u32>>().chunks(10) {
        for number in window {
            session.send_datagram(&payload(*number)).unwrap();
        }
        for _ in window {
            let back = within(session.read_datagram()).await.unwrap();
            assert!(missing.remove(&back[..]), "{} bytes that were not sent, or twice", back.len());
        }
    }
    assert!(missing.is_empty());
    println!("measured datagrams that came back from UDP: 1000");
    for direction in ["up", "down"] {
        let line = format!("tiderace_edge_tunnel_datagrams_total{{kind=\"webtransport\",direction=\"{direction}\"}}");
        assert_eq!(site.figure(&line), 1_000.0);
    }
    // Nothing takes streams here, and the refusal may come before the data is written.
    let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
    let written = send.write_all(b"x").await;
    assert!(matches!(written, Ok(()) | Err(WriteError::Stopped(Some(1)))), "{written:?}");
    assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Reset(Some(1))));
    session.close(0, "");
    let line = line_with(&site, "path", "/session").await;
    assert_eq!((line["datagrams_up"].as_u64(), line["datagrams_down"].as_u64()), (Some(1_000), Some(1_000)), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_get_the_address_of_the_client_and_the_protocol() {
    let directory = crate::site::Directory::new("wt-unix-socket");
    let path = directory.0.join("back-end");
    let back_end = UnixListener::bind(&path).unwrap();
    let section =
        format!("to = \"unix:{}\"\nproxy-protocol = true\nprotocols = [\"chat-1\", \"chat-2\"]", path.display());
    let site = Site::start("wt-unix", &route(&section));
    let (endpoint, mut client) = client(&site, Config::default()).await;
    let request = || Request::get(URI).body(()).unwrap();
    let session = within(client.connect(request(), &["chat-3", "chat-2", "chat-1"])).await.unwrap();
    assert_eq!(session.protocol(), Some("chat-2"), "the first of the client's that the route has");
    let (mut send, _recv) = session.open_bi().await.unwrap();
    send.write_all(b"hello").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut head = [0; 16];
    accepted.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    accepted.read_exact(&mut rest).await.unwrap();
    assert_eq!(rest[..4], [127, 0, 0, 1]);
    assert_eq!(rest[8..10], endpoint.local_addr().port().to_be_bytes());
    assert_eq!(rest[12..], *b"\x01\x00\x06chat-2\x02\x00\x09localhost");
    let mut hello = [0; 5];
    accepted.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello, *b"hello");
    // None of these is the route's.
    let refused = within(client.connect(request(), &["chat-3"])).await;
    assert!(matches!(refused, Err(ConnectError::Refused(http::StatusCode::BAD_REQUEST))), "{refused:?}");
}

/// Ordinary requests share the connection with sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_beside_a_session() {
    let pages = crate::site::BackEnd::start(crate::site::mirror).await;
    let back_end = echo().await;
    let site = Site::start("wt-beside", &format!("[[route]]\nto = \"{}\"\n{}", pages.url(), to(back_end, "")));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let session = begin(&mut client).await.unwrap();
    let mut requests = client.requests();
    for _ in 0..10 {
        let response = within(requests.send(crate::site::get("https://localhost/page"))).await.unwrap();
        assert_eq!(response.status(), 200);
        exchange(session.clone(), pattern(100_000)).await;
    }
}

/// Resets a connection over TCP.
fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}
