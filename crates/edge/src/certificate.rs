//! Certificates and their keys in PEM, and the cryptography under TLS.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{
    client::verify_server_name,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// Certificate or key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// File that cannot be read, or has broken PEM.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Words of the system or of the parser.
        why: String,
        /// True for the file of the key.
        key: bool,
    },
    /// File without a certificate.
    #[error("expected certificates in PEM in {}, found none", .0.display())]
    NoCertificate(PathBuf),
    /// File without a private key.
    #[error("expected a private key in PEM in {}, found none", .0.display())]
    NoKey(PathBuf),
    /// Key of another certificate, or of a kind that TLS cannot use.
    #[error("the key in {} does not belong to the certificate: {why}", path.display())]
    Mismatch {
        /// File of the key.
        path: PathBuf,
        /// Words of the TLS library.
        why: String,
    },
    /// Refusal of the TLS library.
    #[error("{0}")]
    Refused(String),
}

impl CertificateError {
    /// The key is to blame, and not the certificate.
    pub(crate) fn is_key(&self) -> bool {
        matches!(self, Self::Unreadable { key: true, .. } | Self::NoKey(_) | Self::Mismatch { .. })
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { .. } => Some("paths are relative to the configuration's directory".to_owned()),
            Self::NoCertificate(_) => Some("the file has to have `-----BEGIN CERTIFICATE-----`".to_owned()),
            Self::NoKey(_) => Some("the file has to have `-----BEGIN PRIVATE KEY-----`".to_owned()),
            Self::Mismatch { .. } | Self::Refused(_) => None,
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
    std::fs::read(path).map_err(|error| CertificateError::Unreadable {
        path: path.to_owned(),
        why: error.to_string(),
        key,
    })
}

/// Reads a chain.
pub(crate) fn read_chain(chain: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let pem = bytes(chain, false)?;
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|why| CertificateError::Unreadable { path: chain.to_owned(), why: why.to_string(), key: false })?;
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
        .map_err(|why| CertificateError::Mismatch { path: key.to_owned(), why: why.to_string() })
}
