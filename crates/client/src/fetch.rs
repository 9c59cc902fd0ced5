//! A request over whichever way is there first.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri, Version, header};
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tiderace::{ClientConfig, CloseReason, ConnectError, Endpoint, Profile, RustlsClient};
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet};
use tokio_rustls::{TlsConnector, client::TlsStream};
use units::Instant;

use crate::{
    alt_svc,
    goodbye::Goodbyes,
    memory::{Memory, Network},
    probe::Prober,
    race::{Action, Avoided, Input, Leg, Plan, Race, Verdict},
};

/// Whom a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// What the platform trusts.
    Platform,
    /// The root certificates in this PEM text, and no others.
    Pem(Vec<u8>),
}

/// A request could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The URL is none that can be asked for.
    #[error("{0}")]
    Url(String),
    /// The roots cannot be used.
    #[error("{0}")]
    Trust(String),
    /// The name has no address.
    #[error("cannot find the host `{host}`: {why}")]
    Resolve {
        /// The host.
        host: String,
        /// What the system says.
        why: io::Error,
    },
    /// Neither way leads there.
    #[error("neither QUIC nor TCP leads to the server: {quic}; {tcp}")]
    Unreachable {
        /// Why QUIC failed.
        quic: String,
        /// Why TCP failed.
        tcp: String,
    },
    /// The exchange failed.
    #[error("the exchange failed: {0}")]
    Exchange(String),
}

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A response, and how it was come by.
pub struct Fetched {
    /// The response; its body comes as it is read.
    pub response: Response<ResponseBody>,
    /// `h3`, `h2` or `http/1.1`.
    pub protocol: &'static str,
    /// From the beginning to the response's fields.
    pub first_byte: Duration,
    /// Where HTTP/3 is to be had, if the response says so.
    pub alternative: Option<alt_svc::Alternative>,
    /// The verdict, as soon as there is one: evidence may still be collected.
    pub verdict: tokio::task::JoinHandle<Option<Verdict>>,
}

/// Makes requests, and remembers what came of them.
pub struct Client {
    quic: RustlsClient,
    tcp: Arc<rustls::ClientConfig>,
    profile: Arc<Profile>,
    memory: Arc<Mutex<Memory>>,
    goodbyes: Arc<Goodbyes>,
    started: std::time::Instant,
}

/// What a leg has come to.
enum Came {
    Quic(Arc<Endpoint>, tiderace::Connection),
    QuicFailed(ConnectError),
    Tcp(Box<TlsStream<TcpStream>>),
    TcpConnected,
    TcpFailed(io::Error),
    Heard,
}

impl Client {
    /// A client with an empty memory.
    ///
    /// # Errors
    /// When the roots cannot be used.
    pub fn new(trust: &Trust) -> Result<Self, FetchError> {
        let refused = |error: &dyn std::fmt::Display| FetchError::Trust(error.to_string());
        let quic = RustlsClient::builder().alpn(h3_quic::ALPN);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tcp = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&error))?;
        let (quic, mut tcp) = match trust {
            Trust::Platform => {
                let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| refused(&error))?;
                let tcp = tcp.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
                (quic.platform_roots(), tcp)
            }
            Trust::Pem(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let added = certificate.map_err(|error| refused(&error))?;
                    roots.add(added).map_err(|error| refused(&error))?;
                }
                let quic = quic.roots_pem(pem).map_err(|error| refused(&error))?;
                (quic, tcp.with_root_certificates(roots).with_no_client_auth())
            }
        };
        tcp.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            quic: quic.build().map_err(|error| refused(&error))?,
            tcp: Arc::new(tcp),
            profile: Arc::new(Profile::default()),
            memory: Arc::default(),
            goodbyes: Arc::default(),
            started: std::time::Instant::now(),
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Asks for `url`. With `only`, this way alone is tried. `udp` is where QUIC is spoken, when that is not the URL's own
    /// address.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, url: &str, only: Option<Leg>, udp: Option<SocketAddr>) -> Result<Fetched, FetchError> {
        let uri: Uri = url.parse().map_err(|error| FetchError::Url(format!("`{url}` is no URL: {error}")))?;
        if uri.scheme_str() != Some("https") {
            return Err(FetchError::Url(format!("`{url}` is no https URL")));
        }
        let host = uri.host().ok_or_else(|| FetchError::Url(format!("`{url}` has no host")))?.to_owned();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let resolve = |why| FetchError::Resolve { host: host.clone(), why };
        let addresses: Vec<SocketAddr> =
            tokio::net::lookup_host((host.as_str(), port)).await.map_err(resolve)?.collect();
        let first = *addresses.first().ok_or_else(|| resolve(io::ErrorKind::NotFound.into()))?;
        let udp = udp.unwrap_or(first);
        let origin = format!("{host}:{port}");
        let network = Network(local_address(udp).unwrap_or(first.ip()));
        let mut plan = match only {
            None => self.memory().plan(self.now(), network, &origin),
            Some(Leg::Quic) => Plan { head_start: Duration::from_secs(3_600), ..Plan::default() },
            Some(Leg::Tcp) => Plan { quic: Err(Avoided::Unwanted), ..Plan::default() },
        };
        if only == Some(Leg::Quic) {
            plan.judge_after = Duration::from_secs(3_600);
        }
        let mut run = Run {
            race: Race::new(self.now(), plan),
            started: self.started,
            legs: JoinSet::new(),
            prober: None,
            quic: None,
            tcp: None,
            wrong: ["it was not tried".to_owned(), "it was not tried".to_owned()],
            addresses,
            udp,
            host,
            config: ClientConfig::new(Arc::new(self.quic.clone()), self.profile.clone()),
            tls: self.tcp.clone(),
            tcp_allowed: only != Some(Leg::Quic),
            goodbyes: self.goodbyes.clone(),
            events: mpsc::unbounded_channel(),
            begun: self.now(),
            handshake: None,
        };
        let begun = std::time::Instant::now();
        let leg = run.until_used().await?;
        let request =
            Request::get(uri.clone()).header(header::USER_AGENT, concat!("tiderace/", env!("CARGO_PKG_VERSION")));
        let (response, protocol) = match leg {
            Leg::Quic => over_quic(run.quic.take(), request).await?,
            Leg::Tcp => over_tcp(run.tcp.take(), request, &uri).await?,
        };
        let first_byte = begun.elapsed();
        let alternative =
            response.headers().get(header::ALT_SVC).and_then(|value| alt_svc::http3(value.to_str().ok()?));
        let (memory, started) = (self.memory.clone(), self.started);
        let verdict = tokio::spawn(async move {
            let verdict = run.until_judged().await?;
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.learn(Instant::ZERO + started.elapsed(), network, &origin, verdict, run.handshake);
            Some(verdict)
        });
        Ok(Fetched { response, protocol, first_byte, alternative, verdict })
    }

    /// Closes the connections that are open, those of answers that were not read to their end included, and tells their
    /// servers. Whoever ends the runtime without this leaves servers to find out by their idle timeout. Takes at most a
    /// fraction of a second.
    pub async fn close(self) {
        self.goodbyes.say().await;
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that this host has on the way to `remote`. Nothing is sent.
fn local_address(remote: SocketAddr) -> Option<std::net::IpAddr> {
    let any: SocketAddr = if remote.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(remote).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A race over real sockets.
struct Run {
    race: Race,
    started: std::time::Instant,
    legs: JoinSet<Came>,
    prober: Option<Arc<Prober>>,
    quic: Option<(Arc<Endpoint>, tiderace::Connection)>,
    tcp: Option<Box<TlsStream<TcpStream>>>,
    /// What was wrong with QUIC and TCP.
    wrong: [String; 2],
    addresses: Vec<SocketAddr>,
    udp: SocketAddr,
    host: String,
    config: ClientConfig,
    tls: Arc<rustls::ClientConfig>,
    tcp_allowed: bool,
    goodbyes: Arc<Goodbyes>,
    events: (mpsc::UnboundedSender<Came>, mpsc::UnboundedReceiver<Came>),
    begun: Instant,
    handshake: Option<Duration>,
}

impl Run {
    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Goes on until a leg is to be used.
    async fn until_used(&mut self) -> Result<Leg, FetchError> {
        loop {
            while let Some(action) = self.race.poll_action() {
                match action {
                    Action::Use(leg) => return Ok(leg),
                    Action::Fail => {
                        let [quic, tcp] = self.wrong.clone();
                        return Err(FetchError::Unreachable { quic, tcp });
                    }
                    other => self.act(other).await,
                }
            }
            self.step().await;
        }
    }

    /// Goes on until there is a verdict.
    async fn until_judged(&mut self) -> Option<Verdict> {
        loop {
            while let Some(action) = self.race.poll_action() {
                self.act(action).await;
            }
            if let Some(verdict) = self.race.verdict() {
                return Some(verdict);
            }
            self.race.poll_timeout()?;
            self.step().await;
        }
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Start(Leg::Quic) => {
                let (config, remote, host) = (self.config.clone(), self.udp, self.host.clone());
                let (goodbyes, events) = (self.goodbyes.clone(), self.events.0.clone());
                self.legs.spawn(connect_quic(config, remote, host, goodbyes, events));
            }
            Action::Start(Leg::Tcp) if !self.tcp_allowed => {
                let why = io::Error::other("it is not wanted");
                let _ = self.events.0.send(Came::TcpFailed(why));
            }
            Action::Start(Leg::Tcp) => {
                let (addresses, tls, host, events) =
                    (self.addresses.clone(), self.tls.clone(), self.host.clone(), self.events.0.clone());
                self.legs.spawn(async move {
                    match connect_tcp(addresses, tls, host, events).await {
                        Ok(stream) => Came::Tcp(Box::new(stream)),
                        Err(error) => Came::TcpFailed(error),
                    }
                });
            }
            Action::Ask => {
                if self.prober.is_none()
                    && let Ok(prober) = Prober::new(self.udp).await
                {
                    let prober = Arc::new(prober);
                    self.prober = Some(prober.clone());
                    self.legs.spawn(async move {
                        prober.answered().await;
                        Came::Heard
                    });
                }
                if let Some(prober) = &self.prober {
                    prober.ask().await;
                }
            }
            Action::Use(_) | Action::Fail | Action::Done => {}
        }
    }

    /// Waits for what happens next, and tells the race.
    async fn step(&mut self) {
        let now = self.now();
        let wait = self.race.poll_timeout().map(|(at, _)| at.saturating_since(now));
        let sleep = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        let came = tokio::select! {
            Some(Ok(came)) = self.legs.join_next() => Some(came),
            Some(came) = self.events.1.recv() => Some(came),
            () = sleep => None,
        };
        let now = self.now();
        match came {
            None => self.race.handle_timeout(now),
            Some(Came::Heard) => self.race.handle(now, Input::Heard),
            Some(Came::TcpConnected) => self.race.handle(now, Input::TcpConnected),
            Some(Came::Tcp(stream)) => {
                self.tcp = Some(stream);
                self.race.handle(now, Input::TcpReady);
            }
            Some(Came::TcpFailed(error)) => {
                self.wrong[1] = format!("TCP: {error}");
                self.race.handle(now, Input::TcpFailed);
            }
            Some(Came::Quic(endpoint, connection)) => {
                self.quic = Some((endpoint, connection));
                self.handshake = Some(now.saturating_since(self.begun));
                self.race.handle(now, Input::QuicReady);
            }
            Some(Came::QuicFailed(error)) => {
                let input = match &error {
                    // Only what the server itself has said is a refusal.
                    ConnectError::Closed(
                        CloseReason::VersionMismatch { .. }
                        | CloseReason::PeerClosed { .. }
                        | CloseReason::PeerApplication { .. },
                    ) => Input::QuicRefused,
                    _ => Input::QuicFailed,
                };
                self.wrong[0] = format!("QUIC: {error}");
                self.race.handle(now, input);
            }
        }
    }
}

async fn connect_quic(
    config: ClientConfig,
    remote: SocketAddr,
    host: String,
    goodbyes: Arc<Goodbyes>,
    events: mpsc::UnboundedSender<Came>,
) -> Came {
    let endpoint = match Endpoint::client_for(remote) {
        Ok(endpoint) => Arc::new(endpoint),
        Err(error) => {
            tracing::debug!("no socket for QUIC: {error}");
            return Came::QuicFailed(ConnectError::EndpointClosed);
        }
    };
    let connecting = match endpoint.connect(&config, remote, &host) {
        Ok(connecting) => connecting,
        Err(error) => return Came::QuicFailed(error),
    };
    goodbyes.await_of(endpoint.clone());
    let mut connecting = std::pin::pin!(connecting);
    // Whether anything was heard is looked at now and then: it matters to the verdict, and not to the millisecond.
    let mut look = tokio::time::interval(Duration::from_millis(25));
    let mut heard = false;
    loop {
        tokio::select! {
            connected = connecting.as_mut() => return match connected {
                Ok(connection) => Came::Quic(endpoint, connection),
                Err(error) => Came::QuicFailed(error),
            },
            _ = look.tick(), if !heard => {
                heard = endpoint.socket_stats().receive_calls > 0;
                if heard {
                    let _ = events.send(Came::Heard);
                }
            }
        }
    }
}

/// Tries the addresses one after the other, the next when one takes long (RFC 8305 §5).
async fn connect_tcp(
    addresses: Vec<SocketAddr>,
    tls: Arc<rustls::ClientConfig>,
    host: String,
    events: mpsc::UnboundedSender<Came>,
) -> io::Result<TlsStream<TcpStream>> {
    const NEXT: Duration = Duration::from_millis(250);
    let mut tries = JoinSet::new();
    let mut rest = addresses.into_iter();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let stream = loop {
        if let Some(address) = rest.next() {
            tries.spawn(TcpStream::connect(address));
        }
        tokio::select! {
            Some(Ok(connected)) = tries.join_next() => match connected {
                Ok(stream) => break stream,
                Err(error) => {
                    last = error;
                    if tries.is_empty() && rest.len() == 0 {
                        return Err(last);
                    }
                }
            },
            () = tokio::time::sleep(NEXT), if rest.len() > 0 => {}
            else => return Err(last),
        }
    };
    let _ = events.send(Came::TcpConnected);
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(tls).connect(name, stream).await
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

async fn over_quic(
    connection: Option<(Arc<Endpoint>, tiderace::Connection)>,
    request: http::request::Builder,
) -> Result<(Response<ResponseBody>, &'static str), FetchError> {
    let exchange = |error: &dyn std::fmt::Display| FetchError::Exchange(error.to_string());
    let (endpoint, connection) = connection.ok_or_else(|| exchange(&"the connection is gone"))?;
    let mut sender = h3_quic::client::begin(connection).await.map_err(|error| exchange(&error))?;
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| exchange(&error))?;
    let response = sender.send(request).await.map_err(|error| exchange(&error))?;
    // The body keeps the connection: it goes with it.
    let response = response.map(|body| {
        let mut keep = Some((endpoint, sender));
        body.map_err(Boxed::from)
            .map_frame(move |frame| {
                let _ = &mut keep;
                frame
            })
            .boxed_unsync()
    });
    Ok((response, "h3"))
}

async fn over_tcp(
    stream: Option<Box<TlsStream<TcpStream>>>,
    request: http::request::Builder,
    uri: &Uri,
) -> Result<(Response<ResponseBody>, &'static str), FetchError> {
    let exchange = |error: &dyn std::fmt::Display| FetchError::Exchange(error.to_string());
    let stream = *stream.ok_or_else(|| exchange(&"the connection is gone"))?;
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| exchange(&error))?;
    if is_h2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(|error| exchange(&error))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| exchange(&error))?;
        return Ok((response.map(|body| body.map_err(Boxed::from).boxed_unsync()), "h2"));
    }
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(|error| exchange(&error))?;
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    head.headers.insert(header::HOST, authority.parse().map_err(|error| exchange(&error))?);
    head.uri = uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(|error| exchange(&error))?;
    let response = sender.send_request(Request::from_parts(head, body)).await.map_err(|error| exchange(&error))?;
    Ok((response.map(|body| body.map_err(Boxed::from).boxed_unsync()), "http/1.1"))
}
