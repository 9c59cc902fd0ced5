//! The transport under the `h3` crate: its `quic` traits, implemented for tiderace.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h3::quic::{self as traits, ConnectionErrorIncoming, StreamErrorIncoming, WriteBuf};
use tiderace::{CloseReason, ReadError, WriteError};

use crate::{
    error,
    watch::{TooLong, Watch},
};

/// The most that is read from a stream in one go, in bytes.
const READ: usize = 64 * 1024;

/// A connection, and what its streams may bring.
pub struct Connection {
    quic: tiderace::Connection,
    max_headers: u64,
}

impl Connection {
    /// Puts HTTP/3 on `quic`. No HEADERS frame may have more than `max_headers` bytes on the wire.
    pub fn new(quic: tiderace::Connection, max_headers: u64) -> Self {
        Self { quic, max_headers }
    }
}

fn connection_error(reason: CloseReason) -> ConnectionErrorIncoming {
    match reason {
        CloseReason::PeerApplication { code, .. } => ConnectionErrorIncoming::ApplicationClose { error_code: code },
        CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn over(reason: CloseReason) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(reason) }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(error_code) => StreamErrorIncoming::StreamTerminated { error_code },
        WriteError::ConnectionClosed(reason) => over(reason),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(error_code) => StreamErrorIncoming::StreamTerminated { error_code },
        ReadError::ConnectionClosed(reason) => over(reason),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

impl traits::Connection<Bytes> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let stream = ready!(self.quic.poll_accept_uni(cx)).map_err(connection_error)?;
        let watch = Watch::unidirectional(self.max_headers);
        Poll::Ready(Ok(RecvStream { stream, watch, quic: self.quic.clone(), ended: false }))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, ConnectionErrorIncoming>> {
        let halves = ready!(self.quic.poll_accept_bi(cx)).map_err(connection_error)?;
        Poll::Ready(Ok(bidi(halves, &self.quic, self.max_headers)))
    }

    fn opener(&self) -> Opener {
        Opener { quic: self.quic.clone(), max_headers: self.max_headers }
    }
}

fn bidi(halves: (tiderace::SendStream, tiderace::RecvStream), quic: &tiderace::Connection, max: u64) -> BidiStream {
    let (send, recv) = halves;
    BidiStream {
        send: SendStream { stream: send, queued: Bytes::new(), sent: false, ended: false },
        recv: RecvStream { stream: recv, watch: Watch::request(max), quic: quic.clone(), ended: false },
    }
}

impl traits::OpenStreams<Bytes> for Connection {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        self.opener_now().poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.opener_now().poll_open_send(cx)
    }

    fn close(&mut self, code: h3::error::Code, reason: &[u8]) {
        self.quic.close(code.value(), reason);
    }
}

impl Connection {
    fn opener_now(&self) -> Opener {
        <Self as traits::Connection<Bytes>>::opener(self)
    }
}

/// Opens streams of a connection.
#[derive(Clone)]
pub struct Opener {
    quic: tiderace::Connection,
    max_headers: u64,
}

impl traits::OpenStreams<Bytes> for Opener {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        // What may not leave early waits before it asks for a stream: see `client::SendRequest::send`.
        let halves = ready!(self.quic.poll_open_bi_early(cx)).map_err(over)?;
        Poll::Ready(Ok(bidi(halves, &self.quic, self.max_headers)))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        // Settings and the streams of QPACK ask for nothing that could be done twice.
        let mut stream = ready!(self.quic.poll_open_uni_early(cx)).map_err(over)?;
        // RFC 9218 §9: what governs the connection is not held up by responses.
        let _ = stream.set_priority(tiderace::Priority { urgency: 0, incremental: true });
        Poll::Ready(Ok(SendStream { stream, queued: Bytes::new(), sent: false, ended: false }))
    }

    fn close(&mut self, code: h3::error::Code, reason: &[u8]) {
        self.quic.close(code.value(), reason);
    }
}

tokio::task_local! {
    /// Set while a request is resolved. `h3` answers a request whose fields are too large by itself, with 431, and then drops the
    /// stream, which would take the answer back: what was answered is finished here. True from then on.
    pub(crate) static ANSWERED: Cell<bool>;
}

/// The sending half of a stream.
pub struct SendStream {
    stream: tiderace::SendStream,
    queued: Bytes,
    sent: bool,
    ended: bool,
}

impl Drop for SendStream {
    /// RFC 9114 §4.1.1: whoever gives an exchange up says so with a code of HTTP/3.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let whole = self.sent && self.queued.is_empty();
        let is_answer = whole && ANSWERED.try_with(|answered| answered.set(true)).is_ok();
        let _ = match is_answer {
            true => self.stream.finish().is_ok(),
            false => self.stream.reset(error::Code::REQUEST_CANCELLED.0).is_ok(),
        };
    }
}

impl traits::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while !self.queued.is_empty() {
            ready!(self.stream.poll_write_chunk(cx, &mut self.queued)).map_err(write_error)?;
        }
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if !self.queued.is_empty() {
            let connection_error =
                ConnectionErrorIncoming::InternalError("data before the stream was ready".to_owned());
            return Err(StreamErrorIncoming::ConnectionErrorIncoming { connection_error });
        }
        let mut data = data.into();
        self.sent = true;
        self.queued = data.copy_to_bytes(data.remaining());
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        self.ended = true;
        Poll::Ready(self.stream.finish().map_err(write_error))
    }

    fn reset(&mut self, code: u64) {
        self.ended = true;
        // A stream that is over needs no reset.
        let _ = self.stream.reset(code);
    }

    fn send_id(&self) -> traits::StreamId {
        id(self.stream.id())
    }
}

/// The receiving half of a stream.
pub struct RecvStream {
    stream: tiderace::RecvStream,
    watch: Watch,
    quic: tiderace::Connection,
    ended: bool,
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.ended {
            // RFC 9114 §4.1: an answer that does not need the rest of the request is not an error.
            let answered = ANSWERED.try_with(Cell::get).unwrap_or(false);
            let code = if answered { error::Code::NO_ERROR } else { error::Code::REQUEST_CANCELLED };
            let _ = self.stream.stop(code.0);
        }
    }
}

impl traits::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let data = ready!(self.stream.poll_read_chunk(cx, READ)).map_err(|error| {
            self.ended = true;
            read_error(error)
        })?;
        self.ended = data.is_none();
        let quic = &self.quic;
        let looked = data.as_deref().map_or(Ok(()), |data| {
            self.watch.look(data, |update| {
                // RFC 9218 §7.2: only requests have a priority that the client may change.
                let id = tiderace::StreamId(update.stream);
                if update.stream % 4 == 0 {
                    quic.set_priority(id, update.priority);
                }
            })
        });
        if let Err(TooLong { length }) = looked {
            // RFC 9114 §8.1: H3_EXCESSIVE_LOAD. Whoever sends this is no client of good will, so the connection goes.
            let reason = format!("a frame of {length} bytes");
            self.quic.close(error::Code::EXCESSIVE_LOAD.0, reason.as_bytes());
            let reason = CloseReason::ThisApplication { code: error::Code::EXCESSIVE_LOAD.0 };
            return Poll::Ready(Err(over(reason)));
        }
        Poll::Ready(Ok(data))
    }

    fn stop_sending(&mut self, code: u64) {
        self.ended = true;
        // A stream that was read to its end needs no stop.
        let _ = self.stream.stop(code);
    }

    fn recv_id(&self) -> traits::StreamId {
        id(self.stream.id())
    }
}

fn id(id: tiderace::StreamId) -> traits::StreamId {
    id.0.try_into().expect("a stream's number is a varint")
}

/// Both halves of a stream.
pub struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl traits::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }
}

impl traits::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> traits::StreamId {
        self.send.send_id()
    }
}

impl traits::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.recv.stop_sending(code);
    }

    fn recv_id(&self) -> traits::StreamId {
        self.recv.recv_id()
    }
}
