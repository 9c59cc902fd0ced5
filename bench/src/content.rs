//! The bytes that are sent, and the check that they arrived.
//!
//! The stream repeats a block of pseudo-random bytes whose length is a prime number just below 256 KiB, so that data put at
//! a wrong offset differs from what belongs there unless the error is a multiple of that prime. The receiver counts every
//! byte but compares only a few at each multiple of 64 KiB: a full comparison would show in the result.

use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;

/// Length of the repeated block, in bytes.
pub const PERIOD: usize = 262_139;
/// Bytes that a sender hands to the transport per call.
pub const WRITE: usize = 262_144;
/// Distance between compared places of the stream, in bytes.
const SAMPLE_EVERY: u64 = 65_536;
/// Bytes compared at each.
const SAMPLE_LEN: usize = 32;

/// The repeated block twice in a row, so that `PERIOD` bytes from any position within it are one slice.
fn doubled() -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut block: Vec<u8> = Vec::with_capacity(2 * PERIOD);
    while block.len() < PERIOD {
        // xorshift64: any sequence without short cycles serves.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block.truncate(PERIOD);
    block.extend_from_within(..);
    block
}

/// Position in the block of the byte at `offset` of the stream.
fn phase(offset: u64) -> usize {
    usize::try_from(offset % PERIOD as u64).expect("smaller than the period")
}

/// Source of a sender's bytes.
pub struct Source(Bytes);

impl Source {
    /// Makes the block.
    pub fn new() -> Self {
        Self(Bytes::from(doubled()))
    }

    /// The stream's bytes from `offset`, `len` of them (at most `PERIOD`).
    pub fn at(&self, offset: u64, len: usize) -> &[u8] {
        &self.0[phase(offset)..][..len]
    }

    /// The same without a copy, for stacks that take ownership.
    pub fn bytes_at(&self, offset: u64, len: usize) -> Bytes {
        let start = phase(offset);
        self.0.slice(start..start + len)
    }

    /// Bytes that the next write at `offset` of a stream of `total` bytes takes.
    pub fn write_len(offset: u64, total: u64) -> usize {
        usize::try_from(total - offset).map_or(PERIOD, |rest| rest.min(PERIOD.min(WRITE)))
    }
}

/// Counts what arrives and compares samples of it.
pub struct Check {
    block: Arc<[u8]>,
    bytes: u64,
    next_sample: u64,
    samples: u64,
}

impl Check {
    /// Block that streams are compared with; many share it.
    pub fn block() -> Arc<[u8]> {
        doubled().into()
    }

    /// Expects a stream from its first byte.
    pub fn new(block: Arc<[u8]>) -> Self {
        Self { block, bytes: 0, next_sample: 0, samples: 0 }
    }

    /// Takes the next bytes of the stream.
    pub fn take(&mut self, data: &[u8]) -> Result<()> {
        let start = self.bytes;
        self.bytes += data.len() as u64;
        while self.next_sample < self.bytes {
            let from = usize::try_from(self.next_sample.saturating_sub(start)).expect("within the data");
            let seen = &data[from..data.len().min(from + SAMPLE_LEN)];
            let sent = &self.block[phase(start + from as u64)..][..seen.len()];
            ensure!(seen == sent, "wrong bytes at offset {} of the stream", start + from as u64);
            self.samples += 1;
            self.next_sample += SAMPLE_EVERY;
        }
        Ok(())
    }

    /// Bytes taken so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the check; returns how many places were compared.
    pub fn finish(self, expected: u64) -> Result<u64> {
        ensure!(self.bytes == expected, "{} bytes arrived, {expected} were sent", self.bytes);
        Ok(self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(check: &mut Check, source: &Source, total: u64, piece: usize) -> Result<()> {
        let mut offset = 0;
        while offset < total {
            let len = Source::write_len(offset, total).min(piece);
            check.take(source.at(offset, len))?;
            offset += len as u64;
        }
        Ok(())
    }

    #[test]
    fn accepts_the_stream_in_any_pieces() {
        let source = Source::new();
        let total = 1_000_003;
        for piece in [7, 1423, 65_536, PERIOD] {
            let mut check = Check::new(Check::block());
            feed(&mut check, &source, total, piece).unwrap();
            assert_eq!(check.finish(total).unwrap(), total.div_ceil(SAMPLE_EVERY), "pieces of {piece}");
        }
    }

    #[test]
    fn notices_shifted_missing_and_changed_bytes() {
        let source = Source::new();
        let mut shifted = Check::new(Check::block());
        assert!(shifted.take(source.at(WRITE as u64, 1_000)).is_err());

        let mut missing = Check::new(Check::block());
        feed(&mut missing, &source, 70_000, 1_000).unwrap();
        assert!(missing.finish(70_001).is_err());

        let mut changed = Check::new(Check::block());
        let mut data = source.at(0, 100_000).to_vec();
        data[65_536] ^= 1;
        assert!(changed.take(&data).is_err());
    }

    #[test]
    fn shares_the_block() {
        let source = Source::new();
        assert_eq!(source.bytes_at(500_000, 100), source.at(500_000, 100));
        assert_eq!(Source::write_len(0, 10), 10);
        assert_eq!(Source::write_len(0, u64::MAX), PERIOD);
    }
}
