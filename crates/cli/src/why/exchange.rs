//! One exchange: the object over one transport, on a connection of its own, and a few small requests beside it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use capture::PacketFile;
use client::{
    Cause, Client, FetchError, KnownAddresses, Leg, Pace, Route, Settings, Timeouts, Trust, UrlError, Watch,
    fetch::ResponseBody,
};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Empty};
use tiderace::transport::observe::ObserverFactory;
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use super::{
    arrivals::Arrivals,
    cpu::Clocks,
    evidence::{Cut, Exchange, Fault, Transport},
    observe::{Recorders, Trace},
    tcp::{LastSocket, Readings},
};

/// Time between two readings of `TCP_INFO`.
const READ: Duration = Duration::from_millis(10);
/// Pause between two small requests during the transfer.
const PAUSE: Duration = Duration::from_millis(200);
/// Small requests during one transfer.
const REQUESTS: usize = 8;

/// Time for which a server that has fallen silent may answer a small request, or acknowledge it: a busy machine takes its time.
const ANSWER: Duration = Duration::from_secs(3);

/// Priority of small requests (RFC 9218 §4.1).
const URGENT: http::HeaderValue = http::HeaderValue::from_static("u=0");

/// Target of all exchanges.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) url: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) fields: HeaderMap,
    pub(super) trust: Trust,
    /// Address of TCP, which is connected to in all rounds.
    pub(super) tcp: SocketAddr,
    /// Address of QUIC.
    pub(super) quic: SocketAddr,
    pub(super) receive_window: Option<u64>,
    pub(super) connect: Duration,
    pub(super) qlog: Option<Arc<dyn ObserverFactory>>,
    /// File of packets, where one is wanted.
    pub(super) packets: Option<Arc<PacketFile>>,
}

/// Limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    /// The bytes are the whole object.
    pub(super) is_whole: bool,
    pub(super) time: Duration,
}

impl Target {
    /// A client without memory, tickets and connections.
    fn client(&self, watch: Watch) -> Result<Client, FetchError> {
        let known = KnownAddresses { host: self.host.clone(), port: self.port, addresses: vec![self.tcp.ip()] };
        Client::with(&Settings {
            trust: self.trust.clone(),
            addresses: vec![known],
            timeouts: Timeouts {
                connect: self.connect,
                response: Duration::MAX,
                content: Pace { bytes: 0, ..Pace::default() },
            },
            key_log: true,
            receive_window: self.receive_window,
            watch,
            ..Settings::default()
        })
    }

    fn route(&self, transport: Transport) -> Route {
        match transport {
            Transport::H3 => Route { only: Some(Leg::Quic), udp: Some(self.quic), fresh: false },
            Transport::H2 => Route { only: Some(Leg::Tcp), udp: None, fresh: false },
        }
    }

    fn request(&self, method: Method) -> Result<Request<Empty<Bytes>>, FetchError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() =
            self.url.parse().map_err(|source| UrlError::Malformed { url: self.url.clone(), source })?;
        *request.method_mut() = method;
        *request.headers_mut() = self.fields.clone();
        Ok(request)
    }

    /// Asks once, over one transport, and gives the answer without its content. A server that does not answer is given up when the
    /// time for a connection has passed again.
    pub(super) async fn ask(&self, transport: Transport, method: Method) -> Result<http::Response<()>, FetchError> {
        let client = self.client(Watch::default())?;
        let limit = self.connect * 2;
        let (request, route) = (self.request(method)?, self.route(transport));
        let sent = tokio::time::timeout(limit, client.send(request, &route)).await;
        let sent = sent.unwrap_or(Err(FetchError::TimedOut { what: "an answer", limit }));
        let answer = sent.map(|fetched| {
            let (mut parts, _) = fetched.response.into_parts();
            parts.extensions.insert(fetched.protocol);
            http::Response::from_parts(parts, ())
        });
        client.close().await;
        answer
    }

    /// Asks twice over HTTP/3, the second time with a ticket of the first connection.
    pub(super) async fn resume(&self) -> Option<super::evidence::Resumption> {
        let client = self.client(Watch::default()).ok()?;
        let route = Route { fresh: true, ..self.route(Transport::H3) };
        let both = async {
            let first = client.send(self.request(Method::HEAD).ok()?, &route).await.ok()?;
            let _ = first.response.into_body().collect().await;
            // Tickets follow the handshake.
            tokio::time::sleep(PAUSE).await;
            let second = client.send(self.request(Method::HEAD).ok()?, &route).await.ok()?;
            Some(super::evidence::Resumption {
                early_data: crate::get::word(second.early_data),
                first_byte_ms: second.first_byte.as_secs_f64() * 1e3,
            })
        };
        let resumed = tokio::time::timeout(self.connect, both).await.ok().flatten();
        client.close().await;
        resumed
    }
}

/// Makes one exchange. Errors are in it.
pub(super) async fn run(target: &Target, transport: Transport, round: u32, limits: Limits) -> Exchange {
    let trace: Arc<Mutex<Trace>> = Arc::default();
    let socket: Arc<LastSocket> = Arc::default();
    let recorders = Recorders { trace: trace.clone(), qlog: target.qlog.clone() };
    let watch =
        Watch { observe: Some(Arc::new(recorders)), packets: target.packets.clone(), tcp: Some(socket.clone()) };
    let mut exchange = Exchange {
        transport,
        round,
        protocol: None,
        handshake_ms: None,
        first_byte_ms: None,
        seconds: 0.0,
        bytes: 0,
        cut: None,
        loaded_ms: Vec::new(),
        cpu: None,
        arrivals: None,
        quic: None,
        tcp: None,
        path_answers: None,
        fault: None,
        error: None,
    };
    // Roots are read before the clock starts.
    let client = match target.client(watch) {
        Ok(client) => client,
        Err(error) => {
            return Exchange { error: Some(error.to_string()), fault: Some(Fault::Other), ..exchange };
        }
    };
    let begun = Instant::now();
    let transfer = Transfer { target, client: &client, begun, limits, socket: &socket };
    if let Err((fault, error)) = transfer.run(&mut exchange).await {
        (exchange.fault, exchange.error) = (Some(fault), Some(error));
        exchange.seconds = begun.elapsed().as_secs_f64();
    }
    if transport == Transport::H3 && exchange.cut == Some(Cut::Time) {
        exchange.path_answers = transfer.path_answers(&trace).await;
    }
    client.close().await;
    socket.forget();
    if transport == Transport::H3 {
        let facts = trace.lock().unwrap_or_else(PoisonError::into_inner).facts();
        exchange.handshake_ms = exchange.handshake_ms.or(facts.handshake_ms);
        exchange.quic = Some(facts);
    }
    exchange
}

/// A transfer at work.
struct Transfer<'a> {
    target: &'a Target,
    client: &'a Client,
    begun: Instant,
    limits: Limits,
    socket: &'a LastSocket,
}

impl Transfer<'_> {
    async fn run(&self, exchange: &mut Exchange) -> Result<(), (Fault, String)> {
        let deadline = tokio::time::Instant::from_std(self.begun + self.limits.time);
        let request = self.target.request(Method::GET).map_err(|error| (Fault::Other, error.to_string()))?;
        let route = self.target.route(exchange.transport);
        let sent = self.client.send(request, &route);
        let Ok(sent) = timeout_at(deadline, sent).await else {
            exchange.cut = Some(Cut::Time);
            return Err((Fault::Silence, "there was no answer in time".to_owned()));
        };
        let fetched = sent.map_err(|error| (fault(&error), error.to_string()))?;
        exchange.protocol = Some(fetched.protocol);
        exchange.handshake_ms = fetched.handshake.map(|took| took.as_secs_f64() * 1e3);
        exchange.first_byte_ms = Some(fetched.first_byte.as_secs_f64() * 1e3);
        let status = fetched.response.status();
        if !status.is_success() {
            return Err((Fault::Status, format!("the answer is {status}")));
        }
        // From here on the object comes.
        let clocks = Clocks::read();
        let mut requests = tokio::task::JoinSet::new();
        let found = Arc::new(Mutex::new(Vec::new()));
        if fetched.protocol != "http/1.1" {
            let (target, client) = (self.target.clone(), self.client.clone());
            requests.spawn(beside(target, client, self.target.route(exchange.transport), found.clone()));
        }
        let read = self.read(fetched.response.into_body(), deadline, exchange).await;
        exchange.cpu = clocks.and_then(Clocks::since);
        requests.shutdown().await;
        exchange.loaded_ms = std::mem::take(&mut found.lock().unwrap_or_else(PoisonError::into_inner));
        read
    }

    /// Returns whether the path still carries datagrams from the server, by a small request on the connection: a server that has
    /// fallen silent acknowledges it. `None` where the connection has ended, or never was.
    async fn path_answers(&self, trace: &Mutex<Trace>) -> Option<bool> {
        let datagrams = || trace.lock().unwrap_or_else(PoisonError::into_inner).datagrams();
        let before = datagrams()?;
        let (request, route) = (self.target.request(Method::HEAD).ok()?, self.target.route(Transport::H3));
        let deadline = tokio::time::Instant::now() + ANSWER;
        let mut sent = std::pin::pin!(self.client.send(request, &route));
        let mut ticks = interval(READ);
        loop {
            tokio::select! {
                answer = &mut sent => return answer.ok().filter(|fetched| fetched.reused).map(|_| true),
                _ = ticks.tick() => {
                    if datagrams()? > before {
                        return Some(true);
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Some(false),
            }
        }
    }

    /// Reads the content.
    async fn read(
        &self,
        mut body: ResponseBody,
        deadline: tokio::time::Instant,
        exchange: &mut Exchange,
    ) -> Result<(), (Fault, String)> {
        let (mut arrivals, mut readings) = (Arrivals::default(), Readings::default());
        let mut ticks = interval(READ);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let ended = loop {
            tokio::select! {
                frame = body.frame() => match frame {
                    None => break Ok(()),
                    Some(Err(error)) => {
                        let kind = Cause::of_body(&error).map_or(Fault::Other, |cause| kind(&cause));
                        break Err((kind, error.to_string()));
                    }
                    Some(Ok(frame)) => {
                        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                        exchange.bytes += length;
                        exchange.seconds = self.begun.elapsed().as_secs_f64();
                        arrivals.add(self.begun.elapsed(), length);
                        if exchange.bytes >= self.limits.bytes {
                            exchange.cut = (!self.limits.is_whole).then_some(Cut::Bytes);
                            break Ok(());
                        }
                    }
                },
                _ = ticks.tick() => {
                    if exchange.transport == Transport::H2 {
                        readings.read(self.socket);
                    }
                },
                () = tokio::time::sleep_until(deadline) => {
                    exchange.cut = Some(Cut::Time);
                    exchange.seconds = self.begun.elapsed().as_secs_f64();
                    break Ok(());
                }
            }
        };
        readings.read(self.socket);
        exchange.arrivals = arrivals.facts();
        if exchange.transport == Transport::H2 {
            exchange.tcp = readings.facts();
        }
        ended
    }
}

/// Kind of an error.
fn fault(error: &FetchError) -> Fault {
    let kind = error.cause().map_or(Fault::Other, kind);
    if kind == Fault::Other && error.is_timeout() { Fault::Silence } else { kind }
}

/// Kind of a cause.
const fn kind(cause: &Cause) -> Fault {
    match cause {
        Cause::Refused { .. } => Fault::Refused,
        Cause::Timeout { .. } => Fault::Silence,
        _ => Fault::Other,
    }
}

/// Sends small requests one after the other on the connection of the transfer.
async fn beside(target: Target, client: Client, route: Route, found: Arc<Mutex<Vec<f64>>>) {
    for _ in 0..REQUESTS {
        tokio::time::sleep(PAUSE).await;
        let Ok(mut request) = target.request(Method::HEAD) else { return };
        // Without it, servers that obey RFC 9218 §10 answer after the object.
        request.headers_mut().insert("priority", URGENT);
        let begun = Instant::now();
        let Ok(fetched) = client.send(request, &route).await else { return };
        // A connection of its own shows nothing about the load, and a server that refuses does so at once.
        let status = fetched.response.status();
        if !fetched.reused || !(status.is_success() || status == http::StatusCode::METHOD_NOT_ALLOWED) {
            return;
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).push(begun.elapsed().as_secs_f64() * 1e3);
    }
}
