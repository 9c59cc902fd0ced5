//! Dispatch of received frames to their owners.

use std::ops::Range;

use units::Instant;
use wire::{Frame, FrameError, FrameErrorKind, Frames, PacketKind, StreamFrame, StreamId};

use super::{Connection, receive::PacketSeen};
use crate::{
    error::{Code, TransportError},
    fec,
};

/// ACK frames of a packet that are processed. One suffices; each costs more than its few bytes, so further ones are ignored.
const MOST_ACKS: u32 = 4;

/// Payload that is handed up once the whole batch has been opened, as ranges of its buffer.
pub(super) enum Deferred {
    Stream {
        id: StreamId,
        offset: u64,
        range: Range<usize>,
        fin: bool,
    },
    /// `frame_size`: bytes of the frame, with its type and, where it has one, its length.
    Datagram {
        range: Range<usize>,
        frame_size: usize,
    },
}

impl Deferred {
    /// Range of the payload.
    #[inline]
    pub(super) fn range(&self) -> &Range<usize> {
        match self {
            Self::Stream { range, .. } | Self::Datagram { range, .. } => range,
        }
    }
}

/// A frame that a packet of this kind may carry.
#[inline]
fn checked<'f>(frame: Result<Frame<'f>, FrameError>, kind: PacketKind) -> Result<Frame<'f>, TransportError> {
    let frame = frame.map_err(|error| {
        // RFC 9000 §12.4 MUST-4: an unknown type is a FRAME_ENCODING_ERROR as well.
        let what = match error.kind {
            FrameErrorKind::Malformed(what) => what,
            FrameErrorKind::Truncated => "the frame is cut off",
            FrameErrorKind::Unknown => "the frame type is unknown",
        };
        TransportError::new(Code::FRAME_ENCODING_ERROR, what).in_frame(error.frame_type)
    })?;
    // RFC 9000 §12.4 MUST-3: a frame in a packet type that may not carry it is PROTOCOL_VIOLATION
    // RFC 9000 §17.2.4 MUST-1: frames that do not belong into Handshake packets are PROTOCOL_VIOLATION
    // RFC 9001 §8.3 MUST-1: CRYPTO in a 0-RTT packet is PROTOCOL_VIOLATION
    if kind != PacketKind::OneRtt && !frame.is_permitted_in(kind) {
        let what = "the frame is not permitted in this packet type";
        return Err(TransportError::new(Code::PROTOCOL_VIOLATION, what).in_frame(frame.ty()));
    }
    Ok(frame)
}

impl Connection {
    /// Reads the frames of an opened packet. `base` is where `payload` starts in the batch's buffer.
    #[inline(always)]
    pub(super) fn handle_frames(
        &mut self,
        now: Instant,
        payload: &[u8],
        base: usize,
        seen: &PacketSeen<'_>,
    ) -> Result<(), TransportError> {
        // RFC 9000 §12.4 MUST-2: a packet without frames is an error.
        if payload.is_empty() {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "a packet without frames"));
        }
        if let (PacketKind::OneRtt, Some(frame)) = (seen.kind, StreamFrame::filling(payload)) {
            let StreamFrame { id, offset, fin, data } = frame;
            let end = base + payload.len();
            self.reception.deferred.push(Deferred::Stream { id, offset, range: end - data.len()..end, fin });
            self.note_packet(now, seen, true, false);
            return Ok(());
        }
        self.read_frames(now, payload, base, seen)
    }

    /// Reads frames one by one. Apart, so that packets with one STREAM frame stay cheap.
    #[inline(never)]
    fn read_frames(
        &mut self,
        now: Instant,
        payload: &[u8],
        base: usize,
        seen: &PacketSeen<'_>,
    ) -> Result<(), TransportError> {
        let within = |data: &[u8]| {
            let start = data.as_ptr() as usize - payload.as_ptr() as usize + base;
            start..start + data.len()
        };
        let mut ack_eliciting = false;
        let mut probing = true;
        let mut symbol = None;
        let mut symbol_acks = 0;
        let mut acks = 0;
        let mut has_datagrams = false;
        let mut frames = Frames::new(payload);
        loop {
            let start = frames.position();
            let Some(frame) = frames.next() else { break };
            let frame = checked(frame, seen.kind)?;
            ack_eliciting |= frame.is_ack_eliciting();
            probing &= frame.is_probing();
            if symbol.is_some() && !frame.is_permitted_in_symbol() {
                return Err(fec::violation("the frame is not permitted in a symbol", frame.ty()));
            }
            match frame {
                Frame::Stream(StreamFrame { id, offset, fin, data }) => {
                    self.reception.deferred.push(Deferred::Stream { id, offset, range: within(data), fin });
                }
                Frame::Datagram { data } => {
                    let frame_size = frames.position() - start;
                    if !std::mem::replace(&mut has_datagrams, true) {
                        self.packets.sources.datagrams.entitle();
                    }
                    if self.packets.sources.datagrams.admits(data.len(), frame_size) {
                        self.reception.deferred.push(Deferred::Datagram { range: within(data), frame_size });
                    }
                }
                Frame::Ack(ack) => {
                    acks += 1;
                    if acks > MOST_ACKS {
                        continue;
                    }
                    if ack.has_receive_times() {
                        self.on_receive_times(now, seen, &ack)?;
                    }
                    self.on_ack(now, seen, &ack)?;
                }
                Frame::SourceSymbol { id } => {
                    let start = frames.position();
                    symbol = Some((id, start));
                    if self.packets.sources.fec.open_source_symbol(seen.pn, id).map_err(|e| e.in_frame(frame.ty()))? {
                        // Its frames were obeyed when it was rebuilt.
                        break;
                    }
                }
                Frame::SymbolAck(ack) => {
                    symbol_acks += 1;
                    // Each may name all symbols that are remembered.
                    if symbol_acks > 1 {
                        return Err(fec::violation("more than one SYMBOL_ACK in a packet", frame.ty()));
                    }
                    self.on_symbol_ack(now, &ack).map_err(|e| e.in_frame(frame.ty()))?;
                }
                frame => {
                    let ty = frame.ty();
                    self.handle_control_frame(now, seen, frame)
                        .map_err(|e| if e.frame_type == 0 { e.in_frame(ty) } else { e })?;
                }
            }
        }
        if let Some((id, start)) = symbol {
            self.on_source_symbol(now, seen, id, &payload[start..])?;
        }
        self.note_packet(now, seen, ack_eliciting, probing);
        Ok(())
    }

    /// Enters a packet into what is to be acknowledged, and follows a peer that moved.
    #[inline]
    fn note_packet(&mut self, now: Instant, seen: &PacketSeen<'_>, ack_eliciting: bool, probing: bool) {
        self.stats.ack_only_packets_received += u64::from(!ack_eliciting);
        // RFC 9000 §13.1 MUST NOT-1: a packet is acknowledged once it was opened and all of its frames processed
        if let Some(space) = self.packets.spaces.get_mut(seen.space) {
            let ecn = seen.arrival.ecn;
            let newest = space.acks.on_packet(seen.pn, seen.arrival.received_at, ack_eliciting, ecn);
            if newest && seen.kind == PacketKind::OneRtt {
                self.paths[seen.path].spin.on_packet(self.side, seen.spin);
            }
            if newest && !probing && seen.path != self.paths.active_index() {
                self.migrate_with_peer(now, seen.path);
            }
        }
    }
}
