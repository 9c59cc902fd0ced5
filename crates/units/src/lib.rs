//! The types every crate measures in: instants, rates, sizes, probabilities, seeds.
//!
//! Nothing here reads a clock or draws a random number by itself: time and seeds come in as arguments, so that a run
//! can be repeated bit for bit.

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
