//! Maintenance of an open, idle QUIC connection: it sends NAT keep-alives, and migrates when the
//! address of this host changes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tiderace::{Connection, Endpoint};
use tokio::task::AbortHandle;

use crate::{
    handover::{Handover, continue_on},
    keep_alive::{Mapping, Mappings, Outcome},
    local::LocalAddress,
    memory::Network,
    network_changes::NetworkChanges,
    roaming::{OtherNetworks, Roaming, Searches, activity},
    settings::Settings,
};

/// Interval between checks of a connection. A check costs a system call or two, and no packet.
const LOOK: Duration = Duration::from_millis(500);
/// Interval where the system tells of changes, and nothing else needs the checks: the processor of a phone may rest.
const RARE_LOOK: Duration = Duration::from_secs(30);
/// Time limit of a probe.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maintenance settings of connections.
#[derive(Clone, Default)]
pub(crate) struct Upkeep {
    pub(crate) address: LocalAddress,
    pub(crate) changes: NetworkChanges,
    pub(crate) other_networks: OtherNetworks,
    pub(crate) searches: Searches,
    /// Store of NAT mappings. `None`: an unused connection ends by its idle timeout.
    pub(crate) mappings: Option<Arc<Mutex<Mappings>>>,
    /// The idle timeout of this end; zero for none.
    pub(crate) idle_timeout: Duration,
}

/// Looks after a connection until it is dropped.
pub struct Kept(AbortHandle);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Upkeep {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            address: settings.local_address.clone(),
            changes: settings.network_changes.clone(),
            other_networks: settings.other_networks,
            searches: Searches::default(),
            mappings: settings.keep_alive.map(|first| Arc::new(Mutex::new(Mappings::beginning_with(first)))),
            idle_timeout: settings.idle_timeout,
        }
    }

    /// Measured NAT timeouts.
    pub(crate) fn measured(&self) -> Vec<Mapping> {
        let Some(mappings) = &self.mappings else { return Vec::new() };
        mappings.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    /// Starts for a connection, until it has ended or the returned value is dropped.
    pub(crate) fn begin(&self, endpoint: Arc<Endpoint>, connection: Connection) -> Kept {
        let this = self.clone();
        Kept(tokio::spawn(async move { this.run(&endpoint, &connection).await }).abort_handle())
    }

    async fn run(&self, endpoint: &Endpoint, connection: &Connection) {
        let Some(remote) = connection.remote_address() else { return };
        let mut changes = self.changes.subscribe();
        let mut address = self.address.towards(remote);
        let mut roaming = (self.other_networks == OtherNetworks::OnSilence)
            .then(|| Roaming::new(connection, remote, self.searches.clone()));
        let mut handover = Handover::new(remote);
        let mut seen = activity(connection);
        let mut since = Instant::now();
        loop {
            let network = Network(address.unwrap_or(remote.ip()));
            let silence = self.silence(network);
            let due = silence.map(|silence| (since + silence).saturating_duration_since(Instant::now()));
            let others = [due, handover.pause()].into_iter().flatten();
            let sleep = others.fold(self.interval(), Duration::min);
            tokio::select! {
                _ = connection.closed() => return,
                // The source of notices is here, so that it does not end.
                _ = changes.changed() => {}
                () = tokio::time::sleep(sleep) => {}
            }
            let found = self.address.towards(remote);
            if found == address {
                handover.settle();
            }
            if let Some(new) = found.filter(|_| found != address) {
                let is_away = roaming.as_ref().is_some_and(Roaming::is_away);
                let old = address.filter(|_| !is_away);
                if handover.go((endpoint, connection), old, new, &mut changes).await {
                    address = found;
                    since = Instant::now();
                    if let Some(roaming) = &mut roaming {
                        roaming.came_home(connection);
                    }
                    continue;
                }
            }
            if let Some(roaming) = &mut roaming
                && let Some(socket) = roaming.look(connection, found).await
            {
                continue_on(endpoint, socket);
                if !roaming.is_away() {
                    address = found;
                }
                since = Instant::now();
                continue;
            }
            let active = activity(connection);
            if active != seen {
                (seen, since) = (active, Instant::now());
                continue;
            }
            if let Some(silence) = silence.filter(|silence| since.elapsed() >= *silence) {
                self.ask(connection, network, silence.max(since.elapsed())).await;
                (seen, since) = (activity(connection), Instant::now());
            }
        }
    }

    /// Interval between checks. Silences are measured by them, those of mappings and those of paths.
    fn interval(&self) -> Duration {
        let is_rare = self.mappings.is_none()
            && self.other_networks == OtherNetworks::Never
            && self.changes.come_from_system()
            && self.address.is_of_system();
        if is_rare { RARE_LOOK } else { LOOK }
    }

    /// The next silence in a network.
    fn silence(&self, network: Network) -> Option<Duration> {
        let mappings = self.mappings.as_ref()?;
        // RFC 9000 §10.1.2: well below the idle timeout, so that a question that is lost can be repeated.
        let longest = if self.idle_timeout.is_zero() { Duration::from_secs(600) } else { self.idle_timeout / 2 };
        Some(mappings.lock().unwrap_or_else(PoisonError::into_inner).of(network).next(longest))
    }

    /// Sends a PING after a silence, and learns from the result.
    async fn ask(&self, connection: &Connection, network: Network, silence: Duration) {
        let (challenges, received) = (connection.challenges_received(), packets(connection));
        connection.ping();
        let begun = Instant::now();
        let mut heard = None;
        while begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if connection.challenges_received() > challenges {
                self.learn(network, silence, Outcome::Forgotten);
                return;
            }
            if packets(connection) > received && heard.is_none() {
                heard = Some(Instant::now());
            }
            // A challenge comes with the answer, or right after it.
            if heard.is_some_and(|heard| heard.elapsed() >= connection.rtt().max(Duration::from_millis(50))) {
                self.learn(network, silence, Outcome::Kept);
                return;
            }
        }
        // No answer says nothing about the mapping.
    }

    fn learn(&self, network: Network, silence: Duration, outcome: Outcome) {
        if let Some(mappings) = &self.mappings {
            let mut mappings = mappings.lock().unwrap_or_else(PoisonError::into_inner);
            let mapping = mappings.of(network);
            mapping.learn(silence, outcome);
            tracing::debug!("after {} ms of silence: {outcome:?}, {mapping:?}", silence.as_millis());
        }
    }
}

fn packets(connection: &Connection) -> u64 {
    connection.stats().map_or(0, |stats| stats.packets_received)
}
