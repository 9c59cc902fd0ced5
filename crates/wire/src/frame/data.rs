//! Headers of frames that carry data: STREAM, CRYPTO and DATAGRAM. They are written separately from the data, so that the data can be
//! copied (or encrypted) directly to its place.

use super::frame_type as t;
use crate::{Reader, StreamId, Writer, varint};

/// Bytes of a stream (RFC 9000 §19.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFrame<'a> {
    /// The stream.
    pub id: StreamId,
    /// Offset of the first byte; `offset` plus the length is below 2^62.
    pub offset: u64,
    /// End of the stream after these bytes.
    pub fin: bool,
    /// The bytes; may be none.
    pub data: &'a [u8],
}

impl<'a> StreamFrame<'a> {
    /// Number of bytes in front of the data; `len` as for [`encode_header`](Self::encode_header).
    #[inline]
    pub fn header_len(id: StreamId, offset: u64, len: Option<usize>) -> usize {
        let offset_len = if offset == 0 { 0 } else { varint::len(offset) };
        1 + varint::len(id.0) + offset_len + len.map_or(0, |len| varint::len(len as u64))
    }

    /// Parses a payload that is a single STREAM frame without a length, as in packets of a bulk transfer. `None` for any other or malformed
    /// payload, which [`Frames`](super::Frames) parses.
    #[inline]
    pub fn filling(payload: &'a [u8]) -> Option<Self> {
        let (&first, rest) = payload.split_first()?;
        let ty = u64::from(first);
        if !(t::STREAM..=t::STREAM_LAST).contains(&ty) || ty & t::STREAM_LEN != 0 {
            return None;
        }
        let mut r = Reader::new(rest);
        let id = StreamId(r.varint().ok()?);
        let offset = if ty & t::STREAM_OFF != 0 { r.varint().ok()? } else { 0 };
        let data = r.rest();
        // RFC 9000 §19.8: no byte of a stream lies beyond 2^62-1.
        (offset + data.len() as u64 <= varint::MAX).then_some(Self { id, offset, fin: ty & t::STREAM_FIN != 0, data })
    }

    /// Writes the header in front of the data: `len` is the number of bytes that follow, or `None` if the frame extends to the end of the
    /// packet.
    ///
    /// # Panics
    /// When there is no room.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "frame types of RFC 9000 are below 64")]
    pub fn encode_header(w: &mut Writer<'_>, id: StreamId, offset: u64, fin: bool, len: Option<usize>) {
        w.u8(Self::type_for(offset, fin, len.is_some()) as u8);
        w.varint(id.0);
        if offset != 0 {
            w.varint(offset);
        }
        if let Some(len) = len {
            w.varint(len as u64);
        }
    }

    /// Bytes of data that fit into a frame with a length, at `offset` of stream `id`, when `space` bytes are left
    /// in the packet. None when the header alone does not fit.
    #[inline]
    pub fn capacity(id: StreamId, offset: u64, space: usize) -> Option<usize> {
        let left = space.checked_sub(Self::header_len(id, offset, None))?;
        counted_capacity(left)
    }

    #[inline]
    pub(super) fn ty(&self) -> u64 {
        Self::type_for(self.offset, self.fin, true)
    }

    #[inline]
    fn type_for(offset: u64, fin: bool, len: bool) -> u64 {
        let mut ty = t::STREAM;
        if offset != 0 {
            ty |= t::STREAM_OFF;
        }
        if fin {
            ty |= t::STREAM_FIN;
        }
        if len {
            ty |= t::STREAM_LEN;
        }
        ty
    }
}

/// The most bytes that fit into `space` together with the varint that counts them.
#[inline]
fn counted_capacity(space: usize) -> Option<usize> {
    let width = varint::len(space.checked_sub(1)? as u64);
    let len = space.saturating_sub(width);
    if varint::len(len as u64) == width {
        return Some(len);
    }
    // Just where the count grows: 65 bytes of space hold no 64 bytes of data with a count of two, but 63 with a count
    // of one.
    let narrow = width / 2;
    Some((space - narrow).min((1 << (8 * narrow - 2)) - 1))
}

/// Number of bytes in front of the data of a CRYPTO frame (RFC 9000 §19.6).
#[inline]
pub fn crypto_header_len(offset: u64, len: usize) -> usize {
    1 + varint::len(offset) + varint::len(len as u64)
}

/// Writes the header in front of the `len` bytes of a CRYPTO frame.
///
/// # Panics
/// When there is no room.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "frame types of RFC 9000 are below 64")]
pub fn encode_crypto_header(w: &mut Writer<'_>, offset: u64, len: usize) {
    w.u8(t::CRYPTO as u8);
    w.varint(offset);
    w.varint(len as u64);
}

/// Number of bytes in front of the data of a DATAGRAM frame (RFC 9221 §4); `len` as for [`encode_datagram_header`].
#[inline]
pub fn datagram_header_len(len: Option<usize>) -> usize {
    1 + len.map_or(0, |len| varint::len(len as u64))
}

/// Writes the header in front of the data of a DATAGRAM frame: `len` is the number of bytes that follow, or `None` if the frame extends to
/// the end of the packet.
///
/// # Panics
/// When there is no room.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "frame types of RFC 9221 are below 64")]
pub fn encode_datagram_header(w: &mut Writer<'_>, len: Option<usize>) {
    match len {
        Some(len) => {
            w.u8((t::DATAGRAM | t::DATAGRAM_LEN) as u8);
            w.varint(len as u64);
        }
        None => w.u8(t::DATAGRAM as u8),
    }
}
