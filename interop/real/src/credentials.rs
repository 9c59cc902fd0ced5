//! The certificates of a run: a root, and a leaf for [`SERVER_NAME`](crate::contract::SERVER_NAME), as PEM files that
//! every language reads.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::contract::SERVER_NAME;

/// Files of the certificates.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The root certificate.
    pub ca: PathBuf,
    /// The server's chain.
    pub cert: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Credentials {
    /// Makes new ones in `folder`, where `names` more names in the leaf make the chain larger.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn create(folder: &Path, names: usize) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let mut root = CertificateParams::new(vec![])?;
        root.distinguished_name.push(DnType::CommonName, "tiderace interop root");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let root = CertifiedIssuer::self_signed(root, KeyPair::generate()?)?;
        let more = (0..names).map(|n| format!("one-of-many-names-that-make-a-certificate-large-{n}.test"));
        let own = [SERVER_NAME, "localhost"].map(str::to_owned);
        let mut leaf = CertificateParams::new(own.into_iter().chain(more).collect::<Vec<_>>())?;
        leaf.distinguished_name.push(DnType::CommonName, SERVER_NAME);
        // Some verifiers insist on knowing the issuer's key.
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let leaf = leaf.signed_by(&key, &root)?;
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            ca: write("ca.pem", root.pem())?,
            cert: write("cert.pem", leaf.pem())?,
            key: write("key.pem", key.serialize_pem())?,
        })
    }
}

/// A certificate chain from a PEM file.
///
/// # Errors
/// When the file cannot be read as one.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| format!("read {}", path.display()))
}

/// A private key from a PEM file.
///
/// # Errors
/// When the file cannot be read as one.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).with_context(|| format!("read {}", path.display()))
}

/// Trust in the certificates of a PEM file, and nothing else.
///
/// # Errors
/// When the file cannot be read.
pub fn read_roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_chain(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}
