//! TLS 1.3 over TCP: the same library, the same cipher suites and the same trust as over QUIC.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, pem::PemObject},
};

use super::io::ALPN;
use crate::{
    failure::Failure,
    trust::{self, Own, Sessions, Trust, TrustArgs},
};

/// Algorithms in the order of the QUIC transport, so that both ends spend the same on each byte.
fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite;
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
}

/// The client's side of TLS.
///
/// # Errors
/// When nobody can be trusted: a file that holds no certificates, a platform without a store.
pub(super) fn client(args: &TrustArgs, sessions: Sessions) -> Result<Arc<ClientConfig>, Failure> {
    let failed = |error: &dyn std::fmt::Display| trust::cannot_set_up(error);
    let provider = provider();
    let tls = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| failed(&error))?;
    let mut tls = match args.trust()? {
        Trust::Platform => {
            let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| failed(&error))?;
            tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        Trust::Roots { path, pem } => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| trust::no_roots(&path, &error))?;
                roots.add(certificate).map_err(|error| trust::no_roots(&path, &error))?;
            }
            if roots.is_empty() {
                return Err(trust::no_roots(&path, &"there are no certificates in it"));
            }
            tls.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::Verifier(verifier) => tls.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth(),
    };
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.resumption = match sessions {
        Sessions::New => Resumption::disabled(),
        Sessions::Resumed | Sessions::EarlyData => Resumption::in_memory_sessions(256),
    };
    Ok(Arc::new(tls))
}

/// The server's side of TLS with this certificate.
///
/// # Errors
/// When certificate or key cannot be used.
pub(super) fn server(own: &Own) -> Result<Arc<ServerConfig>, Failure> {
    let unusable = |error: rustls::Error| Failure::new(format_args!("cannot use the certificate: {error}"));
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(own.chain.clone(), own.key.clone_key())
        .map_err(unusable)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(tls))
}
