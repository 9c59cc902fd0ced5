//! Prefixed integers (RFC 7541 §5.1, RFC 9204 §4.1.1): a small value fits into the rest of a byte; a larger value continues with seven bits
//! in each following byte, lowest first.

use crate::error::Fault;

/// Largest value that is read; larger ones have no meaning in HTTP/3. RFC 9204 §4.1.1 MUST-1: 62 bits are read.
pub(crate) const MAX: u64 = (1 << 62) - 1;

/// Bytes that 62 bits need after the prefix. Zeros may make an encoding longer than it must be, but not longer than this.
const MOST_BYTES: usize = 9;

/// Appends `value`. It starts in the `prefix` (1–8) low bits of a byte whose other bits are those of `flags`.
#[inline]
pub(crate) fn push(out: &mut Vec<u8>, prefix: u32, flags: u8, value: u64) {
    let most = (1_u64 << prefix) - 1;
    if value < most {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Takes an integer with a prefix of `prefix` bits off `bytes`; the other bits of the first byte are ignored.
///
/// # Errors
/// When the bytes end, and when the value is above [`MAX`] or longer than any such value needs to be. Then no byte is taken.
#[inline]
pub(crate) fn read(bytes: &mut &[u8], prefix: u32) -> Result<u64, Fault> {
    let (&first, mut rest) = bytes.split_first().ok_or(Fault::Truncated)?;
    let most = (1_u64 << prefix) - 1;
    let mut value = u64::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            if shift == 7 * MOST_BYTES {
                // RFC 9204 §7.4 MUST-1: what is larger than can be read is an error, and does not wrap
                return Err(Fault::Wrong("an integer of too many bytes"));
            }
            let (&byte, after) = rest.split_first().ok_or(Fault::Truncated)?;
            rest = after;
            // At most 255 + 2^63 - 1: no overflow.
            value += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        if value > MAX {
            return Err(Fault::Wrong("an integer of more than 62 bits"));
        }
    }
    *bytes = rest;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_rfc_7541_c_1() {
        for (prefix, value, expected) in
            [(5, 10, &[0b0_1010][..]), (5, 1_337, &[0b1_1111, 0b1001_1010, 0b0000_1010]), (8, 42, &[42])]
        {
            let mut out = Vec::new();
            push(&mut out, prefix, 0, value);
            assert_eq!(out, expected);
        }
    }

    /// RFC 9204 §7.4 MUST-1
    #[test]
    fn what_is_too_long_is_refused_before_it_ends() {
        let zeros = |count: usize| [&[0x3f][..], &vec![0x80; count], &[0]].concat();
        assert_eq!(read(&mut &zeros(8)[..], 6), Ok(63));
        let long = zeros(9);
        assert!(matches!(read(&mut &long[..], 6), Err(Fault::Wrong(_))));
        assert!(matches!(read(&mut &long[..10], 6), Err(Fault::Wrong(_))));
        assert_eq!(read(&mut &long[..9], 6), Err(Fault::Truncated));
        let mut above = Vec::new();
        push(&mut above, 3, 0, MAX + 1);
        assert!(matches!(read(&mut &above[..], 3), Err(Fault::Wrong(_))));
        // The largest sum that nine bytes can make.
        let largest = [&[0xff; 9][..], &[0x7f]].concat();
        assert!(matches!(read(&mut &largest[..], 8), Err(Fault::Wrong(_))));
    }

    proptest! {
        /// RFC 9204 §4.1.1 MUST-1
        #[test]
        fn read_returns_what_was_written(value in 0..=MAX, shift in 0..62_u32, prefix in 1..=8_u32, flags in any::<u8>()) {
            let value = value >> shift;
            let flags = flags & !(((1_u32 << prefix) - 1) as u8);
            let mut out = Vec::new();
            push(&mut out, prefix, flags, value);
            prop_assert_eq!(out[0] & !(((1_u32 << prefix) - 1) as u8), flags);
            for cut in 0..out.len() {
                let mut bytes = &out[..cut];
                prop_assert_eq!(read(&mut bytes, prefix), Err(Fault::Truncated));
                prop_assert_eq!(bytes.len(), cut);
            }
            out.push(7);
            let mut bytes = &out[..];
            prop_assert_eq!(read(&mut bytes, prefix), Ok(value));
            prop_assert_eq!(bytes, &[7][..]);
        }
    }
}
