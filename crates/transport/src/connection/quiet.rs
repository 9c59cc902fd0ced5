//! Memory that an idle connection frees, left over from its handshake or a busy phase.
//!
//! This needs no timer. Deadlines move to later with every acknowledgement, while the wake-up stays. The first wake-up without a due
//! deadline means that the connection has been idle for about a probe timeout.

use super::Connection;

impl Connection {
    /// Called at a wake-up without a due deadline.
    pub(super) fn on_quiet(&mut self) {
        let busy = self.paths.is_in_flight();
        if busy || !self.packets.sources.handshake.is_confirmed() {
            return;
        }
        self.packets.keys.shrink();
        self.packets.spaces.shrink();
        self.packets.sources.shrink();
        self.packets.identity.shrink();
        self.reception.shrink();
        self.events.shrink();
    }
}
