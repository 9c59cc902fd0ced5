//! Beginning of a client's bidirectional stream, where sessions are supported: a request, or a stream of a session
//! (draft-ietf-webtrans-http3 §4.3).

use bytes::Bytes;
use tiderace::RecvStream;

use crate::{
    error::{Code, Error, Violation},
    sessions::SIGNAL,
};

/// The most that is read from a stream in one go, in bytes.
const READ: usize = 16 * 1024;

/// Content of the first bytes of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A request, of which these bytes were read.
    Request(Bytes),
    /// A stream of a session.
    Session {
        /// Session ID.
        session: u64,
        /// Bytes of the header.
        header: u64,
        /// Bytes behind the header.
        rest: Bytes,
    },
}

/// Reads the beginning of a stream.
///
/// # Errors
/// When the stream is reset, or ends in its first number, which closes the connection.
pub(crate) async fn read(recv: &mut RecvStream) -> Result<Opening, Error> {
    let mut begun = Bytes::new();
    loop {
        let Some(chunk) = recv.read_chunk(READ).await? else {
            let what = if begun.is_empty() { Code::REQUEST_INCOMPLETE } else { Code::FRAME_ERROR };
            let reason = "a stream that ends in its beginning".to_owned();
            return Err(Violation { code: what, reason }.into());
        };
        begun = if begun.is_empty() { chunk } else { [&begun[..], &chunk].concat().into() };
        if let Some(opening) = parse(&begun) {
            return Ok(opening);
        }
    }
}

/// Parses the beginning of a stream; `None` when more bytes are needed.
fn parse(begun: &Bytes) -> Option<Opening> {
    let mut reader = wire::Reader::new(begun);
    if reader.varint().ok()? != SIGNAL {
        return Some(Opening::Request(begun.clone()));
    }
    let session = reader.varint().ok()?;
    let at = reader.position();
    Some(Opening::Session { session, header: at as u64, rest: begun.slice(at..) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_from_frames_in_all_encodings() {
        let session =
            |header, rest: &'static [u8]| Some(Opening::Session { session: 4, header, rest: Bytes::from_static(rest) });
        for (bytes, expected) in [
            (&b"\x40\x41\x04body"[..], session(3, b"body")),
            (b"\x80\x00\x00\x41\x40\x04", session(6, b"")),
            (b"\x40", None),
            (b"\x40\x41", None),
            (b"\x40\x41\xc0\x00", None),
            (b"\x01\x00", Some(Opening::Request(Bytes::from_static(b"\x01\x00")))),
            (b"\x41\x00", Some(Opening::Request(Bytes::from_static(b"\x41\x00")))),
        ] {
            assert_eq!(parse(&Bytes::from_static(bytes)), expected, "{bytes:?}");
        }
    }
}
