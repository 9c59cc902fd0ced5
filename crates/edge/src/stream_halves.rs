//! Halves of streams, and datagrams, of clients, for `stream`, whichever protocol they use.

use bytes::Bytes;
use tiderace::{Connection, ReadError, RecvStream, SendStream, WriteError};

/// End of reading from a client, or of writing to it.
pub(crate) enum StreamClosed {
    /// No more data is wanted in this direction; the other may continue.
    Unwanted,
    /// By a reset, or with the connection.
    Failed,
}

/// Half of a client's stream towards the client, over QUIC or QMux.
pub(crate) trait Outgoing: Send {
    fn write_chunk(&mut self, data: Bytes) -> impl Future<Output = Result<(), StreamClosed>> + Send;
    fn finish(&mut self);
    fn reset(&mut self, code: u64);
}

/// The half that comes from it; `None` is the end.
pub(crate) trait Incoming: Send {
    fn read_chunk(&mut self, most: usize) -> impl Future<Output = Result<Option<Bytes>, StreamClosed>> + Send;
    fn stop(&mut self, code: u64);
}

impl Outgoing for SendStream {
    async fn write_chunk(&mut self, data: Bytes) -> Result<(), StreamClosed> {
        Self::write_chunk(self, data).await.map_err(|error| match error {
            WriteError::Stopped(_) | WriteError::StreamClosed => StreamClosed::Unwanted,
            _ => StreamClosed::Failed,
        })
    }

    fn finish(&mut self) {
        // Only a stream that has ended cannot be ended.
        let _ = Self::finish(self);
    }

    fn reset(&mut self, code: u64) {
        // A stream that has ended needs no reset.
        let _ = Self::reset(self, code);
    }
}

impl Incoming for RecvStream {
    async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, StreamClosed> {
        Self::read_chunk(self, most).await.map_err(|error| match error {
            ReadError::StreamClosed => StreamClosed::Unwanted,
            _ => StreamClosed::Failed,
        })
    }

    fn stop(&mut self, code: u64) {
        let _ = Self::stop(self, code);
    }
}

/// Datagrams of a client, over QUIC or QMux.
pub(crate) trait Datagrams: Send + 'static {
    /// `None` when the connection has ended.
    fn read(&self) -> impl Future<Output = Option<Bytes>> + Send;
    fn send(&self, data: Bytes);
}

impl Datagrams for Connection {
    async fn read(&self) -> Option<Bytes> {
        self.read_datagram().await.ok()
    }

    fn send(&self, data: Bytes) {
        // One that is too large is lost, as datagrams are.
        let _ = self.send_datagram(data);
    }
}
