//! Version numbers of QUIC.

/// QUIC version 1 (RFC 9000).
pub const V1: u32 = 0x0000_0001;

/// QUIC version 2 (RFC 9369): the same protocol with other salts, labels and type bits.
pub const V2: u32 = 0x6b33_43cf;

/// Not a version: the value that marks a Version Negotiation packet (RFC 8999 §6).
pub const NEGOTIATION: u32 = 0;

/// RFC 9000 §15: versions of the form 0x?a?a?a?a are reserved to exercise negotiation, and are never implemented.
#[inline]
pub const fn is_greased(version: u32) -> bool {
    version & 0x0f0f_0f0f == 0x0a0a_0a0a
}

/// A reserved version, made from a random number (RFC 9000 §15).
#[inline]
pub const fn greased(random: u32) -> u32 {
    random & 0xf0f0_f0f0 | 0x0a0a_0a0a
}

/// Returns whether the packets of this version can be read beyond the invariants of RFC 8999.
#[inline]
pub const fn is_known(version: u32) -> bool {
    matches!(version, V1 | V2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_pattern() {
        assert!(is_greased(0x0a0a_0a0a));
        assert!(is_greased(0xfa5a_1a0a));
        assert!(!is_greased(0x0a0a_0a0b));
        for version in [V1, V2, NEGOTIATION] {
            assert!(!is_greased(version));
        }
        assert!(is_known(V1) && is_known(V2) && !is_known(NEGOTIATION));
    }
}
