//! A request over the first connection that is ready, or over an open one.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tiderace_client::{Client, Leg, Route, Settings};
//!
//! let settings = Settings { keep_alive: Some(Duration::from_secs(20)), ..Settings::default() };
//! let client = Client::with(&settings)?;
//! // Over QUIC or not at all.
//! let route = Route { only: Some(Leg::Quic), ..Route::default() };
//! let fetched = client.get_by("https://www.example.org/", &route).await?;
//! assert_eq!(fetched.protocol, "h3");
//! # Ok(())
//! # }
//! ```

mod raced;
mod setup;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use capture::PacketFile;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use tiderace::{ClientConfig, EarlyData, Profile, transport::memory::ProcessBudget};
use tokio::sync::OwnedMutexGuard;
use units::Instant;

pub(crate) use self::setup::routed;
use self::{
    raced::{Raced, handshake_time},
    setup::Target,
};
use crate::{
    alt_svc,
    closing::ClosingConnections,
    dial,
    error::Cause,
    keep_alive::Mapping,
    link::{Failed, Job, Link, Quic},
    memory::Memory,
    pool::{Key, Pool, SharedSlot, Slot},
    race::{Leg, Verdict},
    report::Reports,
    resolve::{Offer, Resolver},
    settings::TcpObserver,
    setup_error::UrlError,
    timeouts::{self, Progress, Timeouts, Waited},
    tls,
    upkeep::Upkeep,
};
pub use crate::{
    body::{BodyError, ResponseBody},
    error::FetchError,
    settings::Settings,
    tls::Trust,
};

/// Route of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Only this way is tried.
    pub only: Option<Leg>,
    /// Address for QUIC, where it differs from the origin's.
    pub udp: Option<SocketAddr>,
    /// Use a new connection, and do not keep it for other requests.
    pub fresh: bool,
}

/// A response, and how it was come by.
pub struct Fetched {
    /// Response. Its body arrives while it is read.
    pub response: Response<ResponseBody>,
    /// `h3`, `h2` or `http/1.1`.
    pub protocol: &'static str,
    /// From the beginning to the response's fields.
    pub first_byte: Duration,
    /// Alternative service for HTTP/3 (RFC 7838), if the response announces one.
    pub alternative: Option<alt_svc::Alternative>,
    /// Duration of the connection's handshake: over QUIC from the first packet, over TCP with that of TLS. `None` where the
    /// connection was there before, or an answer was there before the end of the handshake.
    pub handshake: Option<Duration>,
    /// Outcome of early data: `None` where no session was resumed, or the connection was there before.
    pub early_data: EarlyData,
    /// The server answered 425 (Too Early), and the answer is the one after the handshake.
    pub too_early: bool,
    /// Set if the connection was open before. There was no race, unless QUIC was silent for too long: then TCP took part, and was slower.
    pub reused: bool,
    /// The HTTPS record by which the addresses were chosen.
    pub offer: Option<Offer>,
    /// Verdict, when it is known: evidence may still be collected. `None` without a race.
    pub verdict: tokio::task::JoinHandle<Option<Verdict>>,
}

/// Makes requests, and remembers their outcomes. Clones share everything.
///
/// It is a [`tower_service::Service`] of requests with absolute URIs. Connections are kept for the requests that follow: for
/// each origin one of HTTP/3 or HTTP/2, or up to six of HTTP/1.1.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    quic: ClientConfig,
    packets: Option<Arc<PacketFile>>,
    tcp: Arc<rustls::ClientConfig>,
    tcp_observer: Option<Arc<dyn TcpObserver>>,
    resolver: Resolver,
    memory: Mutex<Memory>,
    budget: ProcessBudget,
    reports: Reports,
    head_start: Duration,
    timeouts: Timeouts,
    pool: Pool,
    closing: Arc<ClosingConnections>,
    upkeep: Upkeep,
    started: std::time::Instant,
}

/// Times that a request is tried on connections that were there before.
const REUSES: usize = 2;

impl Client {
    /// A client with an empty memory.
    ///
    /// # Errors
    /// When the roots cannot be used.
    pub fn new(trust: &Trust) -> Result<Self, FetchError> {
        Self::with(&Settings { trust: trust.clone(), ..Settings::default() })
    }

    /// As [`new`](Self::new), set up as wanted. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the roots, the name server or the file of tickets cannot be used.
    pub fn with(settings: &Settings) -> Result<Self, FetchError> {
        let Settings { dns, record_delay, early_data, tickets, idle_timeout, .. } = settings;
        let mut profile = Profile { idle_timeout: *idle_timeout, ..Profile::default() };
        if let Some(window) = settings.receive_window {
            profile.streams.receive_window_stream = window;
            profile.streams.receive_window_connection = window;
            profile.streams.receive_window_max = window;
        }
        let quic =
            tls::quic(settings.authentication(), h3_quic::ALPN, tickets.as_deref(), *early_data, settings.keys())?;
        let resolver = match dns {
            None => Resolver::system(),
            Some(server) => {
                let failed = |why| FetchError::Resolve { host: server.to_string(), why };
                Resolver::at(*server).map_err(failed)?
            }
        };
        let inner = Inner {
            quic: ClientConfig {
                observe: settings.watch.observe.clone(),
                ..ClientConfig::new(quic, Arc::new(profile))
            },
            packets: settings.watch.packets.clone(),
            tcp: tls::tcp(settings.authentication(), settings.tcp_versions.protocols(), settings.keys())?,
            tcp_observer: settings.watch.tcp.clone(),
            resolver: resolver.with_delay(*record_delay).with_addresses(settings.addresses.clone()),
            memory: Mutex::new(Memory::new(settings.head_start)),
            budget: settings.memory.clone(),
            reports: Reports::default(),
            head_start: settings.head_start,
            timeouts: settings.timeouts,
            pool: Pool::default(),
            closing: Arc::default(),
            upkeep: Upkeep::new(settings),
            started: std::time::Instant::now(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Requests `url` on a new connection. With `only`, this transport alone is tried. `udp` is the address of QUIC, if it is not the URL's
    /// own address.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, url: &str, only: Option<Leg>, udp: Option<SocketAddr>) -> Result<Fetched, FetchError> {
        self.get_by(url, &Route { only, udp, fresh: true }).await
    }

    /// Requests `url`, which has to be an https URL.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get_by(&self, url: &str, route: &Route) -> Result<Fetched, FetchError> {
        let uri: Uri = url.parse().map_err(|source| UrlError::Malformed { url: url.to_owned(), source })?;
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Err(UrlError::Scheme { url: url.to_owned(), expected: "https" }.into());
        }
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = uri;
        let agent = HeaderValue::from_static(concat!("tiderace/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(header::USER_AGENT, agent);
        self.send(request, route).await
    }

    /// Sends a request with an absolute URI. One of `https` is raced where no connection is open; one of `http` goes over TCP.
    ///
    /// # Errors
    /// When there is no answer. What has content, or is not idempotent, is not sent twice.
    pub async fn send<B>(&self, request: Request<B>, route: &Route) -> Result<Fetched, FetchError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let begun = std::time::Instant::now();
        let target = Target::of(request.uri())?;
        let (head, body) = request.into_parts();
        let progress = Progress::default();
        let mut job = Job::new(head, body.map_err(Into::into).boxed_unsync(), progress.clone());
        let Timeouts { connect, response: limit, .. } = self.inner.timeouts;
        let key = Key { origin: target.origin(), only: route.only, udp: route.udp };
        let slot = (!route.fresh).then(|| self.inner.pool.slot(&key));
        let mut open = None;
        let mut live = None;
        if let Some(slot) = &slot {
            // Who holds it opens a connection.
            let mut guard = timeouts::connected(connect, async { Ok(slot.clone().lock_owned().await) }).await?;
            for _ in 0..REUSES {
                let Some(mut link) = guard.take() else { break };
                drop(guard);
                job.report(self.due(&link, &key.origin));
                let sent = first(&mut link, &mut job, self.inner.head_start);
                let answered = match progress.wait(limit, sent).await? {
                    Sent::Answered(answered) => answered,
                    // The path may be gone: TCP takes part from here on.
                    Sent::Silent(silent) => {
                        live = Some(Live { pending: silent, reused: true });
                        guard = slot.clone().lock_owned().await;
                        guard.forget();
                        break;
                    }
                };
                match answered {
                    Ok(response) => {
                        let protocol = link.protocol();
                        slot.lock().await.keep(link);
                        let none = tokio::spawn(std::future::ready(None));
                        return Ok(Fetched { reused: true, ..self.fetched(response, protocol, begun, none) });
                    }
                    Err(failed) if job.survives(&failed) => {
                        tracing::debug!("an open connection did not serve: {}", failed.cause);
                        guard = slot.clone().lock_owned().await;
                    }
                    Err(failed) => return Err(failed.into()),
                }
            }
            open = Some(guard);
        }
        // RFC 9114 §3.1 SHOULD-1, RFC 9114 §3.1.2 MUST-1: QUIC is tried for https alone, and TCP beside it
        if target.secure {
            self.race(&target, job, route, live, open, begun).await
        } else {
            self.plain(&target, job, open, begun).await
        }
    }

    /// Opens a connection by a race, and sends the request on it.
    async fn race(
        &self,
        target: &Target,
        mut job: Job,
        route: &Route,
        live: Option<Live>,
        mut open: Option<OwnedMutexGuard<Slot>>,
        begun: std::time::Instant,
    ) -> Result<Fetched, FetchError> {
        let Timeouts { connect, response: limit, .. } = self.inner.timeouts;
        let origin = target.origin();
        let slot = open.as_ref().map(|open| OwnedMutexGuard::mutex(open).clone());
        let (was_there, reused) = (live.is_some(), live.as_ref().is_some_and(|live| live.reused));
        // Over a connection that was there the response is waited for, and TCP beside it.
        let connecting = self.connect(target, route, &mut job, live);
        let raced = timeouts::connected(if was_there { limit } else { connect }, connecting).await?;
        let Raced { dial, mut link, answer, evidence, offer } = raced;
        if let Link::Quic(quic) = &mut link {
            quic.keep(&self.inner.upkeep);
        }
        if let (Some(open), Some(shared)) = (&mut open, link.share()) {
            open.keep(shared);
        }
        drop(open);
        job.report(self.due(&link, &origin));
        let was_early = answer.is_some();
        let progress = job.progress();
        let sent = progress.wait(limit, ask(&mut link, &mut job, answer, self.inner.head_start)).await?;
        let mut response = match sent {
            Sent::Answered(Ok(response)) => response,
            // RFC 9113 §8.7: the server left the connection, as an upgraded one does, before it saw the request.
            Sent::Answered(Err(failed)) if failed.unprocessed && job.may_go_again(&failed) => {
                tracing::debug!("a new connection did not serve: {}", failed.cause);
                return Box::pin(self.race(target, job, route, None, forgotten(slot.as_ref()).await, begun)).await;
            }
            Sent::Answered(Err(failed)) => return Err(failed.into()),
            // The handshake came through, and nothing after it: TCP takes part from here on.
            Sent::Silent(pending) => {
                let live = Live { pending, reused };
                return Box::pin(self.race(target, job, route, Some(live), forgotten(slot.as_ref()).await, begun))
                    .await;
            }
        };
        // RFC 8470 §5.2: whoever is told that it was too early asks again after the handshake.
        let too_early = was_early && response.status() == StatusCode::TOO_EARLY;
        if too_early {
            if let Link::Quic(quic) = &link {
                let over = |reason: tiderace::CloseReason| FetchError::Exchange((&reason).into());
                quic.connection().established().await.map_err(over)?;
            }
            response = progress.wait(limit, link.send(job.request())).await??;
        }
        let reused = reused && matches!(link, Link::Quic(_));
        let early_data = match &link {
            Link::Quic(quic) if !reused => quic.connection().early_data(),
            _ => EarlyData::None,
        };
        let handshake = match &link {
            Link::Quic(_) if reused => None,
            Link::Quic(quic) => handshake_time(quic).filter(|took| !took.is_zero()),
            _ => dial.tcp_handshake,
        };
        let of_connection = match &link {
            Link::Quic(quic) => handshake_time(quic),
            _ => None,
        };
        let (protocol, leg) = (link.protocol(), link.leg());
        if let (Some(slot), Link::H1(_)) = (slot, &link) {
            slot.lock().await.keep(link);
        }
        if let Some(said) = response.headers().get(header::ALT_SVC).and_then(|value| value.to_str().ok())
            && leg == Leg::Tcp
        {
            self.memory().hear(self.now(), evidence.network, &origin, said);
            self.inner.reports.hear(&origin, said);
        }
        let judge = tokio::spawn(evidence.judge(self.inner.clone(), dial, origin, of_connection));
        let fetched = self.fetched(response, protocol, begun, judge);
        Ok(Fetched { handshake, early_data, too_early, reused, offer, ..fetched })
    }

    /// Sends a request of `http` over TCP.
    async fn plain(
        &self,
        target: &Target,
        mut job: Job,
        open: Option<OwnedMutexGuard<Slot>>,
        begun: std::time::Instant,
    ) -> Result<Fetched, FetchError> {
        // Several at a time are usual with HTTP/1.1: nobody waits for this one.
        let slot = open.as_ref().map(|open| OwnedMutexGuard::mutex(open).clone());
        drop(open);
        let Timeouts { connect, response: limit, .. } = self.inner.timeouts;
        let connecting = async {
            let addresses = self.inner.resolver.addresses(&target.host, target.port).await;
            let addresses = addresses.map_err(|why| FetchError::Resolve { host: target.host.clone(), why })?;
            let stream = dial::connect_tcp(addresses).await;
            let stream = stream.map_err(|error| FetchError::Exchange((&error).into()))?;
            Ok(Link::plain(stream, &self.inner.closing).await?)
        };
        let mut link = timeouts::connected(connect, connecting).await?;
        let progress = job.progress();
        let response = progress.wait(limit, link.send(job.request())).await??;
        let protocol = link.protocol();
        if let Some(slot) = slot {
            slot.lock().await.keep(link);
        }
        Ok(self.fetched(response, protocol, begun, tokio::spawn(std::future::ready(None))))
    }

    fn fetched(
        &self,
        response: Response<ResponseBody>,
        protocol: &'static str,
        begun: std::time::Instant,
        verdict: tokio::task::JoinHandle<Option<Verdict>>,
    ) -> Fetched {
        let alternative =
            response.headers().get(header::ALT_SVC).and_then(|value| alt_svc::http3(value.to_str().ok()?));
        let least = self.inner.timeouts.content;
        Fetched {
            response: response.map(|body| timeouts::paced(body, least)),
            protocol,
            first_byte: begun.elapsed(),
            alternative,
            handshake: None,
            early_data: EarlyData::None,
            too_early: false,
            reused: false,
            offer: None,
            verdict,
        }
    }

    /// Returns whether the host has an HTTPS record for its default port: then `http` means `https` (RFC 9460 §9.5).
    pub async fn has_https_record(&self, host: &str) -> bool {
        self.inner.resolver.resolve(host, 443).await.is_ok_and(|found| found.offer.is_some())
    }

    /// Closes the open connections, those of unread answers included, with CONNECTION_CLOSE or GOAWAY. Without this call before
    /// the end of the runtime, servers notice by their idle timeout. Takes at most a fraction of a second.
    pub async fn close(&self) {
        self.inner.pool.clear();
        self.inner.closing.say().await;
    }

    /// Measured NAT timeouts of all networks. Empty without [`Settings::keep_alive`].
    pub fn measured_mappings(&self) -> Vec<Mapping> {
        self.inner.upkeep.measured()
    }

    /// Resolver of origins.
    pub fn resolver(&self) -> &Resolver {
        &self.inner.resolver
    }

    /// Takes the report about a fall-back that is due to the origin on this connection.
    fn due(&self, link: &Link, origin: &str) -> Option<&'static str> {
        if link.leg() == Leg::Tcp { self.inner.reports.take(origin) } else { None }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.inner.started.elapsed()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.inner.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a slot, if there is one, and forgets its connection.
async fn forgotten(slot: Option<&SharedSlot>) -> Option<OwnedMutexGuard<Slot>> {
    let mut open = slot?.clone().lock_owned().await;
    open.forget();
    Some(open)
}

/// QUIC connection without received packets while a request is in progress.
struct Live {
    pending: (Quic, dial::Pending),
    /// The connection was there before this request.
    reused: bool,
}

/// Outcome of a request on a connection.
enum Sent {
    Answered(Result<Response<ResponseBody>, Failed>),
    /// Silence over QUIC: the request is in progress, and can be sent over TCP as well.
    Silent((Quic, dial::Pending)),
}

/// Sends a request. One that may happen twice does not wait longer than `patience` on a path that is silent.
async fn first(link: &mut Link, job: &mut Job, patience: Duration) -> Sent {
    let quic = match link {
        Link::Quic(quic) if job.is_repeatable() => quic.clone(),
        _ => return Sent::Answered(link.send(job.request()).await),
    };
    let (asks, request) = (quic.clone(), job.request());
    watched(&quic, Waited::spawn(async move { asks.send(request).await }), patience).await
}

/// Waits for the answer to early data, or sends the request. Early data that the server did not process is sent again.
async fn ask(link: &mut Link, job: &mut Job, answer: Option<dial::Answer>, patience: Duration) -> Sent {
    let was_early = answer.is_some();
    let early = match link {
        Link::Quic(quic) => answer.map(|answer| (quic.clone(), answer)),
        _ => None,
    };
    let sent = match early {
        Some((quic, answer)) => {
            let lost = || Failed { cause: Cause::other("the connection is gone"), unprocessed: false };
            let pending = Waited::spawn(async move { answer.await.unwrap_or_else(|_| Err(lost())) });
            watched(&quic, pending, patience).await
        }
        None => first(link, job, patience).await,
    };
    if was_early && matches!(&sent, Sent::Answered(Err(failed)) if job.survives(failed)) {
        return first(link, job, patience).await;
    }
    sent
}

/// Waits for an answer as long as the path gives a sign of life.
async fn watched(quic: &Quic, mut pending: dial::Pending, patience: Duration) -> Sent {
    tokio::select! {
        answered = &mut pending => {
            let lost = |error: tokio::task::JoinError| Err(Failed { cause: Cause::other(error.to_string()), unprocessed: false });
            Sent::Answered(answered.unwrap_or_else(lost))
        }
        () = dial::silence(quic, patience) => Sent::Silent((quic.clone(), pending)),
    }
}

fn gone() -> FetchError {
    FetchError::Exchange(Cause::other("the connection is gone"))
}
