//! Certificate chains of chosen sizes, the same bytes in every run.
//!
//! Ed25519 throughout: its signatures have one length, while those of ECDSA vary by a few bytes from run to run and with
//! them the sizes of packets. Keys are derived from fixed bytes for the same reason.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, SerialNumber, date_time_ymd,
};

use crate::peer::SERVER_NAME;

/// Certificates of a server and trust of its client.
#[derive(Debug)]
pub struct Identity {
    /// The chain the server sends, leaf first, without the root. DER.
    pub chain: Vec<Vec<u8>>,
    /// The leaf's private key, PKCS#8 DER.
    pub key: Vec<u8>,
    /// The root certificate, DER.
    pub root: Vec<u8>,
}

/// Size of a certificate chain, in datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainSize {
    /// One certificate of about 500 bytes: the whole flight fits one datagram.
    Small,
    /// Leaf and one intermediate, about 2.4 kB: larger than one datagram, within the anti-amplification limit.
    Medium,
    /// Leaf and three intermediates, about 8 kB: more than three times a padded client Initial, so that the server has
    /// to stop at the anti-amplification limit and continue when the client answers (RFC 9000 §8.1).
    Large,
}

impl ChainSize {
    /// Intermediates, and bytes of padding in each certificate.
    fn shape(self) -> (usize, usize) {
        match self {
            Self::Small => (0, 100),
            Self::Medium => (1, 800),
            Self::Large => (3, 1_600),
        }
    }
}

impl Identity {
    /// Builds the chain.
    ///
    /// # Errors
    /// When the certificates cannot be made, which would be a defect here.
    pub fn new(size: ChainSize) -> Result<Self> {
        let (intermediates, padding) = size.shape();
        let root_params = params("root", 0, 0, true)?;
        let mut issuer = CertifiedIssuer::self_signed(root_params, key(0)?).context("root certificate")?;
        let root = issuer.der().to_vec();
        let mut chain = Vec::new();
        for number in 1..=intermediates {
            let params = params(&format!("intermediate {number}"), number, padding, true)?;
            issuer = CertifiedIssuer::signed_by(params, key(number)?, &issuer).context("intermediate certificate")?;
            chain.insert(0, issuer.der().to_vec());
        }
        let leaf_key = key(intermediates + 1)?;
        let leaf = params("leaf", intermediates + 1, padding, false)?.signed_by(&leaf_key, &issuer)?;
        chain.insert(0, leaf.der().to_vec());
        Ok(Self { chain, key: leaf_key.serialize_der(), root })
    }
}

/// The key of certificate `number`. RFC 8410 §7: a PKCS#8 frame around 32 bytes that say which key it is.
fn key(number: usize) -> Result<KeyPair> {
    let mut der = vec![0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    der.extend([b't'; 31]);
    der.push(u8::try_from(number)?);
    Ok(KeyPair::from_pkcs8_der_and_sign_algo(&der.into(), &PKCS_ED25519)?)
}

/// A certificate's contents, with an extension nobody knows as padding.
fn params(name: &str, number: usize, padding: usize, authority: bool) -> Result<CertificateParams> {
    let names = if authority { vec![] } else { vec![SERVER_NAME.to_owned()] };
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, format!("tiderace interop {name}"));
    params.serial_number = Some(SerialNumber::from(number as u64 + 1));
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2049, 1, 1);
    if authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    }
    if padding > 0 {
        // Below the arc for documentation of private enterprise numbers; not critical, so verifiers pass over it.
        let bytes = (0..padding).map(|at| (at * 7 + number) as u8).collect();
        params.custom_extensions.push(CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 32473, 1], bytes));
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_have_the_stated_sizes_and_the_same_bytes_each_time() {
        for (size, range) in
            [(ChainSize::Small, 300..900), (ChainSize::Medium, 2_000..3_000), (ChainSize::Large, 7_000..9_000)]
        {
            let identity = Identity::new(size).unwrap();
            let bytes: usize = identity.chain.iter().map(Vec::len).sum();
            assert!(range.contains(&bytes), "{size:?}: {bytes}");
            assert_eq!(identity.chain, Identity::new(size).unwrap().chain);
        }
    }
}
