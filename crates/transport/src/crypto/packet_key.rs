//! One key that seals or opens packets, in place.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::hkdf::expand_label;
use super::{CipherSuite, Forged, KeyMaterial, Labels, Secret, TAG_LEN};
use crate::PathId;

/// The key and the initialisation vector of one direction and one key phase.
///
/// Neither sealing nor opening allocates. The key's schedule (about 600 bytes) lives on the heap.
#[derive(Debug)]
pub struct PacketKey {
    key: Aead,
    iv: [u8; NONCE_LEN],
}

#[derive(Debug)]
enum Aead {
    /// AES-GCM where the processor has VAES and AVX-512.
    Vectors(Box<gcm::Key>),
    Library(LessSafeKey),
}

impl Aead {
    fn new(suite: CipherSuite, key: &[u8]) -> Self {
        let algorithm = match suite {
            CipherSuite::Aes128Gcm => &AES_128_GCM,
            CipherSuite::Aes256Gcm => &AES_256_GCM,
            CipherSuite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        if cfg!(not(feature = "aws-lc-gcm"))
            && suite != CipherSuite::ChaCha20Poly1305
            && let Some(key) = gcm::Key::new(key)
        {
            return Self::Vectors(Box::new(key));
        }
        let unbound = UnboundKey::new(algorithm, key).expect("the key has the suite's length");
        Self::Library(LessSafeKey::new(unbound))
    }
}

impl PacketKey {
    /// Derives key and initialisation vector from a traffic secret (RFC 9001 §5.1).
    pub fn new(suite: CipherSuite, secret: &Secret, labels: &Labels) -> Self {
        let mut key = [0; 32];
        let key = &mut key[..suite.key_len()];
        expand_label(suite, secret.as_slice(), labels.key, key);
        let mut iv = [0; 12];
        expand_label(suite, secret.as_slice(), labels.iv, &mut iv);
        Self::of(suite, key, iv)
    }

    /// Takes key and initialisation vector that were derived before.
    pub(crate) fn from_material(suite: CipherSuite, material: &KeyMaterial) -> Self {
        Self::of(suite, material.key(suite.key_len()), material.iv())
    }

    fn of(suite: CipherSuite, key: &[u8], iv: [u8; NONCE_LEN]) -> Self {
        Self { key: Aead::new(suite, key), iv }
    }

    /// Name of what seals and opens with AES on this machine: vector instructions ([`gcm`]) or AWS-LC.
    pub fn aes_gcm() -> &'static str {
        match Aead::new(CipherSuite::Aes128Gcm, &[0; 16]) {
            Aead::Vectors(_) => "VAES with AVX-512",
            Aead::Library(_) => "AWS-LC",
        }
    }

    // RFC 9001 §5.3: the nonce is the packet number, padded with zeros on the left, XORed with the IV.
    // Multipath draft §2.4: the 32 bits before the 64 of the packet number are the path ID; path 0 changes nothing.
    #[inline]
    fn nonce(&self, pn: u64, path: PathId) -> [u8; NONCE_LEN] {
        let (left, right) = self.iv.split_first_chunk::<4>().expect("twelve bytes");
        let right: [u8; 8] = right.try_into().expect("eight bytes");
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&(u32::from_be_bytes(*left) ^ path.0).to_be_bytes());
        nonce[4..].copy_from_slice(&(u64::from_be_bytes(right) ^ pn).to_be_bytes());
        nonce
    }

    /// Encrypts a packet's payload in place. The last 16 bytes of `payload_and_tag` are overwritten with the tag. `header` is everything
    /// before the payload, with the packet number, before header protection.
    ///
    /// Never seal two packets with the same `pn` and `path` with one key.
    ///
    /// # Panics
    /// If `payload_and_tag` is shorter than a tag.
    #[inline]
    pub fn seal(&self, pn: u64, path: PathId, header: &[u8], payload_and_tag: &mut [u8]) {
        self.seal_with(pn, path, header, payload_and_tag, &[]);
    }

    /// Like [`seal`](Self::seal); the last bytes of the payload are read from `tail` and not from the packet.
    ///
    /// # Panics
    /// If `payload_and_tag` is shorter than `tail` and a tag.
    #[inline]
    pub fn seal_with(&self, pn: u64, path: PathId, header: &[u8], payload_and_tag: &mut [u8], tail: &[u8]) {
        let nonce = self.nonce(pn, path);
        match &self.key {
            Aead::Vectors(key) => {
                let (payload, to) = payload_and_tag.split_last_chunk_mut().expect("room for a tag");
                *to = key.seal(&nonce, header, payload, tail);
            }
            Aead::Library(key) => {
                let (payload, rest) = payload_and_tag.split_at_mut(payload_and_tag.len() - TAG_LEN - tail.len());
                key.seal_in_place_scatter(Nonce::assume_unique_for_key(nonce), Aad::from(header), payload, tail, rest)
                    .expect("a datagram is shorter than the most an AEAD can seal");
            }
        }
    }

    /// Returns whether [`seal_with`](Self::seal_with) with a tail costs less than copying it: not with ChaCha20, of which AWS-LC makes 64 bytes at a
    /// time for such a tail.
    #[inline]
    pub fn seals_from_elsewhere(&self) -> bool {
        match &self.key {
            Aead::Vectors(_) => true,
            Aead::Library(key) => key.algorithm() != &CHACHA20_POLY1305,
        }
    }

    /// Checks and decrypts a packet's payload in place; returns the length of the plaintext, which starts where the
    /// ciphertext did.
    ///
    /// When it fails, the payload is lost (overwritten), but its last 16 bytes are as they were: they may be a stateless
    /// reset token.
    #[inline]
    pub fn open(&self, pn: u64, path: PathId, header: &[u8], payload: &mut [u8]) -> Result<usize, Forged> {
        let (payload, tag) = payload.split_last_chunk_mut().ok_or(Forged)?;
        let nonce = self.nonce(pn, path);
        let is_authentic = match &self.key {
            Aead::Vectors(key) => key.open(&nonce, header, payload, tag),
            Aead::Library(key) => key
                .open_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), tag, payload)
                .is_ok(),
        };
        if is_authentic { Ok(payload.len()) } else { Err(Forged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(suite: CipherSuite) -> PacketKey {
        let secret = Secret::new(&vec![7; suite.secret_len()]).unwrap();
        PacketKey::new(suite, &secret, Labels::of(wire::version::V1).unwrap())
    }

    #[test]
    fn what_is_sealed_opens_only_unchanged() {
        for suite in [CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
            let key = key(suite);
            let mut packet = vec![1, 2, 3];
            packet.resize(3 + TAG_LEN, 0xff);
            key.seal(9, PathId(0), b"header", &mut packet);
            for (pn, path, header) in
                [(10, PathId(0), &b"header"[..]), (9, PathId(1), b"header"), (9, PathId(0), b"heade!")]
            {
                assert_eq!(key.open(pn, path, header, &mut packet.clone()), Err(Forged));
            }
            for i in 0..packet.len() {
                let mut changed = packet.clone();
                changed[i] ^= 1;
                assert_eq!(key.open(9, PathId(0), b"header", &mut changed), Err(Forged), "byte {i}");
            }
            assert_eq!(key.open(9, PathId(0), b"header", &mut packet[..TAG_LEN - 1]), Err(Forged));
            assert_eq!(key.open(9, PathId(0), b"header", &mut packet), Ok(3));
            assert_eq!(packet[..3], [1, 2, 3]);
        }
    }

    #[test]
    fn aes_gcm_is_that_of_vectors_where_there_is_one() {
        let has_vectors = gcm::Key::new(&[0; 16]).is_some() && cfg!(not(feature = "aws-lc-gcm"));
        for suite in [CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm] {
            assert_eq!(matches!(key(suite).key, Aead::Vectors(_)), has_vectors, "{suite:?}");
        }
        assert!(matches!(key(CipherSuite::ChaCha20Poly1305).key, Aead::Library(_)));
        assert_eq!(PacketKey::aes_gcm() == "VAES with AVX-512", has_vectors);
    }

    #[test]
    fn a_tail_from_elsewhere_makes_the_same_packet() {
        for suite in [CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
            let key = key(suite);
            let plain: Vec<u8> = (0..1200).map(|i| (i * 7) as u8).collect();
            let mut whole = plain.clone();
            whole.resize(plain.len() + TAG_LEN, 0);
            key.seal(9, PathId(0), b"header", &mut whole);
            for split in [0, 1, 15, 16, 17, 23, 600, 1199, 1200] {
                let mut packet = plain.clone();
                packet[split..].fill(0xee);
                packet.resize(plain.len() + TAG_LEN, 0xff);
                key.seal_with(9, PathId(0), b"header", &mut packet, &plain[split..]);
                assert!(packet == whole, "{suite:?}, split at {split}");
            }
        }
    }

    #[test]
    fn a_failed_open_leaves_the_last_sixteen_bytes() {
        for suite in [CipherSuite::Aes128Gcm, CipherSuite::ChaCha20Poly1305] {
            let mut packet: Vec<u8> = (0..64).collect();
            assert_eq!(key(suite).open(0, PathId(0), b"", &mut packet), Err(Forged));
            assert_eq!(packet[48..], (48..64).collect::<Vec<u8>>());
        }
    }

    /// The example of the multipath draft, §2.4.
    #[test]
    fn the_path_goes_into_the_nonce() {
        let mut key = key(CipherSuite::Aes128Gcm);
        key.iv = [0x6b, 0x26, 0x11, 0x4b, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0xdd, 0x4f];
        let nonce = key.nonce(54321, PathId(3));
        assert_eq!(nonce.as_ref(), &[0x6b, 0x26, 0x11, 0x48, 0x9c, 0xba, 0x2b, 0x63, 0xa9, 0xe8, 0x09, 0x7e]);
    }
}
