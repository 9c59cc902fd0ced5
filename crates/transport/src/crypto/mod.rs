//! Packet protection: from a traffic secret to sealed and opened packets (RFC 9001 §5).
//!
//! This folder owns the cipher suites and the keys derived from secrets. It does not know connections: `keys` selects the key of a
//! packet.

mod exporter;
mod header_key;
mod hkdf;
mod initial;
mod key_material;
mod labels;
mod packet_key;
mod retry;

pub(crate) use exporter::export;
pub use header_key::{HeaderKey, MASK_LEN, SAMPLE_LEN};
pub use initial::initial_secret;
pub(crate) use initial::initial_secrets;
pub use key_material::KeyMaterial;
pub use labels::Labels;
pub use packet_key::PacketKey;
pub use retry::{RETRY_TAG_LEN, retry_tag, verify_retry_tag};

/// Bytes that the authentication tag adds to each packet; the same for every suite (RFC 9001 §5.3).
pub const TAG_LEN: usize = 16;

/// The longest traffic secret: the output of SHA-384.
const MAX_SECRET_LEN: usize = 48;

/// A packet whose authentication tag does not match.
///
/// It has no further data on purpose: RFC 9001 §9.5 requires that the causes are indistinguishable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet failed authentication")]
pub struct Forged;

/// A cipher suite of TLS 1.3 that QUIC can use.
///
/// TLS_AES_128_CCM_SHA256 is left out: no TLS library in reach offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherSuite {
    /// TLS_AES_128_GCM_SHA256, also the suite of Initial packets.
    Aes128Gcm,
    /// TLS_AES_256_GCM_SHA384.
    Aes256Gcm,
    /// TLS_CHACHA20_POLY1305_SHA256.
    ChaCha20Poly1305,
}

impl CipherSuite {
    /// The suite with this number in the TLS registry.
    // RFC 9001 §5.3 MUST NOT-1: cipher suites without a known header protection are not negotiated
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x1301 => Some(Self::Aes128Gcm),
            0x1302 => Some(Self::Aes256Gcm),
            0x1303 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// The suite's number in the TLS registry.
    pub const fn number(self) -> u16 {
        match self {
            Self::Aes128Gcm => 0x1301,
            Self::Aes256Gcm => 0x1302,
            Self::ChaCha20Poly1305 => 0x1303,
        }
    }

    /// Bytes of a packet protection key, and of a header protection key.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of a traffic secret: the output of the suite's hash.
    pub const fn secret_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => 32,
            Self::Aes256Gcm => 48,
        }
    }

    /// Number of packets that may be sealed with one key.
    // RFC 9001 §6.6: 2^23 packets for AES-GCM; for ChaCha20-Poly1305 more than there are packet numbers.
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 23,
            Self::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Number of packets of a connection that may fail authentication.
    // RFC 9001 §6.6: 2^52 packets for AES-GCM, 2^36 for ChaCha20-Poly1305.
    pub const fn integrity_limit(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 52,
            Self::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// A traffic secret. It is overwritten when dropped and never printed.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; MAX_SECRET_LEN],
    len: u8,
}

impl Secret {
    /// A secret of at most 48 bytes; `None` when there are more.
    pub fn new(secret: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_SECRET_LEN];
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Self { bytes, len: secret.len() as u8 })
    }

    /// The secret itself.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The secret that follows this one at a key update.
    // RFC 9001 §6.1: HKDF-Expand-Label with the label "quic ku" (RFC 9369 §3.3.2: "quicv2 ku"), same length.
    #[must_use]
    pub fn next(&self, suite: CipherSuite, labels: &Labels) -> Self {
        let mut bytes = [0; MAX_SECRET_LEN];
        hkdf::expand_label(suite, self.as_slice(), labels.update, &mut bytes[..suite.secret_len()]);
        Self { bytes, len: suite.secret_len() as u8 }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.bytes.fill(0);
        // Keeps the compiler from removing the stores above as dead.
        std::hint::black_box(&self.bytes);
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}

#[cfg(test)]
pub(crate) mod vectors;
