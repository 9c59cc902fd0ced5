//! Connections to a server, over HTTP/3 or HTTP/2.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    HandshakeKind,
    crypto::aws_lc_rs::kx_group,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tiderace::{
    ClientConfig, Endpoint, Profile, RustlsClient,
    transport::{crypto::CipherSuite, tls::rustls_backend::KeyExchange},
};
use tokio::net::TcpStream;

use crate::Error;

/// Sockets of a client over QUIC: a server with several threads shares clients out by the address that they come from.
const SOCKETS: usize = 16;

/// The code with which connections of HTTP/3 end that have done their work (RFC 9114 §8.1).
const H3_NO_ERROR: u64 = 0x100;

/// A client of one server, with what its connections have in common.
pub(crate) struct Client {
    address: SocketAddr,
    pub(crate) uri: String,
    transport: Transport,
}

enum Transport {
    Quic { config: ClientConfig, endpoints: Vec<Endpoint>, next: AtomicUsize },
    Tcp { config: Arc<rustls::ClientConfig> },
}

/// A connection.
#[derive(Clone)]
pub(crate) enum Connection {
    H3 { sender: h3_quic::client::SendRequest, connection: tiderace::Connection },
    H2(hyper::client::conn::http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    /// A client of a server at `address` that trusts the certificates `root` (PEM). `resume`: handshakes resume an earlier session. TLS 1.3
    /// with AES-128-GCM and X25519 is all that it offers.
    pub(crate) fn new(
        protocol: &str,
        address: SocketAddr,
        root: &[u8],
        path: &str,
        resume: bool,
    ) -> Result<Self, Error> {
        let transport = match protocol {
            "h3" => Transport::Quic {
                config: quic_config(root, resume)?,
                endpoints: (0..SOCKETS).map(|_| Endpoint::client_for(address)).collect::<Result<_, _>>()?,
                next: AtomicUsize::new(0),
            },
            "h2" => Transport::Tcp { config: Arc::new(tls_config(root, resume)?) },
            other => return Err(format!("the protocol is h3 or h2, not {other}").into()),
        };
        Ok(Self { address, uri: format!("https://localhost:{}{path}", address.port()), transport })
    }

    /// Opens a connection; also returns whether its handshake resumed a session.
    pub(crate) async fn connect(&self) -> Result<(Connection, bool), Error> {
        match &self.transport {
            Transport::Quic { config, endpoints, next } => {
                let endpoint = &endpoints[next.fetch_add(1, Relaxed) % endpoints.len()];
                let connection = endpoint.connect(config, self.address, "localhost")?.await?;
                let is_resumed = connection.stats().is_some_and(|stats| stats.resumed > 0);
                let sender = h3_quic::client::begin(connection.clone()).await?;
                Ok((Connection::H3 { sender, connection }, is_resumed))
            }
            Transport::Tcp { config } => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                let name = ServerName::try_from("localhost")?;
                let stream = tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await?;
                let is_resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
                let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
                // As much as a client over HTTP/3 lets come.
                builder.initial_stream_window_size(8 * 1024 * 1024).initial_connection_window_size(16 * 1024 * 1024);
                let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                Ok((Connection::H2(sender), is_resumed))
            }
        }
    }

    /// So many connections, opened some at a time. With `asks` each has carried a request: the first one does what later ones need not.
    pub(crate) async fn connect_all(
        self: &Arc<Self>,
        count: usize,
        at_a_time: usize,
        asks: bool,
    ) -> Result<Vec<Connection>, Error> {
        let (opened, mut all) = (Arc::new(AtomicUsize::new(0)), Vec::with_capacity(count));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..at_a_time.min(count) {
            let (client, opened) = (self.clone(), opened.clone());
            tasks.spawn(async move {
                let mut own = Vec::new();
                while opened.fetch_add(1, Relaxed) < count {
                    let (mut connection, _) = client.connect().await?;
                    if asks {
                        connection.get(&client.uri).await?;
                    }
                    own.push(connection);
                }
                Ok::<_, Error>(own)
            });
        }
        while let Some(ended) = tasks.join_next().await {
            all.extend(ended??);
        }
        Ok(all)
    }

    /// Closes all connections over QUIC and waits until the server has been told. Those over HTTP/2 end with their last handle.
    pub(crate) async fn end(&self) {
        if let Transport::Quic { endpoints, .. } = &self.transport {
            for endpoint in endpoints {
                endpoint.close(H3_NO_ERROR, b"");
                endpoint.wait_idle().await;
            }
        }
    }
}

impl Connection {
    /// Asks for the object and reads all of it; returns the bytes of its content.
    pub(crate) async fn get(&mut self, uri: &str) -> Result<u64, Error> {
        let request = Request::get(uri).body(Empty::<Bytes>::new())?;
        match self {
            Self::H3 { sender, .. } => read(sender.send(request).await?).await,
            Self::H2(sender) => {
                sender.ready().await?;
                read(sender.send_request(request).await?).await
            }
        }
    }

    /// Closes it. One over HTTP/2 is closed when its last handle is gone.
    pub(crate) fn close(self) {
        if let Self::H3 { connection, .. } = self {
            connection.close(H3_NO_ERROR, b"");
        }
    }
}

async fn read<B>(response: Response<B>) -> Result<u64, Error>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Error>,
{
    if response.status() != 200 {
        return Err(format!("the server answers {}", response.status()).into());
    }
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame.map_err(Into::into)?.data_ref().map_or(0, Bytes::len) as u64;
    }
    Ok(bytes)
}

fn quic_config(root: &[u8], resume: bool) -> Result<ClientConfig, Error> {
    let builder = RustlsClient::builder().roots_pem(root)?.alpn("h3").cipher_suites([CipherSuite::Aes128Gcm]);
    let builder = builder.key_exchanges([KeyExchange::X25519]);
    let tls = if resume { builder.build()? } else { builder.without_resumption().build()? };
    Ok(ClientConfig::new(Arc::new(tls), Arc::new(Profile::default())))
}

fn tls_config(root: &[u8], resume: bool) -> Result<rustls::ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(root) {
        roots.add(certificate?)?;
    }
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider.kx_groups = vec![kx_group::X25519];
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    if !resume {
        config.resumption = rustls::client::Resumption::disabled();
    }
    Ok(config)
}
