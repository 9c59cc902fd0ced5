//! TCP: TLS, then HTTP/2 or HTTP/1.1 as negotiated.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdListener},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::qmux::Lingering;
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::HandshakeKind;
use socket2::{Domain, Protocol, Socket, Type};
use tiderace::ConnectionBudget;
use tokio::{
    io::AsyncReadExt,
    net::TcpListener,
    net::TcpStream,
    sync::{Notify, watch},
};
use tokio_rustls::server::TlsStream;
use wire::{ProxyHeader, StreamOrigin};

use super::{
    Accepting,
    h2_sections::{Scanned, Sections},
    pace,
    stall::Stalling,
};
use crate::{
    acme,
    admission::Place,
    body::{AnyBody, incoming, watched},
    client_certificate::ClientCertificate,
    context::ListenerContext,
    delivery::{self, Counting, SentBytes},
    ending::{Cause, Ending},
    fallback, gateway,
    generation::{Generation, Shared},
    memory::Listed,
    metrics::{HandshakeLabels, ProtocolLabel, ReasonLabel, ResultLabels},
    observe::Entry,
    peer::Peer,
    qmux,
    setup_time::SetupTime,
    trial::Arm,
};

/// Connections that wait to be accepted, for each worker.
const BACKLOG: i32 = 1024;
/// Memory budget of a client's TCP connection, whose windows do not grow.
const MEMORY: u64 = 1 << 20;
/// Bytes that a client of HTTP/2 may send on a stream before they are read, …
const STREAM_WINDOW: u32 = 128 * 1024;
/// … and on all of them.
const WINDOW: u32 = 512 * 1024;
/// Bytes of an answer that wait for a client of HTTP/2, for each of its streams.
const SEND_BUFFER: usize = 32 * 1024;
/// Time in which cancelled requests are counted together.
const CANCELLED_TOGETHER: Duration = Duration::from_secs(10);

/// Silence after which an HTTP/2 connection is sent a PING.
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
        // The first is bound for itself: the kernel would let it join the sockets of another process of the same user.
        let is_first = sockets.is_empty();
        if !is_first {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        if is_first && count > 1 {
            socket.set_reuse_port(true)?;
        }
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = StdListener::from(socket);
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// `count` sockets, of which the last are copies where there are fewer `sockets`.
pub(super) fn shared(mut sockets: Vec<StdListener>, count: usize) -> io::Result<Vec<StdListener>> {
    let copies = sockets.iter().cycle().take(count).skip(sockets.len()).map(StdListener::try_clone);
    let copies = copies.collect::<io::Result<Vec<_>>>()?;
    sockets.extend(copies);
    Ok(sockets)
}

/// Accepts connections until the listener closes.
pub(super) async fn accept(listener: TcpListener, context: ListenerContext, mut accepting: watch::Receiver<Accepting>) {
    loop {
        match accepting.wait_for(|state| *state != Accepting::Paused).await.map(|state| *state) {
            Ok(Accepting::Open) => {}
            Ok(Accepting::Paused | Accepting::HandedOver | Accepting::Closed) | Err(_) => return,
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            changed = accepting.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match accepted {
            Ok((stream, remote)) => {
                tokio::spawn(connection(stream, remote, context.clone()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: others have to end first.
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Takes the place of a connection, counted for its client. A load balancer names the client; nobody else is asked.
async fn admit(
    stream: &mut TcpStream,
    remote: SocketAddr,
    context: &ListenerContext,
    generation: &Generation,
) -> Result<(Place, SocketAddr), &'static str> {
    let limits = &generation.config.limits;
    let mut place = context.shared.admission.enter_unvalidated(limits.connections).map_err(|_| "total")?;
    let mut client = remote;
    if generation.is_load_balancer(remote.ip()) {
        let read = tokio::time::timeout(limits.handshake_timeout.0, named_client(stream)).await;
        client = match read {
            Ok(Ok(StreamOrigin::Client(header))) => header.client,
            Ok(Ok(StreamOrigin::Itself)) => remote,
            Ok(Err(error)) => {
                tracing::debug!("a load balancer at {remote} names no client: {error}");
                return Err("header");
            }
            Err(_) => return Err("header"),
        };
    }
    place.count_for(client.ip(), generation.connections_of(client.ip())).map_err(|_| "address")?;
    Ok((place, client))
}

/// Reads the header that a load balancer puts in front of a connection, and not a byte more.
async fn named_client(stream: &mut TcpStream) -> io::Result<StreamOrigin> {
    let wrong =
        || io::Error::new(io::ErrorKind::InvalidData, "expected a PROXY header of version 2, found something else");
    let mut header = vec![0; ProxyHeader::FIXED_LEN];
    stream.read_exact(&mut header).await?;
    let rest = header.first_chunk().and_then(ProxyHeader::stream_rest).ok_or_else(wrong)?;
    header.resize(ProxyHeader::FIXED_LEN + rest, 0);
    stream.read_exact(&mut header[ProxyHeader::FIXED_LEN..]).await?;
    ProxyHeader::parse_stream(&header).ok_or_else(wrong)
}

async fn connection(mut stream: TcpStream, remote: SocketAddr, context: ListenerContext) {
    let generation = context.shared.current();
    let limits = &generation.config.limits;
    let metrics = &context.shared.metrics;
    let (place, remote) = match admit(&mut stream, remote, &context, &generation).await {
        Ok(admitted) => admitted,
        Err(reason) => {
            metrics.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
            return;
        }
    };
    let Some(listed) = context.shared.memory.enlist(limits.connection_memory.0.min(MEMORY)) else {
        metrics.memory.refused.inc();
        return;
    };
    // A failure costs some latency and nothing else.
    let _ = stream.set_nodelay(true);
    let cause = Cause::default();
    let round_trip = delivery::round_trip(&stream).unwrap_or_default();
    let stream = Counting::new(stream);
    let sent = stream.sent();
    let stream = Stalling::new(stream, limits.read_timeout.0, cause.clone());
    let begun = Instant::now();
    let accepting = accept_tls(&generation, &context, Lingering::new(stream, place));
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
    let chain: Vec<&[u8]> =
        stream.get_ref().1.peer_certificates().unwrap_or_default().iter().map(AsRef::as_ref).collect();
    let Ok(certificate) = context.shared.verify_client(&generation, &chain) else { return };
    let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    let setup = Arc::new(SetupTime::new(round_trip + begun.elapsed()));
    let labels = HandshakeLabels {
        listener: context.local.to_string(),
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
    let name = stream.get_ref().1.server_name();
    let assignment = generation.withholding.assign(context.local, remote.ip(), name);
    let is_withheld = assignment.is_some_and(|assignment| assignment.arm == Arm::Tcp);
    let tells = !is_private && !is_withheld && context.alt_svc(&generation.config).is_some();
    note_offer(&context, &generation, remote.ip(), protocol, tells);
    let (local, tcp, memory) = (context.local, (setup, sent), listed.budget.clone());
    let client = Client { remote, local, certificate, protocol, tcp, memory, cause: cause.clone() };
    let serving = async {
        if is_private {
            qmux::serve(stream, remote, &context, &listed.budget).await;
            Ok(())
        } else if is_h2 {
            serve_h2(stream, client, &context, &generation, &listed).await
        } else {
            serve_h1(stream, client, &context, &generation).await
        }
    };
    let closing = async {
        listed.close.notified().await;
        // Before the requests are dropped; those who give up too many have noted it themselves.
        cause.note(Ending::Memory);
        tracing::debug!("a connection of {remote} is closed: it holds too much, or gives up too many requests");
    };
    let served = tokio::select! {
        served = serving => served,
        () = closing => Ok(()),
    };
    if let Err(error) = served {
        tracing::debug!("a connection of {remote} ended by an error: {error}");
        let result = kind(&error);
        metrics.connection_errors.get_or_create(&ResultLabels { protocol, result }).inc();
    }
    metrics.connections.get_or_create(&label).dec();
}

/// Notes a client over TCP, and whether it is told of HTTP/3.
fn note_offer(context: &ListenerContext, generation: &Generation, client: IpAddr, protocol: &'static str, tells: bool) {
    let (now, shared) = (Instant::now(), &context.shared);
    if protocol == "qmux" || generation.config.http3.enabled {
        shared.fallbacks.over_tcp(client, now, tells, fallback::longest(&generation.config));
        shared.fallbacks.count(now, &shared.metrics.fallbacks);
    }
    if tells && let Some(news) = shared.offers.tell(client, now) {
        let told = ResultLabels { protocol, result: news.name() };
        shared.metrics.alt_svc_clients.get_or_create(&told).inc();
    }
}

/// Accepts TLS, on another thread where a signature may take its time.
async fn accept_tls(
    generation: &Arc<Generation>,
    context: &ListenerContext,
    stream: Lingering<Stalling<Counting<TcpStream>>, Place>,
) -> io::Result<Tcp> {
    if !generation.tls.signs_remotely {
        return generation.tls.accept(stream).await;
    }
    let generation = generation.clone();
    context.shared.persistent.waiting.run(async move { generation.tls.accept(stream).await }).await
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

/// A TLS connection and its place, which it keeps until the client has closed, too.
type Tcp = TlsStream<Lingering<Stalling<Counting<TcpStream>>, Place>>;
type Io = TokioIo<Tcp>;

/// The client of a connection.
#[derive(Clone)]
struct Client {
    remote: SocketAddr,
    /// Address of the listener.
    local: SocketAddr,
    certificate: Option<Arc<ClientCertificate>>,
    protocol: &'static str,
    /// Set-up and sent bytes of the connection.
    tcp: (Arc<SetupTime>, Arc<SentBytes>),
    memory: ConnectionBudget,
    /// Reason why this end closes the connection, once it does.
    cause: Cause,
}

impl Client {
    fn peer(&self, alt_svc: Option<HeaderValue>) -> Peer {
        let Self { remote, local, certificate, protocol, tcp, memory, cause } = self.clone();
        Peer {
            remote,
            proxy: None,
            certificate,
            protocol,
            listener: local,
            tcp: Some(tcp),
            is_first: false,
            alt_svc,
            quic: None,
            early: false,
            progress: None,
            memory,
            cause,
        }
    }

    /// Answers a request; its entry is open when this returns. Boxed, so that the memory is freed when the answer begins: an HTTP/2 stream
    /// keeps the memory of its future as long as its content is sent.
    fn answer(
        &self,
        request: Request<Incoming>,
        context: &ListenerContext,
    ) -> Pin<Box<dyn Future<Output = Response<AnyBody>> + Send>> {
        let generation = context.shared.current();
        let pace = pace(&generation.config.limits);
        let peer = self.peer(context.alt_svc(&generation.config));
        Box::pin(gateway::answer(&context.shared, incoming(request, pace, &self.memory), peer))
    }

    /// Lets a connection that is asked to end take its time, and no more.
    async fn end(
        &self,
        connection: impl Future<Output = hyper::Result<()>>,
        context: &ListenerContext,
    ) -> hyper::Result<()> {
        let mut connection = pin!(connection);
        // Handed over, it has as long as the process.
        let over = async {
            context.drain().await;
            tokio::time::sleep(context.shared.current().config.drain.0).await;
        };
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = over => {}
        }
        // Before the requests are dropped.
        self.cause.note(Ending::Drained);
        Ok(())
    }
}

async fn serve_h1(
    stream: Tcp,
    client: Client,
    context: &ListenerContext,
    generation: &Generation,
) -> hyper::Result<()> {
    let limits = &generation.config.limits;
    let io: Io = TokioIo::new(stream);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.fields_timeout.0);
    // The buffer holds the fields, and hyper wants 8 KiB at least.
    builder.max_buf_size(usize::try_from(limits.fields.0).unwrap_or(usize::MAX).max(8 * 1024));
    let service = service_fn(|request| {
        let answer = client.answer(request, context);
        async move {
            let mut answer = answer.await;
            // A connection that is closed while it is idle may lose the request that is on its way: the client is told with an
            // answer, so that its next request comes to the process that serves.
            if context.is_handed_over() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(builder.serve_connection(io, service).with_upgrades());
    let mut drain = pin!(context.drain());
    let served = tokio::select! {
        result = connection.as_mut() => result,
        () = &mut drain => {
            connection.as_mut().graceful_shutdown();
            client.end(connection, context).await
        }
    };
    // hyper has answered by itself; a connection that begins as one of HTTP/2 has asked for nothing.
    if let Err(error) = &served
        && error.is_parse()
        && !error.is_parse_version_h2()
    {
        let (ending, status) = match error.is_parse_too_large() {
            true => (Ending::FieldsTooLarge, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            false => (Ending::Malformed, StatusCode::BAD_REQUEST),
        };
        let log = &context.shared.current().log;
        Entry::refused(&context.shared.books(), log, &client.peer(None), ending, Some(status));
    }
    served
}

async fn serve_h2(
    stream: Tcp,
    client: Client,
    context: &ListenerContext,
    generation: &Generation,
    listed: &Listed,
) -> hyper::Result<()> {
    let limits = &generation.config.limits;
    let sections = Sections::new();
    // Goes after the connection, whatever ends that.
    let _unserved = Unserved { sections: sections.clone(), client: client.clone(), shared: context.shared.clone() };
    let io = TokioIo::new(Scanned::new(stream, sections.clone()));
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
    let (owned, asking) = (context.clone(), client.clone());
    let cancelled = Arc::new(Cancelled {
        max: limits.cancelled_requests,
        cause: client.cause.clone(),
        state: Mutex::new((Instant::now(), 0)),
        close: listed.close.clone(),
    });
    let patience = limits.read_timeout.0;
    let service = service_fn(move |request| {
        sections.on_served();
        let unanswered = Unanswered(Some(cancelled.clone()));
        let answer = asking.answer(request, &owned);
        async move {
            let answer = answer.await;
            unanswered.answered();
            let cause = answer.extensions().get::<Cause>().cloned().unwrap_or_default();
            Ok::<_, Infallible>(answer.map(|body| watched(body, patience, cause)))
        }
    });
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut drain = pin!(context.hand_over());
    tokio::select! {
        result = connection.as_mut() => return result,
        () = &mut drain => connection.as_mut().graceful_shutdown(),
    }
    client.end(connection, context).await
}

/// Requests of a connection of HTTP/2 that the library has refused. Dropped, they are written down.
struct Unserved {
    sections: Sections,
    client: Client,
    shared: Arc<Shared>,
}

impl Drop for Unserved {
    fn drop(&mut self) {
        for ending in self.sections.unserved() {
            let too_large = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            let status = (ending == Ending::FieldsTooLarge).then_some(too_large);
            Entry::refused(&self.shared.books(), &self.shared.current().log, &self.client.peer(None), ending, status);
        }
    }
}

/// Recently cancelled requests of a connection.
struct Cancelled {
    max: u32,
    cause: Cause,
    /// Since when, and how many.
    state: Mutex<(Instant, u32)>,
    close: Arc<Notify>,
}

/// A request without an answer. Dropping it counts as cancelled.
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
            cancelled.cause.note(Ending::Excess);
            cancelled.close.notify_one();
        }
    }
}
