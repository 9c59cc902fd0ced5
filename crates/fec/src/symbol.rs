//! A symbol in the form of the codes: its length in two bytes, its bytes, zeros up to the next multiple of a vector.

use std::ops::{Deref, DerefMut};

/// Bytes in front of the content: its length.
pub(crate) const PREFIX: usize = 2;
/// Symbols take a multiple of this many bytes and begin at such an address, so that vectors need no remainder and lie in one
/// line of the cache.
const VECTOR: usize = 64;

/// `len` up to the next multiple of a vector.
#[inline]
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(VECTOR)
}

/// A buffer for one symbol, to be used again: its bytes stay initialised, so that filling it anew is one copy.
#[derive(Debug, Default)]
pub(crate) struct Coded {
    bytes: Vec<u8>,
    /// The first aligned byte.
    start: usize,
    len: usize,
}

impl Coded {
    /// Holds the coded form of `content` from here on.
    ///
    /// # Panics
    /// When it has more than 65,535 bytes.
    #[inline]
    pub(crate) fn fill(&mut self, content: &[u8]) {
        let len = u16::try_from(content.len()).expect("symbols are smaller than packets");
        let room = self.begin(PREFIX + content.len());
        let (prefix, rest) = room.split_at_mut(PREFIX);
        prefix.copy_from_slice(&len.to_be_bytes());
        let (place, padding) = rest.split_at_mut(content.len());
        place.copy_from_slice(content);
        padding.fill(0);
    }

    /// Holds `value`, and zeros behind it.
    pub(crate) fn copy(&mut self, value: &[u8]) {
        let (place, padding) = self.begin(value.len()).split_at_mut(value.len());
        place.copy_from_slice(value);
        padding.fill(0);
    }

    /// Holds `len` zeros and some more.
    #[inline]
    pub(crate) fn zero(&mut self, len: usize) {
        self.begin(len).fill(0);
    }

    /// Holds at least `len` bytes.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len < len {
            let mut grown = Self::default();
            grown.zero(len);
            grown[..self.len].copy_from_slice(self);
            *self = grown;
        }
    }

    /// Shortens the symbol to `len` bytes, rounded up to a multiple of the vector size.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.len = self.len.min(padded(len));
    }

    /// Bytes of the content of the symbol that is held.
    #[inline]
    pub(crate) fn content_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self[0], self[1]]))
    }

    /// Returns whether the symbol has no bytes.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Aligned space for `len` bytes, rounded up to a multiple of the vector size; its content is unspecified.
    #[inline]
    fn begin(&mut self, len: usize) -> &mut [u8] {
        self.len = padded(len);
        if self.bytes.len() < self.start + self.len {
            self.bytes = vec![0; self.len + VECTOR - 1];
            self.start = self.bytes.as_ptr().align_offset(VECTOR).min(VECTOR - 1);
        }
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Deref for Coded {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Coded {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// The content of a coded symbol; `None` when it is none: longer than it can be, or not followed by zeros.
pub(crate) fn read(coded: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = coded.split_first_chunk::<PREFIX>()?;
    let (content, padding) = rest.split_at_checked(usize::from(u16::from_be_bytes(*prefix)))?;
    padding.iter().all(|&byte| byte == 0).then_some(content)
}
