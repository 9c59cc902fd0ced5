//! Configurations of endpoints, servers and clients.

use std::{
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
    sync::Arc,
};

use units::Seed;
use wire::version;

use crate::{
    cid::{ConnectionIdGenerator, ShardedIds},
    crypto::Labels,
    memory::ProcessBudget,
    observe::ObserverFactory,
    profile::Profile,
    ring::{KeyRing, MemoryRegister, StrikeRegister},
    tls::{ClientTls, ServerTls, TlsError},
    token_store::{MemoryTokens, TokenStore},
};

/// Configuration of every endpoint.
pub struct EndpointConfig {
    /// Source of all randomness of the endpoint. Real endpoints take it from the operating system.
    pub seed: Seed,
    /// Generator of connection IDs.
    pub ids: Box<dyn ConnectionIdGenerator>,
    /// Keys from which the keys of tokens and stateless resets derive; processes that share the ring accept each other's.
    pub ring: KeyRing,
    /// Register of used NEW_TOKEN tokens.
    pub used_tokens: Arc<dyn StrikeRegister>,
    /// Memory that all connections may hold together, in bytes. Endpoints of one process share it.
    pub memory: ProcessBudget,
}

impl EndpointConfig {
    /// Default layout of connection IDs, with all randomness from one seed.
    pub fn from_seed(seed: Seed) -> Self {
        use rand_core::RngCore;
        let mut secret = [0; 32];
        seed.stream("endpoint secret").fill_bytes(&mut secret);
        Self {
            ids: Box::new(ShardedIds::new(0, &seed)),
            seed,
            ring: KeyRing::single(secret),
            used_tokens: Arc::new(MemoryRegister::default()),
            memory: ProcessBudget::default(),
        }
    }
}

/// Policy of a server for address validation before it keeps state for a client (RFC 9000 §8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Never.
    Never,
    /// Always; costs each new client a round trip.
    Always,
    /// While more handshakes than this are incomplete.
    Above(usize),
}

/// Chooser of the transport settings of connections, by the properties of their first packet.
pub trait ProfileChooser: Send + Sync {
    /// Returns the profile for a client at this address; `None` for that of the configuration.
    fn choose(&self, remote: SocketAddr) -> Option<Arc<Profile>>;
}

/// Configuration of accepted connections.
#[derive(Clone)]
pub struct ServerConfig {
    /// TLS configuration of the server.
    pub tls: Arc<dyn ServerTls>,
    /// Transport settings of accepted connections.
    pub profile: Arc<Profile>,
    /// Chooser of other settings for some connections.
    pub profiles: Option<Arc<dyn ProfileChooser>>,
    /// Address validation by Retry.
    pub retry: RetryPolicy,
    /// Largest number of connections at a time; more are refused with CONNECTION_REFUSED.
    pub max_connections: usize,
    /// Send a token with which the client skips address validation next time (NEW_TOKEN, RFC 9000 §8.1.3).
    pub send_token: bool,
    /// Supported versions of QUIC, see [`wire::version`]. Others are answered with Version Negotiation.
    pub versions: Vec<u32>,
    /// Version to which clients that offer it are moved, whatever the version of their first packet (RFC 9368).
    pub upgrade_to: Option<u32>,
    /// Allow clients to migrate. Otherwise they are asked not to (`disable_active_migration`); a NAT may rebind nevertheless.
    pub migration: bool,
    /// Addresses that clients migrate to once the handshake is confirmed (RFC 9000 §9.6). Datagrams that arrive there have to
    /// reach the same endpoint, with that address as [`Datagram::local`](crate::Datagram::local).
    pub preferred_address: PreferredAddresses,
    /// Observers of accepted connections, from their first packet on.
    pub observe: Option<Arc<dyn ObserverFactory>>,
}

impl ServerConfig {
    /// Configuration with default limits.
    pub fn new(tls: Arc<dyn ServerTls>, profile: Arc<Profile>) -> Self {
        let retry = RetryPolicy::Above(1_000);
        Self {
            tls,
            profile,
            profiles: None,
            retry,
            max_connections: 100_000,
            send_token: true,
            versions: vec![version::V1, version::V2],
            upgrade_to: None,
            migration: true,
            preferred_address: PreferredAddresses::default(),
            observe: None,
        }
    }
}

/// Preferred addresses of a server, by family; a client uses that of its own family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredAddresses {
    /// IPv4 address and port.
    pub ipv4: Option<SocketAddrV4>,
    /// IPv6 address and port.
    pub ipv6: Option<SocketAddrV6>,
}

impl PreferredAddresses {
    pub(crate) fn is_empty(&self) -> bool {
        self.ipv4.is_none() && self.ipv6.is_none()
    }
}

/// Configuration of a connection to open.
#[derive(Clone)]
pub struct ClientConfig {
    /// TLS configuration of the client.
    pub tls: Arc<dyn ClientTls>,
    /// Transport settings of the connection.
    pub profile: Arc<Profile>,
    /// Token from an earlier connection to the same server, in place of one from `tokens`.
    pub token: Vec<u8>,
    /// Store of the tokens that servers give, for the next connections with this configuration or its copies. `None`: tokens
    /// are reported ([`Event::TokenReceived`](crate::Event::TokenReceived)) and not stored.
    pub tokens: Option<Arc<dyn TokenStore>>,
    /// Version of QUIC of the first packet, see [`wire::version`].
    pub version: u32,
    /// Versions that the server may choose from, the preferred one first.
    pub versions: Vec<u32>,
    /// The connection follows from a Version Negotiation packet.
    pub reacts: bool,
    /// Migrate to the server's preferred address, if the path there works.
    pub follow_preferred_address: bool,
    /// Observer of the connection, from its first packet on.
    pub observe: Option<Arc<dyn ObserverFactory>>,
}

impl ClientConfig {
    /// Configuration of a first connection, without a token.
    pub fn new(tls: Arc<dyn ClientTls>, profile: Arc<Profile>) -> Self {
        Self {
            tls,
            profile,
            token: Vec::new(),
            tokens: Some(Arc::new(MemoryTokens::default())),
            version: version::V1,
            versions: vec![version::V1, version::V2],
            reacts: false,
            follow_preferred_address: true,
            observe: None,
        }
    }

    /// Returns the configuration of another attempt, after the server has answered with
    /// [`CloseReason::VersionMismatch`](crate::CloseReason): the same with a version that the server offered. `None` when there
    /// is none in common.
    ///
    /// The answer was not authentic. In the handshake of the other attempt the server has to confirm it, or the
    /// connection is refused (RFC 9368 §4).
    pub fn react_to(&self, offered: &[u32]) -> Option<Self> {
        // RFC 9368 §2.1 SHALL-2, SHALL-3, SHALL-4: with a version that both speak, or not at all
        let version = select_version(&self.versions, offered)?;
        // RFC 9368 §6 MUST-1: the other attempt is a whole connection with a handshake of its own, ALPN included
        Some(Self { version, reacts: true, ..self.clone() })
    }
}

/// Error of a connection that could not be started.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// TLS refuses the server name or the configuration.
    #[error("cannot start TLS: {0}")]
    Tls(#[from] TlsError),
}

/// Returns the version that a client takes of a server's offer; the client supports `available`, the preferred one first.
pub(crate) fn select_version(available: &[u32], offered: &[u32]) -> Option<u32> {
    available.iter().copied().find(|version| Labels::of(*version).is_some() && offered.contains(version))
}
