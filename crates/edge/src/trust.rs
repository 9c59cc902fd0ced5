//! Trust of the gateway as a TLS client: of back ends over TLS, and of the certificate authority.

use std::sync::Arc;

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
    /// Roots in PEM, and nothing else.
    Roots(Vec<u8>),
    /// No check of certificates: an attacker on the path can read and change everything.
    Anybody,
}

impl Trust {
    /// A file of roots, or the system's where its name is empty.
    pub(crate) fn read(file: &str) -> Result<Self, String> {
        if file.is_empty() {
            return Ok(Self::System);
        }
        let pem = std::fs::read(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        store(&pem).map_err(|why| format!("{file}: {why}"))?;
        Ok(Self::Roots(pem))
    }

    /// The configuration of a client that believes these, without ALPN.
    pub(crate) fn client(&self) -> Result<ClientConfig, String> {
        let refused = |error: Error| error.to_string();
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(refused)?;
        let builder = match self {
            Self::Roots(pem) => builder.with_root_certificates(store(pem)?),
            Self::System => {
                let verifier = Verifier::new(provider().clone()).map_err(refused)?;
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

fn store(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("expected certificates in PEM, found none".to_owned()) } else { Ok(roots) }
}
