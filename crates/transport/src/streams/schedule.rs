//! Scheduling of streams (RFC 9218 §10).
//!
//! By urgency first. Within one urgency, retransmissions are sent before new data (RFC 9000 §13.3). New data of non-incremental streams is
//! sent in the order of stream IDs, incremental streams take turns, and the two kinds take turns with each other, so that neither starves
//! the other.

use std::collections::BTreeMap;

use super::slab::{Queue, REPAIR, Slab, Slot, TURN};

/// Bytes a stream sends before the next one takes its turn. Some packets long, because a change of stream costs both
/// sides; short enough that a turn takes less than 7 ms at 10 Mbit/s.
const QUANTUM: u32 = 8 << 10;

/// Number of urgencies.
const LEVELS: usize = 8;

/// Kind of data of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Lost data, or a FIN without data: needs no credit of the connection.
    Repair,
    New,
}

#[derive(Debug)]
struct Level {
    repair: Queue<REPAIR>,
    /// Non-incremental streams with new data, by stream ID.
    sequential: BTreeMap<u64, Slot>,
    /// Incremental ones.
    turn: Queue<TURN>,
    /// Bytes left of the running turn.
    left: u32,
    /// The running turn belongs to the non-incremental streams.
    sequential_turn: bool,
}

impl Level {
    fn has_new(&self) -> bool {
        !self.sequential.is_empty() || !self.turn.is_empty()
    }

    fn sequential_now(&self) -> bool {
        !self.sequential.is_empty() && (self.sequential_turn || self.turn.is_empty())
    }
}

/// The streams that can send.
#[derive(Debug)]
pub(super) struct Schedule {
    levels: [Level; LEVELS],
    /// Levels with data to repair, as bits.
    repair: u8,
    /// Levels with new data, as bits.
    new: u8,
}

impl Schedule {
    pub(super) fn new() -> Self {
        let level = || Level {
            repair: Queue::new(),
            sequential: BTreeMap::new(),
            turn: Queue::new(),
            left: QUANTUM,
            sequential_turn: false,
        };
        Self { levels: std::array::from_fn(|_| level()), repair: 0, new: 0 }
    }

    /// Returns whether any stream has data to send that needs no credit of the connection.
    #[inline]
    pub(super) fn has_repair(&self) -> bool {
        self.repair != 0
    }

    /// Returns whether any stream has new data that its own limit allows.
    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.new != 0
    }

    /// The stream that sends next; new data only when `credit`.
    #[inline]
    pub(super) fn pick(&self, credit: bool) -> Option<(Slot, Kind)> {
        let ready = self.repair | if credit { self.new } else { 0 };
        if ready == 0 {
            return None;
        }
        // RFC 9218 §10 RECOMMENDED-1: the most urgent ones first
        let urgency = ready.trailing_zeros() as usize;
        let level = &self.levels[urgency];
        if self.repair & 1 << urgency != 0 {
            return Some((level.repair.front()?, Kind::Repair));
        }
        // RFC 9218 §10 RECOMMENDED-2, SHOULD-1, SHOULD-2: of those, one after the other, or in turns
        let slot = if level.sequential_now() { *level.sequential.first_key_value()?.1 } else { level.turn.front()? };
        Some((slot, Kind::New))
    }

    /// Notes that the picked stream sent `bytes` of new data, and passes the turn on when it has ended.
    #[inline]
    pub(super) fn sent(&mut self, slab: &mut Slab, slot: Slot, bytes: u32) {
        let level = &mut self.levels[usize::from(slab[slot].priority.urgency)];
        level.left = level.left.saturating_sub(bytes);
        if level.left == 0 {
            level.left = QUANTUM;
            if level.sequential_now() {
                level.sequential_turn = false;
            } else {
                level.turn.rotate(slab);
                level.sequential_turn = !level.sequential.is_empty();
            }
        }
    }

    /// Updates a stream's places in the lists for the data that it has to send. Called after every change of its sending part.
    #[inline]
    pub(super) fn refresh(&mut self, slab: &mut Slab, slot: Slot) {
        let stream = &slab[slot];
        let (repair, new) =
            if stream.held_back { (false, false) } else { (stream.send.has_repair(), stream.send.has_new()) };
        if repair == Queue::<REPAIR>::contains(stream) && new == stream.scheduled {
            return;
        }
        self.place(slab, slot, repair, new);
    }

    fn place(&mut self, slab: &mut Slab, slot: Slot, repair: bool, new: bool) {
        let stream = &mut slab[slot];
        let (id, priority) = (stream.id.0, stream.priority);
        let was_new = std::mem::replace(&mut stream.scheduled, new);
        let level = &mut self.levels[usize::from(priority.urgency)];
        if repair {
            level.repair.push_back(slab, slot);
        } else {
            level.repair.remove(slab, slot);
        }
        if new != was_new {
            match (priority.incremental, new) {
                (true, true) => level.turn.push_back(slab, slot),
                // What is left of its turn goes to the next: starting anew would starve the other kind when all are short.
                (true, false) => level.turn.remove(slab, slot),
                (false, true) => {
                    level.sequential.insert(id, slot);
                }
                (false, false) => {
                    level.sequential.remove(&id);
                }
            }
        }
        let bit = 1 << priority.urgency;
        self.repair = if level.repair.is_empty() { self.repair & !bit } else { self.repair | bit };
        self.new = if level.has_new() { self.new | bit } else { self.new & !bit };
    }

    /// Bytes of heap in use: an entry of a tree is a key, a slot and its share of a node.
    pub(super) fn heap(&self) -> usize {
        self.levels.iter().map(|level| level.sequential.len() * 3 * size_of::<u64>()).sum()
    }

    /// Removes a stream from all lists, before its priority changes or it is removed.
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        let stream = &slab[slot];
        if stream.scheduled || Queue::<REPAIR>::contains(stream) {
            self.place(slab, slot, false, false);
        }
    }
}
