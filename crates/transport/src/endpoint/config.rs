//! What an endpoint, a server and a client are given.

use std::sync::Arc;

use units::Seed;

use crate::{
    cid::{ConnectionIdGenerator, ShardedIds},
    observe::ObserverFactory,
    profile::Profile,
    ring::{KeyRing, MemoryRegister, StrikeRegister},
    tls::{ClientTls, ServerTls, TlsError},
};

/// What every endpoint needs.
pub struct EndpointConfig {
    /// Where all randomness of the endpoint comes from. Real endpoints take it from the operating system.
    pub seed: Seed,
    /// How connection IDs are made.
    pub ids: Box<dyn ConnectionIdGenerator>,
    /// Keys of tokens and stateless resets derive from it; processes that share it accept each other's.
    pub ring: KeyRing,
    /// Remembers which NEW_TOKEN tokens were used.
    pub used_tokens: Arc<dyn StrikeRegister>,
}

impl EndpointConfig {
    /// The default layout of connection IDs, everything from one seed.
    pub fn from_seed(seed: Seed) -> Self {
        use rand_core::RngCore;
        let mut secret = [0; 32];
        seed.stream("endpoint secret").fill_bytes(&mut secret);
        Self {
            ids: Box::new(ShardedIds::new(0, &seed)),
            seed,
            ring: KeyRing::single(secret),
            used_tokens: Arc::new(MemoryRegister::default()),
        }
    }
}

/// When a server makes a client prove its address before it keeps state for it (RFC 9000 §8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Never.
    Never,
    /// Always; costs each new client a round trip.
    Always,
    /// While more handshakes than this are incomplete.
    Above(usize),
}

/// How connections are accepted.
#[derive(Clone)]
pub struct ServerConfig {
    /// The server's side of TLS.
    pub tls: Arc<dyn ServerTls>,
    /// Transport settings of accepted connections.
    pub profile: Arc<Profile>,
    /// Address validation by Retry.
    pub retry: RetryPolicy,
    /// Connections at a time; more are refused with CONNECTION_REFUSED.
    pub max_connections: usize,
    /// Send a token with which the client skips address validation next time.
    pub send_token: bool,
    /// Who watches accepted connections from their first packet on.
    pub observe: Option<Arc<dyn ObserverFactory>>,
}

impl ServerConfig {
    /// Accepts with default limits.
    pub fn new(tls: Arc<dyn ServerTls>, profile: Arc<Profile>) -> Self {
        let retry = RetryPolicy::Above(1_000);
        Self { tls, profile, retry, max_connections: 100_000, send_token: true, observe: None }
    }
}

/// How a connection is opened.
#[derive(Clone)]
pub struct ClientConfig {
    /// The client's side of TLS.
    pub tls: Arc<dyn ClientTls>,
    /// Transport settings of the connection.
    pub profile: Arc<Profile>,
    /// A token from an earlier connection to the same server.
    pub token: Vec<u8>,
    /// Who watches the connection from its first packet on.
    pub observe: Option<Arc<dyn ObserverFactory>>,
}

impl ClientConfig {
    /// A first connection, without a token.
    pub fn new(tls: Arc<dyn ClientTls>, profile: Arc<Profile>) -> Self {
        Self { tls, profile, token: Vec::new(), observe: None }
    }
}

/// Why a connection could not even be started.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// TLS refuses the server name or the configuration.
    #[error("cannot start TLS: {0}")]
    Tls(#[from] TlsError),
}
