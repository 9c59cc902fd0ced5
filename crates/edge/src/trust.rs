//! Trust of the gateway as a TLS client: in back ends over TLS, and in the certificate authority.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, Error, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use tiderace::transport::tls::rustls_backend::CertificateCheck;

use crate::certificate::provider;

/// Roots of the certificates that are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Roots of the system.
    System,
    /// Roots in PEM only.
    Roots(Vec<u8>),
    /// No check of certificates: an attacker on the path can read and change everything.
    Anybody,
}

/// Root certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootsError {
    /// File that the system does not let be read.
    #[error("cannot read {file}: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// File with broken PEM or with a certificate that is no root.
    #[error("{file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// Words of the parser.
        why: String,
    },
    /// File without a certificate.
    #[error("{file}: expected certificates in PEM, found none")]
    Empty {
        /// The file.
        file: String,
    },
    /// No access to the roots of the system, or refusal of the TLS library.
    #[error("{0}")]
    Refused(#[from] Error),
}

impl Trust {
    /// A file of roots, or the system's where its name is empty.
    pub(crate) fn read(file: &str) -> Result<Self, RootsError> {
        if file.is_empty() {
            return Ok(Self::System);
        }
        let pem = std::fs::read(file).map_err(|source| RootsError::Unreadable { file: file.to_owned(), source })?;
        let roots = store(&pem).map_err(|why| RootsError::Malformed { file: file.to_owned(), why })?;
        if roots.is_empty() { Err(RootsError::Empty { file: file.to_owned() }) } else { Ok(Self::Roots(pem)) }
    }

    /// The configuration of a client that believes these, without ALPN.
    pub(crate) fn client(&self) -> Result<ClientConfig, RootsError> {
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match self {
            Self::Roots(pem) => builder.with_root_certificates(store(pem).map_err(Error::General)?),
            Self::System => {
                let verifier = Verifier::new(provider().clone())?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            Self::Anybody => {
                let verifier = Arc::new(CertificateCheck::new(|_| Ok(())));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        Ok(builder.with_no_client_auth())
    }
}

/// Reads roots; the error is in the words of the parser.
pub(crate) fn store(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}
