//! QUIC over real UDP sockets: async endpoints, connections, streams and datagrams.
//!
//! An [`Endpoint`] owns a socket, or one for each of its [`Shards`], and drives the [`transport`] state machine on it. One task per socket
//! reads and writes datagrams in batches (GSO, GRO, ECN). Handles ([`Connection`], [`SendStream`], [`RecvStream`]) may be used from any
//! task.
//!
//! - Dropping the last handle of a connection closes it with code 0.
//! - Dropping an unfinished [`SendStream`] resets it.
//! - Dropping a [`RecvStream`] sends STOP_SENDING.
//!
//! An echo server and its client:
//!
//! ```no_run
//! # async fn example(certificate: &str, key: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::sync::Arc;
//! use tiderace::{ClientConfig, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig};
//!
//! let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes())?;
//! let tls = RustlsServer::builder().identity(identity).alpn("echo").build()?;
//! let server = Endpoint::server("[::1]:4433".parse()?, ServerConfig::new(Arc::new(tls), Arc::new(Profile::default())))?;
//! let address = server.local_addr();
//! tokio::spawn(async move {
//!     while let Some(connection) = server.accept().await {
//!         while let Ok((mut send, mut recv)) = connection.accept_bi().await {
//!             let Ok(question) = recv.read_to_end(64 * 1024).await else { break };
//!             let _ = send.write_all(&question).await;
//!             let _ = send.finish();
//!         }
//!     }
//! });
//!
//! let tls = RustlsClient::builder().roots_pem(certificate.as_bytes())?.alpn("echo").build()?;
//! let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
//! let endpoint = Endpoint::client_for(address)?;
//! let connection = endpoint.connect(&config, address, "localhost")?.await?;
//! let (mut send, mut recv) = connection.open_bi().await?;
//! send.write_all(b"how long is a round trip?").await?;
//! send.finish()?;
//! assert_eq!(recv.read_to_end(64 * 1024).await?, b"how long is a round trip?");
//! # Ok(())
//! # }
//! ```

mod buffers;
mod clock;
mod connection;
mod driver;
mod endpoint;
mod endpoint_moves;
#[cfg(target_os = "linux")]
mod endpoint_steering;
mod error;
#[cfg(target_os = "linux")]
mod hand_over;
mod held;
mod load_balancers;
mod machines;
mod next_socket;
mod open_stream;
mod opening;
mod panics;
mod parts;
mod pending;
mod portion;
mod qlog;
mod readiness;
#[cfg(target_os = "linux")]
mod reuseport;
mod rotation;
mod service;
mod shards;
mod shared;
#[cfg(target_os = "linux")]
mod siblings;
mod socket;
#[cfg(target_os = "linux")]
mod steering;
mod stream;
mod stream_map;
mod tap;
#[cfg(target_os = "linux")]
mod thread_policy;
mod tickets;
mod tickets_rate;
mod tls_pool;
mod turn;

pub use connection::{Connecting, Connection};
pub use endpoint::{Endpoint, EndpointOptions, Handshakes};
pub use error::{ConnectError, DatagramError, ReadError, ReadToEndError, ResetAtError, WriteError};
#[cfg(target_os = "linux")]
pub use hand_over::HandshakeId;
pub use load_balancers::{LoadBalancers, Trust};
pub use machines::MachineLinks;
pub use panics::PanicAction;
pub use qlog::QlogDir;
pub use service::{ServedConnection, ServedStream, Service};
pub use shards::Shards;
#[cfg(target_os = "linux")]
pub use siblings::Sibling;
pub use socket::SocketStats;
#[cfg(target_os = "linux")]
pub use steering::KernelSteering;
pub use stream::{RecvStream, SendStream};
pub use tap::{Tap, Tapped};
pub use tickets::FileTickets;
pub use tls_pool::{TlsPool, wait_outside};
/// The state machine and its settings.
pub use transport;
/// The second TLS backend.
#[cfg(feature = "boringssl")]
pub use transport::tls::boring_backend::{BoringClient, BoringServer};
pub use transport::{
    ClientConfig, CloseReason, Handle, IdGeneration, MigrateError, PreferredAddresses, Profile, RetryPolicy,
    RoutableConfig, ServerConfig, Stats,
    fec::{DatagramFlow, FecPolicy, Protection},
    memory::{Charge, ConnectionBudget, ProcessBudget},
    ring::KeyRing,
    streams::Priority,
    tls::rustls_backend::{Identity, RustlsClient, RustlsServer},
    tls::{CertificateFault, EarlyData, HandshakeFault, TicketStore},
};
pub use units;
pub use wire::{ConnectionId, Dir, StreamId};
