//! Certificates and keys as the user has them, and what can be wrong with a configuration.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Fault of a configuration. It is always the user's to mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// QUIC needs an application protocol (RFC 9001 §8.1).
    #[error("no application protocol (ALPN) is given, and QUIC needs one")]
    NoAlpn,
    /// An application protocol's name has 1 to 255 bytes.
    #[error("the name of an application protocol is empty or longer than 255 bytes")]
    BadAlpn,
    /// A server without a certificate.
    #[error("a server needs a certificate and its private key")]
    NoIdentity,
    /// An empty list of cipher suites or of key exchanges.
    #[error("the list of {0} is empty")]
    Empty(&'static str),
    /// Longer than its place in a ticket.
    #[error("the {0} is too long")]
    TooLong(&'static str),
    /// A certificate or a key cannot be read.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// Name of the part.
        what: &'static str,
        /// Message of the parser.
        why: String,
    },
    /// rustls refuses the parts in this combination.
    #[error("{0}")]
    Refused(String),
}

/// A certificate chain with the private key of its first certificate.
#[derive(Debug)]
pub struct Identity {
    pub(in crate::tls) chain: Vec<CertificateDer<'static>>,
    pub(in crate::tls) key: PrivateKeyDer<'static>,
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Identity {
    /// From DER: the chain with the endpoint's own certificate first, and a key in PKCS #8, PKCS #1 or SEC 1.
    pub fn from_der(chain: Vec<Vec<u8>>, key: Vec<u8>) -> Result<Self, ConfigError> {
        let key = PrivateKeyDer::try_from(key)
            .map_err(|why| ConfigError::Unreadable { what: "the private key", why: why.to_owned() })?;
        Ok(Self { chain: chain.into_iter().map(CertificateDer::from).collect(), key })
    }

    /// From PEM: a file with the chain, and a file with the key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|why| ConfigError::Unreadable { what: "the private key", why: why.to_string() })?;
        Ok(Self { chain: certificates(chain)?, key })
    }
}

/// The certificates in a PEM file; an error when there are none.
pub(in crate::tls) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let unreadable = |why: String| ConfigError::Unreadable { what: "the certificates", why };
    let list: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|why| unreadable(why.to_string()))?;
    if list.is_empty() { Err(unreadable("there are none in the file".to_owned())) } else { Ok(list) }
}

/// A store of these root certificates.
pub(super) fn root_store(roots: Vec<CertificateDer<'static>>) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root).map_err(|why| ConfigError::Unreadable { what: "a root certificate", why: why.to_string() })?;
    }
    if store.is_empty() { Err(ConfigError::Empty("root certificates")) } else { Ok(store) }
}
