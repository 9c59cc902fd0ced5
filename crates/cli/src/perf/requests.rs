//! Connections for one exchange each: handshakes, one after another.

use tiderace::Connection;

use super::{
    progress::{Goal, Moved, Progress},
    quic::Run,
    transfer,
};

impl Run<'_> {
    /// Connections that are for nothing but their handshake.
    pub(super) async fn handshakes(&mut self, count: u32) {
        let made = Moved::default();
        let bar = Progress::start(Goal::Handshakes(count), made.clone());
        for _ in 0..count {
            if self.stop.is_asked() {
                break;
            }
            match self.peer.connect(&self.endpoint).await {
                Ok((connection, handshake)) => {
                    self.tally.established(handshake);
                    self.confirm(&connection).await;
                    connection.close(0, b"");
                }
                Err(error) => {
                    self.tally.attempted += 1;
                    self.tally.error(&error);
                }
            }
            made.add(1);
        }
        drop(bar);
    }

    /// Finds out whether the connection is good for anything: a client's handshake is complete before the server's is.
    pub(super) async fn confirm(&mut self, connection: &Connection) {
        match transfer::nothing(connection).await {
            Ok(()) => self.tally.completed += 1,
            Err(error) => self.tally.error(&error),
        }
    }
}
