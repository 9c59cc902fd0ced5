//! Keys of packets from rustls.
//!
//! rustls derives the keys of a level when it announces them. Its cipher suites leave what is made of the bytes to an
//! [`Algorithm`]: ours puts them into the [slot](super::secrets) of the thread, so that the transport need not derive them again.

use std::sync::LazyLock;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey, Tag};
use rustls::{CipherSuiteCommon, Error, SupportedCipherSuite, Tls13CipherSuite};

use super::secrets::Secrets;
use crate::crypto::{CipherSuite, TAG_LEN};

/// AWS-LC's provider for configurations made with rustls itself, whose keys of QUIC packets are derived once and not twice, as those of the
/// builders here are. Over TCP it is as rustls's own.
pub fn crypto_provider() -> CryptoProvider {
    let mut provider = default_provider();
    for suite in &mut provider.cipher_suites {
        if let Some(known) = CipherSuite::from_number(suite.suite().into()) {
            *suite = supported(known);
        }
    }
    provider
}

/// The suite as rustls negotiates it.
pub(super) fn supported(suite: CipherSuite) -> SupportedCipherSuite {
    static SUITES: LazyLock<[Tls13CipherSuite; 3]> = LazyLock::new(|| {
        [
            with_handover(cipher_suite::TLS13_AES_128_GCM_SHA256, &HandOver(CipherSuite::Aes128Gcm)),
            with_handover(cipher_suite::TLS13_AES_256_GCM_SHA384, &HandOver(CipherSuite::Aes256Gcm)),
            with_handover(cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, &HandOver(CipherSuite::ChaCha20Poly1305)),
        ]
    });
    let [aes_128, aes_256, chacha] = &*SUITES;
    SupportedCipherSuite::Tls13(match suite {
        CipherSuite::Aes128Gcm => aes_128,
        CipherSuite::Aes256Gcm => aes_256,
        CipherSuite::ChaCha20Poly1305 => chacha,
    })
}

fn with_handover(suite: SupportedCipherSuite, algorithm: &'static HandOver) -> Tls13CipherSuite {
    let suite = suite.tls13().expect("the suites of TLS 1.3 are of TLS 1.3");
    let CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit } = suite.common;
    Tls13CipherSuite {
        common: CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: Some(algorithm),
    }
}

/// Makes nothing of keys but to leave them where the session finds them.
struct HandOver(CipherSuite);

impl Algorithm for HandOver {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        if let Ok(iv) = iv.as_ref().try_into() {
            Secrets::leave_packet_key(key.as_ref(), iv);
        }
        Box::new(Elsewhere)
    }

    // rustls asks for this one first.
    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        Secrets::leave_header_key(key);
        Box::new(Elsewhere)
    }

    fn aead_key_len(&self) -> usize {
        self.0.key_len()
    }
}

/// A key that the transport has. rustls itself uses keys of packets for nothing; without a size it takes no memory.
struct Elsewhere;

impl PacketKey for Elsewhere {
    fn encrypt_in_place(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<Tag, Error> {
        Err(Error::EncryptError)
    }

    fn decrypt_in_place<'a>(&self, _: u64, _: &[u8], _: &'a mut [u8]) -> Result<&'a [u8], Error> {
        Err(Error::DecryptError)
    }

    fn tag_len(&self) -> usize {
        TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        CipherSuite::Aes128Gcm.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        CipherSuite::ChaCha20Poly1305.integrity_limit()
    }
}

impl HeaderProtectionKey for Elsewhere {
    fn encrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::EncryptError)
    }

    fn decrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Err(Error::DecryptError)
    }

    fn sample_len(&self) -> usize {
        crate::crypto::SAMPLE_LEN
    }
}
