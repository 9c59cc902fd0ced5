//! Private keys in the form that BoringSSL reads.

use std::borrow::Cow;

use wire::{Reader, Truncated};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 2;
const OCTET_STRING: u8 = 4;

/// A key in PKCS #8 of RFC 5208: BoringSSL does not read the newer form of RFC 5958, which has the public key beside the private one. Other
/// keys are not changed.
pub(super) fn readable(der: &[u8]) -> Cow<'_, [u8]> {
    without_public_key(der).ok().flatten().map_or(Cow::Borrowed(der), Cow::Owned)
}

fn without_public_key(der: &[u8]) -> Result<Option<Vec<u8>>, Truncated> {
    let Some(Element { tag: SEQUENCE, content, .. }) = element(&mut Reader::new(der))? else { return Ok(None) };
    let mut r = Reader::new(content);
    let (
        Some(Element { tag: INTEGER, content: [1], .. }),
        Some(Element { tag: SEQUENCE, all: algorithm, .. }),
        Some(Element { tag: OCTET_STRING, all: key, .. }),
    ) = (element(&mut r)?, element(&mut r)?, element(&mut r)?)
    else {
        return Ok(None);
    };
    let content = [&[INTEGER, 1, 0], algorithm, key].concat();
    let mut out = vec![SEQUENCE];
    match u16::try_from(content.len()) {
        Ok(len @ ..=0x7f) => out.push(len as u8),
        Ok(len) => {
            out.push(0x82);
            out.extend_from_slice(&len.to_be_bytes());
        }
        Err(_) => return Ok(None),
    }
    out.extend_from_slice(&content);
    Ok(Some(out))
}

/// An element of DER.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// Tag, length and content.
    all: &'a [u8],
}

/// The next element of DER. `None` when it is longer than a key can be.
fn element<'a>(r: &mut Reader<'a>) -> Result<Option<Element<'a>>, Truncated> {
    let mut start = *r;
    let tag = r.u8()?;
    let len = match r.u8()? {
        len @ ..=0x7f => usize::from(len),
        0x81 => r.u8()?.into(),
        0x82 => r.u16()?.into(),
        _ => return Ok(None),
    };
    let content = r.bytes(len)?;
    let all = start.bytes(start.remaining() - r.remaining())?;
    Ok(Some(Element { tag, content, all }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_key_is_left_out_and_everything_else_stays() {
        let algorithm = [SEQUENCE, 5, 6, 3, 0x2b, 0x65, 0x70];
        let key = [&[OCTET_STRING, 34, OCTET_STRING, 32][..], &[7; 32]].concat();
        let old = [&[SEQUENCE, 46, INTEGER, 1, 0], &algorithm[..], &key].concat();
        let public = [&[0x81, 33, 0][..], &[8; 32]].concat();
        let new = [&[SEQUENCE, 81, INTEGER, 1, 1], &algorithm[..], &key, &public].concat();
        assert_eq!(*readable(&new), old[..]);
        assert_eq!(*readable(&old), old[..]);
        for len in 0..new.len() {
            assert_eq!(*readable(&new[..len]), new[..len], "{len}");
        }
    }
}
