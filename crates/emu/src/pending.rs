//! Packets that wait for their departure. Bounded in bytes; buffers are reused.

use std::{cmp::Reverse, collections::BinaryHeap};

use netem::Ecn;
use units::Instant;

use crate::clients::Place;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// A packet that waits for its time.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) due: Instant,
    pub(crate) direction: Direction,
    pub(crate) client: Place,
    pub(crate) ecn: Ecn,
    pub(crate) payload: Vec<u8>,
}

/// Buffers kept for later; more would only hold memory after a burst.
const SPARE_BUFFERS: usize = 4096;
/// Buffers larger than this are freed, not reused.
const SPARE_SIZE: usize = 4096;

#[derive(Debug)]
pub(crate) struct Pending {
    /// (due, order of entry, place in `packets`).
    heap: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    entered: u64,
    packets: Vec<Option<Packet>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    bytes: u64,
    max_bytes: u64,
}

impl Pending {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            heap: BinaryHeap::new(),
            entered: 0,
            packets: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            bytes: 0,
            max_bytes,
        }
    }

    /// A buffer with a copy of `payload`; `None` when that would be too much.
    pub(crate) fn copy(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        if self.bytes + payload.len() as u64 > self.max_bytes {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(payload);
        Some(buffer)
    }

    pub(crate) fn push(&mut self, packet: Packet) {
        self.bytes += packet.payload.len() as u64;
        let due = packet.due;
        let place = match self.free.pop() {
            Some(place) => {
                self.packets[place as usize] = Some(packet);
                place
            }
            None => {
                self.packets.push(Some(packet));
                // At least one byte of bookkeeping each: memory ends long before 2^32 packets.
                u32::try_from(self.packets.len() - 1).expect("fewer than 2^32 packets")
            }
        };
        self.heap.push(Reverse((due, self.entered, place)));
        self.entered += 1;
    }

    /// Time at which the next packet is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.0.0)
    }

    /// Takes out the next packet if its time has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Packet> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse((_, _, place)) = self.heap.pop()?;
        self.free.push(place);
        let packet = self.packets[place as usize].take()?;
        self.bytes -= packet.payload.len() as u64;
        Some(packet)
    }

    /// Takes a packet's buffer back.
    pub(crate) fn recycle(&mut self, payload: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && payload.capacity() <= SPARE_SIZE {
            self.spare.push(payload);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}
