//! The model of a network path: packet and time in, packet and time out.
//!
//! A [`Link`] is one direction of a path. [`Link::offer`] takes a packet's description and the time at which it enters,
//! and says at once what becomes of it: dropped and why, or delivered when. The caller keeps the packet; the link never
//! sees a byte of it. Nothing here reads a clock or draws a random number that its seed did not give, so the same link
//! runs in virtual time (crate `sim`) and in real time (crate `emu`).
//!
//! A packet passes the stages in this order:
//!
//! ```text
//! MTU → policer → queue → transmitter (rate) → loss, outage → corruption → propagation delay → jitter or reordering → duplication
//! ```
//!
//! Loss comes behind the queue, as it does on a wire or in the air: a lost packet has taken its share of the rate.
//!
//! A queue that decides when a packet *leaves* it (CoDel, FQ-CoDel) cannot know the fate of a packet when it enters: such a link
//! answers [`Verdict::Held`], and the caller asks again with [`Link::poll`] when [`Link::deadline`] has come.
//!
//! # Common random numbers
//!
//! Each stage draws from its own random stream, and each packet offered draws the same number of times from each of
//! them whatever becomes of it. The fate of the n-th packet in one stage therefore depends on the seed, n and the
//! settings of that stage alone. Two runs that differ in one setting share all other randomness, which is what makes
//! paired comparisons precise.

mod aqm;
mod config;
mod counters;
mod delay;
mod draw;
mod duplication;
pub mod fit;
mod histogram;
mod link;
mod loss;
mod nat;
mod pace;
mod packet;
mod policer;
mod script;
pub mod tc;
mod transmitter;

pub use config::{
    Change, Codel, ConfigError, Duplicate, Fate, FqCodel, LinkConfig, Loss, LossTrace, LossTraceError, Outage, Policer,
    Queue, RateTrace, RateTraceError, Reorder,
};
pub use counters::{Amount, LinkCounters};
pub use histogram::Histogram;
pub use link::{Link, Released};
pub use nat::{Nat, NatConfig, Rebinding};
pub use packet::{
    Delivery, DropReason, Ecn, IPV4_OVERHEAD, IPV6_OVERHEAD, PacketMeta, Protocol, Ticket, Transit, Verdict, flip_bits,
    overhead,
};
pub use script::{Forced, Script};
