//! Tunnels to targets that clients name: CONNECT-UDP over HTTP/3 here, over HTTP/2 and HTTP/1.1 and CONNECT in `streams`, who is refused
//! in `refused`, tunnels for many peers in `bound`.

mod bound;
mod refused;
mod streams;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use h3_quic::{
    Datagrams, Protocol,
    capsule::{self, Capsules},
};
use http::{Request, Response};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use tokio::net::UdpSocket;

use crate::site::{LIMIT, Site, pattern, until, within};

/// A proxy to loopback.
fn route(more: &str) -> String {
    format!("[[route]]\npath = \"/udp\"\n[route.proxy]\nopen = true\ntcp = true\nallow = \"127.0.0.1\"\n{more}\n")
}

/// Sends back what comes; the task ends with the test.
async fn echo() -> SocketAddr {
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

fn uri(target: SocketAddr) -> String {
    format!("https://localhost/udp/{}/{}/", target.ip(), target.port())
}

fn connect(uri: &str) -> http::request::Builder {
    Request::connect(uri).extension(Protocol::from_static("connect-udp")).header("capsule-protocol", "?1")
}

fn proxy_status<B>(response: &Response<B>) -> String {
    response.headers().get("proxy-status").map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

/// Waits for the line of the access log whose `field` begins with `value`.
async fn line_with(site: &Site, field: &str, value: &str) -> serde_json::Value {
    let log = site.directory.0.join("access.log");
    let begun = std::time::Instant::now();
    loop {
        let text = crate::site::read(&log);
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let found = lines.into_iter().find(|line| line[field].as_str().is_some_and(|said| said.starts_with(value)));
        if let Some(line) = found {
            return line;
        }
        assert!(begun.elapsed() < LIMIT, "no line has {field} = {value}: {text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A tunnel over HTTP/3.
struct Tunnel {
    say: Option<Sender<Bytes, std::io::Error>>,
    heard: h3_quic::ResponseBody,
    datagrams: Datagrams,
}

impl Tunnel {
    async fn open(h3: &mut h3_quic::client::SendRequest, uri: &str) -> Self {
        let (say, body) = Channel::new(1);
        let response = within(h3.send(connect(uri).body(body).unwrap())).await.unwrap();
        assert_eq!(response.status(), 200, "{:?}", response.headers());
        assert_eq!(response.headers()["capsule-protocol"], "?1");
        let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
        Self { say: Some(say), heard: response.into_body(), datagrams }
    }

    /// Sends a payload repeatedly until something comes back: datagrams may be lost. What comes back is an HTTP datagram.
    async fn exchange(&mut self, payload: &[u8]) -> Vec<u8> {
        let datagram = [&[0], payload].concat();
        let begun = std::time::Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "nothing comes back");
            let _ = self.datagrams.send(&datagram);
            let first = tokio::time::timeout(Duration::from_secs(1), self.datagrams.recv()).await;
            if let Ok(Some(back)) = first {
                // Copies of former attempts are no answers to later ones.
                tokio::time::sleep(Duration::from_millis(20)).await;
                while self.datagrams.try_recv().is_some() {}
                return back.to_vec();
            }
        }
    }

    /// Waits until the end of the stream; says whether it is a clean one.
    async fn ended(&mut self) -> bool {
        loop {
            match within(self.heard.frame()).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(_)) => {}
            }
        }
    }
}

/// RFC 9298 §3.1 MUST-5, RFC 9298 §3.5 SHALL-1, SHALL-2, SHALL-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_over_http3() {
    let target = echo().await;
    let site = Site::start("masque-h3", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Tunnel::open(&mut h3, &uri(target)).await;
    // As small as it can be, a query of DNS, and the largest that the packets of the beginning hold.
    for size in [0, 1, 40, 512, 1_000] {
        let payload = pattern(size);
        assert_eq!(tunnel.exchange(&payload).await, [&[0], &payload[..]].concat(), "{size}");
    }
    // Other contexts are dropped and counted, and the tunnel continues.
    tunnel.datagrams.send(b"\x02other context").unwrap();
    tunnel.datagrams.send(b"").unwrap();
    let unknown = "tiderace_edge_tunnel_datagrams_dropped_total{direction=\"up\",reason=\"unknown-context\"}";
    until(|| site.figure(unknown), 2.0).await;
    assert_eq!(tunnel.exchange(b"still there").await, b"\0still there");
    assert_eq!(site.figure("tiderace_edge_tunnels{kind=\"udp\"}"), 1.0);
    // The end of the client's stream is the end of the tunnel.
    tunnel.say = None;
    assert!(tunnel.ended().await);
    until(|| site.figure("tiderace_edge_tunnels{kind=\"udp\"}"), 0.0).await;
    let line = line_with(&site, "target", "127.0.0.1").await;
    assert_eq!(
        (line["target"].as_str(), line["reason"].as_str()),
        (Some(&*target.to_string()), Some("complete")),
        "{line}"
    );
    assert!(line["bytes"].as_u64().unwrap() >= 1_553 && line["datagrams_up"].as_u64().unwrap() >= 6, "{line}");
    assert_eq!(line["datagrams_dropped"], 2, "{line}");
}

/// RFC 9298 §6.1 SHOULD NOT-1: what a QUIC connection inside needs always gets through; what is larger is dropped where it does not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_that_fit_into_no_datagram() {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let site = Site::start("masque-mtu", &route(""));
    // Packets of 1,200 bytes for ever: no payload of 1,200 bytes fits into one.
    let profile = tiderace::Profile { max_mtu: 1_200, ..crate::site::patient() };
    let (_endpoint, connection) = site.quic_with(b"h3", profile).await.unwrap();
    let mut h3 = h3_quic::client::begin(connection).await.unwrap();
    let mut tunnel = Tunnel::open(&mut h3, &uri(target.local_addr().unwrap())).await;
    tunnel.exchange_one(&target).await;
    assert!(tunnel.datagrams.max_size().is_some_and(|max| max < 1_200));
    // From the client, as a capsule in pieces.
    let mut capsule = Vec::new();
    capsule::write_parts(&mut capsule, capsule::DATAGRAM, &[&[0], &pattern(1_200)]);
    let say = tunnel.say.as_mut().unwrap();
    for piece in [&capsule[..1], &capsule[1..700], &capsule[700..]] {
        say.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    let mut buffer = vec![0; 2_000];
    let (length, proxy) = within(target.recv_from(&mut buffer)).await.unwrap();
    assert!(buffer[..length] == pattern(1_200));
    // An unknown capsule, whatever its length, is skipped.
    let mut unknown = Vec::new();
    capsule::write(&mut unknown, 0x29, &[7; 200_000]);
    unknown.extend(&capsule);
    say.send_data(unknown.into()).await.unwrap();
    let (length, _) = within(target.recv_from(&mut buffer)).await.unwrap();
    assert!(buffer[..length] == pattern(1_200));
    // To the client: it can receive packets as large as the path allows, which the gateway discovers; so the size is one beyond all.
    target.send_to(&pattern(9_000), proxy).await.unwrap();
    let dropped = "tiderace_edge_tunnel_datagrams_dropped_total{direction=\"down\",reason=\"too-large\"}";
    until(|| site.figure(dropped), 1.0).await;
    target.send_to(&pattern(1_200), proxy).await.unwrap();
    let expected = [&[0], &pattern(1_200)[..]].concat();
    let mut capsules = Capsules::new(2_000);
    let got = loop {
        tokio::select! {
            datagram = within(tunnel.datagrams.recv()) => break datagram.unwrap(),
            frame = within(tunnel.heard.frame()) => {
                capsules.push(&frame.unwrap().unwrap().into_data().unwrap());
                if let Some(capsule) = capsules.take().unwrap() {
                    break capsule.value;
                }
            }
        }
    };
    assert!(got == expected);
}

/// The first flight of a server inside: the packets of the path are still small, and all of it comes in capsules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_payloads_of_a_target_all_arrive() {
    const FLIGHT: usize = 32;
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let site = Site::start("masque-flight", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Tunnel::open(&mut h3, &uri(target.local_addr().unwrap())).await;
    tunnel.datagrams.send(b"\x00go").unwrap();
    let (_, proxy) = within(target.recv_from(&mut [0; 10])).await.unwrap();
    for _ in 0..FLIGHT {
        target.send_to(&pattern(1_200), proxy).await.unwrap();
    }
    let (mut capsules, mut in_capsules, mut in_datagrams) = (Capsules::new(2_000), 0, 0);
    while in_capsules + in_datagrams < FLIGHT {
        tokio::select! {
            datagram = within(tunnel.datagrams.recv()) => in_datagrams += usize::from(datagram.unwrap().len() == 1_201),
            frame = within(tunnel.heard.frame()) => {
                capsules.push(&frame.unwrap().unwrap().into_data().unwrap());
                while let Some(capsule) = capsules.take().unwrap() {
                    assert!(capsule.value == [&[0], &pattern(1_200)[..]].concat());
                    in_capsules += 1;
                }
            }
        }
    }
    println!("{in_capsules} in capsules, {in_datagrams} in datagrams");
}

impl Tunnel {
    /// Sends one small payload until `target` has it.
    async fn exchange_one(&self, target: &UdpSocket) {
        let mut buffer = [0; 100];
        loop {
            self.datagrams.send(b"\0hello").unwrap();
            if let Ok(got) = tokio::time::timeout(Duration::from_secs(1), target.recv_from(&mut buffer)).await {
                assert_eq!(&buffer[..got.unwrap().0], b"hello");
                return;
            }
        }
    }
}

/// RFC 9298 §5; RFC 9297 §3.3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capsules_that_are_too_long_or_break_off_end_the_tunnel() {
    let target = echo().await;
    let site = Site::start("masque-capsules", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut too_long = Vec::new();
    capsule::write(&mut too_long, capsule::DATAGRAM, &vec![0; 65_529]);
    let endless = [&[0][..], &[0xff; 8]].concat();
    for (bytes, ends) in [(too_long, false), (endless, false), (vec![0, 5, 0, 1], true), (vec![0x29, 0x40], true)] {
        let mut tunnel = Tunnel::open(&mut h3, &uri(target)).await;
        tunnel.say.as_mut().unwrap().send_data(bytes.clone().into()).await.unwrap();
        if ends {
            tunnel.say = None;
        }
        assert!(!tunnel.ended().await, "{} bytes", bytes.len());
    }
    // The largest that UDP can have is too large for the next hop at most, and no error.
    let mut largest = Vec::new();
    capsule::write(&mut largest, capsule::DATAGRAM, &vec![0; 65_528]);
    let mut tunnel = Tunnel::open(&mut h3, &uri(target)).await;
    tunnel.say.as_mut().unwrap().send_data(largest.into()).await.unwrap();
    assert_eq!(tunnel.exchange(b"goes on").await, b"\0goes on");
}

/// A flood of datagrams to a target that reads nothing: what the sockets hold is what is held, the rest is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_to_a_target_that_reads_nothing_holds_nothing() {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let site = Site::start("masque-flood", &route("rate-per-client = \"100 KiB\""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Tunnel::open(&mut h3, &uri(target.local_addr().unwrap())).await;
    let datagram = [0; 1_000];
    let dropped = "tiderace_edge_tunnel_datagrams_dropped_total{direction=\"up\",reason=\"rate\"}";
    let begun = std::time::Instant::now();
    // Until the limit of the client is met; the gateway answers others meanwhile.
    while site.figure(dropped) < 100.0 {
        assert!(begun.elapsed() < LIMIT, "nothing is dropped");
        for _ in 0..200 {
            let _ = tunnel.datagrams.send(&datagram);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(site.h1().await.send_request(crate::site::get1("/nowhere")).await.unwrap().status(), 404);
    let sent = site.figure("tiderace_edge_tunnel_bytes_total{kind=\"udp\",direction=\"up\"}");
    let most = 102_400.0 * (1.0 + begun.elapsed().as_secs_f64());
    assert!(sent <= most, "{sent} bytes of {most} at most");
    tunnel.say = None;
    assert!(tunnel.ended().await);
}

/// RFC 9298 §3.1 MUST-6: when the system says that nobody is there, the stream is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_not_there_ends_the_tunnel() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let site = Site::start("masque-gone", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Tunnel::open(&mut h3, &uri(gone)).await;
    let datagrams = tunnel.datagrams.clone();
    let saying = async {
        loop {
            let _ = datagrams.send(b"\0anybody there?");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        is_clean = tunnel.ended() => assert!(is_clean),
        () = saying => {}
    }
    let line = line_with(&site, "target", "127.0.0.1").await;
    assert_eq!((line["reason"].as_str(), line["ended_by"].as_str()), (Some("unreachable"), Some("back_end")), "{line}");
}

/// A connection of QUIC through the proxy: packets of 1,200 bytes from the first one on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_through_the_proxy() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let identity =
        tiderace::Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = tiderace::RustlsServer::builder().identity(identity).alpn("inner").build().unwrap();
    let config = tiderace::ServerConfig::new(Arc::new(tls), Arc::new(crate::site::patient()));
    let server = tiderace::Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let inner = server.local_addr();
    tokio::spawn(async move {
        let connection = server.accept().await.unwrap();
        let (mut send, mut recv) = connection.accept_bi().await.unwrap();
        let content = recv.read_to_end(1 << 20).await.unwrap();
        send.write_all(&content).await.unwrap();
        send.finish().unwrap();
        connection.closed().await;
    });
    let site = Site::start("masque-quic", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let tunnel = Tunnel::open(&mut h3, &uri(inner)).await;
    // A socket of this machine leads into the tunnel, as `tiderace masque udp` has it.
    let local = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let listening = local.local_addr().unwrap();
    let carrying = tokio::spawn(carry(local, tunnel));
    let client = tiderace::RustlsClient::builder().roots([made.cert.der().to_vec()]).alpn("inner").build().unwrap();
    let config = tiderace::ClientConfig::new(Arc::new(client), Arc::new(crate::site::patient()));
    let endpoint = tiderace::Endpoint::client_for(listening).unwrap();
    let connection = within(endpoint.connect(&config, listening, "localhost").unwrap()).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let content = pattern(300_000);
    send.write_all(&content).await.unwrap();
    send.finish().unwrap();
    let back = within(recv.read_to_end(1 << 20)).await.unwrap();
    assert!(back == content);
    connection.close(0, b"");
    carrying.abort();
}

/// Carries datagrams between a socket and a tunnel; what does not fit into a datagram goes as a capsule.
async fn carry(local: UdpSocket, mut tunnel: Tunnel) {
    let mut buffer = vec![0; 65_536];
    let mut peer = None;
    let mut capsules = Capsules::only(capsule::DATAGRAM, 70_000);
    loop {
        tokio::select! {
            received = local.recv_from(&mut buffer) => {
                let (length, from) = received.unwrap();
                peer = Some(from);
                if tunnel.datagrams.send_parts(&[&[0], &buffer[..length]]).is_err() && length <= 1_200 {
                    let mut out = Vec::new();
                    capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[0], &buffer[..length]]);
                    tunnel.say.as_mut().unwrap().send_data(out.into()).await.unwrap();
                }
            }
            Some(datagram) = tunnel.datagrams.recv() => {
                local.send_to(&datagram[1..], peer.unwrap()).await.unwrap();
            }
            frame = tunnel.heard.frame() => {
                let Some(Ok(frame)) = frame else { return };
                capsules.push(&frame.into_data().unwrap());
                while let Some(capsule) = capsules.take().unwrap() {
                    local.send_to(&capsule.value[1..], peer.unwrap()).await.unwrap();
                }
            }
        }
    }
}
