//! Units of all crates: instants, rates, sizes, probabilities, seeds.
//!
//! The crate reads no clock, and random numbers come from a seed. So a run is repeatable bit for bit.

pub mod duration_text;
mod instant;
mod pace;
mod probability;
mod rate;
mod seed;

pub use instant::Instant;
pub use pace::BytesPerMinute;
pub use probability::{Probability, ProbabilityError};
pub use rate::{Bitrate, DataSize, ParseUnitError};
pub use seed::{RandomStream, Seed};

/// A span of time. The standard library's type: nanosecond resolution, never negative.
pub use core::time::Duration;
