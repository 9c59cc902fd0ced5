//! The QUIC state machine, without input or output.
//!
//! Time, datagrams and seeds are arguments; what has to happen next is a result. Nothing in this crate reads a clock,
//! opens a socket, spawns a task or draws a random number that its seed did not give.

pub mod crypto;
pub mod crypto_stream;
pub mod error;
pub mod keys;
pub mod sent;
pub mod tls;

/// Which path a packet number belongs to (multipath draft: the path identifier; without multipath always 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathId(pub u32);
