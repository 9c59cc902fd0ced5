//! Storage of the streams: a dense array of slots, a map from IDs to slots, and lists that run through the slots.
//!
//! Every iteration is over a list of exactly the streams that need it, so a thousand idle streams cost only their memory. The lists are
//! threaded through the slots: joining and leaving is a few writes, without allocation, and a removed stream leaves no stale entry.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    ops::{Index, IndexMut},
};

use wire::StreamId;

use super::stream::Stream;

/// Index of a stream in the slab.
pub(super) type Slot = u32;

/// No slot.
const NONE: Slot = Slot::MAX;
/// In [`Link::prev`]: not in the list.
const DETACHED: Slot = Slot::MAX - 1;

/// Entries of the cache in front of the map, a power of two.
const CACHED: usize = 8;

/// Multiplies: stream IDs are small numbers in a row, of which the peer may choose which stay alive, but never more than
/// its stream limit at once.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        let product = u128::from(id) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// All live streams.
#[derive(Debug)]
pub(super) struct Slab {
    slots: Vec<Option<Stream>>,
    free: Vec<Slot>,
    by_id: HashMap<u64, Slot, BuildHasherDefault<IdHasher>>,
    /// Streams used a moment ago. `NONE` marks an empty entry.
    cache: [(u64, Slot); CACHED],
}

impl Slab {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_id: HashMap::default(), cache: [(0, NONE); CACHED] }
    }

    /// Number of live streams.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[inline]
    fn cache_index(id: StreamId) -> usize {
        // Neighbours of one kind fall into different entries, and so do the first streams of different kinds.
        (id.0 >> 2).wrapping_add((id.0 & 3) << 1) as usize % CACHED
    }

    /// The slot of a live stream.
    #[inline]
    pub(super) fn find(&mut self, id: StreamId) -> Option<Slot> {
        let cached = &mut self.cache[Self::cache_index(id)];
        if cached.0 == id.0 && cached.1 != NONE {
            return Some(cached.1);
        }
        let slot = *self.by_id.get(&id.0)?;
        *cached = (id.0, slot);
        Some(slot)
    }

    /// Gives a stream a slot.
    pub(super) fn insert(&mut self, stream: Stream) -> Slot {
        let id = stream.id;
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(stream);
            slot
        } else {
            self.slots.push(Some(stream));
            (self.slots.len() - 1) as Slot
        };
        assert!(slot < DETACHED, "more streams than slots have numbers");
        self.by_id.insert(id.0, slot);
        self.cache[Self::cache_index(id)] = (id.0, slot);
        slot
    }

    /// Frees a slot. The stream is in no list any more.
    pub(super) fn remove(&mut self, slot: Slot) {
        let Some(stream) = self.slots[slot as usize].take() else { return };
        debug_assert!(stream.links.iter().all(|link| link.prev == DETACHED));
        self.by_id.remove(&stream.id.0);
        let cached = &mut self.cache[Self::cache_index(stream.id)];
        if cached.0 == stream.id.0 {
            cached.1 = NONE;
        }
        if slot as usize + 1 == self.slots.len() {
            self.slots.pop();
        } else {
            self.free.push(slot);
        }
    }

    /// Returns memory that is not in use. Slots keep their numbers. Not done when the last stream goes: where requests come and
    /// go, that happens all the time.
    pub(super) fn shrink(&mut self) {
        while self.slots.pop_if(|slot| slot.is_none()).is_some() {}
        let len = self.slots.len();
        self.free.retain(|slot| (*slot as usize) < len);
        self.slots.shrink_to_fit();
        self.free.shrink_to_fit();
        self.by_id.shrink_to_fit();
    }

    /// All live streams, in the order of their slots. For rare events of a connection.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let live: Vec<Slot> = (0..self.slots.len()).filter(|i| self.slots[*i].is_some()).map(|i| i as Slot).collect();
        live.into_iter()
    }

    /// Bytes of heap in use for the slots and for sending, without the application's own data.
    pub(super) fn heap(&self) -> usize {
        self.table() + self.slots.iter().flatten().map(Stream::heap).sum::<usize>()
    }

    /// Bytes of heap in use for the slots, used or not.
    #[inline]
    pub(super) fn table(&self) -> usize {
        // A table entry is the pair and one control byte, at a load of at most 7/8.
        let map = self.by_id.capacity() * 8 / 7 * (size_of::<(u64, Slot)>() + 1);
        self.slots.capacity() * size_of::<Option<Stream>>() + self.free.capacity() * size_of::<Slot>() + map
    }
}

impl Index<Slot> for Slab {
    type Output = Stream;

    #[inline]
    fn index(&self, slot: Slot) -> &Stream {
        self.slots[slot as usize].as_ref().expect("slots in lists and in the map are live")
    }
}

impl IndexMut<Slot> for Slab {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut Stream {
        self.slots[slot as usize].as_mut().expect("slots in lists and in the map are live")
    }
}

/// Neighbours of a stream in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    prev: Slot,
    next: Slot,
}

impl Link {
    pub(super) const DETACHED: Self = Self { prev: DETACHED, next: NONE };
}

/// Number of lists a stream can be in.
pub(super) const LISTS: usize = 4;
/// Streams with control frames to send.
pub(super) const CONTROL: usize = 0;
/// Streams that can send without connection credit: lost data, or a FIN alone.
pub(super) const REPAIR: usize = 1;
/// Incremental streams with new data, in turn.
pub(super) const TURN: usize = 2;
/// Writers that wait for space in the send buffer.
pub(super) const WRITERS: usize = 3;

/// A first-in-first-out list through the links number `L` of the streams.
#[derive(Debug)]
pub(super) struct Queue<const L: usize> {
    head: Slot,
    tail: Slot,
}

impl<const L: usize> Queue<L> {
    pub(super) const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    #[inline]
    pub(super) fn front(&self) -> Option<Slot> {
        (self.head != NONE).then_some(self.head)
    }

    /// The stream after `slot`, which is in the list.
    pub(super) fn after(&self, slab: &Slab, slot: Slot) -> Option<Slot> {
        let next = slab[slot].links[L].next;
        (next != NONE).then_some(next)
    }

    #[inline]
    pub(super) fn contains(stream: &Stream) -> bool {
        stream.links[L].prev != DETACHED
    }

    /// Appends a stream; one in the list keeps its place.
    #[inline]
    pub(super) fn push_back(&mut self, slab: &mut Slab, slot: Slot) {
        if Self::contains(&slab[slot]) {
            return;
        }
        slab[slot].links[L] = Link { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = slot,
            tail => slab[tail].links[L].next = slot,
        }
        self.tail = slot;
    }

    /// Removes a stream, if it is in the list.
    #[inline]
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        let Link { prev, next } = std::mem::replace(&mut slab[slot].links[L], Link::DETACHED);
        match prev {
            DETACHED => return,
            NONE => self.head = next,
            prev => slab[prev].links[L].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => slab[next].links[L].prev = prev,
        }
    }

    /// Moves the first stream to the end.
    #[inline]
    pub(super) fn rotate(&mut self, slab: &mut Slab) {
        if self.head != self.tail {
            let head = self.head;
            self.remove(slab, head);
            self.push_back(slab, head);
        }
    }
}
