//! Idle connections: for each origin one connection that carries several requests at a time, or a few that carry one each.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{link::Link, race::Leg};

/// Origins with open connections; the one that was not used for longest goes first.
const ORIGINS: usize = 256;
/// Connections of HTTP/1.1 that are kept for an origin.
const IDLE: usize = 6;

/// Key of a connection: requests with equal keys may share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) origin: String,
    pub(crate) only: Option<Leg>,
    pub(crate) udp: Option<SocketAddr>,
}

/// The connections of one origin. The task that opens one holds the lock meanwhile, so that requests that come at the same time make one
/// race and not many.
#[derive(Default)]
pub(crate) struct Slot {
    shared: Option<Link>,
    idle: Vec<Link>,
}

impl Slot {
    /// A connection that can take a request.
    pub(crate) fn take(&mut self) -> Option<Link> {
        self.shared = self.shared.take().filter(|link| !link.is_closed());
        self.idle.retain(|link| !link.is_closed());
        if let Some(shared) = self.shared.as_ref().filter(|link| link.is_ready()) {
            return shared.share();
        }
        let ready = self.idle.iter().position(Link::is_ready)?;
        Some(self.idle.swap_remove(ready))
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&mut self, link: Link) {
        match link.share() {
            Some(shared) => self.shared = Some(shared),
            None if self.idle.len() < IDLE && !link.is_closed() => self.idle.push(link),
            None => {}
        }
    }

    /// Forgets the connection that is shared: it has failed.
    pub(crate) fn forget(&mut self) {
        self.shared = None;
    }
}

pub(crate) type SharedSlot = Arc<tokio::sync::Mutex<Slot>>;

/// Places by origin, and the number of the use in which each was last wanted.
#[derive(Default)]
struct Slots {
    uses: u64,
    by_key: HashMap<Key, (u64, SharedSlot)>,
}

/// All connections.
#[derive(Default)]
pub(crate) struct Pool {
    slots: Mutex<Slots>,
}

impl Pool {
    /// The place of an origin.
    pub(crate) fn slot(&self, key: &Key) -> SharedSlot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Slots { uses, by_key } = &mut *slots;
        *uses += 1;
        if let Some((used, slot)) = by_key.get_mut(key) {
            *used = *uses;
            return slot.clone();
        }
        if by_key.len() >= ORIGINS
            && let Some(oldest) = by_key.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())
        {
            by_key.remove(&oldest);
        }
        by_key.entry(key.clone()).or_insert_with(|| (*uses, SharedSlot::default())).1.clone()
    }

    /// Removes all connections from the pool: they end with their exchanges.
    pub(crate) fn clear(&self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).by_key.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_bounded_and_those_in_use_stay() {
        let pool = Pool::default();
        let key = |number: usize| Key { origin: number.to_string(), only: None, udp: None };
        let first = pool.slot(&key(0));
        for number in 1..ORIGINS + 10 {
            pool.slot(&key(number));
            pool.slot(&key(0));
        }
        assert!(Arc::ptr_eq(&first, &pool.slot(&key(0))));
        assert_eq!(pool.slots.lock().unwrap().by_key.len(), ORIGINS);
    }
}
