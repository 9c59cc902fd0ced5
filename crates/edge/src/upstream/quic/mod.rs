//! Back ends over HTTP/3: connections of each worker, and the fall-back to TCP.
//!
//! `dial` opens a connection, `link` is one in use, `exchange` sends a request on it (`extended_connect` one for another
//! protocol), and `fall_back` remembers that QUIC fails. `direct`
//! opens connections of their own for WebTransport sessions.
//!
//! **Slow readers block nobody.** A stream may hold at most its window for a client that does not read, and half of the connection's window
//! covers the windows of all streams that a connection may have. So other requests on the connection always have credit. Requests beyond
//! that number get another connection.

mod dial;
mod direct;
mod exchange;
mod extended_connect;
mod fall_back;
mod link;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::uri::Authority;
use tiderace::{Profile, transport::streams::StreamsConfig};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

pub(crate) use self::direct::SessionDialer;
pub(super) use self::extended_connect::{BackEndStream, Switched, take_stream, without_content};
use self::{
    dial::{DialError, Dialer, Sockets},
    exchange::ReservedRequest,
    fall_back::{Advice, FallBack},
    link::{Busy, Link},
};
use super::{back_end::Host, names::Source};
use crate::{
    metrics::{BackEndLabel, BackEndReason, Metrics},
    trust::RootsError,
    worker,
};

/// Requests on a connection at a time. Further ones get another connection.
const REQUESTS: u64 = 24;
/// Unidirectional streams of a back end: control, two of QPACK, and unknown ones that come and go (RFC 9114 §6.2 asks for three).
const UNI: u64 = 8;
/// Flow control window of a stream at its start, in bytes, …
const STREAM_WINDOW: u64 = 256 << 10;
/// … and the most that it grows to, for a client that reads quickly.
const STREAM_WINDOW_MAX: u64 = 512 << 10;
/// Flow control window of a connection, in bytes. New credit is sent when half of it is used, so the other half has to cover the
/// windows of all streams.
const WINDOW: u64 = 2 * (REQUESTS + UNI) * STREAM_WINDOW_MAX;
/// Bytes of requests that a connection holds for a back end that does not read, and the most that this grows to on a long path.
const SEND_BUFFER: u64 = 512 << 10;
const SEND_BUFFER_MAX: u64 = 4 << 20;
/// Bytes of datagrams that wait in each direction.
const DATAGRAM_QUEUE: u64 = 64 << 10;
/// Silence after which a PING is sent, as to back ends of HTTP/2, …
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// … and after which a back end that does not answer is given up.
const IDLE: Duration = Duration::from_secs(20);
/// Time for which requests wait for a first connection before they go over TCP, if that answers. The connection attempt goes on.
const HEAD_START: Duration = Duration::from_secs(2);
/// Connections in a row that may end before an answer came on any: a back end may announce the end of each at once. Also the number that a
/// request tries.
const FRUITLESS: usize = 3;

/// Connections over QUIC to one back end.
pub(super) struct QuicPool {
    dialer: Dialer,
    /// One for each worker, so that an answer wakes the thread that waits for it.
    slots: Vec<Mutex<Slot>>,
    /// Sockets of each worker.
    sockets: Vec<Sockets>,
    fall_back: FallBack,
    /// Time for which unused connections are kept.
    kept: Duration,
    /// Name of the back end in logs and metrics.
    name: String,
    metrics: Arc<Metrics>,
}

/// Connections of one worker.
#[derive(Default)]
struct Slot {
    links: Vec<Arc<Link>>,
    /// Connections that have ended without an answer, since the last that had one.
    fruitless: usize,
    dialing: Option<Dialing>,
}

/// Progress of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    /// Still no connection after the head start, while TCP answers.
    Late,
    Failed,
    Succeeded,
}

/// Connection attempt.
#[derive(Clone)]
struct Dialing(watch::Receiver<Progress>);

impl Dialing {
    fn is_in_progress(&self) -> bool {
        // Without its sender, it was ended by a fault.
        matches!(*self.0.borrow(), Progress::Waiting | Progress::Late) && self.0.has_changed().is_ok()
    }

    /// Waits until requests need not wait any more. Returns whether there is a connection.
    async fn is_connected(&mut self) -> bool {
        let settled = self.0.wait_for(|progress| *progress != Progress::Waiting).await;
        settled.is_ok_and(|progress| *progress == Progress::Succeeded)
    }
}

/// Reason why a request has no stream.
pub(super) enum NoStream {
    /// TCP is used for it.
    FallBack,
    /// The back end permits no more streams for now.
    Queued,
}

/// Transport profile of connections to back ends.
fn profile(connect_timeout: Duration) -> Profile {
    Profile {
        name: "back end".to_owned(),
        idle_timeout: IDLE,
        keep_alive: Some(KEEP_ALIVE),
        handshake_timeout: connect_timeout,
        datagram_queue: DATAGRAM_QUEUE,
        streams: StreamsConfig {
            send_buffer: SEND_BUFFER,
            send_buffer_max: SEND_BUFFER_MAX,
            receive_window_stream: STREAM_WINDOW,
            receive_window_connection: WINDOW,
            receive_window_max: STREAM_WINDOW_MAX,
            // RFC 9114 §6.1: servers begin no requests
            max_streams_bidi: 0,
            max_streams_uni: UNI,
            ..StreamsConfig::default()
        },
        ..Profile::default()
    }
}

impl QuicPool {
    /// Connections to the back end of a route with this name and authority. Unused ones are `kept` for a time.
    ///
    /// # Errors
    /// When the roots of its certificate cannot be used.
    pub(super) fn new(
        name: &str,
        authority: &Authority,
        host: Host,
        source: &Source,
        kept: Duration,
    ) -> Result<Arc<Self>, RootsError> {
        let connect_timeout = source.route.connect_timeout.0;
        let dialer = Dialer::new(authority, host, source, profile(connect_timeout))?;
        Ok(Arc::new(Self {
            dialer,
            slots: source.workers.iter().map(|_| Mutex::default()).collect(),
            sockets: source.workers.iter().map(|_| Sockets::default()).collect(),
            fall_back: FallBack::default(),
            kept,
            name: name.to_owned(),
            metrics: source.metrics.clone(),
        }))
    }

    /// Failure of QUIC, while requests go over TCP for it.
    pub(super) fn failure(&self) -> Option<String> {
        self.fall_back.failure()
    }

    /// Notes that TCP fails, too: requests wait for QUIC again.
    pub(super) fn on_tcp_failure(&self) {
        self.fall_back.on_tcp(false);
    }

    /// Notes that TCP works.
    pub(super) fn on_tcp_success(&self) {
        self.fall_back.on_tcp(true);
    }

    /// Notes that a request was answered over QUIC.
    pub(super) fn on_answer(&self) {
        if self.fall_back.end() {
            tracing::info!("the back end {} is reached over QUIC again", self.name);
        }
    }

    /// A stream for a request, on a connection of this worker, within the time of a queue.
    ///
    /// # Errors
    /// When there is none. The request was not sent.
    pub(super) async fn reserve(self: &Arc<Self>, queue: Duration) -> Result<ReservedRequest, NoStream> {
        let until = Instant::now() + queue;
        for _ in 0..FRUITLESS {
            let Some(busy) = self.link().await else { return Err(NoStream::FallBack) };
            match timeout_at(until, busy.requests().reserve()).await {
                Ok(Ok(stream)) => return Ok(ReservedRequest::new(stream, busy)),
                // It is gone, or going; the next search leaves it out.
                Ok(Err(error)) => {
                    tracing::debug!("a connection to the back end {} takes no request: {error}", self.name)
                }
                Err(_) => return Err(NoStream::Queued),
            }
        }
        Err(NoStream::FallBack)
    }

    fn slot(&self, number: usize) -> MutexGuard<'_, Slot> {
        self.slots[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection with room for a request; `None` when the request goes over TCP.
    async fn link(self: &Arc<Self>) -> Option<Busy> {
        let number = worker::current().min(self.slots.len() - 1);
        loop {
            let (mut dialing, waits) = {
                let mut slot = self.slot(number);
                if let Some(busy) = slot.pick() {
                    return Some(busy);
                }
                if slot.fruitless >= FRUITLESS {
                    slot.fruitless = 0;
                    drop(slot);
                    self.fail(&DialError::new("drained", "connections end before they have answered a request"));
                    return None;
                }
                let in_progress = slot.dialing.clone().filter(Dialing::is_in_progress);
                let advice = self.fall_back.advice(Instant::now(), self.dialer.time, in_progress.is_some());
                if advice == Advice::Tcp {
                    return None;
                }
                let dialing = in_progress.unwrap_or_else(|| self.dial(number));
                slot.dialing = Some(dialing.clone());
                (dialing, advice == Advice::Wait)
            };
            if !waits {
                return None;
            }
            if !dialing.is_connected().await {
                return None;
            }
            // It may have been used up by others: the next search says so.
        }
    }

    /// Begins a connection on a task of its own: the next request has it when this one has lost patience.
    fn dial(self: &Arc<Self>, number: usize) -> Dialing {
        let (progress, receiver) = watch::channel(Progress::Waiting);
        let this = self.clone();
        tokio::spawn(async move {
            let dialing = this.dialer.dial(&this.sockets[number]);
            tokio::pin!(dialing);
            let dialed = tokio::select! {
                biased;
                dialed = &mut dialing => dialed,
                // A back end without TCP is worth a longer wait.
                () = async { tokio::time::sleep(HEAD_START).await; this.dialer.tcp_answers().await } => {
                    progress.send_replace(Progress::Late);
                    dialing.await
                }
            };
            let end = if dialed.is_ok() { Progress::Succeeded } else { Progress::Failed };
            match dialed {
                Ok(requests) => {
                    let label = BackEndLabel { back_end: this.name.clone() };
                    let count = this.metrics.back_ends.connections.get_or_create(&label).clone();
                    let link = Arc::new(Link::new(requests, count));
                    tokio::spawn(link::retire(Arc::downgrade(&this), number, Arc::downgrade(&link)));
                    this.slot(number).links.push(link);
                }
                Err(error) => this.fail(&error),
            }
            // Behind the above: whoever waits looks for the connection.
            progress.send_replace(end);
        });
        Dialing(receiver)
    }

    /// Notes that QUIC fails.
    fn fail(&self, error: &DialError) {
        let labels = BackEndReason { back_end: self.name.clone(), reason: error.word };
        self.metrics.back_ends.quic_failures.get_or_create(&labels).inc();
        let wait = self.fall_back.begin(Instant::now(), &error.to_string());
        tracing::warn!("the back end {} is not reached over QUIC, TCP is used for {wait:?}: {error}", self.name);
    }

    /// Removes a connection that has ended or was idle.
    fn remove(&self, number: usize, link: &Arc<Link>) {
        let mut slot = self.slot(number);
        let at = slot.links.iter().position(|other| Arc::ptr_eq(other, link));
        let removed = at.map(|at| slot.links.swap_remove(at));
        slot.fruitless += usize::from(at.is_some() && !link.requests().is_open() && !link.has_answered());
        drop(slot);
        // Its end takes other locks.
        drop(removed);
    }
}

impl Slot {
    /// A connection with room, the first ones before others: the last ones become idle.
    fn pick(&mut self) -> Option<Busy> {
        let mut fruitless = self.fruitless;
        self.links.retain(|link| {
            let is_open = link.requests().is_open();
            match link.has_answered() {
                true => fruitless = 0,
                false => fruitless += usize::from(!is_open),
            }
            is_open
        });
        self.fruitless = fruitless;
        self.links.iter().find_map(Link::enter)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use tiderace::{Endpoint, Identity, ProcessBudget, RustlsServer, ServerConfig};
    use tokio::runtime::Handle;

    use super::*;
    use crate::{body::full, config::Route, resolve::SystemResolver, trust::Trust};

    /// The rule on which it rests that slow readers block nobody.
    #[test]
    fn half_of_a_connections_window_covers_all_its_streams() {
        let streams = profile(Duration::from_secs(5)).streams;
        assert_eq!((streams.receive_window_max, streams.max_streams_bidi), (STREAM_WINDOW_MAX, 0));
        assert!(streams.receive_window_stream <= streams.receive_window_max);
        let all = (REQUESTS + streams.max_streams_uni) * streams.receive_window_max;
        assert!(streams.receive_window_connection / 2 >= all);
    }

    /// A back end that answers each request.
    fn back_end() -> Endpoint {
        let made = rcgen::generate_simple_self_signed(vec!["app.internal".to_owned()]).unwrap();
        let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
        let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
        let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
        Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap()
    }

    #[tokio::test]
    async fn an_unused_connection_is_closed_and_one_in_use_is_not() {
        let endpoint = back_end();
        let metrics = Arc::new(Metrics::default());
        let source = Source {
            route: Route::default(),
            trust: Trust::Anybody,
            workers: vec![Handle::current()],
            resolver: Arc::new(SystemResolver::default()),
            memory: ProcessBudget::default(),
            metrics: metrics.clone(),
        };
        let authority: Authority = endpoint.local_addr().to_string().parse().unwrap();
        let kept = Duration::from_millis(100);
        let pool = QuicPool::new("app", &authority, Host::Url, &source, kept).unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(connection) = endpoint.accept().await {
                tell.send(connection.clone()).unwrap();
                let answer = |_| async { Response::new(Full::<Bytes>::from("ok")) };
                tokio::spawn(h3_quic::server::serve(
                    connection,
                    h3_quic::server::Options::default(),
                    std::future::pending(),
                    answer,
                ));
            }
        });
        let request = || Request::get(format!("https://{authority}/")).body(full("")).unwrap();
        let reserve = async || match pool.reserve(Duration::from_secs(60)).await {
            Ok(reserved) => reserved,
            Err(_) => panic!("{:?}", pool.failure()),
        };
        let one = reserve().await.send(request()).await.unwrap_or_else(|error| panic!("{error}"));
        let connection = told.recv().await.unwrap();
        let socket = connection.remote_address();
        // Its content is not read, so it is in use.
        assert!(tokio::time::timeout(3 * kept, connection.closed()).await.is_err());
        let open = || metrics.back_ends.connections.get_or_create(&BackEndLabel { back_end: "app".to_owned() }).get();
        assert_eq!(open(), 1);
        assert_eq!(one.into_body().collect().await.unwrap().to_bytes(), "ok");
        let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed()).await.unwrap();
        assert!(closed.to_string().contains("256"), "{closed}");
        while open() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The next request has another.
        let two = reserve().await.send(request()).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(two.status(), 200);
        assert_eq!(told.recv().await.unwrap().remote_address(), socket, "connections of a worker share a socket");
    }
}
