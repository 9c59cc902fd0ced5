//! Server settings for tickets and early data that both libraries' builders have.

/// Methods of a builder with `common`, `tickets` and `settings`.
macro_rules! server_settings {
    () => {
        /// Number of tickets that a client gets after the handshake; the default is 2, and 0 switches resumption off.
        #[must_use]
        pub fn tickets(mut self, count: usize) -> Self {
            self.tickets = count;
            self
        }

        /// Accepts early data from clients that resume. It can be replayed by an attacker: only for requests that may
        /// happen twice. The default is not to.
        ///
        /// A ticket is accepted for early data once within the [`early_data_window`](Self::early_data_window), and all servers
        /// that accept it share a [`strike_register`](Self::strike_register).
        #[must_use]
        pub fn early_data(mut self, accept: bool) -> Self {
            self.common.early_data = accept;
            self
        }

        /// The ring whose keys seal the tickets. Servers that share it resume each other's sessions. The default is one of this
        /// configuration's own, so that its tickets end with it.
        #[must_use]
        pub fn ring(mut self, ring: KeyRing) -> Self {
            self.settings.ring = Some(ring);
            self
        }

        /// Sets the strike register of early data. The default is in the memory of this configuration. Servers that share a ring and accept
        /// early data have to share the register, too.
        #[must_use]
        pub fn strike_register(mut self, register: Arc<dyn StrikeRegister>) -> Self {
            self.settings.register = register;
            self
        }

        /// Tolerance for the age of a ticket in a ClientHello with early data, in whole seconds. A copy within it is recognised
        /// by the register, a later one by its age (RFC 8446 §8.3). The default is 10 seconds; the library refuses an age
        /// that is off by more than 60 by itself.
        #[must_use]
        pub fn early_data_window(mut self, window: std::time::Duration) -> Self {
            self.settings.window = window;
            self
        }

        /// Sets state of the application that has to be unchanged for early data to be accepted, such as its settings (RFC 9001 §4.6.3); at
        /// most 255 bytes. Tickets issued with other bytes are valid for resumption only.
        #[must_use]
        pub fn early_data_state(mut self, state: impl Into<Vec<u8>>) -> Self {
            self.settings.application = state.into();
            self
        }
    };
}
