//! The QUIC state machine, without input or output.
//!
//! Time, datagrams and seeds are arguments; actions and deadlines are results. The crate reads no clock, opens no socket and spawns no
//! task. All random numbers come from the seed.
//!
//! The modules, in the order in which data meets them:
//!
//! - [`Endpoint`] finds the connection of a datagram, and begins connection attempts.
//! - [`Connection`] composes `handshake`, `keys`, `acks`, [`ack_frequency`], [`recovery`] with [`congestion`] and `pacing`, `path`,
//!   [`streams`], [`datagrams`] and [`fec`].
//! - [`memory`] limits what a peer can make them hold; [`ring`] has the keys that servers share.
//! - [`profile`] holds the settings; [`stats`] and [`observe`] report, and [`qlog`] writes reports to files.

pub mod ack_frequency;
mod acks;
mod books;
mod cid;
mod config;
pub mod congestion;
mod connection;
pub mod crypto;
#[cfg(feature = "testing")]
pub mod crypto_stream;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, unreachable_pub, reason = "tests use more of it than the crate")]
mod crypto_stream;
pub mod datagrams;
mod endpoint;
pub mod error;
mod events;
pub mod fec;
mod handshake;
#[cfg(feature = "testing")]
pub mod keys;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, unreachable_pub, reason = "tests use more of it than the crate")]
mod keys;
pub mod memory;
pub mod observe;
mod pacing;
mod path;
mod pins;
pub mod profile;
pub mod qlog;
pub mod quic_lb;
mod range_set;
pub mod reach;
pub mod recovery;
pub mod ring;
mod sent;
pub mod stats;
pub mod streams;
mod timers;
pub mod tls;
mod token;
mod token_store;
mod udp;

pub use acks::Ecn;
pub use books::{Book, Imbalance};
pub use cid::{
    ConnectionIdGenerator, GenerationIds, Holder, IdGeneration, RoutableConfig, RoutableError, RoutableIds, ShardedIds,
};
pub use config::{
    ClientConfig, ConnectError, EndpointConfig, PreferredAddresses, ProfileChooser, RetryPolicy, ServerConfig,
};
pub use connection::Connection;
pub use endpoint::{
    AttemptEvent, AttemptLog, Carried, DirectionBooks, Endpoint, EndpointBooks, EndpointStats, Handle, HandshakeWaker,
    IdLengthError, Machines, SiblingShard, Siblings, TlsDone, TlsStep,
};
pub use error::{Code, MigrateError, TransportError};
pub use events::{CloseReason, Event};
pub use keys::{KeyLimits, KeyUpdatePolicy};
pub use path::MoveState;
pub use profile::Profile;
pub use stats::Stats;
pub use timers::Timer;
pub use token_store::{MemoryTokens, TokenOwner, TokenStore};
pub use udp::{Datagram, Transmit};

/// Path identifier of a packet number (multipath draft: the path identifier; without multipath always 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathId(pub u32);
