//! Content of a packet: control frames first, because other streams may depend on them, then data.

use wire::{Dir, Frame, Writer};

use super::{Streams, pending, schedule::Kind, slab::Slot, stream};
use crate::sent::SentFrame;

/// Room below which no further STREAM frame is tried, in bytes.
const ROOM: usize = 16;

/// The data of a packet's last STREAM frame, where that was not copied into the packet: sealing reads it from the buffer of the
/// application, which saves going over it twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    slot: Slot,
    offset: u64,
    /// Bytes, the last ones of the packet.
    len: u16,
}

impl Streams {
    /// Returns whether any frame can be sent: control, lost data, or new data within the limits.
    #[inline]
    pub fn wants_to_send(&self) -> bool {
        self.pending != 0 || !self.control.is_empty() || self.schedule.has_repair() || self.wants_to_send_new()
    }

    /// Returns whether stream data waits only for permission to send packets.
    #[inline]
    pub fn wants_to_send_data(&self) -> bool {
        self.schedule.has_repair() || self.wants_to_send_new()
    }

    #[inline]
    fn wants_to_send_new(&self) -> bool {
        self.schedule.has_new() && self.credit.available() > 0
    }

    /// Fills what is left of a packet, and records each frame.
    ///
    /// The writer ends at the end of the packet's payload. A STREAM frame that extends to the end has no length, so nothing may follow it,
    /// not even padding: other frames are written before.
    #[inline]
    pub(crate) fn write_frames(&mut self, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) {
        self.write_frames_while(w, |_| true, record);
    }

    /// Like [`write_frames`](Self::write_frames), but may leave out the data at the end of the packet: then the packet has to be sealed
    /// with [`tail`](Self::tail) before any other call.
    #[inline]
    pub(crate) fn write_frames_but_tail(
        &mut self,
        w: &mut Writer<'_>,
        record: &mut impl FnMut(SentFrame),
    ) -> Option<Tail> {
        let mut tail = None;
        self.write_all_frames(w, |_| true, Some(&mut tail), record);
        tail
    }

    /// The bytes that were left out.
    #[inline]
    pub(crate) fn tail(&self, tail: Tail) -> &[u8] {
        self.slab[tail.slot].send.left_out(tail.offset, tail.len.into())
    }

    /// Returns whether the data that is sent next must not be protected by forward error correction.
    pub(crate) fn next_is_unprotected(&self) -> bool {
        let next = || self.schedule.pick(self.credit.available() > 0);
        self.some_unprotected && next().is_some_and(|(slot, _)| self.slab[slot].unprotected)
    }

    /// Like [`write_frames`](Self::write_frames), up to the first stream that is not admitted: the argument of `admits` is whether it may
    /// be protected.
    #[inline]
    pub(crate) fn write_frames_while(
        &mut self,
        w: &mut Writer<'_>,
        admits: impl Fn(bool) -> bool,
        record: &mut impl FnMut(SentFrame),
    ) {
        self.write_all_frames(w, admits, None, record);
    }

    #[inline]
    fn write_all_frames(
        &mut self,
        w: &mut Writer<'_>,
        admits: impl Fn(bool) -> bool,
        mut tail: Option<&mut Option<Tail>>,
        record: &mut impl FnMut(SentFrame),
    ) {
        if self.pending != 0 || !self.control.is_empty() {
            let before = w.position();
            let all = self.write_control(w, record);
            self.figures.control_bytes += (w.position() - before) as u64;
            if !all {
                return;
            }
        }
        // RFC 9000 §13.3 SHOULD-2: lost data goes before new data, unless priorities say otherwise
        while let Some((slot, kind)) = self.schedule.pick(self.credit.available() > 0) {
            if !admits(!self.slab[slot].unprotected)
                || !self.write_stream(slot, kind, w, tail.as_deref_mut(), record)
                || w.remaining() < ROOM
            {
                break;
            }
        }
        self.wake_writers();
    }

    #[inline]
    fn write_stream(
        &mut self,
        slot: Slot,
        kind: Kind,
        w: &mut Writer<'_>,
        tail: Option<&mut Option<Tail>>,
        record: &mut impl FnMut(SentFrame),
    ) -> bool {
        let stream = &mut self.slab[slot];
        let (id, repair) = (stream.id, kind == Kind::Repair);
        // RFC 9000 §2.2 MUST NOT-2: no stream data beyond the credit that the peer has given
        // RFC 9000 §4.1 MUST NOT-1: neither the limit of the stream nor that of the connection is exceeded
        // RFC 9000 §19.9 MUST NOT-1: the final sizes of all streams together stay below the connection's limit
        let credit = self.credit.available();
        let Some(written) = stream.send.write_frame(id, repair, credit, tail.is_some(), w) else { return false };
        if let Some(tail) = tail.filter(|_| written.left_out) {
            *tail = Some(Tail { slot, offset: written.offset, len: written.len });
        }
        record(SentFrame::Stream { id, offset: written.offset, len: written.len, fin: written.fin });
        let bytes = u64::from(written.len);
        self.figures.header_bytes += u64::from(written.header);
        if repair {
            self.figures.resent_bytes += bytes;
        } else {
            self.figures.sent_bytes += bytes;
            self.credit.used += bytes;
            self.budget.sent(bytes);
            self.schedule.sent(&mut self.slab, slot, u32::from(written.len));
            // In the middle of a long transfer no list changes.
            if self.slab[slot].send.goes_on() && self.credit.available() > 0 {
                return true;
            }
            if self.slab[slot].send.is_reset_at() {
                self.set_reset_pending(slot);
            }
        }
        self.refresh(slot);
        true
    }

    /// Writes the control frames that wait; false when not all of them fit.
    fn write_control(&mut self, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) -> bool {
        self.write_connection_control(w, record) && self.write_stream_control(w, record)
    }

    fn write_connection_control(&mut self, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) -> bool {
        while self.pending != 0 {
            if w.remaining() < 9 {
                return false;
            }
            let bit = self.pending & self.pending.wrapping_neg();
            self.pending &= !bit;
            let dir = if bit & (pending::MAX_STREAMS | pending::STREAMS_BLOCKED) != 0 { Dir::Bi } else { Dir::Uni };
            let (frame, sent) = match bit {
                pending::MAX_DATA => (Frame::MaxData(self.window.announce()), SentFrame::MaxData),
                pending::DATA_BLOCKED => {
                    let limit = self.credit.limit;
                    (Frame::DataBlocked(limit), SentFrame::DataBlocked(limit))
                }
                bit if bit < pending::STREAMS_BLOCKED => {
                    let limit = self.remote[dir as usize].announce();
                    (Frame::MaxStreams { dir, limit }, SentFrame::MaxStreams(dir))
                }
                _ => {
                    let limit = self.local[dir as usize].max;
                    (Frame::StreamsBlocked { dir, limit }, SentFrame::StreamsBlocked(dir))
                }
            };
            frame.encode(w);
            record(sent);
        }
        true
    }

    fn write_stream_control(&mut self, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) -> bool {
        while let Some(slot) = self.control.front() {
            let stream = &mut self.slab[slot];
            let id = stream.id;
            let bit = stream.pending & stream.pending.wrapping_neg();
            // The longest encoding of a type and three numbers, or four.
            if w.remaining() < if stream.send.is_reset_at() { 33 } else { 25 } {
                return false;
            }
            let frame = match bit {
                stream::pending::RESET => stream.send.reset_to_send(id),
                stream::pending::STOP => {
                    stream.recv.stop_to_send().map(|code| (Frame::StopSending { id, code }, SentFrame::StopSending(id)))
                }
                stream::pending::CREDIT => {
                    let limit = stream.recv.window.announce();
                    Some((Frame::MaxStreamData { id, limit }, SentFrame::MaxStreamData(id)))
                }
                _ => {
                    let limit = stream.send.credit.limit;
                    Some((Frame::StreamDataBlocked { id, limit }, SentFrame::StreamDataBlocked(id)))
                }
            };
            if let Some((frame, sent)) = frame {
                frame.encode(w);
                record(sent);
            }
            self.clear_pending(slot, bit);
        }
        true
    }
}
