//! QUIC over real UDP sockets: async endpoints, connections, streams and datagrams.
//!
//! An [`Endpoint`] owns a socket, or one for each of its [`Shards`], and drives the [`transport`] state machine on it: datagrams are read and written in
//! batches (GSO, GRO, ECN), and one task per socket does it all. Handles ([`Connection`], [`SendStream`],
//! [`RecvStream`]) may be used from any task.
//!
//! Dropping the last handle of a connection closes it with code 0; dropping a [`SendStream`] that was not finished
//! resets it, dropping a [`RecvStream`] asks the peer to stop.

mod buffers;
mod clock;
mod connection;
mod driver;
mod endpoint;
mod error;
mod pending;
mod qlog;
mod readiness;
#[cfg(target_os = "linux")]
mod reuseport;
mod shards;
mod shared;
mod socket;
mod stream;
mod tap;
#[cfg(target_os = "linux")]
mod thread_policy;
mod tickets;
mod tickets_rate;
mod tls_pool;

pub use connection::{Connecting, Connection};
pub use endpoint::{Endpoint, EndpointOptions, Handshakes};
pub use error::{ConnectError, DatagramError, ReadError, ReadToEndError, WriteError};
pub use qlog::QlogDir;
pub use shards::Shards;
pub use socket::SocketStats;
pub use stream::{RecvStream, SendStream};
pub use tap::{Tap, Tapped};
pub use tickets::FileTickets;
pub use tls_pool::TlsPool;
/// The state machine and its settings.
pub use transport;
/// The second TLS backend.
#[cfg(feature = "boringssl")]
pub use transport::tls::boring_backend::{BoringClient, BoringServer};
pub use transport::{
    ClientConfig, CloseReason, MigrateError, PreferredAddresses, Profile, RetryPolicy, ServerConfig, Stats,
    fec::{DatagramFlow, FecPolicy, Protection},
    memory::{Charge, ConnectionBudget, ProcessBudget},
    ring::KeyRing,
    streams::Priority,
    tls::EarlyData,
    tls::TicketStore,
    tls::rustls_backend::{Identity, RustlsClient, RustlsServer},
};
pub use units;
pub use wire::{ConnectionId, Dir, StreamId};
