//! Map from connection IDs to connections.

use std::{
    collections::HashMap,
    hash::{BuildHasher, DefaultHasher, Hash},
};

use rand_core::RngCore;
use units::Seed;
use wire::{ConnectionId, ResetToken};

/// A keyed hash: clients choose the first destination ID of a connection, and must not be able to choose collisions.
#[derive(Clone)]
struct Keyed([u64; 2]);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher
    }
}

/// Owns the table of connection IDs. It is never iterated, so its order has no effect.
pub(super) struct Routes {
    table: HashMap<ConnectionId, u32, Keyed>,
    /// Stateless reset tokens of the peers' active IDs. RFC 9000 §10.3.1 MUST-2: the look-up is by a keyed hash, so that its duration
    /// reveals nothing about the tokens.
    resets: HashMap<[u8; 16], u32, Keyed>,
    /// Last result, because consecutive datagrams are often of one connection.
    last: Option<(ConnectionId, u32)>,
}

impl Routes {
    pub(super) fn new(seed: &Seed) -> Self {
        let mut random = seed.stream("routes");
        let mut keyed = || Keyed([random.next_u64(), random.next_u64()]);
        Self { table: HashMap::with_hasher(keyed()), resets: HashMap::with_hasher(keyed()), last: None }
    }

    pub(super) fn insert(&mut self, id: ConnectionId, connection: u32) {
        self.table.insert(id, connection);
        self.last = None;
    }

    /// Forgets `id`, if it still belongs to `connection`.
    pub(super) fn remove(&mut self, id: &ConnectionId, connection: u32) {
        if self.table.get(id) == Some(&connection) {
            self.table.remove(id);
        }
        self.last = None;
    }

    /// The connection's peer uses another ID, with another reset token or none.
    pub(super) fn replace_reset(&mut self, connection: u32, old: Option<ResetToken>, new: Option<ResetToken>) {
        if let Some(old) = old.filter(|old| self.resets.get(&old.0) == Some(&connection)) {
            self.resets.remove(&old.0);
        }
        if let Some(new) = new {
            self.resets.insert(new.0, connection);
        }
    }

    /// The connection that a reset with this token would end.
    pub(super) fn find_reset(&self, token: &ResetToken) -> Option<u32> {
        self.resets.get(&token.0).copied()
    }

    #[inline]
    pub(super) fn find(&mut self, id: &[u8]) -> Option<u32> {
        if let Some((last, connection)) = &self.last
            && last.as_slice() == id
        {
            return Some(*connection);
        }
        let id = ConnectionId::new(id)?;
        let connection = *self.table.get(&id)?;
        self.last = Some((id, connection));
        Some(connection)
    }
}
