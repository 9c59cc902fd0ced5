//! Capsules (RFC 9297 §3): messages on the stream of a request that has become something else than HTTP.
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
    wire::varint::push(out, ty);
    wire::varint::push(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Takes a stream of capsules apart.
#[derive(Debug)]
pub struct Capsules {
    held: BytesMut,
    max: usize,
}

impl Capsules {
    /// No capsule may have more than `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { held: BytesMut::new(), max }
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
        let mut reader = wire::Reader::new(&self.held);
        let (Ok(ty), Ok(length)) = (reader.varint(), reader.varint()) else { return Ok(None) };
        let head = reader.position();
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
        self.held.is_empty()
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
