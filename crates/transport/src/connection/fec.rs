//! Forward error correction in building and reading packets (docs/fec.md).

use ::fec::Scheme;
use bytes::Bytes;
use units::Instant;
use wire::{Frame, FrameError, Frames, RepairFrame, SymbolAck, Writer, frame_type};

use super::{
    Connection,
    packet::{OpenPacket, Protection},
    packets::{Packets, SendContext},
    receive::PacketSeen,
    sources::{PacketContext, Sources},
    spaces::SpaceId,
};
use crate::{
    error::{Code, TransportError},
    fec::{Content, Fec, Receiver, Recovered, SymbolRoom, Tolerance, View, violation},
    path::Path,
    recovery::{self, AckOutcome},
    sent::{Ledger, SentFrame, Verdict},
    tls::Level,
};

/// A packet with a repair symbol gets the size of its neighbours when no more than this is missing, so that all can leave in one
/// batch.
const FILL_UP: usize = 64;

/// Reading.
impl Connection {
    /// The frames of a symbol have been read: it helps to rebuild others.
    pub(super) fn on_source_symbol(
        &mut self,
        now: Instant,
        seen: &PacketSeen<'_>,
        id: u64,
        content: &[u8],
    ) -> Result<(), TransportError> {
        if content.is_empty() {
            return Err(violation("a symbol without frames", frame_type::SOURCE_SYMBOL));
        }
        self.packets.sources.fec.receiver()?.on_source(now, id, content)?;
        self.deliver_recovered(now, seen)
    }

    /// A REPAIR frame.
    pub(super) fn on_repair(
        &mut self,
        now: Instant,
        seen: &PacketSeen<'_>,
        repair: &RepairFrame<'_>,
    ) -> Result<(), TransportError> {
        self.packets.sources.fec.receiver()?.on_repair(now, seen.pn, repair)?;
        self.deliver_recovered(now, seen)
    }

    /// Frames of packets that were lost and rebuilt are obeyed at once. The packets themselves are not acknowledged: the network
    /// has lost them.
    // RFC 9265 §4: recovery does not hide the loss.
    fn deliver_recovered(&mut self, now: Instant, seen: &PacketSeen<'_>) -> Result<(), TransportError> {
        let mut any = false;
        while let Some(Recovered { id, content, delay }) = self.packets.sources.fec.receiver()?.next_recovered(now) {
            let content = Bytes::copy_from_slice(content);
            self.observation.tell(now, |observer, at| observer.symbol_recovered(at, id, delay));
            any = true;
            self.packets.sources.streams.next_buffer(content.len(), content.len());
            self.packets.sources.datagrams.next_buffer(content.len(), content.len());
            self.packets.sources.datagrams.entitle();
            let mut frames = Frames::new(&content);
            loop {
                let start = frames.position();
                let Some(frame) = frames.next() else { break };
                let frame = check_recovered(frame)?;
                let size = frames.position() - start;
                let bytes = &mut self.stats.stream_bytes_received;
                if !self.packets.sources.deliver_recovered(&frame, &content, size, bytes)? {
                    self.handle_control_frame(now, seen, frame)?;
                }
            }
        }
        if any && let Some(space) = self.packets.spaces.get_mut(SpaceId::DATA) {
            // The sender is to hear of it before it sends a copy.
            space.acks.on_immediate();
        }
        Ok(())
    }

    /// A SYMBOL_ACK frame: packets that were lost and need not be sent again.
    pub(super) fn on_symbol_ack(&mut self, now: Instant, ack: &SymbolAck<'_>) -> Result<(), TransportError> {
        for (id, pn) in self.packets.sources.fec.recovered_packets(ack)? {
            let Some((mut carriers, ledger, paths)) = self.carriers(SpaceId::DATA, Some(now)) else { return Ok(()) };
            let outcome = recovery::on_recovered(ledger, paths, SpaceId::DATA, pn, now, &mut carriers);
            carriers.settle();
            self.packets.sources.fec.on_packet_recovered(id, pn, outcome.is_some());
            if let Some(outcome) = outcome {
                self.observation.tell(now, |observer, at| observer.packet_recovered(at, pn));
                self.on_outcome(now, &outcome);
            }
        }
        Ok(())
    }
}

/// Writing, and processing of rebuilt symbols.
impl Sources {
    /// Hands up a frame of `size` bytes in the rebuilt `content` that carries data, and counts `bytes` of streams. `false` when it
    /// carries none.
    fn deliver_recovered(
        &mut self,
        frame: &Frame<'_>,
        content: &Bytes,
        size: usize,
        bytes: &mut u64,
    ) -> Result<bool, TransportError> {
        match frame {
            Frame::Stream(stream) => {
                let len = stream.data.len() as u64;
                *bytes += len;
                let part = std::iter::once(content.slice_ref(stream.data));
                self.streams.on_stream_run(stream.id, stream.offset, len, part, stream.fin)?;
            }
            Frame::Datagram { data } if self.datagrams.admits(data.len(), size) => {
                self.datagrams.on_datagram(content.slice_ref(data), size)?;
            }
            Frame::Datagram { .. } => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Room for a symbol in the packet that is being built, when what follows in it is to be one.
    #[inline]
    pub(super) fn symbol_room(&mut self, capacity: usize, remaining: usize, pn_len: usize) -> Option<SymbolRoom> {
        let sender = self.fec.sender.as_mut().filter(|sender| sender.is_on())?;
        if !self.handshake.is_confirmed() && !sender.covers_ends_only() {
            return None;
        }
        // Datagrams are not cut, nor what may be padded because an Initial packet travels with it: a frame without a length has to
        // end with its packet.
        let whole = self.datagrams.wants_to_send() || self.handshake.crypto(Level::Initial).is_some();
        let unsent = Some(self.streams.unsent_bytes()).filter(|bytes| *bytes > 0 && !whole);
        sender.room(unsent, capacity, remaining, pn_len)
    }

    /// Returns whether the data that leaves next is worth repair.
    pub(super) fn protects_next(&mut self, now: Instant) -> bool {
        let Some(sender) = self.fec.sender.as_ref().filter(|sender| sender.is_on()) else { return false };
        let tolerance = self
            .datagrams
            .next_tolerance(now)
            .unwrap_or_else(|| if self.streams.next_is_unprotected() { Tolerance::ALL } else { Tolerance::NONE });
        sender.protects(tolerance)
    }

    /// Writes datagrams and stream data of a packet without a symbol, which need no protection.
    pub(super) fn write_unprotected(&mut self, packet: &mut PacketContext<'_>, w: &mut Writer<'_>) {
        let PacketContext { now, ledger, .. } = packet;
        let protects = |tolerance| self.fec.sender.as_ref().is_some_and(|sender| sender.protects(tolerance));
        let protected = protects(Tolerance::NONE);
        if self.datagrams.wants_to_send() {
            self.datagrams.write_while(*now, w, |tolerance| !protects(tolerance), &mut |f| ledger.record(f));
        }
        if self.streams.wants_to_send() {
            self.streams.write_frames_while(w, |protectable| !(protectable && protected), &mut |f| ledger.record(f));
        }
    }

    /// Datagrams and stream data of a packet, as a source symbol; where it starts, when there is any.
    pub(super) fn write_symbol(
        &mut self,
        packet: &mut PacketContext<'_>,
        room: SymbolRoom,
        w: &mut Writer<'_>,
    ) -> Option<usize> {
        let PacketContext { now, ledger, stats, .. } = packet;
        let start = w.position();
        w.reserve(room.padding).fill(0);
        Frame::SourceSymbol { id: room.id }.encode(w);
        let content = w.position();
        let mut inner = Writer::new(w.reserve(room.bytes));
        let mut ends = false;
        let mut carried = Content::EMPTY;
        if self.datagrams.wants_to_send() {
            carried = self.datagrams.write_while(*now, &mut inner, |_| true, &mut |f| ledger.record(f));
        }
        if self.streams.wants_to_send() {
            let before = inner.position();
            self.streams.write_frames(&mut inner, &mut |f| {
                ends |= matches!(f, SentFrame::Stream { fin: true, .. });
                ledger.record(f);
            });
            if inner.position() > before {
                carried = carried.and(Content::STREAMS);
            }
        }
        let len = inner.position();
        if len == 0 {
            w.rewind(start);
            return None;
        }
        ledger.record(SentFrame::Symbol(room.id));
        w.rewind(content + len);
        if let Some(sender) = &mut self.fec.sender {
            sender.begin(carried);
            if ends {
                sender.on_message_end();
            }
        }
        let padding = if len == room.bytes { room.padding } else { 0 };
        stats.fec_header_bytes_sent += (content - start - room.padding + padding) as u64;
        if len == room.bytes {
            return Some(content);
        }
        // A packet that is not full need not be as long as others.
        w.written_mut().copy_within(start + room.padding.., start);
        w.rewind(content + len - room.padding);
        Some(content - room.padding)
    }

    /// Writes a report of recovered symbols beside an acknowledgement.
    #[inline]
    pub(super) fn write_symbol_ack(&mut self, ledger: &mut Ledger, w: &mut Writer<'_>) {
        let Some(receiver) = self.fec.receiver.as_mut().filter(|receiver| receiver.has_report()) else { return };
        if let Some(largest) = receiver.write_report(w) {
            ledger.record(SentFrame::SymbolAck { largest });
        }
    }
}

impl Packets {
    /// A datagram with a repair symbol; its size, 0 when none may leave or none is worth it.
    pub(super) fn build_repair(&mut self, cx: &mut SendContext<'_>, out: &mut [u8], allowance: u64) -> usize {
        let id = SpaceId::DATA;
        let Some(space) = self.spaces.get(id) else { return 0 };
        let probe = space.probes > 0 && self.sources.fec.sender.as_ref().is_some_and(|sender| sender.has_probe());
        if !probe && allowance < out.len() as u64 {
            return 0;
        }
        let Some((mut w, packet)) = self.begin_packet((id, Protection::Space), cx.on_active(), out, 0, 0) else {
            return 0;
        };
        if !self.sources.fec.write_repair(cx.now, &mut w) {
            return 0;
        }
        if probe && let Some(space) = self.spaces.get_mut(id) {
            space.probes -= 1;
        }
        let packet = OpenPacket { probe, ..packet.finish(&w) };
        let size = self.close_packet(cx, &packet, out);
        if let Some(sender) = &mut self.sources.fec.sender {
            sender.figures.repair_bytes += size as u64;
        }
        size
    }

    /// Called when no data is left to send. Returns whether repair symbols are due for the end of the sent data.
    pub(super) fn flush_symbols(&mut self, now: Instant) -> bool {
        if self.has_data() {
            return false;
        }
        self.sources.fec.sender.as_mut().is_some_and(|sender| sender.flush(now))
    }
}

impl Fec {
    /// Writes a repair symbol that fits, and fills the packet up where little is missing. `false` when none is worth it.
    fn write_repair(&mut self, now: Instant, w: &mut Writer<'_>) -> bool {
        let left = w.remaining();
        let Some(sender) = &mut self.sender else { return false };
        let room = |first| left.saturating_sub(RepairFrame::header_len(first));
        let Some((repair, data)) = sender.next_repair(now, room) else { return false };
        let frame =
            RepairFrame { first: repair.first, count: repair.count, stride: repair.stride, row: repair.row, data };
        let frame = Frame::Repair(frame);
        let spare = left - frame.encoded_len();
        if spare <= FILL_UP {
            w.reserve(spare).fill(0);
        }
        frame.encode(w);
        true
    }

    /// Acknowledgements and losses on the path in use may change what is worth protecting. Returns the codes before and after, when
    /// they differ.
    pub(super) fn review(
        &mut self,
        now: Instant,
        path: &mut Path,
        outcome: &AckOutcome,
    ) -> Option<(Option<Scheme>, Option<Scheme>)> {
        let sender = self.sender.as_mut()?;
        let rtt = path.recovery.rtt();
        let min_rtt = rtt.min()?;
        let smoothed_rtt = rtt.smoothed();
        let marked = matches!(outcome.ecn, recovery::EcnFeedback::Valid { newly_ce: 1.. });
        let view = View { smoothed_rtt, min_rtt, acked: outcome.acked_packets, lost: outcome.lost_packets, marked };
        let before = sender.code();
        sender.review(now, &view);
        let after = sender.code();
        let patience = if sender.is_on() { (sender.patience(), sender.patience_time()) } else { Default::default() };
        path.recovery.set_patience(patience.0, patience.1);
        (before != after).then_some((before, after))
    }

    /// The receiver of symbols, when forward error correction was agreed on.
    fn receiver(&mut self) -> Result<&mut Receiver, TransportError> {
        // RFC 9000 §12.4 MUST-4: a type that was not negotiated is as good as unknown.
        let unknown = || TransportError::new(Code::FRAME_ENCODING_ERROR, "the frame type is unknown");
        self.receiver.as_deref_mut().ok_or_else(unknown)
    }

    /// The rest of packet `pn` is symbol `id`: whether its frames are known already.
    pub(super) fn open_source_symbol(&mut self, pn: u64, id: u64) -> Result<bool, TransportError> {
        self.receiver()?.is_known(id, pn)
    }

    /// The symbols that a SYMBOL_ACK frame names, and the packets that they were lost with, in the order in which they left.
    fn recovered_packets(&mut self, ack: &SymbolAck<'_>) -> Result<Vec<(u64, u64)>, TransportError> {
        self.receiver()?;
        let Some(sender) = &self.sender else {
            return Err(violation("symbols recovered of which none was sent", frame_type::SYMBOL_ACK));
        };
        let mut recovered = Vec::new();
        for range in ack.ranges() {
            sender
                .on_recovered(range, |id, pn| recovered.push((id, pn)))
                .map_err(|()| violation("symbols recovered that were never sent", frame_type::SYMBOL_ACK))?;
        }
        // The largest ranges came first; packets are judged in the order in which they left.
        recovered.reverse();
        recovered.sort_unstable_by_key(|(_, pn)| *pn);
        Ok(recovered)
    }

    /// Packet `pn` with symbol `id` was rebuilt: `in_time`, if it does not count as arrived or lost yet.
    fn on_packet_recovered(&mut self, id: u64, pn: u64, in_time: bool) {
        let Some(sender) = &mut self.sender else { return };
        sender.on_verdict(Verdict::Recovered, id);
        if in_time {
            sender.figures.recovered += 1;
            sender.on_packet_lost(pn);
        } else {
            sender.figures.recovered_late += 1;
        }
    }
}

/// A frame of a symbol that was rebuilt.
fn check_recovered<'f>(frame: Result<Frame<'f>, FrameError>) -> Result<Frame<'f>, TransportError> {
    let frame = frame.map_err(|error| {
        TransportError::new(Code::FRAME_ENCODING_ERROR, "a frame in a recovered symbol cannot be read")
            .in_frame(error.frame_type)
    })?;
    if !frame.is_permitted_in_symbol() {
        return Err(violation("the frame is not permitted in a symbol", frame.ty()));
    }
    Ok(frame)
}
