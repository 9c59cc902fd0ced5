//! Workloads of applications, independent of the transport: times and sizes of messages, and bytes that the receiver can verify one by one.
//!
//! A workload draws from its own random stream, so that compared transports get the same messages at the same times.

mod arrivals;
mod messages;
mod pattern;

pub use arrivals::{ArrivalTimes, Arrivals};
pub use messages::{Message, Messages, Schedule, Sizes};
pub use pattern::Pattern;
