//! TLS of the client, for QUIC and for TCP: trusted roots, and the store of tickets.

use std::{path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tiderace::{
    RustlsClient,
    transport::tls::{ClientTls, rustls_backend::CertificateCheck},
};

use crate::{
    error::FetchError,
    setup_error::{TicketsError, TrustError},
};

/// Roots that a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Roots of the platform.
    Platform,
    /// The root certificates in this PEM text, and no others.
    Pem(Vec<u8>),
    /// Any certificate, as long as the server has its key. An attacker on the path can pose as the server.
    Anyone,
}

/// Root certificates of a PEM text, and a store of them.
fn roots(pem: &[u8]) -> Result<(Vec<Vec<u8>>, RootCertStore), TrustError> {
    let (mut ders, mut store) = (Vec::new(), RootCertStore::empty());
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|source| TrustError::Pem { source })?;
        ders.push(certificate.to_vec());
        store.add(certificate).map_err(|source| TrustError::NoRoot { source })?;
    }
    if ders.is_empty() { Err(TrustError::Empty) } else { Ok((ders, store)) }
}

/// TLS for QUIC. Tickets stay in memory, or go into a file where BoringSSL is built in.
pub(crate) fn quic(
    trust: &Trust,
    protocol: &[u8],
    tickets: Option<&Path>,
    early_data: bool,
    keys: Option<Arc<dyn rustls::KeyLog>>,
) -> Result<Arc<dyn ClientTls>, FetchError> {
    if let Some(path) = tickets {
        return in_file(trust, protocol, path, early_data);
    }
    let mut tls = RustlsClient::builder().alpn(protocol).early_data(early_data);
    if let Some(keys) = keys {
        tls = tls.key_log(keys);
    }
    let tls = match trust {
        Trust::Platform => tls.platform_roots(),
        Trust::Pem(pem) => tls.roots(roots(pem)?.0),
        Trust::Anyone => tls.verifier(Arc::new(CertificateCheck::new(|_| Ok(())))),
    };
    Ok(Arc::new(tls.build().map_err(TrustError::from)?))
}

#[cfg(feature = "boringssl")]
fn in_file(trust: &Trust, protocol: &[u8], path: &Path, early_data: bool) -> Result<Arc<dyn ClientTls>, FetchError> {
    let tickets =
        tiderace::FileTickets::open(path).map_err(|source| TicketsError::Unusable { path: path.to_owned(), source })?;
    let tls = tiderace::BoringClient::builder().alpn(protocol).early_data(early_data).ticket_store(Arc::new(tickets));
    let tls = match trust {
        Trust::Platform => tls,
        Trust::Pem(pem) => tls.roots(roots(pem)?.0),
        Trust::Anyone => return Err(TicketsError::Unchecked.into()),
    };
    Ok(Arc::new(tls.build().map_err(TrustError::from)?))
}

#[cfg(not(feature = "boringssl"))]
fn in_file(_: &Trust, _: &[u8], _: &Path, _: bool) -> Result<Arc<dyn ClientTls>, FetchError> {
    Err(TicketsError::NotBuiltIn.into())
}

/// TLS for TCP.
pub(crate) fn tcp(
    trust: &Trust,
    protocols: &[&[u8]],
    keys: Option<Arc<dyn rustls::KeyLog>>,
) -> Result<Arc<rustls::ClientConfig>, FetchError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|source| TrustError::Tcp { source })?;
    let mut tls = match trust {
        Trust::Platform => {
            let verifier = rustls_platform_verifier::Verifier::new(provider);
            let verifier = verifier.map_err(|source| TrustError::Platform { source })?;
            tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        Trust::Pem(pem) => tls.with_root_certificates(roots(pem)?.1).with_no_client_auth(),
        Trust::Anyone => {
            let verifier = Arc::new(CertificateCheck::new(|_| Ok(())));
            tls.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    };
    if let Some(keys) = keys {
        tls.key_log = keys;
    }
    tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(tls))
}
