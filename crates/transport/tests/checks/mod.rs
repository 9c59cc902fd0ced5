//! Invariants that hold for any program of bytes. The fuzz targets in `fuzz/`, the replay of their corpora and the random tests
//! share these checks, so that all of them judge an input alike.

pub(crate) mod endpoints;
pub(crate) mod network;
pub(crate) mod tokens;

/// Bytes read as a program: what is missing at its end is zero.
pub(crate) struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next instruction; `None` at the end.
    pub(crate) fn instruction(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// An operand.
    pub(crate) fn byte(&mut self) -> u8 {
        self.instruction().unwrap_or(0)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }
}
