//! Capsules (RFC 9297 §3): messages on the stream of a request that has switched from HTTP to another protocol.
//!
//! ```
//! use tiderace_h3::capsule::{self, Capsules};
//!
//! let mut stream = Vec::new();
//! capsule::write(&mut stream, capsule::DATAGRAM, b"hello");
//! let mut capsules = Capsules::new(1_000);
//! capsules.push(&stream[..4]);
//! assert_eq!(capsules.take().unwrap(), None, "the rest is under way");
//! capsules.push(&stream[4..]);
//! assert_eq!(capsules.take().unwrap().unwrap().value, "hello");
//! ```

use bytes::{Buf, Bytes, BytesMut};

use crate::error::{Code, Error};

/// The type of a capsule that carries a datagram (RFC 9297 §3.5).
pub const DATAGRAM: u64 = 0x0;

/// A capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capsule {
    /// Capsule type.
    pub ty: u64,
    /// Capsule value.
    pub value: Bytes,
}

/// Appends a capsule.
///
/// # Panics
/// When `ty` is 2^62 or more.
// RFC 9297 §3.3 MUST-2
pub fn write(out: &mut Vec<u8>, ty: u64, value: &[u8]) {
    write_parts(out, ty, &[value]);
}

/// Appends a capsule whose value consists of these parts.
///
/// # Panics
/// When `ty` is 2^62 or more.
pub fn write_parts(out: &mut Vec<u8>, ty: u64, parts: &[&[u8]]) {
    wire::varint::push(out, ty);
    wire::varint::push(out, parts.iter().map(|part| part.len() as u64).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Takes a stream of capsules apart.
#[derive(Debug)]
pub struct Capsules {
    held: BytesMut,
    max: usize,
    /// The types that are taken; none for all.
    only: Vec<u64>,
    /// Remaining bytes of a skipped capsule.
    skip: u64,
    skipped: u64,
}

impl Capsules {
    /// No capsule may have more than `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { held: BytesMut::new(), max, only: Vec::new(), skip: 0, skipped: 0 }
    }

    /// Takes capsules of type `ty`, of at most `max` bytes. Others of any length are skipped as they come, without keeping
    /// their bytes.
    // RFC 9297 §3.2 MUST-1
    pub fn only(ty: u64, max: usize) -> Self {
        Self::among(&[ty], max)
    }

    /// Takes capsules of these types, of at most `max` bytes, as [`only`](Self::only) does.
    pub fn among(types: &[u64], max: usize) -> Self {
        Self { only: types.to_vec(), ..Self::new(max) }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
    }

    /// The next capsule; `None` when more bytes are needed for it. Called until then after each [`push`](Self::push), it holds no
    /// more than one capsule.
    ///
    /// # Errors
    /// When one is longer than is taken: it is not kept.
    // RFC 9297 §3.5 SHOULD-2, SHOULD-3
    pub fn take(&mut self) -> Result<Option<Capsule>, Error> {
        let (ty, length, head) = loop {
            let passed = self.held.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
            self.held.advance(passed);
            self.skip -= passed as u64;
            let mut reader = wire::Reader::new(&self.held);
            let (Ok(ty), Ok(length)) = (reader.varint(), reader.varint()) else { return Ok(None) };
            let head = reader.position();
            if self.only.is_empty() || self.only.contains(&ty) {
                break (ty, length, head);
            }
            self.held.advance(head);
            (self.skip, self.skipped) = (length, self.skipped + 1);
        };
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= self.max) else {
            let reason = format!("a capsule of {length} bytes");
            return Err(Error::Protocol { code: Code::EXCESSIVE_LOAD, reason });
        };
        if self.held.len() - head < length {
            return Ok(None);
        }
        self.held.advance(head);
        Ok(Some(Capsule { ty, value: self.held.split_to(length).freeze() }))
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        self.held.capacity()
    }

    /// Returns whether the stream may end here (RFC 9297 §3.3 MUST-5: in the middle of a capsule it is malformed).
    pub fn is_between(&self) -> bool {
        self.held.is_empty() && self.skip == 0
    }

    /// Number of skipped capsules.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9297 §3.3 MUST-2
    #[test]
    fn what_is_written_is_read_however_it_arrives() {
        let mut bytes = Vec::new();
        write(&mut bytes, DATAGRAM, b"hello");
        write(&mut bytes, 0x2843, &[7; 100]);
        write(&mut bytes, DATAGRAM, b"");
        for size in [1, 2, 3, 50, 1000] {
            let mut capsules = Capsules::new(100);
            let mut found = Vec::new();
            for part in bytes.chunks(size) {
                capsules.push(part);
                while let Some(capsule) = capsules.take().unwrap() {
                    found.push((capsule.ty, capsule.value.len()));
                }
            }
            assert_eq!(found, [(DATAGRAM, 5), (0x2843, 100), (DATAGRAM, 0)]);
            assert!(capsules.is_between());
        }
    }

    /// RFC 9297 §3.2 MUST-1
    #[test]
    fn capsules_of_other_types_are_skipped_without_being_kept() {
        let mut bytes = Vec::new();
        write(&mut bytes, 0x29, &[7; 100_000]);
        write(&mut bytes, DATAGRAM, b"hello");
        write(&mut bytes, 0x2a, b"");
        write(&mut bytes, DATAGRAM, b"again");
        write(&mut bytes, 0x29, &[7; 50]);
        for size in [1, 3, 1_000, 1_000_000] {
            let mut capsules = Capsules::only(DATAGRAM, 100);
            let mut found = Vec::new();
            for part in bytes.chunks(size) {
                capsules.push(part);
                while let Some(capsule) = capsules.take().unwrap() {
                    found.push(capsule.value);
                }
                assert!(capsules.held.len() < 100 + 16, "{} bytes are kept", capsules.held.len());
            }
            assert_eq!((found, capsules.skipped()), (vec!["hello".into(), "again".into()], 3));
            assert!(capsules.is_between());
        }
        let mut capsules = Capsules::only(DATAGRAM, 100);
        // A length of 2^62 - 1 is skipped as it comes, and the end within it is no end between capsules.
        capsules.push(&[0x29, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
        assert_eq!(capsules.take().unwrap(), None);
        assert!(!capsules.is_between() && capsules.held.is_empty());
    }

    /// RFC 9297 §3.5 SHOULD-2, SHOULD-3
    #[test]
    fn one_that_is_too_long_is_refused_before_it_comes() {
        let mut capsules = Capsules::new(99);
        capsules.push(&[0x00, 0x40, 100]);
        assert!(matches!(capsules.take(), Err(Error::Protocol { code: Code::EXCESSIVE_LOAD, .. })));
        let mut capsules = Capsules::new(99);
        capsules.push(&[0xff; 16]);
        assert!(capsules.take().is_err());
    }
}
