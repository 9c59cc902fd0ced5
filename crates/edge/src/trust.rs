//! Whom the gateway believes where it is the client of TLS: back ends over TLS, and the certificate authority.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

use crate::tls::provider;

/// Whose certificates are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// What the system trusts.
    System,
    /// What these roots (PEM) have signed, and nothing else.
    Roots(Vec<u8>),
    /// Everybody's: whoever is in between can read and change everything.
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
                let verifier = Arc::new(BelievesAnybody(provider().clone()));
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

/// Takes every certificate, as long as its owner is at the other end.
#[derive(Debug)]
struct BelievesAnybody(Arc<CryptoProvider>);

impl ServerCertVerifier for BelievesAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
