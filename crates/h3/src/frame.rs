//! Frames (RFC 9114 §7), and the rules about their streams: bytes in, pieces of frames out.

use bytes::{Buf, Bytes};

use crate::{
    error::{Code, Violation},
    sessions::SIGNAL,
};

pub(crate) const DATA: u64 = 0x0;
pub(crate) const HEADERS: u64 = 0x1;
pub(crate) const CANCEL_PUSH: u64 = 0x3;
pub(crate) const SETTINGS: u64 = 0x4;
pub(crate) const PUSH_PROMISE: u64 = 0x5;
pub(crate) const GOAWAY: u64 = 0x7;
pub(crate) const MAX_PUSH_ID: u64 = 0xd;
/// RFC 9218 §7.2: for request streams.
pub(crate) const PRIORITY_UPDATE: u64 = 0xf0700;
/// RFC 9218 §7.2: for pushes.
pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;

/// Longest frame other than DATA and HEADERS that is kept until it is complete, in bytes. No known frame needs more.
const MAX_OTHER: u64 = 16 * 1024;

/// A varint (RFC 9000 §16) that arrives in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Varint {
    value: u64,
    missing: u8,
    begun: bool,
}

impl Varint {
    /// Takes a byte; the value when it was the last.
    pub(crate) fn push(&mut self, byte: u8) -> Option<u64> {
        if self.begun {
            self.value = self.value << 8 | u64::from(byte);
            self.missing -= 1;
        } else {
            *self = Self { value: u64::from(byte & 0x3f), missing: (1 << (byte >> 6)) - 1, begun: true };
        }
        if self.missing > 0 {
            return None;
        }
        Some(std::mem::take(self).value)
    }

    /// Takes bytes from the front of `data` until the value is complete, and counts them in `taken`.
    pub(crate) fn take(&mut self, data: &mut Bytes, taken: &mut u64) -> Option<u64> {
        let before = data.len();
        let mut value = None;
        while data.has_remaining() && value.is_none() {
            value = self.push(data.get_u8());
        }
        *taken += (before - data.len()) as u64;
        value
    }
}

/// The streams that consist of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A request stream, read by a server.
    Request {
        /// The most that a HEADERS frame may have, in bytes.
        max_headers: u64,
    },
    /// A request stream, read by a client.
    Response {
        /// The most that a HEADERS frame may have, in bytes.
        max_headers: u64,
    },
    /// A control stream.
    Control,
}

/// Treatment of a frame by its type.
#[derive(Clone, Copy)]
enum Treatment {
    /// Payload is passed on as it comes.
    Pass,
    /// Payload is passed on when it is whole.
    Collect,
    /// Payload is read and discarded.
    Skip,
}

impl Kind {
    fn treatment(self, ty: u64) -> Result<Treatment, Violation> {
        let unexpected = || {
            let reason = format!("a frame of type {ty:#x} has no place here");
            Violation { code: Code::FRAME_UNEXPECTED, reason }
        };
        match (self, ty) {
            // RFC 9114 §7.2.8 MUST-1: types of HTTP/2 that have no equivalent
            (_, 0x2 | 0x6 | 0x8 | 0x9) => Err(unexpected()),
            // RFC 9114 §7.2.1 MUST-1, MUST-2, RFC 9114 §7.2.2 MUST-1, RFC 9114 §7.2.5 MUST-5: what belongs to a request is on its stream
            (Self::Control, DATA | HEADERS | PUSH_PROMISE) => Err(unexpected()),
            (Self::Control, CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID | PRIORITY_UPDATE | PRIORITY_UPDATE_PUSH) => {
                Ok(Treatment::Collect)
            }
            (Self::Request { .. } | Self::Response { .. }, DATA) => Ok(Treatment::Pass),
            (Self::Request { .. } | Self::Response { .. }, HEADERS) => Ok(Treatment::Collect),
            // RFC 9114 §7.2.3 MUST-1, RFC 9114 §7.2.4 MUST-3, RFC 9114 §7.2.6 MUST-2, RFC 9114 §7.2.7 MUST-1,
            // RFC 9114 §4.1 MUST-3: what belongs to the connection is
            // on the control stream
            // RFC 9114 §7.2.5 MUST-6: clients promise nothing
            // RFC 9218 §7.2 MUST-2: nor do they change priorities here
            (
                Self::Request { .. } | Self::Response { .. },
                CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID | PRIORITY_UPDATE | PRIORITY_UPDATE_PUSH,
            )
            | (Self::Request { .. }, PUSH_PROMISE) => Err(unexpected()),
            // RFC 9114 §7.2.5 MUST-1: no push was ever allowed, so its number is beyond the limit
            (Self::Response { .. }, PUSH_PROMISE) => {
                Err(Violation { code: Code::ID_ERROR, reason: "a push that was not allowed".to_owned() })
            }
            // RFC 9114 §9 MUST-1, RFC 9114 §7.2.8 MUST NOT-1: what is not known, or reserved, means nothing
            _ => Ok(Treatment::Skip),
        }
    }

    /// Largest number of bytes that a frame may have (RFC 9114 §10.5 SHOULD-2). Frames that are not kept may have any length:
    /// their cost is that of their bytes.
    fn limit(self, ty: u64, treatment: Treatment) -> u64 {
        match (self, treatment) {
            (_, Treatment::Pass | Treatment::Skip) => u64::MAX,
            (Self::Request { max_headers } | Self::Response { max_headers }, _) if ty == HEADERS => max_headers,
            _ => MAX_OTHER,
        }
    }
}

/// Item of a stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The next part of a DATA frame's payload; empty for a frame without any.
    Data(Bytes),
    /// Another known frame.
    Frame {
        /// Frame type.
        ty: u64,
        /// Payload of the frame.
        payload: Bytes,
    },
}

#[derive(Clone, Copy)]
enum At {
    Type,
    Length { ty: u64 },
    Payload { ty: u64, treatment: Treatment, left: u64 },
}

/// Parser of a stream of frames. Holds one frame at most, whose length was checked before it arrived.
pub(crate) struct Frames {
    kind: Kind,
    at: At,
    /// Set before the first frame of a control stream.
    is_new_control: bool,
    number: Varint,
    /// Received bytes that are not parsed yet.
    chunk: Bytes,
    /// Start of an incomplete frame.
    collected: Vec<u8>,
    /// The first number of a session's stream is no type of a frame here.
    forbids_signal: bool,
}

impl Frames {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            at: At::Type,
            is_new_control: matches!(kind, Kind::Control),
            number: Varint::default(),
            chunk: Bytes::new(),
            collected: Vec::new(),
            forbids_signal: false,
        }
    }

    /// As [`new`](Self::new), on a connection with support for sessions or without.
    pub(crate) fn with_sessions(kind: Kind, are_supported: bool) -> Self {
        Self { forbids_signal: are_supported, ..Self::new(kind) }
    }

    /// Adds the next bytes of the stream; only when [`next`](Self::next) has returned `None`.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "bytes before the last ones were looked at");
        self.chunk = chunk;
    }

    /// Kind of the stream.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether the stream may end here: between two frames, with no bytes left to parse.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.at, At::Type) && !self.number.begun && self.chunk.is_empty()
    }

    /// Bytes held of a frame that has not come as a whole.
    pub(crate) fn held(&self) -> usize {
        self.collected.capacity()
    }

    /// The next piece; `None` when more bytes are needed for it.
    ///
    /// # Errors
    /// When a frame is not permitted here, or is too long (H3_EXCESSIVE_LOAD).
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, Violation> {
        let piece = self.find();
        if self.chunk.is_empty() {
            // An empty slice would still pin the buffer that it was cut from.
            self.chunk = Bytes::new();
        }
        piece
    }

    fn find(&mut self) -> Result<Option<Piece>, Violation> {
        loop {
            match self.at {
                At::Type => {
                    let Some(ty) = self.varint() else { return Ok(None) };
                    // draft-ietf-webtrans-http3 §4.3 MUST: it begins a stream, and stands nowhere else
                    if self.forbids_signal && ty == SIGNAL {
                        let reason = "a signal of a session's stream among frames".to_owned();
                        return Err(Violation { code: Code::FRAME_ERROR, reason });
                    }
                    // RFC 9114 §6.2.1 MUST-2, RFC 9114 §9 SHOULD-1: nothing stands before the settings, not even what means nothing
                    if std::mem::take(&mut self.is_new_control) && ty != SETTINGS {
                        let reason = "a control stream that does not begin with settings".to_owned();
                        return Err(Violation { code: Code::MISSING_SETTINGS, reason });
                    }
                    self.at = At::Length { ty };
                }
                At::Length { ty } => {
                    let Some(left) = self.varint() else { return Ok(None) };
                    let treatment = self.kind.treatment(ty)?;
                    if left > self.kind.limit(ty, treatment) {
                        let reason = format!("a frame of {left} bytes");
                        return Err(Violation { code: Code::EXCESSIVE_LOAD, reason });
                    }
                    self.at = At::Payload { ty, treatment, left };
                    if left == 0
                        && let Some(piece) = self.payload(ty, treatment, left)
                    {
                        return Ok(Some(piece));
                    }
                }
                At::Payload { ty, treatment, left } => {
                    if self.chunk.is_empty() {
                        return Ok(None);
                    }
                    if let Some(piece) = self.payload(ty, treatment, left) {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// Takes the available part of a payload of which `left` bytes are still to come.
    fn payload(&mut self, ty: u64, treatment: Treatment, left: u64) -> Option<Piece> {
        let here = usize::try_from(left).map_or(self.chunk.len(), |left| left.min(self.chunk.len()));
        let part = self.chunk.split_to(here);
        let left = left - here as u64;
        self.at = if left == 0 { At::Type } else { At::Payload { ty, treatment, left } };
        match treatment {
            Treatment::Pass => Some(Piece::Data(part)),
            Treatment::Skip => None,
            Treatment::Collect if self.collected.is_empty() && left == 0 => Some(Piece::Frame { ty, payload: part }),
            Treatment::Collect => {
                self.collected.extend_from_slice(&part);
                (left == 0).then(|| Piece::Frame { ty, payload: std::mem::take(&mut self.collected).into() })
            }
        }
    }

    fn varint(&mut self) -> Option<u64> {
        while self.chunk.has_remaining() {
            let byte = self.chunk.get_u8();
            if let Some(value) = self.number.push(byte) {
                return Some(value);
            }
        }
        None
    }
}

/// Appends the type and the length of a frame.
pub(crate) fn write_head(out: &mut Vec<u8>, ty: u64, length: u64) {
    wire::varint::push(out, ty);
    wire::varint::push(out, length);
}

/// A frame that consists of one number (GOAWAY and its like).
// RFC 9114 §7.1 MUST-1
pub(crate) fn number_frame(ty: u64, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    write_head(&mut out, ty, wire::varint::len(number) as u64);
    wire::varint::push(&mut out, number);
    out
}

/// Reads a payload that consists of one number.
///
/// # Errors
/// H3_FRAME_ERROR for any other payload.
pub(crate) fn read_number(payload: &[u8]) -> Result<u64, Violation> {
    let mut reader = wire::Reader::new(payload);
    match reader.varint() {
        Ok(number) if reader.is_empty() => Ok(number),
        // RFC 9114 §7.1 MUST-2, MUST-3, RFC 9114 §10.8 MUST-1: neither more nor less than the frame has to say
        _ => Err(Violation { code: Code::FRAME_ERROR, reason: "a frame that is no number".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Kind = Kind::Request { max_headers: 100 };

    /// Bytes in every division into two parts, and one by one.
    fn divisions(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
        let mut all: Vec<Vec<&[u8]>> = (0..=bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]).collect();
        all.push(bytes.chunks(1).collect());
        all
    }

    /// Frames with their payloads, DATA put together, and whether the stream may end behind them.
    type Found = (Vec<(u64, Vec<u8>)>, bool);

    fn read(kind: Kind, parts: &[&[u8]]) -> Result<Found, Code> {
        let mut frames = Frames::new(kind);
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        for part in parts {
            frames.push(Bytes::copy_from_slice(part));
            while let Some(piece) = frames.next().map_err(|violation| violation.code)? {
                match piece {
                    Piece::Frame { ty, payload } => found.push((ty, payload.to_vec())),
                    Piece::Data(data) => match found.last_mut() {
                        Some((DATA, all)) => all.extend_from_slice(&data),
                        _ => found.push((DATA, data.to_vec())),
                    },
                }
            }
        }
        Ok((found, frames.is_between()))
    }

    #[test]
    fn frames_are_found_however_they_arrive() {
        // HEADERS, a reserved type, DATA, HEADERS without content.
        let bytes = [&[0x01, 0x03, 1, 2, 3, 0x21, 0x02, 9, 9, 0x00, 0x40, 0x04], &b"data"[..], &[0x01, 0x00]].concat();
        let expected = vec![(HEADERS, vec![1, 2, 3]), (DATA, b"data".to_vec()), (HEADERS, vec![])];
        for parts in divisions(&bytes) {
            assert_eq!(read(REQUEST, &parts), Ok((expected.clone(), true)));
        }
        for cut in (1..bytes.len()).filter(|cut| ![5, 9, 16].contains(cut)) {
            assert!(!read(REQUEST, &[&bytes[..cut]]).unwrap().1, "{cut}");
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_seen_before_it_comes() {
        for (kind, bytes) in [
            (REQUEST, &[0x01, 0x80, 0x00, 0x00, 101][..]),
            (Kind::Control, &[0x04, 0x80, 0x01, 0x00, 0x00]),
            (Kind::Control, &[0x04, 0x00, 0x07, 0xc0, 0, 0, 1, 0, 0, 0, 0]),
        ] {
            for parts in divisions(bytes) {
                assert_eq!(read(kind, &parts), Err(Code::EXCESSIVE_LOAD));
            }
        }
        assert!(read(REQUEST, &[&[0x01, 0x80, 0x00, 0x00, 100]]).is_ok());
        // DATA may have any length, and so may what is not kept.
        for ty in [0x00, 0x21] {
            assert!(read(REQUEST, &[&[ty, 0xc0, 0, 0, 1, 0, 0, 0, 0]]).is_ok());
        }
    }

    /// RFC 9114 §4.1 MUST-3, RFC 9114 §7.2.1 MUST-1, MUST-2, RFC 9114 §7.2.2 MUST-1, RFC 9114 §7.2.3 MUST-1
    /// RFC 9114 §7.2.4 MUST-3, RFC 9114 §7.2.5 MUST-1
    /// RFC 9114 §7.2.5 MUST-5, MUST-6, RFC 9114 §7.2.6 MUST-2, RFC 9114 §7.2.7 MUST-1, RFC 9114 §7.2.8 MUST-1
    /// RFC 9218 §7.2 MUST-2
    #[test]
    fn what_has_no_place_is_refused() {
        let response = Kind::Response { max_headers: 100 };
        for (kind, ty, code) in [
            (REQUEST, SETTINGS, Code::FRAME_UNEXPECTED),
            (REQUEST, GOAWAY, Code::FRAME_UNEXPECTED),
            (REQUEST, PUSH_PROMISE, Code::FRAME_UNEXPECTED),
            (response, PUSH_PROMISE, Code::ID_ERROR),
            (response, MAX_PUSH_ID, Code::FRAME_UNEXPECTED),
            (REQUEST, 0x6, Code::FRAME_UNEXPECTED),
            (Kind::Control, 0x2, Code::FRAME_UNEXPECTED),
            (Kind::Control, DATA, Code::FRAME_UNEXPECTED),
            (Kind::Control, HEADERS, Code::FRAME_UNEXPECTED),
            (Kind::Control, PUSH_PROMISE, Code::FRAME_UNEXPECTED),
            (response, SETTINGS, Code::FRAME_UNEXPECTED),
            (response, GOAWAY, Code::FRAME_UNEXPECTED),
            (response, CANCEL_PUSH, Code::FRAME_UNEXPECTED),
            (REQUEST, CANCEL_PUSH, Code::FRAME_UNEXPECTED),
            (REQUEST, MAX_PUSH_ID, Code::FRAME_UNEXPECTED),
            (REQUEST, PRIORITY_UPDATE, Code::FRAME_UNEXPECTED),
            (response, PRIORITY_UPDATE_PUSH, Code::FRAME_UNEXPECTED),
        ] {
            let mut bytes = Vec::new();
            if matches!(kind, Kind::Control) {
                write_head(&mut bytes, SETTINGS, 0);
            }
            write_head(&mut bytes, ty, 0);
            assert_eq!(read(kind, &[&bytes]), Err(code), "{ty:#x} on {kind:?}");
        }
    }

    /// RFC 9114 §6.2.1 MUST-2, RFC 9114 §9 SHOULD-1
    #[test]
    fn a_control_stream_begins_with_settings() {
        for ty in [GOAWAY, DATA, 0x2, 0x21, PRIORITY_UPDATE] {
            let mut bytes = Vec::new();
            write_head(&mut bytes, ty, 0);
            assert_eq!(read(Kind::Control, &[&bytes]), Err(Code::MISSING_SETTINGS), "{ty:#x}");
        }
        let (found, _) = read(Kind::Control, &[&[0x04, 0x00, 0x21, 0x01, 0xff, 0x07, 0x01, 0x00]]).unwrap();
        assert_eq!(found, [(SETTINGS, vec![]), (GOAWAY, vec![0])]);
    }

    /// RFC 9114 §7.1 MUST-1, MUST-2, MUST-3, RFC 9114 §10.8 MUST-1
    #[test]
    fn numbers() {
        assert_eq!(number_frame(GOAWAY, 68), [0x07, 0x02, 0x40, 0x44]);
        assert_eq!(read_number(&[0x40, 0x44]).ok(), Some(68));
        for bad in [&[][..], &[0x40], &[0x01, 0x01]] {
            assert_eq!(read_number(bad).unwrap_err().code, Code::FRAME_ERROR);
        }
    }
}
