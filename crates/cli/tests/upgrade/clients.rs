//! Clients of all kinds in front of a gateway.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use tiderace::{ClientConfig, Endpoint, Profile, RustlsClient};
use tokio::{
    net::{TcpStream, UdpSocket},
    sync::mpsc,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::fleet::{Fleet, LIMIT};

/// Address and trust.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    certificate: Vec<u8>,
    /// Address that connections of TCP come from.
    from: [u8; 4],
}

impl Site {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        Self::new(fleet.address, &fleet.certificate)
    }

    /// A site at this address that shows this certificate.
    pub(crate) fn new(address: SocketAddr, certificate: &[u8]) -> Self {
        Self { address, certificate: certificate.to_owned(), from: [127, 0, 0, 1] }
    }

    /// The certificate.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The same site by another way.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// The same site for a client at this address, over TCP.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn coming_from(&self, from: [u8; 4]) -> Self {
        Self { from, ..self.clone() }
    }

    /// A connection over QUIC. The ClientHello has X25519MLKEM768 and takes two datagrams.
    pub(crate) async fn quic(&self) -> (Endpoint, tiderace::Connection) {
        self.quic_for("h3").await
    }

    /// The same with another protocol.
    pub(crate) async fn quic_for(&self, alpn: &str) -> (Endpoint, tiderace::Connection) {
        let tls = RustlsClient::builder().roots([self.certificate.clone()]).alpn(alpn).build().unwrap();
        let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
        let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
        let endpoint = Endpoint::client_for(self.address).unwrap();
        let connection = endpoint.connect(&config, self.address, "localhost").unwrap().await.unwrap();
        (endpoint, connection)
    }

    pub(crate) async fn h3(&self) -> (Endpoint, h3_quic::client::SendRequest) {
        let (endpoint, connection) = self.quic().await;
        (endpoint, h3_quic::client::begin(connection).await.unwrap())
    }

    async fn tls(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(self.certificate.clone())).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((self.from, 0).into()).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    pub(crate) async fn h2(&self) -> hyper::client::conn::http2::SendRequest<Empty<Bytes>> {
        let io = TokioIo::new(self.tls(b"h2").await);
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub(crate) async fn h1(&self) -> hyper::client::conn::http1::SendRequest<Empty<Bytes>> {
        let io = TokioIo::new(self.tls(b"http/1.1").await);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

/// A NAT between one client and the server: it gives the client another port whenever it is told to, and goes on to the next of several
/// addresses of the server.
pub(crate) struct Nat {
    pub(crate) address: SocketAddr,
    pub(crate) rebind: mpsc::Sender<()>,
}

impl Nat {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        Self::before_all(vec![server]).await
    }

    pub(crate) async fn before_all(servers: Vec<SocketAddr>) -> Self {
        Self::with(servers, true).await
    }

    /// The same with one port for ever: when it is told to, it only goes on to the next address of the server.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) async fn rerouting(servers: Vec<SocketAddr>) -> Self {
        Self::with(servers, false).await
    }

    async fn with(servers: Vec<SocketAddr>, rebinds: bool) -> Self {
        // Of the family of the server.
        let any = SocketAddr::new(servers[0].ip(), 0);
        let inside = UdpSocket::bind(any).await.unwrap();
        let mut outside = UdpSocket::bind(any).await.unwrap();
        let address = inside.local_addr().unwrap();
        let (rebind, mut wishes) = mpsc::channel(1);
        tokio::spawn(async move {
            let (mut client, mut number) = (None, 0);
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    Ok((len, from)) = inside.recv_from(&mut up) => {
                        client = Some(from);
                        let _ = outside.send_to(&up[..len], servers[number % servers.len()]).await;
                    }
                    Ok((len, _)) = outside.recv_from(&mut down) => {
                        let Some(client) = client else { continue };
                        let _ = inside.send_to(&down[..len], client).await;
                    }
                    wish = wishes.recv() => match wish {
                        // The port before is taken until the new one is bound, so that they differ.
                        Some(()) => {
                            if rebinds {
                                outside = UdpSocket::bind(any).await.unwrap();
                            }
                            number += 1;
                        }
                        None => return,
                    }
                }
            }
        });
        Self { address, rebind }
    }
}

pub(crate) fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("https://localhost/{path}")).body(Empty::new()).unwrap()
}

pub(crate) fn get1(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("/{path}")).header("host", "localhost").body(Empty::new()).unwrap()
}

/// The whole content of a good response.
pub(crate) async fn content<B>(response: Response<B>) -> Bytes
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Reads a body piece by piece over a time that the caller ends: then the rest at once. Returns all of it.
pub(crate) async fn read_slowly<B>(response: Response<B>, is_over: impl Fn() -> bool) -> Vec<u8>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        // Most of it waits at the server, behind flow control.
        if !is_over() && all.len() < crate::fleet::LARGE / 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A client that takes nothing for `limits.read-timeout` would lose its answer.
        let since = Instant::now();
        while !is_over() && all.len() >= crate::fleet::LARGE / 2 && since.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    all
}
