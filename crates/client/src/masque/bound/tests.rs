//! A client with proxies that keep the rules, and with some that do not.

use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response, StatusCode};

use super::{super::stream::H2Send, *};

/// The proxy's end of a tunnel over HTTP/2.
struct Proxy {
    say: SendStream<Bytes>,
    heard: RecvStream,
    capsules: Capsules,
}

impl Proxy {
    fn say(&mut self, bytes: impl Into<Bytes>) {
        self.say.send_data(bytes.into(), false).unwrap();
    }

    fn assign(&mut self, context: u64, peer: Option<SocketAddr>) {
        self.say(written(Compression::Assign { context, peer }));
    }

    async fn next(&mut self) -> Capsule {
        loop {
            if let Some(capsule) = self.capsules.take().unwrap() {
                return capsule;
            }
            self.capsules.push(&self.heard.data().await.unwrap().unwrap());
        }
    }

    async fn next_compression(&mut self) -> Compression {
        let capsule = self.next().await;
        Compression::parse(capsule.ty, &capsule.value).unwrap()
    }
}

fn written(capsule: Compression) -> Vec<u8> {
    let mut out = Vec::new();
    capsule.write(&mut out);
    out
}

fn in_capsule(datagram: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    capsule::write(&mut out, capsule::DATAGRAM, datagram);
    out
}

fn peer(number: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], number))
}

/// A tunnel, and its proxy. Nothing is registered yet.
async fn pair() -> (BoundTunnel, Proxy) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = async {
        let mut connection = h2::server::handshake(far).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let say = respond.send_response(Response::new(()), false).unwrap();
        tokio::spawn(async move { while connection.accept().await.is_some() {} });
        Proxy { say, heard: request.into_body(), capsules: Capsules::new(2_000) }
    };
    let asking = async {
        let (sender, connection) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(connection);
        let (response, stream) = sender
            .ready()
            .await
            .unwrap()
            .send_request(http::Request::get("https://p.example/").body(()).unwrap(), false)
            .unwrap();
        let content = response.await.unwrap().into_body();
        BoundTunnel::new(Opened {
            sender: SendHalf::H2(H2Send::new(stream)),
            receiver: RecvHalf::H2(content),
            datagrams: None,
            is_h3: false,
            remote: None,
            status: StatusCode::OK,
            fields: HeaderMap::new(),
        })
    };
    let (proxy, tunnel) = tokio::join!(serving, asking);
    (tunnel, proxy)
}

/// A tunnel whose uncompressed context the proxy has confirmed.
async fn registered() -> (BoundTunnel, Proxy) {
    let (mut tunnel, mut proxy) = pair().await;
    let confirming = async {
        assert_eq!(proxy.next_compression().await, Compression::Assign { context: 2, peer: None });
        proxy.say(written(Compression::Ack(2)));
    };
    let (registered, ()) = tokio::join!(tunnel.register(), confirming);
    registered.unwrap();
    (tunnel, proxy)
}

/// draft-ietf-masque-connect-udp-listen §3.1 MUST, §3.3: registrations of the proxy are answered, and used both ways.
#[tokio::test]
async fn contexts_of_the_proxy_are_used() {
    let (tunnel, mut proxy) = registered().await;
    let (mut sender, mut receiver) = tunnel.split();
    proxy.assign(1, Some(peer(1)));
    proxy.say(in_capsule(b"\x01hello"));
    assert_eq!(receiver.recv().await.unwrap(), Some((peer(1), Bytes::from_static(b"hello"))));
    assert_eq!(proxy.next_compression().await, Compression::Ack(1));
    assert_eq!(sender.send(peer(1), b"back"), SentPayload::Capsule);
    assert_eq!(proxy.next().await.value, &b"\x01back"[..]);
    // Those of others are dropped, and the tunnel goes on.
    proxy.say(in_capsule(b"\x05unknown"));
    proxy.say(in_capsule(b"\x02\x05malformed"));
    proxy.say(written(Compression::Close(1)));
    proxy.say(in_capsule(b"\x01late"));
    proxy.say(in_capsule(b"\x02\x04\xc0\0\x02\x01\0\x01again"));
    assert_eq!(receiver.recv().await.unwrap(), Some((peer(1), Bytes::from_static(b"again"))));
    // Without the uncompressed context, none is taken any more.
    sender.close_uncompressed();
    assert_eq!(proxy.next_compression().await, Compression::Close(2));
    assert_eq!(sender.send(peer(9), b"x"), SentPayload::Dropped);
    proxy.assign(3, Some(peer(2)));
    proxy.say.send_data(Bytes::new(), true).unwrap();
    assert_eq!(receiver.recv().await.unwrap(), None);
    assert_eq!(proxy.next_compression().await, Compression::Close(3));
}

/// draft-ietf-masque-connect-udp-listen §3, §4
#[tokio::test]
async fn a_proxy_that_breaks_the_rules_is_given_up() {
    for bytes in [
        written(Compression::Assign { context: 1, peer: None }),
        written(Compression::Assign { context: 4, peer: Some(peer(1)) }),
        written(Compression::Ack(4)),
        written(Compression::Assign { context: 1, peer: Some(peer(1)) }).repeat(2),
        vec![0x13, 1, 0],
        in_capsule(b"\0x"),
    ] {
        let (tunnel, mut proxy) = registered().await;
        let (sender, mut receiver) = tunnel.split();
        proxy.say(bytes.clone());
        let error = receiver.recv().await.unwrap_err();
        assert!(matches!(error, ProxyError::Broken(Cause::Protocol { code: None, .. })), "{bytes:?}: {error:?}");
        sender.abort("the proxy breaks the rules");
        assert!(proxy.heard.data().await.is_none_or(|data| data.is_err()), "no regular end");
    }
}

#[tokio::test]
async fn a_proxy_that_rejects_the_uncompressed_context_has_no_bound_udp() {
    let (mut tunnel, mut proxy) = pair().await;
    proxy.say(written(Compression::Close(2)));
    assert!(matches!(tunnel.register().await, Err(ProxyError::NoBoundUdp)));
    let (mut tunnel, mut proxy) = pair().await;
    proxy.say.send_data(Bytes::new(), true).unwrap();
    assert!(matches!(tunnel.register().await, Err(ProxyError::NoBoundUdp)));
}
