//! Private protocols: QUIC raced against QMux over TLS on TCP, so that the same streams and datagrams work on networks that block UDP.
//!
//! A protocol has different names (ALPN) over TCP and over QUIC (draft-ietf-quic-qmux §8.1).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_client::{Route, Settings, private::PrivateClient};
//!
//! // The protocol's names over QUIC and over TCP.
//! let client = PrivateClient::new(&Settings::default(), b"chat", b"chat-qx")?;
//! let connected = client.connect("chat.example.org", 443, &Route::default()).await?;
//! println!("over {}", connected.channel.protocol());
//! let (mut send, mut recv) = connected.channel.open_bi().await?;
//! send.write_chunk("hello".into()).await?;
//! send.finish()?;
//! while let Some(chunk) = recv.read_chunk(4096).await? {
//!     println!("{} bytes", chunk.len());
//! }
//! # Ok(())
//! # }
//! ```

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use capture::PacketFile;
use tiderace::{ClientConfig, CloseReason, Endpoint, Profile, transport::memory::ProcessBudget};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use units::Instant;

use crate::{
    closing::ClosingConnections,
    dial::{Destination, Dial, DialContext, Opened},
    error::{Cause, FetchError},
    fetch::{self, Route},
    local,
    memory::{Memory, Network},
    race::{Leg, Plan, SkipReason, Verdict},
    resolve::Resolver,
    settings::Settings,
    timeouts::{self, Timeouts},
    tls,
    upkeep::{Kept, Upkeep},
};

/// Connects to servers of one protocol, and remembers the outcomes.
pub struct PrivateClient {
    quic: ClientConfig,
    packets: Option<Arc<PacketFile>>,
    tcp: Arc<rustls::ClientConfig>,
    over_tcp_alpn: Vec<u8>,
    over_tcp: qmux::Config,
    resolver: Resolver,
    memory: Arc<Mutex<Memory>>,
    closing: Arc<ClosingConnections>,
    upkeep: Upkeep,
    timeouts: Timeouts,
    budget: ProcessBudget,
    started: std::time::Instant,
}

/// A connection, and how it was come by.
pub struct Connected {
    /// The connection.
    pub channel: Channel,
    /// From the beginning to the end of the handshake.
    pub handshake: Duration,
    /// The verdict, as soon as there is one: evidence may still be collected.
    pub verdict: tokio::task::JoinHandle<Option<Verdict>>,
}

/// The connection that was ready first.
pub(crate) enum Winner {
    Quic(Arc<Endpoint>, tiderace::Connection, Arc<Kept>),
    Tcp(Box<TlsStream<TcpStream>>),
}

/// A race with a winner that still collects evidence.
pub(crate) struct Evidence {
    dial: Dial,
    memory: Arc<Mutex<Memory>>,
    started: std::time::Instant,
    network: Network,
    origin: String,
}

impl Evidence {
    /// Waits for the verdict, and remembers it. Returns it with the connection over QUIC if that was ready after TCP.
    pub(crate) async fn judge(mut self) -> Option<(Verdict, Option<Opened>)> {
        let verdict = self.dial.until_judged().await?;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::ZERO + self.started.elapsed();
        memory.learn(now, self.network, &self.origin, verdict, self.dial.handshake);
        Some((verdict, self.dial.quic.take()))
    }
}

/// Connection over QUIC or QMux. Clones refer to the same one.
#[derive(Clone)]
pub enum Channel {
    /// Over UDP. The endpoint is the connection's own.
    Quic(Arc<Endpoint>, tiderace::Connection, Arc<Kept>),
    /// Over TCP.
    Qmux(qmux::Connection),
}

/// The sending half of a stream.
pub enum Sender {
    /// Over UDP.
    Quic(tiderace::SendStream),
    /// Over TCP.
    Qmux(qmux::SendStream),
}

/// The receiving half of a stream.
pub enum Receiver {
    /// Over UDP.
    Quic(tiderace::RecvStream),
    /// Over TCP.
    Qmux(qmux::RecvStream),
}

/// A stream, a datagram or the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The peer gave the stream up.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The peer wants no more of the stream.
    #[error("the peer asked to stop (code {0})")]
    Stopped(u64),
    /// Another reason, in words.
    #[error("{0}")]
    Over(String),
}

impl From<CloseReason> for Ended {
    fn from(reason: CloseReason) -> Self {
        Self::Over(reason.to_string())
    }
}

impl From<qmux::Closed> for Ended {
    fn from(closed: qmux::Closed) -> Self {
        Self::Over(closed.to_string())
    }
}

impl From<qmux::Refused> for Ended {
    fn from(refused: qmux::Refused) -> Self {
        match refused {
            qmux::Refused::Reset(code) => Self::Reset(code),
            qmux::Refused::Stopped(code) => Self::Stopped(code),
            other => Self::Over(other.to_string()),
        }
    }
}

impl From<tiderace::WriteError> for Ended {
    fn from(error: tiderace::WriteError) -> Self {
        match error {
            tiderace::WriteError::Stopped(code) => Self::Stopped(code),
            other => Self::Over(other.to_string()),
        }
    }
}

impl From<tiderace::ReadError> for Ended {
    fn from(error: tiderace::ReadError) -> Self {
        match error {
            tiderace::ReadError::Reset(code) => Self::Reset(code),
            other => Self::Over(other.to_string()),
        }
    }
}

impl PrivateClient {
    /// For a protocol with the name `quic` over QUIC, and `qmux` over TLS on TCP. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the settings cannot be used.
    pub fn new(settings: &Settings, quic: &[u8], qmux: &[u8]) -> Result<Self, FetchError> {
        let Settings { dns, tickets, idle_timeout, keep_alive, .. } = settings;
        let profile = Profile { idle_timeout: *idle_timeout, ..Profile::default() };
        let resolver = match dns {
            None => Resolver::system(),
            Some(server) => {
                let failed = |why| FetchError::Resolve { host: server.to_string(), why };
                Resolver::at(*server).map_err(failed)?
            }
        };
        // What a protocol may say twice, only its application knows: no early data.
        let tls = tls::quic(settings.authentication(), quic, tickets.as_deref(), false, settings.keys())?;
        Ok(Self {
            quic: ClientConfig { observe: settings.watch.observe.clone(), ..ClientConfig::new(tls, Arc::new(profile)) },
            packets: settings.watch.packets.clone(),
            over_tcp: qmux::Config { idle_timeout: *idle_timeout, keep_alive: *keep_alive, ..qmux::Config::default() },
            tcp: tls::tcp(settings.authentication(), &[qmux], settings.keys())?,
            over_tcp_alpn: qmux.to_vec(),
            resolver,
            memory: Arc::new(Mutex::new(Memory::new(settings.head_start))),
            closing: Arc::default(),
            upkeep: Upkeep::new(settings),
            timeouts: settings.timeouts,
            budget: settings.memory.clone(),
            started: std::time::Instant::now(),
        })
    }

    /// Connects to `host`. Of the route `fresh` has no meaning.
    ///
    /// # Errors
    /// When neither way leads there, or not within [`Timeouts::connect`].
    pub async fn connect(&self, host: &str, port: u16, route: &Route) -> Result<Connected, FetchError> {
        timeouts::connected(self.timeouts.connect, self.race(host, port, route)).await
    }

    async fn race(&self, host: &str, port: u16, route: &Route) -> Result<Connected, FetchError> {
        let begun = std::time::Instant::now();
        let (winner, evidence) = self.first(host, port, route).await?;
        let channel = match winner {
            Winner::Quic(endpoint, connection, kept) => Channel::Quic(endpoint, connection, kept),
            Winner::Tcp(stream) => {
                let connection = qmux::Connection::start(*stream, qmux::Side::Client, self.over_tcp.clone());
                connection
                    .connected()
                    .await
                    .map_err(|closed| FetchError::Exchange(Cause::other(closed.to_string())))?;
                Channel::Qmux(connection)
            }
        };
        let handshake = begun.elapsed();
        let verdict = tokio::spawn(async move { evidence.judge().await.map(|(verdict, _)| verdict) });
        Ok(Connected { channel, handshake, verdict })
    }

    /// Connects to `host`, within [`Timeouts::connect`]. Returns the connection that was ready first, and the race for its verdict.
    pub(crate) async fn connect_first(
        &self,
        host: &str,
        port: u16,
        route: &Route,
    ) -> Result<(Winner, Evidence), FetchError> {
        timeouts::connected(self.timeouts.connect, self.first(host, port, route)).await
    }

    async fn first(&self, host: &str, port: u16, route: &Route) -> Result<(Winner, Evidence), FetchError> {
        let resolve = |why| FetchError::Resolve { host: host.to_owned(), why };
        let addresses = self.resolver.addresses(host, port).await.map_err(resolve)?;
        let first: SocketAddr = addresses[0];
        let origin = format!("{host}:{port}");
        let network = Network(local::local_address(first).unwrap_or(first.ip()));
        let now = || Instant::ZERO + self.started.elapsed();
        let memory = || self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let long = Duration::from_secs(3_600);
        let plan = match route.only {
            None => memory().plan(now(), network, &origin),
            Some(Leg::Quic) => Plan { head_start: long, judge_after: long, ..Plan::default() },
            Some(Leg::Tcp) => Plan { quic: Err(SkipReason::Unwanted), ..Plan::default() },
        };
        let means = DialContext {
            started: self.started,
            quic: self.quic.clone(),
            tcp: self.tcp.clone(),
            closing: self.closing.clone(),
            memory: self.budget.clone(),
            tcp_observer: None,
            packets: self.packets.clone(),
            tcp_allowed: route.only != Some(Leg::Quic),
        };
        let quic = route.udp.map_or_else(|| fetch::routed(&addresses), |udp| vec![udp]);
        let to = Destination { host: host.to_owned(), tcp: addresses, quic };
        let mut dial = Dial::new(means, to, plan, None);
        let gone = || FetchError::Exchange(Cause::other("the connection is gone"));
        let winner = match dial.until_used().await? {
            Leg::Quic => self.keep(dial.quic.take().ok_or_else(gone)?),
            Leg::Tcp => {
                let stream = dial.tcp.take().ok_or_else(gone)?;
                // draft-ietf-quic-qmux §8.1 MUST: without an agreement on the protocol there is no connection.
                if stream.get_ref().1.alpn_protocol() != Some(&self.over_tcp_alpn[..]) {
                    return Err(FetchError::Exchange(Cause::Refused {
                        code: None,
                        reason: "the server does not speak the protocol over TCP".to_owned(),
                    }));
                }
                Winner::Tcp(stream)
            }
        };
        let (memory, started) = (self.memory.clone(), self.started);
        Ok((winner, Evidence { dial, memory, started, network, origin }))
    }

    /// Maintains a connection over QUIC as long as it is used.
    pub(crate) fn keep(&self, opened: Opened) -> Winner {
        let kept = self.upkeep.begin(opened.endpoint.clone(), opened.connection.clone());
        Winner::Quic(opened.endpoint, opened.connection, Arc::new(kept))
    }

    /// Connections that [`close`](Self::close) closes.
    pub(crate) fn closing(&self) -> &ClosingConnections {
        &self.closing
    }

    /// Closes the open connections over QUIC with CONNECTION_CLOSE; those over TCP are closed by [`Channel::close`].
    pub async fn close(&self) {
        self.closing.say().await;
    }
}

impl Channel {
    /// `quic` or `qmux`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Quic(..) => "quic",
            Self::Qmux(_) => "qmux",
        }
    }

    /// Opens a bidirectional stream, as soon as the peer allows.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_bi(&self) -> Result<(Sender, Receiver), Ended> {
        Ok(match self {
            Self::Quic(_, connection, _) => {
                let (send, recv) = connection.open_bi().await?;
                (Sender::Quic(send), Receiver::Quic(recv))
            }
            Self::Qmux(connection) => {
                let (send, recv) = connection.open_bi().await?;
                (Sender::Qmux(send), Receiver::Qmux(recv))
            }
        })
    }

    /// The next bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn accept_bi(&self) -> Result<(Sender, Receiver), Ended> {
        Ok(match self {
            Self::Quic(_, connection, _) => {
                let (send, recv) = connection.accept_bi().await?;
                (Sender::Quic(send), Receiver::Quic(recv))
            }
            Self::Qmux(connection) => {
                let (send, recv) = connection.accept_bi().await?;
                (Sender::Qmux(send), Receiver::Qmux(recv))
            }
        })
    }

    /// Queues a datagram. Over QUIC it may be lost; over QMux only while it waits here.
    ///
    /// # Errors
    /// When the peer does not accept this size, or the connection has ended.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), Ended> {
        match self {
            Self::Quic(_, connection, _) => {
                connection.send_datagram(data).map_err(|error| Ended::Over(error.to_string()))
            }
            Self::Qmux(connection) => Ok(connection.send_datagram(data)?),
        }
    }

    /// The next datagram of the peer.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn read_datagram(&self) -> Result<Bytes, Ended> {
        Ok(match self {
            Self::Quic(_, connection, _) => connection.read_datagram().await?,
            Self::Qmux(connection) => connection.read_datagram().await?,
        })
    }

    /// Closes the connection, and waits until the close was sent, or could not be sent in time.
    pub async fn close(&self, code: u64, reason: &str) {
        match self {
            Self::Quic(endpoint, connection, _) => {
                connection.close(code, reason.as_bytes());
                let _ = tokio::time::timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
            }
            Self::Qmux(connection) => {
                connection.close(code, reason);
                connection.gone().await;
            }
        }
    }
}

impl Sender {
    /// Writes all of `data`.
    ///
    /// # Errors
    /// When the peer has sent STOP_SENDING, or the stream or the connection has ended.
    pub async fn write_chunk(&mut self, data: Bytes) -> Result<(), Ended> {
        match self {
            Self::Quic(send) => Ok(send.write_chunk(data).await?),
            Self::Qmux(send) => Ok(send.write_chunk(data).await?),
        }
    }

    /// Ends the stream after the written data.
    ///
    /// # Errors
    /// When it has ended.
    pub fn finish(&mut self) -> Result<(), Ended> {
        match self {
            Self::Quic(send) => Ok(send.finish()?),
            Self::Qmux(send) => Ok(send.finish()?),
        }
    }

    /// Gives the stream up.
    ///
    /// # Errors
    /// When it has ended.
    pub fn reset(&mut self, code: u64) -> Result<(), Ended> {
        match self {
            Self::Quic(send) => Ok(send.reset(code)?),
            Self::Qmux(send) => Ok(send.reset(code)?),
        }
    }
}

impl Receiver {
    /// Up to `most` bytes; `None` at the end.
    ///
    /// # Errors
    /// When the peer has reset the stream, or the stream or the connection has ended.
    pub async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, Ended> {
        match self {
            Self::Quic(recv) => Ok(recv.read_chunk(most).await?),
            Self::Qmux(recv) => Ok(recv.read_chunk(most).await?),
        }
    }
}
