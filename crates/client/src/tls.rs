//! TLS of the client, for QUIC and for TCP: trusted roots, and the store of tickets.

use std::{path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tiderace::{
    Identity, RustlsClient,
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

/// Certificate that a client shows to servers that ask for one, with its chain, and its private key: texts in PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Certificate of the client first, then those that lead to a root of the server.
    pub certificates: Vec<u8>,
    /// Private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("ClientIdentity").field("certificates", &self.certificates.len()).finish_non_exhaustive()
    }
}

impl ClientIdentity {
    fn for_quic(&self) -> Result<Identity, TrustError> {
        Identity::from_pem(&self.certificates, &self.key).map_err(|source| TrustError::Identity { source })
    }

    fn for_tcp(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TrustError> {
        let pem = |source| TrustError::Pem { source };
        let chain = CertificateDer::pem_slice_iter(&self.certificates).collect::<Result<_, _>>().map_err(pem)?;
        Ok((chain, PrivateKeyDer::from_pem_slice(&self.key).map_err(pem)?))
    }
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
    (trust, identity): (&Trust, Option<&ClientIdentity>),
    protocol: &[u8],
    tickets: Option<&Path>,
    early_data: bool,
    keys: Option<Arc<dyn rustls::KeyLog>>,
) -> Result<Arc<dyn ClientTls>, FetchError> {
    if let Some(path) = tickets {
        if identity.is_some() {
            return Err(TicketsError::WithIdentity.into());
        }
        return in_file(trust, protocol, path, early_data);
    }
    let mut tls = RustlsClient::builder().alpn(protocol).early_data(early_data);
    if let Some(keys) = keys {
        tls = tls.key_log(keys);
    }
    if let Some(identity) = identity {
        tls = tls.identity(identity.for_quic()?);
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
    (trust, identity): (&Trust, Option<&ClientIdentity>),
    protocols: &[&[u8]],
    keys: Option<Arc<dyn rustls::KeyLog>>,
) -> Result<Arc<rustls::ClientConfig>, FetchError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|source| TrustError::Tcp { source })?;
    let tls = match trust {
        Trust::Platform => {
            let verifier = rustls_platform_verifier::Verifier::new(provider);
            let verifier = verifier.map_err(|source| TrustError::Platform { source })?;
            tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Trust::Pem(pem) => tls.with_root_certificates(roots(pem)?.1),
        Trust::Anyone => {
            let verifier = Arc::new(CertificateCheck::new(|_| Ok(())));
            tls.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let mut tls = match identity {
        None => tls.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.for_tcp()?;
            tls.with_client_auth_cert(chain, key).map_err(|source| TrustError::Tcp { source })?
        }
    };
    if let Some(keys) = keys {
        tls.key_log = keys;
    }
    tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(tls))
}
