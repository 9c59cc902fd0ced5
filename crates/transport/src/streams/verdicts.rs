//! Fate of sent frames.

use wire::{Side, StreamId};

use super::{Streams, events::StreamEvent, pending, slab::Slot, stream};
use crate::sent::SentFrame;

impl Streams {
    /// The packet with this frame was acknowledged. Frames that are not of streams are ignored.
    #[inline]
    pub(crate) fn on_acked(&mut self, frame: &SentFrame) {
        match *frame {
            SentFrame::Stream { id, offset, len, fin } => self.on_data_acked(id, offset, offset + u64::from(len), fin),
            SentFrame::ResetStream(id) => {
                let Some(slot) = self.slab.find(id) else { return };
                if self.slab[slot].send.on_reset_acked() {
                    self.clear_pending(slot, stream::pending::RESET);
                    self.release_if_over(slot);
                }
            }
            SentFrame::ResetStreamAt { id, reliable_size } => {
                let Some(slot) = self.slab.find(id) else { return };
                let finished = self.slab[slot].send.on_reset_at_acked(reliable_size);
                if self.slab[slot].send.reset_to_send(id).is_none() {
                    self.clear_pending(slot, stream::pending::RESET);
                }
                if finished {
                    self.on_finished(slot);
                }
            }
            _ => {}
        }
    }

    fn on_finished(&mut self, slot: Slot) {
        self.events.push(StreamEvent::Finished { id: self.slab[slot].id });
        self.release_if_over(slot);
    }

    /// Data of a stream was acknowledged, from `start` up to `end`, with the end of the stream behind it if `fin`. It may
    /// have gone out in several packets.
    #[inline]
    pub fn on_data_acked(&mut self, id: StreamId, start: u64, end: u64, fin: bool) {
        let Some(slot) = self.slab.find(id) else { return };
        let (fresh, finished) = self.slab[slot].send.on_acked(start, end, fin);
        self.figures.acked_bytes += fresh;
        // An acknowledgement that comes after the loss was assumed takes the repair off the list.
        self.refresh(slot);
        if fresh > 0 {
            self.release_space(slot, fresh, 0);
        }
        if finished {
            self.on_finished(slot);
        }
    }

    /// The packet with this frame was lost. What still matters is sent again, with the values of the time it is sent. Frames
    /// that are not of streams are ignored.
    pub(crate) fn on_lost(&mut self, frame: &SentFrame) {
        // RFC 9000 §13.3 says for each frame until when it is repeated.
        match *frame {
            SentFrame::Stream { id, offset, len, fin } => {
                let Some(slot) = self.slab.find(id) else { return };
                self.slab[slot].send.on_lost(offset, len, fin);
                self.refresh(slot);
            }
            SentFrame::ResetStream(id) => {
                let Some(slot) = self.slab.find(id) else { return };
                self.set_reset_pending(slot);
            }
            SentFrame::ResetStreamAt { id, reliable_size } => {
                let Some(slot) = self.slab.find(id) else { return };
                // draft-ietf-quic-reliable-stream-reset §4 MUST: until it has arrived, or another has taken its place.
                if self.slab[slot].send.awaits_reset_at(reliable_size) {
                    self.set_reset_pending(slot);
                }
            }
            SentFrame::StopSending(id) => {
                let Some(slot) = self.slab.find(id) else { return };
                if self.slab[slot].recv.stop_to_send().is_some() {
                    self.set_pending(slot, stream::pending::STOP);
                }
            }
            SentFrame::MaxStreamData(id) => {
                let Some(slot) = self.slab.find(id) else { return };
                if self.slab[slot].recv.wants_credit() {
                    self.set_pending(slot, stream::pending::CREDIT);
                }
            }
            SentFrame::StreamDataBlocked(id) => {
                let Some(slot) = self.slab.find(id) else { return };
                if self.slab[slot].send.is_blocked() {
                    self.set_pending(slot, stream::pending::BLOCKED);
                }
            }
            SentFrame::MaxData => self.pending |= pending::MAX_DATA,
            SentFrame::MaxStreams(dir) => self.pending |= pending::MAX_STREAMS << dir as usize,
            SentFrame::DataBlocked(limit)
                if limit == self.credit.limit && self.credit.available() == 0 && self.schedule.has_new() =>
            {
                self.pending |= pending::DATA_BLOCKED;
            }
            SentFrame::StreamsBlocked(dir) if self.local[dir as usize].is_blocked() => {
                self.pending |= pending::STREAMS_BLOCKED << dir as usize;
            }
            _ => {}
        }
    }

    /// Processes the refusal of early data by the server: all of it is sent again, under the limits of the next
    /// [`set_peer_parameters`](Self::set_peer_parameters). The ledger has forgotten the packets.
    pub fn on_zero_rtt_rejected(&mut self) {
        debug_assert_eq!(self.side, Side::Client);
        self.credit.restart();
        self.budget.restart();
        self.pending = 0;
        self.peer = super::PeerLimits::default();
        for local in &mut self.local {
            local.restart();
        }
        for slot in self.slab.slots() {
            self.control.remove(&mut self.slab, slot);
            let stream = &mut self.slab[slot];
            stream.held_back = true;
            stream.send.restart();
            stream.pending = 0;
            if stream.send.reset_to_send(stream.id).is_some() {
                stream.pending |= stream::pending::RESET;
            }
            if stream.recv.stop_to_send().is_some() {
                stream.pending |= stream::pending::STOP;
            }
            self.schedule.remove(&mut self.slab, slot);
        }
    }
}
