//! Variable-length integers (RFC 9000 §16): the two highest bits of the first byte encode the length, 1, 2, 4 or 8 bytes.

use crate::{Reader, Truncated, Writer};

/// The largest value that has an encoding.
pub const MAX: u64 = (1 << 62) - 1;

/// Number of bytes of the shortest encoding of `value`: 1, 2, 4 or 8.
///
/// A value above [`MAX`] has no encoding; the answer for it is 8, and writing it panics.
#[inline]
pub const fn len(value: u64) -> usize {
    if value < 1 << 6 {
        1
    } else if value < 1 << 14 {
        2
    } else if value < 1 << 30 {
        4
    } else {
        8
    }
}

/// Appends the shortest encoding of `value` to a vector, for data outside of packets.
///
/// # Panics
/// When `value` is above [`MAX`].
pub fn push(out: &mut Vec<u8>, value: u64) {
    let mut buf = [0; 8];
    let mut w = Writer::new(&mut buf);
    w.varint(value);
    out.extend_from_slice(w.written());
}

impl<'a> Reader<'a> {
    /// Reads a variable-length integer (RFC 9000 §16), of any encoded length.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Truncated> {
        let &first = self.peek().first().ok_or(Truncated)?;
        match first >> 6 {
            0 => self.u8().map(u64::from),
            1 => self.u16().map(|v| u64::from(v & 0x3fff)),
            2 => self.u32().map(|v| u64::from(v & 0x3fff_ffff)),
            _ => self.u64().map(|v| v & MAX),
        }
    }

    /// Bytes that a variable-length integer in front of them counts.
    #[inline]
    pub fn counted(&mut self) -> Result<&'a [u8], Truncated> {
        let before = *self;
        let len = self.varint()?;
        // A count that does not fit usize cannot fit the slice either.
        let taken = usize::try_from(len).map_err(|_| Truncated).and_then(|len| self.bytes(len));
        if taken.is_err() {
            *self = before;
        }
        taken
    }
}

impl Writer<'_> {
    /// The shortest encoding of a variable-length integer.
    ///
    /// # Panics
    /// When the value is above [`MAX`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each arm has checked the range")]
    pub fn varint(&mut self, value: u64) {
        if value < 1 << 6 {
            self.u8(value as u8);
        } else if value < 1 << 14 {
            self.u16(value as u16 | 0x4000);
        } else if value < 1 << 30 {
            self.u32(value as u32 | 0x8000_0000);
        } else if value <= MAX {
            self.u64(value | 0xc000_0000_0000_0000);
        } else {
            no_such_varint(value, 8);
        }
    }

    /// A variable-length integer in exactly `len` bytes, so that it can be overwritten by another value later.
    ///
    /// # Panics
    /// When `len` is none of 1, 2, 4, 8, or the value does not fit.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each arm has checked the range")]
    pub fn varint_with_len(&mut self, value: u64, len: usize) {
        match len {
            1 if value < 1 << 6 => self.u8(value as u8),
            2 if value < 1 << 14 => self.u16(value as u16 | 0x4000),
            4 if value < 1 << 30 => self.u32(value as u32 | 0x8000_0000),
            8 if value <= MAX => self.u64(value | 0xc000_0000_0000_0000),
            _ => no_such_varint(value, len),
        }
    }
}

#[cold]
#[inline(never)]
fn no_such_varint(value: u64, len: usize) -> ! {
    panic!("no encoding of {value} as a variable-length integer in {len} bytes (the largest value is 2^62-1)")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_rfc_9000_a_1() {
        let examples: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            // Longer than needed, and still legal for everything but frame types.
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in examples {
            let mut r = Reader::new(bytes);
            assert_eq!(r.varint(), Ok(value));
            assert!(r.is_empty());
        }
    }

    #[test]
    fn lengths_change_where_the_standard_says() {
        for (value, expected) in
            [(0, 1), (63, 1), (64, 2), (16_383, 2), (16_384, 4), (1_073_741_823, 4), (1_073_741_824, 8), (MAX, 8)]
        {
            assert_eq!(len(value), expected, "{value}");
            let mut out = Vec::new();
            push(&mut out, value);
            assert_eq!(out.len(), expected);
        }
    }

    #[test]
    #[should_panic(expected = "2^62-1")]
    fn a_value_without_encoding_is_refused() {
        push(&mut Vec::new(), MAX + 1);
    }

    #[test]
    fn every_cut_is_reported() {
        for value in [64, 20_000, 1 << 40] {
            let mut out = Vec::new();
            push(&mut out, value);
            for cut in 0..out.len() {
                let mut r = Reader::new(&out[..cut]);
                assert_eq!(r.varint(), Err(Truncated));
                assert_eq!(r.position(), 0, "a failed read moves nothing");
            }
        }
    }

    #[test]
    fn a_count_beyond_the_end_moves_nothing() {
        let mut r = Reader::new(&[5, 1, 2]);
        assert_eq!(r.counted(), Err(Truncated));
        assert_eq!(r.position(), 0);
        let mut r = Reader::new(&[0xff; 9]);
        assert_eq!(r.counted(), Err(Truncated));
        assert_eq!(r.position(), 0);
    }

    #[test]
    fn counted_bytes_come_back() {
        let mut r = Reader::new(b"\x03abcd");
        assert_eq!(r.counted(), Ok(&b"abc"[..]));
        assert_eq!(r.peek(), b"d");
    }

    proptest! {
        #[test]
        fn read_returns_what_was_written(value in 0..=MAX, shift in 0..62u32) {
            let value = value >> shift;
            for bytes in [1, 2, 4, 8] {
                if bytes < len(value) {
                    continue;
                }
                let mut buf = [0; 8];
                let mut w = Writer::new(&mut buf);
                w.varint_with_len(value, bytes);
                prop_assert_eq!(w.position(), bytes);
                prop_assert_eq!(Reader::new(w.written()).varint(), Ok(value));
            }
            let mut buf = [0; 8];
            let mut w = Writer::new(&mut buf);
            w.varint(value);
            prop_assert_eq!(w.position(), len(value));
            prop_assert_eq!(Reader::new(w.written()).varint(), Ok(value));
        }
    }
}
