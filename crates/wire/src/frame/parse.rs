//! Parser of frames in the payload of an opened packet.

use std::iter::FusedIterator;

use super::{Ack, Frame, StreamFrame, frame_type as t, table::body};
use crate::{Reader, StreamId, Truncated, varint};

/// DATAGRAM with its length.
pub(super) const DATAGRAM_WITH_LEN: u64 = t::DATAGRAM | t::DATAGRAM_LEN;

/// Kind of fault, see [`FrameError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameErrorKind {
    /// Goes beyond the end of the packet.
    #[error("goes beyond the end of the packet")]
    Truncated,
    /// Type is not known.
    #[error("is of a type that is not known")]
    Unknown,
    /// Complete but breaks a rule: this one.
    #[error("breaks a rule: {0}")]
    Malformed(&'static str),
}

/// A frame that cannot be read; the connection closes with FRAME_ENCODING_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame of type {frame_type:#x} {kind}")]
pub struct FrameError {
    /// The type that was read; 0 when not even that was complete.
    pub frame_type: u64,
    /// Fault.
    pub kind: FrameErrorKind,
}

impl From<Truncated> for FrameErrorKind {
    #[inline]
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// The frames of a packet, in order. After an error there are no more.
///
/// That a packet has at least one frame (RFC 9000 §12.4) is for the caller to check.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    r: Reader<'a>,
}

impl<'a> Frames<'a> {
    /// The frames in this payload.
    #[inline]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { r: Reader::new(payload) }
    }

    /// Position of the next frame in the payload.
    #[inline]
    pub const fn position(&self) -> usize {
        self.r.position()
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let &first = self.r.peek().first()?;
        let frame = match u64::from(first) {
            ty @ t::STREAM..=t::STREAM_LAST => {
                // One byte is there: it was just looked at.
                let _ = self.r.u8();
                stream(&mut self.r, ty).map_err(|kind| FrameError { frame_type: ty, kind })
            }
            ty @ (t::ACK | t::ACK_ECN) => {
                let _ = self.r.u8();
                // RFC 9000 §19.3 MUST-1: ACK frames with and without ECN counts are understood
                Ack::parse(&mut self.r, ty == t::ACK_ECN)
                    .map(Frame::Ack)
                    .map_err(|kind| FrameError { frame_type: ty, kind })
            }
            t::DATAGRAM => {
                let _ = self.r.u8();
                Ok(Frame::Datagram { data: self.r.rest() })
            }
            ty @ DATAGRAM_WITH_LEN => {
                let _ = self.r.u8();
                let data = self.r.counted();
                data.map(|data| Frame::Datagram { data })
                    .map_err(|error| FrameError { frame_type: ty, kind: error.into() })
            }
            _ => other(&mut self.r),
        };
        if frame.is_err() {
            self.r.rest();
        }
        Some(frame)
    }
}

impl FusedIterator for Frames<'_> {}

#[inline]
fn stream<'a>(r: &mut Reader<'a>, ty: u64) -> Result<Frame<'a>, FrameErrorKind> {
    let id = StreamId(r.varint()?);
    let offset = if ty & t::STREAM_OFF != 0 { r.varint()? } else { 0 };
    let data = if ty & t::STREAM_LEN != 0 { r.counted()? } else { r.rest() };
    // RFC 9000 §19.8 MUST-2: no byte of a stream lies beyond 2^62-1.
    if offset + data.len() as u64 > varint::MAX {
        return Err(FrameErrorKind::Malformed("stream data beyond 2^62-1"));
    }
    Ok(Frame::Stream(StreamFrame { id, offset, fin: ty & t::STREAM_FIN != 0, data }))
}

/// Every frame that is neither STREAM, DATAGRAM nor a plain ACK.
fn other<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let before = r.position();
    let ty = r.varint().map_err(|_| FrameError { frame_type: 0, kind: FrameErrorKind::Truncated })?;
    let frame = if r.position() - before > varint::len(ty) {
        // RFC 9000 §12.4 MUST-5: a frame type comes in its shortest encoding.
        Err(FrameErrorKind::Malformed("a frame type in more bytes than it needs"))
    } else {
        body(r, ty)
    };
    frame.map_err(|kind| FrameError { frame_type: ty, kind })
}

/// Number of bytes at the front that are 0: PADDING frames, of which a first flight has a thousand.
pub(super) fn zeros(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks::<16>();
    let whole = 16 * blocks.iter().take_while(|block| u128::from_ne_bytes(**block) == 0).count();
    let rest = if whole < bytes.len() - rest.len() { &bytes[whole..] } else { rest };
    whole + rest.iter().take_while(|byte| **byte == 0).count()
}

/// RFC 9000 §4.6 MUST-1, RFC 9000 §19.11 MUST-1, RFC 9000 §19.14 MUST-1: a limit on streams above 2^60 could not be
/// reached with any stream ID.
pub(super) fn stream_limit(r: &mut Reader<'_>) -> Result<u64, FrameErrorKind> {
    let limit = r.varint()?;
    if limit > StreamId::MAX_STREAMS {
        return Err(FrameErrorKind::Malformed("a limit of more than 2^60 streams"));
    }
    Ok(limit)
}
