//! Cryptographic constants that differ between versions of QUIC: labels, salts, and the key of the Retry tag.

use std::sync::OnceLock;

use aws_lc_rs::{
    hkdf::{HKDF_SHA256, Prk},
    hmac,
};

/// The constants of one version.
#[derive(Debug)]
pub struct Labels {
    pub(super) key: &'static str,
    pub(super) iv: &'static str,
    pub(super) header: &'static str,
    pub(super) update: &'static str,
    initial_salt: [u8; 20],
    /// The salt in the form of the library, which hashes it once.
    salt: OnceLock<hmac::Key>,
    pub(super) retry_key: [u8; 16],
    pub(super) retry_nonce: [u8; 12],
}

/// RFC 9001.
static V1: Labels = Labels {
    key: "quic key",
    iv: "quic iv",
    header: "quic hp",
    update: "quic ku",
    // RFC 9001 §5.2
    initial_salt: [
        0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb,
        0x7f, 0x0a,
    ],
    salt: OnceLock::new(),
    // RFC 9001 §5.8
    retry_key: [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e],
    retry_nonce: [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb],
};

// RFC 9369 §3 MUST-1: version 2 is version 1 with these values, and numbers of long packet types moved by one
/// RFC 9369.
static V2: Labels = Labels {
    // RFC 9369 §3.3.2
    key: "quicv2 key",
    iv: "quicv2 iv",
    header: "quicv2 hp",
    update: "quicv2 ku",
    // RFC 9369 §3.3.1
    initial_salt: [
        0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd,
        0x2e, 0xd9,
    ],
    salt: OnceLock::new(),
    // RFC 9369 §3.3.3
    retry_key: [0x8f, 0xb4, 0xb0, 0x1b, 0x56, 0xac, 0x48, 0xe2, 0x60, 0xfb, 0xcb, 0xce, 0xad, 0x7c, 0xcc, 0x92],
    retry_nonce: [0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99, 0x90, 0xef, 0xb0, 0x4a],
};

impl Labels {
    /// The pseudorandom key of the secrets of Initial packets: HKDF-Extract with the version's salt, which is an HMAC (RFC 5869 §2.2).
    // `Salt::extract` of the library puts off the HMAC until a key is expanded, allocates for it, and repeats it for each key.
    pub(super) fn initial_prk(&self, dcid: &[u8]) -> Prk {
        let salt = self.salt.get_or_init(|| hmac::Key::new(hmac::HMAC_SHA256, &self.initial_salt));
        Prk::new_less_safe(HKDF_SHA256, hmac::sign(salt, dcid).as_ref())
    }

    /// The constants of a version of QUIC; `None` for a version that is not supported.
    pub fn of(version: u32) -> Option<&'static Self> {
        match version {
            wire::version::V1 => Some(&V1),
            wire::version::V2 => Some(&V2),
            _ => None,
        }
    }
}
