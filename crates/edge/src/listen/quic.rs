//! QUIC: HTTP/3, or another protocol by ALPN and server name.

use std::{
    io,
    net::SocketAddr,
    num::{NonZeroU8, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use http::{Request, StatusCode};
use tiderace::{
    Connection, ConnectionBudget, Endpoint, Handshakes, Profile, RetryPolicy, ServerConfig, Shards, Stats, TlsPool,
    transport::{EndpointConfig, streams::StreamsConfig},
};
use tokio::sync::watch;

use super::{Entrance, pace};
use crate::{
    admission::Refusal,
    body::{incoming, untimed},
    capture::{ListenerTap, Spy},
    config::Config,
    gateway::{self, Peer},
    generation::{Generation, Shared},
    metrics::{DirectionLabels, HandshakeLabels, Metrics, ProtocolLabel, ReasonLabel, ResultLabels, VersionLabel},
    observe::{Cause, Ending, Entry},
    policy::Course,
    stream,
    worker::Workers,
};

/// RFC 9369 §3.1.
const VERSION_2: u32 = 0x6b33_43cf;
/// RFC 9114 §8.1: H3_EXCESSIVE_LOAD.
pub(crate) const EXCESSIVE_LOAD: u64 = 0x107;
/// How often policies that ask what a path has shown look at it.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes that a connection holds for a client that does not take them, or takes them slowly; where more is in flight it is twice that.
/// What is sent at full speed costs the same with an eighth of the transport's 4 MiB.
const SEND_BUFFER: u64 = 512 * 1024;

/// Bytes of datagrams that wait in each direction: they are carried at once, and what is behind them on the way is late anyway.
const DATAGRAM_QUEUE: u64 = 256 * 1024;

/// How QUIC sends where no policy says otherwise.
pub(crate) fn profile(config: &Config) -> Profile {
    Profile {
        name: "edge".to_owned(),
        congestion: config.transport.congestion.parse().expect("the configuration was checked"),
        idle_timeout: config.transport.idle_timeout.0,
        handshake_timeout: config.limits.handshake_timeout.0,
        datagram_queue: DATAGRAM_QUEUE,
        // RFC 9114 §6.1 SHOULD-1, SHOULD-2, RFC 9114 §6.2 MUST-1, SHOULD-1, RFC 9114 §6.2.1 SHOULD-1: the defaults have room for more
        // RFC 9114 §5.1 SHOULD NOT-1: nothing keeps a connection open that its client does not use
        streams: StreamsConfig {
            max_streams_bidi: config.limits.requests_per_connection.into(),
            send_buffer: SEND_BUFFER,
            // The transport permits twice the window of a connection.
            receive_window_max: (config.limits.connection_memory.0 / 2)
                .max(StreamsConfig::default().receive_window_connection),
            ..StreamsConfig::default()
        },
        ..Profile::default()
    }
}

/// How a generation wants connections to be accepted.
pub(super) fn server_config(generation: &Generation, local: SocketAddr) -> ServerConfig {
    let config = &generation.config;
    let server = ServerConfig {
        retry: match config.transport.retry_above {
            0 => RetryPolicy::Always,
            above => RetryPolicy::Above(above),
        },
        upgrade_to: config.transport.upgrade_to_version_2.then_some(VERSION_2),
        max_connections: config.limits.connections,
        observe: config.capture.enabled.then(|| Arc::new(Spy(generation.captures.clone())) as _),
        profiles: (!config.policies.is_empty()).then(|| Arc::new(generation.policies.at(local)) as _),
        ..ServerConfig::new(Arc::new(generation.tls.quic.clone()), Arc::new(profile(config)))
    };
    let speaks = !config.streams.is_empty() || config.http3.enabled;
    if config.http3.shed || !speaks {
        // Every first packet is answered with a version negotiation that offers nothing: clients are on TCP one round trip later.
        return ServerConfig { versions: Vec::new(), ..server };
    }
    server
}

/// Opens the UDP sockets at `local`, each driven by a worker.
pub(super) fn open(
    local: SocketAddr,
    first: &Generation,
    shared: &Arc<Shared>,
    workers: &Workers,
) -> io::Result<Endpoint> {
    let count = u8::try_from(workers.count()).ok().and_then(NonZeroU8::new).unwrap_or(NonZeroU8::MIN);
    let options = tiderace::EndpointOptions {
        server: Some(server_config(first, local)),
        ring: Some(shared.keeping.ring.clone()),
        shards: Shards::new(count),
        runtimes: workers.handles().to_vec(),
        handshakes: Handshakes::Pool(TlsPool::new(tls_threads(workers.count()))),
        config: None::<EndpointConfig>,
        memory: Some(shared.memory.process().clone()),
        tap: Some(Arc::new(ListenerTap { captures: shared.keeping.captures.clone(), local })),
        visits: Some(shared.fallbacks.clone()),
    };
    Endpoint::open(local, options)
}

/// Threads for TLS: one for each worker, and some that may wait for the register of early data meanwhile.
fn tls_threads(workers: usize) -> NonZeroUsize {
    const WAITING: usize = 4;
    NonZeroUsize::MIN.saturating_add(workers + WAITING - 1)
}

/// Serves the connections of one worker until the listener is gone.
pub(super) async fn accept(
    endpoint: Arc<Endpoint>,
    worker: usize,
    entrance: Entrance,
    mut close: watch::Receiver<bool>,
) {
    loop {
        // With its early data, if TLS has accepted that: the configuration may change while this waits.
        let connection = tokio::select! {
            connection = endpoint.accept_at(worker, true) => connection,
            // Handshakes that were under way are let in as long as somebody holds the listener.
            closed = close.changed() => match closed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Some(connection) = connection else { return };
        tokio::spawn(serve(connection, entrance.clone()));
    }
}

async fn serve(connection: Connection, entrance: Entrance) {
    let Some(remote) = connection.remote_address() else { return };
    let shared = entrance.shared.clone();
    let generation = shared.current();
    let limits = &generation.config.limits;
    // Connections that are accepted with their early data may have come from anywhere.
    let is_validated = connection.has_validated_address() == Some(true);
    let place = shared.admission.enter_unvalidated(limits.connections);
    let mut place = match place {
        Ok(place) => place,
        Err(refusal) => return refuse(&connection, refusal, &shared),
    };
    if is_validated && let Err(refusal) = place.count_for(remote.ip(), limits.connections_per_address) {
        return refuse(&connection, refusal, &shared);
    }
    let _listed = shared.keeping.captures.enlist(&connection);
    let alpn = connection.alpn().unwrap_or_default();
    let is_h3 = alpn == h3_quic::ALPN;
    let label = ProtocolLabel { protocol: if is_h3 { "h3" } else { "stream" } };
    shared.metrics.connections.get_or_create(&label).inc();
    shared.metrics.connections_total.get_or_create(&label).inc();
    let version = match connection.version() {
        Some(0x1) => "1",
        Some(VERSION_2) => "2",
        _ => "other",
    };
    shared.metrics.quic_versions.get_or_create(&VersionLabel { version }).inc();
    let course = Course::begin(generation.policies.at(entrance.local), &connection, remote);
    let serving = async {
        if is_h3 {
            serve_h3(&connection, remote, &entrance, &generation, course.clone()).await;
            return;
        }
        let name = connection.server_name();
        let target = generation.streams.iter().find(|target| target.fits(&alpn, name.as_deref()));
        match target {
            Some(target) => {
                let by_policy = course.as_ref().is_none_or(|course| course.takes_early_data());
                stream::serve(&connection, target, &entrance, target.takes_early_data() && by_policy).await;
            }
            None => connection.close(stream::NOBODY, b"nobody answers for this name"),
        }
    };
    let serving = async {
        match course.as_deref().filter(|_| generation.policies.measure()) {
            None => serving.await,
            Some(course) => tokio::select! {
                () = serving => {}
                () = tick(course) => {}
            },
        }
    };
    // What is kept by address waits until the address is known to be the client's; it is the same as in the first packet.
    let knowing = async {
        if connection.established().await.is_err() {
            return;
        }
        if !is_validated && let Err(refusal) = place.count_for(remote.ip(), limits.connections_per_address) {
            return refuse(&connection, refusal, &shared);
        }
        if let Some(news) = shared.offers.come(remote.ip()) {
            let told = ResultLabels { protocol: "h3", result: news.name() };
            shared.metrics.alt_svc_clients.get_or_create(&told).inc();
        }
    };
    tokio::join!(serving, knowing, time_handshake(&connection, &entrance));
    if let Some(stats) = connection.stats() {
        write_down(&shared.metrics, &stats);
        if let Some(course) = &course {
            course.end(&stats, &shared.arms, &shared.metrics);
        }
    }
    shared.metrics.connections.get_or_create(&label).dec();
}

/// Closes a connection for which there is no place.
fn refuse(connection: &Connection, refusal: Refusal, shared: &Shared) {
    let reason = if refusal == Refusal::Total { "total" } else { "address" };
    shared.metrics.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
    connection.close(EXCESSIVE_LOAD, b"too many connections");
}

/// Writes down how long the handshake has taken, when it is complete.
async fn time_handshake(connection: &Connection, entrance: &Entrance) {
    if connection.established().await.is_ok()
        && let Some(stats) = connection.stats()
    {
        let labels =
            HandshakeLabels { listener: entrance.local.to_string(), transport: "quic", kind: handshake_kind(&stats) };
        entrance.shared.metrics.paths.handshake.get_or_create(&labels).observe(stats.handshake_time as f64 / 1e9);
    }
}

/// What kind of handshake a connection has made, in a word.
pub(crate) fn handshake_kind(stats: &Stats) -> &'static str {
    match (stats.early_data_accepted, stats.resumed) {
        (1.., _) => "0-rtt",
        (_, 1..) => "resumed",
        _ => "full",
    }
}

/// Looks again and again at what the path has shown. Does not end.
async fn tick(course: &Course) {
    loop {
        tokio::time::sleep(LOOK).await;
        course.on_tick();
    }
}

/// The client of a request.
fn peer(quic: Connection, remote: SocketAddr, course: Option<Arc<Course>>, memory: ConnectionBudget) -> Peer {
    // The client may have moved since. Where it has not shown that it receives, it is not.
    let remote = quic.remote_address().unwrap_or(remote);
    let early = !quic.is_established();
    Peer { remote, protocol: "h3", alt_svc: None, quic: Some(quic), early, course, memory, cause: Cause::default() }
}

async fn serve_h3(
    connection: &Connection,
    remote: SocketAddr,
    entrance: &Entrance,
    generation: &Generation,
    course: Option<Arc<Course>>,
) {
    let limits = &generation.config.limits;
    // It is gone already.
    let Some(memory) = connection.memory_budget() else { return };
    let (shared, quic) = (entrance.shared.clone(), connection.clone());
    let client = move || peer(quic.clone(), remote, course.clone(), memory.clone());
    let refused = {
        let (shared, client) = (shared.clone(), client.clone());
        move |why| {
            let (ending, status) = match why {
                h3_quic::server::RefusedRequest::TooLarge => {
                    (Ending::FieldsTooLarge, Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE))
                }
                _ => (Ending::Malformed, None),
            };
            Entry::refused(&shared, &shared.current().log, &client(), ending, status);
        }
    };
    let options = h3_quic::server::Options {
        max_fields: limits.fields.0,
        fields_timeout: limits.fields_timeout.0,
        write_timeout: limits.read_timeout.0,
        max_requests: limits.requests_per_connection as usize,
        max_cancelled: limits.cancelled_requests,
        drain: generation.config.drain.0,
        compression: entrance.shared.compression.clone(),
        refused: Some(Arc::new(refused)),
    };
    let service = move |request: Request<h3_quic::RequestBody>| {
        let pace = pace(&shared.current().config.limits);
        let peer = client();
        let memory = peer.memory.clone();
        // Who has something else in mind than a request may be silent for as long as it likes.
        let is_tunnel = request.extensions().get::<h3_quic::Protocol>().is_some();
        let request =
            if is_tunnel { request.map(|body| untimed(body, &memory)) } else { incoming(request, pace, &memory) };
        gateway::answer(&shared, request, peer)
    };
    let served = h3_quic::server::serve(connection.clone(), options, entrance.drain(), service).await;
    if let Err(error) = served {
        tracing::debug!("a connection of {remote} ended by an error: {error}");
        let result = match error {
            h3_quic::Error::Protocol { code: h3_quic::Code::EXCESSIVE_LOAD, .. } => "excessive-load",
            h3_quic::Error::Protocol { .. } => "malformed",
            _ => "broken",
        };
        entrance.shared.metrics.connection_errors.get_or_create(&ResultLabels { protocol: "h3", result }).inc();
    }
}

/// What a connection leaves in the figures.
fn write_down(metrics: &Metrics, stats: &Stats) {
    if stats.smoothed_rtt > 0 {
        metrics.paths.rtt.observe(stats.smoothed_rtt as f64 / 1e9);
    }
    if stats.min_rtt > 0 {
        metrics.paths.min_rtt.observe(stats.min_rtt as f64 / 1e9);
    }
    // A ratio of few says nothing.
    if stats.packets_sent >= 100 {
        metrics.paths.loss.observe(stats.packets_lost as f64 / stats.packets_sent as f64);
    }
    let early = match (stats.early_data_accepted, stats.early_data_refused) {
        (1.., _) => "accepted",
        (_, 1..) => "refused",
        _ => "none",
    };
    metrics.quic_early_data.get_or_create(&ReasonLabel { reason: early }).inc();
    metrics.quic_path_changes.inc_by(stats.path_changes);
    let repair = [
        ("protected", stats.fec_symbols_sent),
        ("sent", stats.fec_repairs_sent),
        ("rebuilt_there", stats.fec_packets_recovered),
        ("rebuilt_here", stats.fec_symbols_recovered),
    ];
    for (reason, count) in repair.into_iter().filter(|(_, count)| *count > 0) {
        metrics.quic_repair.get_or_create(&ReasonLabel { reason }).inc_by(count);
    }
    let counts = [("sent", stats.packets_sent), ("received", stats.packets_received), ("lost", stats.packets_lost)];
    for (direction, count) in counts {
        metrics.quic_packets.get_or_create(&DirectionLabels { protocol: "quic", direction }).inc_by(count);
    }
}
