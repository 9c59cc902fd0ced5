//! State of a signer: a configuration at work, with its private keys.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{ServerConfig, pki_types::CertificateDer, server::WebPkiClientVerifier, sign::CertifiedKey};
use tokio_rustls::TlsAcceptor;

use super::{
    config::{Identity, KeyPlace, Resolved},
    counters::Counters,
    error::SignerStartError,
    token::{Logins, Token, TokenError, TokenKey},
};
use crate::{
    certificate::{self, CertificateError, provider},
    remote_signer::{
        key_id,
        protocol::{ALPN, KeyId},
    },
    trust::{RootsError, store},
};

/// State of a signer.
pub(super) struct Shared {
    /// Keys by their names, and TLS of new connections.
    pub(super) current: RwLock<Arc<Current>>,
    pub(super) counters: Counters,
}

/// Private key of an identity.
#[derive(Clone)]
pub(super) enum PrivateKey {
    Here(Arc<CertifiedKey>),
    InToken(Arc<TokenKey>),
}

/// A configuration at work.
pub(super) struct Current {
    pub(super) keys: HashMap<KeyId, PrivateKey>,
    pub(super) token: Option<Arc<Token>>,
    pub(super) tls: TlsAcceptor,
    pub(super) connections: usize,
    pub(super) waiting: usize,
}

impl Shared {
    /// The configuration in use.
    pub(super) fn current(&self) -> Arc<Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Current {
    /// Loads keys and certificates. A token that `before` has is used again where its configuration is the same.
    ///
    /// # Errors
    /// When a key or a certificate cannot be used, or the token.
    pub(super) fn build(
        config: &Resolved,
        before: Option<&Self>,
        logins: &Arc<Logins>,
    ) -> Result<Self, SignerStartError> {
        let token = token(config, before, logins)?;
        let mut keys = HashMap::new();
        for identity in &config.identities {
            let (id, key) = private_key(identity, token.as_ref())?;
            keys.insert(id, key);
        }
        let own = certificate::read(&config.certificate, &config.key)?;
        let file = || config.clients.clone();
        let pem = std::fs::read(&config.clients).map_err(|source| RootsError::Unreadable { file: file(), source })?;
        let roots = Arc::new(store(&pem).map_err(|fault| fault.within(&config.clients))?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider().clone()).build();
        let verifier = verifier.map_err(|source| RootsError::NoVerifier { file: file(), source })?;
        let builder = ServerConfig::builder_with_provider(provider().clone());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.map_err(CertificateError::Refused)?.with_client_cert_verifier(verifier);
        let mut tls = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // A certificate that is not accepted any more shall not live on in a session.
        tls.send_tls13_tickets = 0;
        let Resolved { connections, waiting, .. } = *config;
        Ok(Self { keys, token, tls: TlsAcceptor::from(Arc::new(tls)), connections, waiting })
    }
}

/// Opens the token of a configuration, unless it is open.
fn token(
    config: &Resolved,
    before: Option<&Current>,
    logins: &Arc<Logins>,
) -> Result<Option<Arc<Token>>, SignerStartError> {
    let Some(config) = &config.token else { return Ok(None) };
    let open = before.and_then(|before| before.token.clone()).filter(|token| token.is_of(config));
    Ok(Some(match open {
        Some(token) => token,
        None => Arc::new(Token::open(config.clone(), logins.clone())?),
    }))
}

/// Key of an identity, with its name.
fn private_key(identity: &Identity, token: Option<&Arc<Token>>) -> Result<(KeyId, PrivateKey), SignerStartError> {
    let Identity { certificate: file, key } = identity;
    let name = |chain: &[CertificateDer<'_>]| {
        let id = chain.first().and_then(key_id);
        id.ok_or_else(|| CertificateError::NoCertificate(file.clone()))
    };
    match key {
        KeyPlace::File(key) => {
            let certified = certificate::read(file, key)?;
            Ok((name(&certified.cert)?, PrivateKey::Here(Arc::new(certified))))
        }
        KeyPlace::Token(key) => {
            let chain = certificate::read_chain(file)?;
            let id = name(&chain)?;
            let token = token.ok_or_else(|| TokenError::NoDevice(key.to_string()))?;
            let key = TokenKey::open(token, key.clone(), file, &chain[0])?;
            Ok((id, PrivateKey::InToken(Arc::new(key))))
        }
    }
}
