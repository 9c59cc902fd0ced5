//! CONNECTION_CLOSE: packets that carry it, and the packet that is retained for a client that may miss them.

use std::net::SocketAddr;

use units::{Duration, Instant};
use wire::{ConnectionId, Frame, Frames, Header, Side, Writer};

use super::{
    Connection,
    identity::Identity,
    lifecycle::{CloseFrame, Lifecycle},
    packet::{OpenPacket, Protection},
    packets::{MIN_INITIAL_DATAGRAM, MIN_PACKET_ROOM, Packets, SendContext},
    receive::place_of,
    sources::ACK_DELAY_EXPONENT,
    spaces::{SpaceId, Spaces},
};
use crate::{PathId, crypto::TAG_LEN, keys::Keys, udp::Transmit};

/// Bytes of an acknowledgement in front of a close, at most.
const LAST_ACK: usize = 256;

/// Bytes of a CONNECTION_CLOSE packet that is retained, at most.
const MAX_PACKET: usize = 300;
/// Longest time for which a packet is retained, also with a longer idle timeout.
const MAX_AGE: Duration = Duration::from_secs(120);

/// A CONNECTION_CLOSE packet that outlives its connection.
#[derive(Debug)]
pub(crate) struct RetainedClose {
    /// The ID that the client addresses.
    pub(crate) id: ConnectionId,
    /// The client's address, which is validated.
    pub(crate) remote: SocketAddr,
    /// Time by which the client no longer waits.
    pub(crate) until: Instant,
    /// The sealed packet.
    pub(crate) packet: Box<[u8]>,
}

impl Lifecycle {
    /// Processes a payload while closing: looks for the peer's CONNECTION_CLOSE, and counts towards the next repetition of the local one.
    pub(super) fn hear(&mut self, payload: &mut [u8], keys: &mut Keys, spaces: &Spaces, identity: &Identity) {
        self.on_datagram(payload.len());
        let mut rest = payload;
        while self.is_closing() && !rest.is_empty() {
            let Ok(header) = Header::parse(rest, identity.local_ids.id_len()) else { return };
            let (packet, behind) = rest.split_at_mut(header.packet_len());
            rest = behind;
            let opened = match header {
                Header::Short { pn_offset, .. } => {
                    keys.open_short(packet, pn_offset, PathId(0), spaces.expected_pn(SpaceId::DATA))
                }
                Header::Long { ty, version, pn_offset, .. } if version == identity.version => {
                    let (space, level, _) = place_of(ty);
                    keys.open_long(level, packet, pn_offset, spaces.expected_pn(space))
                }
                _ => return,
            };
            let Ok(opened) = opened else { continue };
            let closes = |f: Frame<'_>| matches!(f, Frame::ConnectionClose { .. } | Frame::ApplicationClose { .. });
            // RFC 9000 §10.2.1: an endpoint that is closing and receives the CONNECTION_CLOSE of the peer sends no more.
            if Frames::new(&packet[opened.payload]).flatten().any(closes) {
                self.drain();
            }
        }
    }
}

impl CloseFrame {
    /// Writes the frame into a packet: of application data, if `data`.
    fn write(&self, data: bool, w: &mut Writer<'_>) {
        // The words may be cut to fit: they are for people. RFC 9000 §19.19 SHOULD-1: what was UTF-8 stays so.
        let cut = |reason: &[u8], room: usize| {
            let most = reason.len().min(room.saturating_sub(24));
            str::from_utf8(reason).map_or(most, |text| text.floor_char_boundary(most))
        };
        match self {
            Self::Application { code, reason } if data => {
                let len = cut(reason, w.remaining());
                Frame::ApplicationClose { error: *code, reason: &reason[..len] }.encode(w);
            }
            _ => {
                let error = if let (Self::Transport(e), true) = (self, data) { e.clone() } else { self.in_handshake() };
                let reason = error.reason.as_bytes();
                let len = cut(reason, w.remaining());
                Frame::ConnectionClose { error: error.code.0, frame_type: error.frame_type, reason: &reason[..len] }
                    .encode(w);
            }
        }
    }
}

impl Connection {
    /// Writes CONNECTION_CLOSE at every level that the peer may be able to read.
    pub(super) fn transmit_close(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        // What the address may not be sent yet waits for its next datagram.
        if self.datagram_room() == 0 {
            return None;
        }
        let frame = self.lifecycle.take_to_send()?.clone();
        self.packets.keys.allow_close_packets();
        let path = self.paths.active();
        let room = usize::try_from(path.amplification.budget()).unwrap_or(usize::MAX).min(path.mtu.into());
        let out = &mut buffer[..room.min(usize::from(path.mtu))];
        let (packets, mut cx) = self.outgoing(now, None);
        let (len, built) = packets.build_close(&mut cx, out, &frame);
        // RFC 9001 §6.6 MUST-2, MUST-4: what cannot be sealed does not leave at all.
        if self.packets.key_updates.seal_error.take().is_some() || len == 0 {
            self.stats.bytes_unsealed += len as u64;
            return None;
        }
        self.lifecycle.on_sent(len);
        self.retain_close(now, &built, out);
        Some(self.send_datagram_on(now, self.paths.active_index(), len, None))
    }

    /// Retains CONNECTION_CLOSE beyond the connection where the client may not receive it before the closing period ends: a
    /// client that has not acknowledged HANDSHAKE_DONE sends Handshake packets until it learns that the connection has ended. Such a
    /// client can read Handshake packets, or 1-RTT packets once the server has its last flight and has discarded the keys of
    /// the others.
    fn retain_close(&mut self, now: Instant, packets: &[OpenPacket], out: &[u8]) {
        let path = self.paths.active();
        if self.side == Side::Client
            || self.packets.sources.control.handshake_done.is_acked()
            || !path.amplification.is_validated()
        {
            return;
        }
        let Some(packet) = packets.iter().find(|packet| packet.space != SpaceId::Initial) else { return };
        let bytes = &out[packet.start..packet.end + TAG_LEN];
        if bytes.len() > MAX_PACKET {
            return;
        }
        // The client is silent for no longer.
        let idle = if self.idle.timeout.is_zero() { MAX_AGE } else { self.idle.timeout.max(self.pto() * 3) };
        let close = RetainedClose {
            id: self.packets.identity.local_ids.first(),
            remote: path.remote,
            until: now + idle.min(MAX_AGE),
            packet: bytes.into(),
        };
        self.lifecycle.retain(close);
    }
}

impl Packets {
    /// Builds the datagram with CONNECTION_CLOSE. Returns its size and its packets.
    fn build_close(
        &mut self,
        cx: &mut SendContext<'_>,
        out: &mut [u8],
        frame: &CloseFrame,
    ) -> (usize, Vec<OpenPacket>) {
        let mut at = 0;
        let mut packets: Vec<OpenPacket> = Vec::new();
        // RFC 9000 §10.2.3 MUST-1: after the handshake is confirmed CONNECTION_CLOSE is in a 1-RTT packet
        // RFC 9000 §10.2.3 SHOULD-1: a server that cannot know which keys the client has closes in Initial and
        // Handshake packets
        // RFC 9000 §10.2.3 SHOULD-2: before the handshake is confirmed, one closes in Handshake and in 1-RTT packets
        // RFC 9000 §10.2.3 SHOULD-3: before the handshake is confirmed, a server closes in an Initial packet as well
        let levels: &[SpaceId] = if self.sources.handshake.is_confirmed() {
            &[SpaceId::DATA]
        } else {
            &[SpaceId::Initial, SpaceId::Handshake, SpaceId::DATA]
        };
        for &id in levels {
            if !self.keys.can_seal(id.level()) || out.len() < at + MIN_PACKET_ROOM {
                continue;
            }
            if let Some(packet) = self.open_close_packet(cx, id, out, at, frame) {
                at = packet.end + TAG_LEN;
                packets.push(packet);
            }
        }
        // RFC 9000 §14.1: a server expands what asks for an acknowledgement, which CONNECTION_CLOSE does not. A small one may answer what
        // is small itself.
        if cx.side == Side::Client && packets.first().is_some_and(|first| first.space == SpaceId::Initial) {
            let last = packets.last_mut().expect("there is a first");
            let target = MIN_INITIAL_DATAGRAM.min(out.len()) - TAG_LEN;
            last.pad(out, target, cx.stats);
        }
        let mut len = 0;
        for packet in &packets {
            packet.book_header(cx.stats);
            len = self.close_packet(cx, packet, out);
        }
        (len, packets)
    }

    fn open_close_packet(
        &mut self,
        cx: &mut SendContext<'_>,
        id: SpaceId,
        out: &mut [u8],
        start: usize,
        close: &CloseFrame,
    ) -> Option<OpenPacket> {
        let (mut w, packet) = self.begin_packet((id, Protection::Space), cx.on_active(), out, start, 32)?;
        let space = self.spaces.get_mut(id)?;
        let data = matches!(id, SpaceId::Data(_));
        let frames_start = w.position();
        let mut after_ack = frames_start;
        // What arrived before the application closed is acknowledged: the peer learns that it was delivered.
        if data
            && matches!(close, CloseFrame::Application { .. })
            && space.acks.has_news()
            && w.remaining() > 2 * LAST_ACK
            && space.acks.write_within(&mut w, cx.now, ACK_DELAY_EXPONENT, LAST_ACK).is_some()
        {
            cx.stats.ack_frames_sent += 1;
            after_ack = w.position();
        }
        close.write(data, &mut w);
        cx.stats.ack_bytes_sent += (after_ack - frames_start) as u64;
        cx.stats.control_bytes_sent += (w.position() - after_ack) as u64;
        cx.stats.padding_bytes_sent += packet.pad_to_sample(&mut w, 0);
        Some(OpenPacket { ack_eliciting: false, in_flight: false, ..packet.finish(&w) })
    }
}
