//! Moves of an endpoint's clients to another socket.

use std::net::IpAddr;

use units::Instant;

use super::Endpoint;
use crate::{
    connection::{Connection, move_state},
    path::MoveState,
};

impl Endpoint {
    /// Returns whether the socket may be replaced: no client is in its handshake, which a server would not follow elsewhere. Looks at every
    /// connection.
    // RFC 9000 §9 MUST NOT-1: no migration before the handshake is confirmed.
    pub fn may_rebind(&self) -> bool {
        self.slots.iter().filter_map(|slot| slot.connection.as_deref()).all(Connection::may_rebind)
    }

    /// Takes the news that the socket was replaced by one with another address: the clients' connections migrate there. `local`
    /// is that address, if it is to be named in [`Transmit::local`](crate::Transmit::local).
    pub fn rebind(&mut self, now: Instant, local: Option<IpAddr>) {
        for index in 0..self.slots.len() {
            if let Some(connection) = &mut self.slots[index].connection {
                connection.rebind(now, local);
                self.mark_dirty(u32::try_from(index).expect("fewer than 2^32 connections"));
            }
        }
    }

    /// Lets the clients' connections move to another address of this host, each when the path from there is validated. Returns whether any
    /// of them tries.
    pub fn migrate(&mut self, now: Instant, local: IpAddr) -> bool {
        let mut tries = false;
        for index in 0..self.slots.len() {
            if let Some(connection) = &mut self.slots[index].connection {
                tries |= connection.migrate(now, local).is_ok();
                self.mark_dirty(u32::try_from(index).expect("fewer than 2^32 connections"));
            }
        }
        tries
    }

    /// States of the connections' moves to `local`.
    pub fn move_states(&self, local: IpAddr) -> impl Iterator<Item = MoveState> {
        let connections = self.slots.iter().filter_map(|slot| slot.connection.as_deref());
        connections.map(move |connection| move_state(connection, local))
    }
}
