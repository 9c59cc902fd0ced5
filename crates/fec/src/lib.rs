//! Erasure codes over GF(2^8): repair symbols from source symbols, and lost source symbols from what arrived.
//!
//! A *source symbol* is a string of bytes with a number (its symbol ID); a *repair symbol* is a linear combination of a few of
//! them, which its [`Repair`] names. Block codes and sliding windows differ only in which symbols a repair names and when
//! it is made ([`Scheme`], [`Schedule`]); coefficients come from one matrix ([`coefficient`]), so there is one [`Encoder`] and
//! one [`Decoder`] for all of them. XOR is row 0 of that matrix.
//!
//! In the order in which data meets them: [`Encoder`], [`Schedule`], [`Repair`], [`Decoder`]; below them the arithmetic in
//! [`gf`] and its vector forms in [`Kernel`]. Nothing here knows of packets, clocks or randomness.

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
