//! Receive buffers for datagrams.
//!
//! A payload is passed to the application without a copy, as slices of its receive buffer, so a buffer can be reused only when the last
//! slice is dropped. Buffers in use are kept in the order of their use, and checked in that order: data that was read first is usually
//! dropped first.

use std::collections::VecDeque;

use bytes::BytesMut;

/// A read with GRO returns up to this many bytes.
pub(crate) const RECEIVE_BUFFER: usize = 64 * 1024;
/// Largest number of buffers in use that are remembered; the memory of others is freed with their last slice.
const REMEMBERED: usize = 64;
/// … without traffic: buffers of a flood are not kept. Between two reads of a busy socket this holds, too: with 64 requests in progress at the
/// gateway (HTTP/3, one worker) every fifth read needed a new buffer when 8 were remembered, and every thirtieth with 16.
const REMEMBERED_AT_REST: usize = 16;
/// Remembered buffers that are looked at before a new one is made.
const LOOKED_AT: usize = 4;

/// Owns the buffers of a socket.
#[derive(Default)]
pub(crate) struct ReceiveBuffers {
    /// Ready to be read into: `RECEIVE_BUFFER` bytes each.
    ready: Vec<BytesMut>,
    /// Remainders of buffers whose front was passed up, oldest first. Their bytes are not used; they keep a claim on the memory.
    out: VecDeque<BytesMut>,
}

impl ReceiveBuffers {
    /// `count` buffers to read into.
    pub(crate) fn ready(&mut self, count: usize) -> &mut [BytesMut] {
        while self.ready.len() < count {
            let buffer = self.reclaim().unwrap_or_else(|| BytesMut::zeroed(RECEIVE_BUFFER));
            self.ready.push(buffer);
        }
        &mut self.ready[..count]
    }

    /// Takes received data out of the buffers, in their order; the lengths are those of the reads.
    pub(crate) fn take(&mut self, lengths: impl ExactSizeIterator<Item = usize>) -> impl Iterator<Item = BytesMut> {
        let out = &mut self.out;
        self.ready.drain(..lengths.len()).zip(lengths).map(|(mut buffer, len)| {
            let payload = buffer.split_to(len);
            if out.len() == REMEMBERED {
                out.pop_front();
            }
            out.push_back(buffer);
            payload
        })
    }

    /// Frees buffers of a burst, when no more data arrives.
    pub(crate) fn rest(&mut self) {
        if self.out.len() > REMEMBERED_AT_REST {
            self.out.drain(..self.out.len() - REMEMBERED_AT_REST);
        }
    }

    /// A buffer of which no slice is left.
    fn reclaim(&mut self) -> Option<BytesMut> {
        for _ in 0..self.out.len().min(LOOKED_AT) {
            let mut buffer = self.out.pop_front()?;
            buffer.clear();
            if buffer.try_reclaim(RECEIVE_BUFFER) {
                return Some(initialised(buffer));
            }
            self.out.push_back(buffer);
        }
        None
    }
}

/// Makes the whole of a returned buffer readable again.
#[expect(unsafe_code, reason = "zeroing 64 KiB for each read costs as much as the kernel's copy into them")]
fn initialised(mut buffer: BytesMut) -> BytesMut {
    debug_assert!(buffer.capacity() >= RECEIVE_BUFFER);
    // SAFETY: a buffer is made zeroed, `RECEIVE_BUFFER` bytes long, and its memory is never exchanged for other:
    // `try_reclaim` does not allocate. It had been initialised as a whole when its front was split off, and a byte that
    // was initialised stays so.
    unsafe { buffer.set_len(RECEIVE_BUFFER) };
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(buffers: &mut ReceiveBuffers, value: u8, len: usize) -> BytesMut {
        let buffer = &mut buffers.ready(1)[0];
        assert_eq!(buffer.len(), RECEIVE_BUFFER);
        buffer[..len].fill(value);
        buffers.take([len].into_iter()).next().unwrap()
    }

    #[test]
    fn memory_comes_back_with_the_last_slice() {
        let mut buffers = ReceiveBuffers::default();
        let first = fill(&mut buffers, 1, 1000).freeze();
        let at = first.as_ptr();
        let slice = first.slice(10..20);
        drop(first);
        let second = fill(&mut buffers, 2, RECEIVE_BUFFER);
        assert_ne!(second.as_ptr(), at, "a slice is left");
        assert_eq!(slice[..], [1; 10]);
        drop(slice);
        // Both are free: the one that was let go first is first.
        drop(second);
        let mut places = [0; 2].map(|_| fill(&mut buffers, 3, 5).as_ptr());
        places.sort_unstable();
        assert!(places.contains(&at));
        assert_eq!(buffers.out.len() + buffers.ready.len(), 2, "no third buffer was made");
    }

    #[test]
    fn a_whole_buffer_comes_back_whole() {
        let mut buffers = ReceiveBuffers::default();
        for round in 0..10 {
            drop(fill(&mut buffers, round, RECEIVE_BUFFER));
            assert_eq!(buffers.out.len() + buffers.ready.len(), 1);
        }
    }

    #[test]
    fn what_is_kept_is_not_remembered_for_ever() {
        let mut buffers = ReceiveBuffers::default();
        let kept: Vec<_> = (0..2 * REMEMBERED).map(|i| fill(&mut buffers, i as u8, 100)).collect();
        assert_eq!(buffers.out.len(), REMEMBERED);
        buffers.rest();
        assert_eq!(buffers.out.len(), REMEMBERED_AT_REST);
        for (i, payload) in kept.iter().enumerate() {
            assert_eq!(payload[..], [i as u8; 100]);
        }
    }
}
