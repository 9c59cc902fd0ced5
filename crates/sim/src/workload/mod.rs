//! Workloads of applications, without saying which transport: when messages come, how large they are, and
//! bytes whose every single one can be checked at the far end.
//!
//! A workload draws from its own random stream, so that two transports under comparison get the same messages at the
//! same times.

mod arrivals;
mod messages;
mod pattern;

pub use arrivals::{ArrivalTimes, Arrivals};
pub use messages::{Message, Messages, Schedule, Sizes};
pub use pattern::Pattern;
