//! Signature schemes of TLS as PKCS #11 has them.
//!
//! Messages are hashed here. So every device that signs at all can be used, and long messages do not travel.

use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use cryptoki::{
    mechanism::{
        Mechanism, MechanismType,
        eddsa::{EddsaParams, EddsaSignatureScheme},
        rsa::{PkcsMgfType, PkcsPssParams},
    },
    object::KeyType,
};
use rustls::SignatureScheme;

/// Signature that a token is asked for.
pub(in crate::signer) struct Operation {
    method: Method,
    pub(super) data: Vec<u8>,
}

/// Way of signing data. Mechanisms of the library have pointers, and stay on one thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Ecdsa,
    RsaPkcs1,
    /// With a hash of so many bytes.
    RsaPss(usize),
    Ed25519,
}

/// Beginnings of DigestInfo, in front of hashes of 32, 48 and 64 bytes (RFC 8017 §9.2, note 1).
const DIGEST_INFO: [(&Algorithm, [u8; 19]); 3] = [
    (
        &SHA256,
        [0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0, 4, 32],
    ),
    (
        &SHA384,
        [0x30, 0x41, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0x05, 0, 4, 48],
    ),
    (
        &SHA512,
        [0x30, 0x51, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03, 0x05, 0, 4, 64],
    ),
];

fn pss(hash_len: usize) -> Mechanism<'static> {
    let (hash_alg, mgf) = match hash_len {
        32 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
        48 => (MechanismType::SHA384, PkcsMgfType::MGF1_SHA384),
        _ => (MechanismType::SHA512, PkcsMgfType::MGF1_SHA512),
    };
    // The salt is as long as the hash (RFC 8446 §4.2.3).
    Mechanism::RsaPkcsPss(PkcsPssParams { hash_alg, mgf, s_len: hash_len.try_into().expect("a hash is short") })
}

impl Operation {
    /// Operation that signs a message; `None` for a scheme that no key here has.
    pub(super) fn new(scheme: SignatureScheme, message: &[u8]) -> Option<Self> {
        let hashed = |method, hash| Self { method, data: digest(hash, message).as_ref().to_vec() };
        let ecdsa = |hash| hashed(Method::Ecdsa, hash);
        let rsa_pss = |hash: &'static Algorithm| hashed(Method::RsaPss(hash.output_len()), hash);
        let rsa = |number: usize| {
            let (hash, beginning) = DIGEST_INFO[number];
            Self { method: Method::RsaPkcs1, data: [&beginning[..], digest(hash, message).as_ref()].concat() }
        };
        Some(match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => ecdsa(&SHA256),
            SignatureScheme::ECDSA_NISTP384_SHA384 => ecdsa(&SHA384),
            SignatureScheme::ECDSA_NISTP521_SHA512 => ecdsa(&SHA512),
            SignatureScheme::RSA_PSS_SHA256 => rsa_pss(&SHA256),
            SignatureScheme::RSA_PSS_SHA384 => rsa_pss(&SHA384),
            SignatureScheme::RSA_PSS_SHA512 => rsa_pss(&SHA512),
            SignatureScheme::RSA_PKCS1_SHA256 => rsa(0),
            SignatureScheme::RSA_PKCS1_SHA384 => rsa(1),
            SignatureScheme::RSA_PKCS1_SHA512 => rsa(2),
            SignatureScheme::ED25519 => Self { method: Method::Ed25519, data: message.to_vec() },
            _ => return None,
        })
    }

    /// Type of the keys that do this.
    pub(super) fn key_type(&self) -> KeyType {
        match self.method {
            Method::Ecdsa => KeyType::EC,
            Method::RsaPkcs1 | Method::RsaPss(_) => KeyType::RSA,
            Method::Ed25519 => KeyType::EC_EDWARDS,
        }
    }

    /// The same for the library.
    pub(super) fn mechanism(&self) -> Mechanism<'static> {
        match self.method {
            Method::Ecdsa => Mechanism::Ecdsa,
            Method::RsaPkcs1 => Mechanism::RsaPkcs,
            Method::RsaPss(hash_len) => pss(hash_len),
            Method::Ed25519 => Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Ed25519)),
        }
    }

    /// Signature as TLS has it.
    pub(super) fn signature(&self, of_token: Vec<u8>) -> Vec<u8> {
        if self.method == Method::Ecdsa { ecdsa_der(&of_token) } else { of_token }
    }
}

/// ECDSA-Sig-Value (RFC 3279 §2.2.3) of two numbers of equal length, one behind the other.
fn ecdsa_der(numbers: &[u8]) -> Vec<u8> {
    let (r, s) = numbers.split_at(numbers.len() / 2);
    let mut content = Vec::with_capacity(numbers.len() + 8);
    for number in [r, s] {
        let zeros = number.iter().take_while(|byte| **byte == 0).count().min(number.len().saturating_sub(1));
        let number = &number[zeros..];
        // A number whose first bit is set would be negative.
        let is_padded = number.first().is_some_and(|byte| byte & 0x80 != 0);
        content.push(2);
        length(&mut content, number.len() + usize::from(is_padded));
        content.extend(is_padded.then_some(0));
        content.extend(number);
    }
    let mut der = vec![0x30];
    length(&mut der, content.len());
    der.extend(content);
    der
}

/// Appends a length in DER; 255 at most, which P-521 stays below.
fn length(out: &mut Vec<u8>, len: usize) {
    out.extend((len > 127).then_some(0x81));
    out.push(u8::try_from(len).unwrap_or(u8::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ecdsa_are_written_as_der_has_them() {
        assert_eq!(ecdsa_der(&[0, 0, 1, 0x80, 2, 3]), [0x30, 9, 2, 1, 1, 2, 4, 0, 0x80, 2, 3]);
        assert_eq!(ecdsa_der(&[0, 0, 0, 0]), [0x30, 6, 2, 1, 0, 2, 1, 0]);
        let long = ecdsa_der(&[0xff; 132]);
        assert_eq!((&long[..5], long.len()), (&[0x30, 0x81, 138, 2, 67][..], 3 + 138));
    }

    #[test]
    fn only_schemes_of_tls_servers_have_an_operation() {
        assert!(Operation::new(SignatureScheme::RSA_PKCS1_SHA1, b"a").is_none());
        assert!(Operation::new(SignatureScheme::ED448, b"a").is_none());
        let rsa = Operation::new(SignatureScheme::RSA_PKCS1_SHA384, b"a").unwrap();
        assert_eq!(rsa.data.len(), 19 + 48);
        assert_eq!(Operation::new(SignatureScheme::ED25519, b"a").unwrap().data, b"a");
    }
}
