//! Bound UDP on streams of bytes: HTTP/2 and HTTP/1.1.

use std::net::SocketAddr;

use h3_quic::{
    capsule::{self, Capsules},
    connect_udp::bound::{Compression, public_addresses},
};
use http::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{ANY, assign, route, socket, uncompressed};
use crate::site::{Site, full, get, pattern, until, within};

/// Everything as capsules on a stream.
async fn exchange_capsules(mut stream: impl AsyncRead + AsyncWrite + Unpin, public: &[SocketAddr]) {
    let mut capsules = Capsules::new(70_000);
    let mut buffer = vec![0; 16_384];
    let mut next = async |stream: &mut dyn Stream, out: &[u8]| {
        stream.write_all(out).await.unwrap();
        stream.flush().await.unwrap();
        loop {
            if let Some(capsule) = capsules.take().unwrap() {
                return capsule;
            }
            let length = within(stream.read(&mut buffer)).await.unwrap();
            assert!(length > 0, "the tunnel has ended");
            capsules.push(&buffer[..length]);
        }
    };
    let said = next(&mut stream, &assign(2, None)).await;
    assert_eq!(Compression::parse(said.ty, &said.value), Ok(Compression::Ack(2)));
    for (name, size) in [("127.0.0.1:0", 40), ("[::1]:0", 1_200), ("127.0.0.2:0", 9_000)] {
        let peer = socket(name).await;
        let (address, payload) = (peer.local_addr().unwrap(), pattern(size));
        let datagram = uncompressed(2, address, &payload);
        let mut out = Vec::new();
        capsule::write(&mut out, capsule::DATAGRAM, &datagram);
        let answering = async {
            let mut buffer = vec![0; 16_384];
            let (length, from) = within(peer.recv_from(&mut buffer)).await.unwrap();
            assert!(buffer[..length] == payload && public.contains(&from));
            peer.send_to(&payload, from).await.unwrap();
        };
        let (back, ()) = tokio::join!(next(&mut stream, &out), answering);
        assert!(back.ty == capsule::DATAGRAM && back.value == datagram, "{size}");
    }
    // A rule that is broken ends the stream, too.
    stream.write_all(&assign(4, None)).await.unwrap();
    // The stream may have ended before all is said to be written.
    let _ = stream.flush().await;
    let mut rest = Vec::new();
    let _ = within(stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "{rest:?}");
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_udp_over_http1_and_http2() {
    let site = Site::start("bound-streams", &route(""));
    let request = Request::get("/udp/*/*/").header("host", "localhost").header("connection", "Upgrade");
    let request = request.header("upgrade", "connect-udp").header("connect-udp-bind", "?1").body(full("")).unwrap();
    let mut response = site.h1().await.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["connect-udp-bind"]), (101, &"?1".parse().unwrap()));
    let public = public_addresses(response.headers());
    exchange_capsules(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap()), &public).await;

    let mut h2 = site.h2().await;
    // The server's settings have to have come before an extended CONNECT may be sent.
    h2.send_request(get("https://localhost/nowhere")).await.ok();
    let request = Request::connect(ANY).extension(hyper::ext::Protocol::from_static("connect-udp"));
    let mut response = h2.send_request(request.header("connect-udp-bind", "?1").body(full("")).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["connect-udp-bind"]), (200, &"?1".parse().unwrap()));
    let public = public_addresses(response.headers());
    exchange_capsules(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap()), &public).await;
    until(|| site.figure("tiderace_edge_tunnels{kind=\"bound-udp\"}"), 0.0).await;
}
