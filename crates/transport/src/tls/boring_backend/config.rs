//! Configurations for clients and servers, checked when they are built.

use std::{net::IpAddr, sync::Arc};

use boring::{
    error::ErrorStack,
    pkey::PKey,
    ssl::{AlpnError, Ssl, SslContext, SslContextBuilder, SslMethod, SslSessionCacheMode, SslVerifyMode, SslVersion},
    x509::{X509, store::X509StoreBuilder},
};
use rustls::{
    pki_types::CertificateDer,
    time_provider::{DefaultTimeProvider, TimeProvider},
};
use wire::Side;

use super::{
    key, library,
    session::BoringSession,
    signer::Signer,
    state::{Shared, State},
    ticket::Remembered,
};
use crate::{
    ring::{KeyRing, StrikeRegister},
    tls::{
        ClientTls, MemoryTickets, ServerTls, Session, TicketStore, TlsError,
        rustls_backend::{
            ConfigError, Credential, Identity, KeyExchange, List, TicketStats, Tickets,
            identity::certificates,
            tickets::{Settings, limits},
        },
    },
};

/// Signature schemes that a client accepts from servers: ECDSA, RSA-PSS and Ed25519 (RFC 8446 §4.2.3).
const SIGNATURES: [u16; 7] = [0x0403, 0x0804, 0x0807, 0x0503, 0x0805, 0x0603, 0x0806];

/// Reasons of the library for a private key that is not the one of the certificate.
const MISMATCH: [&str; 2] = ["KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"];

/// Settings that client and server configurations have in common.
struct Common {
    alpn: Vec<Vec<u8>>,
    groups: Vec<KeyExchange>,
    clock: Arc<dyn TimeProvider>,
    early_data: bool,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            alpn: Vec::new(),
            groups: KeyExchange::ALL.to_vec(),
            clock: Arc::new(DefaultTimeProvider),
            early_data: false,
        }
    }
}

impl Common {
    /// The protocols as ALPN has them on the wire.
    // RFC 9001 §8.1 MUST-1: ALPN is how the application protocol is agreed upon; without agreement BoringSSL ends a QUIC
    // handshake with no_application_protocol on both sides.
    fn protocols(&self) -> Result<Vec<u8>, ConfigError> {
        if self.alpn.is_empty() {
            return Err(ConfigError::NoAlpn);
        }
        let mut list = Vec::new();
        for name in &self.alpn {
            match u8::try_from(name.len()) {
                Ok(len) if len > 0 => list.push(len),
                _ => return Err(ConfigError::BadAlpn),
            }
            list.extend_from_slice(name);
        }
        Ok(list)
    }

    fn context(&self) -> Result<SslContextBuilder, ConfigError> {
        if self.groups.is_empty() {
            return Err(ConfigError::Empty(List::KeyExchanges));
        }
        let groups = self.groups.iter().map(|group| match group {
            KeyExchange::X25519MlKem768 => "X25519MLKEM768",
            KeyExchange::X25519 => "X25519",
            KeyExchange::Secp256r1 => "P-256",
            KeyExchange::Secp384r1 => "P-384",
        });
        let mut context = SslContext::builder(SslMethod::tls()).map_err(ConfigError::refused)?;
        // RFC 9001 §4.2 MUST NOT-1, MUST-1: TLS 1.3 and nothing before it
        context.set_min_proto_version(Some(SslVersion::TLS1_3)).map_err(ConfigError::refused)?;
        context.set_max_proto_version(Some(SslVersion::TLS1_3)).map_err(ConfigError::refused)?;
        context.set_curves_list(&groups.collect::<Vec<_>>().join(":")).map_err(ConfigError::refused)?;
        if library::use_quic(&mut context) { Ok(context) } else { Err(ConfigError::refused("BoringSSL refuses QUIC")) }
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
    };
}

/// Builds a [`BoringClient`].
pub struct ClientBuilder {
    common: Common,
    roots: Option<Vec<CertificateDer<'static>>>,
    tickets: Option<Arc<dyn TicketStore>>,
    resume: bool,
}

impl ClientBuilder {
    common_settings!();

    /// Trusts these root certificates (DER) and no others. The default are the files where OpenSSL's are on this system.
    #[must_use]
    pub fn roots(mut self, roots: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.roots = Some(roots.into_iter().map(CertificateDer::from).collect());
        self
    }

    /// Trusts the root certificates in a PEM file and no others.
    pub fn roots_pem(mut self, pem: &[u8]) -> Result<Self, ConfigError> {
        self.roots = Some(certificates(pem)?);
        Ok(self)
    }

    /// Store of tickets for resumption; the default is [`MemoryTickets`] of this configuration's own. Tickets of this
    /// backend can be written down, and resumed by every configuration that trusts the same servers.
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
    pub fn build(self) -> Result<BoringClient, ConfigError> {
        let protocols = self.common.protocols()?;
        let mut context = self.common.context()?;
        context.set_alpn_protos(&protocols).map_err(ConfigError::refused)?;
        // RFC 9001 §4.4 MUST-1: the client checks who the server is
        context.set_verify(SslVerifyMode::PEER);
        match self.roots {
            Some(roots) if roots.is_empty() => return Err(ConfigError::Empty(List::RootCertificates)),
            Some(roots) => {
                let mut store = X509StoreBuilder::new().map_err(ConfigError::refused)?;
                for root in roots {
                    store.add_cert(certificate(&root)?).map_err(ConfigError::refused)?;
                }
                context.set_cert_store_builder(store);
            }
            None => context.set_default_verify_paths().map_err(ConfigError::platform_roots)?,
        }
        if !library::set_accepted_signatures(&mut context, &SIGNATURES) {
            return Err(ConfigError::refused("BoringSSL does not know the ways to sign"));
        }
        context.set_session_cache_mode(SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL);
        context.set_new_session_callback(|ssl, session| {
            if let (Some(mut state), Ok(session)) = (library::shared(ssl).map(Shared::lock), session.to_der()) {
                state.on_ticket(session);
            }
        });
        let tickets = self.tickets.unwrap_or_else(|| Arc::new(MemoryTickets::default()));
        Ok(BoringClient {
            context: context.build(),
            clock: self.common.clock,
            early_data: self.common.early_data,
            tickets: self.resume.then_some(tickets),
        })
    }
}

fn certificate(der: &[u8]) -> Result<X509, ConfigError> {
    X509::from_der(der).map_err(|why| ConfigError::unreadable(Credential::Certificate, why))
}

/// Fault of a private key beside its certificate.
fn of_key(error: ErrorStack) -> ConfigError {
    let reason = error.to_string();
    if error.errors().iter().any(|error| error.reason().is_some_and(|reason| MISMATCH.contains(&reason))) {
        ConfigError::KeyMismatch { reason }
    } else {
        ConfigError::UnusableKey { reason }
    }
}

fn of_certificate(error: ErrorStack) -> ConfigError {
    ConfigError::UnusableCertificate { reason: error.to_string() }
}

/// A client configuration on BoringSSL.
#[derive(Clone)]
pub struct BoringClient {
    context: SslContext,
    clock: Arc<dyn TimeProvider>,
    early_data: bool,
    tickets: Option<Arc<dyn TicketStore>>,
}

impl BoringClient {
    /// Starts from the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { common: Common::default(), roots: None, tickets: None, resume: true }
    }
}

impl ClientTls for BoringClient {
    fn start(&self, version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let internal = |error: boring::error::ErrorStack| TlsError::internal(error.to_string());
        let mut ssl = Ssl::new(&self.context).map_err(internal)?;
        match server_name.parse::<IpAddr>() {
            // RFC 6066 §3: an address is no server name.
            Ok(address) => ssl.param_mut().set_ip(address).map_err(internal)?,
            Err(_) => {
                ssl.set_hostname(server_name).map_err(internal)?;
                ssl.param_mut().set_host(server_name).map_err(internal)?;
            }
        }
        // RFC 9369 §5 MUST NOT-1: a ticket is for the version of the connection that it came with.
        let remembered = self.tickets.as_ref().and_then(|tickets| {
            let ticket = tickets.take(server_name)?;
            Remembered::decode(ticket.as_bytes()?).filter(|ticket| ticket.version == version)
        });
        let remembered = remembered.filter(|ticket| library::resume(&mut ssl, &ticket.session));
        let mut state = State::new(Side::Client, version);
        state.store = self.tickets.clone().map(|store| (store, server_name.to_owned()));
        state.remembered = remembered.map(|ticket| ticket.parameters);
        if !library::prepare(&mut ssl, state, &parameters, self.early_data) {
            return Err(TlsError::internal("BoringSSL refuses the transport parameters"));
        }
        Ok(Box::new(BoringSession::client(ssl, Arc::clone(&self.clock), server_name.to_owned())?))
    }
}

/// A key that is elsewhere, with its certificates.
struct Remote {
    chain: Vec<Vec<u8>>,
    signer: Arc<dyn Signer>,
}

/// Builds a [`BoringServer`].
pub struct ServerBuilder {
    common: Common,
    identity: Option<Identity>,
    signer: Option<Remote>,
    tickets: usize,
    settings: Settings,
}

impl ServerBuilder {
    common_settings!();

    /// The server's certificate chain and key. Required, unless there is a [`signer`](Self::signer).
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Sets the server's certificate chain (DER, its own first) and its signer, for a key that is not in this process, or not readable.
    #[must_use]
    pub fn signer(mut self, chain: Vec<Vec<u8>>, signer: Arc<dyn Signer>) -> Self {
        self.signer = Some(Remote { chain, signer });
        self
    }

    server_settings!();

    /// Checks the settings.
    pub fn build(self) -> Result<BoringServer, ConfigError> {
        let protocols = self.common.protocols()?;
        let mut context = self.common.context()?;
        context.set_alpn_select_callback(move |_, offered| choose(&protocols, offered).ok_or(AlpnError::ALERT_FATAL));
        let signer = match (self.signer, self.identity) {
            (Some(Remote { chain, signer }), _) => {
                set_chain(&mut context, &chain)?;
                if !library::use_signer(&mut context, &signer.schemes()) {
                    return Err(ConfigError::refused("BoringSSL does not know the ways to sign"));
                }
                Some(signer)
            }
            (None, Some(identity)) => {
                let key = PKey::private_key_from_der(&key::readable(identity.key.secret_der()))
                    .map_err(|why| ConfigError::unreadable(Credential::PrivateKey, why))?;
                let chain: Vec<Vec<u8>> = identity.chain.iter().map(|certificate| certificate.to_vec()).collect();
                set_chain(&mut context, &chain)?;
                context.set_private_key(&key).map_err(of_key)?;
                None
            }
            (None, None) => return Err(ConfigError::NoIdentity),
        };
        library::use_tickets(&mut context, self.tickets);
        self.settings.check()?;
        let tickets = Tickets::new(self.settings, Arc::clone(&self.common.clock));
        Ok(BoringServer {
            context: context.build(),
            clock: self.common.clock,
            early_data: self.common.early_data,
            tickets: Arc::new(tickets.ok_or(ConfigError::NoRandomness)?),
            signer,
        })
    }
}

/// The names in a list as ALPN has it on the wire.
fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let (&len, after) = rest.split_first()?;
        let (name, next) = after.split_at_checked(len.into())?;
        rest = next;
        Some(name)
    })
}

/// First local protocol that the client offers, as a slice of the client's list.
fn choose<'a>(ours: &[u8], offered: &'a [u8]) -> Option<&'a [u8]> {
    names(ours).find_map(|name| names(offered).find(|offer| *offer == name))
}

fn set_chain(context: &mut SslContextBuilder, chain: &[Vec<u8>]) -> Result<(), ConfigError> {
    let Some((leaf, others)) = chain.split_first() else { return Err(ConfigError::NoIdentity) };
    context.set_certificate(&*certificate(leaf)?).map_err(of_certificate)?;
    for other in others {
        context.add_extra_chain_cert(certificate(other)?).map_err(of_certificate)?;
    }
    Ok(())
}

/// A server configuration on BoringSSL.
#[derive(Clone)]
pub struct BoringServer {
    context: SslContext,
    clock: Arc<dyn TimeProvider>,
    early_data: bool,
    tickets: Arc<Tickets>,
    signer: Option<Arc<dyn Signer>>,
}

impl BoringServer {
    /// Starts from the defaults.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            common: Common::default(),
            identity: None,
            signer: None,
            tickets: 2,
            settings: Settings::default(),
        }
    }

    /// Counters of tickets and early data.
    pub fn ticket_stats(&self) -> TicketStats {
        self.tickets.stats()
    }
}

impl ServerTls for BoringServer {
    fn start(&self, version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let mut ssl = Ssl::new(&self.context).map_err(|error| TlsError::internal(error.to_string()))?;
        let mut state = State::new(Side::Server, version);
        state.tickets = Some(Arc::clone(&self.tickets));
        let limits = limits(&parameters);
        state.limits = limits;
        state.signer.clone_from(&self.signer);
        if !library::prepare(&mut ssl, state, &parameters, self.early_data) {
            return Err(TlsError::internal("BoringSSL refuses the transport parameters"));
        }
        let (clock, tickets) = (Arc::clone(&self.clock), Arc::clone(&self.tickets));
        Ok(Box::new(BoringSession::server(ssl, clock, tickets, limits, self.early_data)))
    }
}
