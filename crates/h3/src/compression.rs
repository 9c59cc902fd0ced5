//! Counters of field compression.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of fields before compression and after, of all connections that count here.
#[derive(Debug, Default)]
pub struct Compression {
    /// Fields that were sent.
    pub sent: Volume,
    /// Fields that have come.
    pub received: Volume,
}

/// The same fields, twice.
#[derive(Debug, Default)]
pub struct Volume {
    plain: AtomicU64,
    compressed: AtomicU64,
}

impl Volume {
    /// Bytes of names and values.
    pub fn plain(&self) -> u64 {
        self.plain.load(Ordering::Relaxed)
    }

    /// Compressed size in bytes, with the instructions that fill the tables.
    pub fn compressed(&self) -> u64 {
        self.compressed.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, plain: usize, compressed: usize) {
        self.plain.fetch_add(plain as u64, Ordering::Relaxed);
        self.compressed.fetch_add(compressed as u64, Ordering::Relaxed);
    }
}
