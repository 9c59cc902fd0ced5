//! Tunnels on streams of bytes: capsules over HTTP/1.1 and HTTP/2, and CONNECT over each version.

use bytes::Bytes;
use h3_quic::capsule::{self, Capsules};
use http::Request;
use http_body_util::{BodyExt, channel::Channel};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};

use super::{echo, proxy_status, route, uri};
use crate::site::{Site, full, get, pattern, until, within};

/// Exchanges capsules with an echo.
async fn exchange_capsules(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut capsules = Capsules::new(70_000);
    let mut buffer = vec![0; 16_384];
    for size in [0, 40, 1_200, 8_000] {
        let mut out = Vec::new();
        capsule::write(&mut out, 0x29, b"unknown");
        capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[0], &pattern(size)]);
        stream.write_all(&out).await.unwrap();
        stream.flush().await.unwrap();
        let back = loop {
            if let Some(capsule) = capsules.take().unwrap() {
                break capsule;
            }
            let length = within(stream.read(&mut buffer)).await.unwrap();
            assert!(length > 0, "the tunnel has ended");
            capsules.push(&buffer[..length]);
        };
        assert_eq!(back.ty, capsule::DATAGRAM);
        assert!(back.value[1..] == pattern(size), "{size}");
    }
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    within(stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

/// RFC 9298 §3.2 SHALL-1, SHALL-3, SHALL-4, MUST-1, SHOULD-1, RFC 9298 §3.3 SHALL-1, SHALL-2, SHALL-3, SHALL-4, SHALL-5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capsules_over_http1_and_http2() {
    let target = echo().await;
    let site = Site::start("masque-tcp", &route(""));
    let path = format!("/udp/{}/{}/", target.ip(), target.port());
    let upgrade = |upgrade: &str| {
        let request = Request::get(&path).header("host", "localhost").header("connection", "Upgrade");
        request.header("upgrade", upgrade).header("capsule-protocol", "?1").body(full("")).unwrap()
    };
    let mut h1 = site.h1().await;
    let mut response = h1.send_request(upgrade("connect-udp")).await.unwrap();
    assert_eq!(response.status(), 101);
    for (name, value) in [("connection", "upgrade"), ("upgrade", "connect-udp"), ("capsule-protocol", "?1")] {
        assert_eq!(response.headers()[name], value);
    }
    exchange_capsules(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;
    // Without the upgrade, and with another method, the request is malformed.
    for request in [Request::get(&path).header("host", "localhost").body(full("")).unwrap(), upgrade("websocket"), {
        let mut post = upgrade("connect-udp");
        *post.method_mut() = http::Method::POST;
        post
    }] {
        assert_eq!(site.h1().await.send_request(request).await.unwrap().status(), 400);
    }

    let mut h2 = site.h2().await;
    // The server's settings have to have come before an extended CONNECT may be sent.
    h2.send_request(get("https://localhost/nowhere")).await.ok();
    let connect = Request::connect(uri(target)).extension(hyper::ext::Protocol::from_static("connect-udp"));
    let mut response = h2.send_request(connect.body(full("")).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["capsule-protocol"]), (200, &"?1".parse().unwrap()));
    exchange_capsules(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;
    until(|| site.figure("tiderace_edge_tunnels{kind=\"udp\"}"), 0.0).await;
    assert_eq!(site.figure("tiderace_edge_tunnels_opened_total{kind=\"udp\"}"), 2.0);
}

/// RFC 9114 §4.4; RFC 9110 §9.3.6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_over_each_version() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    let site = Site::start("masque-connect", &route(""));
    let request = || Request::connect(target.to_string()).body(full("")).unwrap();
    let mut h1 = site.h1().await;
    let mut h1_request = request();
    h1_request.headers_mut().insert("host", target.to_string().parse().unwrap());
    let mut response = h1.send_request(h1_request).await.unwrap();
    assert_eq!(response.status(), 200);
    exchange_bytes(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;
    let mut response = site.h2().await.send_request(request()).await.unwrap();
    assert_eq!(response.status(), 200);
    exchange_bytes(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;

    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = within(h3.send(Request::connect(target.to_string()).body(body).unwrap())).await.unwrap();
    assert_eq!(response.status(), 200);
    let content = pattern(500_000);
    let saying = content.clone();
    let said = tokio::spawn(async move {
        for piece in saying.chunks(10_000) {
            say.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
    });
    let back = within(response.into_body().collect()).await.unwrap().to_bytes();
    assert!(back == content);
    said.await.unwrap();
    until(|| site.figure("tiderace_edge_tunnels{kind=\"tcp\"}"), 0.0).await;
    for direction in ["up", "down"] {
        let bytes = format!("tiderace_edge_tunnel_bytes_total{{kind=\"tcp\",direction=\"{direction}\"}}");
        assert_eq!(site.figure(&bytes), 700_000.0);
    }
    // Nobody listens there.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let response = within(h3.send(Request::connect(gone.to_string()).body(full("")).unwrap())).await.unwrap();
    assert_eq!(response.status(), 502);
    assert!(proxy_status(&response).contains("connection_refused"));
}

/// RFC 9114 §4.4: the code of a stream tells whether the target or the gateway broke off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_of_the_target_has_its_own_code() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    let site = Site::start("masque-reset", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let (_say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = within(h3.send(Request::connect(target.to_string()).body(body).unwrap())).await.unwrap();
    assert_eq!(response.status(), 200);
    let (stream, _) = within(listener.accept()).await.unwrap();
    socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(stream);
    let error = within(response.into_body().collect()).await.unwrap_err();
    assert!(matches!(error, h3_quic::Error::Reset(h3_quic::Code::CONNECT_ERROR)), "{error:?}");
}

/// RFC 9114 §4.4 MUST-3, MUST-4, SHOULD-1, SHOULD-2: what the client gives up, the target sees reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_sees_a_reset_when_the_client_gives_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    let site = Site::start("masque-given-up", &route(""));
    for whole_connection in [false, true] {
        let (endpoint, mut h3) = site.h3().await;
        let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
        let response = within(h3.send(Request::connect(target.to_string()).body(body).unwrap())).await.unwrap();
        assert_eq!(response.status(), 200);
        say.send_data(Bytes::from_static(b"hello")).await.unwrap();
        let (mut stream, _) = within(listener.accept()).await.unwrap();
        let mut hello = [0; 5];
        within(stream.read_exact(&mut hello)).await.unwrap();
        if whole_connection {
            endpoint.close(0x100, b"");
        } else {
            say.abort(std::io::Error::other("given up"));
        }
        let read = within(stream.read(&mut hello)).await.map_err(|error| error.kind());
        assert_eq!(read, Err(std::io::ErrorKind::ConnectionReset), "whole connection: {whole_connection}");
    }
    until(|| site.figure("tiderace_edge_tunnels{kind=\"tcp\"}"), 0.0).await;
}

async fn exchange_bytes(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let content = pattern(100_000);
    let (mut from, mut to) = tokio::io::split(stream);
    let saying = async {
        to.write_all(&content).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let ((), read) = within(async { tokio::join!(saying, from.read_to_end(&mut back)) }).await;
    read.unwrap();
    assert!(back == content);
}
