//! Memory for what tunnels read, and for what waits in them.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use tiderace::{Charge, ConnectionBudget};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::ending::{BodyError, Ending, ErrorWithEnding};

/// Bytes that are read at once, at most.
const MAX: usize = 16 * 1024;
/// … as long as little comes.
const MIN: usize = 1024;

/// Bytes that one direction of a tunnel reads at once: many tunnels are silent, and some are busy. All reads of this size that may wait for
/// a slow reader are charged to the client's connection.
pub(crate) struct ReadRoom {
    bytes: usize,
    /// Reads that may wait at a time, with the one in hand.
    parts: usize,
    charge: Charge,
}

impl ReadRoom {
    /// Room for a direction in which `parts` reads may wait at a time, with the one in hand.
    ///
    /// # Errors
    /// When the connection holds too much already.
    pub(crate) fn new(memory: &ConnectionBudget, parts: usize) -> Result<Self, BodyError> {
        let what = "the connection holds too much for another tunnel";
        let charge = memory.charge((parts * MIN) as u64);
        let charge = charge.ok_or_else(|| ErrorWithEnding::error(Ending::Memory, what))?;
        Ok(Self { bytes: MIN, parts, charge })
    }

    /// Appends what `from` has to the buffer, as much as the room takes; 0 at the end. A read that fills the room makes it grow, where
    /// the connection's memory permits.
    pub(crate) async fn read(&mut self, from: &mut (impl AsyncRead + Unpin), into: &mut BytesMut) -> io::Result<usize> {
        into.reserve(self.bytes);
        // A buffer may have more space than was asked for.
        let length = from.read_buf(&mut into.limit(self.bytes)).await?;
        self.on_read(length);
        Ok(length)
    }

    /// Bytes that may be read at once.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows after a read of this length that has filled the room.
    pub(crate) fn on_read(&mut self, length: usize) {
        let next = (2 * self.bytes).min(MAX);
        if length >= self.bytes && next > self.bytes && self.charge.try_set((self.parts * next) as u64) {
            self.bytes = next;
        }
    }
}

/// Bytes that give their charge back when the last user drops them.
struct Charged {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Makes bytes of a buffer that keep its charge until nobody holds them.
pub(crate) fn charged(bytes: Vec<u8>, charge: Charge) -> Bytes {
    Bytes::from_owner(Charged { bytes, _charge: charge })
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;

    fn grown(limit: u64) -> (usize, u64, u64) {
        let memory = ConnectionBudget::new(limit, &ProcessBudget::default());
        let mut room = ReadRoom::new(&memory, 5).unwrap();
        room.on_read(MIN - 1);
        assert_eq!((room.bytes, memory.held()), (MIN, 5 * MIN as u64));
        for _ in 0..10 {
            room.on_read(room.bytes);
        }
        let (bytes, held) = (room.bytes, memory.held());
        drop(room);
        (bytes, held, memory.held())
    }

    #[test]
    fn what_may_wait_is_charged() {
        assert_eq!(grown(1 << 20), (MAX, 5 * MAX as u64, 0));
        // It stays as small as the memory of the connection asks for.
        assert_eq!(grown(30 * 1024), (4 * MIN, 20 * MIN as u64, 0));
        let memory = ConnectionBudget::new(5 * MIN as u64 - 1, &ProcessBudget::default());
        assert!(ReadRoom::new(&memory, 5).is_err());
    }
}
