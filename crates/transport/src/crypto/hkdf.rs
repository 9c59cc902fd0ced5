//! HKDF-Expand-Label of TLS 1.3, which derives keys from a secret (RFC 8446 §7.1, RFC 9001 §5.1).

use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};

use super::CipherSuite;

/// Number of bytes, in the form of the library's interface.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

pub(super) fn hash(suite: CipherSuite) -> hkdf::Algorithm {
    match suite {
        CipherSuite::Aes128Gcm | CipherSuite::ChaCha20Poly1305 => HKDF_SHA256,
        CipherSuite::Aes256Gcm => HKDF_SHA384,
    }
}

/// Fills `out` from `secret` with the hash of `suite`. The context is empty wherever QUIC derives keys.
pub(super) fn expand_label(suite: CipherSuite, secret: &[u8], label: &str, out: &mut [u8]) {
    expand_label_of(&Prk::new_less_safe(hash(suite), secret), label, out);
}

/// Fills `out` from a pseudorandom key.
pub(super) fn expand_label_of(prk: &Prk, label: &str, out: &mut [u8]) {
    expand_label_with(prk, label.as_bytes(), &[], out);
}

/// The same with a context, of at most 255 bytes. The label has at most 249.
pub(super) fn expand_label_with(prk: &Prk, label: &[u8], context: &[u8], out: &mut [u8]) {
    // RFC 8446 §7.1: struct { uint16 length; opaque label<7..255> = "tls13 " + label; opaque context<0..255>; }
    const PREFIX: &[u8] = b"tls13 ";
    let length = (out.len() as u16).to_be_bytes();
    let label_len = [(PREFIX.len() + label.len()) as u8];
    let context_len = [context.len() as u8];
    let info: [&[u8]; 6] = [&length, &label_len, PREFIX, label, &context_len, context];
    prk.expand(&info, Len(out.len()))
        .and_then(|okm| okm.fill(out))
        // Every caller asks for at most 255 blocks of the hash; HKDF fails beyond.
        .expect("a key is shorter than 255 hash outputs");
}
