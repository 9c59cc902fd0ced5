//! Erasure codes over GF(2^8): repair symbols from source symbols, and lost source symbols from received symbols.
//!
//! A *source symbol* is a string of bytes with a number (its symbol ID). A *repair symbol* is a linear combination of source symbols, which
//! its [`Repair`] lists. Block codes and sliding windows differ only in the choice of these symbols, and in the time of the repair
//! ([`Scheme`], [`Schedule`]). Coefficients come from one matrix ([`coefficient`]), so one [`Encoder`] and one [`Decoder`] serve all codes.
//! XOR is row 0 of that matrix.
//!
//! In the order in which data meets them: [`Encoder`], [`Schedule`], [`Repair`], [`Decoder`]; below them the arithmetic in
//! [`gf`] and its vector forms in [`Kernel`]. The crate has no packets, clocks or randomness.

mod coefficient;
mod decoder;
mod encoder;
pub mod gf;
mod kernel;
mod repair;
mod schedule;
mod scheme;
mod symbol;
mod work;

pub use coefficient::{COLUMNS, ROWS, coefficient};
pub use decoder::{Contradiction, Decoder, DecoderFigures, Repaired, Sourced};
pub use encoder::Encoder;
pub use kernel::{Kernel, Term};
pub use repair::{MAX_SPAN, Repair, RepairError};
pub use schedule::{Allowed, Schedule};
pub use scheme::{ParseSchemeError, Scheme};
pub use work::WorkLimit;
