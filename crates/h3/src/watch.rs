//! The frames of a stream on their way in: bounds what `h3` would collect without end, and reads what it does not know.
//!
//! `h3` collects every frame but DATA as a whole before it looks at it, whatever length the frame claims, and returns the
//! credit of flow control while it does. So a frame that claims too much is noticed here, from its first bytes. PRIORITY_UPDATE
//! frames (RFC 9218 §7.2), which `h3` skips, are read here.

use crate::priority::{self, Update};

const DATA: u64 = 0x0;
const HEADERS: u64 = 0x1;
/// RFC 9218 §7.2: for request streams.
const PRIORITY_UPDATE: u64 = 0xf0700;
/// The longest PRIORITY_UPDATE that is read; a longer one says nothing that is understood.
const MAX_PRIORITY_UPDATE: usize = 256;
/// Longest frame beside DATA and HEADERS: SETTINGS, unknown ones.
const MAX_OTHER: u64 = 16 * 1024;
/// Stream type of a control stream (RFC 9114 §6.2.1).
const CONTROL: u64 = 0x0;

/// A varint that comes in pieces.
#[derive(Clone, Copy, Default)]
struct Partial {
    value: u64,
    missing: u8,
    begun: bool,
}

impl Partial {
    /// Takes a byte; the value when it was the last.
    fn push(&mut self, byte: u8) -> Option<u64> {
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
}

enum At {
    /// The type of a unidirectional stream.
    StreamType,
    FrameType,
    Length {
        ty: u64,
    },
    Payload {
        ty: u64,
        left: u64,
    },
    /// Not a stream of frames: nothing to watch.
    Rest,
}

/// What is wrong with a stream: a frame is longer than is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    pub(crate) length: u64,
}

/// Follows the frames of one stream.
pub(crate) struct Watch {
    at: At,
    number: Partial,
    /// The most that a HEADERS frame may have, in bytes on the wire.
    max_headers: u64,
    /// It is a control stream, where PRIORITY_UPDATE frames have a meaning.
    control: bool,
    /// The payload of a PRIORITY_UPDATE.
    collected: Vec<u8>,
}

impl Watch {
    /// A request stream: frames from its first byte on.
    pub(crate) fn request(max_headers: u64) -> Self {
        Self { at: At::FrameType, number: Partial::default(), max_headers, control: false, collected: Vec::new() }
    }

    /// A unidirectional stream, which starts with its type.
    pub(crate) fn unidirectional(max_headers: u64) -> Self {
        Self { at: At::StreamType, ..Self::request(max_headers) }
    }

    /// Looks at the next bytes of the stream and gives `found` the priority updates that end in them.
    pub(crate) fn look(&mut self, mut data: &[u8], mut found: impl FnMut(Update)) -> Result<(), TooLong> {
        while let Some((&first, rest)) = data.split_first() {
            match self.at {
                At::Rest => return Ok(()),
                At::Payload { ty, left } => {
                    let here = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
                    if self.control && ty == PRIORITY_UPDATE && self.collected.len() + here <= MAX_PRIORITY_UPDATE {
                        self.collected.extend_from_slice(&data[..here]);
                    }
                    self.advance(ty, left - here as u64, &mut found);
                    data = &data[here..];
                }
                At::StreamType => {
                    data = rest;
                    if let Some(ty) = self.number.push(first) {
                        self.control = ty == CONTROL;
                        self.at = if self.control { At::FrameType } else { At::Rest };
                    }
                }
                At::FrameType => {
                    data = rest;
                    if let Some(ty) = self.number.push(first) {
                        self.at = At::Length { ty };
                    }
                }
                At::Length { ty } => {
                    data = rest;
                    let Some(length) = self.number.push(first) else { continue };
                    let limit = match ty {
                        DATA => u64::MAX,
                        HEADERS => self.max_headers,
                        _ => MAX_OTHER,
                    };
                    if length > limit {
                        return Err(TooLong { length });
                    }
                    self.advance(ty, length, &mut found);
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, ty: u64, left: u64, found: &mut impl FnMut(Update)) {
        if left > 0 {
            self.at = At::Payload { ty, left };
            return;
        }
        if self.control
            && ty == PRIORITY_UPDATE
            && let Some(update) = priority::read_update(&std::mem::take(&mut self.collected))
        {
            found(update);
        }
        self.at = At::FrameType;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in every division into two parts, and one by one.
    fn divisions(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
        let mut all: Vec<Vec<&[u8]>> = (0..=bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]).collect();
        all.push(bytes.chunks(1).collect());
        all
    }

    #[test]
    fn priority_updates_are_found_however_they_arrive() {
        // Control stream, SETTINGS without content, an update for stream 4, a reserved frame, an update for stream 8.
        let mut bytes = vec![0x00, 0x04, 0x00];
        bytes.extend([0x80, 0x0f, 0x07, 0x00, 0x05, 0x04]);
        bytes.extend(b"u=1,");
        bytes.extend([0x21, 0x03, 1, 2, 3]);
        bytes.extend([0x80, 0x0f, 0x07, 0x00, 0x04, 0x08]);
        bytes.extend(b"i,u");
        for parts in divisions(&bytes) {
            let mut watch = Watch::unidirectional(100);
            let mut updates = Vec::new();
            for part in parts {
                watch.look(part, |update| updates.push((update.stream, update.priority.urgency))).unwrap();
            }
            assert_eq!(updates, [(4, 1), (8, 3)]);
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_seen_before_it_comes() {
        // HEADERS of 16,384 bytes, of which nothing is there.
        for parts in divisions(&[0x01, 0x80, 0x00, 0x40, 0x00]) {
            let mut watch = Watch::request(16_383);
            let results: Vec<_> = parts.iter().map(|part| watch.look(part, |_| {})).collect();
            assert!(results.contains(&Err(TooLong { length: 16_384 })));
        }
        let mut watch = Watch::request(16_384);
        assert!(watch.look(&[0x01, 0x80, 0x00, 0x40, 0x00], |_| {}).is_ok());
        // DATA may have any length; an unknown frame may not.
        assert!(Watch::request(10).look(&[0x00, 0xc0, 0, 0, 1, 0, 0, 0, 0], |_| {}).is_ok());
        assert!(Watch::request(10).look(&[0x21, 0xc0, 0, 0, 1, 0, 0, 0, 0], |_| {}).is_err());
    }

    #[test]
    fn other_streams_are_left_alone() {
        let mut watch = Watch::unidirectional(10);
        assert!(watch.look(&[0x02, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], |_| {}).is_ok());
    }
}
