//! Received stream data that the application has not read.
//!
//! Data in order is a queue of the packets' own buffers, without copy and without allocation. Data ahead of a hole waits in a map. Each
//! byte is kept once, whatever overlaps.
//!
//! A slice of a packet pins the whole buffer that was received with it, tens of kilobytes. The application usually reads at once, so slices
//! are acceptable while they are few or fill their buffers ([`Pins`]). Other data is copied into blocks that grow with their content.
//! Adjacent blocks ahead of a hole are merged from time to time, and the number of holes has a limit.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{queue::Queue, ranges::RangeSet};
use crate::{
    memory::allocation,
    pins::{Pin, Pins},
};

/// A block does not grow further than this, in bytes.
const BLOCK: usize = 16 << 10;
/// Holes in all streams of a connection together. 32 MiB in packets of 1452 bytes, every tenth lost, have 2300.
pub(super) const HOLES_MAX: usize = 8192;
/// Pieces ahead of a hole that are not worth merging, per stream.
const PIECES: usize = 256;
/// Bytes of capacity that empty queues of all streams may keep together: an application that reads at once needs them again soon.
const QUEUES_KEPT: usize = 64 << 10;
/// Memory of an entry of the map ahead of a hole, in bytes: nodes have eleven places, of which at least five are in use.
const AHEAD: usize = (size_of::<Piece>() + size_of::<u64>()) * 11 / 5;

/// Memory and holes of all streams of a connection together.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// The buffers that slices are of.
    pins: Pins,
    /// Ranges received ahead of a hole.
    pub(super) holes: usize,
    /// Bytes not read yet.
    pub(super) bytes: u64,
    /// Received bytes that were discarded before they were read.
    pub(super) thrown_away: u64,
    /// Bytes of the allocations of copies.
    copies: usize,
    /// Bytes of the places in queues and lists of ranges, used or not.
    queues: usize,
    /// Pieces ahead of a hole.
    ahead: usize,
}

impl Holdings {
    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.pins.shrink();
    }

    /// Data that is inserted from here on lies in another received buffer, of `size` bytes, of which `used` carry what arrived.
    #[inline]
    pub(super) fn next_buffer(&mut self, size: usize, used: usize) {
        self.pins.next_buffer(size, used);
    }

    /// Bytes that buffers may have beyond their slices.
    pub(super) fn set_slack(&mut self, bytes: u64) {
        self.pins.set_slack(bytes);
    }

    /// Returns whether slices pin buffers for too little data: [`Assembler::compact`] is due.
    #[inline]
    pub(super) fn is_wasteful(&self) -> bool {
        self.pins.is_wasteful()
    }

    /// Bytes of memory held, received buffers included.
    #[inline]
    pub(super) fn memory(&self) -> u64 {
        self.pins.pinned() + self.heap() as u64
    }

    /// Bytes of heap in use beside received buffers.
    #[inline]
    pub(super) fn heap(&self) -> usize {
        self.pins.heap() + self.copies + self.queues + self.ahead * AHEAD
    }
}

#[derive(Debug)]
enum Data {
    /// Part of a received buffer.
    Slice(Bytes, Pin),
    /// Unread rest of a copy, and the size of the copy in bytes.
    Copied(Bytes, u32),
    /// A copy that can grow.
    Block(Vec<u8>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::Slice(bytes, _) | Self::Copied(bytes, _) => bytes.len(),
            Self::Block(bytes) => bytes.len(),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Slice(bytes, _) | Self::Copied(bytes, _) => bytes,
            Self::Block(bytes) => bytes,
        }
    }

    /// Bytes of the allocation of a copy.
    fn allocated(&self) -> usize {
        match self {
            Self::Slice(..) => 0,
            Self::Copied(_, size) => allocation(*size as usize),
            Self::Block(bytes) => allocation(bytes.capacity()),
        }
    }
}

#[derive(Debug)]
struct Piece {
    offset: u64,
    data: Data,
}

impl Piece {
    /// Takes data, whose place needs no memory of its own when `inline`.
    fn new(offset: u64, data: Bytes, inline: bool, held: &mut Holdings) -> Self {
        held.bytes += data.len() as u64;
        let data = match held.pins.pin(data.len(), inline) {
            Some(pin) => Data::Slice(data, pin),
            None => {
                let block = data.to_vec();
                held.copies += allocation(block.capacity());
                Data::Block(block)
            }
        };
        Self { offset, data }
    }

    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// Appends a neighbour when both are copies and one block can hold them.
    fn absorb(&mut self, next: &Piece, held: &mut Holdings) -> bool {
        let adjacent = self.end() == next.offset;
        match &mut self.data {
            Data::Block(block)
                if adjacent && !matches!(next.data, Data::Slice(..)) && block.len() + next.data.len() <= BLOCK =>
            {
                let (before, needed) = (block.capacity(), block.len() + next.data.len());
                if needed > before {
                    block.reserve_exact((2 * before).clamp(needed, BLOCK) - block.len());
                }
                block.extend_from_slice(next.data.as_slice());
                held.copies += allocation(block.capacity());
                held.copies -= allocation(before) + next.data.allocated();
                true
            }
            _ => false,
        }
    }

    /// Takes at most `max` bytes off the front; true if nothing is left.
    #[inline]
    fn take(&mut self, max: usize, held: &mut Holdings) -> (u64, Bytes, bool) {
        let offset = self.offset;
        let (taken, emptied) = match &mut self.data {
            Data::Slice(bytes, pin) => {
                let taken = if bytes.len() <= max { std::mem::take(bytes) } else { bytes.split_to(max) };
                let emptied = bytes.is_empty();
                held.pins.release(*pin, taken.len(), emptied);
                (taken, emptied)
            }
            Data::Copied(..) | Data::Block(_) => self.take_copied(max, held),
        };
        self.offset += taken.len() as u64;
        held.bytes -= taken.len() as u64;
        (offset, taken, emptied)
    }

    #[cold]
    fn take_copied(&mut self, max: usize, held: &mut Holdings) -> (Bytes, bool) {
        held.copies -= self.data.allocated();
        if let Data::Block(block) = &mut self.data {
            let bytes = Bytes::from(std::mem::take(block).into_boxed_slice());
            let size = bytes.len() as u32;
            self.data = Data::Copied(bytes, size);
        }
        let Data::Copied(bytes, size) = &mut self.data else { unreachable!("a slice is no copy") };
        if bytes.len() <= max {
            return (std::mem::take(bytes), true);
        }
        let taken = bytes.split_to(max);
        // The rest must not keep all of it. Halves make that cheap.
        if bytes.len() <= *size as usize / 2 {
            *bytes = Bytes::copy_from_slice(bytes);
            *size = bytes.len() as u32;
        }
        held.copies += self.data.allocated();
        (taken, false)
    }

    /// Throws away all bytes from `at` on, which is behind the first.
    fn shorten(&mut self, at: u64, held: &mut Holdings) {
        let keep = (at - self.offset) as usize;
        let cut = self.data.len().saturating_sub(keep);
        held.bytes -= cut as u64;
        held.thrown_away += cut as u64;
        match &mut self.data {
            Data::Slice(bytes, pin) => {
                held.pins.release(*pin, cut, false);
                bytes.truncate(keep);
            }
            Data::Copied(bytes, _) => bytes.truncate(keep),
            Data::Block(block) => block.truncate(keep),
        }
    }

    /// Releases the memory of a piece that is not read any more.
    fn drop_unread(self, held: &mut Holdings) {
        held.bytes -= self.data.len() as u64;
        held.thrown_away += self.data.len() as u64;
        held.copies -= self.data.allocated();
        if let Data::Slice(bytes, pin) = &self.data {
            held.pins.release(*pin, bytes.len(), true);
        }
    }

    /// Copies what pins a buffer for little.
    fn compact(&mut self, held: &mut Holdings) {
        if let Data::Slice(bytes, pin) = &self.data
            && held.pins.is_poor(*pin)
        {
            let block = bytes.to_vec();
            held.pins.release(*pin, bytes.len(), true);
            held.copies += allocation(block.capacity());
            self.data = Data::Block(block);
        }
    }
}

/// A stream's data between the network and the application.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// Not read, with everything below received.
    ready: Queue<Piece>,
    /// Offset below which all bytes were received.
    prefix: u64,
    /// Not read, beyond the prefix, by offset.
    ahead: BTreeMap<u64, Piece>,
    /// Received beyond the prefix, read or not.
    received: RangeSet,
    /// Bytes handed to the application.
    read: u64,
    /// Size of `ahead` at which it is merged.
    merge_at: usize,
}

impl Assembler {
    /// Offset below which all bytes were received.
    #[inline]
    pub(super) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Bytes handed to the application.
    #[inline]
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Returns whether an ordered read would return data.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether an unordered read would return data.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.ready.is_empty() || !self.ahead.is_empty()
    }

    /// Takes data; what was there already stays. False when the holes are too many.
    #[inline]
    pub(super) fn insert(&mut self, offset: u64, mut data: Bytes, held: &mut Holdings) -> bool {
        let end = offset + data.len() as u64;
        if offset > self.prefix {
            return self.insert_ahead(offset, data, held);
        }
        if end <= self.prefix {
            return true;
        }
        if offset < self.prefix {
            bytes::Buf::advance(&mut data, (self.prefix - offset) as usize);
        }
        if self.received.is_empty() {
            self.push_ready(self.prefix, data, held);
            self.prefix = end;
            return true;
        }
        self.close_hole(data, held)
    }

    #[inline]
    fn push_ready(&mut self, offset: u64, data: Bytes, held: &mut Holdings) {
        // The first piece lies in the stream itself, and most messages are no longer.
        let piece = Piece::new(offset, data, self.ready.is_empty(), held);
        self.append_ready(piece, held);
    }

    #[inline]
    fn append_ready(&mut self, piece: Piece, held: &mut Holdings) {
        // A slice is never merged, so the usual case ends here.
        if !matches!(piece.data, Data::Slice(..))
            && let Some(last) = self.ready.back_mut()
            && last.absorb(&piece, held)
        {
            return;
        }
        let before = self.ready.heap();
        self.ready.push_back(piece);
        held.queues += self.ready.heap() - before;
    }

    /// Data at the prefix while there is more beyond it.
    #[cold]
    fn close_hole(&mut self, data: Bytes, held: &mut Holdings) -> bool {
        let end = self.prefix + data.len() as u64;
        self.fill_gaps(self.prefix, data, held);
        self.prefix = end;
        while let Some((from, to)) = self.received.first() {
            if from > self.prefix {
                break;
            }
            self.prefix = self.prefix.max(to);
            self.received.pop_first();
            held.holes -= 1;
        }
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() >= self.prefix {
                break;
            }
            let piece = entry.remove();
            held.ahead -= 1;
            self.append_ready(piece, held);
        }
        self.shrink_received(held);
        true
    }

    #[cold]
    fn insert_ahead(&mut self, offset: u64, data: Bytes, held: &mut Holdings) -> bool {
        if data.is_empty() {
            return true;
        }
        let end = offset + data.len() as u64;
        self.fill_gaps(offset, data, held);
        let (before, heap) = (self.received.len(), self.received.heap());
        self.received.insert(offset, end);
        held.holes = held.holes + self.received.len() - before;
        held.queues = held.queues + self.received.heap() - heap;
        if self.ahead.len() > PIECES.max(self.merge_at) {
            self.merge(held);
        }
        held.holes <= HOLES_MAX
    }

    /// Inserts the new parts of `data` into `ahead`.
    fn fill_gaps(&mut self, offset: u64, data: Bytes, held: &mut Holdings) {
        let end = offset + data.len() as u64;
        let mut from = offset;
        while let Some((start, stop)) = self.received.first_gap(from, end) {
            let part = if (start, stop) == (offset, end) {
                data.clone()
            } else {
                data.slice((start - offset) as usize..(stop - offset) as usize)
            };
            let piece = Piece::new(start, part, false, held);
            let merged = !matches!(piece.data, Data::Slice(..))
                && self.ahead.range_mut(..start).next_back().is_some_and(|(_, before)| before.absorb(&piece, held));
            if !merged {
                self.ahead.insert(start, piece);
                held.ahead += 1;
            }
            from = stop;
        }
    }

    /// Joins neighbours that arrived in an order in which they could not be appended to each other.
    fn merge(&mut self, held: &mut Holdings) {
        let before = self.ahead.len();
        let mut merged: Vec<(u64, Piece)> = Vec::new();
        for (offset, piece) in std::mem::take(&mut self.ahead) {
            let joined =
                piece.data.len() < BLOCK / 4 && merged.last_mut().is_some_and(|(_, last)| last.absorb(&piece, held));
            if !joined {
                merged.push((offset, piece));
            }
        }
        held.ahead -= before - merged.len();
        // Doubling keeps the cost of merging in proportion to what arrives.
        self.merge_at = 2 * merged.len() + PIECES;
        self.ahead = merged.into_iter().collect();
    }

    /// Next bytes in order, at most `max`; bytes that were read out of order are skipped.
    #[inline]
    pub(super) fn read_ordered(&mut self, max: usize, held: &mut Holdings) -> Option<(u64, Bytes)> {
        let (offset, data, emptied) = self.ready.front_mut()?.take(max, held);
        if emptied {
            self.ready.pop_front();
            if self.ready.is_empty() && held.queues > QUEUES_KEPT {
                self.drop_queue(held);
            }
        }
        self.read += data.len() as u64;
        Some((offset, data))
    }

    /// Any bytes, at most `max` of them.
    pub(super) fn read_unordered(&mut self, max: usize, held: &mut Holdings) -> Option<(u64, Bytes)> {
        if let Some(chunk) = self.read_ordered(max, held) {
            return Some(chunk);
        }
        let (_, mut piece) = self.ahead.pop_first()?;
        let (offset, data, emptied) = piece.take(max, held);
        if emptied {
            held.ahead -= 1;
        } else {
            self.ahead.insert(piece.offset, piece);
        }
        self.read += data.len() as u64;
        Some((offset, data))
    }

    /// Gives the memory of the empty queue back.
    #[cold]
    fn drop_queue(&mut self, held: &mut Holdings) {
        held.queues -= self.ready.heap();
        self.ready = Queue::default();
    }

    /// Gives memory of ranges back that are not there any more.
    fn shrink_received(&mut self, held: &mut Holdings) {
        let heap = self.received.heap();
        self.received.shrink();
        held.queues = held.queues + self.received.heap() - heap;
    }

    /// Copies the slices that pin buffers for little.
    pub(super) fn compact(&mut self, held: &mut Holdings) {
        for piece in self.ready.iter_mut().chain(self.ahead.values_mut()) {
            piece.compact(held);
        }
    }

    /// Throws away what was not read and gives the memory back.
    pub(super) fn clear(&mut self, held: &mut Holdings) {
        held.holes -= self.received.len();
        held.ahead -= self.ahead.len();
        held.queues -= self.queues();
        while let Some(piece) = self.ready.pop_front() {
            piece.drop_unread(held);
        }
        for piece in std::mem::take(&mut self.ahead).into_values() {
            piece.drop_unread(held);
        }
        *self = Self { prefix: self.prefix, read: self.read, ..Self::default() };
    }

    /// Discards unread data between `at` and `end`, beyond which nothing was received. Returns how many bytes in between were not read,
    /// received or not. The work is proportional to the discarded data.
    pub(super) fn truncate(&mut self, at: u64, end: u64, held: &mut Holdings) -> u64 {
        let thrown_away = held.thrown_away;
        let mut missing = end.saturating_sub(at.max(self.prefix));
        let (ranges, heap) = (self.received.len(), self.received.heap());
        while let Some((from, to)) = self.received.last().filter(|(_, to)| *to > at) {
            self.received.remove(from.max(at), to);
            missing -= to - from.max(at);
        }
        self.received.shrink();
        held.holes = held.holes + self.received.len() - ranges;
        held.queues = held.queues + self.received.heap() - heap;
        while let Some(entry) = self.ahead.last_entry().filter(|entry| *entry.key() >= at) {
            entry.remove().drop_unread(held);
            held.ahead -= 1;
        }
        while self.ready.back_mut().is_some_and(|last| last.offset >= at) {
            self.ready.pop_back().expect("there is a last one").drop_unread(held);
        }
        if self.ready.is_empty() {
            self.drop_queue(held);
        }
        let last = self.ahead.last_entry().map(std::collections::btree_map::OccupiedEntry::into_mut);
        if let Some(last) = last.or_else(|| self.ready.back_mut()) {
            last.shorten(at, held);
        }
        missing + held.thrown_away - thrown_away
    }

    /// Bytes of the places in queues and lists of ranges.
    fn queues(&self) -> usize {
        self.ready.heap() + self.received.heap()
    }

    /// No data will come or be read any more: the empty queues go, too.
    pub(super) fn finish(&mut self, held: &mut Holdings) {
        held.queues -= self.queues();
        (self.ready, self.received) = Default::default();
    }
}

#[cfg(test)]
mod tests;
