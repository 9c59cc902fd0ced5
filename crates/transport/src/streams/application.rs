//! Commands of the application on streams.

use bytes::Bytes;
use wire::{Dir, StreamId};

use super::events::StreamEvent;
use super::{
    Streams, pending,
    recv::Reading,
    slab::Slot,
    stream::{self, Priority},
};
use crate::fec::Protection;

/// In which order a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As it was written. After unordered reads: in order what these have left.
    Ordered,
    /// As it arrived; each byte once.
    Unordered,
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Place of the first byte in the stream.
    pub offset: u64,
    /// The bytes, never none.
    pub data: Bytes,
}

/// State of a stream after the parts that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStatus {
    /// More may be ready to read.
    More,
    /// No data is ready; [`StreamEvent::Readable`] follows.
    Blocked,
    /// All data was read. Reported once.
    End,
    /// The peer reset the stream with this application error code. Reported once, after the data below the reliable size
    /// (draft-ietf-quic-reliable-stream-reset §5); other unread data is discarded.
    Reset(u64),
}

/// Data of a stream that has arrived and was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// In the order in which the application reads the stream.
    pub parts: Vec<Chunk>,
    /// State of the stream after these parts.
    pub status: ReadStatus,
}

/// Bytes of a stream that have arrived, or that the peer reports as sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// Bytes up to the highest that has arrived; the final size once that is known.
    pub highest: u64,
    /// Bytes that the peer may send under the stream's flow control.
    pub limit: u64,
}

/// Error of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The send buffer is full; [`StreamEvent::Writable`] follows.
    #[error("the send buffer is full")]
    Blocked,
    /// The peer wants no more data, with this application error code.
    #[error("the peer stopped the stream (code {0})")]
    Stopped(u64),
    /// The application finished or reset the stream before.
    #[error("the stream was finished or reset before")]
    Closed,
    /// No such stream, no sending part, or both its parts have ended.
    #[error("no such stream to write to")]
    Unknown,
}

/// Error of a reset with a reliable size (RESET_STREAM_AT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResetAtError {
    /// The peer does not accept RESET_STREAM_AT, or its transport parameters are not known yet.
    #[error("the peer does not accept RESET_STREAM_AT")]
    Unsupported,
    /// The reliable size is above what was written, or above that of an earlier reset.
    #[error("the reliable size is above {limit} bytes")]
    TooLarge {
        /// The largest reliable size that is possible, in bytes.
        limit: u64,
    },
    /// The peer wants no more data, with this application error code.
    #[error("the peer stopped the stream (code {0})")]
    Stopped(u64),
    /// The application reset the stream before, without a reliable size, or the peer has acknowledged its end.
    #[error("the stream was reset or acknowledged to its end before")]
    Closed,
    /// No such stream; or it has no sending part, or both its parts have ended.
    #[error("no such stream to reset")]
    Unknown,
}

/// Error of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No data; [`StreamEvent::Readable`] follows.
    #[error("no data is there yet")]
    Blocked,
    /// The peer reset the stream, with this application error code. Returned once, after the data below the reliable size; other data is
    /// lost.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The application stopped the stream, or has received its end.
    #[error("the stream was read to its end or stopped before")]
    Closed,
    /// No such stream, no receiving part, or both its parts have ended.
    #[error("no such stream to read from")]
    Unknown,
}

impl Streams {
    /// Opens a stream. `None` when the peer's limit is reached; [`StreamEvent::StreamsAvailable`] follows.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let local = &mut self.local[dir as usize];
        let Some(index) = local.open() else {
            // RFC 9000 §4.6 SHOULD-1, RFC 9000 §19.14 SHOULD-1: an endpoint that cannot open a stream should say so.
            if local.report_blocked() {
                self.pending |= pending::STREAMS_BLOCKED << dir as usize;
            }
            return None;
        };
        let id = StreamId::new(self.side, dir, index);
        self.create(id);
        Some(id)
    }

    /// The next stream that the peer opened, in the order of their numbers.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        let remote = &mut self.remote[dir as usize];
        let index = (remote.accepted < remote.opened).then_some(remote.accepted)?;
        remote.accepted += 1;
        Some(StreamId::new(self.side.peer(), dir, index))
    }

    fn sending(&mut self, id: StreamId) -> Result<Slot, WriteError> {
        self.slab.find(id).filter(|slot| self.slab[*slot].send.exists()).ok_or(WriteError::Unknown)
    }

    fn writable(&mut self, id: StreamId) -> Result<Slot, WriteError> {
        let slot = self.sending(id)?;
        if self.slab[slot].send.is_writable() {
            return Ok(slot);
        }
        let stopped = self.slab[slot].send.tell_stopped();
        self.release_if_over(slot);
        Err(stopped.map_or(WriteError::Closed, WriteError::Stopped))
    }

    /// Takes as much from the front of `data` as the send buffer has space for, without copying it, and returns how many
    /// bytes that were.
    ///
    /// # Errors
    /// [`WriteError::Blocked`] when none; the others are final.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        let slot = self.writable(id)?;
        if data.is_empty() {
            return Ok(0);
        }
        let n = self.take_in(slot, data)?;
        self.refresh(slot);
        Ok(n)
    }

    /// Takes all of `data` and ends the stream behind it: [`write`](Self::write) and [`finish`](Self::finish) at the cost of one of them.
    ///
    /// # Errors
    /// [`WriteError::Blocked`] when the send buffer has no space for all of it: `data` is what is left, to be given again after
    /// [`StreamEvent::Writable`]. The others are final.
    pub fn write_last(&mut self, id: StreamId, data: &mut Bytes) -> Result<(), WriteError> {
        let slot = self.writable(id)?;
        while !data.is_empty() {
            if let Err(error) = self.take_in(slot, data) {
                self.refresh(slot);
                return Err(error);
            }
        }
        self.budget.leave(&mut self.slab, slot);
        self.slab[slot].send.finish();
        self.refresh(slot);
        Ok(())
    }

    /// Moves as much of `data`, which is not empty, into the send buffer of a stream as that has space for. The stream's places in the lists
    /// are as before.
    #[inline]
    fn take_in(&mut self, slot: Slot, data: &mut Bytes) -> Result<usize, WriteError> {
        let n = self.budget.admit(&mut self.slab, slot, data.len() as u64) as usize;
        if n == 0 {
            return Err(WriteError::Blocked);
        }
        let taken = if n == data.len() { std::mem::take(data) } else { data.split_to(n) };
        let send = &mut self.slab[slot].send;
        self.budget.written(send.held(), n as u64);
        send.write(taken);
        Ok(n)
    }

    /// Ends a stream after the data written. [`StreamEvent::Finished`] follows when all of it has arrived.
    ///
    /// # Errors
    /// When the stream is not open for writing.
    pub fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        let slot = self.writable(id)?;
        self.budget.leave(&mut self.slab, slot);
        self.slab[slot].send.finish();
        self.refresh(slot);
        Ok(())
    }

    /// Returns whether the application can still read the stream or write to it.
    pub fn can_use(&mut self, id: StreamId) -> bool {
        self.slab.find(id).is_some_and(|slot| {
            let stream = &self.slab[slot];
            stream.send.is_writable() || stream.recv.is_readable()
        })
    }

    /// Gives a stream up: data that was not sent, or was sent and not acknowledged, vanishes. Permitted after
    /// [`finish`](Self::finish), too; without effect when the stream was reset before or stopped by the peer. After
    /// [`reset_at`](Self::reset_at) its data vanishes as well, and its code stays.
    ///
    /// # Errors
    /// [`WriteError::Unknown`] when there is no such stream any more.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), WriteError> {
        let slot = self.sending(id)?;
        self.slab[slot].send.settle();
        if self.slab[slot].send.is_open() {
            // RFC 9000 §11.2 MUST-1: only the application resets streams
            self.abandon(slot, |send| send.reset(code));
        }
        self.release_if_over(slot);
        Ok(())
    }

    /// Resets a stream except for its first `reliable_size` bytes, which the peer's application reads before the reset
    /// (draft-ietf-quic-reliable-stream-reset). Permitted after [`finish`](Self::finish), too. A later call may lower the size; the code of
    /// the first one stays. A size of 0 is [`reset`](Self::reset). [`StreamEvent::Finished`] follows when all of it has arrived.
    ///
    /// # Errors
    /// Errors when the peer does not accept it, the size is above what was written or named before, or the stream has ended.
    pub fn reset_at(&mut self, id: StreamId, code: u64, reliable_size: u64) -> Result<(), ResetAtError> {
        // draft-ietf-quic-reliable-stream-reset §3: only who has sent the parameter supports the frame.
        if !self.peer.reset_stream_at {
            return Err(ResetAtError::Unsupported);
        }
        let slot = self.sending(id).map_err(|_| ResetAtError::Unknown)?;
        let send = &mut self.slab[slot].send;
        if !send.is_open() {
            let stopped = send.tell_stopped();
            send.settle();
            self.release_if_over(slot);
            return Err(stopped.map_or(ResetAtError::Closed, ResetAtError::Stopped));
        }
        // draft-ietf-quic-reliable-stream-reset §5.2 MUST NOT: the reliable size is not increased.
        let limit = send.reliable_limit();
        if reliable_size > limit {
            return Err(ResetAtError::TooLarge { limit });
        }
        if reliable_size == 0 {
            return self.reset(id, code).map_err(|_| ResetAtError::Unknown);
        }
        self.abandon(slot, |send| send.reset_at(code, reliable_size));
        Ok(())
    }

    /// Ends the sending part without its data, or with the first of it, and lets others have the space.
    pub(super) fn abandon(&mut self, slot: Slot, end: impl FnOnce(&mut super::SendPart) -> bool) -> bool {
        let send = &mut self.slab[slot].send;
        let (held, unsent) = (send.held(), send.unsent());
        if !end(send) {
            return false;
        }
        let (held, unsent) = (held - send.held(), unsent - send.unsent());
        self.budget.leave(&mut self.slab, slot);
        if !self.slab[slot].send.is_blocked() {
            self.clear_pending(slot, stream::pending::BLOCKED);
        }
        self.set_reset_pending(slot);
        self.refresh(slot);
        self.release_space(slot, held, unsent);
        true
    }

    /// `bytes` left the send buffer: writers may get the space.
    #[inline]
    pub(super) fn release_space(&mut self, slot: Slot, bytes: u64, unsent: u64) {
        self.budget.released(self.slab[slot].send.held(), bytes, unsent);
        let events = &mut self.events;
        self.budget
            .wake_one(&mut self.slab, slot, |slab, slot| events.push(StreamEvent::Writable { id: slab[slot].id }));
        self.wake_writers();
    }

    #[inline]
    pub(super) fn wake_writers(&mut self) {
        let events = &mut self.events;
        self.budget.wake(&mut self.slab, |slab, slot| events.push(StreamEvent::Writable { id: slab[slot].id }));
    }

    /// Wants no more data of a stream: what has arrived is thrown away, and the peer is asked to stop.
    ///
    /// # Errors
    /// [`ReadError::Closed`] when the stream was stopped or read to its end before, [`ReadError::Unknown`].
    // RFC 9000 §3.5 SHOULD-1: who loses interest in a stream that still arrives asks the peer to stop with
    // STOP_SENDING
    pub fn stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), ReadError> {
        let slot = self.receiving(id)?;
        let freed = self.slab[slot].recv.stop(code, &mut self.holdings).ok_or(ReadError::Closed)?;
        self.clear_pending(slot, stream::pending::CREDIT);
        if self.slab[slot].recv.stop_to_send().is_some() {
            self.set_pending(slot, stream::pending::STOP);
        }
        self.return_credit(freed);
        self.release_if_over(slot);
        Ok(())
    }

    /// Ranks a stream's data against that of other streams; data that has not been sent obeys it at once.
    ///
    /// # Errors
    /// [`WriteError::Unknown`] when the stream has no sending part or has ended.
    pub fn set_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), WriteError> {
        let slot = self.sending(id)?;
        self.schedule.remove(&mut self.slab, slot);
        // RFC 9218 §4.1: urgencies are 0 to 7; a larger one ranks as the last.
        self.slab[slot].priority = Priority { urgency: priority.urgency.min(7), ..priority };
        self.refresh(slot);
        Ok(())
    }

    /// Returns whether a stream's data is worth repair symbols, where the connection makes some; data that has not been sent obeys at once.
    ///
    /// # Errors
    /// [`WriteError::Unknown`] when the stream has no sending part or has ended.
    pub fn set_protection(&mut self, id: StreamId, protection: Protection) -> Result<(), WriteError> {
        let slot = self.sending(id)?;
        self.slab[slot].unprotected = protection == Protection::Never;
        self.some_unprotected |= protection == Protection::Never;
        Ok(())
    }

    fn receiving(&mut self, id: StreamId) -> Result<Slot, ReadError> {
        self.slab.find(id).filter(|slot| self.slab[*slot].recv.exists()).ok_or(ReadError::Unknown)
    }

    /// Bytes of a stream that the peer has used credit for, with the final size once that is known; and its limit for them. `None`
    /// when the stream has no receiving part any more.
    pub fn received(&mut self, id: StreamId) -> Option<ReceivedBytes> {
        let slot = self.receiving(id).ok()?;
        let recv = &self.slab[slot].recv;
        Some(ReceivedBytes { highest: recv.highest(), limit: recv.window.limit() })
    }

    /// Bytes of a stream that were sent at least once: its final size, once it was reset. `None` when the stream has no sending part
    /// any more.
    pub fn sent(&mut self, id: StreamId) -> Option<u64> {
        let slot = self.sending(id).ok()?;
        Some(self.slab[slot].send.credit.used)
    }

    /// Returns whether this end accepts RESET_STREAM_AT, and whether the peer does (draft-ietf-quic-reliable-stream-reset §3).
    pub fn accept_reset_at(&self) -> (bool, bool) {
        (self.config.reset_stream_at, self.peer.reset_stream_at)
    }

    /// Passes the next chunks of a stream to `out` until they are `enough` bytes or more, or no more can be read, and returns the reason.
    /// Cheaper than repeated [`read`](Self::read).
    ///
    /// # Errors
    /// [`ReadError::Closed`] and [`ReadError::Unknown`].
    pub fn read_many(
        &mut self,
        id: StreamId,
        enough: usize,
        order: Order,
        mut out: impl FnMut(Chunk),
    ) -> Result<ReadStatus, ReadError> {
        let slot = self.receiving(id)?;
        let stream = &mut self.slab[slot];
        let mut bytes = 0;
        let status = loop {
            if bytes >= enough as u64 {
                break ReadStatus::More;
            }
            match stream.recv.read(usize::MAX, order == Order::Unordered, &mut self.holdings) {
                Reading::Data(offset, data) => {
                    bytes += data.len() as u64;
                    out(Chunk { offset, data });
                }
                Reading::End => break ReadStatus::End,
                Reading::Reset(code) => break ReadStatus::Reset(code),
                Reading::Blocked => break ReadStatus::Blocked,
                Reading::Closed => return Err(ReadError::Closed),
            }
        };
        self.figures.delivered_bytes += bytes;
        if bytes > 0 && stream.recv.window.consume(bytes) && stream.recv.wants_credit() {
            self.set_pending(slot, stream::pending::CREDIT);
        }
        self.return_credit(bytes);
        self.compact_if_wasteful();
        if matches!(status, ReadStatus::End | ReadStatus::Reset(_)) {
            self.release_if_over(slot);
        }
        Ok(status)
    }

    /// Takes what has arrived of all streams and was not read.
    pub fn take_unread(&mut self) -> Vec<(StreamId, Unread)> {
        let mut unread = Vec::new();
        for slot in self.slab.slots() {
            let stream = &self.slab[slot];
            let (id, order) = (stream.id, stream.recv.order());
            let mut parts = Vec::new();
            // A stream that was read to its end, or that nobody wants to read, has nothing.
            let Ok(status) = self.read_many(id, usize::MAX, order, |part| parts.push(part)) else { continue };
            if !parts.is_empty() || status != ReadStatus::Blocked {
                unread.push((id, Unread { parts, status }));
            }
        }
        unread
    }

    /// Next chunk of a stream, at most `max` bytes (and at least one). `Ok(None)` is the end: all data was read. It is returned once.
    ///
    /// # Errors
    /// [`ReadError::Blocked`] without data; the others are final.
    pub fn read(&mut self, id: StreamId, max: usize, order: Order) -> Result<Option<Chunk>, ReadError> {
        let slot = self.receiving(id)?;
        let stream = &mut self.slab[slot];
        match stream.recv.read(max.max(1), order == Order::Unordered, &mut self.holdings) {
            Reading::Data(offset, data) => {
                let bytes = data.len() as u64;
                self.figures.delivered_bytes += bytes;
                if stream.recv.window.consume(bytes) && stream.recv.wants_credit() {
                    self.set_pending(slot, stream::pending::CREDIT);
                }
                self.return_credit(bytes);
                self.compact_if_wasteful();
                Ok(Some(Chunk { offset, data }))
            }
            Reading::End => {
                self.release_if_over(slot);
                Ok(None)
            }
            Reading::Reset(code) => {
                self.release_if_over(slot);
                Err(ReadError::Reset(code))
            }
            Reading::Blocked => Err(ReadError::Blocked),
            Reading::Closed => Err(ReadError::Closed),
        }
    }
}
