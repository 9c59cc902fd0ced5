//! Capsules of a session (draft-ietf-webtrans-http3 §4.7, §5.6, §6): bytes to values. Unknown capsules are skipped, however long.

use bytes::{Buf, Bytes};
use h3_quic::Code;

use crate::codes;

/// Bytes that the message of WT_CLOSE_SESSION may have.
pub(crate) const MAX_REASON: usize = 1024;

/// The longest content of a capsule that is kept, in bytes.
const MAX_CONTENT: usize = 4 + MAX_REASON;

/// A limit of streams is at most this many (draft-ietf-webtrans-http3 §5.6.2).
const MAX_STREAMS: u64 = 1 << 60;

/// A known capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Capsule {
    /// WT_CLOSE_SESSION.
    Close { code: u32, reason: String },
    /// WT_DRAIN_SESSION.
    Drain,
    /// WT_MAX_DATA, in bytes.
    MaxData(u64),
    /// WT_MAX_STREAMS, of a direction.
    MaxStreams(usize, u64),
    /// WT_DATA_BLOCKED or WT_STREAMS_BLOCKED: for logs only.
    Blocked,
}

/// A violation of the session's rules by the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

impl Violation {
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

fn malformed(reason: impl Into<String>) -> Violation {
    Violation::new(Code::MESSAGE_ERROR, reason)
}

/// Takes the content of a session's stream apart. Holds one capsule at most.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Bytes of a head, or of a content, that is not complete.
    begun: Vec<u8>,
    /// Bytes of an unknown capsule that are still to come.
    skip: u64,
}

impl Reader {
    /// Returns whether the stream may end here.
    pub(crate) fn is_between(&self) -> bool {
        self.begun.is_empty() && self.skip == 0
    }

    /// Takes the next capsule from the front of `data`; `None` when all of `data` was taken.
    pub(crate) fn next(&mut self, data: &mut Bytes) -> Result<Option<Capsule>, Violation> {
        loop {
            let skipped = self.skip.min(data.len() as u64);
            data.advance(skipped as usize);
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(None);
            }
            let mut head = wire::Reader::new(&self.begun);
            if let (Ok(ty), Ok(length)) = (head.varint(), head.varint()) {
                let at = head.position();
                if !is_known(ty) {
                    self.begun.clear();
                    self.skip = length;
                    continue;
                }
                // Before the content comes.
                if length > MAX_CONTENT as u64 {
                    return Err(malformed(format!("a capsule of type {ty:#x} with {length} bytes")));
                }
                let missing = at + length as usize - self.begun.len();
                let here = missing.min(data.len());
                self.begun.extend_from_slice(&data.split_to(here));
                if here < missing {
                    return Ok(None);
                }
                let capsule = parse(ty, &self.begun[at..]);
                self.begun.clear();
                return capsule.map(Some);
            }
            if data.is_empty() {
                return Ok(None);
            }
            self.begun.push(data.get_u8());
        }
    }
}

fn is_known(ty: u64) -> bool {
    use codes::{CLOSE_SESSION, DATA_BLOCKED, DRAIN_SESSION, MAX_DATA, MAX_STREAM_DATA, STREAM_DATA_BLOCKED};
    [CLOSE_SESSION, DRAIN_SESSION, MAX_DATA, DATA_BLOCKED, MAX_STREAM_DATA, STREAM_DATA_BLOCKED].contains(&ty)
        || codes::MAX_STREAMS.contains(&ty)
        || codes::STREAMS_BLOCKED.contains(&ty)
}

fn parse(ty: u64, content: &[u8]) -> Result<Capsule, Violation> {
    let number = || {
        let mut reader = wire::Reader::new(content);
        let number = reader.varint().ok().filter(|_| reader.is_empty());
        number.ok_or_else(|| malformed(format!("a capsule of type {ty:#x} that is no number")))
    };
    let streams = || {
        let number = number()?;
        if number > MAX_STREAMS {
            return Err(Violation::new(Code::WT_FLOW_CONTROL_ERROR, format!("a limit of {number} streams")));
        }
        Ok(number)
    };
    match ty {
        codes::CLOSE_SESSION => {
            let Some((code, reason)) = content.split_first_chunk::<4>() else {
                return Err(malformed("a close of a session without a code"));
            };
            // draft-ietf-webtrans-http3 §6 MUST: a message that is no UTF-8, or too long, resets the stream
            let reason = std::str::from_utf8(reason).map_err(|_| malformed("a close whose message is no UTF-8"))?;
            Ok(Capsule::Close { code: u32::from_be_bytes(*code), reason: reason.to_owned() })
        }
        codes::DRAIN_SESSION if content.is_empty() => Ok(Capsule::Drain),
        codes::DRAIN_SESSION => Err(malformed("a drain of a session with content")),
        codes::MAX_DATA => number().map(Capsule::MaxData),
        codes::DATA_BLOCKED => number().map(|_| Capsule::Blocked),
        // draft-ietf-webtrans-http3 §5.4 MUST: prohibited here
        codes::MAX_STREAM_DATA | codes::STREAM_DATA_BLOCKED => Err(malformed("a limit of one stream in a capsule")),
        _ => match codes::MAX_STREAMS.iter().position(|of| *of == ty) {
            Some(dir) => Ok(Capsule::MaxStreams(dir, streams()?)),
            None => streams().map(|_| Capsule::Blocked),
        },
    }
}

#[cfg(test)]
mod tests {
    use h3_quic::capsule;

    use super::*;

    fn read(bytes: &[u8], size: usize) -> Result<(Vec<Capsule>, bool), Violation> {
        let (mut reader, mut found) = (Reader::default(), Vec::new());
        for part in bytes.chunks(size.max(1)) {
            let mut part = Bytes::copy_from_slice(part);
            while let Some(capsule) = reader.next(&mut part)? {
                found.push(capsule);
            }
            assert!(part.is_empty() && reader.begun.len() <= 16 + MAX_CONTENT);
        }
        Ok((found, reader.is_between()))
    }

    #[test]
    fn capsules_are_found_however_they_arrive() {
        let mut bytes = Vec::new();
        capsule::write(&mut bytes, codes::MAX_DATA, &[0x40, 0x50]);
        capsule::write(&mut bytes, 0x17, &[7; 10_000]);
        capsule::write(&mut bytes, codes::MAX_STREAMS[1], &[3]);
        capsule::write(&mut bytes, codes::STREAMS_BLOCKED[0], &[3]);
        capsule::write(&mut bytes, codes::DRAIN_SESSION, &[]);
        capsule::write(&mut bytes, codes::CLOSE_SESSION, b"\0\0\x01\0bye");
        let close = Capsule::Close { code: 256, reason: "bye".to_owned() };
        let expected = vec![Capsule::MaxData(0x50), Capsule::MaxStreams(1, 3), Capsule::Blocked, Capsule::Drain, close];
        for size in [1, 2, 7, 100, 100_000] {
            assert_eq!(read(&bytes, size), Ok((expected.clone(), true)));
        }
        assert!(!read(&bytes[..3], 1).unwrap().1);
    }

    #[test]
    fn malformed_capsules_are_refused_with_their_code() {
        let long = vec![b'x'; 4 + MAX_REASON + 1];
        let too_many = [0xd0, 0, 0, 0, 0, 0, 0, 1];
        for (ty, content, code) in [
            (codes::CLOSE_SESSION, &b"\0\0\0"[..], Code::MESSAGE_ERROR),
            (codes::CLOSE_SESSION, b"\0\0\0\0\xff", Code::MESSAGE_ERROR),
            (codes::CLOSE_SESSION, &long, Code::MESSAGE_ERROR),
            (codes::DRAIN_SESSION, b"x", Code::MESSAGE_ERROR),
            (codes::MAX_DATA, b"", Code::MESSAGE_ERROR),
            (codes::MAX_DATA, b"\x01\x01", Code::MESSAGE_ERROR),
            (codes::MAX_STREAM_DATA, b"\x01\x01", Code::MESSAGE_ERROR),
            (codes::STREAM_DATA_BLOCKED, b"\x01\x01", Code::MESSAGE_ERROR),
            (codes::MAX_STREAMS[0], &too_many, Code::WT_FLOW_CONTROL_ERROR),
            (codes::STREAMS_BLOCKED[1], &too_many, Code::WT_FLOW_CONTROL_ERROR),
        ] {
            let mut bytes = Vec::new();
            capsule::write(&mut bytes, ty, content);
            assert_eq!(read(&bytes, 3).unwrap_err().code, code, "{ty:#x} {content:?}");
        }
    }
}
