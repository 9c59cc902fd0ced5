//! Ends of a tunnel: bytes of a connection, or content of a stream of HTTP/3.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, channel::Sender};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tiderace::ConnectionBudget;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};

use super::{by_client, malformed, of_content};
use crate::{
    body::AnyBody,
    ending::{BodyError, Ending, ErrorWithEnding},
    room::{ReadRoom, charged},
};

/// Side of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    BackEnd,
}

impl Side {
    /// An error of this side's connection.
    fn error(self, error: impl Into<BodyError>) -> BodyError {
        match self {
            Self::Client => by_client(error.into()),
            Self::BackEnd => error.into(),
        }
    }
}

/// Receiving direction of an end.
pub(super) struct Reader {
    side: Side,
    from: From,
}

enum From {
    Connection { from: ReadHalf<TokioIo<Upgraded>>, read: BytesMut, room: ReadRoom },
    Content(AnyBody),
}

/// Sending direction of an end.
pub(super) struct Writer {
    side: Side,
    to: To,
}

enum To {
    Connection(WriteHalf<TokioIo<Upgraded>>),
    /// `None` once it has ended.
    Content(Option<Sender<Bytes, BodyError>>),
}

/// Ends of a connection that has switched. Reads are charged: the one in hand, and those that `wait` at the other end.
///
/// # Errors
/// When the client's connection holds too much.
pub(super) fn of_connection(
    side: Side,
    upgraded: Upgraded,
    memory: &ConnectionBudget,
    wait: usize,
) -> Result<(Reader, Writer), BodyError> {
    let room = ReadRoom::new(memory, wait + 1)?;
    let (from, to) = tokio::io::split(TokioIo::new(upgraded));
    let from = From::Connection { from, read: BytesMut::new(), room };
    Ok((Reader { side, from }, Writer { side, to: To::Connection(to) }))
}

/// Ends of a stream of HTTP/3.
pub(super) fn of_stream(side: Side, content: AnyBody, to: Sender<Bytes, BodyError>) -> (Reader, Writer) {
    (Reader { side, from: From::Content(content) }, Writer { side, to: To::Content(Some(to)) })
}

impl Reader {
    /// An error for what breaks the rules of capsules.
    pub(super) fn malformed(&self, error: impl std::fmt::Display) -> BodyError {
        match self.side {
            Side::Client => malformed(error),
            Side::BackEnd => format!("the back end's capsules: {error}").into(),
        }
    }

    /// Next bytes; `None` at the end. Cancelled, it loses nothing.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, BodyError> {
        match &mut self.from {
            From::Connection { from, read, room } => {
                let length = room.read(from, read).await.map_err(|error| self.side.error(error))?;
                Ok((length > 0).then(|| read.split().freeze()))
            }
            From::Content(content) => loop {
                let Some(frame) = content.frame().await else { return Ok(None) };
                let frame = frame.map_err(|error| match self.side {
                    Side::Client => of_content(&error),
                    Side::BackEnd => error,
                })?;
                // Trailers mean nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            },
        }
    }
}

impl Writer {
    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// Writes bytes, or hands them to the stream, in which a few pieces may wait.
    pub(super) async fn write(&mut self, data: Bytes) -> Result<(), BodyError> {
        match &mut self.to {
            To::Connection(to) => {
                to.write_all(&data).await.map_err(|error| self.side.error(error))?;
                // TLS may keep the end of what was written.
                to.flush().await.map_err(|error| self.side.error(error))
            }
            To::Content(Some(to)) => to.send_data(data).await.map_err(|error| self.side.error(error)),
            To::Content(None) => Ok(()),
        }
    }

    /// Writes what a buffer holds, and empties it. What waits is charged.
    pub(super) async fn write_out(&mut self, out: &mut Vec<u8>, memory: &ConnectionBudget) -> Result<(), BodyError> {
        match &mut self.to {
            To::Connection(to) => {
                to.write_all(out).await.map_err(|error| self.side.error(error))?;
                to.flush().await.map_err(|error| self.side.error(error))?;
                out.clear();
                Ok(())
            }
            To::Content(Some(to)) if !out.is_empty() => {
                let out = std::mem::take(out);
                let charge = memory.charge(out.capacity() as u64).ok_or_else(|| {
                    ErrorWithEnding::error(Ending::Memory, "the connection holds too much for another capsule")
                })?;
                to.send_data(charged(out, charge)).await.map_err(|error| self.side.error(error))
            }
            To::Content(_) => Ok(()),
        }
    }

    /// Ends this direction.
    pub(super) async fn end(&mut self) -> Result<(), BodyError> {
        match &mut self.to {
            To::Connection(to) => to.shutdown().await.map_err(|error| self.side.error(error)),
            To::Content(to) => {
                *to = None;
                Ok(())
            }
        }
    }

    /// Breaks this direction off: it must not look complete.
    pub(super) fn abort(self, error: BodyError) {
        if let To::Content(Some(to)) = self.to {
            to.abort(error);
        }
    }
}
