//! Certificates and TLS settings that all peers with TLS share, and the count of asymmetric operations.
//!
//! A P-256 authority signs a P-256 leaf. The server makes both when it starts and announces the authority; the client
//! verifies the chain as a real one would. One cipher suite and one key exchange, so that every peer does the same work.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::{
    ClientConfig, Error, NamedGroup, RootCertStore, ServerConfig, SignatureAlgorithm, SignatureScheme,
    SupportedCipherSuite,
    client::Resumption,
    crypto::{
        self, ActiveKeyExchange, CompletedKeyExchange, SupportedKxGroup,
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    },
    pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer},
    sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey},
    version::TLS13,
};

/// The name in the certificate, and the one clients ask for.
pub const SERVER_NAME: &str = "localhost";
/// The application protocol of the benchmark.
pub const ALPN: &[u8] = b"bench";
/// Early data that a server takes from a connection: without a limit, as RFC 9001 §4.6.1 asks of QUIC.
const EARLY_DATA: u32 = u32::MAX;

/// A server's key, its certificate, and the authority that clients must trust.
pub struct ServerIdentity {
    /// The authority's certificate, DER.
    pub authority: CertificateDer<'static>,
    /// The server's certificate, DER.
    pub leaf: CertificateDer<'static>,
    /// Private key, PKCS #8 in DER.
    pub key: PrivateKeyDer<'static>,
}

impl ServerIdentity {
    /// Makes keys and certificates.
    pub fn generate() -> Result<Self> {
        // Names of their own: a leaf with its issuer's name would look signed by itself.
        let named = |name: &str| {
            let mut whole = DistinguishedName::new();
            whole.push(DnType::CommonName, name);
            whole
        };
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.distinguished_name = named("bench authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut leaf = CertificateParams::new([SERVER_NAME.to_owned()])?;
        leaf.distinguished_name = named(SERVER_NAME);
        let leaf = leaf.signed_by(&key, &authority)?;
        Ok(Self {
            authority: authority.der().clone(),
            leaf: leaf.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?,
        })
    }

    /// The server's TLS settings for rustls. Tickets are issued either way, as they are by default; `early_data` lets a
    /// resumed session bring some.
    pub fn server_config(&self, resume: bool, early_data: bool) -> Result<ServerConfig> {
        self.server_config_with(TLS13_AES_128_GCM_SHA256, resume, early_data)
    }

    /// The same for a stack with a form of the suite of its own.
    pub fn server_config_with(
        &self,
        suite: SupportedCipherSuite,
        resume: bool,
        early_data: bool,
    ) -> Result<ServerConfig> {
        let key = crypto::aws_lc_rs::sign::any_supported_type(&self.key)?;
        let certified = CertifiedKey::new(vec![self.leaf.clone()], Arc::new(CountedKey(key)));
        let mut config = ServerConfig::builder_with_provider(provider(suite))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        if resume && early_data {
            config.max_early_data_size = EARLY_DATA;
        }
        Ok(config)
    }
}

/// The client's TLS settings for rustls, trusting one authority.
pub fn client_config(authority: &[u8], resume: bool, early_data: bool) -> Result<ClientConfig> {
    client_config_with(TLS13_AES_128_GCM_SHA256, authority, resume, early_data)
}

/// The same for a stack with a form of the suite of its own.
pub fn client_config_with(
    suite: SupportedCipherSuite,
    authority: &[u8],
    resume: bool,
    early_data: bool,
) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.to_vec())).context("the authority's certificate cannot be read")?;
    let mut config = ClientConfig::builder_with_provider(provider(suite))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = if resume { Resumption::in_memory_sessions(16) } else { Resumption::disabled() };
    config.enable_early_data = resume && early_data;
    Ok(config)
}

/// Set in a process that agrees on keys with X25519MLKEM768.
static POST_QUANTUM: AtomicBool = AtomicBool::new(false);

/// Makes this process agree on keys with X25519MLKEM768 from here on.
pub fn prefer_post_quantum() {
    POST_QUANTUM.store(true, Relaxed);
}

/// aws-lc-rs with one key exchange and one suite only, which are X25519, if nothing else was said, and TLS_AES_128_GCM_SHA256.
fn provider(suite: SupportedCipherSuite) -> Arc<crypto::CryptoProvider> {
    let mut provider = crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![suite];
    provider.kx_groups = if POST_QUANTUM.load(Relaxed) { vec![&HYBRID] } else { vec![&X25519] };
    Arc::new(provider)
}

/// Asymmetric operations of this process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Signatures made with the certificate's key.
    pub signatures: u64,
    /// Key agreements begun.
    pub key_agreements: u64,
}

static SIGNATURES: AtomicU64 = AtomicU64::new(0);
static KEY_AGREEMENTS: AtomicU64 = AtomicU64::new(0);

impl Operations {
    /// Reads the counters.
    pub fn read() -> Self {
        Self { signatures: SIGNATURES.load(Relaxed), key_agreements: KEY_AGREEMENTS.load(Relaxed) }
    }

    /// Difference to an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            signatures: self.signatures - earlier.signatures,
            key_agreements: self.key_agreements - earlier.key_agreements,
        }
    }
}

/// A key that counts what is signed with it.
#[derive(Debug)]
struct CountedKey(Arc<dyn SigningKey>);

impl SigningKey for CountedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(CountedSigner(self.0.choose_scheme(offered)?)))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct CountedSigner(Box<dyn Signer>);

impl Signer for CountedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        SIGNATURES.fetch_add(1, Relaxed);
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}

/// A key exchange that counts.
#[derive(Debug)]
struct Counted(&'static dyn SupportedKxGroup);

static X25519: Counted = Counted(crypto::aws_lc_rs::kx_group::X25519);
static HYBRID: Counted = Counted(crypto::aws_lc_rs::kx_group::X25519MLKEM768);

impl SupportedKxGroup for Counted {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        KEY_AGREEMENTS.fetch_add(1, Relaxed);
        self.0.start()
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        KEY_AGREEMENTS.fetch_add(1, Relaxed);
        self.0.start_and_complete(peer)
    }

    fn name(&self) -> NamedGroup {
        self.0.name()
    }
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
        let identity = ServerIdentity::generate().unwrap();
        client_config(&identity.authority, true, true).unwrap();
        identity.server_config(true, true).unwrap();
        assert!(client_config(b"not a certificate", false, false).is_err());
    }

    #[test]
    fn signatures_are_counted() {
        let identity = ServerIdentity::generate().unwrap();
        let key = CountedKey(crypto::aws_lc_rs::sign::any_supported_type(&identity.key).unwrap());
        let before = Operations::read();
        let signer = key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).unwrap();
        signer.sign(b"message").unwrap();
        assert_eq!(Operations::read().since(before).signatures, 1);
    }
}
