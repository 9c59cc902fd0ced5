//! The model of a network path: packet and time in, packet and time out.
//!
//! A [`Link`] is one direction of a path. [`Link::offer`] takes a packet's description and the time at which it enters, and returns its
//! fate at once: dropped, with the cause, or delivered, with the time. The caller keeps the packet; the link sees none of its bytes. The
//! crate reads no clock, and all random numbers come from the seed. So the same link runs in virtual time (crate `sim`) and in real time
//! (crate `emu`).
//!
//! A packet passes the stages in this order:
//!
//! ```text
//! MTU → policer → queue → transmitter (rate) → loss, outage → corruption → propagation delay → jitter or reordering → duplication
//! ```
//!
//! Loss is behind the queue, as on a wire or in the air: a lost packet has used its share of the rate.
//!
//! A queue that decides when a packet *leaves* it (CoDel, FQ-CoDel) does not know the fate of a packet that enters. Such a link returns
//! [`Verdict::Held`], and the caller calls [`Link::poll`] at [`Link::deadline`].
//!
//! # Common random numbers
//!
//! Each stage draws from its own random stream. Each offered packet draws the same number of times from each stream, whatever its fate. So
//! the fate of the n-th packet in a stage depends only on the seed, n and the settings of that stage. Two runs that differ in one setting
//! share all other randomness, which makes paired comparisons precise.

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
mod varying;

pub use config::{
    Change, Codel, ConfigError, Duplicate, EcnTreatment, Fate, FqCodel, LinkConfig, Loss, LossTrace, LossTraceError,
    Outage, Policer, Queue, RateTrace, RateTraceError, Reorder, VaryingRate,
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
