//! Description of a repair symbol: its source symbols and their coefficients.

use std::fmt;

use crate::coefficient::{COLUMNS, ROWS, coefficient};

/// A repair symbol reaches at most this far: from its first to its last source symbol, both included.
pub const MAX_SPAN: u64 = COLUMNS as u64;

/// Names what a repair symbol is made of: `count` source symbols, each `stride` after the one before, from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The first source symbol.
    pub first: u64,
    /// Number of source symbols; at least 1.
    pub count: u8,
    /// Distance from one to the next; at least 1. Above 1 in interleaved blocks.
    pub stride: u8,
    /// Row of the matrix of coefficients, below [`ROWS`].
    pub row: u8,
}

/// Error of a [`Repair`] that no encoder makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairError {
    /// No source symbol is combined.
    Empty,
    /// Last symbol too far from the first.
    TooWide,
    /// Row that the code does not have.
    NoSuchRow,
    /// Last symbol's number out of range.
    Overflow,
}

impl fmt::Display for RepairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RepairError {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "a repair symbol of nothing",
            Self::TooWide => "a repair symbol over too wide a window",
            Self::NoSuchRow => "a repair symbol of a row that does not exist",
            Self::Overflow => "a repair symbol beyond the last symbol ID",
        }
    }
}

impl std::error::Error for RepairError {}

impl Repair {
    /// Checks the description: what a decoder accepts and an encoder makes.
    ///
    /// # Errors
    /// When a bound is broken.
    pub fn check(&self) -> Result<(), RepairError> {
        if self.count == 0 || self.stride == 0 {
            Err(RepairError::Empty)
        } else if self.span() > MAX_SPAN {
            Err(RepairError::TooWide)
        } else if self.row >= ROWS {
            Err(RepairError::NoSuchRow)
        } else if self.first.checked_add(self.span()).is_none() {
            Err(RepairError::Overflow)
        } else {
            Ok(())
        }
    }

    /// Symbol IDs from the first to the last, both included.
    #[inline]
    pub fn span(&self) -> u64 {
        u64::from(self.count.saturating_sub(1)) * u64::from(self.stride) + 1
    }

    /// The last source symbol.
    #[inline]
    pub fn last(&self) -> u64 {
        self.first + (self.span() - 1)
    }

    /// Source symbols, each with its coefficient.
    #[inline]
    pub fn terms(&self) -> impl Iterator<Item = (u64, u8)> + Clone + use<> {
        let Self { first, count, stride, row } = *self;
        (0..count).map(move |i| {
            let id = first + u64::from(i) * u64::from(stride);
            (id, coefficient(row, id))
        })
    }
}
