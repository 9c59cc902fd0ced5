//! Bytes of the keys of one direction, where whoever has the secret has derived them already.

use super::Labels;

/// Longest key: that of AES-256 and ChaCha20.
const MAX_KEY_LEN: usize = 32;

/// Packet protection key, initialisation vector and header protection key of one secret (RFC 9001 §5.1). Overwritten when dropped and
/// never printed.
#[derive(Clone)]
pub struct KeyMaterial {
    labels: &'static Labels,
    key: [u8; MAX_KEY_LEN],
    iv: [u8; 12],
    header: [u8; MAX_KEY_LEN],
}

impl KeyMaterial {
    /// Keys that were derived with the labels of one version. `None` when a key is longer than any suite's.
    pub fn new(labels: &'static Labels, key: &[u8], iv: [u8; 12], header: &[u8]) -> Option<Self> {
        let mut material = Self { labels, key: [0; MAX_KEY_LEN], iv, header: [0; MAX_KEY_LEN] };
        material.key.get_mut(..key.len())?.copy_from_slice(key);
        material.header.get_mut(..header.len())?.copy_from_slice(header);
        Some(material)
    }

    /// Returns whether the keys belong to a version with these labels.
    pub(crate) fn is_of(&self, labels: &Labels) -> bool {
        std::ptr::eq(self.labels, labels)
    }

    /// The first `len` bytes of the packet protection key.
    pub(super) fn key(&self, len: usize) -> &[u8] {
        &self.key[..len]
    }

    pub(super) fn iv(&self) -> [u8; 12] {
        self.iv
    }

    /// The first `len` bytes of the header protection key.
    pub(super) fn header(&self, len: usize) -> &[u8] {
        &self.header[..len]
    }
}

impl Drop for KeyMaterial {
    fn drop(&mut self) {
        (self.key, self.iv, self.header) = ([0; MAX_KEY_LEN], [0; 12], [0; MAX_KEY_LEN]);
        // Keeps the compiler from removing the stores above as dead.
        std::hint::black_box(&self.key);
    }
}

impl std::fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyMaterial")
    }
}
