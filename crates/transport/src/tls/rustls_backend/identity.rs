//! Certificates and keys in the user's formats, and errors of a configuration.

use std::fmt;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Fault of a configuration. It is always the user's to mend.
///
/// ```
/// use transport::tls::rustls_backend::{ConfigError, Credential, Identity, RustlsClient};
///
/// let error = RustlsClient::builder().build().unwrap_err();
/// assert_eq!(error, ConfigError::NoAlpn);
///
/// let error = Identity::from_pem(b"", b"").unwrap_err();
/// assert!(matches!(error, ConfigError::Missing { item: Credential::PrivateKey, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
    /// An empty list.
    #[error("the list of {0} is empty")]
    Empty(List),
    /// State for early data that is longer than its place in a ticket.
    #[error("the state for early data is too long")]
    EarlyDataStateTooLong {
        /// Bytes of the state.
        len: usize,
        /// Most bytes that a ticket takes.
        max: usize,
    },
    /// A certificate or a key that cannot be read.
    #[error("{item} cannot be read: {why}")]
    Unreadable {
        /// Credential with the fault.
        item: Credential,
        /// Words of the parser.
        why: String,
    },
    /// Readable PEM with no certificate or no key in it.
    #[error("{item} cannot be read: {why}")]
    Missing {
        /// Credential that is not there.
        item: Credential,
        /// Words of the parser.
        why: String,
    },
    /// A private key that is not the one of the certificate.
    #[error("{reason}")]
    KeyMismatch {
        /// Words of the TLS library.
        reason: String,
    },
    /// A private key of a kind that the TLS library cannot use.
    #[error("{reason}")]
    UnusableKey {
        /// Words of the TLS library.
        reason: String,
    },
    /// A certificate that the TLS library cannot use.
    #[error("{reason}")]
    UnusableCertificate {
        /// Words of the TLS library.
        reason: String,
    },
    /// No access to the root certificates of the operating system.
    #[error("{reason}")]
    PlatformRoots {
        /// Words of the TLS library or of the system.
        reason: String,
    },
    /// No random numbers from the operating system.
    #[error("no random numbers")]
    NoRandomness,
    /// Any other refusal of the TLS library.
    #[error("{reason}")]
    Refused {
        /// Words of the TLS library.
        reason: String,
    },
}

/// Lists of a configuration that may not be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum List {
    /// Cipher suites.
    CipherSuites,
    /// Key exchanges.
    KeyExchanges,
    /// Root certificates.
    RootCertificates,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CipherSuites => "cipher suites",
            Self::KeyExchanges => "key exchanges",
            Self::RootCertificates => "root certificates",
        })
    }
}

/// Credentials that a configuration reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// Private key of an identity.
    PrivateKey,
    /// List of certificates in PEM: a chain or roots.
    Certificates,
    /// A certificate in DER.
    Certificate,
    /// A certificate among the roots.
    RootCertificate,
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrivateKey => "the private key",
            Self::Certificates => "the certificates",
            Self::Certificate => "a certificate",
            Self::RootCertificate => "a root certificate",
        })
    }
}

impl ConfigError {
    pub(in crate::tls) fn unreadable(item: Credential, why: impl ToString) -> Self {
        Self::Unreadable { item, why: why.to_string() }
    }

    pub(in crate::tls) fn refused(reason: impl ToString) -> Self {
        Self::Refused { reason: reason.to_string() }
    }

    pub(in crate::tls) fn platform_roots(reason: impl ToString) -> Self {
        Self::PlatformRoots { reason: reason.to_string() }
    }

    /// Fault of a chain and its key that rustls refuses. Its general error has one source there: a key of an unknown kind.
    pub(super) fn of_identity(error: rustls::Error) -> Self {
        let reason = error.to_string();
        match error {
            rustls::Error::InconsistentKeys(_) => Self::KeyMismatch { reason },
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                Self::UnusableCertificate { reason }
            }
            rustls::Error::General(_) => Self::UnusableKey { reason },
            _ => Self::Refused { reason },
        }
    }

    /// Fault of PEM.
    fn of_pem(item: Credential, error: pem::Error) -> Self {
        let why = error.to_string();
        match error {
            pem::Error::NoItemsFound => Self::Missing { item, why },
            _ => Self::Unreadable { item, why },
        }
    }
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
        let key = PrivateKeyDer::try_from(key).map_err(|why| ConfigError::unreadable(Credential::PrivateKey, why))?;
        Ok(Self { chain: chain.into_iter().map(CertificateDer::from).collect(), key })
    }

    /// From PEM: a file with the chain, and a file with the key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| ConfigError::of_pem(Credential::PrivateKey, error))?;
        Ok(Self { chain: certificates(chain)?, key })
    }
}

/// The certificates in a PEM file; an error when there are none.
pub(in crate::tls) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let list: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| ConfigError::of_pem(Credential::Certificates, error))?;
    if list.is_empty() {
        let why = "there are none in the file".to_owned();
        return Err(ConfigError::Missing { item: Credential::Certificates, why });
    }
    Ok(list)
}

/// A store of these root certificates.
pub(super) fn root_store(roots: Vec<CertificateDer<'static>>) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root).map_err(|why| ConfigError::unreadable(Credential::RootCertificate, why))?;
    }
    if store.is_empty() { Err(ConfigError::Empty(List::RootCertificates)) } else { Ok(store) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{TlsError, rustls_backend::RustlsServer};

    #[test]
    fn errors_go_where_question_marks_send_them() {
        fn takes<E: std::error::Error + Send + Sync + 'static>() {}
        takes::<ConfigError>();
        takes::<TlsError>();
    }

    #[test]
    fn faults_of_pem_are_told_apart() {
        let missing = Identity::from_pem(b"no", b"no").unwrap_err();
        assert!(matches!(missing, ConfigError::Missing { item: Credential::PrivateKey, .. }), "{missing:?}");
        let (begin, end) = ("-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----\n");
        let unreadable = Identity::from_pem(b"", format!("{begin}?\n{end}").as_bytes()).unwrap_err();
        assert!(matches!(unreadable, ConfigError::Unreadable { item: Credential::PrivateKey, .. }), "{unreadable:?}");
        let no_chain = Identity::from_pem(b"", format!("{begin}AAAA\n{end}").as_bytes()).unwrap_err();
        assert!(matches!(no_chain, ConfigError::Missing { item: Credential::Certificates, .. }), "{no_chain:?}");
        assert_eq!(no_chain.to_string(), "the certificates cannot be read: there are none in the file");
    }

    #[test]
    fn keys_of_others_are_told_from_keys_of_no_use() {
        let identity = || {
            let certified = rcgen::generate_simple_self_signed(vec!["host.test".to_owned()]).unwrap();
            let chain = vec![certified.cert.der().to_vec()];
            Identity::from_der(chain, certified.signing_key.serialize_der()).unwrap()
        };
        let (one, other) = (identity(), identity());
        let build = |identity| RustlsServer::builder().alpn("test").identity(identity).build().unwrap_err();
        let mismatch = build(Identity { chain: one.chain.clone(), key: other.key });
        assert!(matches!(mismatch, ConfigError::KeyMismatch { .. }), "{mismatch:?}");
        let pkcs8 = rustls::pki_types::PrivatePkcs8KeyDer::from(vec![0; 8]);
        let unusable = build(Identity { chain: one.chain, key: pkcs8.into() });
        assert!(matches!(unusable, ConfigError::UnusableKey { .. }), "{unusable:?}");
    }
}
