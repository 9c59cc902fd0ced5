//! Configurations for clients and servers, checked when they are built.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{KeyLog, NoKeyLog};
use wire::Side;

use super::identity::{ConfigError, Identity, List, certificates, root_store};
use super::secrets::{Capture, Secrets};
use super::store::Sessions;
use super::tickets::{Settings, TicketStats, Tickets, limits};
use super::{Connection, RustlsSession, packet_keys, quic_version};
use crate::crypto::CipherSuite;
use crate::ring::{KeyRing, StrikeRegister};
use crate::tls::{ClientTls, MemoryTickets, ServerTls, Session, TicketStore, TlsError};

/// A wall clock that stands still, so that certificates are judged the same in every run of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct FixedClock {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub unix_secs: u64,
}

impl TimeProvider for FixedClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(self.unix_secs)))
    }
}

/// A way to agree on keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyExchange {
    /// Hybrid of X25519 and ML-KEM-768: safe against quantum computers as long as ML-KEM holds, and against all others
    /// as long as X25519 does. Its key share makes the ClientHello longer than one datagram.
    X25519MlKem768,
    /// X25519.
    X25519,
    /// NIST P-256.
    Secp256r1,
    /// NIST P-384.
    Secp384r1,
}

impl KeyExchange {
    /// The default: what is safest first.
    pub const ALL: [Self; 4] = [Self::X25519MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];
}

/// Settings that client and server configurations have in common.
#[derive(Clone, Debug)]
struct Common {
    alpn: Vec<Vec<u8>>,
    suites: Vec<CipherSuite>,
    groups: Vec<KeyExchange>,
    clock: Arc<dyn TimeProvider>,
    key_log: Arc<dyn KeyLog>,
    early_data: bool,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            alpn: Vec::new(),
            suites: vec![CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305],
            groups: KeyExchange::ALL.to_vec(),
            clock: Arc::new(DefaultTimeProvider),
            key_log: Arc::new(NoKeyLog),
            early_data: false,
        }
    }
}

impl Common {
    fn check(&self) -> Result<(), ConfigError> {
        // RFC 9000 §7 MUST-2: an application protocol is agreed upon explicitly
        // RFC 9001 §8.1 MUST-1: ALPN is how the application protocol is agreed upon
        // RFC 9001 §8.1 MUST-2: without agreement the connection ends with no_application_protocol
        // RFC 9001 §8.1 MUST-3: a client too ends a connection without ALPN with no_application_protocol
        // RFC 9001 §8.1 MUST-5: a server that finds no protocol closes with no_application_protocol
        if self.alpn.is_empty() {
            return Err(ConfigError::NoAlpn);
        }
        if self.alpn.iter().any(|name| name.is_empty() || name.len() > 255) {
            return Err(ConfigError::BadAlpn);
        }
        Ok(())
    }

    fn provider(&self) -> Result<Arc<CryptoProvider>, ConfigError> {
        if self.suites.is_empty() {
            return Err(ConfigError::Empty(List::CipherSuites));
        }
        if self.groups.is_empty() {
            return Err(ConfigError::Empty(List::KeyExchanges));
        }
        let cipher_suites = self.suites.iter().map(|suite| packet_keys::supported(*suite));
        let kx_groups = self.groups.iter().map(|group| match group {
            KeyExchange::X25519MlKem768 => kx_group::X25519MLKEM768,
            KeyExchange::X25519 => kx_group::X25519,
            KeyExchange::Secp256r1 => kx_group::SECP256R1,
            KeyExchange::Secp384r1 => kx_group::SECP384R1,
        });
        Ok(Arc::new(CryptoProvider {
            cipher_suites: cipher_suites.collect(),
            kx_groups: kx_groups.collect(),
            ..default_provider()
        }))
    }
}

/// The settings that both builders offer.
macro_rules! common_settings {
    () => {
        /// Adds an application protocol; the first one is preferred. At least one is required.
        #[must_use]
        pub fn alpn(mut self, name: impl Into<Vec<u8>>) -> Self {
            self.common.alpn.push(name.into());
            self
        }

        /// Only these cipher suites, the preferred one first. Initial packets always use AES-128-GCM.
        #[must_use]
        pub fn cipher_suites(mut self, suites: impl Into<Vec<CipherSuite>>) -> Self {
            self.common.suites = suites.into();
            self
        }

        /// Only these ways to agree on keys, the preferred one first.
        #[must_use]
        pub fn key_exchanges(mut self, groups: impl Into<Vec<KeyExchange>>) -> Self {
            self.common.groups = groups.into();
            self
        }

        /// The wall clock by which certificates and tickets are judged; the default is the system's.
        #[must_use]
        pub fn clock(mut self, clock: Arc<dyn TimeProvider>) -> Self {
            self.common.clock = clock;
            self
        }

        /// Passes all secrets on to this key log, for debugging (`rustls::KeyLogFile` obeys SSLKEYLOGFILE).
        #[must_use]
        pub fn key_log(mut self, log: Arc<dyn KeyLog>) -> Self {
            self.common.key_log = log;
            self
        }
    };
}

/// Trust anchors of a client.
enum Trust {
    Platform,
    Roots(Vec<CertificateDer<'static>>),
    Verifier(Arc<dyn ServerCertVerifier>),
}

/// Builds a [`RustlsClient`].
pub struct ClientBuilder {
    common: Common,
    trust: Trust,
    identity: Option<Identity>,
    tickets: Option<Arc<dyn TicketStore>>,
    resume: bool,
}

impl ClientBuilder {
    common_settings!();

    /// Trusts what the platform trusts. This is the default.
    #[must_use]
    pub fn platform_roots(mut self) -> Self {
        self.trust = Trust::Platform;
        self
    }

    /// Trusts these root certificates (DER) and no others.
    #[must_use]
    pub fn roots(mut self, roots: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.trust = Trust::Roots(roots.into_iter().map(CertificateDer::from).collect());
        self
    }

    /// Trusts the root certificates in a PEM file and no others.
    pub fn roots_pem(mut self, pem: &[u8]) -> Result<Self, ConfigError> {
        self.trust = Trust::Roots(certificates(pem)?);
        Ok(self)
    }

    /// Lets `verifier` judge the server's certificate alone, for example by a pinned key.
    #[must_use]
    pub fn verifier(mut self, verifier: Arc<dyn ServerCertVerifier>) -> Self {
        self.trust = Trust::Verifier(verifier);
        self
    }

    /// Presents this certificate to servers that request one.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Store of tickets for resumption; the default is [`MemoryTickets`] of this configuration's own. rustls resumes a
    /// session only with the configuration, or a clone of it, that began it.
    #[must_use]
    pub fn ticket_store(mut self, store: Arc<dyn TicketStore>) -> Self {
        self.tickets = Some(store);
        self
    }

    /// Resumes no session: every handshake is a full one.
    #[must_use]
    pub fn without_resumption(mut self) -> Self {
        self.resume = false;
        self
    }

    /// Offers early data when a session with the server is resumed. The default is not to.
    #[must_use]
    pub fn early_data(mut self, offer: bool) -> Self {
        self.common.early_data = offer;
        self
    }

    /// Checks the settings.
    pub fn build(self) -> Result<RustlsClient, ConfigError> {
        self.common.check()?;
        let provider = self.common.provider()?;
        let versions =
            rustls::ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&self.common.clock));
        // RFC 9001 §4.2 MUST NOT-1: no TLS before 1.3 is offered
        // RFC 9001 §4.2 MUST-1: no TLS before 1.3 is accepted
        // RFC 9000 §7 MUST-1: the handshake authenticates the server, gives fresh keys to both, and protects
        // transport parameters and ALPN
        let verifiers = versions.with_protocol_versions(&[&rustls::version::TLS13]).map_err(ConfigError::refused)?;
        let identities = match self.trust {
            Trust::Platform => verifiers.dangerous().with_custom_certificate_verifier(Arc::new(
                rustls_platform_verifier::Verifier::new(provider).map_err(ConfigError::platform_roots)?,
            )),
            Trust::Verifier(verifier) => verifiers.dangerous().with_custom_certificate_verifier(verifier),
            // RFC 9001 §4.4 MUST-1: the client checks who the server is
            Trust::Roots(roots) => verifiers.with_root_certificates(root_store(roots)?),
        };
        let mut config = match self.identity {
            None => identities.with_no_client_auth(),
            Some(identity) => {
                identities.with_client_auth_cert(identity.chain, identity.key).map_err(ConfigError::of_identity)?
            }
        };
        config.alpn_protocols = self.common.alpn;
        // RFC 9001 §8.3 MUST NOT-1: no EndOfEarlyData
        config.enable_early_data = self.common.early_data;
        config.key_log = self.common.key_log;
        let tickets = self.tickets.unwrap_or_else(|| Arc::new(MemoryTickets::default()));
        config.resumption = match self.resume {
            true => Resumption::store(Arc::new(Sessions::new(tickets))),
            false => Resumption::disabled(),
        };
        RustlsClient::from_config(config)
    }
}

/// A client configuration on rustls.
#[derive(Clone, Debug)]
pub struct RustlsClient {
    config: Arc<rustls::ClientConfig>,
}

impl RustlsClient {
    /// Starts from the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { common: Common::default(), trust: Trust::Platform, identity: None, tickets: None, resume: true }
    }

    /// Takes a configuration made with rustls, for options that the builder lacks. Its key log still gets every secret.
    pub fn from_config(mut config: rustls::ClientConfig) -> Result<Self, ConfigError> {
        if config.alpn_protocols.is_empty() {
            return Err(ConfigError::NoAlpn);
        }
        config.key_log = Arc::new(Capture { user: config.key_log });
        Ok(Self { config: Arc::new(config) })
    }
}

impl ClientTls for RustlsClient {
    fn start(&self, version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let mut secrets = Secrets::for_version(version);
        let version = quic_version(version)?;
        let name =
            ServerName::try_from(server_name.to_owned()).map_err(|_| TlsError::invalid_server_name(server_name))?;
        let client = secrets
            // RFC 9001 §8.2 MUST-1: transport parameters are sent
            .capture(|| rustls::quic::ClientConnection::new(Arc::clone(&self.config), version, name, parameters))
            .map_err(|error| TlsError::internal(error.to_string()))?;
        let server_name = Some(server_name.to_owned());
        Ok(Box::new(RustlsSession::new(Connection::Client(client), Side::Client, server_name, secrets)))
    }
}

/// Builds a [`RustlsServer`].
pub struct ServerBuilder {
    common: Common,
    identity: Option<Identity>,
    certificates: Option<Arc<dyn ResolvesServerCert>>,
    client_roots: Option<Vec<CertificateDer<'static>>>,
    client_required: bool,
    tickets: usize,
    settings: Settings,
}

impl ServerBuilder {
    common_settings!();

    /// The server's certificate chain and key. Required.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Chooses the certificate by the ClientHello, such as its server name, in place of [`identity`](Self::identity).
    #[must_use]
    pub fn certificates(mut self, certificates: Arc<dyn ResolvesServerCert>) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Asks clients for a certificate under one of these roots (DER). With `required`, clients without one are refused;
    /// a certificate that is shown must be good either way.
    #[must_use]
    pub fn client_roots(mut self, roots: impl IntoIterator<Item = Vec<u8>>, required: bool) -> Self {
        self.client_roots = Some(roots.into_iter().map(CertificateDer::from).collect());
        self.client_required = required;
        self
    }

    server_settings!();

    /// Checks the settings.
    pub fn build(self) -> Result<RustlsServer, ConfigError> {
        self.common.check()?;
        let provider = self.common.provider()?;
        let versions =
            rustls::ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&self.common.clock));
        // RFC 9001 §4.2 MUST-1: no TLS before 1.3 is accepted
        let verifiers = versions.with_protocol_versions(&[&rustls::version::TLS13]).map_err(ConfigError::refused)?;
        let identities = match self.client_roots {
            // RFC 9001 §4.4 MUST NOT-1: client certificates are asked for during the handshake only
            // RFC 9001 §4.4 MUST NOT-2: no CertificateRequest after it
            None => verifiers.with_no_client_auth(),
            Some(roots) => {
                let store = Arc::new(root_store(roots)?);
                let mut verifier = WebPkiClientVerifier::builder_with_provider(store, provider);
                if !self.client_required {
                    verifier = verifier.allow_unauthenticated();
                }
                verifiers.with_client_cert_verifier(verifier.build().map_err(ConfigError::refused)?)
            }
        };
        let mut config = match (self.certificates, self.identity) {
            (Some(certificates), _) => identities.with_cert_resolver(certificates),
            (None, Some(identity)) => {
                identities.with_single_cert(identity.chain, identity.key).map_err(ConfigError::of_identity)?
            }
            (None, None) => return Err(ConfigError::NoIdentity),
        };
        config.alpn_protocols = self.common.alpn;
        config.send_tls13_tickets = self.tickets;
        // RFC 9001 §4.6.1 MUST NOT-1: the only value besides 0 that QUIC knows.
        config.max_early_data_size = if self.common.early_data { u32::MAX } else { 0 };
        config.key_log = self.common.key_log;
        self.settings.check()?;
        let tickets = Tickets::new(self.settings, self.common.clock).ok_or(ConfigError::NoRandomness)?;
        let tickets = Arc::new(tickets);
        config.session_storage = tickets.clone();
        Ok(RustlsServer { tickets: Some(tickets), ..RustlsServer::from_config(config)? })
    }
}

/// A server configuration on rustls.
#[derive(Clone, Debug)]
pub struct RustlsServer {
    config: Arc<rustls::ServerConfig>,
    tickets: Option<Arc<Tickets>>,
}

impl RustlsServer {
    /// Starts from the defaults.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            common: Common::default(),
            identity: None,
            certificates: None,
            client_roots: None,
            client_required: false,
            tickets: 2,
            settings: Settings::default(),
        }
    }

    /// Takes a configuration made with rustls, for options that the builder lacks, such as many certificates chosen by name. Its key log
    /// still gets every secret. Tickets are those of the configuration.
    pub fn from_config(mut config: rustls::ServerConfig) -> Result<Self, ConfigError> {
        if config.alpn_protocols.is_empty() {
            return Err(ConfigError::NoAlpn);
        }
        config.key_log = Arc::new(Capture { user: config.key_log });
        Ok(Self { config: Arc::new(config), tickets: None })
    }

    /// Counters of tickets and early data; all zeros when the configuration was made with rustls itself.
    pub fn ticket_stats(&self) -> TicketStats {
        self.tickets.as_ref().map_or_else(TicketStats::default, |tickets| tickets.stats())
    }
}

impl ServerTls for RustlsServer {
    fn start(&self, version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let secrets = Secrets::for_version(version);
        let version = quic_version(version)?;
        let limits = limits(&parameters);
        let server = rustls::quic::ServerConnection::new(Arc::clone(&self.config), version, parameters)
            .map_err(|error| TlsError::internal(error.to_string()))?;
        let session = RustlsSession::new(Connection::Server(server), Side::Server, None, secrets);
        Ok(Box::new(match &self.tickets {
            Some(tickets) => session.with_tickets(Arc::clone(tickets), limits, self.config.max_early_data_size > 0),
            None => session,
        }))
    }
}
