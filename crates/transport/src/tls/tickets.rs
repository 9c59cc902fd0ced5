//! Client's store of tickets.
//!
//! A ticket belongs to the TLS backend that received it; the store knows only its server. rustls keeps parts of a session private, so its
//! tickets live as long as the process. Tickets of a backend that can serialize sessions may be kept in a file and used by another process.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
};

/// A session that can be resumed, in the form of the backend that made it.
pub struct Ticket(Box<dyn Any + Send + Sync>);

impl Ticket {
    /// Wraps a backend's session state.
    pub fn new<T: Any + Send + Sync>(session: T) -> Self {
        Self(Box::new(session))
    }

    /// Ticket of these bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::new(Portable(bytes))
    }

    /// Bytes for [`from_bytes`](Self::from_bytes); `None` if the ticket cannot leave the process. They are a secret: a holder can resume
    /// the session.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.downcast_ref().map(|Portable(bytes)| &bytes[..])
    }

    /// Session that the backend stored. `None` when another backend stored it.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|session| *session)
    }
}

/// A ticket that can be written down.
struct Portable(Vec<u8>);

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// Client's store of tickets. Called during handshakes, from any thread.
pub trait TicketStore: Send + Sync + std::fmt::Debug {
    /// Stores a ticket of the server called `server_name`. A server may issue any number, so a store is bounded.
    fn insert(&self, server_name: &str, ticket: Ticket);

    /// Takes a ticket for resumption. Each is returned once: a client that uses one twice can be recognized (RFC 8446 §C.4), and early data
    /// with it would be refused.
    fn take(&self, server_name: &str) -> Option<Ticket>;
}

/// Tickets in memory: of the servers that issued tickets last, and of each server the latest tickets.
pub struct MemoryTickets {
    servers: usize,
    per_server: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the number of the last insertion.
    tickets: BTreeMap<String, (u64, VecDeque<Ticket>)>,
    insertions: u64,
}

impl MemoryTickets {
    /// Creates a store for at most `per_server` tickets of each of at most `servers` servers.
    pub fn new(servers: usize, per_server: usize) -> Self {
        Self { servers, per_server, state: Mutex::default() }
    }

    /// Number of tickets that are kept for a server.
    pub fn count(&self, server_name: &str) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.tickets.get(server_name).map_or(0, |(_, tickets)| tickets.len())
    }
}

impl Default for MemoryTickets {
    /// Eight tickets of each of 256 servers.
    fn default() -> Self {
        Self::new(256, 8)
    }
}

impl std::fmt::Debug for MemoryTickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryTickets").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl TicketStore for MemoryTickets {
    fn insert(&self, server_name: &str, ticket: Ticket) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.servers == 0 || self.per_server == 0 {
            return;
        }
        if !state.tickets.contains_key(server_name) && state.tickets.len() >= self.servers {
            let oldest = state.tickets.iter().min_by_key(|(_, (inserted, _))| *inserted).map(|(name, _)| name.clone());
            if let Some(oldest) = oldest {
                state.tickets.remove(&oldest);
            }
        }
        state.insertions += 1;
        let insertion = state.insertions;
        let (inserted, tickets) = state.tickets.entry(server_name.to_owned()).or_default();
        *inserted = insertion;
        if tickets.len() >= self.per_server {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take(&self, server_name: &str) -> Option<Ticket> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, tickets) = state.tickets.get_mut(server_name)?;
        // The latest is the most likely to be good still.
        let ticket = tickets.pop_back();
        if tickets.is_empty() {
            state.tickets.remove(server_name);
        }
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_bounded_and_gives_each_ticket_once_the_latest_first() {
        let store = MemoryTickets::new(2, 3);
        let take = |name: &str| store.take(name).and_then(Ticket::into_inner::<u32>);
        (0..5).for_each(|n| store.insert("a", Ticket::new::<u32>(n)));
        assert_eq!(store.count("a"), 3);
        assert_eq!([take("a"), take("a")], [Some(4), Some(3)]);
        store.insert("b", Ticket::new::<u32>(10));
        store.insert("a", Ticket::new::<u32>(5));
        store.insert("c", Ticket::new::<u32>(20));
        assert_eq!([take("b"), take("c"), take("a"), take("a"), take("a")], [None, Some(20), Some(5), Some(2), None]);
        store.insert("d", Ticket::from_bytes(vec![1, 2]));
        let portable = store.take("d").unwrap();
        assert_eq!(portable.as_bytes(), Some(&[1, 2][..]));
        assert!(portable.into_inner::<Vec<u8>>().is_none());
        let opaque = Ticket::new("of another backend");
        assert!(opaque.as_bytes().is_none());
        store.insert("a", opaque);
        assert!(store.take("a").unwrap().into_inner::<u32>().is_none());
    }
}
