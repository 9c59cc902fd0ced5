//! Load on a gateway: many connections of all kinds, each with a request from time to time, some of which change their address.
//!
//! Failures are counted, and clients go on with another connection: so a run tells all of them.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use client::private::{Channel, Receiver, Sender};
use http_body_util::Empty;
use tiderace::{
    ClientConfig, Connection, Endpoint, Profile, RustlsClient, transport::tls::rustls_backend::KeyExchange,
};
use tokio::task::JoinSet;

use crate::{
    clients::{Nat, Site, get},
    fleet::LIMIT,
    initials::Initials,
    mix::{Kind, Mix},
    private::{self, echo, echo_apart},
};

/// Time after which a request without an answer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between the first handshakes of two clients.
pub(crate) const SPACING: Duration = Duration::from_millis(10);

/// Clients that stop when they are asked to, and their counters.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) initials: Initials,
    /// Shortest pause of a connection between two requests; the longest is twice that.
    pause: Duration,
}

#[derive(Default)]
pub(crate) struct Counters {
    /// Upgrades so far.
    pub(crate) upgrades: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Connections over HTTP/2 that ended as the gateway had asked, between requests.
    pub(crate) replaced: AtomicU64,
    pub(crate) rebindings: AtomicU64,
    pub(crate) migrations: AtomicU64,
    /// Migrations that the client gave up, because the path was not validated in time. The connection stayed.
    pub(crate) not_validated: AtomicU64,
    lost: AtomicU64,
    failed: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Load {
    pub(crate) fn new(pause: Duration) -> Self {
        Self { stop: Arc::default(), counters: Arc::default(), initials: Initials::default(), pause }
    }

    /// The same counters for clients that stop on their own.
    pub(crate) fn apart(&self) -> Self {
        Self { stop: Arc::default(), ..self.clone() }
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn upgrades(&self) -> u64 {
        self.counters.upgrades.load(Ordering::Relaxed)
    }

    pub(crate) fn answered(&self) {
        count(&self.counters.requests);
    }

    /// Notes a failed request.
    pub(crate) fn failed(&self, what: impl std::fmt::Debug, why: &str) {
        count(&self.counters.failed);
        self.fault(format!("a request failed, {what:?}: {why}"));
    }

    /// Notes a lost connection.
    pub(crate) fn lost(&self, what: impl std::fmt::Debug, why: &str) {
        count(&self.counters.lost);
        self.fault(format!("a connection was lost, {what:?}: {why}"));
    }

    fn fault(&self, text: String) {
        self.counters.faults.lock().unwrap().push(format!("after {} upgrades {text}", self.upgrades()));
    }

    pub(crate) fn print(&self) {
        let counters = &self.counters;
        for (what, counter) in [
            ("requests", &counters.requests),
            ("connections opened", &counters.opened),
            ("connections replaced after GOAWAY", &counters.replaced),
            ("NAT rebindings", &counters.rebindings),
            ("migrations", &counters.migrations),
            ("migrations given up", &counters.not_validated),
            ("lost connections", &counters.lost),
            ("failed requests", &counters.failed),
        ] {
            println!("measured {what}: {}", counter.load(Ordering::Relaxed));
        }
    }

    /// Asserts that nothing was lost.
    pub(crate) fn check(&self) {
        let counters = &self.counters;
        let [lost, failed] = [&counters.lost, &counters.failed].map(|counter| counter.load(Ordering::Relaxed));
        let faults = counters.faults.lock().unwrap();
        assert_eq!((lost, failed, faults.len()), (0, 0, 0), "{faults:#?}");
    }

    /// A connection over QUIC, whose key exchange is X25519MLKEM768: the client offers no other.
    async fn connect(&self, site: &Site, alpn: &str) -> Result<(Endpoint, Connection), String> {
        let tls = RustlsClient::builder().roots([site.certificate().to_vec()]).alpn(alpn);
        let tls = tls.key_exchanges([KeyExchange::X25519MlKem768]).build().unwrap();
        let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
        let mut config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
        config.observe = Some(Arc::new(self.initials.clone()));
        let endpoint = Endpoint::client_for(site.address).unwrap();
        let begun = Instant::now();
        let connecting = endpoint.connect(&config, site.address, "localhost").map_err(|error| error.to_string())?;
        let connection = connecting.await.map_err(|error| error.to_string())?;
        self.initials.took(begun.elapsed(), self.upgrades());
        count(&self.counters.opened);
        Ok((endpoint, connection))
    }

    /// The same with HTTP/3.
    pub(crate) async fn http3(&self, site: &Site) -> Result<Quic, String> {
        let (endpoint, connection) = self.connect(site, "h3").await?;
        let h3 = h3_quic::client::begin(connection.clone()).await.map_err(|error| error.to_string())?;
        Ok(Quic { endpoint, connection, h3 })
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Connection of HTTP/3.
pub(crate) struct Quic {
    endpoint: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) h3: h3_quic::client::SendRequest,
}

/// Connection with its requests.
enum Requests {
    Http3(Quic),
    Http2(hyper::client::conn::http2::SendRequest<Empty<Bytes>>),
    Private { endpoint: Endpoint, connection: Connection, halves: (Sender, Receiver) },
    Qmux { channel: Channel, halves: (Sender, Receiver) },
}

/// Client of the load.
struct Client {
    site: Site,
    kind: Kind,
    load: Load,
    requests: Requests,
    nat: Option<Nat>,
    /// Requests so far.
    count: u64,
}

/// Outcome of a request without an answer.
enum Unanswered {
    /// The connection has ended between requests, as the gateway had asked.
    Replaced,
    Failed(String),
}

impl<E: std::fmt::Display> From<E> for Unanswered {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Client {
    async fn open(load: &Load, site: &Site, kind: Kind) -> Result<Self, String> {
        let nat = match kind {
            Kind::Rebinding => Some(Nat::before(site.address).await),
            _ => None,
        };
        let by = nat.as_ref().map_or_else(|| site.clone(), |nat| site.at(nat.address));
        let requests = match kind {
            Kind::Http2 => {
                count(&load.counters.opened);
                Requests::Http2(site.h2().await)
            }
            Kind::Private => {
                let (endpoint, connection) = load.connect(&by, private::QUIC).await?;
                let (send, recv) = connection.open_bi().await.map_err(|reason| format!("{reason:?}"))?;
                Requests::Private { endpoint, connection, halves: (Sender::Quic(send), Receiver::Quic(recv)) }
            }
            Kind::Qmux => {
                let channel = private::over_tcp(site).await?;
                count(&load.counters.opened);
                let halves = channel.open_bi().await.map_err(|ended| ended.to_string())?;
                Requests::Qmux { channel, halves }
            }
            _ => Requests::Http3(load.http3(&by).await?),
        };
        Ok(Self { site: site.clone(), kind, load: load.clone(), requests, nat, count: 0 })
    }

    /// Makes a request, and moves the client if it is of such a kind.
    async fn exchange(&mut self) -> Result<(), Unanswered> {
        self.count += 1;
        let (load, number) = (&self.load, self.count);
        match &mut self.requests {
            Requests::Http2(h2) => match h2.send_request(get("small")).await {
                Ok(response) => small(response).await?,
                Err(error) if is_unprocessed(&error) => return Err(Unanswered::Replaced),
                Err(error) => return Err(Unanswered::Failed(format!("{error:?}"))),
            },
            // A connection that drains lets its streams end, and takes no new ones.
            Requests::Qmux { channel, .. } if number % 2 == 0 => echo_apart(channel, number).await?,
            Requests::Private { halves: (send, recv), .. } | Requests::Qmux { halves: (send, recv), .. } => {
                echo(send, recv, number).await?;
            }
            Requests::Http3(quic) => {
                let (endpoint, connection) = (&quic.endpoint, &quic.connection);
                let request = async { small(quic.h3.send(get("small")).await?).await.map_err(Unanswered::Failed) };
                let moving = async {
                    if self.kind == Kind::Migrating {
                        migrate(load, endpoint, connection, number).await;
                    }
                };
                tokio::join!(request, moving).0?;
            }
        }
        if let Some(nat) = &self.nat {
            nat.rebind.send(()).await.map_err(|error| error.to_string())?;
            count(&load.counters.rebindings);
        }
        Ok(())
    }

    /// Closes the connection. Returns the reason why it has ended before.
    async fn close(self) -> Option<String> {
        match &self.requests {
            Requests::Http2(_) => None,
            Requests::Qmux { channel, .. } => {
                let reason = private::close_reason(channel);
                channel.close(0, "").await;
                reason
            }
            Requests::Http3(Quic { connection, endpoint, .. }) | Requests::Private { connection, endpoint, .. } => {
                let reason = connection.close_reason().map(|reason| format!("{reason:?}"));
                connection.close(0, b"");
                // The NAT passes the close on.
                endpoint.wait_idle().await;
                reason
            }
        }
    }

    /// Makes requests until the load stops, or this many upgrades have come about.
    async fn run(&mut self, until: u64, pause: Duration) {
        while self.load.goes_on() && self.load.upgrades() < until {
            match tokio::time::timeout(PATIENCE, self.exchange()).await {
                Ok(Ok(())) => self.load.answered(),
                Ok(Err(Unanswered::Replaced)) => {
                    self.requests = Requests::Http2(self.site.h2().await);
                    count(&self.load.counters.replaced);
                }
                Ok(Err(Unanswered::Failed(why))) => return self.load.failed(self.kind, &why),
                Err(_) => return self.load.failed(self.kind, "no answer in time"),
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Moves a client to another address, with every second number after the path was validated. A client that may not move stays.
async fn migrate(load: &Load, endpoint: &Endpoint, connection: &Connection, number: u64) {
    // Without a further connection ID of the server, a client that moves loses its connection (RFC 9000 §9.5).
    if connection.may_migrate().is_err() {
        return;
    }
    let address = Ipv4Addr::new(127, 0, 1, 1 + (number % 200) as u8);
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let has_moved = match number % 2 {
        0 => endpoint.migrate(socket, None).await.unwrap_or(false),
        _ => endpoint.rebind(socket).is_ok(),
    };
    count(if has_moved { &load.counters.migrations } else { &load.counters.not_validated });
}

/// Reads the content of the small file.
async fn small<B>(response: http::Response<B>) -> Result<(), String>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    use http_body_util::BodyExt;
    let status = response.status();
    let content = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    if status == 200 && content == "small" { Ok(()) } else { Err(format!("{status}, {} bytes", content.len())) }
}

/// Returns whether the server has not seen the request, so that it is sent again: the connection had ended, or the request has a
/// higher number than the last one of a GOAWAY (RFC 9113 §6.8). One that was in progress would end with another error.
pub(crate) fn is_unprocessed(error: &hyper::Error) -> bool {
    error.is_canceled() || format!("{error:?}").contains("GoAway(b\"\", NO_ERROR, Remote)")
}

/// Holds connections of this kind, each for so many upgrades, until the load stops.
pub(crate) async fn hold(load: Load, site: Site, kind: Kind, upgrades: u64, pause: Duration) {
    while load.goes_on() {
        match Client::open(&load, &site, kind).await {
            Ok(mut client) => {
                client.run(load.upgrades().saturating_add(upgrades), pause).await;
                if let Some(reason) = client.close().await {
                    load.lost(kind, &reason);
                }
            }
            Err(why) => {
                load.lost(kind, &format!("handshake: {why}"));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Starts the connections of a mix, one after the other. Every second one stays to the end, the others are replaced after one to seven upgrades.
pub(crate) fn start(clients: &mut JoinSet<()>, load: &Load, site: &Site, mix: Mix) {
    for (number, kind) in (0..).zip(mix.kinds()) {
        let upgrades = if number % 2 == 0 { u64::MAX } else { 1 + number / 2 % 7 };
        let pause = load.pause + load.pause * (number % 11) as u32 / 10;
        let (load, site) = (load.clone(), site.clone());
        clients.spawn(async move {
            tokio::time::sleep(SPACING * number as u32).await;
            hold(load, site, kind, upgrades, pause).await;
        });
    }
}
