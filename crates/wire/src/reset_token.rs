//! Stateless reset tokens (RFC 9000 §10.3). A holder of the token can end the connection, so it is compared in constant time and not
//! printed.

use std::fmt;
use std::hint::black_box;

/// The token of 16 bytes that proves a stateless reset genuine.
///
/// Equality takes the same time for all bytes, and `Debug` does not print them.
#[derive(Clone, Copy)]
pub struct ResetToken(pub [u8; 16]);

impl ResetToken {
    /// Number of bytes.
    pub const LEN: usize = 16;

    /// The last bytes of a datagram, when it is long enough to be a stateless reset (RFC 9000 §10.3: 21 bytes).
    #[inline]
    pub fn at_end_of(datagram: &[u8]) -> Option<Self> {
        let (before, token) = datagram.split_last_chunk()?;
        (before.len() >= 5).then_some(Self(*token))
    }

    /// RFC 9000 §10.3.1: the duration of the comparison must not depend on the number of matching bytes.
    #[inline]
    pub fn ct_eq(&self, other: &[u8; Self::LEN]) -> bool {
        let difference = self.0.iter().zip(other).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        difference == 0
    }
}

impl PartialEq for ResetToken {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(&other.0)
    }
}

impl Eq for ResetToken {}

impl fmt::Debug for ResetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let token = ResetToken([0x5a; 16]);
        assert_eq!(token, ResetToken([0x5a; 16]));
        for bit in 0..128 {
            let mut other = token;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(token, other, "bit {bit}");
        }
        // Differences do not cancel out.
        let mut other = token;
        other.0[3] ^= 1;
        other.0[9] ^= 1;
        assert_ne!(token, other);
    }

    #[test]
    fn is_not_shown() {
        assert!(!format!("{:?}", ResetToken([0x5a; 16])).contains("5a"));
    }
}
