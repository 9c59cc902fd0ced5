//! Receive buffers that unread data keeps in memory, and the decision to copy.
//!
//! A slice of a packet pins the whole buffer that was received with it. A read with GRO fills 64 KiB; a single datagram uses a fiftieth of
//! it. So slices are kept while their buffers have at most a quarter more bytes than the slices, plus some slack. Other data is copied.
//! Reading makes slices smaller while their buffers stay: when the rule is broken, slices of poorly used buffers are copied too
//! ([`Pins::is_wasteful`], [`Pins::is_poor`]). A byte is copied once at most, because a copy pins nothing.

/// Slices below [`SLICE_SMALL`] with records in a queue that are kept, whatever they pin. The records would outweigh more of them.
const SLICES: usize = 64;
/// Below this a slice is small, in bytes. The record of a slice takes a twentieth of that.
const SLICE_SMALL: usize = 1024;

/// Names a pinned buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin(u32);

#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    slices: u32,
    /// Bytes of the slices.
    bytes: u32,
    /// Bytes that stay in memory for them.
    size: u32,
}

/// Owns the counts of slices, by buffer.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// Buffers without slices are in `free`, except for the current one.
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    /// The buffer that slices are taken of at the moment.
    current: Option<u32>,
    /// Size of the buffer.
    size: u32,
    /// Slices may be taken of it.
    admitted: bool,
    slices: usize,
    /// Bytes of all slices.
    bytes: u64,
    /// Bytes of all buffers that are pinned.
    pinned: u64,
    /// Bytes that buffers may have beyond a quarter more than their slices.
    slack: u64,
}

impl Pins {
    /// Buffers may have `bytes` more than a quarter beyond their slices.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.slack = bytes;
    }

    /// Slices that are pinned from here on are of another buffer, of `size` bytes, of which `used` carry what arrived.
    #[inline]
    pub(crate) fn next_buffer(&mut self, size: usize, used: usize) {
        // One without slices can stand for the next.
        if self.current.is_some_and(|current| self.buffers[current as usize].slices > 0) {
            self.current = None;
        }
        let size = size.max(used);
        self.size = u32::try_from(size).unwrap_or(u32::MAX);
        self.admitted = self.pinned + size as u64 <= self.allowed(self.bytes + used as u64);
    }

    #[inline]
    fn allowed(&self, bytes: u64) -> u64 {
        bytes + bytes / 4 + self.slack
    }

    /// Bytes of the buffers that are pinned.
    #[inline]
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Slices that are kept.
    #[cfg(test)]
    pub(crate) fn slices(&self) -> usize {
        self.slices
    }

    /// Notes a slice of the current buffer, whose record takes no memory of its own when `inline`; `None` when it has to be copied
    /// instead.
    #[inline]
    pub(crate) fn pin(&mut self, len: usize, inline: bool) -> Option<Pin> {
        if !self.admitted || !inline && len < SLICE_SMALL && self.slices >= SLICES {
            return None;
        }
        let current = match self.current {
            Some(current) => current,
            None => self.start(),
        };
        let buffer = &mut self.buffers[current as usize];
        if buffer.slices == 0 {
            buffer.size = self.size;
            self.pinned += u64::from(self.size);
        }
        buffer.slices += 1;
        buffer.bytes += len as u32;
        self.slices += 1;
        self.bytes += len as u64;
        Some(Pin(current))
    }

    fn start(&mut self) -> u32 {
        let current = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Buffer::default());
            u32::try_from(self.buffers.len() - 1).expect("far fewer buffers than 2^32 are pinned")
        });
        self.current = Some(current);
        current
    }

    /// `len` bytes of a slice are gone, and with `whole` the slice.
    #[inline]
    pub(crate) fn release(&mut self, Pin(place): Pin, len: usize, whole: bool) {
        let buffer = &mut self.buffers[place as usize];
        buffer.bytes -= len as u32;
        self.bytes -= len as u64;
        if !whole {
            return;
        }
        self.slices -= 1;
        buffer.slices -= 1;
        if buffer.slices > 0 {
            return;
        }
        self.pinned -= u64::from(buffer.size);
        if self.current != Some(place) {
            self.free.push(place);
        }
    }

    /// Returns whether slices have shrunk so far that some are to be copied.
    #[inline]
    pub(crate) fn is_wasteful(&self) -> bool {
        self.pinned > self.allowed(self.bytes)
    }

    /// Returns whether slices of the buffer are to be copied when they are wasteful together.
    pub(crate) fn is_poor(&self, Pin(place): Pin) -> bool {
        let Buffer { bytes, size, .. } = self.buffers[place as usize];
        u64::from(bytes) + u64::from(bytes) / 4 < u64::from(size)
    }

    /// Frees memory if nothing is pinned.
    pub(crate) fn shrink(&mut self) {
        if self.slices == 0 {
            *self = Self { slack: self.slack, ..Self::default() };
        }
    }

    /// Bytes of heap in use.
    #[inline]
    pub(crate) fn heap(&self) -> usize {
        self.buffers.capacity() * size_of::<Buffer>() + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUFFER: usize = 65_536;

    #[test]
    fn slices_of_a_buffer_share_it() {
        let mut pins = Pins::default();
        pins.set_slack(2 * BUFFER as u64);
        pins.next_buffer(BUFFER, 1200);
        let (a, b) = (pins.pin(600, false).unwrap(), pins.pin(600, false).unwrap());
        assert_eq!((a, pins.pinned()), (b, BUFFER as u64));
        pins.next_buffer(BUFFER, 1200);
        let c = pins.pin(1200, false).unwrap();
        assert_ne!(a, c);
        pins.next_buffer(BUFFER, 1200);
        assert_eq!(pins.pin(1200, false), None, "neither filled nor within the slack");
        pins.release(a, 600, true);
        assert_eq!(pins.pinned(), 2 * BUFFER as u64);
        pins.release(b, 600, true);
        assert_eq!(pins.pinned(), BUFFER as u64);
        pins.release(c, 1200, true);
        assert_eq!((pins.pinned(), pins.bytes, pins.slices()), (0, 0, 0));
    }

    #[test]
    fn buffers_that_are_full_need_no_slack() {
        let mut pins = Pins::default();
        for _ in 0..100 {
            pins.next_buffer(BUFFER, 60_000);
            assert!((0..40).all(|_| pins.pin(1400, false).is_some()));
        }
        assert!(!pins.is_wasteful());
        pins.next_buffer(BUFFER, 60_000);
        let more = (0..100).filter(|_| pins.pin(1, false).is_some()).count();
        assert_eq!(more, 0, "many slices are there, and these are small");
    }

    proptest! {
        /// Against a list of slices, with buffers numbered anew.
        #[test]
        fn counts_like_a_list(actions in prop::collection::vec((0..5u8, 1..3000usize, any::<prop::sample::Index>()), 1..300)) {
            let mut pins = Pins::default();
            pins.set_slack(5 * BUFFER as u64);
            let mut held: Vec<(Pin, u32, usize)> = Vec::new();
            let mut number = 0;
            for (action, len, which) in actions {
                match action {
                    0 => {
                        pins.next_buffer(BUFFER, 3000);
                        number += 1;
                    }
                    1 | 2 => held.extend(pins.pin(len, false).map(|pin| (pin, number, len))),
                    _ if held.is_empty() => {}
                    3 => {
                        let (pin, _, len) = held.swap_remove(which.index(held.len()));
                        pins.release(pin, len, true);
                    }
                    _ => {
                        let at = which.index(held.len());
                        let slice = held.get_mut(at);
                        if let Some((pin, _, left)) = slice {
                            let part = len.min(*left - 1);
                            *left -= part;
                            pins.release(*pin, part, false);
                        }
                    }
                }
                let mut buffers: Vec<u32> = held.iter().map(|(_, number, _)| *number).collect();
                buffers.sort_unstable();
                buffers.dedup();
                prop_assert_eq!(pins.pinned(), (buffers.len() * BUFFER) as u64);
                prop_assert_eq!(pins.slices(), held.len());
                prop_assert_eq!(pins.bytes, held.iter().map(|(.., len)| *len as u64).sum::<u64>());
                let mut pinned = pins.pinned();
                if pins.is_wasteful() {
                    // Copying what is poor is always enough.
                    let poor: Vec<Pin> = held.iter().map(|(pin, ..)| *pin).filter(|pin| pins.is_poor(*pin)).collect();
                    let mut poor: Vec<u32> = poor.into_iter().map(|Pin(place)| place).collect();
                    poor.sort_unstable();
                    poor.dedup();
                    pinned -= (poor.len() * BUFFER) as u64;
                }
                prop_assert!(pinned <= pins.allowed(pins.bytes));
            }
            prop_assert!(pins.buffers.len() <= 301);
        }
    }
}
