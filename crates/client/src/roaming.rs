//! Change to another network of this host when the path is silent, and back when it is not any more.
//!
//! The system chooses the network by its routes, and goes on to choose one whose router is reachable and leads nowhere. A connection
//! finds out by silence. Before it changes, the server has to answer a [probe](crate::probe) over the other network and none over
//! the network in use: where nobody answers, the server is gone, and where both answer, the network is not to blame.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use tiderace::Connection;
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::{local, probe::Prober};

/// Use of networks that the system has not chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherNetworks {
    /// The routes of the system decide alone. A packet leaves through the VPN where there is one.
    #[default]
    Never,
    /// A connection that hears nothing for a second, and for three round trips, although it sends, asks its server over every other
    /// interface with an address of the family. When it is answered there, and not over its own path, it migrates. It returns when the
    /// server answers over the system's choice again, which is asked every ten seconds.
    ///
    /// Works on Linux; other systems have no interface for it here, and the setting is without effect.
    OnSilence,
}

/// Silence after which the path is in doubt, at least.
const SILENCE: Duration = Duration::from_secs(1);
/// Round trips of silence after which it is, at least.
const ROUND_TRIPS: u32 = 3;
/// Networks that are asked, at most.
const NETWORKS: usize = 8;
/// Searches of a client at a time. Each has a socket for each network, and all connections may fall silent at once.
const SEARCHES: usize = 8;
/// Datagrams without an answer that make a silence.
const UNANSWERED: u64 = 2;
/// Time after a search without a result.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between questions over the system's choice while another network is in use.
const RETURN: Duration = Duration::from_secs(10);
/// Time that answers over the path in use have after the first over another one, at least.
const GRACE: Duration = Duration::from_millis(200);

/// Silence of a path, by the counters of its connection.
#[derive(Debug)]
struct Silence {
    received: u64,
    /// Datagrams sent when the last one was received.
    sent: u64,
    since: Instant,
}

impl Silence {
    fn new(now: Instant, (sent, received): (u64, u64)) -> Self {
        Self { received, sent, since: now }
    }

    /// Takes in the counters; returns whether the path is silent.
    fn look(&mut self, now: Instant, (sent, received): (u64, u64), rtt: Duration) -> bool {
        if received != self.received {
            *self = Self::new(now, (sent, received));
        }
        let patience = patience(rtt);
        sent.saturating_sub(self.sent) >= UNANSWERED && now.saturating_duration_since(self.since) >= patience
    }
}

/// A network of this host: the address on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    device: String,
    address: IpAddr,
}

impl Network {
    /// A socket whose packets leave by this interface.
    fn socket(&self) -> io::Result<UdpSocket> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address((self.address, 0).into()),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        bind_device(&socket, &self.device)?;
        socket.bind(&SocketAddr::from((self.address, 0)).into())?;
        Ok(socket.into())
    }
}

#[cfg(target_os = "linux")]
fn bind_device(socket: &socket2::Socket, device: &str) -> io::Result<()> {
    socket.bind_device(Some(device.as_bytes()))
}

#[cfg(not(target_os = "linux"))]
fn bind_device(_: &socket2::Socket, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Interface with an address of this host, unless packets from the address to a host cannot leave there.
pub(crate) fn interface_of(address: IpAddr, remote: SocketAddr) -> Option<String> {
    let found = if_addrs::get_if_addrs().ok()?.into_iter().find(|found| found.ip() == address)?;
    let network = Network { device: found.name, address };
    // Sends nothing. Linux takes a host for a neighbour to which no route leads over the interface: not every network that leads nowhere
    // is found here.
    network.socket().and_then(|socket| socket.connect(remote)).ok()?;
    Some(network.device)
}

/// Time without a packet after which a path is taken to be dead.
pub(crate) fn patience(rtt: Duration) -> Duration {
    SILENCE.max(rtt * ROUND_TRIPS)
}

/// Networks by which a host outside may be reached, in the order of the system.
fn networks(remote: SocketAddr) -> Vec<Network> {
    if remote.ip().is_loopback() {
        return Vec::new();
    }
    let all = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    let may_reach = |found: &if_addrs::Interface| {
        found.ip().is_ipv4() == remote.is_ipv4() && !found.is_loopback() && !found.is_link_local()
    };
    let mut networks: Vec<Network> = Vec::new();
    for found in all.filter(may_reach) {
        // IPv6 has several addresses on an interface; they lead to one network.
        if networks.len() < NETWORKS && networks.iter().all(|known| known.device != found.name) {
            networks.push(Network { address: found.ip(), device: found.name });
        }
    }
    networks
}

/// Places of the searches of a client.
#[derive(Clone, Debug)]
pub(crate) struct Searches(Arc<Semaphore>);

impl Default for Searches {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SEARCHES)))
    }
}

/// Path of a connection that may leave the network that the system chose.
#[derive(Debug)]
pub(crate) struct Roaming {
    remote: SocketAddr,
    silence: Silence,
    /// Network in use that the system has not chosen.
    away: Option<Network>,
    /// No search, and no question over the system's choice, before.
    not_before: Instant,
    searches: Searches,
}

/// Datagrams sent and received so far; (0, 0) once the connection is forgotten.
pub(crate) fn activity(connection: &Connection) -> (u64, u64) {
    connection.stats().map_or((0, 0), |stats| (stats.datagrams_sent, stats.datagrams_received))
}

impl Roaming {
    pub(crate) fn new(connection: &Connection, remote: SocketAddr, searches: Searches) -> Self {
        let now = Instant::now();
        let silence = Silence::new(now, activity(connection));
        Self { remote, silence, away: None, not_before: now, searches }
    }

    /// Notes that the connection has moved to the address that the system chose.
    pub(crate) fn came_home(&mut self, connection: &Connection) {
        *self = Self::new(connection, self.remote, self.searches.clone());
    }

    /// Returns whether the network in use is not the one that the system chose.
    pub(crate) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// A socket to continue on, when the server is heard there and not where the connection is. `home` is this host's address by the
    /// system's routes.
    pub(crate) async fn look(&mut self, connection: &Connection, home: Option<IpAddr>) -> Option<UdpSocket> {
        let now = Instant::now();
        let is_silent = self.silence.look(now, activity(connection), connection.rtt());
        if now < self.not_before || !is_silent && self.away.is_none() || connection.may_migrate().is_err() {
            return None;
        }
        // Without a place in time it is tried again with the next look.
        let _place = timeout(SILENCE, self.searches.0.clone().acquire_owned()).await.ok()?;
        let patience = patience(connection.rtt());
        let (found, pause) = if is_silent {
            (self.search(home, patience, connection.rtt()).await, PAUSE)
        } else {
            (answers(None, self.remote, patience).await.then_some(None), RETURN)
        };
        self.not_before = Instant::now() + pause;
        let network = found?;
        let socket = match &network {
            Some(network) => network.socket(),
            None => UdpSocket::bind(home.map_or(local::any(self.remote), |home| (home, 0).into())),
        };
        let socket = socket.inspect_err(|error| tracing::debug!("no socket on {network:?}: {error}")).ok()?;
        match &network {
            Some(network) => tracing::info!("{} is silent: the connection continues over {network:?}", self.remote),
            None => tracing::info!("{} answers again over the system's choice of network", self.remote),
        }
        // At home a new silence is looked into at once.
        self.not_before = Instant::now() + if network.is_some() { RETURN } else { Duration::ZERO };
        self.away = network;
        self.silence = Silence::new(Instant::now(), activity(connection));
        Some(socket)
    }

    /// Asks over all networks. `None` inside: the system's choice. Outside: nobody answers, or the network in use does.
    async fn search(&self, home: Option<IpAddr>, patience: Duration, rtt: Duration) -> Option<Option<Network>> {
        let mut asked = JoinSet::new();
        let others = networks(self.remote).into_iter().filter(|other| Some(other.address) != home).map(Some);
        for network in std::iter::once(None).chain(others) {
            let remote = self.remote;
            asked.spawn(async move { (answers(network.as_ref(), remote, patience).await, network) });
        }
        let mut found = None;
        let mut left = patience + GRACE;
        while let Ok(Some(answered)) = timeout(left, asked.join_next()).await {
            let Ok((true, network)) = answered else { continue };
            if network == self.away {
                return None;
            }
            left = left.min(GRACE.max(rtt * 2));
            found.get_or_insert(network);
        }
        found
    }
}

/// Asks the server up to three times over a network, or over the system's choice.
async fn answers(network: Option<&Network>, remote: SocketAddr, patience: Duration) -> bool {
    let socket = network.map_or_else(|| UdpSocket::bind(local::any(remote)), Network::socket);
    let Ok(prober) = socket.map_err(Into::into).and_then(|socket| Prober::on(socket, remote)) else { return false };
    for _ in 0..3 {
        prober.ask().await;
        if timeout(patience / 3, prober.answered()).await.is_ok() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_that_nobody_answers_make_a_silence() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let rtt = Duration::from_millis(50);
        let mut silence = Silence::new(begin, (10, 20));
        assert!(!silence.look(at(5_000), (10, 20), rtt), "nothing was sent");
        assert!(!silence.look(at(5_100), (11, 20), rtt), "one datagram may be lost");
        assert!(silence.look(at(5_200), (12, 20), rtt));
        assert!(!silence.look(at(5_300), (12, 21), rtt), "an answer ends it");
        assert!(!silence.look(at(6_200), (14, 21), rtt));
        assert!(silence.look(at(6_300), (14, 21), rtt));
        // Slow paths have more time.
        assert!(!silence.look(at(7_000), (14, 21), Duration::from_secs(1)));
        assert!(silence.look(at(8_300), (14, 21), Duration::from_secs(1)));
    }
}
