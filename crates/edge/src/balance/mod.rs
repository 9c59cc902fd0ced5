//! `tiderace balance`: spreads datagrams and connections over machines that serve one address, and keeps nothing of the clients of
//! datagrams.
//!
//! The files in the order in which a datagram meets them: `config` says what there is; `worker` reads from a `port`; `table` chooses the machine, which is a function of the packet, its address and the state of the
//! machines; `forward` puts a header with the client's address in front, or takes it off an answer; `health` knows which machines
//! answer. Connections are accepted by `tcp`, and carried by `relay`. `counters` and `metrics` say what came of it all.

mod config;
pub(crate) mod counters;
pub(crate) mod forward;
pub(crate) mod health;
mod metrics;
pub(crate) mod port;
pub mod reference;
mod relay;
mod table;
mod tcp;
mod worker;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use serde_json::{Value, json};

pub use self::config::{Affinity, BalanceConfig, BalanceHealth, BalanceTcp, ConnectionIds, Machine};
use self::{
    config::Resolved,
    counters::{Counters, get},
    table::Table,
    tcp::Connections,
    worker::Sockets,
};
use crate::config::ConfigError;
pub use crate::connection_id_key::{KeyFileError, make as make_key};

/// The load balancer cannot start, or cannot take a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// The configuration is not valid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// An address cannot be served.
    #[error("cannot listen at {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        #[source]
        why: io::Error,
    },
    /// A thread cannot be started, or has no sockets for the machines.
    #[error("cannot start a worker: {0}")]
    Worker(#[source] io::Error),
    /// A reload changes a setting that takes effect at the start only.
    #[error("`{0}` stays what it was at the start")]
    Fixed(&'static str),
}

impl BalanceError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Config(error) => return error.hint.clone(),
            Self::Listen { why, .. } if why.kind() == io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege: AmbientCapabilities=CAP_NET_BIND_SERVICE with systemd"
            }
            Self::Listen { why, .. } if why.kind() == io::ErrorKind::AddrInUse => {
                "a program of another user, or one that does not share its port, serves there"
            }
            Self::Fixed(_) => {
                "start a second load balancer at the same address, and then end this one: they share the port"
            }
            Self::Listen { .. } | Self::Worker(_) => return None,
        };
        Some(hint.to_owned())
    }
}

/// State that workers and health checks share.
pub(crate) struct Shared {
    table: RwLock<Arc<Table>>,
    pub(crate) counters: Counters,
    connections: Connections,
}

impl Shared {
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A load balancer that runs; it ends when it is dropped.
pub struct Balancer {
    file: PathBuf,
    shared: Arc<Shared>,
    workers: Vec<worker::Worker>,
    addresses: Vec<SocketAddr>,
    /// Address of the metrics, with the port that it has got.
    metrics: Option<SocketAddr>,
    start: Fixed,
    checks: Mutex<tokio::task::JoinHandle<()>>,
    /// Service of the metrics.
    service: Option<tokio::task::JoinHandle<()>>,
    drain: Mutex<Duration>,
}

/// Settings that stay what they were at the start.
#[derive(PartialEq, Eq)]
struct Fixed {
    listen: Vec<SocketAddr>,
    workers: u8,
    accepts_tcp: bool,
    metrics: Option<SocketAddr>,
}

impl Fixed {
    fn of(config: &Resolved) -> Self {
        let Resolved { listen, workers, accepts_tcp, metrics, .. } = config;
        Self { listen: listen.clone(), workers: *workers, accepts_tcp: *accepts_tcp, metrics: *metrics }
    }

    /// The setting that differs.
    fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let settings = [
            ("listen", self.listen != other.listen),
            ("workers", self.workers != other.workers),
            ("tcp.enabled", self.accepts_tcp != other.accepts_tcp),
            ("metrics", self.metrics != other.metrics),
        ];
        settings.into_iter().find_map(|(name, differs)| differs.then_some(name))
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).abort();
        if let Some(service) = &self.service {
            service.abort();
        }
    }
}

impl Balancer {
    /// Starts the load balancer of the configuration in `file`. Must be called within a tokio runtime, which makes the health checks.
    ///
    /// # Errors
    /// When the configuration is wrong, or an address cannot be served.
    pub fn start(file: &Path) -> Result<Self, BalanceError> {
        let config = config::load(file)?;
        let table = RwLock::new(Arc::new(Table::new(&config, None)));
        let shared = Arc::new(Shared { table, counters: Counters::default(), connections: Connections::default() });
        let count = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
            count => count.into(),
        };
        let mut addresses = Vec::new();
        let mut sockets: Vec<Vec<Sockets>> = (0..count).map(|_| Vec::new()).collect();
        for &address in &config.listen {
            let opened = Sockets::open(address, count, config.accepts_tcp);
            let (address, opened) = opened.map_err(|why| BalanceError::Listen { address, why })?;
            sockets.iter_mut().zip(opened).for_each(|(sockets, opened)| sockets.push(opened));
            addresses.push(address);
        }
        let (metrics, service) = match config.metrics {
            Some(address) => {
                let listen = |why| BalanceError::Listen { address, why };
                let (at, service) = metrics::serve(address, shared.clone()).map_err(listen)?;
                (Some(at), Some(service))
            }
            None => (None, None),
        };
        let workers = sockets.into_iter().enumerate();
        let workers = workers.map(|(number, sockets)| worker::Worker::start(number, sockets, &shared));
        let workers = workers.collect::<io::Result<_>>().map_err(BalanceError::Worker)?;
        let checks = Mutex::new(ask(&shared, &config));
        let (start, drain) = (Fixed::of(&config), Mutex::new(config.drain));
        Ok(Self { file: file.to_owned(), shared, workers, addresses, metrics, start, checks, service, drain })
    }

    /// Addresses that clients come to, with the ports that they have got.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Address that serves the metrics, with the port that it has got.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Accepts no connection of TCP any more, and waits until those that are open have ended, for `drain` at most; then it resets them.
    /// Datagrams are sent on all the while.
    pub async fn drain(&self) {
        let limit = *self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.connections.drain(limit).await;
    }

    /// Reads the configuration again and goes on under it. When anything is wrong, everything stays as it was. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the configuration is wrong, or changes what stays the same.
    pub fn reload(&self) -> Result<(), BalanceError> {
        let config = config::load(&self.file)?;
        if let Some(name) = self.start.differs_from(&Fixed::of(&config)) {
            return Err(BalanceError::Fixed(name));
        }
        *self.drain.lock().unwrap_or_else(PoisonError::into_inner) = config.drain;
        let next = Arc::new(Table::new(&config, Some(&self.shared.table())));
        *self.shared.table.write().unwrap_or_else(PoisonError::into_inner) = next;
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *checks, ask(&self.shared, &config)).abort();
        Ok(())
    }

    /// Machines with their states, and the counters, as JSON.
    pub fn status(&self) -> Value {
        let table = self.shared.table();
        let machines = table.machines();
        let all: Vec<Value> = machines
            .iter()
            .map(|machine| {
                json!({
                    "server_id": machine.server_id.to_string(),
                    "address": machine.address.to_string(),
                    "drain": machine.drains,
                    "state": machine.health().name(),
                    "datagrams": machine.counters.datagrams(),
                    "tcp": machine.counters.connections(),
                })
            })
            .collect();
        let sum = |of: fn(&counters::MachineCounters) -> &std::sync::atomic::AtomicU64| {
            machines.iter().map(|machine| get(of(&machine.counters))).sum::<u64>()
        };
        let counters = &self.shared.counters;
        let mut tcp: Value = counters.tcp.ends().into_iter().map(|(name, count)| (name, get(count))).collect();
        tcp["open"] = self.shared.connections.open().into();
        json!({
            "machines": all,
            "workers": self.workers.len(),
            "datagrams": {
                "routed": sum(|counters| &counters.routed),
                "unroutable": sum(|counters| &counters.unroutable),
                "answered": sum(|counters| &counters.answered),
                "refused": get(&counters.refused),
                "malformed": get(&counters.malformed),
                "unsent": get(&counters.unsent),
            },
            "tcp": tcp,
        })
    }
}

/// Reads and checks a configuration; returns the number of its machines.
///
/// # Errors
/// When the configuration is wrong.
pub fn check(file: &Path) -> Result<usize, BalanceError> {
    Ok(config::load(file)?.machines.len())
}

/// Begins the health checks of a configuration.
fn ask(shared: &Arc<Shared>, config: &Resolved) -> tokio::task::JoinHandle<()> {
    let (shared, interval, failures) = (shared.clone(), config.interval, config.failures);
    tokio::spawn(async move {
        if let Some(interval) = interval {
            health::check(shared.table().machines(), interval, failures).await;
        }
    })
}
