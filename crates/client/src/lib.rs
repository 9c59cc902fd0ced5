//! HTTP over QUIC raced against TCP, with memory and evidence for every fall-back.
//!
//! In the order in which a request meets them: [`memory`] says what is known of a network and an origin; [`race`] decides what is
//! tried when, and what is to be concluded, without input or output; [`probe`] asks whether a UDP port answers at all; [`fetch`]
//! does it over real sockets; [`alt_svc`] reads what servers say about HTTP/3.

pub mod alt_svc;
pub mod fetch;
mod goodbye;
pub mod memory;
pub mod probe;
pub mod race;

pub use fetch::{Client, FetchError, Fetched, Trust};
pub use race::{Leg, Verdict};
