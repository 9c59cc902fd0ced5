//! Written stream data that the peer has not acknowledged: the application's own buffers, in order, not copied.
//!
//! Acknowledgements nearly always arrive in the order of sending, so the buffer is a queue whose front is released. Data acknowledged
//! behind a hole is a set of ranges, empty without loss.

use bytes::Bytes;
use wire::Writer;

use super::{queue::Queue, ranges::RangeSet};

/// With more chunks than this, small writes are gathered: a chunk costs 40 bytes and pins a buffer of the application.
const GATHER_CHUNKS: usize = 16;
/// Largest write that is gathered, in bytes.
const GATHER_WRITE: usize = 512;
/// Largest chunk that gathering makes, in bytes.
const GATHER_CHUNK: usize = 4096;

#[derive(Debug)]
enum Data {
    App(Bytes),
    Gathered(Vec<u8>),
}

impl Data {
    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::App(bytes) => bytes,
            Self::Gathered(bytes) => bytes,
        }
    }

    /// Keeps the first `len` bytes, and frees the memory of the others if these were the greater part.
    fn shorten(&mut self, len: usize) {
        let slice = self.as_slice();
        if len <= slice.len() / 2 {
            *self = Self::App(Bytes::copy_from_slice(&slice[..len]));
        } else {
            match self {
                Self::App(bytes) => bytes.truncate(len),
                Self::Gathered(bytes) => bytes.truncate(len),
            }
        }
    }
}

/// A piece of the stream. It ends where the next one starts; its data is empty once all of it is acknowledged.
#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Data,
}

/// The bytes of a stream from the first unacknowledged to the last written.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    chunks: Queue<Chunk>,
    /// Offset below which all bytes are acknowledged.
    acked: u64,
    /// Acknowledged above that, behind a hole.
    acked_ahead: RangeSet,
    /// Offset of the next write.
    end: u64,
    /// Place of the chunk in which the last copy ended: the next copy most likely starts in it.
    cursor: usize,
}

impl SendBuffer {
    /// Offset behind the last byte written.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns whether every byte written was acknowledged.
    #[inline]
    pub(super) fn is_all_acked(&self) -> bool {
        self.acked == self.end
    }

    /// Appends what the application wrote.
    pub(super) fn push(&mut self, data: Bytes) {
        let start = self.end;
        self.end += data.len() as u64;
        if self.chunks.len() > GATHER_CHUNKS && data.len() <= GATHER_WRITE {
            if let Some(Chunk { data: Data::Gathered(last), .. }) = self.chunks.back_mut()
                && !last.is_empty()
                && last.len() + data.len() <= GATHER_CHUNK
            {
                last.extend_from_slice(&data);
            } else {
                self.chunks.push_back(Chunk { start, data: Data::Gathered(data.to_vec()) });
            }
        } else if !data.is_empty() {
            self.chunks.push_back(Chunk { start, data: Data::App(data) });
        }
    }

    /// Copies `len` bytes from `offset`, which are unacknowledged, into a packet.
    #[inline]
    pub(super) fn copy_to(&mut self, mut offset: u64, mut len: usize, w: &mut Writer<'_>) {
        if len == 0 {
            return;
        }
        let mut i = self.cursor;
        if !self.chunk_holds(i, offset) {
            i += 1;
            if !self.chunk_holds(i, offset) {
                i = self.chunks.partition_point(|chunk| chunk.start <= offset) - 1;
            }
        }
        while len > 0 {
            let chunk = &self.chunks[i];
            let rest = &chunk.data.as_slice()[(offset - chunk.start) as usize..];
            let n = rest.len().min(len);
            w.bytes(&rest[..n]);
            len -= n;
            offset += n as u64;
            if len > 0 {
                i += 1;
            }
        }
        self.cursor = i;
    }

    /// `len` bytes from `offset`, which are unacknowledged, if they lie in one piece.
    #[inline]
    pub(super) fn piece(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // Where the last copy ended, or right behind it: whatever goes elsewhere is copied.
        let i = [self.cursor, self.cursor + 1].into_iter().find(|i| self.chunk_holds(*i, offset))?;
        let chunk = &self.chunks[i];
        let from = (offset - chunk.start) as usize;
        chunk.data.as_slice().get(from..from + len)
    }

    #[inline]
    fn chunk_holds(&self, i: usize, offset: u64) -> bool {
        self.chunks
            .get(i)
            .is_some_and(|chunk| chunk.start <= offset && offset - chunk.start < chunk.data.as_slice().len() as u64)
    }

    /// Processes an acknowledgement of `start..end` and returns the number of newly acknowledged bytes.
    #[inline]
    pub(super) fn ack(&mut self, start: u64, end: u64) -> u64 {
        if start > self.acked {
            return self.ack_ahead(start, end);
        }
        if end <= self.acked {
            return 0;
        }
        let mut fresh = end - self.acked;
        self.acked = end;
        // Ranges behind the hole that just closed were counted when they were acknowledged.
        while let Some((from, to)) = self.acked_ahead.first() {
            if from > self.acked {
                break;
            }
            fresh -= to.min(self.acked) - from;
            self.acked = self.acked.max(to);
            self.acked_ahead.pop_first();
        }
        self.release_front();
        fresh
    }

    fn release_front(&mut self) {
        loop {
            let chunk_end = self.chunks.get(1).map_or(self.end, |next| next.start);
            if self.chunks.is_empty() || chunk_end > self.acked {
                break;
            }
            self.chunks.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
    }

    #[cold]
    fn ack_ahead(&mut self, start: u64, end: u64) -> u64 {
        let fresh = self.acked_ahead.insert(start, end);
        let Some((from, to)) = self.acked_ahead.containing(start) else { return fresh };
        // Only a chunk that holds some of the new bytes can have become complete.
        let first = self.chunks.partition_point(|chunk| chunk.start <= start).saturating_sub(1);
        for i in first..self.chunks.len() {
            let chunk_end = self.chunks.get(i + 1).map_or(self.end, |next| next.start);
            let chunk = &mut self.chunks[i];
            if chunk.start >= end {
                break;
            }
            if chunk.start >= from && chunk_end <= to {
                chunk.data = Data::App(Bytes::new());
            }
        }
        fresh
    }

    /// The first part of `start..end` that was not acknowledged.
    pub(super) fn first_unacked(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let start = start.max(self.acked);
        if start >= end {
            return None;
        }
        self.acked_ahead.first_gap(start, end)
    }

    /// Discards data at `at` and beyond; returns the number of unacknowledged bytes among it. Nothing is appended afterwards.
    pub(super) fn truncate(&mut self, at: u64) -> u64 {
        let at = at.max(self.acked);
        if at >= self.end {
            return 0;
        }
        let mut dropped = self.end - at;
        while let Some((from, to)) = self.acked_ahead.last().filter(|(_, to)| *to > at) {
            self.acked_ahead.remove(from.max(at), to);
            dropped -= to - from.max(at);
        }
        while self.chunks.back_mut().is_some_and(|last| last.start >= at) {
            self.chunks.pop_back();
        }
        if let Some(last) = self.chunks.back_mut() {
            last.data.shorten((at - last.start) as usize);
        }
        self.end = at;
        self.cursor = 0;
        self.release_front();
        dropped
    }

    /// Throws everything away; the offsets stay.
    pub(super) fn clear(&mut self) {
        self.chunks = Queue::default();
        self.acked_ahead.clear();
        self.acked = self.end;
        self.cursor = 0;
    }

    /// Bytes of heap in use, without the application's own buffers.
    pub(super) fn heap(&self) -> usize {
        let gathered = |chunk: &Chunk| match &chunk.data {
            Data::Gathered(bytes) => bytes.capacity(),
            Data::App(_) => 0,
        };
        self.chunks.heap() + self.chunks.iter().map(gathered).sum::<usize>() + self.acked_ahead.heap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(buffer: &mut SendBuffer, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        buffer.copy_to(offset, len, &mut Writer::new(&mut bytes));
        bytes
    }

    fn numbers(from: u8, n: u8) -> Bytes {
        (from..from + n).collect::<Vec<_>>().into()
    }

    #[test]
    fn copies_across_chunks_and_back() {
        let mut buffer = SendBuffer::default();
        buffer.push(numbers(0, 5));
        buffer.push(Bytes::new());
        buffer.push(numbers(5, 3));
        buffer.push(numbers(8, 8));
        assert_eq!(copied(&mut buffer, 3, 7), [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(copied(&mut buffer, 10, 2), [10, 11]);
        assert_eq!(copied(&mut buffer, 0, 1), [0]);
        assert_eq!(copied(&mut buffer, 5, 11), (5..16).collect::<Vec<u8>>());
    }

    #[test]
    fn releases_what_is_acknowledged_also_behind_a_hole() {
        let mut buffer = SendBuffer::default();
        for i in 0..4 {
            buffer.push(numbers(i * 10, 10));
        }
        assert_eq!(buffer.ack(10, 15), 5);
        assert_eq!(buffer.ack(12, 25), 10);
        assert!(buffer.chunks[1].data.as_slice().is_empty(), "10..20 needs no memory");
        assert_eq!(buffer.first_unacked(0, 40), Some((0, 10)));
        assert_eq!(buffer.first_unacked(11, 30), Some((25, 30)));
        assert_eq!(copied(&mut buffer, 25, 10), (25..35).collect::<Vec<u8>>());
        assert_eq!(buffer.ack(0, 11), 10);
        assert_eq!(buffer.chunks.len(), 2);
        assert_eq!(buffer.ack(0, 40), 15);
        assert!(buffer.is_all_acked() && buffer.chunks.is_empty());
        buffer.push(numbers(40, 2));
        assert_eq!(copied(&mut buffer, 40, 2), [40, 41]);
    }

    #[test]
    fn what_is_cut_off_needs_no_memory() {
        let mut buffer = SendBuffer::default();
        for i in 0..4 {
            buffer.push(numbers(i * 10, 10));
        }
        assert_eq!(buffer.ack(12, 18) + buffer.ack(25, 35), 16);
        assert_eq!(buffer.truncate(14), 40 - 14 - 4 - 10, "what was acknowledged is not dropped again");
        assert_eq!((buffer.end(), buffer.chunks.len()), (14, 2));
        assert_eq!(buffer.first_unacked(0, 14), Some((0, 12)));
        assert_eq!(copied(&mut buffer, 8, 6), (8..14).collect::<Vec<u8>>());
        assert_eq!((buffer.truncate(14), buffer.truncate(20)), (0, 0));
        assert_eq!(buffer.ack(0, 11), 11);
        assert_eq!(buffer.truncate(3), 1, "not below what was acknowledged");
        assert!(buffer.is_all_acked() && buffer.chunks.is_empty());

        let big = Bytes::from(vec![1; 1000]);
        buffer.push(big.clone());
        assert_eq!(buffer.truncate(11 + 500), 500);
        assert!(big.is_unique(), "the smaller part is a copy");
        assert_eq!(copied(&mut buffer, 11, 500), [1; 500]);
    }

    #[test]
    fn many_small_writes_share_a_chunk() {
        let mut buffer = SendBuffer::default();
        let mut all = Vec::new();
        for i in 0..20_000u32 {
            buffer.push(Bytes::copy_from_slice(&[i as u8]));
            all.push(i as u8);
        }
        assert!(buffer.chunks.len() < 30, "{}", buffer.chunks.len());
        assert_eq!(copied(&mut buffer, 0, 20_000), all);
        assert_eq!(buffer.ack(0, 19_999), 19_999);
        assert_eq!(copied(&mut buffer, 19_999, 1), all[19_999..]);
    }
}
