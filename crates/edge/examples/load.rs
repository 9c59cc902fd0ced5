//! Load for a server of HTTP: as many requests as asked for, over connections that each have a number of them in progress.
//!
//! ```sh
//! cargo run --profile dist -p tiderace-edge --example load -- h3 127.0.0.1:8443 root.pem /small 4 16 20000
//! ```
//!
//! Protocol (`h3` or `h2`), address, root certificate, path, connections, requests at a time on each of them, requests in all.
//! The server has to have a certificate for `localhost`, and TLS_AES_128_GCM_SHA256: nothing else is offered, so that servers with other
//! preferences do the same work. Prints requests, bytes of content and seconds; the first answer that
//! is not 200 ends it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tiderace::{ClientConfig, Endpoint, Profile, RustlsClient, transport::crypto::CipherSuite};
use tokio::net::TcpStream;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Requests to make, and counts of the made ones.
struct Work {
    left: AtomicU64,
    done: AtomicU64,
    bytes: AtomicU64,
}

impl Work {
    fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    async fn read<B>(&self, response: Response<B>) -> Result<(), Error>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Error>,
    {
        if response.status() != 200 {
            return Err(format!("the server answers {}", response.status()).into());
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let length = frame.map_err(Into::into)?.data_ref().map_or(0, Bytes::len);
            self.bytes.fetch_add(length as u64, Relaxed);
        }
        self.done.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, address, root, path, connections, parallel, requests] = &arguments[..] else {
        return Err("expected: h3|h2 ADDRESS ROOT PATH CONNECTIONS PARALLEL REQUESTS".into());
    };
    let address: SocketAddr = address.parse()?;
    let (connections, parallel): (usize, usize) = (connections.parse()?, parallel.parse()?);
    let root = std::fs::read(root)?;
    let uri = format!("https://localhost:{}{path}", address.port());
    let work =
        Arc::new(Work { left: AtomicU64::new(requests.parse()?), done: AtomicU64::new(0), bytes: AtomicU64::new(0) });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let is_h3 = protocol == "h3";
    let seconds = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        let mut ready = Vec::new();
        for _ in 0..connections {
            ready.push(if is_h3 {
                HttpClient::h3(address, &root).await?
            } else {
                HttpClient::h2(address, &root).await?
            });
        }
        let begun = Instant::now();
        for way in ready {
            for _ in 0..parallel {
                let (mut way, work, uri) = (way.clone(), work.clone(), uri.clone());
                tasks.spawn(async move {
                    while work.take() {
                        let request = Request::get(&uri).body(Empty::<Bytes>::new())?;
                        way.send(request, &work).await?;
                    }
                    Ok::<_, Error>(())
                });
            }
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok::<_, Error>(begun.elapsed().as_secs_f64())
    })?;
    println!("{} {} {seconds}", work.done.load(Relaxed), work.bytes.load(Relaxed));
    Ok(())
}

/// A connection.
#[derive(Clone)]
enum HttpClient {
    /// The endpoint lives as long as its connection.
    H3 {
        sender: h3_quic::client::SendRequest,
        _endpoint: Arc<Endpoint>,
    },
    H2(hyper::client::conn::http2::SendRequest<Empty<Bytes>>),
}

impl HttpClient {
    async fn h3(address: SocketAddr, root: &[u8]) -> Result<Self, Error> {
        let tls =
            RustlsClient::builder().roots_pem(root)?.alpn("h3").cipher_suites([CipherSuite::Aes128Gcm]).build()?;
        let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
        let endpoint = Arc::new(Endpoint::client_for(address)?);
        let connection = endpoint.connect(&config, address, "localhost")?.await?;
        Ok(Self::H3 { sender: h3_quic::client::begin(connection).await?, _endpoint: endpoint })
    }

    async fn h2(address: SocketAddr, root: &[u8]) -> Result<Self, Error> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(root) {
            roots.add(certificate?)?;
        }
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        // As much as a client over HTTP/3 lets come.
        builder.initial_stream_window_size(8 * 1024 * 1024).initial_connection_window_size(16 * 1024 * 1024);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self::H2(sender))
    }

    async fn send(&mut self, request: Request<Empty<Bytes>>, work: &Work) -> Result<(), Error> {
        match self {
            Self::H3 { sender, .. } => work.read(sender.send(request).await?).await,
            Self::H2(sender) => {
                sender.ready().await?;
                work.read(sender.send_request(request).await?).await
            }
        }
    }
}
