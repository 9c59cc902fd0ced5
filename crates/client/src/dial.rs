//! Race over real sockets: executes the actions of [`race`](crate::race), and reports their outcomes to it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use capture::PacketFile;
use http::{Request, Response};
use rustls::pki_types::ServerName;
use tiderace::{
    ClientConfig, CloseReason, ConnectError, Endpoint, EndpointOptions, Tap,
    transport::{Code, memory::ProcessBudget},
};
use tokio::{net::TcpStream, sync::mpsc, sync::oneshot, task::JoinSet};
use tokio_rustls::{TlsConnector, client::TlsStream};
use units::Instant;

use crate::{
    body::{RequestBody, ResponseBody},
    closing::ClosingConnections,
    error::{Cause, FetchError},
    link::{Failed, Quic},
    local::any,
    packets::PacketTap,
    probe::Prober,
    race::{Action, Input, Leg, Plan, Race, Verdict},
    settings::TcpObserver,
    timeouts::Waited,
};

/// An answer that is in progress.
pub(crate) type Answer = oneshot::Receiver<Result<Response<ResponseBody>, Failed>>;
/// A request that is in progress on a connection that was there before.
pub(crate) type Pending = Waited<Result<Response<ResponseBody>, Failed>>;

/// Addresses of a race.
#[derive(Clone)]
pub(crate) struct Destination {
    /// The name that certificates have to be for.
    pub(crate) host: String,
    /// Best first.
    pub(crate) tcp: Vec<SocketAddr>,
    /// Best first; empty where QUIC has nowhere to go.
    pub(crate) quic: Vec<SocketAddr>,
}

/// Resources of a race.
pub(crate) struct DialContext {
    /// The origin of the race's times.
    pub(crate) started: std::time::Instant,
    pub(crate) quic: ClientConfig,
    pub(crate) tcp: Arc<rustls::ClientConfig>,
    /// Receives sockets of TCP.
    pub(crate) tcp_observer: Option<Arc<dyn TcpObserver>>,
    pub(crate) closing: Arc<ClosingConnections>,
    /// Budget that connections over QUIC are charged to.
    pub(crate) memory: ProcessBudget,
    /// File for the packets of connections over QUIC.
    pub(crate) packets: Option<Arc<PacketFile>>,
    /// Without this TCP only fails.
    pub(crate) tcp_allowed: bool,
}

/// A QUIC connection.
pub(crate) struct Opened {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) connection: tiderace::Connection,
    /// HTTP/3 has begun on it, and a request has left with the first packets.
    pub(crate) asked: Option<(Quic, Answer)>,
}

/// Event of a leg.
enum LegEvent {
    Quic(Box<Opened>),
    QuicFailed(Refusal),
    /// With how long TCP and TLS have taken.
    Tcp(Box<TlsStream<TcpStream>>, Duration),
    TcpConnected(IpAddr),
    TcpFailed(Cause),
    PacketReceived,
}

/// Cause of a failed connection, and whether the server sent it.
struct Refusal {
    cause: Cause,
    by_server: bool,
}

impl From<ConnectError> for Refusal {
    fn from(error: ConnectError) -> Self {
        let by_server = match &error {
            // A server that gives a handshake up because it takes too long has refused nothing: the path is bad.
            ConnectError::Closed(CloseReason::PeerClosed { error }) => error.code != Code::NO_ERROR,
            ConnectError::Closed(CloseReason::VersionMismatch { .. } | CloseReason::PeerApplication { .. }) => true,
            _ => false,
        };
        Self { cause: (&error).into(), by_server }
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Self {
        Self { cause: failed.cause, by_server: false }
    }
}

/// A race at work.
pub(crate) struct Dial {
    race: Race,
    means: DialContext,
    to: Destination,
    legs: JoinSet<LegEvent>,
    /// Address at which TCP was answered.
    tcp_at: Option<IpAddr>,
    prober: Option<Arc<Prober>>,
    pub(crate) quic: Option<Opened>,
    pub(crate) tcp: Option<Box<TlsStream<TcpStream>>>,
    /// Errors of QUIC and TCP.
    wrong: [Cause; 2],
    /// Leaves with the first packets of QUIC where a session is resumed.
    early: Option<Request<RequestBody>>,
    /// QUIC was there before, and is silent.
    live: Option<(Quic, Pending)>,
    events: (mpsc::UnboundedSender<LegEvent>, mpsc::UnboundedReceiver<LegEvent>),
    begun: Instant,
    /// Duration of the QUIC handshake.
    pub(crate) handshake: Option<Duration>,
    /// Duration of the TCP and TLS handshakes.
    pub(crate) tcp_handshake: Option<Duration>,
}

impl Dial {
    pub(crate) fn new(means: DialContext, to: Destination, plan: Plan, early: Option<Request<RequestBody>>) -> Self {
        let now = Instant::ZERO + means.started.elapsed();
        Self {
            race: Race::new(now, plan),
            means,
            to,
            legs: JoinSet::new(),
            tcp_at: None,
            prober: None,
            quic: None,
            tcp: None,
            wrong: [Cause::not_tried("it was not tried"), Cause::not_tried("it was not tried")],
            early,
            live: None,
            events: mpsc::unbounded_channel(),
            begun: now,
            handshake: None,
            tcp_handshake: None,
        }
    }

    /// Starts a race beside a QUIC connection that has been silent since a request was sent.
    pub(crate) fn beside(means: DialContext, to: Destination, plan: Plan, live: (Quic, Pending)) -> Self {
        Self { live: Some(live), ..Self::new(means, to, plan, None) }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.means.started.elapsed()
    }

    /// Runs until a leg is chosen.
    pub(crate) async fn until_used(&mut self) -> Result<Leg, FetchError> {
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

    /// Runs until there is a verdict.
    pub(crate) async fn until_judged(&mut self) -> Option<Verdict> {
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
                if let Some((link, pending)) = self.live.take() {
                    self.legs.spawn(wait_for_life(link, pending, self.events.0.clone()));
                    return;
                }
                let attempts = Attempts {
                    config: self.means.quic.clone(),
                    host: self.to.host.clone(),
                    closing: self.means.closing.clone(),
                    memory: self.means.memory.clone(),
                    packets: self.means.packets.clone(),
                    events: self.events.0.clone(),
                };
                self.legs.spawn(attempts.run(self.to.quic.clone(), self.early.take()));
            }
            Action::Start(Leg::Tcp) if !self.means.tcp_allowed => {
                let _ = self.events.0.send(LegEvent::TcpFailed(Cause::not_tried("it is not wanted")));
            }
            Action::Start(Leg::Tcp) => {
                let (to, tls, events) = (self.to.clone(), self.means.tcp.clone(), self.events.0.clone());
                let observer = self.means.tcp_observer.clone();
                self.legs.spawn(async move {
                    let begun = std::time::Instant::now();
                    match connect_tls(to.tcp, tls, to.host, events, observer).await {
                        Ok(stream) => LegEvent::Tcp(Box::new(stream), begun.elapsed()),
                        Err(error) => LegEvent::TcpFailed((&error).into()),
                    }
                });
            }
            Action::Ask => {
                if self.prober.is_none()
                    && let Some(remote) = self.asks_at()
                    && let Ok(prober) = Prober::new(remote).await
                {
                    let prober = Arc::new(prober);
                    self.prober = Some(prober.clone());
                    self.legs.spawn(async move {
                        prober.answered().await;
                        LegEvent::PacketReceived
                    });
                }
                if let Some(prober) = &self.prober {
                    prober.ask().await;
                }
            }
            Action::Use(_) | Action::Fail | Action::Done => {}
        }
    }

    /// Target of probes: the host that has answered over TCP, or else the best.
    fn asks_at(&self) -> Option<SocketAddr> {
        let same = self.to.quic.iter().find(|address| Some(address.ip()) == self.tcp_at);
        same.or(self.to.quic.first()).copied()
    }

    /// Waits for the next event, and passes it to the race.
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
            Some(LegEvent::PacketReceived) => self.race.handle(now, Input::PacketReceived),
            Some(LegEvent::TcpConnected(ip)) => {
                self.tcp_at = Some(ip);
                self.race.handle(now, Input::TcpConnected);
            }
            Some(LegEvent::Tcp(stream, took)) => {
                self.tcp = Some(stream);
                self.tcp_handshake = Some(took);
                self.race.handle(now, Input::TcpReady);
            }
            Some(LegEvent::TcpFailed(cause)) => {
                self.wrong[1] = cause;
                self.race.handle(now, Input::TcpFailed);
            }
            Some(LegEvent::Quic(opened)) => {
                self.quic = Some(*opened);
                self.handshake = Some(now.saturating_since(self.begun));
                self.race.handle(now, Input::QuicReady);
            }
            Some(LegEvent::QuicFailed(refusal)) => {
                // Only what the server itself has said is a refusal.
                let input = if refusal.by_server { Input::QuicRefused } else { Input::QuicFailed };
                self.wrong[0] = refusal.cause;
                self.race.handle(now, input);
            }
        }
    }
}

/// Interval between checks for received packets: they matter to the verdict, and not to the millisecond.
const LOOK: Duration = Duration::from_millis(25);

/// The next address is tried when one takes longer (RFC 8305 §8 has no less than this). It is shorter than the head start of QUIC,
/// so that an address which leads nowhere does not lose the race.
const NEXT_ADDRESS: Duration = Duration::from_millis(100);
/// Addresses that QUIC tries: each gets whole datagrams.
const ADDRESSES: usize = 4;

/// Context of the attempts.
#[derive(Clone)]
struct Attempts {
    config: ClientConfig,
    host: String,
    closing: Arc<ClosingConnections>,
    memory: ProcessBudget,
    packets: Option<Arc<PacketFile>>,
    events: mpsc::UnboundedSender<LegEvent>,
}

impl Attempts {
    /// Tries the addresses one after the other, the next when one takes long or fails. `early` leaves with the first.
    async fn run(self, addresses: Vec<SocketAddr>, mut early: Option<Request<RequestBody>>) -> LegEvent {
        let mut tries = JoinSet::new();
        let mut rest = addresses.into_iter().take(ADDRESSES);
        let mut last = Refusal { cause: Cause::not_tried("it has no address"), by_server: false };
        loop {
            match rest.next() {
                Some(remote) => {
                    tries.spawn(connect_quic(self.clone(), remote, early.take()));
                }
                None if tries.is_empty() => return LegEvent::QuicFailed(last),
                None => {}
            }
            tokio::select! {
                Some(came) = tries.join_next() => match came {
                    Ok(Ok(opened)) => return LegEvent::Quic(Box::new(opened)),
                    // What one says who serves the name holds for the others, too.
                    Ok(Err(refusal)) if refusal.by_server => return LegEvent::QuicFailed(refusal),
                    Ok(Err(refusal)) => last = refusal,
                    Err(error) => last = Refusal { cause: Cause::other(error.to_string()), by_server: false },
                },
                () = tokio::time::sleep(NEXT_ADDRESS), if rest.len() > 0 => {}
            }
        }
    }
}

async fn connect_quic(
    with: Attempts,
    remote: SocketAddr,
    early: Option<Request<RequestBody>>,
) -> Result<Opened, Refusal> {
    let Attempts { config, host, closing, memory, packets, events } = with;
    let tap = packets.map(|file| Arc::new(PacketTap::new(file)));
    let options = EndpointOptions {
        memory: Some(memory),
        tap: tap.clone().map(|tap| tap as Arc<dyn Tap>),
        ..EndpointOptions::default()
    };
    let endpoint = Endpoint::open(any(remote), options).map_err(|error| Refusal {
        cause: Cause::Io { kind: error.kind(), reason: format!("no socket: {error}") },
        by_server: false,
    })?;
    if let Some(tap) = tap {
        tap.bind(endpoint.local_addr());
    }
    let endpoint = Arc::new(endpoint);
    // RFC 9114 §3.1 MUST-1, MUST NOT-1, RFC 9114 §3.2 MUST-1, MUST-2: the host of the URI is asked for, and has to be the certificate's
    let connecting = endpoint.connect(&config, remote, &host)?;
    closing.await_of(endpoint.clone());
    let connected = async {
        let Some(request) = early else { return Ok((connecting.await?, None)) };
        match connecting.into_early() {
            Ok(connection) => {
                let quic = Quic::begin(endpoint.clone(), connection.clone()).await?;
                let (mut tell, answer) = oneshot::channel();
                let asks = quic.clone();
                tokio::spawn(async move {
                    let answered = tokio::select! {
                        answered = asks.send(request) => answered,
                        // TCP was there first, or the answer took too long: nobody waits for it.
                        () = tell.closed() => return,
                    };
                    let _ = tell.send(answered);
                });
                connection.established().await.map_err(ConnectError::from)?;
                Ok((connection, Some((quic, answer))))
            }
            Err(connecting) => Ok::<_, Refusal>((connecting.await?, None)),
        }
    };
    let mut connected = std::pin::pin!(connected);
    let mut look = tokio::time::interval(LOOK);
    let mut heard = false;
    loop {
        tokio::select! {
            connected = connected.as_mut() => {
                let (connection, asked) = connected?;
                return Ok(Opened { endpoint: endpoint.clone(), connection, asked });
            }
            _ = look.tick(), if !heard => {
                heard = endpoint.socket_stats().receive_calls > 0;
                if heard {
                    let _ = events.send(LegEvent::PacketReceived);
                }
            }
        }
    }
}

/// Datagrams that a connection has received.
fn received(link: &Quic) -> u64 {
    link.connection().stats().map_or(0, |stats| stats.packets_received)
}

/// Probe timeout of a connection (RFC 9002 §6.2.1), with the default of the peer's largest delay of acknowledgements. Before it has ended, a
/// server that owes an acknowledgement may be as well as ever. Zero before the first sample of the round trip.
fn probe_timeout(link: &Quic) -> Duration {
    const MAX_ACK_DELAY: u64 = 25_000_000;
    // Without a sample, the estimate is a guess.
    let stats = link.connection().stats().filter(|stats| stats.min_rtt > 0);
    stats.map_or(Duration::ZERO, |stats| {
        Duration::from_nanos(stats.smoothed_rtt + 4 * stats.rtt_variation + MAX_ACK_DELAY)
    })
}

/// Ends after silence for this time, and at least for a probe timeout, on a connection with a request in flight whose server owes an
/// acknowledgement. A server that has acknowledged everything is alive: the client waits for its answer.
pub(crate) async fn silence(link: &Quic, length: Duration) {
    // The request may be about to leave.
    let mut owed = true;
    loop {
        let before = received(link);
        tokio::time::sleep(length.max(probe_timeout(link))).await;
        let owes = link.connection().stats().is_some_and(|stats| stats.bytes_in_flight > 0);
        if owed && owes && received(link) == before {
            return;
        }
        owed = owes;
    }
}

/// A silent connection, observed until it receives a packet or ends.
async fn wait_for_life(link: Quic, pending: Pending, events: mpsc::UnboundedSender<LegEvent>) -> LegEvent {
    let before = received(&link);
    let mut pending = pending;
    let mut look = tokio::time::interval(LOOK);
    let mut heard = false;
    loop {
        tokio::select! {
            answered = &mut pending => {
                let answered = answered.unwrap_or_else(|error| Err(Failed { cause: Cause::other(error.to_string()), unprocessed: false }));
                return match answered {
                    Ok(response) => {
                        let (tell, answer) = oneshot::channel();
                        let _ = tell.send(Ok(response));
                        let (endpoint, connection) = (link.endpoint.clone(), link.connection().clone());
                        LegEvent::Quic(Box::new(Opened { endpoint, connection, asked: Some((link, answer)) }))
                    }
                    Err(failed) => LegEvent::QuicFailed(failed.into()),
                };
            }
            _ = look.tick(), if !heard => {
                heard = received(&link) > before;
                if heard {
                    let _ = events.send(LegEvent::PacketReceived);
                }
            }
        }
    }
}

/// Tries the addresses one after the other, the next when one takes long (RFC 8305 §5).
pub(crate) async fn connect_tcp(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
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
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn connect_tls(
    addresses: Vec<SocketAddr>,
    tls: Arc<rustls::ClientConfig>,
    host: String,
    events: mpsc::UnboundedSender<LegEvent>,
    observer: Option<Arc<dyn TcpObserver>>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = connect_tcp(addresses).await?;
    if let Some(observer) = observer {
        observer.connected(&stream);
    }
    let _ = events.send(LegEvent::TcpConnected(stream.peer_addr()?.ip()));
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(tls).connect(name, stream).await
}

#[cfg(test)]
mod tests {
    use tiderace::transport::TransportError;

    use super::*;

    #[test]
    fn who_gives_up_a_handshake_has_refused_nothing() {
        let refuses = |reason| Refusal::from(ConnectError::Closed(reason)).by_server;
        let closed = |code| CloseReason::PeerClosed { error: TransportError::new(code, "") };
        assert!(refuses(closed(Code::CONNECTION_REFUSED)));
        assert!(refuses(CloseReason::VersionMismatch { offered: vec![] }));
        assert!(!refuses(closed(Code::NO_ERROR)));
        assert!(!refuses(CloseReason::HandshakeTimeout));
    }
}
