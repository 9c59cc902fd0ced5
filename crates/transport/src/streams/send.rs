//! Sending part of a stream (RFC 9000 §3.1): next data to send, data to retransmit, and the end.

use wire::{Frame, StreamFrame, StreamId, Writer};

use super::{buffer::SendBuffer, flow::Credit, ranges::RangeSet};
use crate::sent::SentFrame;

/// A STREAM frame does not start in less room than this for its data, unless less is enough: fragments cost both sides
/// more than the bytes they fill.
const WORTH_A_FRAME: u64 = 32;

/// States of RFC 9000 §3.1, as far as they differ here. "Ready", "Send" and "Data Sent" are `Open` and `ResetAt`: which of them it
/// is follows from the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream has no sending part.
    Absent,
    Open,
    /// Only data below the reliable size is delivered (draft-ietf-quic-reliable-stream-reset §5). The buffer ends there, or at the last
    /// acknowledged byte if that is higher. The RESET_STREAM_AT frame is sent after that data: the final size is then the credit that the
    /// stream has used, and does not change.
    ResetAt {
        code: u64,
        reliable: u64,
        /// The frame with this reliable size has arrived.
        acked: bool,
    },
    /// "Reset Sent", or about to be. The frame's content never changes (RFC 9000 §13.3 MUST NOT-1).
    Reset {
        code: u64,
        final_size: u64,
    },
    /// "Data Recvd" or "Reset Recvd".
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// The application may write more.
    No,
    /// Waits to be sent, or to be sent again.
    Due,
    Sent,
    Acked,
}

/// Less than this is copied into the packet, in bytes: sealing two pieces costs more than that.
const WORTH_LEAVING_OUT: usize = 512;

/// Frame that [`SendPart::write_frame`] put into the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) offset: u64,
    pub(super) len: u16,
    /// Bytes of the frame before its data.
    pub(super) header: u8,
    pub(super) fin: bool,
    /// The data was left out: see [`Tail`](super::outgoing::Tail).
    pub(super) left_out: bool,
}

/// The sending part of a stream.
#[derive(Debug)]
pub(super) struct SendPart {
    phase: Phase,
    fin: Fin,
    buffer: SendBuffer,
    /// Sent and neither acknowledged nor in flight.
    lost: RangeSet,
    /// The peer's limit, and how far new data has gone.
    pub(super) credit: Credit,
    /// Bytes written and not acknowledged.
    held: u64,
    /// The peer asked to stop, with this code.
    stopped: Option<u64>,
    /// Set when the application knows that it cannot write any more: it ended the stream, or learned that the peer stopped it.
    settled: bool,
}

impl SendPart {
    pub(super) fn absent() -> Self {
        Self { phase: Phase::Absent, ..Self::open(0) }
    }

    pub(super) fn open(limit: u64) -> Self {
        Self {
            phase: Phase::Open,
            fin: Fin::No,
            buffer: SendBuffer::default(),
            lost: RangeSet::default(),
            credit: Credit::new(limit),
            held: 0,
            stopped: None,
            settled: false,
        }
    }

    /// Returns whether the stream has a sending part at all.
    pub(super) fn exists(&self) -> bool {
        self.phase != Phase::Absent
    }

    /// Returns whether no state of this part is needed any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Absent => true,
            Phase::Over => self.settled,
            Phase::Open | Phase::ResetAt { .. } | Phase::Reset { .. } => false,
        }
    }

    /// Returns whether any data of the stream was sent.
    pub(super) fn has_sent(&self) -> bool {
        self.credit.used > 0 || matches!(self.fin, Fin::Sent | Fin::Acked) || self.phase == Phase::Over
    }

    /// Returns whether data can be written.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        // RFC 9000 §4.5 MUST NOT-1: nothing is sent at or behind the end that was announced
        self.phase == Phase::Open && self.fin == Fin::No
    }

    /// Returns whether data may still have to be sent.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::ResetAt { .. })
    }

    /// Returns whether the stream is being reset behind a reliable size.
    pub(super) fn is_reset_at(&self) -> bool {
        matches!(self.phase, Phase::ResetAt { .. })
    }

    /// The largest reliable size that a reset may have.
    pub(super) fn reliable_limit(&self) -> u64 {
        match self.phase {
            Phase::Open => self.buffer.end(),
            Phase::ResetAt { reliable, .. } => reliable,
            Phase::Absent | Phase::Reset { .. } | Phase::Over => 0,
        }
    }

    /// Code of the peer's STOP_SENDING. The call counts as telling the application.
    pub(super) fn tell_stopped(&mut self) -> Option<u64> {
        self.settled |= self.stopped.is_some();
        self.stopped
    }

    /// Bytes written and not acknowledged.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Bytes written and never sent.
    #[inline]
    pub(super) fn unsent(&self) -> u64 {
        match self.phase {
            Phase::Open => self.buffer.end() - self.credit.used,
            Phase::ResetAt { .. } => self.buffer.end().saturating_sub(self.credit.used),
            Phase::Absent | Phase::Reset { .. } | Phase::Over => 0,
        }
    }

    /// Returns whether there is data to send that needs no credit of the connection: lost data, or the end alone.
    #[inline]
    pub(super) fn has_repair(&self) -> bool {
        self.is_open() && (!self.lost.is_empty() || self.fin == Fin::Due && self.credit.used == self.buffer.end())
    }

    /// Returns whether there is data never sent that the stream's own limit allows.
    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.unsent() > 0 && self.credit.available() > 0
    }

    /// Returns whether only new data is to be sent, without retransmissions before it.
    #[inline]
    pub(super) fn goes_on(&self) -> bool {
        self.has_new() && self.lost.is_empty()
    }

    /// Returns whether to send a STREAM_DATA_BLOCKED frame for the stream's limit.
    #[inline]
    pub(super) fn report_blocked(&mut self) -> bool {
        self.unsent() > 0 && self.credit.report_blocked()
    }

    /// Returns whether data waits behind the stream's limit.
    pub(super) fn is_blocked(&self) -> bool {
        self.unsent() > 0 && self.credit.available() == 0
    }

    pub(super) fn write(&mut self, data: bytes::Bytes) {
        self.held += data.len() as u64;
        self.buffer.push(data);
    }

    /// No more data will be written.
    pub(super) fn finish(&mut self) {
        self.fin = Fin::Due;
        self.settled = true;
    }

    /// Ends the stream without its data; false when it has ended or reset already. The data is gone, sent or not.
    pub(super) fn reset(&mut self, code: u64) -> bool {
        let code = match self.phase {
            Phase::Open => code,
            // draft-ietf-quic-reliable-stream-reset §5.2 MUST NOT: neither the code nor the final size changes.
            Phase::ResetAt { code, .. } => code,
            Phase::Absent | Phase::Reset { .. } | Phase::Over => return false,
        };
        // RFC 9000 §4.5: the final size is the credit the stream consumed, so what was never sent does not count.
        self.phase = Phase::Reset { code, final_size: self.credit.used };
        self.held = 0;
        self.buffer.clear();
        self.lost.clear();
        true
    }

    /// Ends the stream with the data below `reliable`, which is within [`reliable_limit`](Self::reliable_limit); returns false if that
    /// changes nothing. Other data is lost, sent or not.
    pub(super) fn reset_at(&mut self, code: u64, reliable: u64) -> bool {
        let code = match self.phase {
            Phase::Open => code,
            // draft-ietf-quic-reliable-stream-reset §5.2 MUST NOT: the code does not change, and the reliable size only falls.
            Phase::ResetAt { code, reliable: before, .. } if reliable < before => code,
            _ => return false,
        };
        self.phase = Phase::ResetAt { code, reliable, acked: false };
        // The frame does what the end of the stream would have done.
        self.fin = Fin::No;
        self.settled = true;
        self.held -= self.buffer.truncate(reliable);
        self.lost.remove(self.buffer.end(), u64::MAX);
        true
    }

    /// Ends the stream without the data that a reset was to leave.
    pub(super) fn reset_at_once(&mut self) -> bool {
        self.is_reset_at() && self.reset(0)
    }

    /// The application knows that the stream is at its end.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// The peer does not want the data. True when the stream was open and is reset by this.
    pub(super) fn stop(&mut self, code: u64) -> bool {
        // RFC 9000 §3.5 MUST-1, SHOULD-2, SHOULD-3: STOP_SENDING is answered with RESET_STREAM, whose code is copied.
        // draft-ietf-quic-reliable-stream-reset §5.4 SHOULD: also after RESET_STREAM_AT, whose code stays.
        let reset = self.reset(code);
        if reset {
            self.stopped = Some(code);
        }
        reset
    }

    /// The RESET_STREAM or RESET_STREAM_AT frame that has to arrive, and its record. None while data has to be sent before.
    pub(super) fn reset_to_send(&self, id: StreamId) -> Option<(Frame<'static>, SentFrame)> {
        match self.phase {
            Phase::Reset { code, final_size } => {
                Some((Frame::ResetStream { id, code, final_size }, SentFrame::ResetStream(id)))
            }
            // draft-ietf-quic-reliable-stream-reset §4 MUST NOT: the final size is within the peer's limits, because as much
            // was sent.
            Phase::ResetAt { code, reliable, acked: false } if self.credit.used >= reliable => {
                let frame = Frame::ResetStreamAt { id, code, final_size: self.credit.used, reliable_size: reliable };
                Some((frame, SentFrame::ResetStreamAt { id, reliable_size: reliable }))
            }
            _ => None,
        }
    }

    /// Returns whether the RESET_STREAM_AT frame with this reliable size has to arrive still.
    pub(super) fn awaits_reset_at(&self, size: u64) -> bool {
        // draft-ietf-quic-reliable-stream-reset §5.2 MUST: what is repeated is the frame with the smallest reliable size.
        matches!(self.phase, Phase::ResetAt { reliable, acked: false, .. } if reliable == size)
    }

    /// Writes a STREAM frame: lost data or a bare end when `repair`, otherwise at most `credit` bytes of new data.
    /// `None` when it does not fit, or not worthwhile.
    #[inline]
    pub(super) fn write_frame(
        &mut self,
        id: StreamId,
        repair: bool,
        credit: u64,
        may_leave_out: bool,
        w: &mut Writer<'_>,
    ) -> Option<Written> {
        let (offset, available) = match self.lost.first() {
            Some((start, end)) if repair => (start, end - start),
            _ if repair => (self.credit.used, 0),
            // RFC 9000 §19.10 MUST NOT-1: what is sent on a stream stays below the largest limit that was heard
            _ => (self.credit.used, self.unsent().min(self.credit.available()).min(credit)),
        };
        let available = available.min(u64::from(u16::MAX));
        let room = w.remaining().checked_sub(StreamFrame::header_len(id, offset, None))?;
        // RFC 9000 §19.8: without a length the frame extends to the end of the packet, which it does when it fills it.
        let (len, length_field) = if available >= room as u64 {
            (room, None)
        } else {
            let available = available as usize;
            let len = available.min(room - wire::varint::len(available as u64).min(room));
            (len, Some(len))
        };
        if (len as u64) < available.min(WORTH_A_FRAME) {
            return None;
        }
        let fin = self.fin == Fin::Due && offset + len as u64 == self.buffer.end();
        let before = w.position();
        StreamFrame::encode_header(w, id, offset, fin, length_field);
        let header = (w.position() - before) as u8;
        // RFC 9000 §2.2 MUST NOT-1: the byte at an offset is the same each time that it is sent
        let left_out = may_leave_out
            && length_field.is_none()
            && len >= WORTH_LEAVING_OUT
            && self.buffer.piece(offset, len).is_some();
        if left_out {
            w.skip(len);
        } else {
            self.buffer.copy_to(offset, len, w);
        }
        if repair {
            self.lost.advance_first(len as u64);
        } else {
            self.credit.used += len as u64;
        }
        if fin {
            self.fin = Fin::Sent;
        }
        Some(Written { offset, len: len as u16, header, fin, left_out })
    }

    /// Data that [`write_frame`](Self::write_frame) has left out.
    #[inline]
    pub(super) fn left_out(&self, offset: u64, len: usize) -> &[u8] {
        self.buffer.piece(offset, len).expect("nothing was acknowledged since it was left out")
    }

    /// Takes an acknowledgement. Returns the bytes that had none before, and whether the stream is finished by it.
    #[inline]
    pub(super) fn on_acked(&mut self, start: u64, end: u64, fin: bool) -> (u64, bool) {
        if !self.is_open() {
            return (0, false);
        }
        // Behind the buffer's end is what a reset has left out.
        let end = end.min(self.buffer.end());
        let fresh = self.buffer.ack(start, end);
        self.held -= fresh;
        if !self.lost.is_empty() {
            self.lost.remove(start, end);
        }
        if fin {
            self.fin = Fin::Acked;
        }
        (fresh, self.end_if_acked())
    }

    /// Ends the part when the peer has all of its data, and knows the end; true when that is so.
    #[inline]
    fn end_if_acked(&mut self) -> bool {
        let end_acked = match self.phase {
            // draft-ietf-quic-reliable-stream-reset §5.3: "Data Recvd" takes both the data and the frame.
            Phase::ResetAt { acked, .. } => acked,
            _ => self.fin == Fin::Acked,
        };
        let finished = end_acked && self.buffer.is_all_acked();
        if finished {
            self.phase = Phase::Over;
            self.buffer.clear();
        }
        finished
    }

    /// The RESET_STREAM_AT frame with this reliable size has arrived. True when the part has ended by that.
    pub(super) fn on_reset_at_acked(&mut self, size: u64) -> bool {
        if !self.awaits_reset_at(size) {
            return false;
        }
        if let Phase::ResetAt { acked, .. } = &mut self.phase {
            *acked = true;
        }
        self.end_if_acked()
    }

    /// Processes a loss: unacknowledged data is sent again, before new data.
    pub(super) fn on_lost(&mut self, offset: u64, len: u16, fin: bool) {
        // RFC 9000 §3.3 MUST NOT-1, MUST NOT-2: after RESET_STREAM no STREAM frame is sent any more.
        if !self.is_open() {
            return;
        }
        // draft-ietf-quic-reliable-stream-reset §5 MUST, SHOULD NOT: below the reliable size it goes out again, behind it not.
        let sent = self.credit.used.min(self.buffer.end());
        let (mut start, end) = (offset, (offset + u64::from(len)).min(sent));
        while let Some((from, to)) = self.buffer.first_unacked(start, end) {
            self.lost.insert(from, to);
            start = to;
        }
        if fin && self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
    }

    /// The RESET_STREAM frame has arrived. True when it was still awaited.
    pub(super) fn on_reset_acked(&mut self) -> bool {
        let awaited = matches!(self.phase, Phase::Reset { .. });
        if awaited {
            self.phase = Phase::Over;
        }
        awaited
    }

    /// Resets the part: the peer has received none of the sent data, and its limits are unknown again.
    pub(super) fn restart(&mut self) {
        self.credit.restart();
        self.lost.clear();
        if self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
        if let Phase::Reset { final_size, .. } = &mut self.phase {
            *final_size = 0;
        }
    }

    pub(super) fn heap(&self) -> usize {
        self.buffer.heap() + self.lost.heap()
    }
}
