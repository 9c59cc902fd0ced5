//! A gateway in a directory of its own, back ends behind it, and clients of all kinds in front.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod actor;
pub mod books;
pub mod client;
pub mod wire;

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use self::books::Books;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use tiderace::{ClientConfig, Endpoint, Profile, RustlsClient};
use tiderace_edge::Process;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, Error>;

pub fn full(data: impl Into<Bytes>) -> Body {
    Full::new(data.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A directory that is removed in the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tiderace-edge-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, data: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, data).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Time limit of a test: a test that hangs ends, and a slow machine does not turn it red.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The profile of clients: a handshake has as long as a test.
pub fn patient() -> Profile {
    Profile { handshake_timeout: LIMIT, ..Profile::default() }
}

/// Waits for what has to come.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it comes")
}

/// Waits until `what` is `expected`.
pub async fn until<T: PartialEq + std::fmt::Debug>(what: impl Fn() -> T, expected: T) {
    let begun = Instant::now();
    while what() != expected {
        assert!(begun.elapsed() < LIMIT, "{:?} does not become {expected:?}", what());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A gateway that runs. What is first goes first: the gateway, a look at its books, and the directory with the access log.
pub struct Site {
    pub process: Arc<Process>,
    pub certificate: Vec<u8>,
    pub address: SocketAddr,
    pub books: Books,
    pub directory: Directory,
}

/// A configuration with an access log, if it says nothing about one.
fn with_log(rest: &str) -> String {
    let log = if rest.contains("[log]") { "" } else { "\n[log]\naccess = \"access.log\"\n" };
    format!("{TOP}{rest}{log}")
}

pub const TOP: &str =
    "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\ndrain = \"5 s\"\n";

impl Site {
    /// Starts a gateway with `rest` behind the first lines of its configuration.
    pub fn start(name: &str, rest: &str) -> Self {
        Self::start_with(name, rest, |_| {})
    }

    /// As [`start`](Self::start), when `prepare` has written files.
    pub fn start_with(name: &str, rest: &str, prepare: impl FnOnce(&Directory)) -> Self {
        let directory = Directory::new(name);
        prepare(&directory);
        let certificate = write_certificate(&directory, "localhost");
        let file = directory.write("edge.toml", with_log(rest));
        let process = Process::start(&file).unwrap_or_else(|error| panic!("{error}"));
        let log = directory.0.join("access.log");
        let books = Books::of(&process, log.exists().then_some(log));
        Self::of(process, certificate, books, directory)
    }

    pub fn of(process: Arc<Process>, certificate: Vec<u8>, books: Books, directory: Directory) -> Self {
        let address = process.addresses()[0];
        Self { process, certificate, address, books, directory }
    }

    pub fn configure(&self, rest: &str) {
        self.directory.write("edge.toml", with_log(rest));
    }

    pub async fn tls(&self, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        connect_tls(self.address, &self.certificate, alpn).await.unwrap()
    }

    pub async fn h1(&self) -> hyper::client::conn::http1::SendRequest<Body> {
        let stream = self.tls(&[b"http/1.1"]).await;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    pub async fn h2(&self) -> hyper::client::conn::http2::SendRequest<Body> {
        let stream = self.tls(&[b"h2"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let io = TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub async fn quic(&self, alpn: &[u8]) -> (Endpoint, tiderace::Connection) {
        self.try_quic(alpn).await.unwrap()
    }

    pub async fn try_quic(&self, alpn: &[u8]) -> Result<(Endpoint, tiderace::Connection), Error> {
        self.quic_with(alpn, patient()).await
    }

    pub async fn quic_with(&self, alpn: &[u8], profile: Profile) -> Result<(Endpoint, tiderace::Connection), Error> {
        let tls = RustlsClient::builder().roots([self.certificate.clone()]).alpn(alpn).build()?;
        let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
        let endpoint = Endpoint::client_for(self.address)?;
        let connection = endpoint.connect(&config, self.address, "localhost")?.await?;
        Ok((endpoint, connection))
    }

    /// Connection of a client that may have a ticket, and whether it has: then its handshake is in progress.
    pub async fn returning(
        &self,
        tls: &Arc<RustlsClient>,
    ) -> Result<(Endpoint, tiderace::Connection, bool), tiderace::ConnectError> {
        let config = ClientConfig::new(tls.clone(), Arc::new(patient()));
        let endpoint = Endpoint::client_for(self.address).unwrap();
        let (connection, is_early) = match endpoint.connect(&config, self.address, "localhost")?.into_early() {
            Ok(connection) => (connection, true),
            Err(connecting) => (connecting.await?, false),
        };
        Ok((endpoint, connection, is_early))
    }

    pub async fn h3(&self) -> (Endpoint, h3_quic::client::SendRequest) {
        let (endpoint, connection) = self.quic(b"h3").await;
        (endpoint, h3_quic::client::begin(connection).await.unwrap())
    }

    /// The value of a line of the figures.
    pub fn figure(&self, line: &str) -> f64 {
        let text = self.process.figures();
        let found = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().unwrap())
    }
}

pub async fn connect_tls(address: SocketAddr, root: &[u8], alpn: &[&[u8]]) -> Result<TlsStream<TcpStream>, Error> {
    connect_tls_over(TcpStream::connect(address).await?, root, alpn).await
}

/// TLS over a connection that is open.
pub async fn connect_tls_over(stream: TcpStream, root: &[u8], alpn: &[&[u8]]) -> Result<TlsStream<TcpStream>, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(root.to_vec()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    stream.set_nodelay(true)?;
    Ok(TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost")?, stream).await?)
}

/// Writes a certificate and its key; gives the certificate.
pub fn write_certificate(directory: &Directory, name: &str) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    directory.write("key.pem", made.signing_key.serialize_pem());
    directory.write("cert.pem", made.cert.pem());
    made.cert.der().to_vec()
}

/// A back end of HTTP/1.1, or of HTTP/2 without TLS.
pub struct BackEnd {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl BackEnd {
    /// One that counts the requests that have come whole.
    pub async fn counting() -> (Self, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counting = count.clone();
        let back_end = Self::start(move |request: Request<Incoming>| {
            let counting = counting.clone();
            async move {
                if request.into_body().collect().await.is_ok() {
                    counting.fetch_add(1, Ordering::Relaxed);
                }
                Response::new(full("ok"))
            }
        })
        .await;
        (back_end, count)
    }

    pub async fn start<S, F>(service: S) -> Self
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().unwrap(), false, service).await
    }

    pub async fn start_at<S, F>(address: SocketAddr, h2: bool, service: S) -> Self
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            // Connections end with the listener.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service.clone();
                // A set keeps the tasks that have ended until somebody asks for them.
                while connections.try_join_next().is_some() {}
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let answer = service(request);
                        async move { Ok::<_, Infallible>(answer.await) }
                    });
                    let io = TokioIo::new(stream);
                    if h2 {
                        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(io, service).await;
                    } else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        let _ = builder.serve_connection(io, service).with_upgrades().await;
                    }
                });
            }
        });
        Self { address, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Says back what it was asked, with the fields as JSON and the content's length.
pub async fn mirror(request: Request<Incoming>) -> Response<Body> {
    let fields: serde_json::Map<String, serde_json::Value> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into()))
        .collect();
    let (method, uri, version) =
        (request.method().to_string(), request.uri().to_string(), format!("{:?}", request.version()));
    let content = request.into_body().collect().await.map_or(0, |content| content.to_bytes().len());
    let said = serde_json::json!({
        "method": method, "uri": uri, "version": version, "fields": fields, "content": content
    });
    Response::builder().header("content-type", "application/json").body(full(said.to_string())).unwrap()
}

pub async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

pub fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(full("")).unwrap()
}

/// A request for HTTP/1.1, which has its host in a field.
pub fn get1(path: &str) -> Request<Body> {
    Request::get(path).header("host", "localhost").body(full("")).unwrap()
}

pub fn pattern(len: usize) -> Bytes {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
