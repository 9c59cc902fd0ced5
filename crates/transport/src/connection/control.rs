//! Control frames that belong to no other part: what still has to be said once.

/// Owns the small frames that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// A PING on behalf of the application, or to keep the connection alive.
    pub(crate) ping: bool,
    /// HANDSHAKE_DONE of a server.
    pub(crate) handshake_done: bool,
    /// It was acknowledged.
    pub(crate) handshake_done_arrived: bool,
    token: Option<Vec<u8>>,
    token_waits: bool,
}

impl Control {
    pub(crate) fn wants_to_send(&self) -> bool {
        self.ping || self.handshake_done || self.token_waits
    }

    /// Gives the client a token for its next connection.
    pub(crate) fn send_token(&mut self, token: Vec<u8>) {
        self.token = Some(token);
        self.token_waits = true;
    }

    /// The token for a NEW_TOKEN frame.
    pub(crate) fn token(&self) -> Option<&[u8]> {
        self.token.as_deref().filter(|_| self.token_waits)
    }

    pub(crate) fn token_sent(&mut self) {
        self.token_waits = false;
    }

    pub(crate) fn token_lost(&mut self) {
        self.token_waits = self.token.is_some();
    }

    pub(crate) fn token_arrived(&mut self) {
        self.token = None;
        self.token_waits = false;
    }
}
