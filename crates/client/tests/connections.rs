//! Connections over several requests: kept, shared, resumed, lost, and closed.

mod site;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use site::{PATIENT, Site, client, content, read};
use tiderace::{EarlyData, Endpoint, Identity, Profile, RustlsServer, ServerConfig};
use tiderace_client::{Client, Evidence, Leg, Route, Trust, Verdict};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
    sync::oneshot,
};
use tower_service::Service;

/// Time limit for tickets, which come after the handshake.
const TICKETS: Duration = Duration::from_secs(1);
/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_tower_shares_connections() {
    let site = Site::new("tower", "");
    let mut client = client(&site.trust, PATIENT);
    let request = |url: &str| Request::get(url).body(Empty::<Bytes>::new()).unwrap();
    // Several at a time make one race.
    let asked: Vec<_> = (0..8).map(|_| tokio::spawn(client.call(request(&site.url)))).collect();
    let mut opened = 0;
    for asked in asked {
        let response = asked.await.unwrap().unwrap();
        let evidence = response.extensions().get::<Evidence>().unwrap().clone();
        assert_eq!((response.status(), evidence.protocol), (StatusCode::OK, "h3"));
        opened += u32::from(!evidence.reused);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    assert_eq!(opened, 1);
    // A request chooses its way by an extension; ways do not share connections.
    for reused in [false, true] {
        let mut tcp = request(&site.url);
        tcp.extensions_mut().insert(Route { only: Some(Leg::Tcp), ..Route::default() });
        let response = client.call(tcp).await.unwrap();
        let evidence = response.extensions().get::<Evidence>().unwrap();
        assert_eq!((evidence.protocol, evidence.reused), ("h2", reused));
    }
    client.close().await;
    let error = client.call(request("ftp://127.0.0.1/")).await.err().unwrap();
    assert!(error.to_string().contains("no http or https URL"), "{error}");
}

/// Begins to read a response, so that the windows grow.
async fn begin(
    client: &mut Client,
    request: Request<Empty<Bytes>>,
) -> UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let mut body = tokio::time::timeout(LIMIT, client.call(request)).await.expect("a response").unwrap().into_body();
    let mut bytes = 0;
    while bytes < 4 << 20 {
        let frame = tokio::time::timeout(LIMIT, body.frame()).await.expect("content").unwrap().unwrap();
        bytes += frame.into_data().unwrap().len();
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_nobody_reads_hold_up_no_other() {
    let site = Site::new("unread", "");
    site.add("large", 256 << 20);
    let request = |path: &str, only: Leg| {
        let mut request = Request::get(format!("{}{path}", site.url)).body(Empty::new()).unwrap();
        request.extensions_mut().insert(Route { only: Some(only), ..Route::default() });
        request
    };
    // Over HTTP/2 they leave room.
    let mut client = client(&site.trust, PATIENT);
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(begin(&mut client, request("large", Leg::Tcp)).await);
    }
    let response = tokio::time::timeout(LIMIT, client.call(request("", Leg::Tcp))).await.expect("a response").unwrap();
    assert!(response.extensions().get::<Evidence>().unwrap().reused);
    let content = tokio::time::timeout(LIMIT, response.into_body().collect()).await.expect("content").unwrap();
    assert_eq!(content.to_bytes(), "hello");
    // Over HTTP/3 another connection takes what comes once they fill the window. A request that comes sooner shares it and may wait.
    for _ in 0..3 {
        unread.push(begin(&mut client, request("large", Leg::Quic)).await);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "all requests share the connection");
            let fetched = async {
                let response = client.call(request("", Leg::Quic)).await.unwrap();
                let reused = response.extensions().get::<Evidence>().unwrap().reused;
                (reused, response.into_body().collect().await.unwrap().to_bytes())
            };
            if let Ok((reused, content)) = tokio::time::timeout(Duration::from_secs(1), fetched).await {
                assert_eq!(content, "hello");
                if !reused {
                    break;
                }
            }
        }
    }
}

/// Towards the server, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// Hands those datagrams of one client on to `server`, and back, that may `pass`.
async fn relay(server: SocketAddr, pass: impl Fn(Direction, &[u8]) -> bool + Send + 'static) -> SocketAddr {
    let outside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let inside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    inside.connect(server).await.unwrap();
    let address = outside.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut out, mut back) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((length, from)) = outside.recv_from(&mut out) => {
                    client = Some(from);
                    if pass(Direction::ToServer, &out[..length]) {
                        let _ = inside.send(&out[..length]).await;
                    }
                }
                Ok(length) = inside.recv(&mut back) => {
                    if let Some(to) = client.filter(|_| pass(Direction::ToClient, &back[..length])) {
                        let _ = outside.send_to(&back[..length], to).await;
                    }
                }
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_that_is_cut_in_the_middle_is_told_and_costs_a_head_start() {
    let site = Site::new("cut", "[http3]\nfallback-reports = true\n");
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = cut.clone();
    let udp = relay(site.process.addresses()[0], move |_, _| !is_cut.load(Ordering::SeqCst)).await;
    let client = client(&site.trust, Duration::from_secs(3));
    let route = Route { udp: Some(udp), ..Route::default() };
    let fetched = client.get_by(&site.url, &route).await.unwrap();
    assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
    let fetched = client.get_by(&site.url, &route).await.unwrap();
    assert_eq!((fetched.protocol, fetched.reused), ("h3", true));
    assert_eq!(read(fetched).await, ("hello".to_owned(), None));
    cut.store(true, Ordering::SeqCst);
    let fetched = client.get_by(&site.url, &route).await.unwrap();
    assert_eq!((fetched.protocol, fetched.reused), ("h2", false));
    assert!(fetched.handshake.is_some_and(|took| !took.is_zero()), "{:?}", fetched.handshake);
    let (text, verdict) = content(fetched).await;
    assert_eq!(text, "hello");
    assert!(matches!(verdict, Verdict::Blocked { questions: 12, .. }), "{verdict}");
    let fetched = client.get_by(&site.url, &route).await.unwrap();
    assert_eq!((fetched.protocol, fetched.reused), ("h2", true), "what works is kept");
    let reported = || {
        let text = site.process.figures();
        let line = "tiderace_edge_fallbacks_reported_total{reason=\"blocked\"} ";
        text.lines().find_map(|text| text.strip_prefix(line)).map(str::to_owned)
    };
    assert_eq!(reported().as_deref(), Some("1"), "the gateway asks, and is told");
    client.get_by(&site.url, &route).await.unwrap();
    assert_eq!(reported().as_deref(), Some("1"), "once");
    client.close().await;
}

/// A server over HTTP/3 that takes early data.
fn early_server() -> (Endpoint, Trust) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).early_data(true).build().unwrap();
    // However long a busy machine takes for a handshake.
    let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
    let config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    let endpoint = Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap();
    (endpoint, Trust::Pem(made.cert.pem().into_bytes()))
}

/// Serves connections of `endpoint`; methods are answered in the content. So many of the requests that come before the end of the
/// handshake are too early; counts these. Each answer takes a while.
fn serve(endpoint: Arc<Endpoint>, too_early: u32, thinks: Duration) -> Arc<AtomicU32> {
    let early = Arc::new(AtomicU32::new(0));
    let seen = early.clone();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept_early().await {
            let (quic, seen) = (connection.clone(), seen.clone());
            let service = move |request: Request<h3_quic::RequestBody>| {
                let in_handshake = !quic.is_established();
                let seen = seen.clone();
                async move {
                    let turn = if in_handshake { seen.fetch_add(1, Ordering::SeqCst) } else { u32::MAX };
                    tokio::time::sleep(thinks).await;
                    let status = if turn < too_early { StatusCode::TOO_EARLY } else { StatusCode::OK };
                    let body = Full::new(Bytes::from(request.method().to_string()));
                    let mut response = Response::new(body.map_err(|never: Infallible| match never {}));
                    *response.status_mut() = status;
                    response
                }
            };
            let options = h3_quic::server::Options::default();
            tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
        }
    });
    early
}

/// RFC 9114 §10.9 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn safe_requests_leave_early_and_too_early_ones_again() {
    let (endpoint, trust) = early_server();
    let url = format!("https://{}/", endpoint.local_addr());
    let early = serve(Arc::new(endpoint), 1, Duration::ZERO);
    let client = Client::new(&trust).unwrap();
    let route = Route { only: Some(Leg::Quic), fresh: true, ..Route::default() };
    let first = client.get_by(&url, &route).await.unwrap();
    assert_eq!((first.early_data, first.too_early), (EarlyData::None, false));
    content(first).await;
    // On a busy machine the handshake is complete before the server comes to a request: that one is no early request, so another is
    // made.
    let begun = Instant::now();
    while early.load(Ordering::SeqCst) == 0 && begun.elapsed() < LIMIT {
        tokio::time::sleep(TICKETS).await;
        let second = client.get_by(&url, &route).await.unwrap();
        // Nor may the ticket have come by then.
        if second.early_data == EarlyData::None {
            content(second).await;
            continue;
        }
        assert_eq!((second.response.status(), second.early_data), (StatusCode::OK, EarlyData::Accepted));
        let refused = early.load(Ordering::SeqCst) > 0;
        assert_eq!(second.too_early, refused, "what came before the end of the handshake was refused");
        assert_eq!(content(second).await.0, "GET");
    }
    while early.load(Ordering::SeqCst) == 1 && begun.elapsed() < 2 * LIMIT {
        tokio::time::sleep(TICKETS).await;
        let third = client.get_by(&url, &route).await.unwrap();
        if third.early_data == EarlyData::None {
            content(third).await;
            continue;
        }
        assert_eq!((third.early_data, third.too_early), (EarlyData::Accepted, false));
        content(third).await;
    }
    assert_eq!(early.load(Ordering::SeqCst), 2);
    // What is not safe waits, and so does what has content.
    for request in [Request::post(&url).body(Full::<Bytes>::default()), Request::get(&url).body(Full::from("x"))] {
        tokio::time::sleep(TICKETS).await;
        let fetched = client.send(request.unwrap(), &route).await.unwrap();
        assert_eq!(fetched.response.status(), StatusCode::OK);
        read(fetched).await;
    }
    assert_eq!(early.load(Ordering::SeqCst), 2);
    client.close().await;
}

/// The handshake is done at the client, the request has left with its first packets, and nothing more gets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_that_is_met_by_silence_is_raced_against_tcp() {
    // On a busy machine the server's answer may be here before the request is written, which is then no early data and lost: the
    // case has not come about.
    for _ in 0..20 {
        if is_raced_when_early_data_is_met_by_silence().await {
            return;
        }
    }
    panic!("no request left as early data");
}

/// Returns whether the request left as early data.
async fn is_raced_when_early_data_is_met_by_silence() -> bool {
    let site = Site::new("early-silence", "");
    let (endpoint, trust) = early_server();
    let server = endpoint.local_addr();
    // The answer leaves after the handshake's packets, and not among them.
    let early = serve(Arc::new(endpoint), 0, Duration::from_millis(300));
    let (Trust::Pem(mut roots), Trust::Pem(of_site)) = (trust, site.trust.clone()) else { unreachable!() };
    roots.extend(of_site);
    let client = client(&Trust::Pem(roots), Duration::from_secs(3));
    let answered = AtomicBool::new(false);
    // Only the connection that falls silent goes this way.
    let udp = relay(server, move |way, datagram| match way {
        // The first flight, until it is answered; 0-RTT packets of it may come here later (RFC 9000 §17.2: form and type).
        Direction::ToServer => !answered.load(Ordering::SeqCst) || datagram[0] & 0xb0 == 0x90,
        // The answer begins with a long header. Answers to questions have version 0.
        Direction::ToClient => {
            let passes = datagram[0] & 0x80 != 0 && datagram[1..5] != [0; 4];
            // Whoever only acknowledges waits for the rest of the ClientHello: a ServerHello is padded (RFC 9000 §14.1).
            answered.fetch_or(passes && datagram.len() >= 1_200, Ordering::SeqCst);
            passes
        }
    })
    .await;
    let url = format!("https://127.0.0.1:{}/", site.port());
    // Tickets, without a race. Each connection takes one and leaves two; on a busy machine they may come late, so that two
    // connections in a row have to be resumed, with time for their own tickets, before some are certainly left.
    let alone = Route { udp: Some(server), fresh: true, only: Some(Leg::Quic) };
    let mut resumed = 0;
    while resumed < 2 {
        let fetched = client.get_by(&url, &alone).await.unwrap();
        resumed = if fetched.early_data == EarlyData::Accepted { resumed + 1 } else { 0 };
        assert_eq!(content(fetched).await.0, "GET");
        tokio::time::sleep(TICKETS).await;
    }
    early.store(0, Ordering::SeqCst);
    let fetched = client.get_by(&url, &Route { udp: Some(udp), fresh: true, only: None }).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    // On a busy machine TCP's answer may be here before the other server has counted the early one.
    for _ in 0..300 {
        if early.load(Ordering::SeqCst) > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (text, verdict) = content(fetched).await;
    assert_eq!(text, "hello");
    if early.load(Ordering::SeqCst) == 0 {
        client.close().await;
        return false;
    }
    assert_eq!(early.load(Ordering::SeqCst), 1);
    assert!(matches!(verdict, Verdict::Blocked { questions: 12, .. }), "{verdict}");
    client.close().await;
    true
}

/// Speaks just enough of HTTP/2 to answer requests with 200 and nothing; gives the types of the frames that came.
async fn frames(listener: TcpListener, tls: rustls::ServerConfig, told: oneshot::Sender<Vec<(u8, u32)>>) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = tokio_rustls::TlsAcceptor::from(Arc::new(tls)).accept(stream).await.unwrap();
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    stream.flush().await.unwrap();
    let mut seen = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        // Of GOAWAY the code.
        let code = if head[3] == 7 { u32::from_be_bytes(payload[4..8].try_into().unwrap()) } else { 0 };
        seen.push((head[3], code));
        match (head[3], head[4]) {
            (4, 0) => stream.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).await.unwrap(),
            // END_STREAM and END_HEADERS, and in the static table of HPACK 8 is `:status: 200`.
            (1, _) => stream.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, head[8], 0x88]).await.unwrap(),
            _ => {}
        }
    }
    let _ = told.send(seen);
}

/// TLS of a server of HTTP/2, and its certificate.
fn h2_tls() -> (rustls::ServerConfig, Trust) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap(),
        )
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    (tls, Trust::Pem(made.cert.pem().into_bytes()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_new_connection_did_not_serve_goes_over_another_one_once() {
    let (tls, trust) = h2_tls();
    for (leaves, is_answered) in [(1, true), (2, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let tls = tls.clone();
        tokio::spawn(async move {
            for _ in 0..leaves {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = tokio_rustls::TlsAcceptor::from(Arc::new(tls.clone())).accept(stream).await.unwrap();
                // SETTINGS, and GOAWAY with no stream and no error, as a server that is upgraded sends it.
                let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let frames = [&[0, 0, 0, 4, 0, 0, 0, 0, 0][..], &goaway].concat();
                stream.write_all(&frames).await.unwrap();
                stream.shutdown().await.unwrap();
            }
            frames(listener, tls, oneshot::channel().0).await;
        });
        let client = Client::new(&trust).unwrap();
        let fetched = client.get_by(&url, &Route { only: Some(Leg::Tcp), ..Route::default() }).await;
        assert_eq!(fetched.is_ok(), is_answered, "after {leaves} connections: {:?}", fetched.err());
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_http2_hear_goaway() {
    let (tls, trust) = h2_tls();
    for fresh in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let (tell, told) = oneshot::channel();
        tokio::spawn(frames(listener, tls.clone(), tell));
        let client = Client::new(&trust).unwrap();
        let fetched = client.get_by(&url, &Route { only: Some(Leg::Tcp), fresh, ..Route::default() }).await.unwrap();
        assert_eq!(fetched.protocol, "h2");
        read(fetched).await;
        client.close().await;
        let seen = tokio::time::timeout(LIMIT, told).await.unwrap().unwrap();
        assert_eq!(seen.last(), Some(&(7, 0)), "the last is GOAWAY without an error: {seen:?}");
    }
}
