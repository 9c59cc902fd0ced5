//! Which received buffers unread data keeps in memory.
//!
//! A slice of a packet pins the whole buffer that was received with it, tens of kilobytes. What matters is how many buffers
//! are pinned, not by how many slices: those of one buffer share it.

/// Names a pinned buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pin(u32);

/// Owns the counts of slices, by buffer.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Slices of each buffer; buffers without any are in `free`, except for the current one.
    slices: Vec<u32>,
    free: Vec<u32>,
    /// The buffer that slices are taken of at the moment.
    current: Option<u32>,
    buffers: usize,
}

impl Pins {
    /// Slices that are pinned from here on are of another buffer.
    #[inline]
    pub(super) fn next_buffer(&mut self) {
        // One without slices can stand for the next.
        if self.is_current_pinned() {
            self.current = None;
        }
    }

    /// Buffers that are pinned.
    #[inline]
    pub(super) fn buffers(&self) -> usize {
        self.buffers
    }

    /// Whether another slice of the current buffer pins nothing more.
    #[inline]
    pub(super) fn is_current_pinned(&self) -> bool {
        self.current.is_some_and(|current| self.slices[current as usize] > 0)
    }

    /// Notes a slice of the current buffer.
    #[inline]
    pub(super) fn pin(&mut self) -> Pin {
        let current = match self.current {
            Some(current) => current,
            None => self.start(),
        };
        let slices = &mut self.slices[current as usize];
        self.buffers += usize::from(*slices == 0);
        *slices += 1;
        Pin(current)
    }

    fn start(&mut self) -> u32 {
        let current = self.free.pop().unwrap_or_else(|| {
            self.slices.push(0);
            u32::try_from(self.slices.len() - 1).expect("far fewer buffers than 2^32 are pinned")
        });
        self.current = Some(current);
        current
    }

    /// A slice is gone.
    #[inline]
    pub(super) fn unpin(&mut self, Pin(buffer): Pin) {
        let slices = &mut self.slices[buffer as usize];
        *slices -= 1;
        if *slices > 0 {
            return;
        }
        self.buffers -= 1;
        if self.current != Some(buffer) {
            self.free.push(buffer);
        }
    }

    /// Returns memory when nothing is pinned.
    pub(super) fn shrink(&mut self) {
        if self.buffers == 0 {
            *self = Self::default();
        }
    }

    /// Bytes of heap in use.
    pub(super) fn heap(&self) -> usize {
        (self.slices.capacity() + self.free.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slices_of_a_buffer_share_it() {
        let mut pins = Pins::default();
        let (a, b) = (pins.pin(), pins.pin());
        assert_eq!((a, pins.buffers()), (b, 1));
        pins.next_buffer();
        assert!(!pins.is_current_pinned());
        let c = pins.pin();
        assert_ne!(a, c);
        assert_eq!(pins.buffers(), 2);
        pins.unpin(a);
        assert_eq!(pins.buffers(), 2);
        pins.unpin(b);
        assert_eq!(pins.buffers(), 1);
        pins.unpin(c);
        assert_eq!((pins.buffers(), pins.is_current_pinned()), (0, false));
    }

    proptest! {
        /// Against a list of (buffer, slices), with buffers numbered anew.
        #[test]
        fn counts_like_a_list(actions in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 1..300)) {
            let mut pins = Pins::default();
            let mut held: Vec<(Pin, u32)> = Vec::new();
            let mut buffer = 0;
            for (action, which) in actions {
                match action {
                    0 => {
                        pins.next_buffer();
                        buffer += 1;
                    }
                    1 | 2 => held.push((pins.pin(), buffer)),
                    _ if held.is_empty() => {}
                    _ => pins.unpin(held.swap_remove(which.index(held.len())).0),
                }
                let mut buffers: Vec<u32> = held.iter().map(|(_, buffer)| *buffer).collect();
                buffers.sort_unstable();
                buffers.dedup();
                prop_assert_eq!(pins.buffers(), buffers.len());
                prop_assert_eq!(pins.is_current_pinned(), buffers.last() == Some(&buffer));
            }
            prop_assert!(pins.slices.len() <= 301);
        }
    }
}
