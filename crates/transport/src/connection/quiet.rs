//! Memory that a quiet connection gives back: what its handshake or a busy phase left behind.
//!
//! No timer of its own leads here. Deadlines move to later with every acknowledgement while the wake-up stays where it was;
//! the first wake-up at which nothing is due means that the connection has been quiet for about a probe timeout.

use super::Connection;

impl Connection {
    /// A wake-up came and nothing was due.
    pub(super) fn on_quiet(&mut self) {
        let busy = self.paths.is_in_flight();
        if busy || !self.packets.sources.handshake.is_confirmed() {
            return;
        }
        self.packets.spaces.shrink();
        self.packets.sources.shrink();
        self.packets.identity.shrink();
        self.reception.shrink();
        self.events.shrink();
    }
}
