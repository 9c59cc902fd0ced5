//! Memory for what tunnels read, and for what waits in them.

use std::{io, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use tiderace::{Charge, ConnectionBudget};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::Mutex,
};

use crate::ending::{BodyError, Ending, ErrorWithEnding};

/// Bytes that are read at once, at most.
const MAX: usize = 16 * 1024;
/// … as long as little comes.
const MIN: usize = 1024;
/// Reads grow while the connection holds at most this share of its memory: the rest is for streams that begin.
const GROWTH_SHARE: u64 = 2;
/// Times between two looks for memory: the first, and the longest.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(320);

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
        if length < self.bytes || next == self.bytes {
            return;
        }
        let (budget, bytes) = (self.charge.budget(), (self.parts * next) as u64);
        let held = budget.held() + bytes - self.charge.bytes();
        if held <= budget.limit() / GROWTH_SHARE && self.charge.try_set(bytes) {
            self.bytes = next;
        }
    }
}

/// Memory of a connection for streams, which wait for it in the order in which they came. One of them looks for memory at a time, so that
/// many that wait cost no more than one.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    memory: ConnectionBudget,
    turn: Arc<Mutex<()>>,
}

impl Rooms {
    pub(crate) fn new(memory: &ConnectionBudget) -> Self {
        Self { memory: memory.clone(), turn: Arc::default() }
    }

    /// Waits for the room of one direction.
    pub(crate) async fn one(&self) -> ReadRoom {
        self.wait(|memory| ReadRoom::new(memory, 1)).await
    }

    /// Waits for the rooms of both directions. A stream never holds one while it waits for the other.
    pub(crate) async fn both(&self) -> (ReadRoom, ReadRoom) {
        self.wait(|memory| Ok((ReadRoom::new(memory, 1)?, ReadRoom::new(memory, 1)?))).await
    }

    async fn wait<T>(&self, look: impl Fn(&ConnectionBudget) -> Result<T, BodyError>) -> T {
        let _turn = self.turn.lock().await;
        let mut pause = FIRST_LOOK;
        loop {
            if let Ok(found) = look(&self.memory) {
                return found;
            }
            // A budget does not tell when memory is given back.
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LAST_LOOK);
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
        assert_eq!(grown(30 * 1024), (2 * MIN, 10 * MIN as u64, 0));
        let memory = ConnectionBudget::new(5 * MIN as u64 - 1, &ProcessBudget::default());
        assert!(ReadRoom::new(&memory, 5).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_wait_for_memory_in_the_order_in_which_they_came() {
        let memory = ConnectionBudget::new(2 * MIN as u64, &ProcessBudget::default());
        let rooms = Rooms::new(&memory);
        let mut waiting = Vec::new();
        let held = memory.charge(MIN as u64).unwrap();
        let (begun, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..3 {
            let (rooms, begun) = (rooms.clone(), begun.clone());
            waiting.push(tokio::spawn(async move {
                // There is memory for what the others need, and not for the first.
                match number {
                    0 => drop(rooms.both().await),
                    _ => drop(rooms.one().await),
                }
                begun.send(number).unwrap();
            }));
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(order.try_recv().is_err());
        assert_eq!(memory.held(), MIN as u64, "those that wait hold nothing");
        drop(held);
        for task in waiting {
            tokio::time::timeout(2 * LAST_LOOK, task).await.expect("memory is looked for often").unwrap();
        }
        assert_eq!([(); 3].map(|()| order.try_recv().unwrap()), [0, 1, 2]);
        assert_eq!(memory.held(), 0);
    }

    /// One that is given up leaves its turn to the next.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_waits_no_more_holds_nobody_up() {
        let memory = ConnectionBudget::new(MIN as u64, &ProcessBudget::default());
        let rooms = Rooms::new(&memory);
        let first = rooms.clone();
        let gone = tokio::spawn(async move { drop(first.both().await) });
        tokio::task::yield_now().await;
        assert!(tokio::time::timeout(Duration::from_secs(1), rooms.one()).await.is_err());
        gone.abort();
        let found = tokio::time::timeout(LAST_LOOK, rooms.one()).await;
        assert_eq!((found.is_ok(), memory.held()), (true, MIN as u64));
    }
}
