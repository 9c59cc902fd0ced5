//! Verification of certificates without a chain to a root: by a fingerprint, or not at all.

use std::fmt;

use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// Verifier that calls a function with the server's own certificate, and checks neither chain nor names nor dates.
///
/// That the server has the key of the certificate is checked all the same. With a function that accepts everything, an attacker on the
/// path can pose as the server.
///
/// ```
/// # use transport::tls::rustls_backend::{CertificateCheck, RustlsClient};
/// let pinned = vec![0x30, 0x82];
/// let check = CertificateCheck::new(move |certificate| {
///     if certificate == pinned { Ok(()) } else { Err(rustls::CertificateError::ApplicationVerificationFailure.into()) }
/// });
/// let client = RustlsClient::builder().verifier(std::sync::Arc::new(check)).alpn("echo").build().unwrap();
/// # drop(client);
/// ```
pub struct CertificateCheck<F> {
    accept: F,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<F: Fn(&[u8]) -> Result<(), Error> + Send + Sync> CertificateCheck<F> {
    /// A verifier that accepts the certificates (DER) for which `accept` gives `Ok`.
    pub fn new(accept: F) -> Self {
        Self { accept, algorithms: aws_lc_rs::default_provider().signature_verification_algorithms }
    }
}

impl<F> fmt::Debug for CertificateCheck<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateCheck").finish_non_exhaustive()
    }
}

impl<F: Fn(&[u8]) -> Result<(), Error> + Send + Sync> ServerCertVerifier for CertificateCheck<F> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        (self.accept)(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
