//! Requests that become something else than HTTP: WebSocket over each version, capsules and datagrams over HTTP/3.

use std::time::Duration;

use crate::site::{BackEnd, Site, full, get, pattern};
use bytes::Bytes;
use h3_quic::{
    Datagrams, Protocol,
    capsule::{self, Capsules},
};
use http::{Request, Response};
use http_body_util::{BodyExt, channel::Channel};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn route(to: &str) -> String {
    format!("[[route]]\nto = \"{to}\"\n")
}

/// Agrees to WebSocket and sends back what comes.
async fn switching(mut request: Request<hyper::body::Incoming>) -> Response<crate::site::Body> {
    assert!(request.headers().contains_key("sec-websocket-key"));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut buffer = [0; 4_096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..length]).await.unwrap();
        }
        stream.shutdown().await.unwrap();
    });
    let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
    response.header("sec-websocket-accept", "x").body(full("")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_over_http1_and_http2() {
    let back_end = BackEnd::start(switching).await;
    let site = Site::start("websocket", &route(&back_end.url()));
    let upgrade =
        Request::get("/ws").header("host", "localhost").header("connection", "Upgrade").header("upgrade", "websocket");
    let upgrade = upgrade.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==").body(full("")).unwrap();
    let mut h1 = site.h1().await;
    let mut response = h1.send_request(upgrade).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["upgrade"]), (101, &"websocket".parse().unwrap()));
    exchange(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;

    let mut h2 = site.h2().await;
    // The server's settings have to have come before an extended CONNECT may be sent.
    h2.send_request(get("https://localhost/nowhere-to-upgrade")).await.ok();
    let connect = Request::connect("https://localhost/ws").extension(hyper::ext::Protocol::from_static("websocket"));
    let mut response = h2.send_request(connect.body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    exchange(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;
}

async fn exchange(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    for size in [10, 100_000] {
        let data: Bytes = pattern(size);
        stream.write_all(&data[..size.min(4_000)]).await.unwrap();
        stream.flush().await.unwrap();
        let mut back = vec![0; size.min(4_000)];
        stream.read_exact(&mut back).await.unwrap();
        assert!(back == data[..size.min(4_000)]);
    }
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

/// Reads content of a tunnel as it comes.
async fn read(body: &mut h3_quic::ResponseBody, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        let frame = tokio::time::timeout(crate::site::LIMIT, body.frame()).await.expect("something comes");
        all.extend(frame.unwrap().unwrap().into_data().unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_over_http3() {
    let back_end = BackEnd::start(switching).await;
    let limits = "[limits]\ncontent-timeout = \"300 ms\"\n";
    let site = Site::start("websocket-h3", &format!("{limits}{}", route(&back_end.url())));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let connect = Request::connect("https://localhost/ws").extension(Protocol::from_static("websocket"));
    let response = h3.send(connect.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("upgrade") && !response.headers().contains_key("sec-websocket-accept"));
    let mut heard = response.into_body();
    for size in [10, 4_000] {
        say.send_data(pattern(size)).await.unwrap();
        assert!(read(&mut heard, size).await == pattern(size));
    }
    // Whoever has become something else may be silent for longer than a request.
    tokio::time::sleep(Duration::from_millis(700)).await;
    say.send_data(pattern(100)).await.unwrap();
    assert!(read(&mut heard, 100).await == pattern(100));
    drop(say);
    assert!(heard.frame().await.is_none(), "the end comes back, too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_route_does_not_allow_is_not_carried() {
    let back_end = BackEnd::start(switching).await;
    let site = Site::start("tunnel-refused", &route(&back_end.url()));
    let (_endpoint, mut h3) = site.h3().await;
    let connect = Request::connect("https://localhost/").extension(Protocol::from_static("connect-udp"));
    assert_eq!(h3.send(connect.body(full("")).unwrap()).await.unwrap().status(), 501);
    // RFC 9114 §4.4 SHOULD-3: a plain CONNECT asks for a tunnel to anywhere
    let connect = Request::connect("localhost:443").body(full("")).unwrap();
    assert_eq!(h3.send(connect).await.unwrap().status(), 405);
}

/// In HTTP/1.1 a wish may be ignored (RFC 9110 §7.8): the back end does not hear of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_a_route_does_not_allow_is_left_out() {
    let back_end = BackEnd::start(|request: Request<hyper::body::Incoming>| async move {
        let asked = request.headers().contains_key("upgrade");
        Response::new(full(if asked { "asked" } else { "not asked" }))
    })
    .await;
    let site = Site::start("upgrade-refused", &route(&back_end.url()));
    for (protocol, expected) in [("websocket", "asked"), ("connect-udp", "not asked")] {
        let request =
            Request::get("/").header("host", "localhost").header("connection", "Upgrade").header("upgrade", protocol);
        let response = site.h1().await.send_request(request.body(full("")).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), expected, "{protocol}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_does_not_agree_begins_no_tunnel() {
    let back_end = BackEnd::start(|request: Request<hyper::body::Incoming>| async move {
        let status = if request.uri().path() == "/forbidden" { 403 } else { 200 };
        Response::builder().status(status).body(full("a page")).unwrap()
    })
    .await;
    let site = Site::start("no-tunnel", &route(&back_end.url()));
    let (_endpoint, mut h3) = site.h3().await;
    for (path, status) in [("/page", 502), ("/forbidden", 403)] {
        let connect =
            Request::connect(format!("https://localhost{path}")).extension(Protocol::from_static("websocket"));
        assert_eq!(h3.send(connect.body(full("")).unwrap()).await.unwrap().status(), status);
    }
}

/// Agrees to `connect-udp`, and sends capsules back: datagrams in capital letters, others as they are.
async fn proxy(mut request: Request<hyper::body::Incoming>) -> Response<crate::site::Body> {
    assert_eq!((request.method().as_str(), &request.headers()["upgrade"]), ("GET", &"connect-udp".parse().unwrap()));
    assert_eq!(request.headers()["capsule-protocol"], "?1");
    assert!(!request.headers().contains_key("sec-websocket-key"));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut capsules = Capsules::new(100_000);
        let mut buffer = [0; 4_096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            capsules.push(&buffer[..length]);
            while let Some(found) = capsules.take().unwrap() {
                let mut out = Vec::new();
                match found.ty {
                    capsule::DATAGRAM => capsule::write(&mut out, found.ty, &found.value.to_ascii_uppercase()),
                    _ => capsule::write(&mut out, found.ty, &found.value),
                }
                stream.write_all(&out).await.unwrap();
            }
        }
        stream.shutdown().await.unwrap();
    });
    let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "connect-udp");
    response.header("capsule-protocol", "?1").header("content-type", "text/plain").body(full("")).unwrap()
}

/// RFC 9297 §3.2 SHOULD-1, SHOULD-2, MUST NOT-2, RFC 9297 §3.5 MUST NOT-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_are_capsules_for_the_back_end() {
    let back_end = BackEnd::start(proxy).await;
    let site = Site::start("connect-udp", &format!("{}tunnels = [\"connect-udp\"]\n", route(&back_end.url())));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let connect = Request::connect("https://localhost/.well-known/masque/udp/192.0.2.6/443/");
    let connect = connect.extension(Protocol::from_static("connect-udp")).header("capsule-protocol", "?1");
    let response = h3.send(connect.body(body).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["capsule-protocol"]), (200, &"?1".parse().unwrap()));
    let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
    let mut heard = response.into_body();
    // Half of a capsule on the stream: a datagram does not get into it.
    let mut whole = Vec::new();
    capsule::write(&mut whole, 0x29, &[7; 1_000]);
    say.send_data(Bytes::copy_from_slice(&whole[..500])).await.unwrap();
    for number in 0..20 {
        let text = format!("datagram {number}");
        let back = loop {
            datagrams.send(text.as_bytes()).unwrap();
            if let Ok(back) = tokio::time::timeout(Duration::from_secs(2), datagrams.recv()).await {
                break back.unwrap();
            }
        };
        assert!(back.starts_with(b"DATAGRAM "), "{back:?}");
    }
    say.send_data(Bytes::copy_from_slice(&whole[500..])).await.unwrap();
    assert_eq!(read(&mut heard, whole.len()).await, whole);
    // A datagram on the stream that fits into none comes back on the stream.
    let mut large = Vec::new();
    capsule::write(&mut large, capsule::DATAGRAM, &[b'a'; 5_000]);
    say.send_data(large.clone().into()).await.unwrap();
    assert_eq!(read(&mut heard, large.len()).await, large.to_ascii_uppercase());
    drop(say);
    assert!(heard.frame().await.is_none());
}

/// RFC 9297 §3.2 MUST NOT-1, MUST-2, RFC 9297 §3.3 MUST-1, MUST-5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_the_rules_for_capsules() {
    let back_end = BackEnd::start(proxy).await;
    let site = Site::start("capsules", &format!("{}tunnels = [\"connect-udp\"]\n", route(&back_end.url())));
    let (_endpoint, mut h3) = site.h3().await;
    let connect = || {
        let connect = Request::connect("https://localhost/.well-known/masque/udp/192.0.2.6/443/");
        connect.extension(Protocol::from_static("connect-udp")).header("capsule-protocol", "?1")
    };
    for (name, value) in [("content-length", "5"), ("content-type", "text/plain")] {
        let request = connect().header(name, value).body(full("")).unwrap();
        assert_eq!(h3.send(request).await.unwrap().status(), 400, "{name}");
    }
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = h3.send(connect().body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("content-type"), "of the back end");
    // The end in the middle of a capsule.
    say.send_data(Bytes::from_static(&[0x29, 0x05, 1, 2])).await.unwrap();
    drop(say);
    let mut heard = response.into_body();
    let end = tokio::time::timeout(crate::site::LIMIT, heard.frame()).await.expect("there is an end");
    assert!(end.is_some_and(|frame| frame.is_err()), "it breaks off");
}

/// RFC 9484 §11 MUST NOT-1: they could be read as a further request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_gets_no_capsules_before_it_agrees() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let back_end = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(refusal).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        (request, rest)
    });
    let site = Site::start("early-capsules", &format!("{}tunnels = [\"connect-ip\"]\n", route(&url)));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let mut capsules = Vec::new();
    capsule::write(&mut capsules, capsule::DATAGRAM, b"\0GET /secret HTTP/1.1\r\n\r\n");
    say.send_data(capsules.into()).await.unwrap();
    let connect = Request::connect("https://localhost/.well-known/masque/ip/*/*/");
    let connect = connect.extension(Protocol::from_static("connect-ip")).header("capsule-protocol", "?1");
    assert_eq!(h3.send(connect.body(body).unwrap()).await.unwrap().status(), 403);
    let (request, rest) = tokio::time::timeout(crate::site::LIMIT, back_end).await.unwrap().unwrap();
    assert!(request.starts_with(b"GET /.well-known/masque/ip/*/*/ HTTP/1.1\r\n"), "{request:?}");
    assert!(rest.is_empty(), "{rest:?}");
}

/// RFC 9297 §3.4 MUST NOT-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_refuses_a_tunnel_says_nothing_about_capsules() {
    let back_end = BackEnd::start(|_| async {
        Response::builder().status(404).header("capsule-protocol", "?1").body(full("")).unwrap()
    })
    .await;
    let site = Site::start("no-capsules", &format!("{}tunnels = [\"connect-udp\"]\n", route(&back_end.url())));
    let (_endpoint, mut h3) = site.h3().await;
    let connect = Request::connect("https://localhost/.well-known/masque/udp/192.0.2.6/443/");
    let connect = connect.extension(Protocol::from_static("connect-udp")).header("capsule-protocol", "?1");
    let response = h3.send(connect.body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 404);
    assert!(!response.headers().contains_key("capsule-protocol"));
}
