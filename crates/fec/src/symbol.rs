//! A symbol as the codes see it: its length in two bytes, its bytes, zeros up to the next multiple of a vector.

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

/// A buffer for one symbol, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Coded {
    bytes: Vec<u8>,
    start: usize,
}

impl Coded {
    /// Holds the coded form of `content` from here on.
    ///
    /// # Panics
    /// When it has more than 65,535 bytes.
    #[inline]
    pub(crate) fn fill(&mut self, content: &[u8]) {
        let len = u16::try_from(content.len()).expect("symbols are smaller than packets");
        let whole = padded(PREFIX + content.len());
        self.begin(whole);
        self.bytes.extend_from_slice(&len.to_be_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.start + whole, 0);
    }

    /// Holds `value`, and zeros behind it.
    pub(crate) fn copy(&mut self, value: &[u8]) {
        let whole = padded(value.len());
        self.begin(whole);
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.start + whole, 0);
    }

    /// Holds `len` zeros and some more.
    #[inline]
    pub(crate) fn zero(&mut self, len: usize) {
        let whole = padded(len);
        self.begin(whole);
        self.bytes.resize(self.start + whole, 0);
    }

    /// Holds at least `len` bytes.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len() < len {
            let mut grown = Self::default();
            grown.zero(len);
            grown[..self.len()].copy_from_slice(self);
            *self = grown;
        }
    }

    /// Holds the first `len` bytes only, and what follows up to the next multiple of a vector.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.bytes.truncate(self.start + padded(len));
    }

    /// Nothing is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.start
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Room for `whole` bytes behind an aligned start.
    #[inline]
    fn begin(&mut self, whole: usize) {
        self.bytes.clear();
        self.bytes.reserve(whole + VECTOR - 1);
        self.start = self.bytes.as_ptr().align_offset(VECTOR).min(VECTOR - 1);
        self.bytes.resize(self.start, 0);
    }
}

impl Deref for Coded {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for Coded {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// The content of a coded symbol; `None` when it is none: longer than it can be, or not followed by zeros.
pub(crate) fn read(coded: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = coded.split_first_chunk::<PREFIX>()?;
    let (content, padding) = rest.split_at_checked(usize::from(u16::from_be_bytes(*prefix)))?;
    padding.iter().all(|&byte| byte == 0).then_some(content)
}
