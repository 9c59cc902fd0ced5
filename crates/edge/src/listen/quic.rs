//! QUIC: HTTP/3, or another protocol by ALPN and server name.

use std::{
    io,
    net::SocketAddr,
    num::{NonZeroU8, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use tiderace::{
    Connection, ConnectionBudget, Endpoint, Handshakes, KernelSteering, RetryPolicy, ServerConfig, Shards, Stats,
    TlsPool, transport::EndpointConfig,
};
use tokio::sync::watch;

use super::{Accepting, TakenUdp, pace};
use crate::{
    admission::{EXCESSIVE_LOAD, Refusal},
    body::{incoming, untimed},
    capture::{ConnectionObserver, ListenerTap},
    client_certificate::ClientCertificate,
    context::ListenerContext,
    ending::{Cause, Ending},
    gateway,
    generation::{Generation, Shared},
    metrics::{
        DirectionLabels, HandshakeLabels, Metrics, ProtocolLabel, ReasonLabel, ResultLabels, VersionLabel,
        handshake_kind,
    },
    observe::Entry,
    peer::Peer,
    policy::PolicyProgress,
    profile::profile,
    stream,
    worker::Workers,
};

/// RFC 9369 §3.1.
const VERSION_2: u32 = 0x6b33_43cf;
/// CONNECTION_CLOSE code for a client without a certificate: H3_REQUEST_REJECTED (RFC 9114 §8.1), nothing was processed.
const NO_CERTIFICATE: u64 = 0x10b;
/// Interval between evaluations of policies that depend on the path.
const LOOK: Duration = Duration::from_secs(1);

/// Builds the QUIC server configuration of a generation.
pub(super) fn server_config(generation: &Generation, local: SocketAddr) -> ServerConfig {
    let config = &generation.config;
    let server = ServerConfig {
        retry: match config.transport.retry_above {
            0 => RetryPolicy::Always,
            above => RetryPolicy::Above(above),
        },
        upgrade_to: config.transport.upgrade_to_version_2.then_some(VERSION_2),
        max_connections: config.limits.connections,
        observe: config.capture.enabled.then(|| Arc::new(ConnectionObserver(generation.captures.clone())) as _),
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

/// Opens the UDP sockets at `local`, each driven by a worker, or takes over those of another process.
pub(super) fn open(
    local: SocketAddr,
    taken_over: Option<TakenUdp>,
    first: &Generation,
    shared: &Arc<Shared>,
    workers: &Workers,
    pool: TlsPool,
) -> io::Result<Endpoint> {
    let count = u8::try_from(workers.sockets()).ok().and_then(NonZeroU8::new).unwrap_or(NonZeroU8::MIN);
    let is_among_others = taken_over.as_ref().is_some_and(|taken| taken.is_among_others);
    let (taken_over, table) = taken_over.map_or((None, None), |taken| (Some(taken.sockets), taken.steering));
    let steering = match table {
        _ if !first.config.upgrade.kernel_steering => KernelSteering::Off,
        Some(table) => KernelSteering::Adopt(table),
        None => KernelSteering::Load,
    };
    let options = tiderace::EndpointOptions {
        server: Some(server_config(first, local)),
        generation: Some(shared.persistent.id_generation),
        routable: shared.persistent.routable.current(),
        routable_before: shared.persistent.routable.older(),
        load_balancers: Some(shared.persistent.load_balancers.clone()),
        ring: Some(shared.persistent.ring.clone()),
        shards: Shards::new(count),
        runtimes: workers.of_sockets(),
        handshakes: Handshakes::Pool(pool),
        config: None::<EndpointConfig>,
        memory: Some(shared.memory.process().clone()),
        tap: Some(Arc::new(ListenerTap { captures: shared.persistent.captures.clone(), local })),
        attempts: Some(shared.fallbacks.clone()),
        steering,
        is_among_others,
        on_panic: Some({
            let panics = shared.panics.clone();
            Arc::new(move || panics.report())
        }),
    };
    match taken_over {
        Some(sockets) => Endpoint::take_over(sockets, options),
        None => Endpoint::open(local, options),
    }
}

/// Pool of TLS for this generation and those that follow.
pub(super) fn pool(first: &Generation, workers: &Workers) -> TlsPool {
    let pool = TlsPool::new(tls_threads(workers.count()));
    prepare(&pool, first);
    pool
}

/// Prepares the pool for handshakes of a generation.
pub(super) fn prepare(pool: &TlsPool, generation: &Generation) {
    if generation.tls.signs_remotely {
        pool.expect_remote_keys();
    }
}

/// Threads for TLS: one for each worker, and some that may wait for the register of early data meanwhile.
fn tls_threads(workers: usize) -> NonZeroUsize {
    const WAITING: usize = 4;
    NonZeroUsize::MIN.saturating_add(workers + WAITING - 1)
}

/// Serves the connections of one shard until the listener is gone.
pub(super) async fn accept(
    endpoint: Arc<Endpoint>,
    shard: usize,
    context: ListenerContext,
    mut accepting: watch::Receiver<Accepting>,
) {
    loop {
        // With its early data, if TLS has accepted that: the configuration may change while this waits.
        let connection = tokio::select! {
            connection = endpoint.accept_at(shard, true) => connection,
            // Handshakes that were in progress are let in as long as somebody holds the listener.
            closed = accepting.changed() => match closed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Some(connection) = connection else { return };
        tokio::spawn(serve(connection, context.clone()));
    }
}

async fn serve(connection: Connection, context: ListenerContext) {
    let Some(remote) = connection.remote_address() else { return };
    let shared = context.shared.clone();
    let generation = shared.current();
    let limits = &generation.config.limits;
    // Connections that are accepted with their early data may have come from anywhere.
    let is_validated = connection.has_validated_address() == Some(true);
    let place = shared.admission.enter_unvalidated(limits.connections);
    let mut place = match place {
        Ok(place) => place,
        Err(refusal) => return refuse(&connection, refusal, &shared),
    };
    if is_validated && let Err(refusal) = place.count_for(remote.ip(), generation.connections_of(remote.ip())) {
        return refuse(&connection, refusal, &shared);
    }
    let chain = connection.peer_certificates();
    let chain: Vec<&[u8]> = chain.iter().map(AsRef::as_ref).collect();
    let Ok(certificate) = shared.verify_client(&generation, &chain) else {
        return connection.close(NO_CERTIFICATE, b"a good certificate of the client is required");
    };
    let _listed = shared.persistent.captures.enlist(&connection);
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
    shared.metrics.quic.versions.get_or_create(&VersionLabel { version }).inc();
    let progress = PolicyProgress::begin(generation.policies.at(context.local), &connection, remote);
    let serving = async {
        if is_h3 {
            let client = Client { remote, certificate, progress: progress.clone() };
            serve_h3(&connection, client, &context, &generation).await;
            return;
        }
        let name = connection.server_name();
        let target = generation.streams.iter().find(|target| target.fits(&alpn, name.as_deref()));
        match target {
            Some(target) => {
                let by_policy = progress.as_ref().is_none_or(|progress| progress.takes_early_data());
                stream::serve(&connection, target, &context, target.takes_early_data() && by_policy).await;
            }
            None => connection.close(stream::NOBODY, b"nobody answers for this name"),
        }
    };
    let serving = async {
        match progress.as_deref().filter(|_| generation.policies.measure()) {
            None => serving.await,
            Some(progress) => tokio::select! {
                () = serving => {}
                () = tick(progress) => {}
            },
        }
    };
    // What is kept by address waits until the address is known to be the client's; it is the same as in the first packet.
    let knowing = async {
        if connection.established().await.is_err() {
            return;
        }
        if !is_validated && let Err(refusal) = place.count_for(remote.ip(), generation.connections_of(remote.ip())) {
            return refuse(&connection, refusal, &shared);
        }
        if let Some(news) = shared.offers.come(remote.ip()) {
            let told = ResultLabels { protocol: "h3", result: news.name() };
            shared.metrics.alt_svc_clients.get_or_create(&told).inc();
        }
    };
    tokio::join!(serving, knowing, time_handshake(&connection, &context));
    if let Some(stats) = connection.stats() {
        write_down(&shared.metrics, &stats);
        if let Some(progress) = &progress {
            progress.end(&stats, &shared.arms, &shared.metrics);
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
async fn time_handshake(connection: &Connection, context: &ListenerContext) {
    if connection.established().await.is_ok()
        && let Some(stats) = connection.stats()
    {
        let labels =
            HandshakeLabels { listener: context.local.to_string(), transport: "quic", kind: handshake_kind(&stats) };
        context.shared.metrics.paths.handshake.get_or_create(&labels).observe(stats.handshake_time as f64 / 1e9);
    }
}

/// Evaluates the policies each second by the measurements of the path. Does not end.
async fn tick(progress: &PolicyProgress) {
    loop {
        tokio::time::sleep(LOOK).await;
        progress.on_tick();
    }
}

/// The client of a connection.
#[derive(Clone)]
struct Client {
    remote: SocketAddr,
    certificate: Option<Arc<ClientCertificate>>,
    progress: Option<Arc<PolicyProgress>>,
}

/// The client of a request.
fn peer(quic: Connection, client: Client, memory: ConnectionBudget) -> Peer {
    let Client { remote, certificate, progress } = client;
    // The client may have moved since. Where it has not shown that it receives, it is not.
    let remote = quic.remote_address().unwrap_or(remote);
    let early = !quic.is_established();
    let cause = Cause::default();
    let (proxy, alt_svc) = (None, None);
    let (listener, tcp, is_first) = (SocketAddr::from(([0, 0, 0, 0], 0)), None, false);
    let (protocol, quic) = ("h3", Some(quic));
    Peer {
        remote,
        proxy,
        certificate,
        protocol,
        listener,
        tcp,
        is_first,
        alt_svc,
        quic,
        early,
        progress,
        memory,
        cause,
    }
}

async fn serve_h3(connection: &Connection, client: Client, context: &ListenerContext, generation: &Generation) {
    let limits = &generation.config.limits;
    // It is gone already.
    let Some(memory) = connection.memory_budget() else { return };
    let (shared, quic) = (context.shared.clone(), connection.clone());
    let remote = client.remote;
    let (local, began) = (context.local, Arc::new(AtomicBool::new(false)));
    let client = move || {
        let is_first = !began.swap(true, Ordering::Relaxed);
        Peer { listener: local, is_first, ..peer(quic.clone(), client.clone(), memory.clone()) }
    };
    let refused = {
        let (shared, client) = (shared.clone(), client.clone());
        move |why| {
            let (ending, status) = match why {
                h3_quic::server::RefusedRequest::TooLarge => {
                    (Ending::FieldsTooLarge, Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE))
                }
                _ => (Ending::Malformed, None),
            };
            Entry::refused(&shared.books(), &shared.current().log, &client(), ending, status);
        }
    };
    let options = h3_quic::server::Options {
        max_fields: limits.fields.0,
        fields_timeout: limits.fields_timeout.0,
        write_timeout: limits.read_timeout.0,
        max_requests: limits.requests_per_connection as usize,
        max_cancelled: limits.cancelled_requests,
        drain: generation.config.drain.0,
        compression: context.shared.compression.clone(),
        sessions: generation.sessions.as_ref().map(|settings| settings.support(connection)),
        forwards: true,
        refused: Some(Arc::new(refused)),
    };
    let listener = context.clone();
    let service = move |mut request: Request<h3_quic::RequestBody>| {
        let pace = pace(&shared.current().config.limits);
        let peer = client();
        let memory = peer.memory.clone();
        // Who has something else in mind than a request may be silent for as long as it likes.
        let is_tunnel = *request.method() == http::Method::CONNECT;
        if is_tunnel {
            // A session ends with its listener.
            request.extensions_mut().insert(listener.clone());
        }
        let request =
            if is_tunnel { request.map(|body| untimed(body, &memory)) } else { incoming(request, pace, &memory) };
        // Boxed, because it is large: the task of the exchange, which is moved several times, stays small, and the memory is freed when the
        // answer begins.
        Box::pin(gateway::answer(&shared, request, peer))
    };
    let served = h3_quic::server::serve(connection.clone(), options, context.drain(), service).await;
    if let Err(error) = served {
        tracing::debug!("a connection of {remote} ended by an error: {error}");
        let result = match error {
            h3_quic::Error::Protocol { code: h3_quic::Code::EXCESSIVE_LOAD, .. } => "excessive-load",
            h3_quic::Error::Protocol { .. } => "malformed",
            _ => "broken",
        };
        context.shared.metrics.connection_errors.get_or_create(&ResultLabels { protocol: "h3", result }).inc();
    }
}

/// Adds a connection's counters to the metrics.
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
    metrics.quic.early_data.get_or_create(&ReasonLabel { reason: early }).inc();
    metrics.quic.path_changes.inc_by(stats.path_changes);
    let repair = [
        ("protected", stats.fec_symbols_sent),
        ("sent", stats.fec_repairs_sent),
        ("rebuilt_there", stats.fec_packets_recovered),
        ("rebuilt_here", stats.fec_symbols_recovered),
    ];
    for (reason, count) in repair.into_iter().filter(|(_, count)| *count > 0) {
        metrics.quic.repair.get_or_create(&ReasonLabel { reason }).inc_by(count);
    }
    let counts = [("sent", stats.packets_sent), ("received", stats.packets_received), ("lost", stats.packets_lost)];
    for (direction, count) in counts {
        metrics.quic.packets.get_or_create(&DirectionLabels { protocol: "quic", direction }).inc_by(count);
    }
}
