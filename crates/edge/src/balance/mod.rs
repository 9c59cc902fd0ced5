//! `tiderace balance`: spreads datagrams over machines that serve one address, without state of their clients.
//!
//! The files, in the order in which a datagram meets them: `config` is the configuration, `key` has the keys of connection IDs; `worker`
//! reads; `table` chooses the machine by the packet, its address and the state of the machines; `forward` adds a header with the client's
//! address, and removes it from answers; `health` checks the machines.

mod config;
mod forward;
mod health;
pub(crate) mod key;
pub mod reference;
mod table;
mod worker;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};

use self::{config::Resolved, table::Table};
pub use self::{
    config::{BalanceConfig, BalanceHealth, ConnectionIds, Machine},
    key::{KeyFileError, make as make_key},
};
use crate::config::ConfigError;

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

/// Counters of datagrams.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Sent on to the machine that the connection ID names.
    pub(crate) routed: AtomicU64,
    /// Sent on to a machine by the client's address.
    pub(crate) unroutable: AtomicU64,
    /// Answers sent to clients.
    pub(crate) answered: AtomicU64,
    /// Datagrams that arrived on the machines' side from other addresses.
    pub(crate) refused: AtomicU64,
    /// Datagrams without a connection ID, and answers without a good header.
    pub(crate) malformed: AtomicU64,
    /// Datagrams that the system did not take.
    pub(crate) unsent: AtomicU64,
}

impl Counters {
    fn to_json(&self) -> Value {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "routed": get(&self.routed),
            "unroutable": get(&self.unroutable),
            "answered": get(&self.answered),
            "refused": get(&self.refused),
            "malformed": get(&self.malformed),
            "unsent": get(&self.unsent),
        })
    }
}

/// State that workers and health checks share.
pub(crate) struct Shared {
    table: RwLock<Arc<Table>>,
    pub(crate) counters: Counters,
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
    /// Addresses and number of workers at the start.
    start: (Vec<SocketAddr>, u8),
    checks: Mutex<tokio::task::JoinHandle<()>>,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).abort();
    }
}

impl Balancer {
    /// Starts the load balancer of the configuration in `file`. Must be called within a tokio runtime, which makes the health checks.
    ///
    /// # Errors
    /// When the configuration is wrong, or an address cannot be served.
    pub fn start(file: &Path) -> Result<Self, BalanceError> {
        let config = config::load(file)?;
        let shared =
            Arc::new(Shared { table: RwLock::new(Arc::new(Table::new(&config, None))), counters: Counters::default() });
        let count = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
            count => count.into(),
        };
        let mut addresses = Vec::new();
        let mut sockets: Vec<Vec<std::net::UdpSocket>> = (0..count).map(|_| Vec::new()).collect();
        for wanted in &config.listen {
            let mut address = *wanted;
            for sockets in &mut sockets {
                let socket = worker::bind(address).map_err(|why| BalanceError::Listen { address, why })?;
                // The system has chosen the port of the first one.
                address = socket.local_addr().map_err(|why| BalanceError::Listen { address, why })?;
                sockets.push(socket);
            }
            addresses.push(address);
        }
        let workers = sockets.into_iter().enumerate();
        let workers = workers.map(|(number, sockets)| worker::Worker::start(number, sockets, &shared));
        let workers = workers.collect::<io::Result<_>>().map_err(BalanceError::Worker)?;
        let checks = Mutex::new(ask(&shared, &config));
        let start = (config.listen, config.workers);
        Ok(Self { file: file.to_owned(), shared, workers, addresses, start, checks })
    }

    /// Addresses that clients send to, with the ports that they have got.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Reloads the configuration. On an error nothing changes. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the configuration is wrong, or changes what stays the same.
    pub fn reload(&self) -> Result<(), BalanceError> {
        let config = config::load(&self.file)?;
        if config.listen != self.start.0 {
            return Err(BalanceError::Fixed("listen"));
        }
        if config.workers != self.start.1 {
            return Err(BalanceError::Fixed("workers"));
        }
        let next = Arc::new(Table::new(&config, Some(&self.shared.table())));
        *self.shared.table.write().unwrap_or_else(PoisonError::into_inner) = next;
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *checks, ask(&self.shared, &config)).abort();
        Ok(())
    }

    /// Machines with their states, and the counters, as JSON.
    pub fn status(&self) -> Value {
        let table = self.shared.table();
        let machines: Vec<Value> = table
            .machines()
            .iter()
            .map(|machine| {
                json!({
                    "server_id": machine.server_id.to_string(),
                    "address": machine.address.to_string(),
                    "drain": machine.drains,
                    "state": machine.health().name(),
                })
            })
            .collect();
        let datagrams = self.shared.counters.to_json();
        json!({"machines": machines, "workers": self.workers.len(), "datagrams": datagrams})
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
            health::check(&shared.table(), interval, failures).await;
        }
    })
}
