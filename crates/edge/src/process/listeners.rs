//! Addresses that a process serves: opened, taken over, kept in a reload, drained.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tiderace::transport::EndpointStats;

use super::ProcessError;
use crate::{
    activation::AssignedSockets,
    config::{Config, address},
    generation::{Generation, Shared},
    listen::{Listener, PlainListener},
    port::check_unshared,
    upgrade::{Siblings, TakenOver},
    worker::Workers,
};

type ByAddress<T> = HashMap<SocketAddr, T>;

/// Listeners of a process, by their configured addresses.
pub(super) struct Listeners {
    /// With TLS, over TCP and QUIC.
    secure: Mutex<ByAddress<Listener>>,
    /// Plain HTTP, which is redirected.
    plain: Mutex<ByAddress<PlainListener>>,
    /// Not configured any more, and read for older processes that have connections there.
    retained: Mutex<ByAddress<Listener>>,
}

/// Listeners of a configuration that is not in use yet.
#[must_use]
pub(super) struct Opened {
    secure: ByAddress<Listener>,
    plain: ByAddress<PlainListener>,
}

impl Listeners {
    /// Opens the addresses of the first generation, or takes them out of `taken` or `assigned`.
    pub(super) fn open(
        taken: Option<&mut TakenOver>,
        assigned: AssignedSockets,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> Result<Self, ProcessError> {
        let generation = shared.current();
        let config = &generation.config;
        let (mut secure, mut plain) = (HashMap::new(), HashMap::new());
        if let Some(taken) = taken {
            for address in addresses(config) {
                if let Some(sockets) = taken.addresses.remove(&address) {
                    let listener = Listener::take_over(sockets, &generation, shared, workers);
                    secure.insert(address, listener.map_err(|why| ProcessError::listen("listen", address, why))?);
                }
            }
            let port = redirected_port(config, &secure);
            for address in plain_addresses(config) {
                if let Some(socket) = taken.plain.remove(&address) {
                    let listener = PlainListener::take_over(socket, port, shared);
                    plain.insert(address, listener.map_err(|why| ProcessError::listen("redirect-from", address, why))?);
                }
            }
        }
        for (address, sockets) in assigned.secure {
            let listener = Listener::on_sockets(address, sockets, &generation, shared, workers);
            secure.insert(address, listener.map_err(|why| ProcessError::listen("listen", address, why))?);
        }
        secure.extend(open(config, &secure, &generation, shared, workers)?);
        let port = redirected_port(config, &secure);
        for (address, socket) in assigned.plain {
            let listener = PlainListener::on_socket(socket, port, shared);
            plain.insert(address, listener.map_err(|why| ProcessError::listen("redirect-from", address, why))?);
        }
        plain.extend(open_plain(config, &plain, &secure, shared)?);
        Ok(Self { secure: Mutex::new(secure), plain: Mutex::new(plain), retained: Mutex::default() })
    }

    /// Opens new addresses of `next`. Open ones are not changed.
    pub(super) fn open_more(
        &self,
        next: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> Result<Opened, ProcessError> {
        let secure = open(&next.config, &self.secure(), next, shared, workers)?;
        let plain = open_plain(&next.config, &self.plain(), &secure, shared)?;
        Ok(Opened { secure, plain })
    }

    /// Continues under `next`: adds the opened addresses, and drains removed ones.
    pub(super) fn adopt(&self, opened: Opened, next: &Generation, siblings: &Siblings) {
        let (mut secure, mut plain) = (self.secure(), self.plain());
        secure.extend(opened.secure);
        plain.extend(opened.plain);
        let redirecting = plain_addresses(&next.config);
        plain.retain(|address, _| redirecting.contains(address));
        let wanted = addresses(&next.config);
        for (address, listener) in std::mem::take(&mut *secure) {
            if wanted.contains(&address) {
                listener.adopt(next);
                secure.insert(address, listener);
                continue;
            }
            listener.drain(next);
            if siblings.need(&address) {
                self.retained().insert(address, listener);
            }
        }
    }

    /// Opens the UDP sockets that are missing at addresses that were taken over, when no other process reads.
    pub(super) fn open_missing(&self) -> Result<(), ProcessError> {
        let open = |(address, listener): (&SocketAddr, &Listener)| {
            listener.open_missing().map_err(|why| {
                let why = io::Error::new(why.kind(), format!("no UDP socket for another worker: {why}"));
                ProcessError::listen("listen", *address, why)
            })
        };
        self.secure().iter().try_for_each(open)
    }

    /// Accepts on all of them.
    pub(super) fn accept(&self, generation: &Generation) {
        self.secure().values().for_each(|listener| listener.set_accepting(true, generation));
        self.plain().values().for_each(|listener| listener.set_accepting(true));
    }

    /// Accepts no more connections; existing ones end after their requests.
    pub(super) fn drain(&self, generation: &Generation) {
        self.secure().values().for_each(|listener| listener.drain(generation));
        self.plain().clear();
    }

    /// Local addresses with TLS, with the ports that they have got, in order.
    pub(super) fn secure_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.secure().values().map(Listener::local).collect();
        all.sort();
        all
    }

    /// Local addresses of plain HTTP, with the ports that they have got, in order.
    pub(super) fn plain_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.plain().values().map(PlainListener::local).collect();
        all.sort();
        all
    }

    /// Counters of all endpoints together.
    pub(super) fn stats(&self) -> EndpointStats {
        let mut sum = EndpointStats::default();
        self.secure().values().for_each(|listener| sum += listener.endpoint().stats());
        sum
    }

    /// Listeners with TLS.
    pub(super) fn secure(&self) -> MutexGuard<'_, ByAddress<Listener>> {
        self.secure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listeners for plain HTTP.
    pub(super) fn plain(&self) -> MutexGuard<'_, ByAddress<PlainListener>> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listeners that are read for older processes only.
    pub(super) fn retained(&self) -> MutexGuard<'_, ByAddress<Listener>> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn addresses(config: &Config) -> Vec<SocketAddr> {
    config.listen.0.iter().filter_map(|text| address(text).ok()).collect()
}

pub(super) fn plain_addresses(config: &Config) -> Vec<SocketAddr> {
    config.redirect_from.0.iter().filter_map(|text| address(text).ok()).collect()
}

/// Opens the addresses of `config` that are not open yet.
fn open(
    config: &Config,
    known: &ByAddress<Listener>,
    generation: &Generation,
    shared: &Arc<Shared>,
    workers: &Workers,
) -> Result<ByAddress<Listener>, ProcessError> {
    let mut opened = HashMap::new();
    for address in addresses(config).into_iter().filter(|address| !known.contains_key(address)) {
        let failed = |why| ProcessError::listen("listen", address, why);
        // An address of this process, such as the same port of one interface, may be shared with itself.
        if !known.keys().chain(opened.keys()).any(|other: &SocketAddr| other.port() == address.port()) {
            check_unshared(address).map_err(failed)?;
        }
        let listener = Listener::open(address, generation, shared, workers).map_err(failed)?;
        opened.insert(address, listener);
    }
    Ok(opened)
}

/// The port of the first address with TLS, to which plain HTTP redirects.
fn redirected_port(config: &Config, listeners: &ByAddress<Listener>) -> u16 {
    let first = addresses(config).first().copied();
    first.map_or(443, |first| listeners.get(&first).map_or(first, Listener::local).port())
}

/// Opens the addresses of plain HTTP of `config` that are not open yet. They redirect to the first address with TLS, one of `listeners` when
/// its port was left to the system.
fn open_plain(
    config: &Config,
    known: &ByAddress<PlainListener>,
    listeners: &ByAddress<Listener>,
    shared: &Arc<Shared>,
) -> Result<ByAddress<PlainListener>, ProcessError> {
    let port = redirected_port(config, listeners);
    let mut opened = HashMap::new();
    for address in plain_addresses(config).into_iter().filter(|address| !known.contains_key(address)) {
        let listener = PlainListener::open(address, port, shared)
            .map_err(|why| ProcessError::listen("redirect-from", address, why))?;
        // Clients may come at once.
        shared.persistent.listeners.add(listener.local());
        opened.insert(address, listener);
    }
    Ok(opened)
}
