//! Connection IDs of QUIC versions 1 and 2: up to 20 bytes, held inline.

use std::fmt;

/// A connection ID of at most [`MAX_LEN`](Self::MAX_LEN) bytes (RFC 9000 §5.1).
///
/// Unused bytes are always zero, so that comparison and hashing need not check the length first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ConnectionId {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl ConnectionId {
    /// RFC 9000 §17.2 MUST NOT-1, MUST NOT-2: versions 1 and 2 know no connection ID longer than this, in bytes.
    pub const MAX_LEN: usize = 20;

    /// The connection ID without a byte.
    pub const EMPTY: Self = Self { bytes: [0; Self::MAX_LEN], len: 0 };

    /// A connection ID of these bytes; none when they are more than [`MAX_LEN`](Self::MAX_LEN).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 20")]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self::EMPTY;
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        id.len = bytes.len() as u8;
        Some(id)
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Number of bytes, 0 to 20.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns whether there is no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::ops::Deref for ConnectionId {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for ConnectionId {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9000 §17.2 MUST NOT-1, MUST NOT-2
    #[test]
    fn holds_up_to_twenty_bytes() {
        let bytes: Vec<u8> = (1..=21).collect();
        for len in 0..=20 {
            let id = ConnectionId::new(&bytes[..len]).unwrap();
            assert_eq!(id.as_slice(), &bytes[..len]);
            assert_eq!((id.len(), id.is_empty()), (len, len == 0));
        }
        assert_eq!(ConnectionId::new(&bytes), None);
        assert_eq!(ConnectionId::new(&[]), Some(ConnectionId::EMPTY));
    }

    #[test]
    fn a_zero_byte_counts() {
        assert_ne!(ConnectionId::new(&[0]), ConnectionId::new(&[]));
        assert_ne!(ConnectionId::new(&[1, 0]), ConnectionId::new(&[1]));
    }

    #[test]
    fn shows_itself_in_hex() {
        let id = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]).unwrap();
        assert_eq!(format!("{id:?}"), "ConnectionId(8394c8f03e515708)");
        assert_eq!(id.to_string(), "8394c8f03e515708");
    }
}
