//! Back end: its pools of connections, and its health.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response, Uri, Version, header, uri::Authority};
use http_body_util::BodyExt;
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, dns::GaiResolver},
    },
    rt::{TokioExecutor, TokioTimer},
};
use prometheus_client::metrics::counter::Counter;
use rustls::pki_types::ServerName;
use tiderace::{ProcessBudget, transport::memory::ProcessCharge};
use tokio::{sync::Semaphore, task::AbortHandle};

use super::{
    SendError, health, interim,
    names::{Resolver, Source},
    quic::{NoStream, QuicPool, Switched, without_content},
    read_ahead,
};
use crate::{
    body::AnyBody,
    config::{Health, Protocol, Route, back_end},
    metrics::{BackEndLabel, BackEndResult, Metrics},
    trust::{RootsError, Trust},
    worker,
};

/// Result of a request that was answered.
pub(super) const ANSWERED: &str = "answered";
/// Time for which an unreachable back end without health checks is skipped.
const PASSED_OVER: Duration = Duration::from_secs(2);
/// Unused connections to a back end are kept for this long.
const KEPT: Duration = Duration::from_secs(60);
/// Largest number of idle connections to a back end that a worker keeps.
const KEPT_COUNT: usize = 128;
/// Silence after which an HTTP/2 connection is sent a PING, and time limit of its answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Bytes of a response that a connection of HTTP/1.1 reads ahead, which bounds its fields, too. Its buffer begins with 8 KiB, doubles what it
/// asks for while responses fill it, and so ends at 56 KiB. All of it from the beginning would be wasted on uploads; 24 KiB would keep it at
/// 24, and cost a tenth of the processor time of large files (docs/limits.md).
const READ_BUFFER: usize = 32 * 1024;
/// Bytes of a request over HTTP/2 that wait to be sent.
const SEND_BUFFER: usize = 32 * 1024;
/// Bytes of a response over HTTP/2 that its client has not read.
pub(super) const STREAM_WINDOW: u32 = 512 * 1024;
/// Largest window of a connection (RFC 9113 §6.9.1).
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// Memory of a request over HTTP/1.1: the read buffer, 8 KiB for its head, 8 KiB for the queue of its connection, tasks.
const HTTP1_REQUEST: u64 = 76 * 1024;
/// The same where requests share a connection.
const SHARED_REQUEST: u64 = 16 * 1024;

/// Versions that a back end has chosen.
const HTTP1: u8 = 1;
const HTTP2: u8 = 2;
const HTTP3: u8 = 3;

/// A client with its pool.
pub(crate) type Pool = Client<HttpsConnector<HttpConnector<Resolver>>, AnyBody>;

/// The host of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// The one in its URL, looked up for each connection.
    Url,
    /// One of the addresses that the name in its URL has.
    Address(IpAddr),
}

/// One back end.
pub(crate) struct BackEnd {
    to: String,
    host: Host,
    /// Name in logs and metrics.
    name: String,
    authority: Authority,
    protocol: Protocol,
    connect_timeout: Duration,
    health: Option<Health>,
    /// Places for requests.
    places: Arc<Semaphore>,
    /// Number of places.
    requests: usize,
    trust: Trust,
    /// The name that its certificate has to have, when it is not the host's.
    server_name: String,
    /// One for each worker, so that an answer wakes the thread that waits for it.
    pools: Vec<Pool>,
    /// Over TLS: the same for HTTP/1.1 only, for connections that switch to another protocol.
    plain: Vec<Pool>,
    /// Connections over QUIC to one that speaks HTTP/3.
    quic: Option<Arc<QuicPool>>,
    /// Over TLS: last negotiated version, 0 before the first.
    chosen: AtomicU8,
    /// Budget of what requests and responses hold.
    memory: ProcessBudget,
    /// Result of the latest health checks.
    well: AtomicBool,
    passed_over_until: Mutex<Option<Instant>>,
    asking: Mutex<Option<AbortHandle>>,
    metrics: Arc<Metrics>,
    /// Answered requests: looked up once, because nearly every request counts there.
    answered: OnceLock<Counter>,
}

impl BackEnd {
    pub(super) fn new(to: &str, host: Host, source: &Source) -> Result<Arc<Self>, RootsError> {
        let Source { route, trust, workers, memory, metrics, .. } = source;
        let (protocol, authority) = back_end(to).expect("the configuration was checked");
        let is_tls = protocol.is_tls();
        // Where there is no TLS, nobody is believed or asked.
        let config = if is_tls { trust.client()? } else { Trust::Anybody.client()? };
        if is_tls && *trust == Trust::Anybody {
            tracing::warn!("the certificate of the back end {to} is not verified");
        }
        let server: Arc<dyn ResolveServerName + Send + Sync> = match ServerName::try_from(route.tls.name.clone()) {
            Ok(name) => Arc::new(FixedServerNameResolver::new(name)),
            Err(_) => Arc::new(DefaultServerNameResolver::default()),
        };
        let pools = |alpn: &[&[u8]]| -> Vec<Pool> {
            let mut config = config.clone();
            config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
            let config = Arc::new(config);
            let pool = |_| {
                let resolver = match host {
                    Host::Url => Resolver::System(GaiResolver::new()),
                    Host::Address(address) => Resolver::Known(address),
                };
                let mut connector = HttpConnector::new_with_resolver(resolver);
                connector.set_nodelay(true);
                connector.enforce_http(false);
                connector.set_connect_timeout(Some(route.connect_timeout.0));
                let connector = HttpsConnector::new(connector, config.clone(), is_tls, server.clone());
                let mut builder = Client::builder(TokioExecutor::new());
                builder.pool_timer(TokioTimer::new()).pool_idle_timeout(KEPT).pool_max_idle_per_host(KEPT_COUNT);
                builder.http1_max_buf_size(READ_BUFFER).http2_max_send_buf_size(SEND_BUFFER);
                // All requests share a connection: those whose clients do not read leave room for the others.
                let requests = u32::try_from(route.requests).unwrap_or(u32::MAX);
                let window = STREAM_WINDOW.saturating_mul(requests).min(WINDOW_MAX);
                builder.http2_initial_stream_window_size(STREAM_WINDOW).http2_initial_connection_window_size(window);
                // A back end that is gone without a word would get requests as long as its connection is there.
                builder.timer(TokioTimer::new()).http2_keep_alive_interval(KEEP_ALIVE);
                builder.http2_keep_alive_timeout(KEEP_ALIVE).http2_keep_alive_while_idle(true);
                builder.http2_only(protocol == Protocol::Http2).set_host(is_tls);
                builder.build(connector)
            };
            (0..workers.len()).map(pool).collect()
        };
        let name = match host {
            Host::Url => to.to_owned(),
            Host::Address(address) => format!("{to} at {address}"),
        };
        let quic = match protocol {
            Protocol::Http3 => Some(QuicPool::new(&name, &authority, host, source, KEPT)?),
            _ => None,
        };
        let this = Arc::new(Self {
            to: to.to_owned(),
            host,
            name,
            authority,
            protocol,
            connect_timeout: route.connect_timeout.0,
            health: route.health.clone(),
            places: Arc::new(Semaphore::new(route.requests.min(Semaphore::MAX_PERMITS))),
            requests: route.requests,
            trust: trust.clone(),
            server_name: route.tls.name.clone(),
            pools: pools(&[b"h2", b"http/1.1"]),
            plain: if is_tls { pools(&[b"http/1.1"]) } else { Vec::new() },
            quic,
            chosen: AtomicU8::new(0),
            memory: memory.clone(),
            well: AtomicBool::new(true),
            passed_over_until: Mutex::new(None),
            asking: Mutex::new(None),
            metrics: metrics.clone(),
            answered: OnceLock::new(),
        });
        this.show();
        if let Some(health) = &this.health {
            let task = workers[0].spawn(health::ask(Arc::downgrade(&this), health.clone()));
            *this.asking.lock().expect("nothing panics under the lock") = Some(task.abort_handle());
        }
        Ok(this)
    }

    /// Returns whether this is the back end of `to` in `route`, with this `trust`.
    pub(super) fn is_for(&self, to: &str, host: Host, route: &Route, trust: &Trust) -> bool {
        let same_tls = !self.protocol.is_tls() || self.trust == *trust && self.server_name == route.tls.name;
        let same_limits = self.requests == route.requests && self.connect_timeout == route.connect_timeout.0;
        self.is_of(to) && self.host == host && same_limits && self.health == route.health && same_tls
    }

    /// Returns whether this is, or is an address of, the back end that a configuration calls `to`.
    pub(super) fn is_of(&self, to: &str) -> bool {
        self.to == to
    }

    /// Returns whether this is an address of the back end of `to` in `route`, with this `trust`.
    pub(super) fn is_address_for(&self, to: &str, route: &Route, trust: &Trust) -> bool {
        self.host != Host::Url && self.is_for(to, self.host, route, trust)
    }

    /// Requests that are with the back end.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.min(Semaphore::MAX_PERMITS).saturating_sub(self.places.available_permits())
    }

    /// Places for requests, one for each that may be with it at a time.
    pub(super) fn places(&self) -> Arc<Semaphore> {
        self.places.clone()
    }

    /// Charges the process for a request that is with the back end; what a response holds beside it is charged as it comes.
    pub(super) fn charge(&self) -> ProcessCharge {
        let shares = self.protocol() == "h2" || self.protocol() == "h3";
        self.memory.charge(if shares { SHARED_REQUEST } else { HTTP1_REQUEST })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Counts a request by its result.
    pub(super) fn count(&self, result: &'static str) {
        let labels = || BackEndResult { back_end: self.name.clone(), result };
        let of = || self.metrics.back_ends.requests.get_or_create(&labels()).clone();
        match result {
            ANSWERED => self.answered.get_or_init(of).inc(),
            _ => of().inc(),
        };
    }

    /// Protocol spoken to the back end: `tls` as long as none is negotiated.
    pub(crate) fn protocol(&self) -> &'static str {
        match (self.protocol, self.chosen.load(Ordering::Relaxed)) {
            (Protocol::Http2, _) | (Protocol::Tls | Protocol::Http3, HTTP2) => "h2",
            (Protocol::Http1, _) | (Protocol::Tls | Protocol::Http3, HTTP1) => "http/1.1",
            (Protocol::Http3, _) => "h3",
            (Protocol::Tls, _) => "tls",
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.protocol.is_tls()
    }

    /// Failure of QUIC, while requests go over TCP for it.
    pub(crate) fn fall_back(&self) -> Option<String> {
        self.quic.as_ref()?.failure()
    }

    pub(crate) fn is_well(&self) -> bool {
        let passed_over = *self.passed_over_until.lock().expect("nothing panics under the lock");
        self.well.load(Ordering::Relaxed) && passed_over.is_none_or(|until| until <= Instant::now())
    }

    /// Sends a request, over QUIC where the back end is reached so. `queue` limits the wait for a stream.
    ///
    /// # Errors
    /// When there is no response.
    pub(super) async fn send(
        &self,
        request: Request<AnyBody>,
        queue: Duration,
    ) -> Result<Response<AnyBody>, SendError> {
        // What is sent over QUIC is boxed: its futures are large, and there would be room for them in that of every request.
        // A back end over TCP has a connection for each request that switches to another protocol.
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let quic = self.quic.as_ref();
        let mut not_over_quic = None;
        if let Some(quic) = quic.filter(|_| upgrades) {
            match Box::pin(quic.switch(self.address_quic(without_content(&request)), queue)).await? {
                Switched::Answered(response) => return Ok(response),
                Switched::OverTcp(why) => not_over_quic = Some(why),
            }
        } else if let Some(quic) = quic {
            match quic.reserve(queue).await {
                Ok(reserved) => {
                    let mut response = Box::pin(reserved.send(self.address_quic(request))).await?;
                    quic.on_answer();
                    self.chose(Version::HTTP_3);
                    // A server of HTTP/1.1 sends no response of this version.
                    *response.version_mut() = Version::default();
                    return Ok(response);
                }
                Err(NoStream::Queued) => return Err(SendError::Queued),
                Err(NoStream::FallBack) => {}
            }
        }
        let mut request = self.address(request);
        interim::over_tcp(&mut request);
        match self.client(&request).request(request).await {
            Ok(response) => {
                if let Some(quic) = quic {
                    quic.on_tcp_success();
                }
                if !upgrades {
                    self.chose(response.version());
                }
                let shares = response.version() == Version::HTTP_2;
                Ok(response.map(|content| match shares {
                    true => read_ahead::charged(content, &self.memory),
                    false => content.map_err(Into::into).boxed_unsync(),
                }))
            }
            Err(error) => {
                if let Some(quic) = quic.filter(|_| error.is_connect()) {
                    quic.on_tcp_failure();
                }
                Err(SendError::Tcp(error, self.fall_back().or(not_over_quic.map(str::to_owned))))
            }
        }
    }

    /// The pool of this worker for a request over TCP.
    fn client(&self, request: &Request<AnyBody>) -> &Pool {
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let pools = if upgrades && !self.plain.is_empty() { &self.plain } else { &self.pools };
        &pools[worker::current().min(pools.len() - 1)]
    }

    /// Target of a request at this back end.
    fn target(&self, request: &Request<AnyBody>) -> Uri {
        let path = request.uri().path_and_query().cloned();
        let scheme = if self.is_tls() { "https" } else { "http" };
        let uri = Uri::builder().scheme(scheme).authority(self.authority.clone());
        let uri = uri.path_and_query(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")));
        uri.build().expect("all three parts are there")
    }

    /// Directs a request to this back end over QUIC.
    fn address_quic(&self, mut request: Request<AnyBody>) -> Request<AnyBody> {
        *request.uri_mut() = self.target(&request);
        // `:authority` is the back end's, as over HTTP/2.
        request.headers_mut().remove(header::HOST);
        *request.version_mut() = Version::HTTP_3;
        request
    }

    /// Directs a request to this back end over TCP.
    fn address(&self, mut request: Request<AnyBody>) -> Request<AnyBody> {
        *request.uri_mut() = self.target(&request);
        if self.protocol == Protocol::Http2 {
            // `:authority` is the back end's; another name beside it would contradict it.
            request.headers_mut().remove(header::HOST);
            *request.version_mut() = Version::HTTP_2;
            return request;
        }
        if self.is_tls() {
            // It may turn out to be HTTP/2: as above. Where it does not, the client sets its host.
            request.headers_mut().remove(header::HOST);
        }
        *request.version_mut() = Version::HTTP_11;
        // RFC 9110 §10.1.4: HTTP/1.1 wants `connection` beside it, which HTTP/2 forbids. Whoever has not chosen yet gets it as for
        // HTTP/2: gRPC does without an answer otherwise, and a server of HTTP/1.1 has at most one request in which it says nothing.
        let is_h2 = self.is_tls()
            && self.chosen.load(Ordering::Relaxed) != HTTP1
            && !request.headers().contains_key(header::UPGRADE);
        if !is_h2 {
            request.headers_mut().remove(header::TE);
        }
        request
    }

    /// Notes the version of HTTP that the back end negotiated.
    fn chose(&self, version: Version) {
        let chosen = match version {
            Version::HTTP_3 => HTTP3,
            Version::HTTP_2 => HTTP2,
            _ => HTTP1,
        };
        self.chosen.store(chosen, Ordering::Relaxed);
    }

    /// Notes a success.
    pub(super) fn succeeded(&self) {
        let mut until = self.passed_over_until.lock().expect("nothing panics under the lock");
        if until.take().is_some() {
            drop(until);
            self.show();
        }
    }

    /// Notes a failure to connect.
    pub(super) fn failed(&self) {
        if self.health.is_none() {
            *self.passed_over_until.lock().expect("nothing panics under the lock") = Some(Instant::now() + PASSED_OVER);
            self.show();
        }
    }

    /// Sets the result of the health checks.
    pub(super) fn set_well(&self, well: bool) {
        if self.well.swap(well, Ordering::Relaxed) != well {
            let now = if well { "is well again" } else { "does not answer as it should" };
            tracing::warn!("the back end {} {now}", self.name);
            self.show();
        }
    }

    fn show(&self) {
        let label = BackEndLabel { back_end: self.name.clone() };
        self.metrics.back_ends.up.get_or_create(&label).set(self.is_well().into());
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        if let Some(asking) = self.asking.lock().expect("nothing panics under the lock").take() {
            asking.abort();
        }
        let label = BackEndLabel { back_end: self.name.clone() };
        self.metrics.back_ends.up.remove(&label);
        self.metrics.back_ends.connections.remove(&label);
        if matches!(self.host, Host::Address(_)) {
            // Addresses come and go without end.
            self.metrics.back_ends.forget(&self.name);
        }
    }
}
