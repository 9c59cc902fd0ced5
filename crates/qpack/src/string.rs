//! String literals (RFC 7541 §5.2, RFC 9204 §4.1.2): a Huffman bit, the length, the bytes.

use crate::{error::Fault, huffman, integer};

/// A string as encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Literal<'a> {
    is_huffman: bool,
    bytes: &'a [u8],
}

impl<'a> Literal<'a> {
    /// Decodes the string; codes are decoded into `scratch`, which is emptied before.
    ///
    /// # Errors
    /// When the codes are wrong.
    #[inline]
    pub(crate) fn text<'b>(&self, scratch: &'b mut Vec<u8>) -> Result<&'b [u8], Fault>
    where
        'a: 'b,
    {
        if !self.is_huffman {
            return Ok(self.bytes);
        }
        scratch.clear();
        huffman::decode(self.bytes, scratch)?;
        Ok(scratch)
    }
}

/// The beginning of a string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    is_huffman: bool,
    /// Number of bytes that follow, as sent.
    pub(crate) len: u64,
}

impl Head {
    /// The fewest bytes that the string can have.
    pub(crate) fn least(&self) -> u64 {
        if self.is_huffman { huffman::least(self.len) } else { self.len }
    }

    /// Takes the string itself.
    ///
    /// # Errors
    /// When the bytes end before.
    #[inline]
    pub(crate) fn body<'a>(&self, bytes: &mut &'a [u8]) -> Result<Literal<'a>, Fault> {
        let len = usize::try_from(self.len).map_err(|_| Fault::Truncated)?;
        let (text, rest) = bytes.split_at_checked(len).ok_or(Fault::Truncated)?;
        *bytes = rest;
        Ok(Literal { is_huffman: self.is_huffman, bytes: text })
    }
}

/// Takes the head of a string whose length has a prefix of `prefix` bits; the bit above is the Huffman bit.
///
/// # Errors
/// Those of [`integer::read`].
#[inline]
pub(crate) fn head(bytes: &mut &[u8], prefix: u32) -> Result<Head, Fault> {
    let is_huffman = bytes.first().is_some_and(|first| first >> prefix & 1 == 1);
    Ok(Head { is_huffman, len: integer::read(bytes, prefix)? })
}

/// Takes a whole string.
///
/// # Errors
/// Those of [`integer::read`], and when the bytes end before the string does.
#[inline]
pub(crate) fn read<'a>(bytes: &mut &'a [u8], prefix: u32) -> Result<Literal<'a>, Fault> {
    head(bytes, prefix)?.body(bytes)
}

/// Appends a string, as codes when they are shorter. `flags` are the bits of the first byte that are not the string's.
#[inline]
pub(crate) fn push(out: &mut Vec<u8>, prefix: u32, flags: u8, text: &[u8]) {
    let coded = huffman::len(text);
    if coded < text.len() {
        integer::push(out, prefix, flags | 1 << prefix, coded as u64);
        huffman::encode(text, out);
    } else {
        integer::push(out, prefix, flags, text.len() as u64);
        out.extend_from_slice(text);
    }
}
