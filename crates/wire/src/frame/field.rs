//! Fields of frames: how each kind is read and written.

use super::FrameErrorKind;
use crate::{ConnectionId, Reader, ResetToken, StreamId, Writer, varint};

/// A field of a frame.
pub(super) trait Field<'a>: Sized {
    /// Reads the field.
    fn read(r: &mut Reader<'a>) -> Result<Self, FrameErrorKind>;

    /// Writes the field: [`encoded_len`](Self::encoded_len) bytes.
    fn write(self, w: &mut Writer<'_>);

    /// Number of bytes that [`write`](Self::write) writes.
    fn encoded_len(self) -> usize;
}

/// A varint.
impl Field<'_> for u64 {
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<Self, FrameErrorKind> {
        Ok(r.varint()?)
    }

    #[inline]
    fn write(self, w: &mut Writer<'_>) {
        w.varint(self);
    }

    #[inline]
    fn encoded_len(self) -> usize {
        varint::len(self)
    }
}

impl Field<'_> for StreamId {
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<Self, FrameErrorKind> {
        Ok(Self(r.varint()?))
    }

    #[inline]
    fn write(self, w: &mut Writer<'_>) {
        w.varint(self.0);
    }

    #[inline]
    fn encoded_len(self) -> usize {
        varint::len(self.0)
    }
}

/// Bytes behind their number.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, FrameErrorKind> {
        Ok(r.counted()?)
    }

    #[inline]
    fn write(self, w: &mut Writer<'_>) {
        w.varint(self.len() as u64);
        w.bytes(self);
    }

    #[inline]
    fn encoded_len(self) -> usize {
        varint::len(self.len() as u64) + self.len()
    }
}

/// Bytes without their number.
impl<const N: usize> Field<'_> for [u8; N] {
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<Self, FrameErrorKind> {
        Ok(r.fixed()?)
    }

    #[inline]
    fn write(self, w: &mut Writer<'_>) {
        w.bytes(&self);
    }

    #[inline]
    fn encoded_len(self) -> usize {
        N
    }
}

impl Field<'_> for ResetToken {
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<Self, FrameErrorKind> {
        Ok(Self(r.fixed()?))
    }

    #[inline]
    fn write(self, w: &mut Writer<'_>) {
        w.bytes(&self.0);
    }

    #[inline]
    fn encoded_len(self) -> usize {
        self.0.len()
    }
}

/// A connection ID behind a byte that is its length.
impl Field<'_> for ConnectionId {
    fn read(r: &mut Reader<'_>) -> Result<Self, FrameErrorKind> {
        let len = r.u8()?;
        // RFC 9000 §19.15 MUST-1: 1 to 20 bytes.
        if !(1..=20).contains(&len) {
            return Err(FrameErrorKind::Malformed("a connection ID of no byte or more than 20"));
        }
        let bytes = r.bytes(usize::from(len))?;
        Self::new(bytes).ok_or(FrameErrorKind::Malformed("a connection ID too long"))
    }

    fn write(self, w: &mut Writer<'_>) {
        // A plain byte, which up to 20 looks the same as a varint.
        w.varint(self.len() as u64);
        w.bytes(self.as_slice());
    }

    fn encoded_len(self) -> usize {
        1 + self.len()
    }
}
