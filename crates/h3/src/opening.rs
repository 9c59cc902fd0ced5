//! Start of a client's bidirectional stream, if sessions are supported: a request, or a stream of a session (draft-ietf-webtrans-http3
//! §4.3).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tiderace::{RecvStream, SendStream};

use crate::{
    error::{Awaited, Code, Error, Violation},
    sessions::SIGNAL,
    shared::Shared,
    stream::{Receiver, Sender},
};

/// The most that is read from a stream in one go, in bytes.
const READ: usize = 16 * 1024;

/// Content of the first bytes of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Opening {
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
async fn read(recv: &mut RecvStream) -> Result<Opening, Error> {
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

/// Returns whether only streams of sessions are reset with this code: that of sessions that have ended, or one of an application
/// (draft-ietf-webtrans-http3 §4.4, §6).
fn is_of_session(code: Code) -> bool {
    code == Code::WT_SESSION_GONE || (Code::WT_APPLICATION_FIRST.0..=Code::WT_APPLICATION_LAST.0).contains(&code.0)
}

/// Reads the beginning of a stream: the halves of a request's; `None` when it was one of a session, or was refused.
pub(crate) async fn open(
    send: SendStream,
    mut recv: RecvStream,
    shared: &Arc<Shared>,
    fields_timeout: Duration,
    is_late: bool,
) -> Result<Option<(Sender, Receiver)>, Error> {
    if shared.support.is_none() {
        return Ok(Some((Sender::new(send, shared.clone()), Receiver::new(recv, shared.clone()))));
    }
    let opening = match tokio::time::timeout(fields_timeout, read(&mut recv)).await {
        Ok(Ok(opening)) => opening,
        Err(_) => return Err(give_up(send, recv, Code::REQUEST_CANCELLED, Error::TimedOut(Awaited::HeaderSection))),
        Ok(Err(Error::Protocol { code: Code::FRAME_ERROR, reason })) => {
            return Err(shared.fail(Violation { code: Code::FRAME_ERROR, reason }));
        }
        // A reset overtakes the header of a stream: it was never a request, so nobody has given one up.
        Ok(Err(Error::Reset(code))) if is_of_session(code) => {
            give_up(send, recv, code, Error::Reset(code));
            return Ok(None);
        }
        Ok(Err(error)) => {
            let code = if let Error::Protocol { code, .. } = &error { *code } else { Code::REQUEST_CANCELLED };
            return Err(give_up(send, recv, code, error));
        }
    };
    match opening {
        Opening::Session { session, header, rest } => {
            shared.decline_session(send.id());
            shared
                .on_session_stream(session, (Some(send), recv, &rest, header))
                .map_err(|violation| shared.fail(violation))?;
            Ok(None)
        }
        Opening::Request(_) if is_late => {
            refuse(send, recv);
            Ok(None)
        }
        Opening::Request(bytes) => {
            let mut recv = Receiver::new(recv, shared.clone());
            recv.begin_with(bytes);
            Ok(Some((Sender::new(send, shared.clone()), recv)))
        }
    }
}

/// Gives a stream up that became neither a request nor one of a session.
fn give_up(mut send: SendStream, mut recv: RecvStream, code: Code, error: Error) -> Error {
    let _ = send.reset(code.0);
    let _ = recv.stop(code.0);
    error
}

/// RFC 9114 §4.1.1 SHOULD-2, MUST NOT-1: a request after the last accepted one can be repeated on another connection.
pub(crate) fn refuse(mut send: SendStream, mut recv: RecvStream) {
    let _ = send.reset(Code::REQUEST_REJECTED.0);
    let _ = recv.stop(Code::REQUEST_REJECTED.0);
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
