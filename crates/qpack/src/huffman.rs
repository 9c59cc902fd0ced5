//! Huffman code of RFC 7541 appendix B. It is canonical: codes of one length follow each other in the order of their symbols, and those of
//! the next length continue. So the lengths determine the code, and the tables are computed from them at compile time.

use crate::error::Fault;

/// Bits of the code of each byte, and of the end of a string (EOS), which is never written.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const EOS: u16 = 256;
/// Bits of the longest code.
const LONGEST: usize = 30;
/// Codes up to this length are found by one look into a table.
const SHORT: u32 = 10;

struct Tables {
    /// Code of each symbol, in its low bits.
    codes: [u32; 257],
    /// Symbols in the order of their codes.
    sorted: [u16; 257],
    /// For each length the first code after those of that length, as the highest of 32 bits.
    ends: [u64; LONGEST + 1],
    /// For each length what is added to a code of that length to have its place in `sorted`.
    shifts: [i64; LONGEST + 1],
    /// For all that ten bits can be: length and symbol of the code at the beginning; length 0 when the code is longer.
    short: [(u8, u8); 1 << SHORT],
}

static TABLES: Tables = Tables::new();

impl Tables {
    const fn new() -> Self {
        let mut this = Self {
            codes: [0; 257],
            sorted: [0; 257],
            ends: [0; LONGEST + 1],
            shifts: [0; LONGEST + 1],
            short: [(0, 0); 1 << SHORT],
        };
        let mut code = 0_u64;
        let mut place = 0;
        let mut length = 1;
        while length <= LONGEST {
            code <<= 1;
            this.shifts[length] = place as i64 - code as i64;
            let mut symbol = 0;
            while symbol < 257 {
                if LENGTHS[symbol] as usize == length {
                    this.codes[symbol] = code as u32;
                    this.sorted[place] = symbol as u16;
                    if length <= SHORT as usize {
                        let rest = SHORT as usize - length;
                        let mut at = (code as usize) << rest;
                        while at < (code as usize + 1) << rest {
                            this.short[at] = (length as u8, symbol as u8);
                            at += 1;
                        }
                    }
                    code += 1;
                    place += 1;
                }
                symbol += 1;
            }
            this.ends[length] = code << (32 - length);
            length += 1;
        }
        // Every sequence of bits begins with a code.
        assert!(place == 257 && code == 1 << LONGEST);
        this
    }
}

/// Bytes that `bytes` have when they are encoded.
#[inline]
pub(crate) fn len(bytes: &[u8]) -> usize {
    let bits: usize = bytes.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// The fewest bytes that `len` bytes of the code can mean.
pub(crate) fn least(len: u64) -> u64 {
    // Padding is at most seven bits.
    (len.saturating_mul(8)).saturating_sub(7) / LONGEST as u64
}

/// Appends the code of `bytes`, padded with ones (RFC 7541 §5.2).
pub(crate) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    // The low `pending` bits have not been written.
    let mut bits = 0_u64;
    let mut pending = 0_u32;
    for &byte in bytes {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(TABLES.codes[usize::from(byte)]);
        pending += length;
        if pending >= 32 {
            pending -= 32;
            out.extend_from_slice(&((bits >> pending) as u32).to_be_bytes());
        }
    }
    while pending >= 8 {
        pending -= 8;
        out.push((bits >> pending) as u8);
    }
    if pending > 0 {
        out.push((bits << (8 - pending)) as u8 | 0xff >> pending);
    }
}

/// Appends what `bytes` mean: at most 8/5 of their number.
///
/// # Errors
/// RFC 7541 §5.2: for more than seven bits of padding, padding that is not of ones, and EOS.
pub(crate) fn decode(mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    // The highest `pending` bits are to be decoded; those behind are zero.
    let mut bits = 0_u64;
    let mut pending = 0_u32;
    loop {
        if pending <= 32 {
            if let Some((four, rest)) = bytes.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - pending);
                pending += 32;
                bytes = rest;
            } else {
                for &byte in bytes {
                    bits |= u64::from(byte) << (56 - pending);
                    pending += 8;
                }
                bytes = &[];
            }
        }
        // No code of a symbol is only ones, nor does one begin with fewer ones and end there.
        if pending < 8 && bytes.is_empty() && bits == !(u64::MAX >> pending) {
            return Ok(());
        }
        let (length, symbol) = next(bits);
        if length > pending {
            return Err(Fault::Wrong("a Huffman string with wrong padding"));
        }
        if symbol == EOS {
            return Err(Fault::Wrong("a Huffman string with an end inside"));
        }
        out.push(symbol as u8);
        bits <<= length;
        pending -= length;
    }
}

/// Length and symbol of the code in the highest bits.
#[inline]
fn next(bits: u64) -> (u32, u16) {
    let (length, symbol) = TABLES.short[(bits >> (64 - SHORT)) as usize];
    if length != 0 {
        return (u32::from(length), u16::from(symbol));
    }
    let high = bits >> 32;
    let mut length = SHORT as usize + 1;
    while high >= TABLES.ends[length] && length < LONGEST {
        length += 1;
    }
    let code = (high >> (32 - length)) as i64;
    (length as u32, TABLES.sorted[(code + TABLES.shifts[length]) as usize])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        decode(bytes, &mut out).map(|()| out)
    }

    #[test]
    fn examples_of_rfc_7541_c_4_and_c_6() {
        let examples: [(&[u8], &[u8]); 5] = [
            (b"www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff]),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf]),
            (
                b"Mon, 21 Oct 2013 20:13:21 GMT",
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66,
                    0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
            ),
            (b"", b""),
        ];
        for (text, code) in examples {
            let mut out = Vec::new();
            encode(text, &mut out);
            assert_eq!(out, code);
            assert_eq!(len(text), code.len());
            assert_eq!(decoded(code).as_deref(), Ok(text));
        }
    }

    /// Some codes as the appendix prints them, of each kind of length.
    #[test]
    fn codes_are_those_of_appendix_b() {
        let codes = [
            (b'0', 0x0, 5),
            (b't', 0x9, 5),
            (b' ', 0x14, 6),
            (b'u', 0x2d, 6),
            (b':', 0x5c, 7),
            (b'z', 0x7b, 7),
            (b'&', 0xf8, 8),
            (b'?', 0x3fc, 10),
            (b'|', 0x7fc, 11),
            (b'\\', 0x7fff0, 19),
            (0, 0x1ff8, 13),
            (10, 0x3fff_fffc, 30),
            (22, 0x3fff_fffe, 30),
            (249, 0x0fff_fffe, 28),
            (255, 0x03ff_ffee, 26),
        ];
        for (symbol, code, length) in codes {
            assert_eq!((TABLES.codes[usize::from(symbol)], LENGTHS[usize::from(symbol)]), (code, length), "{symbol}");
        }
        assert_eq!(TABLES.codes[256], 0x3fff_ffff);
    }

    #[test]
    fn padding_and_ends_that_are_wrong_are_refused() {
        // '0' is 00000: three bits of padding.
        assert_eq!(decoded(&[0b0000_0111]).as_deref(), Ok(&b"0"[..]));
        for wrong in [
            &[0b0000_0110][..],
            &[0b0000_0011],
            // Eight bits of padding, and eleven.
            &[0xff],
            &[0b0000_0111, 0xff],
            // EOS alone, and behind a symbol.
            &[0xff, 0xff, 0xff, 0xff],
            &[0xff; 12],
            &[0b0000_0111, 0xff, 0xff, 0xff, 0xff],
            // A code that is cut off.
            &[0xff, 0xff, 0xfe],
        ] {
            assert!(decoded(wrong).is_err(), "{wrong:x?}");
        }
    }

    proptest! {
        #[test]
        fn decoding_returns_what_was_encoded(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut code = vec![9];
            encode(&bytes, &mut code);
            prop_assert_eq!(code.len() - 1, len(&bytes));
            prop_assert!(least(len(&bytes) as u64) <= bytes.len() as u64);
            prop_assert_eq!(decoded(&code[1..]), Ok(bytes));
        }

        /// One encoding of a string exists: decoding and encoding give the same bytes.
        #[test]
        fn what_is_decoded_has_that_code(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(text) = decoded(&bytes) {
                prop_assert!(text.len() * 5 <= bytes.len() * 8);
                let mut code = Vec::new();
                encode(&text, &mut code);
                prop_assert_eq!(code, bytes);
            }
        }
    }
}
