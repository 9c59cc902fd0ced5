//! TLS of the peers that use rustls.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// Certificates of a PEM file.
///
/// # Errors
/// When it cannot be read.
pub fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| format!("read {}", path.display()))
}

/// Configuration of a server, for HTTP/3.
///
/// # Errors
/// When a file cannot be read.
pub fn server(cert: &Path, key: &Path) -> Result<ServerConfig> {
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain(cert)?, key)?;
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}

/// Configuration of a client that trusts one certificate, for HTTP/3.
///
/// # Errors
/// When the file cannot be read.
pub fn client(ca: &Path) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for cert in chain(ca)? {
        roots.add(cert)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}
