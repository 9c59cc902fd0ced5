//! Header protection key, which hides the packet number and the low bits of the first byte (RFC 9001 §5.4).

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};

use super::hkdf::expand_label;
use super::{CipherSuite, KeyMaterial, Labels, Secret};

/// Bytes of ciphertext that decide the mask.
pub const SAMPLE_LEN: usize = 16;

/// Bytes of the mask: one for the first byte, four for the packet number.
pub const MASK_LEN: usize = 5;

/// The header protection key of one direction. It stays the same over key updates.
///
/// A mask is one block cipher call on an expanded key, without a context to set up: for AES about as long as a cache miss
/// to the next level (`examples/packet_cost.rs`), so masks are made one by one.
pub struct HeaderKey(HeaderProtectionKey);

impl HeaderKey {
    /// Derives the key from a traffic secret: the first one of its direction, not that of a later key phase.
    pub fn new(suite: CipherSuite, secret: &Secret, labels: &Labels) -> Self {
        let mut key = [0; 32];
        let key = &mut key[..suite.key_len()];
        expand_label(suite, secret.as_slice(), labels.header, key);
        Self::of(suite, key)
    }

    /// Takes a key that was derived before.
    pub(crate) fn from_material(suite: CipherSuite, material: &KeyMaterial) -> Self {
        Self::of(suite, material.header(suite.key_len()))
    }

    fn of(suite: CipherSuite, key: &[u8]) -> Self {
        let algorithm = match suite {
            CipherSuite::Aes128Gcm => &AES_128,
            CipherSuite::Aes256Gcm => &AES_256,
            CipherSuite::ChaCha20Poly1305 => &CHACHA20,
        };
        Self(HeaderProtectionKey::new(algorithm, key).expect("the key has the suite's length"))
    }

    /// The mask for a sample of ciphertext.
    // RFC 9001 §5.4.3: AES-ECB of the sample. §5.4.4: ChaCha20 with counter and nonce taken from the sample.
    #[inline]
    pub fn mask(&self, sample: &[u8; SAMPLE_LEN]) -> [u8; MASK_LEN] {
        self.0.new_mask(sample).expect("the sample has the right length")
    }
}

impl std::fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeaderKey")
    }
}
