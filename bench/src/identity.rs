//! Certificates and TLS settings that all peers with TLS share.
//!
//! A P-256 authority signs a P-256 leaf. The server makes both when it starts and announces the authority; the client
//! verifies the chain as a real one would. One cipher suite and one key exchange, so that every peer does the same work.

use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, crypto,
    pki_types::{CertificateDer, PrivateKeyDer},
    version::TLS13,
};

/// The name in the certificate, and the one clients ask for.
pub const SERVER_NAME: &str = "localhost";
/// The application protocol of the benchmark.
pub const ALPN: &[u8] = b"bench";

/// A server's key, its certificate, and the authority that clients must trust.
pub struct Identity {
    /// The authority's certificate, DER.
    pub authority: CertificateDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Makes keys and certificates.
    pub fn generate() -> Result<Self> {
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let leaf = CertificateParams::new([SERVER_NAME.to_owned()])?.signed_by(&key, &authority)?;
        Ok(Self {
            authority: authority.der().clone(),
            chain: vec![leaf.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?,
        })
    }

    /// The server's TLS settings.
    pub fn server_config(self) -> Result<ServerConfig> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

/// The client's TLS settings, trusting one authority.
pub fn client_config(authority: &[u8]) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.to_vec())).context("the authority's certificate cannot be read")?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// aws-lc-rs with TLS_AES_128_GCM_SHA256 and X25519 only.
fn provider() -> Arc<crypto::CryptoProvider> {
    let mut provider = crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    provider.kx_groups = vec![crypto::aws_lc_rs::kx_group::X25519];
    Arc::new(provider)
}

/// Bytes as hexadecimal digits, for the command line.
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

/// Hexadecimal digits as bytes.
pub fn from_hex(text: &str) -> Result<Vec<u8>> {
    anyhow::ensure!(text.len().is_multiple_of(2) && text.is_ascii(), "expected pairs of hexadecimal digits");
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).context("expected hexadecimal digits"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_reads_back() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 0xfe, 0xff])).unwrap(), [0, 1, 0xfe, 0xff]);
        assert!(from_hex("0").is_err());
        assert!(from_hex("0g").is_err());
    }

    #[test]
    fn makes_settings_for_both_sides() {
        let identity = Identity::generate().unwrap();
        client_config(&identity.authority).unwrap();
        identity.server_config().unwrap();
        assert!(client_config(b"not a certificate").is_err());
    }
}
