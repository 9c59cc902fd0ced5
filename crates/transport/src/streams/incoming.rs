//! Processing of the peer's frames about streams. Every error closes the connection.

use bytes::Bytes;
use wire::{Dir, StreamId, frame_type};

use super::{Streams, events::StreamEvent, pending, recv::Received, slab::Slot, stream};
use crate::error::{Code, TransportError};

/// Part of a stream that a frame is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Send,
    Receive,
}

impl Streams {
    /// The stream a frame names, opened by it if need be. `None` when the stream has ended.
    #[inline]
    fn named(&mut self, id: StreamId, part: Part, frame: u64) -> Result<Option<Slot>, TransportError> {
        let ours = id.initiator() == self.side;
        // RFC 9000 §19.4 MUST-1, RFC 9000 §19.5 MUST-2, RFC 9000 §19.8 MUST-1, RFC 9000 §19.10 MUST-2,
        // RFC 9000 §19.13 MUST-1:
        if id.dir() == Dir::Uni && ours == (part == Part::Receive) {
            return Err(state_error(id, "has no such part").in_frame(frame));
        }
        if let Some(slot) = self.slab.find(id) {
            return Ok(Some(slot));
        }
        self.unknown(id, ours).map_err(|error| error.in_frame(frame))
    }

    /// A stream that is not there: over, or not yet opened.
    fn unknown(&mut self, id: StreamId, ours: bool) -> Result<Option<Slot>, TransportError> {
        let dir = id.dir();
        if ours {
            // RFC 9000 §19: a frame for a stream of ours that we have not opened.
            if id.index() >= self.local[dir as usize].next {
                // RFC 9000 §19.5 MUST-1: STOP_SENDING of a stream that we have not opened is STREAM_STATE_ERROR
                // RFC 9000 §19.8 MUST-1: STREAM of a stream that we have not opened or that only we send on is
                // STREAM_STATE_ERROR
                // RFC 9000 §19.10 MUST-1: MAX_STREAM_DATA of a stream that we have not opened is STREAM_STATE_ERROR
                return Err(state_error(id, "was not opened"));
            }
            return Ok(None);
        }
        let remote = &mut self.remote[dir as usize];
        // RFC 9000 §4.6 MUST-2, RFC 9000 §19.11 MUST-3: a stream beyond the limit that was announced.
        if id.index() >= remote.limit() {
            return Err(TransportError::new(
                Code::STREAM_LIMIT_ERROR,
                format!("{id:?}, the limit is {} streams", remote.limit()),
            ));
        }
        if id.index() < remote.opened {
            return Ok(None);
        }
        // RFC 9000 §3.2 MUST-1: opening a stream opens all of its kind with lower numbers.
        let first = std::mem::replace(&mut remote.opened, id.index() + 1);
        let mut slot = None;
        for index in first..=id.index() {
            slot = Some(self.create(StreamId::new(id.initiator(), dir, index)));
        }
        self.events.push(StreamEvent::Opened { dir });
        Ok(slot)
    }

    /// Credit of the connection that the peer has left.
    #[inline]
    fn credit_left(&self) -> u64 {
        self.window.limit().saturating_sub(self.received)
    }

    #[inline]
    fn account(&mut self, slot: Slot, received: Received) {
        self.received += received.used;
        if received.discarded > 0 {
            self.return_credit(received.discarded);
        }
        if self.slab[slot].recv.announce() {
            self.events.push(StreamEvent::Readable { id: self.slab[slot].id });
        }
    }

    /// Processes a STREAM frame. The data is kept without a copy, so it should be a slice of the receive buffer.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR, FLOW_CONTROL_ERROR, FINAL_SIZE_ERROR; INTERNAL_ERROR when the data is
    /// scattered over more holes than we are ready to remember.
    #[inline]
    pub fn on_stream(&mut self, id: StreamId, offset: u64, data: Bytes, fin: bool) -> Result<(), TransportError> {
        self.on_stream_run(id, offset, data.len() as u64, std::iter::once(data), fin)
    }

    /// STREAM frames that follow one another, as the packets of a batch bring them: `len` bytes from `offset` on, in
    /// `parts`, and with `fin` the end of the stream behind them. What is the same for all of them is done once.
    ///
    /// # Errors
    /// As [`on_stream`](Self::on_stream).
    #[inline]
    pub fn on_stream_run(
        &mut self,
        id: StreamId,
        offset: u64,
        len: u64,
        parts: impl Iterator<Item = Bytes>,
        fin: bool,
    ) -> Result<(), TransportError> {
        let slot = match self.named(id, Part::Receive, frame_type::STREAM) {
            Ok(Some(slot)) => slot,
            other => {
                self.figures.unwanted_bytes += len;
                return other.map(|_| ());
            }
        };
        let credit = self.credit_left();
        let recv = &mut self.slab[slot].recv;
        let (wanted, before) = (recv.wanted(offset, len), self.holdings.bytes);
        let received = recv.on_data(offset, len, parts, fin, credit, &mut self.holdings);
        let kept = self.holdings.bytes - before;
        if kept != len {
            // Of data that closes the connection nothing will be read.
            let unwanted = if received.is_ok() { len - wanted } else { len - kept };
            self.figures.unwanted_bytes += unwanted;
            self.figures.duplicate_bytes += len - kept - unwanted;
        }
        let received = received.map_err(|error| error.in_frame(frame_type::STREAM))?;
        let recv = &mut self.slab[slot].recv;
        let grew = recv.window.observe(&self.clock) && recv.wants_credit();
        self.account(slot, received);
        if grew {
            self.set_pending(slot, stream::pending::CREDIT);
        }
        if fin {
            self.on_size_known(slot);
        }
        Ok(())
    }

    /// RESET_STREAM.
    ///
    /// # Errors
    /// As [`on_stream`](Self::on_stream).
    pub fn on_reset_stream(&mut self, id: StreamId, code: u64, final_size: u64) -> Result<(), TransportError> {
        self.on_reset(id, code, final_size, None)
    }

    /// RESET_STREAM_AT: the application still gets the first `reliable_size` bytes.
    ///
    /// # Errors
    /// As [`on_stream`](Self::on_stream); PROTOCOL_VIOLATION when this end has not advertised the extension.
    pub fn on_reset_stream_at(
        &mut self,
        id: StreamId,
        code: u64,
        final_size: u64,
        reliable_size: u64,
    ) -> Result<(), TransportError> {
        // draft-ietf-quic-reliable-stream-reset §3: who has not advertised the parameter does not support the frame.
        if !self.config.reset_stream_at {
            let what = "RESET_STREAM_AT was not agreed on";
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, what).in_frame(frame_type::RESET_STREAM_AT));
        }
        self.on_reset(id, code, final_size, Some(reliable_size))
    }

    fn on_reset(
        &mut self,
        id: StreamId,
        code: u64,
        final_size: u64,
        reliable_size: Option<u64>,
    ) -> Result<(), TransportError> {
        let frame = if reliable_size.is_some() { frame_type::RESET_STREAM_AT } else { frame_type::RESET_STREAM };
        let Some(slot) = self.named(id, Part::Receive, frame)? else { return Ok(()) };
        let credit = self.credit_left();
        let recv = &mut self.slab[slot].recv;
        let received = recv
            .on_reset(code, final_size, reliable_size, credit, &mut self.holdings)
            .map_err(|error| error.in_frame(frame))?;
        self.account(slot, received);
        self.on_size_known(slot);
        self.compact_if_wasteful();
        Ok(())
    }

    /// RFC 9000 §13.3 SHOULD-1: with the final size known, neither MAX_STREAM_DATA nor STOP_SENDING is sent any more.
    fn on_size_known(&mut self, slot: Slot) {
        let obsolete = stream::pending::CREDIT | stream::pending::STOP;
        self.clear_pending(slot, obsolete);
        self.release_if_over(slot);
    }

    /// STOP_SENDING: the stream is reset, with the same code.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), TransportError> {
        let Some(slot) = self.named(id, Part::Send, frame_type::STOP_SENDING)? else { return Ok(()) };
        if self.abandon(slot, |send| send.stop(code)) {
            self.events.push(StreamEvent::Stopped { id, code });
        }
        Ok(())
    }

    /// MAX_DATA.
    pub fn on_max_data(&mut self, limit: u64) {
        if self.credit.raise(limit) {
            self.pending &= !pending::DATA_BLOCKED;
        }
    }

    /// MAX_STREAM_DATA.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_max_stream_data(&mut self, id: StreamId, limit: u64) -> Result<(), TransportError> {
        let Some(slot) = self.named(id, Part::Send, frame_type::MAX_STREAM_DATA)? else { return Ok(()) };
        if self.slab[slot].send.credit.raise(limit) {
            self.clear_pending(slot, stream::pending::BLOCKED);
            self.refresh(slot);
        }
        Ok(())
    }

    /// MAX_STREAMS.
    ///
    /// # Errors
    /// FRAME_ENCODING_ERROR for a limit that no stream ID could reach.
    pub fn on_max_streams(&mut self, dir: Dir, limit: u64) -> Result<(), TransportError> {
        // RFC 9000 §4.6 MUST-1: more than 2^60 streams cannot be numbered.
        if limit > StreamId::MAX_STREAMS {
            let frame = frame_type::MAX_STREAMS_BIDI + dir as u64;
            return Err(TransportError::new(Code::FRAME_ENCODING_ERROR, format!("{limit} streams")).in_frame(frame));
        }
        self.raise_streams(dir, limit);
        Ok(())
    }

    /// Lets a stream send that was held back.
    pub(super) fn release(&mut self, slot: Slot) {
        self.slab[slot].held_back = false;
        if self.slab[slot].pending != 0 {
            self.control.push_back(&mut self.slab, slot);
        }
        self.refresh(slot);
    }

    pub(super) fn raise_streams(&mut self, dir: Dir, limit: u64) {
        let (let_through, available) = self.local[dir as usize].raise(limit);
        for index in let_through {
            if let Some(slot) = self.slab.find(StreamId::new(self.side, dir, index)) {
                self.release(slot);
            }
        }
        if available {
            self.events.push(StreamEvent::StreamsAvailable { dir });
        }
        if !self.local[dir as usize].is_blocked() {
            self.pending &= !(pending::STREAMS_BLOCKED << dir as usize);
        }
    }

    /// DATA_BLOCKED: credit that was saved up for a later frame is given at once.
    pub fn on_data_blocked(&mut self, limit: u64) {
        if limit >= self.window.limit() && self.window.has_unannounced() {
            self.pending |= pending::MAX_DATA;
        }
    }

    /// STREAM_DATA_BLOCKED: as [`on_data_blocked`](Self::on_data_blocked), for a stream.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_stream_data_blocked(&mut self, id: StreamId, limit: u64) -> Result<(), TransportError> {
        let Some(slot) = self.named(id, Part::Receive, frame_type::STREAM_DATA_BLOCKED)? else { return Ok(()) };
        let recv = &self.slab[slot].recv;
        if limit >= recv.window.limit() && recv.window.has_unannounced() && recv.wants_credit() {
            self.set_pending(slot, stream::pending::CREDIT);
        }
        Ok(())
    }

    /// STREAMS_BLOCKED: as [`on_data_blocked`](Self::on_data_blocked), for the number of streams.
    pub fn on_streams_blocked(&mut self, dir: Dir, limit: u64) {
        let remote = &self.remote[dir as usize];
        if limit >= remote.limit() && remote.has_unannounced() {
            self.pending |= pending::MAX_STREAMS << dir as usize;
        }
    }
}

#[cold]
fn state_error(id: StreamId, what: &str) -> TransportError {
    TransportError::new(Code::STREAM_STATE_ERROR, format!("a frame for {id:?}, which {what}"))
}
