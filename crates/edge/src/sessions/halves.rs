//! Halves of a session's stream, for `crate::stream`, with counted bytes.

use std::sync::Arc;

use bytes::Bytes;
use webtransport::{ReadError, RecvStream, SendStream, WriteError};

use crate::{
    activity::Activity,
    observe::{Direction, Traffic},
    stream::{Incoming, Outgoing, StreamClosed},
};

/// Counters of a session.
#[derive(Clone)]
pub(super) struct Counters {
    pub(super) traffic: Arc<Traffic>,
    pub(super) activity: Arc<Activity>,
}

impl Counters {
    /// Counts bytes of a stream.
    pub(super) fn on_bytes(&self, direction: Direction, bytes: usize) {
        self.activity.note();
        self.traffic.on_bytes(direction, bytes);
    }

    /// Counts a datagram.
    pub(super) fn on_datagram(&self, direction: Direction, bytes: usize) {
        self.activity.note();
        self.traffic.on_datagram(direction, bytes);
    }
}

/// Half towards the client.
pub(super) struct Down(pub(super) SendStream, pub(super) Counters);

/// The half that comes from the client.
pub(super) struct Up(pub(super) RecvStream, pub(super) Counters);

/// An application's error code of 32 bits.
fn short(code: u64) -> u32 {
    u32::try_from(code).unwrap_or(u32::MAX)
}

impl Outgoing for Down {
    async fn write_chunk(&mut self, data: Bytes) -> Result<(), StreamClosed> {
        let length = data.len();
        self.0.write_chunk(data).await.map_err(|error| match error {
            WriteError::Stopped(_) | WriteError::StreamClosed => StreamClosed::Unwanted,
            _ => StreamClosed::Failed,
        })?;
        self.1.on_bytes(Direction::Down, length);
        Ok(())
    }

    fn finish(&mut self) {
        // Only a stream that has ended cannot be ended.
        let _ = self.0.finish();
    }

    fn reset(&mut self, code: u64) {
        self.0.reset(short(code));
    }
}

impl Incoming for Up {
    async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, StreamClosed> {
        let read = self.0.read_chunk(most).await.map_err(|error| match error {
            ReadError::StreamClosed => StreamClosed::Unwanted,
            _ => StreamClosed::Failed,
        })?;
        if let Some(data) = &read {
            self.1.on_bytes(Direction::Up, data.len());
        }
        Ok(read)
    }

    fn stop(&mut self, code: u64) {
        self.0.stop(short(code));
    }
}
