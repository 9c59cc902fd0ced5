//! Other protocols over QUIC to the back end (RFC 9220): WebSocket, capsules, datagrams.

use h3_quic::{
    Datagrams, Protocol,
    capsule::{self, Capsules},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UdpSocket,
};

use super::*;
use crate::{
    site::{Directory, get1},
    tls_back_ends::Secure,
};

/// Agrees to each protocol and sends back what comes: content as content, and datagrams as datagrams, in capital letters. Content that is
/// `break` breaks the tunnel off.
async fn echo(mut request: Request<RequestBody>, _: usize) -> Response<Body> {
    if request.method() != Method::CONNECT {
        return Response::new(full("ok"));
    }
    let protocol = request.extensions().get::<Protocol>().unwrap().as_str().to_owned();
    let fields = request.headers();
    assert!(!fields.contains_key("sec-websocket-key") && !fields.contains_key("upgrade"), "{fields:?}");
    assert_eq!(fields.get("capsule-protocol").is_some(), protocol == "connect-udp");
    let datagrams = request.extensions_mut().remove::<Datagrams>().unwrap();
    let (mut say, body) = Channel::<Bytes, Error>::new(4);
    tokio::spawn(async move {
        let mut heard = request.into_body();
        loop {
            tokio::select! {
                Some(datagram) = datagrams.recv() => datagrams.send(&datagram.to_ascii_uppercase()).unwrap(),
                frame = heard.frame() => match frame {
                    Some(Ok(frame)) => {
                        let data = frame.into_data().unwrap();
                        if data == "break" {
                            return say.abort("as it was told".into());
                        }
                        say.send_data(data).await.unwrap();
                    }
                    Some(Err(error)) => return say.abort(error.into()),
                    None => return,
                }
            }
        }
    });
    Response::new(body.boxed_unsync())
}

async fn site(name: &str, origin: &Origin) -> (Site, Directory) {
    gateway(name, &origin.certificate, &route(origin.address, "tunnels = [\"websocket\", \"connect-udp\"]"))
}

fn upgrade(protocol: &str) -> Request<Body> {
    let mut request = get1("/tunnel");
    for (name, value) in [("connection", "upgrade"), ("upgrade", protocol)] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn connect(protocol: &'static str) -> http::request::Builder {
    Request::connect("https://localhost/tunnel").extension(Protocol::from_static(protocol))
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut from, mut to) = tokio::io::split(stream);
    let content = pattern(300_000);
    let say = async {
        to.write_all(&content).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let hear = async { from.read_to_end(&mut back).await.unwrap() };
    within(async { tokio::join!(say, hear) }).await;
    assert!(back == content, "{} bytes", back.len());
}

/// Sends a datagram until one comes back: they may be lost.
async fn exchange_datagram(datagrams: &Datagrams, datagram: &[u8]) -> Bytes {
    let begun = std::time::Instant::now();
    while begun.elapsed() < crate::site::LIMIT {
        datagrams.send(datagram).unwrap();
        if let Ok(back) = tokio::time::timeout(Duration::from_secs(1), datagrams.recv()).await {
            return back.unwrap();
        }
    }
    panic!("no datagram comes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_of_each_version_goes_over_http3() {
    let origin = Origin::start(echo).await;
    let (site, _roots) = site("quic-websocket", &origin).await;
    // The example of RFC 6455 §1.3: the answer is the gateway's, because the back end has not seen the key.
    let mut request = upgrade("websocket");
    request.headers_mut().insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
    let mut response = within(site.h1().await.send_request(request)).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["upgrade"]), (101, &"websocket".parse().unwrap()));
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    exchange(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;

    let mut h2 = site.h2().await;
    // The server's settings have to have come before an extended CONNECT may be sent.
    h2.send_request(get("https://localhost/")).await.unwrap();
    let request = Request::connect("https://localhost/tunnel");
    let request = request.extension(hyper::ext::Protocol::from_static("websocket")).body(full("")).unwrap();
    let mut response = within(h2.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    exchange(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())).await;

    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = within(h3.send(connect("websocket").body(body).unwrap())).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("upgrade") && !response.headers().contains_key("sec-websocket-accept"));
    let content = pattern(300_000);
    let saying = content.clone();
    tokio::spawn(async move {
        for piece in saying.chunks(10_000) {
            say.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
    });
    assert!(within(response.into_body().collect()).await.unwrap().to_bytes() == content);
    assert_eq!(back_end(&site, "protocol"), "h3");
}

/// A side of a tunnel that breaks off does not look complete on the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_off_breaks_off_on_the_other_side() {
    let origin = Origin::start(echo).await;
    let (site, _roots) = site("quic-tunnel-broken", &origin).await;
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = within(h3.send(connect("websocket").body(body).unwrap())).await.unwrap();
    say.send_data("break".into()).await.unwrap();
    assert!(within(response.into_body().collect()).await.is_err(), "the back end has broken off");
    // Half of a capsule, and the end.
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let request = connect("connect-udp").header("capsule-protocol", "?1").body(body).unwrap();
    let response = within(h3.send(request)).await.unwrap();
    say.send_data(Bytes::from_static(&[0x29, 0x05, 1, 2])).await.unwrap();
    drop(say);
    assert!(within(response.into_body().collect()).await.is_err(), "the client has broken the rules");
    let log = || crate::site::read(&site.directory.0.join("access.log"));
    until(|| log().contains("in the middle of a capsule"), true).await;
}

/// RFC 9297 §3.5: datagrams stay datagrams where both ends take them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_go_as_datagrams_or_as_capsules() {
    let origin = Origin::start(echo).await;
    let (site, _roots) = site("quic-datagrams", &origin).await;
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let request = connect("connect-udp").header("capsule-protocol", "?1").body(body).unwrap();
    let response = within(h3.send(request)).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get("upgrade")), (200, None));
    let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
    let mut heard = response.into_body();
    // Half of a capsule on the stream: a datagram does not get into it, and only datagrams come back in capital letters.
    let mut whole = Vec::new();
    capsule::write(&mut whole, 0x29, &[7; 1_000]);
    say.send_data(Bytes::copy_from_slice(&whole[..500])).await.unwrap();
    for number in 0..20 {
        let text = format!("datagram {number}");
        let back = exchange_datagram(&datagrams, text.as_bytes()).await;
        assert!(back.starts_with(b"DATAGRAM "), "{back:?}");
    }
    say.send_data(Bytes::copy_from_slice(&whole[500..])).await.unwrap();
    let mut back = Vec::new();
    while back.len() < whole.len() {
        back.extend(within(heard.frame()).await.unwrap().unwrap().into_data().unwrap());
    }
    assert!(back == whole);
    drop(say);
    assert!(within(heard.frame()).await.is_none());

    // A client of HTTP/1.1 has capsules alone: the back end's datagrams are capsules for it.
    let mut request = upgrade("connect-udp");
    request.headers_mut().insert("capsule-protocol", "?1".parse().unwrap());
    let mut response = within(site.h1().await.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let (mut out, mut capsules, mut buffer) = (Vec::new(), Capsules::new(10_000), vec![0; 4_096]);
    capsule::write(&mut out, capsule::DATAGRAM, b"from http/1.1");
    let begun = std::time::Instant::now();
    let back = loop {
        assert!(begun.elapsed() < crate::site::LIMIT, "no capsule comes back");
        stream.write_all(&out).await.unwrap();
        stream.flush().await.unwrap();
        let Ok(length) = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut buffer)).await else { continue };
        capsules.push(&buffer[..length.unwrap()]);
        if let Some(capsule) = capsules.take().unwrap() {
            break capsule;
        }
    };
    assert_eq!((back.ty, &back.value[..]), (capsule::DATAGRAM, &b"FROM HTTP/1.1"[..]));
}

/// A protocol that the back end does not speak over HTTP/3 goes over TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_over_quic_goes_over_tcp() {
    let made = super::origin::certified();
    let refuse = async |request: Request<RequestBody>, _| {
        let status = if request.method() == Method::CONNECT { 501 } else { 200 };
        Response::builder().status(status).body(full("")).unwrap()
    };
    let (origin, tcp) = Origin::start_beside_tcp(&made, refuse).await;
    let tcp = Secure::start_on(tcp.listen(16).unwrap(), &made, &[b"h2", b"http/1.1"]);
    let (site, _roots) = gateway("quic-websocket-tcp", &tcp.certificate, &route(tcp.address, ""));
    let mut response = within(site.h1().await.send_request(upgrade("websocket"))).await.unwrap();
    assert_eq!(response.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    let mut bytes = [0; 4];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"ping");
    // Without TCP it is a bad gateway, and the log says why.
    let (alone, _refuses) = Origin::start_beside_tcp(&made, refuse).await;
    let (site, _roots) = gateway("quic-websocket-alone", &alone.certificate, &route(alone.address, ""));
    assert_eq!(within(site.h1().await.send_request(upgrade("websocket"))).await.unwrap().status(), 502);
    let log = || crate::site::read(&site.directory.0.join("access.log"));
    until(|| log().contains("over QUIC: the back end answers with 501; over TCP: "), true).await;
    drop(origin);
}

/// Client, gateway, gateway that is the proxy, target: datagrams all the way, through a reload of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_udp_passes_two_gateways() {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 2_000];
        while let Ok((length, from)) = target.recv_from(&mut buffer).await {
            target.send_to(&buffer[..length], from).await.unwrap();
        }
    });
    let proxy = "[[route]]\npath = \"/udp\"\n[route.proxy]\nopen = true\nallow = \"127.0.0.1\"\n";
    let behind = Site::start("tunnel-behind", proxy);
    let (front, _roots) = super::chain::in_front("tunnel-front", &behind, "tunnels = \"connect-udp\"\n", "");
    let (_endpoint, mut h3) = front.h3().await;
    let (say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let uri = format!("https://localhost/udp/{}/{}/", address.ip(), address.port());
    let request = Request::connect(uri).extension(Protocol::from_static("connect-udp"));
    let response = within(h3.send(request.header("capsule-protocol", "?1").body(body).unwrap())).await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.headers());
    let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
    for round in 0..3 {
        for size in [1, 100, 900] {
            let payload = [&[0], &pattern(size)[..]].concat();
            let back = exchange_datagram(&datagrams, &payload).await;
            assert!(back == payload, "{round} {size}");
            // Copies of former attempts are no answers to later ones.
            tokio::time::sleep(Duration::from_millis(20)).await;
            while datagrams.try_recv().is_some() {}
        }
        front.process.reload().await.unwrap();
        behind.process.reload().await.unwrap();
    }
    let up = |site: &Site| site.figure("tiderace_edge_tunnel_datagrams_total{kind=\"udp\",direction=\"up\"}");
    assert!(up(&behind) >= 9.0, "{}", up(&behind));
    drop(say);
    assert!(within(response.into_body().collect()).await.unwrap().to_bytes().is_empty());
    until(|| behind.figure("tiderace_edge_tunnels{kind=\"udp\"}"), 0.0).await;
}
