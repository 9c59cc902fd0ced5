//! Hashes of names and fields: short, equal in every process, computed once for each field and used by all tables.
//!
//! An attacker who chooses fields can cause collisions. A look-up then compares with more entries of a table of bounded capacity, or a
//! field is taken for an earlier one. Found entries are always compared.

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word) as u128 * FACTOR as u128;
    (product >> 64) as u64 ^ product as u64
}

/// Continues a hash with `bytes`. Not the same for "a", "bc" as for "ab", "c".
#[inline]
pub(crate) const fn more(hash: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(hash, bytes.len() as u64 ^ FACTOR.rotate_left(32));
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        hash = mix(hash, u64::from_le_bytes(*word));
        rest = after;
    }
    let mut last = 0;
    while let Some((byte, after)) = rest.split_first() {
        last = last << 8 | *byte as u64;
        rest = after;
    }
    mix(hash, last)
}

/// The hash of a name; of a field it is [`more`] of this with the value.
#[inline]
pub(crate) const fn name(name: &[u8]) -> u64 {
    more(FACTOR, name)
}
