//! TCP: TLS, then HTTP/2 or HTTP/1.1 by what the client has chosen.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::qmux::Lingering;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::HandshakeKind;
use socket2::{Domain, Protocol, Socket, Type};
use tiderace::ConnectionBudget;
use tokio::{
    net::TcpListener,
    net::TcpStream,
    sync::{Notify, watch},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Entrance, pace, stall::Stalling};
use crate::{
    acme,
    admission::{Place, Refusal},
    body::{incoming, watched},
    fallback,
    gateway::{self, Peer},
    generation::Generation,
    memory::Listed,
    metrics::{HandshakeLabels, ProtocolLabel, ReasonLabel, ResultLabels},
    qmux,
};

/// Connections that wait to be accepted, for each worker.
const BACKLOG: i32 = 1024;
/// What a client can make this end hold on a connection over TCP, whose windows do not grow.
const MEMORY: u64 = 1 << 20;
/// Bytes that a client of HTTP/2 may send on a stream before they are read, …
const STREAM_WINDOW: u32 = 128 * 1024;
/// … and on all of them.
const WINDOW: u32 = 512 * 1024;
/// Bytes of an answer that wait for a client of HTTP/2, for each of its streams.
const SEND_BUFFER: usize = 32 * 1024;
/// The time in which requests that are given up are counted together.
const CANCELLED_TOGETHER: Duration = Duration::from_secs(10);

/// A silent HTTP/2 connection is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// One listening socket for each worker; the kernel spreads connections over them.
pub(super) fn sockets(address: SocketAddr, count: usize) -> io::Result<Vec<StdListener>> {
    let mut address = address;
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        if count > 1 {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = StdListener::from(socket);
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Accepts connections until the listener closes.
pub(super) async fn accept(listener: TcpListener, entrance: Entrance, mut close: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = close.wait_for(|closed| *closed) => return,
        };
        match accepted {
            Ok((stream, remote)) => {
                tokio::spawn(connection(stream, remote, entrance.clone()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: others have to end first.
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, remote: SocketAddr, entrance: Entrance) {
    let generation = entrance.shared.current();
    let limits = &generation.config.limits;
    let metrics = &entrance.shared.metrics;
    let place = entrance.shared.admission.enter(remote.ip(), limits.connections, limits.connections_per_address);
    let place = match place {
        Ok(place) => place,
        Err(refusal) => {
            let reason = if refusal == Refusal::Total { "total" } else { "address" };
            metrics.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
            return;
        }
    };
    let Some(listed) = entrance.shared.memory.enlist(limits.connection_memory.0.min(MEMORY)) else {
        metrics.memory_refused.inc();
        return;
    };
    // A failure costs some latency and nothing else.
    let _ = stream.set_nodelay(true);
    let stream = Stalling::new(stream, limits.read_timeout.0);
    let begun = Instant::now();
    let acceptor = TlsAcceptor::from(generation.tls.tcp.clone());
    let accepting = acceptor.accept(Lingering::new(stream, place));
    let stream = match tokio::time::timeout(limits.handshake_timeout.0, accepting).await {
        Ok(Ok(stream)) => stream,
        failed => {
            let result = if failed.is_ok() { "failed" } else { "timeout" };
            metrics.handshakes.get_or_create(&ResultLabels { protocol: "tcp", result }).inc();
            return;
        }
    };
    metrics.handshakes.get_or_create(&ResultLabels { protocol: "tcp", result: "completed" }).inc();
    let alpn = stream.get_ref().1.alpn_protocol();
    if alpn == Some(acme::ALPN) {
        // An authority has seen what it wanted to see (RFC 8737 §3).
        return;
    }
    let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    let labels = HandshakeLabels {
        listener: entrance.local.to_string(),
        transport: "tcp",
        kind: if resumed { "resumed" } else { "full" },
    };
    metrics.paths.handshake.get_or_create(&labels).observe(begun.elapsed().as_secs_f64());
    let is_h2 = alpn == Some(b"h2");
    // Whatever else was agreed on is a private protocol.
    let is_private = alpn.is_some_and(|alpn| alpn != b"h2" && alpn != b"http/1.1");
    let protocol = match () {
        () if is_private => "qmux",
        () if is_h2 => "h2",
        () => "http/1.1",
    };
    let label = ProtocolLabel { protocol };
    metrics.connections.get_or_create(&label).inc();
    metrics.connections_total.get_or_create(&label).inc();
    let tells = !is_private && entrance.alt_svc(&generation.config).is_some();
    let now = Instant::now();
    if is_private || generation.config.http3.enabled {
        let fallbacks = &entrance.shared.fallbacks;
        fallbacks.over_tcp(remote.ip(), now, tells, fallback::longest(&generation.config));
        fallbacks.count(now, &metrics.fallbacks);
    }
    if tells && let Some(news) = entrance.shared.offers.tell(remote.ip(), now) {
        let told = ResultLabels { protocol, result: news.name() };
        metrics.alt_svc_clients.get_or_create(&told).inc();
    }
    let serving = async {
        if is_private {
            qmux::serve(stream, remote, &entrance, &listed.budget).await;
            Ok(())
        } else if is_h2 {
            serve_h2(stream, remote, &entrance, &generation, &listed).await
        } else {
            serve_h1(stream, remote, &entrance, &generation, &listed).await
        }
    };
    let served = tokio::select! {
        served = serving => served,
        () = listed.close.notified() => {
            tracing::debug!("a connection of {remote} is closed: it holds too much, or gives up too many requests");
            Ok(())
        }
    };
    if let Err(error) = served {
        tracing::debug!("a connection of {remote} ended by an error: {error}");
        let result = kind(&error);
        metrics.connection_errors.get_or_create(&ResultLabels { protocol, result }).inc();
    }
    metrics.connections.get_or_create(&label).dec();
}

/// An error in one word.
fn kind(error: &hyper::Error) -> &'static str {
    match () {
        () if error.is_timeout() => "timeout",
        () if error.is_parse_too_large() => "fields-too-large",
        () if error.is_parse() => "malformed",
        () if error.is_incomplete_message() => "incomplete",
        () => "broken",
    }
}

/// A connection with TLS and its place, which it keeps until the client has closed, too.
pub(crate) type Tcp = TlsStream<Lingering<Stalling<TcpStream>, Place>>;
type Io = TokioIo<Tcp>;

async fn serve_h1(
    stream: Tcp,
    remote: SocketAddr,
    entrance: &Entrance,
    generation: &Generation,
    listed: &Listed,
) -> hyper::Result<()> {
    let limits = &generation.config.limits;
    let io: Io = TokioIo::new(stream);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.fields_timeout.0);
    // The buffer holds the fields, and hyper wants 8 KiB at least.
    builder.max_buf_size(usize::try_from(limits.fields.0).unwrap_or(usize::MAX).max(8 * 1024));
    let service = service_fn(|request| answer(request, remote, "http/1.1", entrance, &listed.budget));
    let mut connection = pin!(builder.serve_connection(io, service).with_upgrades());
    let mut drain = pin!(entrance.drain());
    tokio::select! {
        result = connection.as_mut() => return result,
        () = &mut drain => connection.as_mut().graceful_shutdown(),
    }
    let drain = entrance.shared.current().config.drain.0;
    tokio::time::timeout(drain, connection).await.unwrap_or(Ok(()))
}

async fn serve_h2(
    stream: Tcp,
    remote: SocketAddr,
    entrance: &Entrance,
    generation: &Generation,
    listed: &Listed,
) -> hyper::Result<()> {
    let limits = &generation.config.limits;
    let io: Io = TokioIo::new(stream);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.requests_per_connection)
        .max_header_list_size(u32::try_from(limits.fields.0).unwrap_or(u32::MAX))
        .keep_alive_interval(KEEP_ALIVE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .enable_connect_protocol();
    // Requests of HTTP/2 run on tasks of their own: what they hold has to outlive the connection.
    let (owned, memory) = (entrance.clone(), listed.budget.clone());
    let cancelled = Arc::new(Cancelled {
        max: limits.cancelled_requests,
        state: Mutex::new((Instant::now(), 0)),
        close: listed.close.clone(),
    });
    let patience = limits.read_timeout.0;
    let service = service_fn(move |request| {
        let (entrance, memory, cancelled) = (owned.clone(), memory.clone(), cancelled.clone());
        async move {
            let unanswered = Unanswered(Some(cancelled));
            let answered = answer(request, remote, "h2", &entrance, &memory).await;
            unanswered.answered();
            answered.map(|answer| answer.map(|body| watched(body, patience)))
        }
    });
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut drain = pin!(entrance.drain());
    tokio::select! {
        result = connection.as_mut() => return result,
        () = &mut drain => connection.as_mut().graceful_shutdown(),
    }
    let drain = entrance.shared.current().config.drain.0;
    tokio::time::timeout(drain, connection).await.unwrap_or(Ok(()))
}

/// Requests of a connection that its client has given up lately.
struct Cancelled {
    max: u32,
    /// Since when, and how many.
    state: Mutex<(Instant, u32)>,
    close: Arc<Notify>,
}

/// A request without an answer. Dropped, it was given up.
struct Unanswered(Option<Arc<Cancelled>>);

impl Unanswered {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(cancelled) = &self.0 else { return };
        let mut state = cancelled.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.elapsed() >= CANCELLED_TOGETHER {
            *state = (Instant::now(), 0);
        }
        state.1 += 1;
        if state.1 > cancelled.max {
            cancelled.close.notify_one();
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    remote: SocketAddr,
    protocol: &'static str,
    entrance: &Entrance,
    memory: &ConnectionBudget,
) -> Result<http::Response<crate::body::AnyBody>, Infallible> {
    let generation = entrance.shared.current();
    let pace = pace(&generation.config.limits);
    let alt_svc = entrance.alt_svc(&generation.config);
    let peer = Peer { remote, protocol, alt_svc, early: None, course: None, memory: memory.clone() };
    Ok(gateway::answer(&entrance.shared, incoming(request, pace, memory), peer).await)
}
