//! Certificates and their keys in PEM, and the cryptography under TLS.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{
    Error,
    client::verify_server_name,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use tiderace::transport::tls::rustls_backend::ConfigError;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// Certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// File that the system does not let be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
        /// True for the file of the key.
        key: bool,
    },
    /// File of certificates with broken PEM.
    #[error("cannot read {}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Fault of the text.
        source: pem::Error,
    },
    /// File without a certificate.
    #[error("expected certificates in PEM in {}, found none", .0.display())]
    NoCertificate(PathBuf),
    /// File without a private key.
    #[error("expected a private key in PEM in {}, found none", .0.display())]
    NoKey(PathBuf),
    /// Key of another certificate, or of a kind that TLS cannot use.
    #[error("the key in {} does not belong to the certificate: {source}", path.display())]
    Mismatch {
        /// File of the key.
        path: PathBuf,
        /// Error of the TLS library.
        source: Error,
    },
    /// Certificate whose key a signer cannot have.
    #[error("the certificate has a key of an unknown kind")]
    UnknownKey,
    /// Refusal of the TLS library.
    #[error("{0}")]
    Refused(#[from] Error),
    /// Refusal of the TLS library for QUIC.
    #[error("{0}")]
    Quic(#[from] ConfigError),
}

impl CertificateError {
    /// The key is to blame, and not the certificate.
    pub(crate) fn is_key(&self) -> bool {
        matches!(self, Self::Unreadable { key: true, .. } | Self::NoKey(_) | Self::Mismatch { .. })
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { .. } => Some("paths are relative to the configuration's directory".to_owned()),
            Self::NoCertificate(_) | Self::Malformed { .. } => {
                Some("the file has to have `-----BEGIN CERTIFICATE-----`".to_owned())
            }
            Self::NoKey(_) => Some("the file has to have `-----BEGIN PRIVATE KEY-----`".to_owned()),
            Self::Mismatch { .. } | Self::UnknownKey | Self::Refused(_) | Self::Quic(_) => None,
        }
    }
}

/// The provider of cryptography for every TLS of the gateway.
pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider()))
}

/// End of the time of a certificate and of those that come with it, whichever is first, in seconds since 1970.
pub(crate) fn end(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let end = |der: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(certificate.validity().not_after.timestamp())
    };
    chain.iter().filter_map(end).min()
}

/// The reason for which clients refuse a certificate at this time, if they do.
pub(crate) fn time_fault(chain: &[CertificateDer<'_>]) -> Option<String> {
    let now = ASN1Time::now();
    chain.iter().find_map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        match () {
            () if validity.not_after < now => Some(format!("the certificate has expired: {}", validity.not_after)),
            () if validity.not_before > now => {
                Some(format!("the certificate is not valid yet: {}", validity.not_before))
            }
            () => None,
        }
    })
}

/// Returns whether a certificate is for a name, or for those that `*.` stands for.
pub(crate) fn is_for(chain: &[CertificateDer<'_>], name: &str) -> bool {
    let name = name.replace('*', "any-label");
    let (Some(der), Ok(name)) = (chain.first(), ServerName::try_from(name.as_str())) else { return false };
    ParsedCertificate::try_from(der).is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

fn bytes(path: &Path, key: bool) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Unreadable { path: path.to_owned(), source, key })
}

/// Reads a chain.
pub(crate) fn read_chain(chain: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let pem = bytes(chain, false)?;
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|source| CertificateError::Malformed { path: chain.to_owned(), source })?;
    if certificates.is_empty() {
        return Err(CertificateError::NoCertificate(chain.to_owned()));
    }
    Ok(certificates)
}

/// Reads a chain and its key, and sees that they belong together.
pub(crate) fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, CertificateError> {
    let certificates = read_chain(chain)?;
    let private =
        PrivateKeyDer::from_pem_slice(&bytes(key, true)?).map_err(|_| CertificateError::NoKey(key.to_owned()))?;
    CertifiedKey::from_der(certificates, private, provider())
        .map_err(|source| CertificateError::Mismatch { path: key.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn each_cause_has_its_variant() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let (chain, key) = (file("chain", &made.cert.pem()), file("key", &made.signing_key.serialize_pem()));
        read(&chain, &key).unwrap();
        let (nothing, missing) = (file("nothing", ""), folder.path().join("missing"));

        let error = read(&missing, &key).unwrap_err();
        assert!(
            matches!(&error, CertificateError::Unreadable { path, key: false, .. } if *path == missing),
            "{error:?}"
        );
        assert!(error.source().unwrap().is::<io::Error>());
        let error = read(&chain, &missing).unwrap_err();
        assert!(
            matches!(&error, CertificateError::Unreadable { path, key: true, .. } if *path == missing),
            "{error:?}"
        );
        let cut = file("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n");
        let error = read(&cut, &key).unwrap_err();
        assert!(matches!(&error, CertificateError::Malformed { path, .. } if *path == cut), "{error:?}");
        assert!(error.source().unwrap().is::<pem::Error>());
        let error = read(&nothing, &key).unwrap_err();
        assert!(matches!(&error, CertificateError::NoCertificate(path) if *path == nothing), "{error:?}");
        let error = read(&chain, &nothing).unwrap_err();
        assert!(matches!(&error, CertificateError::NoKey(path) if *path == nothing), "{error:?}");
        let of_other = file("other", &other.serialize_pem());
        let error = read(&chain, &of_other).unwrap_err();
        assert!(matches!(&error, CertificateError::Mismatch { path, .. } if *path == of_other), "{error:?}");
        assert!(error.source().unwrap().is::<Error>());
    }
}
