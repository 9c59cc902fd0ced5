//! Which part a frame belongs to.

use std::ops::Range;

use bytes::Bytes;
use units::{Duration, Instant};
use wire::{Frame, FrameErrorKind, Frames, PacketKind, Side, StreamFrame, StreamId};

use super::{Connection, receive::PacketSeen, spaces::SpaceId};
use crate::{
    ack_frequency::MAX_DELAY_US,
    acks::{AckPolicy, AckState},
    endpoint::TokenOwner,
    error::{Code, TransportError},
    events::{CloseReason, Event},
    fec,
    tls::Level,
};

/// ACK frames of a packet that are read. One says all; each costs more than its few bytes, so that others are as good as lost.
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
    /// Where the payload lies.
    #[inline]
    pub(super) fn range(&self) -> &Range<usize> {
        match self {
            Self::Stream { range, .. } | Self::Datagram { range, .. } => range,
        }
    }
}

impl Connection {
    /// Reads the frames of an opened packet. `base` is where `payload` starts in the batch's buffer.
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
        let within = |data: &[u8]| {
            let start = data.as_ptr() as usize - payload.as_ptr() as usize + base;
            start..start + data.len()
        };
        if let (PacketKind::OneRtt, Some(frame)) = (seen.kind, StreamFrame::filling(payload)) {
            let StreamFrame { id, offset, fin, data } = frame;
            self.deferred.push(Deferred::Stream { id, offset, range: within(data), fin });
            self.note_packet(now, seen, true, false);
            return Ok(());
        }
        let mut ack_eliciting = false;
        let mut probing = true;
        let mut symbol = None;
        let mut symbol_acks = 0;
        let mut acks = 0;
        let mut frames = Frames::new(payload);
        loop {
            let start = frames.position();
            let Some(frame) = frames.next() else { break };
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
            if seen.kind != PacketKind::OneRtt && !frame.is_permitted_in(seen.kind) {
                let what = "the frame is not permitted in this packet type";
                return Err(TransportError::new(Code::PROTOCOL_VIOLATION, what).in_frame(frame.ty()));
            }
            ack_eliciting |= frame.is_ack_eliciting();
            probing &= frame.is_probing();
            if symbol.is_some() && !fec::may_be_in_symbol(&frame) {
                return Err(fec::violation("the frame is not permitted in a symbol", frame.ty()));
            }
            match frame {
                Frame::Stream(StreamFrame { id, offset, fin, data }) => {
                    self.deferred.push(Deferred::Stream { id, offset, range: within(data), fin });
                }
                Frame::Datagram { data } => {
                    let frame_size = frames.position() - start;
                    self.deferred.push(Deferred::Datagram { range: within(data), frame_size });
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
                    if self.open_source_symbol(seen, id).map_err(|e| e.in_frame(frame.ty()))? {
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
                    self.handle_rare_frame(now, seen, frame)
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
        if let Some(space) = self.spaces.get_mut(seen.space) {
            let ecn = seen.arrival.ecn;
            let newest = space.acks.on_packet(seen.pn, seen.arrival.received_at, ack_eliciting, ecn);
            if newest && seen.kind == PacketKind::OneRtt {
                self.paths[seen.arrival.path].spin.on_packet(self.side, seen.spin);
            }
            if newest && !probing && seen.arrival.path != self.active {
                self.migrate_with_peer(now, seen.arrival.path);
            }
        }
    }

    /// Everything but STREAM, DATAGRAM and ACK.
    pub(super) fn handle_rare_frame(
        &mut self,
        now: Instant,
        seen: &PacketSeen<'_>,
        frame: Frame<'_>,
    ) -> Result<(), TransportError> {
        match frame {
            Frame::Padding { .. } | Frame::Ping => Ok(()),
            Frame::Crypto { offset, data } => {
                let level = match seen.space {
                    SpaceId::Initial => Level::Initial,
                    SpaceId::Handshake => Level::Handshake,
                    SpaceId::Data(_) => Level::OneRtt,
                };
                self.handshake.on_crypto(now, level, offset, data)
            }
            Frame::ResetStream { id, code, final_size } => self.streams.on_reset_stream(id, code, final_size),
            Frame::StopSending { id, code } => self.streams.on_stop_sending(id, code),
            Frame::MaxData(limit) => {
                self.streams.on_max_data(limit);
                Ok(())
            }
            Frame::MaxStreamData { id, limit } => self.streams.on_max_stream_data(id, limit),
            Frame::MaxStreams { dir, limit } => self.streams.on_max_streams(dir, limit),
            Frame::DataBlocked(limit) => {
                self.streams.on_data_blocked(limit);
                Ok(())
            }
            Frame::StreamsBlocked { dir, limit } => {
                self.streams.on_streams_blocked(dir, limit);
                Ok(())
            }
            Frame::StreamDataBlocked { id, limit } => self.streams.on_stream_data_blocked(id, limit),
            Frame::NewConnectionId { sequence, retire_prior_to, cid, reset_token } => {
                self.remote_ids.on_new(sequence, retire_prior_to, cid, reset_token)?;
                // The ID in use may be another, of another length.
                self.fit_datagrams();
                if self.preferred_due && self.handshake.is_confirmed() {
                    self.consider_preferred_address(now);
                }
                Ok(())
            }
            Frame::RetireConnectionId { sequence } => self.local_ids.on_retire(sequence, seen.dcid),
            Frame::PathChallenge(data) => {
                self.on_path_challenge(now, seen.arrival.path, data);
                Ok(())
            }
            Frame::PathResponse(data) => {
                self.on_path_response(now, data);
                Ok(())
            }
            Frame::NewToken { token } => self.on_new_token(token),
            Frame::HandshakeDone => {
                // RFC 9000 §19.20 MUST-1: only servers send it.
                if self.side == Side::Server {
                    return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "HANDSHAKE_DONE from a client"));
                }
                self.on_confirmed(now);
                Ok(())
            }
            Frame::ConnectionClose { error, frame_type, reason } => {
                let error = TransportError {
                    code: Code(error),
                    frame_type,
                    reason: String::from_utf8_lossy(reason).into_owned().into(),
                };
                self.drain(now, CloseReason::PeerClosed { error });
                Ok(())
            }
            Frame::ApplicationClose { error, reason } => {
                let reason = Bytes::copy_from_slice(reason);
                self.drain(now, CloseReason::PeerApplication { code: error, reason });
                Ok(())
            }
            Frame::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => {
                self.on_ack_request(sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold)
            }
            Frame::ImmediateAck => {
                self.acks_on_request()?.on_immediate();
                self.stats.immediate_acks_received += 1;
                Ok(())
            }
            Frame::Repair(repair) => self.on_repair(now, seen, &repair),
            Frame::Stream(_)
            | Frame::Datagram { .. }
            | Frame::Ack(_)
            | Frame::SourceSymbol { .. }
            | Frame::SymbolAck(_) => {
                unreachable!("read where packets of data are read")
            }
        }
    }

    /// What the peer may give orders to, if it was told that it may.
    fn acks_on_request(&mut self) -> Result<&mut AckState, TransportError> {
        let space = self.spaces.get_mut(SpaceId::DATA).filter(|_| self.profile.acks.obey);
        // RFC 9000 §12.4 MUST-4: a type that was not negotiated is as good as unknown.
        space
            .map(|space| &mut space.acks)
            .ok_or_else(|| TransportError::new(Code::FRAME_ENCODING_ERROR, "the frame type is unknown"))
    }

    /// The peer asks to be acknowledged in another rhythm.
    fn on_ack_request(
        &mut self,
        sequence: u64,
        eliciting_threshold: u64,
        max_ack_delay_us: u64,
        reordering_threshold: u64,
    ) -> Result<(), TransportError> {
        let min_delay = self.profile.acks.min_delay().unwrap_or_default();
        let max_ack_delay = Duration::from_micros(max_ack_delay_us);
        let acks = self.acks_on_request()?;
        // draft-ietf-quic-ack-frequency-14 §4 MUST: a delay below our shortest, or one of 2^14 ms, is a violation.
        if max_ack_delay < min_delay || max_ack_delay_us >= MAX_DELAY_US {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "a delay of acknowledgements out of range"));
        }
        // The threshold counts the packets that need no acknowledgement; the next one does.
        let ack_eliciting_threshold = u32::try_from(eliciting_threshold).unwrap_or(u32::MAX).saturating_add(1);
        acks.on_request(sequence, AckPolicy { ack_eliciting_threshold, max_ack_delay, reordering_threshold });
        self.stats.ack_requests_received += 1;
        Ok(())
    }

    fn on_new_token(&mut self, token: &[u8]) -> Result<(), TransportError> {
        // RFC 9000 §19.7 MUST-2: only servers send it.
        if self.side == Side::Server {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "NEW_TOKEN from a client"));
        }
        // RFC 9001 §9.2 MUST-2: tickets and tokens are opaque to a client
        if let Some((store, server_name)) = self.token_store.as_deref() {
            store.put(TokenOwner { server_name, version: self.version }, token);
        }
        self.push(Event::TokenReceived(Bytes::copy_from_slice(token)));
        Ok(())
    }
}
