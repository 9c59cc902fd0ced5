//! What a connection gives back when nothing happens on it: memory that its handshake or a busy phase left behind.
//!
//! No timer of its own leads here. Deadlines move to later with every acknowledgement while the wake-up stays where it was;
//! the first wake-up at which nothing is due means that the connection has been quiet for about a probe timeout.

use super::Connection;
use crate::tls::Level;

impl Connection {
    /// A wake-up came and nothing was due.
    pub(super) fn on_quiet(&mut self) {
        let busy = self.paths.is_in_flight();
        if busy || !self.handshake.is_confirmed() {
            return;
        }
        for id in self.spaces.ids() {
            if let Some(space) = self.spaces.get_mut(id) {
                space.ledger.shrink();
                space.acks.shrink();
            }
        }
        if let Some(crypto) = self.handshake.crypto(Level::OneRtt) {
            crypto.shrink();
        }
        self.streams.shrink();
        self.datagrams.shrink();
        self.identity.shrink();
        self.reception.shrink();
        self.events.shrink();
    }
}
