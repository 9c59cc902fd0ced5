//! Halves of a stream.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{
    fec::Protection,
    streams::{self, Chunk, Order, Priority, ReceivedBytes},
};
use wire::StreamId;

use crate::{
    error::{ReadError, ReadToEndError, ResetAtError, WriteError, from_reset_at, from_write},
    held::Held,
    parts::Parts,
    shared::End,
};

/// Sending half of a stream. Dropped without [`finish`](Self::finish), it resets the stream with code 0.
pub struct SendStream {
    connection: Arc<Held>,
    id: StreamId,
    ended: bool,
    /// Nothing of the stream is to be tidied up when it is dropped.
    left: bool,
    /// Bytes sent at least once, as of the last command, where they are counted.
    sent: Option<u64>,
}

impl SendStream {
    pub(crate) fn new(connection: Arc<Held>, id: StreamId) -> Self {
        Self { connection, id, ended: false, left: false, sent: None }
    }

    /// Counts bytes that were sent at least once, for [`sent`](Self::sent), from here on.
    pub fn count_sent(&mut self) {
        self.sent.get_or_insert(0);
    }

    /// Bytes sent at least once, as of the last write or reset; `None` without [`count_sent`](Self::count_sent). After a reset this is the
    /// final size: protocols with their own flow control recover the credit of the rest.
    pub fn sent(&self) -> Option<u64> {
        self.sent
    }

    /// Stream ID.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Queues all of `data` without copying it, as the send buffer has room.
    ///
    /// # Errors
    /// When the peer sent STOP_SENDING, or the stream or the connection has ended.
    pub async fn write_chunk(&mut self, mut data: Bytes) -> Result<(), WriteError> {
        while !data.is_empty() {
            poll_fn(|cx| self.poll_write_bytes(cx, &mut data)).await?;
        }
        Ok(())
    }

    /// Queues a copy of all of `data`, as the send buffer has room.
    ///
    /// # Errors
    /// As [`write_chunk`](Self::write_chunk).
    pub async fn write_all(&mut self, data: &[u8]) -> Result<(), WriteError> {
        self.write_chunk(Bytes::copy_from_slice(data)).await
    }

    /// Queues a prefix of `data` without copying it and takes it away from `data`; returns its length. Not ready while the
    /// send buffer is full.
    ///
    /// # Errors
    /// As [`write_chunk`](Self::write_chunk).
    pub fn poll_write_chunk(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<Result<usize, WriteError>> {
        self.poll_write_bytes(cx, data)
    }

    /// Waits until the peer sends STOP_SENDING, or the stream or the connection has ended; only while no write is pending.
    pub async fn stopped(&mut self) -> WriteError {
        poll_fn(|cx| self.poll_stopped(cx)).await
    }

    /// Poll form of [`stopped`](Self::stopped), for futures written by hand.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<WriteError> {
        self.connection.poll_stopped(cx, self.id)
    }

    fn poll_write_bytes(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<Result<usize, WriteError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.connection.shared.lock();
        if !state.turn.permits((self.connection.handle, self.id), cx.waker()) {
            return Poll::Pending;
        }
        let sent = &mut self.sent;
        let mut in_progress = 0;
        let result = self.connection.act(&mut state, |waiters, connection| {
            in_progress = connection.live_streams();
            // Before the write: one that fails may be the last that is known of the stream.
            count(sent, connection, self.id);
            match connection.write(self.id, data) {
                Err(streams::WriteError::Blocked) => {
                    waiters.wait_write(self.id, cx.waker());
                    None
                }
                other => Some(other),
            }
        })?;
        let Some(result) = result else { return Poll::Pending };
        state.turn.wrote((self.connection.handle, self.id), in_progress);
        state.wake_driver();
        Poll::Ready(result.map_err(from_write))
    }

    /// Queues all of `data` without copying it, as the send buffer has room, and ends the stream behind it. Delivery goes on in the
    /// background; nobody is told of its end. Costs less than [`write_chunk`](Self::write_chunk), [`finish`](Self::finish) and dropping
    /// the stream.
    ///
    /// # Errors
    /// As [`write_chunk`](Self::write_chunk).
    pub async fn write_last(mut self, mut data: Bytes) -> Result<(), WriteError> {
        poll_fn(|cx| self.poll_write_last(cx, &mut data)).await
    }

    fn poll_write_last(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<Result<(), WriteError>> {
        let mut state = self.connection.shared.lock();
        if !state.turn.permits((self.connection.handle, self.id), cx.waker()) {
            return Poll::Pending;
        }
        let before = data.len();
        let mut in_progress = 0;
        let result = self.connection.act(&mut state, |waiters, connection| {
            in_progress = connection.live_streams();
            match connection.write_last(self.id, data) {
                Err(streams::WriteError::Blocked) => {
                    waiters.wait_write(self.id, cx.waker());
                    None
                }
                // Another task may wait for the end of the stream.
                Ok(()) => Some(Ok(waiters.forget_writer(self.id))),
                Err(error) => Some(Err(error)),
            }
        })?;
        if data.len() < before || matches!(result, Some(Ok(_))) {
            state.turn.wrote((self.connection.handle, self.id), in_progress);
            state.wake_driver();
        }
        drop(state);
        let Some(result) = result else { return Poll::Pending };
        let waits = result.map_err(from_write)?;
        (self.ended, self.left) = (true, true);
        if let Some(waker) = waits {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream after what was written. Delivery goes on in the background.
    ///
    /// # Errors
    /// When the stream or the connection has ended.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        let mut state = self.connection.shared.lock();
        let result = self.connection.act(&mut state, |waiters, connection| {
            waiters.follow_end(self.id);
            connection.finish(self.id)
        })?;
        state.wake_driver();
        self.ended = true;
        result.map_err(from_write)
    }

    /// Waits until the peer has acknowledged everything up to the end, after [`finish`](Self::finish), or up to the reliable size,
    /// after [`reset_at`](Self::reset_at).
    ///
    /// # Errors
    /// When the stream was not finished, or was reset, the peer sent STOP_SENDING, or the connection has ended before.
    pub async fn finished(&mut self) -> Result<(), WriteError> {
        poll_fn(|cx| {
            let mut state = self.connection.shared.lock();
            // Delivery counts even if the connection has ended since.
            let waiters = state.connections.get_mut(&self.connection.handle).expect("kept while there are handles");
            let closed = waiters.closed.clone();
            match (waiters.end_of(self.id), closed) {
                (None, _) => Poll::Ready(Err(WriteError::StreamClosed)),
                (Some(End::Delivered), _) => Poll::Ready(Ok(())),
                (Some(End::Stopped(code)), _) => Poll::Ready(Err(WriteError::Stopped(*code))),
                (Some(End::Pending(_)), Some(reason)) => Poll::Ready(Err(reason.into())),
                (Some(End::Pending(waker)), None) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Resets the stream with an application error code: data that is not delivered yet is not sent any more.
    ///
    /// # Errors
    /// When the stream or the connection has ended.
    pub fn reset(&mut self, code: u64) -> Result<(), WriteError> {
        let mut state = self.connection.shared.lock();
        self.ended = true;
        let sent = &mut self.sent;
        let result = self.connection.act(&mut state, |waiters, connection| {
            waiters.give_up_end(self.id);
            count(sent, connection, self.id);
            connection.reset(self.id, code)
        })?;
        state.wake_driver();
        result.map_err(from_write)
    }

    /// Resets the stream except for its first `reliable_size` bytes (draft-ietf-quic-reliable-stream-reset): the peer reads
    /// these, and then the reset with this code. Delivery continues in the background, also when the stream is dropped.
    ///
    /// Peers accept it that have advertised it: ours with `streams.reset_stream_at` of their [`Profile`](crate::Profile), which is
    /// off by default. This end need not have advertised it.
    ///
    /// - Bytes count from the start of the stream in the order of writing; bytes in the send buffer are included.
    /// - A further call may name a smaller size. The code of the first call stays.
    /// - A size of 0 is as [`reset`](Self::reset), and so is `reset` after this.
    ///
    /// ```no_run
    /// # async fn relay(send: &mut tiderace::SendStream, mut source: impl tokio::io::AsyncRead + Unpin)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use tokio::io::AsyncReadExt;
    ///
    /// // A relay passes on what its source has sent, and that the source has failed.
    /// let (mut passed, mut buffer) = (0, [0; 4096]);
    /// loop {
    ///     match source.read(&mut buffer).await {
    ///         Ok(0) => return Ok(send.finish()?),
    ///         Ok(n) => {
    ///             send.write_all(&buffer[..n]).await?;
    ///             passed += n as u64;
    ///         }
    ///         Err(_) => return Ok(send.reset_at(7, passed)?),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the peer does not support it, the size is above the written bytes or an earlier reliable size, or the stream or the connection
    /// has ended. After the first two the stream continues.
    pub fn reset_at(&mut self, code: u64, reliable_size: u64) -> Result<(), ResetAtError> {
        let mut state = self.connection.shared.lock();
        let sent = &mut self.sent;
        let result = self.connection.act(&mut state, |waiters, connection| {
            count(sent, connection, self.id);
            connection.reset_at(self.id, code, reliable_size)?;
            // What is below the reliable size is still sent.
            *sent = sent.map(|bytes| bytes.max(reliable_size));
            if reliable_size > 0 {
                waiters.follow_end(self.id);
            } else {
                waiters.give_up_end(self.id);
            }
            Ok(())
        })?;
        state.wake_driver();
        self.ended |= result.is_ok();
        result.map_err(from_reset_at)
    }

    /// Sets the priority of the stream.
    ///
    /// # Errors
    /// When the stream or the connection has ended.
    pub fn set_priority(&mut self, priority: Priority) -> Result<(), WriteError> {
        let mut state = self.connection.shared.lock();
        self.connection.act(&mut state, |_, connection| connection.set_priority(self.id, priority))?.map_err(from_write)
    }

    /// Sets whether the data is worth repair symbols, where the connection makes some (`fec` of its profile).
    ///
    /// # Errors
    /// When the stream or the connection has ended.
    pub fn set_protection(&mut self, protection: Protection) -> Result<(), WriteError> {
        let mut state = self.connection.shared.lock();
        let act = |_: &mut _, connection: &mut transport::Connection| connection.set_protection(self.id, protection);
        self.connection.act(&mut state, act)?.map_err(from_write)
    }
}

/// Records the sent bytes of a stream, if they are counted and the stream exists.
fn count(sent: &mut Option<u64>, connection: &mut transport::Connection, id: StreamId) {
    if let Some(bytes) = sent {
        *bytes = connection.sent(id).unwrap_or(*bytes);
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.ended {
            // The stream may be over already; then there is nothing to give up.
            let _ = self.reset(0);
        }
        if self.left {
            return;
        }
        let mut state = self.connection.shared.lock();
        let waits = state.connections.get_mut(&self.connection.handle).and_then(|waiters| {
            waiters.forget_end(self.id);
            waiters.forget_writer(self.id)
        });
        drop(state);
        if let Some(waker) = waits {
            waker.wake();
        }
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // One copy of at most this much is made even if the send buffer then takes less of it.
        const CHUNK: usize = 64 * 1024;
        let mut data = Bytes::copy_from_slice(&buf[..buf.len().min(CHUNK)]);
        self.get_mut().poll_write_bytes(cx, &mut data).map_err(Into::into)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().finish().map_err(Into::into))
    }
}

/// Bytes of a stream that are fetched at once: taking the lock for each part, of a packet's size, would cost as much as the
/// rest of the processing.
const FETCH: usize = 64 * 1024;

/// Least number of bytes fetched at once. An application that reads less at a time does not want to hold much.
const FETCH_MIN: usize = 4 * 1024;

/// Receiving half of a stream. Dropped before its end, it asks the peer to stop with code 0.
pub struct RecvStream {
    connection: Arc<Held>,
    id: StreamId,
    /// Fetched and not handed out yet, about `FETCH` bytes, or as many as are read at a time. To flow control they count as read.
    fetched: Parts,
    /// Fetched data is copied into one part.
    joined: bool,
    /// End behind the fetched parts, when that is known.
    end: Option<RecvEnd>,
    ended: bool,
    /// Bytes that have arrived, as of the last read, where they are counted.
    received: Option<ReceivedBytes>,
}

/// End of a stream.
#[derive(Clone, Copy)]
enum RecvEnd {
    Complete,
    Reset(u64),
}

fn end_of(status: streams::ReadStatus) -> Option<RecvEnd> {
    match status {
        streams::ReadStatus::More | streams::ReadStatus::Blocked => None,
        streams::ReadStatus::End => Some(RecvEnd::Complete),
        streams::ReadStatus::Reset(code) => Some(RecvEnd::Reset(code)),
    }
}

impl RecvStream {
    pub(crate) fn new(connection: Arc<Held>, id: StreamId) -> Self {
        Self { connection, id, fetched: Parts::default(), joined: false, end: None, ended: false, received: None }
    }

    /// Counts bytes that have arrived, for [`received`](Self::received), from here on.
    pub fn count_received(&mut self) {
        let _ = self.connection.with(|_, connection| {
            self.received = Some(connection.received(self.id).unwrap_or_default());
        });
    }

    /// Received bytes, read or not, as of the last read that called the transport; with the final size once that is known. `None` without
    /// [`count_received`](Self::count_received).
    pub fn received(&self) -> Option<ReceivedBytes> {
        self.received
    }

    /// Stream ID.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Makes ordered reads return copies, joined up to the requested number of bytes. Otherwise chunks are slices of receive buffers, each
    /// of which stays in memory as a whole until its last slice is dropped. Copies are for applications that keep data for longer than a
    /// moment.
    pub fn set_joined(&mut self) {
        self.joined = true;
    }

    /// Returns whether all data was read and the end has come with it. `false` is no proof: the end may have arrived unread.
    pub fn is_at_end(&self) -> bool {
        self.fetched.is_empty() && (self.ended || matches!(self.end, Some(RecvEnd::Complete)))
    }

    /// Reads the next bytes in order, at most `max`. `None` at the end of the stream. Data that arrived before the peer's
    /// application closed the connection can be read afterwards, too.
    ///
    /// # Errors
    /// When the peer reset the stream, or the connection has ended.
    pub async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        Ok(poll_fn(|cx| self.poll_chunk(cx, max, Order::Ordered)).await?.map(|chunk| chunk.data))
    }

    /// Poll form of [`read_chunk`](Self::read_chunk), for futures written by hand.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<Option<Bytes>, ReadError>> {
        let chunk = ready!(self.poll_chunk(cx, max, Order::Ordered))?;
        Poll::Ready(Ok(chunk.map(|chunk| chunk.data)))
    }

    /// Reads bytes from anywhere in the stream as they arrive, with their offset. `None` when all were read.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn read_unordered(&mut self, max: usize) -> Result<Option<(u64, Bytes)>, ReadError> {
        let chunk = poll_fn(|cx| self.poll_chunk(cx, max, Order::Unordered)).await?;
        Ok(chunk.map(|chunk| (chunk.offset, chunk.data)))
    }

    /// Reads the stream to its end, if that is not more than `limit` bytes.
    ///
    /// # Errors
    /// When the stream is longer or cannot be read.
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, ReadToEndError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.read_chunk(usize::MAX).await? {
            if all.len() + chunk.len() > limit {
                return Err(ReadToEndError::TooLong { limit });
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>, max: usize, order: Order) -> Poll<Result<Option<Chunk>, ReadError>> {
        if self.ended {
            return Poll::Ready(Err(ReadError::StreamClosed));
        }
        if self.fetched.is_empty() && self.end.is_none() {
            ready!(self.poll_fetch(cx, max.clamp(FETCH_MIN, FETCH), order))?;
            if self.joined && matches!(order, Order::Ordered) {
                self.fetched.join();
            }
        }
        if let Some(chunk) = self.fetched.front_mut() {
            if chunk.data.len() <= max.max(1) {
                return Poll::Ready(Ok(self.fetched.pop()));
            }
            let offset = chunk.offset;
            let data = chunk.data.split_to(max.max(1));
            chunk.offset += data.len() as u64;
            return Poll::Ready(Ok(Some(Chunk { offset, data })));
        }
        self.ended = true;
        Poll::Ready(match self.end {
            Some(RecvEnd::Reset(code)) => Err(ReadError::Reset(code)),
            Some(RecvEnd::Complete) | None => Ok(None),
        })
    }

    /// Takes what has arrived, about `most` bytes; ready when that is something, or the end.
    fn poll_fetch(&mut self, cx: &mut Context<'_>, most: usize, order: Order) -> Poll<Result<(), ReadError>> {
        let Self { connection, id, fetched, end, received, .. } = self;
        let mut state = connection.shared.lock();
        let done = connection.act(&mut state, |waiters, connection| {
            // Before the read: its end is the last that is known of the stream.
            if let Some(bytes) = received {
                *bytes = connection.received(*id).unwrap_or(*bytes);
            }
            let outcome = match connection.read_many(*id, most, order, |chunk| fetched.push(chunk)) {
                Ok(streams::ReadStatus::Blocked) if fetched.is_empty() => {
                    waiters.wait_read(*id, cx.waker());
                    Poll::Pending
                }
                Ok(status) => {
                    *end = end_of(status);
                    Poll::Ready(Ok(()))
                }
                Err(_) => Poll::Ready(Err(ReadError::StreamClosed)),
            };
            (outcome, connection.wants_to_send_credit())
        });
        let (outcome, credit) = match done {
            Ok(done) => done,
            Err(reason) => {
                let Some(unread) = connection.unread(&mut state, *id) else {
                    return Poll::Ready(Err(reason.into()));
                };
                unread.parts.into_iter().for_each(|part| fetched.push(part));
                *end = end_of(unread.status);
                return Poll::Ready(Ok(()));
            }
        };
        if credit {
            state.wake_driver();
        }
        outcome
    }

    /// Asks the peer to stop sending (STOP_SENDING, RFC 9000 §19.5).
    ///
    /// # Errors
    /// When the stream was read to its end, or the connection has ended.
    pub fn stop(&mut self, code: u64) -> Result<(), ReadError> {
        self.ended = true;
        self.fetched.clear();
        let mut state = self.connection.shared.lock();
        let received = &mut self.received;
        let result = self.connection.act(&mut state, |waiters, connection| {
            waiters.forget_reader(self.id);
            if let Some(bytes) = received {
                *bytes = connection.received(self.id).unwrap_or(*bytes);
            }
            connection.stop_sending(self.id, code)
        })?;
        state.wake_driver();
        result.map_err(|_| ReadError::StreamClosed)
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.ended {
            // The stream may be over already; then there is nothing to stop.
            let _ = self.stop(0);
        }
    }
}

impl AsyncRead for RecvStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ended || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        match this.poll_chunk(cx, buf.remaining(), Order::Ordered) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(chunk)) => {
                if let Some(chunk) = chunk {
                    buf.put_slice(&chunk.data);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        }
    }
}
