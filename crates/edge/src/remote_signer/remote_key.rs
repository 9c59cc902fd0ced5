//! A private key that another machine has, as TLS sees it.

use std::{sync::Arc, time::Instant};

use rustls::{
    SignatureAlgorithm, SignatureScheme,
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer},
    sign::{Signer, SigningKey},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{link::Link, protocol::KeyId, waiting};
use crate::certificate::CertificateError;

/// Public half of a certificate's key, in DER.
fn public(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.public_key().raw.to_vec())
}

/// Name of a certificate's key.
pub(crate) fn key_id(certificate: &CertificateDer<'_>) -> Option<KeyId> {
    public(certificate).map(|public| KeyId::of(&public))
}

/// Ways in which a key of this kind signs, the preferred one first.
pub(crate) fn schemes(certificate: &CertificateDer<'_>) -> Option<(SignatureAlgorithm, &'static [SignatureScheme])> {
    use x509_parser::{
        oid_registry::{
            OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521, OID_PKCS1_RSAENCRYPTION,
            OID_SIG_ED25519,
        },
        prelude::oid_registry::Oid,
    };
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm = &parsed.public_key().algorithm;
    if algorithm.algorithm == OID_PKCS1_RSAENCRYPTION {
        return Some((
            SignatureAlgorithm::RSA,
            &[
                SignatureScheme::RSA_PSS_SHA512,
                SignatureScheme::RSA_PSS_SHA384,
                SignatureScheme::RSA_PSS_SHA256,
                SignatureScheme::RSA_PKCS1_SHA512,
                SignatureScheme::RSA_PKCS1_SHA384,
                SignatureScheme::RSA_PKCS1_SHA256,
            ],
        ));
    }
    if algorithm.algorithm == OID_SIG_ED25519 {
        return Some((SignatureAlgorithm::ED25519, &[SignatureScheme::ED25519]));
    }
    let curve: Oid<'_> = algorithm.parameters.as_ref()?.as_oid().ok()?;
    let of_curve: &[SignatureScheme] = match () {
        () if algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY => return None,
        () if curve == OID_EC_P256 => &[SignatureScheme::ECDSA_NISTP256_SHA256],
        () if curve == OID_NIST_EC_P384 => &[SignatureScheme::ECDSA_NISTP384_SHA384],
        () if curve == OID_NIST_EC_P521 => &[SignatureScheme::ECDSA_NISTP521_SHA512],
        () => return None,
    };
    Some((SignatureAlgorithm::ECDSA, of_curve))
}

/// A key that a signer has. With a key of its own it signs by itself when the signer does not.
#[derive(Debug)]
pub(crate) struct RemoteKey {
    shared: Arc<Shared>,
    algorithm: SignatureAlgorithm,
    schemes: &'static [SignatureScheme],
    public: SubjectPublicKeyInfoDer<'static>,
}

#[derive(Debug)]
struct Shared {
    id: KeyId,
    link: Arc<Link>,
    fall_back: Option<Arc<dyn SigningKey>>,
}

impl RemoteKey {
    /// The key of a certificate, at the signer of `link`.
    ///
    /// # Errors
    /// When the certificate has a key of an unknown kind.
    pub(crate) fn new(
        certificate: &CertificateDer<'_>,
        link: &Arc<Link>,
        fall_back: Option<Arc<dyn SigningKey>>,
    ) -> Result<Self, CertificateError> {
        let public = public(certificate).ok_or(CertificateError::UnknownKey)?;
        let (algorithm, schemes) = schemes(certificate).ok_or(CertificateError::UnknownKey)?;
        let shared = Arc::new(Shared { id: KeyId::of(&public), link: link.clone(), fall_back });
        Ok(Self { shared, algorithm, schemes, public: public.into() })
    }
}

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *self.schemes.iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSignature { shared: self.shared.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public.clone())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

/// Signature of one handshake.
#[derive(Debug)]
struct RemoteSignature {
    shared: Arc<Shared>,
    scheme: SignatureScheme,
}

impl Signer for RemoteSignature {
    /// Asks the signer, and blocks: the thread is one where handshakes may wait.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let Shared { id, link, fall_back } = &*self.shared;
        let begun = Instant::now();
        let signed = waiting::wait(|| link.sign(*id, self.scheme.into(), message));
        let error = match signed {
            Ok(signature) => {
                link.metrics().signed(begun.elapsed());
                return Ok(signature);
            }
            Err(error) => error,
        };
        let here = fall_back.as_ref().and_then(|key| key.choose_scheme(&[self.scheme]));
        link.metrics().not_signed(error.reason(), here.is_some());
        match here {
            Some(signer) => signer.sign(message),
            None => Err(rustls::Error::General(error.to_string())),
        }
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// Returns whether a certificate has a key that a signer can have.
pub(crate) fn is_usable(certificate: &CertificateDer<'_>) -> bool {
    schemes(certificate).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_and_schemes() {
        let certificate = |algorithm| {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let made = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap().self_signed(&key).unwrap();
            made.der().clone()
        };
        let p256 = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        let expected = (SignatureAlgorithm::ECDSA, &[SignatureScheme::ECDSA_NISTP256_SHA256][..]);
        assert_eq!(schemes(&p256), Some(expected));
        let p384 = schemes(&certificate(&rcgen::PKCS_ECDSA_P384_SHA384)).unwrap();
        assert_eq!(p384.1, [SignatureScheme::ECDSA_NISTP384_SHA384]);
        let ed25519 = schemes(&certificate(&rcgen::PKCS_ED25519)).unwrap();
        assert_eq!(ed25519.0, SignatureAlgorithm::ED25519);
        assert_ne!(key_id(&p256), key_id(&certificate(&rcgen::PKCS_ECDSA_P256_SHA256)));
        assert_eq!(key_id(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
