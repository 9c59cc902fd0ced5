//! Trust of the gateway as a TLS client: in back ends over TLS, and in the certificate authority.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, Error, RootCertStore,
    pki_types::{
        CertificateDer,
        pem::{self, PemObject},
    },
    server::VerifierBuilderError,
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
    /// File with broken PEM.
    #[error("{file}: {source}")]
    Malformed {
        /// The file.
        file: String,
        /// Fault of the text.
        source: pem::Error,
    },
    /// File with a certificate that is no root.
    #[error("{file}: {source}")]
    NoRoot {
        /// The file.
        file: String,
        /// Fault of the certificate.
        source: Error,
    },
    /// File with roots by which no client can be verified.
    #[error("{file}: {source}")]
    NoVerifier {
        /// The file.
        file: String,
        /// Error of the TLS library.
        source: VerifierBuilderError,
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
        let roots = store(&pem).map_err(|fault| fault.within(file))?;
        if roots.is_empty() { Err(RootsError::Empty { file: file.to_owned() }) } else { Ok(Self::Roots(pem)) }
    }

    /// The configuration of a client that believes these, without ALPN.
    pub(crate) fn client(&self) -> Result<ClientConfig, RootsError> {
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match self {
            Self::Roots(pem) => builder.with_root_certificates(store(pem).map_err(|fault| fault.within("roots"))?),
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

/// Fault of roots, wherever they stand.
#[derive(Debug)]
pub(crate) enum RootFault {
    Malformed(pem::Error),
    NoRoot(Error),
}

impl RootFault {
    /// Error of the file that has them.
    pub(crate) fn within(self, file: &str) -> RootsError {
        let file = file.to_owned();
        match self {
            Self::Malformed(source) => RootsError::Malformed { file, source },
            Self::NoRoot(source) => RootsError::NoRoot { file, source },
        }
    }
}

/// Reads roots.
///
/// # Errors
/// When the text is no PEM, or has a certificate that is no root.
pub(crate) fn store(pem: &[u8]) -> Result<RootCertStore, RootFault> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(RootFault::Malformed)?).map_err(RootFault::NoRoot)?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn each_cause_has_its_variant() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roots.pem");
        let name = path.to_str().unwrap();
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Trust::read(name).unwrap_err()
        };
        let missing = Trust::read(name).unwrap_err();
        assert!(matches!(&missing, RootsError::Unreadable { file, .. } if file == name), "{missing:?}");
        assert!(missing.source().unwrap().is::<io::Error>());
        let cut = error("-----BEGIN CERTIFICATE-----\nAAAA\n");
        assert!(matches!(&cut, RootsError::Malformed { file, .. } if file == name), "{cut:?}");
        assert!(cut.source().unwrap().is::<pem::Error>());
        let no_root = error("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(matches!(&no_root, RootsError::NoRoot { file, .. } if file == name), "{no_root:?}");
        assert!(no_root.source().unwrap().is::<Error>());
        assert!(matches!(error(""), RootsError::Empty { .. }));
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        std::fs::write(&path, made.cert.pem()).unwrap();
        Trust::read(name).unwrap().client().unwrap();
    }
}
