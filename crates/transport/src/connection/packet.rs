//! Packet builder: header, room for frames and padding; then seal, ledger and charge to the path.
//!
//! [`begin_packet`](Identity::begin_packet) writes the header. A writer of payload writes the frames. [`OpenPacket::finish`] leaves the
//! packet open, so that the last packet of a datagram can be padded. [`close_packet`](Packets::close_packet) seals it. Transmissions, MTU
//! probes, path probes, repair symbols and CONNECTION_CLOSE are writers of payload.

use units::Instant;
use wire::{Frames, HeaderPos, LongHeader, LongType, Writer, packet_number_len};

use super::{Connection, identity::Identity, spaces::SpaceId};
use crate::{
    acks::Ecn,
    crypto::TAG_LEN,
    keys::{Keys, SealError},
    observe::{DatagramsEvent, PacketEvent, PacketSpace},
    sent::{Ledger, PathIndex, SentPacket},
    stats::Counts,
    streams::{Streams, Tail},
    tls::Level,
    udp::Transmit,
};

/// Protection of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// The keys of the packet's space.
    Space,
    /// 0-RTT keys.
    Early,
}

/// A packet whose frames are written and that is not sealed yet.
#[derive(Clone, Copy)]
pub(super) struct OpenPacket {
    pub(super) space: SpaceId,
    /// The path that it is sent on, and charged to.
    pub(super) path: PathIndex,
    pub(super) start: usize,
    pub(super) pn_offset: usize,
    pub(super) pn: u64,
    pub(super) pn_len: usize,
    /// Long packets carry their length.
    pub(super) long: Option<HeaderPos>,
    /// End of the frames; the tag follows.
    pub(super) end: usize,
    pub(super) ack_eliciting: bool,
    pub(super) in_flight: bool,
    pub(super) probe: bool,
    /// Tries out a larger datagram size.
    pub(super) mtu_probe: bool,
    /// Start of the packet's source symbol; 0 when there is none.
    pub(super) symbol: usize,
    /// Stream frame that was left out at the end of the packet.
    pub(super) tail: Option<Tail>,
}

impl OpenPacket {
    /// Application data in a long packet: 0-RTT.
    #[inline]
    pub(super) fn is_early(&self) -> bool {
        matches!(self.space, SpaceId::Data(_)) && self.long.is_some()
    }
}

impl OpenPacket {
    /// Ends the frames where `w` stands.
    #[inline]
    pub(super) fn finish(mut self, w: &Writer<'_>) -> Self {
        self.end = self.start + w.position();
        self
    }

    /// Fills the packet up to `target`, where it does not reach that far.
    pub(super) fn pad(&mut self, out: &mut [u8], target: usize, stats: &mut Counts) {
        if self.end < target {
            debug_assert!(self.takes_padding(out), "padding would be read as data of the last frame");
            stats.padding_bytes_sent += (target - self.end) as u64;
            out[self.end..target].fill(0);
            self.end = target;
        }
    }

    /// Returns whether a frame may follow those in `out`: a STREAM or DATAGRAM frame without a length extends to the end of the packet. For
    /// assertions.
    fn takes_padding(&self, out: &[u8]) -> bool {
        let payload = &out[self.pn_offset + self.pn_len..self.end];
        let mut frames = Frames::new(payload);
        let mut last = None;
        loop {
            let start = frames.position();
            match frames.next() {
                None => break,
                Some(Ok(_)) => last = Some(payload[start]),
                Some(Err(_)) => return false,
            }
        }
        // RFC 9000 §19.8: bit 0x02 stands for a length; RFC 9221 §4: 0x30 has none.
        !last.is_some_and(|ty| matches!(ty, 0x08..=0x0f) && ty & 0x02 == 0 || ty == 0x30)
    }

    /// Enters what protects and names the packet into the books.
    #[inline]
    pub(super) fn book_header(&self, stats: &mut Counts) {
        stats.header_bytes_sent += (self.pn_offset + self.pn_len - self.start + TAG_LEN) as u64;
    }

    /// Event for observers: the packet in `out`, which is not sealed yet.
    #[inline]
    pub(super) fn event<'b>(&self, out: &'b [u8], key_phase: u64) -> PacketEvent<'b> {
        let frames = self.pn_offset + self.pn_len;
        PacketEvent {
            space: if self.is_early() { PacketSpace::ZeroRtt } else { self.space.level() },
            pn: self.pn,
            size: self.end + TAG_LEN - self.start,
            header: &out[self.start..frames],
            key_phase,
            payload: &out[frames..self.end],
            out_of_turn: self.probe,
        }
    }

    /// Seals the packet in place, with the tail that was left out of it.
    #[inline(always)]
    pub(super) fn seal(&self, out: &mut [u8], keys: &mut Keys, streams: &Streams) -> Result<(), SealError> {
        let pn_offset = self.pn_offset - self.start;
        let bytes = &mut out[self.start..self.end + TAG_LEN];
        match self.space {
            SpaceId::Data(_) if self.is_early() => keys.seal_long(Level::ZeroRtt, bytes, pn_offset, self.pn),
            SpaceId::Data(path) => {
                let tail = self.tail.map_or(&[][..], |tail| streams.tail(tail));
                keys.seal_short_with(bytes, pn_offset, self.pn, path, tail)
            }
            space => keys.seal_long(space.level(), bytes, pn_offset, self.pn),
        }
    }

    /// The ledger's record of the packet.
    #[inline]
    pub(super) fn sent(&self, now: Instant, ecn: Option<Ecn>) -> SentPacket {
        SentPacket {
            sent_at: now,
            size: u16::try_from(self.end + TAG_LEN - self.start).unwrap_or(u16::MAX),
            path: self.path,
            ack_eliciting: self.ack_eliciting,
            in_flight: self.in_flight,
            mtu_probe: self.mtu_probe,
            pto_probe: self.probe,
            ecn: ecn.is_some(),
        }
    }

    /// Pads the packet until it is `least` bytes long and enough bytes follow the packet number for the sample of header
    /// protection. Returns the bytes of padding.
    // RFC 9001 §5.4.2 MUST: enough bytes follow the packet number for the sample of header protection.
    #[inline]
    pub(super) fn pad_to_sample(&self, w: &mut Writer<'_>, least: usize) -> u64 {
        let least = least.max(self.pn_offset - self.start + 4);
        let mut padding = 0;
        while w.position() < least && w.remaining() > 0 {
            w.u8(0);
            padding += 1;
        }
        padding
    }
}

/// Pads a packet until `end`, counted from its start; not shorter than it is.
pub(super) fn pad_until(w: &mut Writer<'_>, end: usize) {
    let padding = end.saturating_sub(w.position());
    w.reserve(padding).fill(0);
}

impl Identity {
    /// Writes the header of the next packet of a space at `start`: ack-eliciting and in flight, unless the caller changes it. The packet
    /// ends, with its tag, at the end of `out` at the latest. `None` if a long header leaves no room for `least` bytes of frames.
    #[inline(always)]
    pub(super) fn begin_packet<'b>(
        &self,
        ledger: &Ledger,
        (id, protection): (SpaceId, Protection),
        (path, active): (PathIndex, bool),
        out: &'b mut [u8],
        start: usize,
        least: usize,
    ) -> Option<(Writer<'b>, OpenPacket)> {
        let pn = ledger.next_pn();
        let pn_len = packet_number_len(pn, ledger.largest_acked());
        let limit = out.len() - TAG_LEN;
        // RFC 9000 §12.2 MUST NOT-1: packets in a datagram have the same destination ID
        let dcid = if active { *self.remote_ids.current() } else { *self.remote_ids.on_path(path) };
        let mut w = Writer::new(&mut out[start..limit]);
        let (long, pn_offset) = match (id, protection) {
            (SpaceId::Data(_), Protection::Space) => {
                (None, wire::encode_short(&mut w, &dcid, pn, pn_len, false, false))
            }
            _ => {
                let (ty, token): (_, &[u8]) = match id {
                    // RFC 9000 §8.1.2 MUST-1: after a Retry all Initial packets carry its token
                    // RFC 9000 §8.1.3 MUST-1: a token is in all Initial packets, until a Retry brings another
                    // RFC 9000 §17.2.2 MUST-1: a server's Initial packets carry no token
                    SpaceId::Initial => (LongType::Initial, &self.token),
                    SpaceId::Handshake => (LongType::Handshake, &[]),
                    SpaceId::Data(_) => (LongType::ZeroRtt, &[]),
                };
                // RFC 9000 §17.2.5.2 MUST NOT-1: the client's own ID stays what it was
                let scid = self.local_ids.first();
                let header = LongHeader { ty, version: self.version, dcid, scid };
                if w.remaining() < header.encoded_len(token.len(), pn_len) + least {
                    return None;
                }
                let pos = header.encode(&mut w, token, pn, pn_len);
                (Some(pos), pos.pn_offset)
            }
        };
        let packet = OpenPacket {
            space: id,
            path,
            start,
            pn_offset: start + pn_offset,
            pn,
            pn_len,
            long: long.map(|p| HeaderPos {
                start: p.start + start,
                length_offset: p.length_offset + start,
                pn_offset: p.pn_offset + start,
            }),
            end: start,
            ack_eliciting: true,
            in_flight: true,
            probe: false,
            mtu_probe: false,
            symbol: 0,
            tail: None,
        };
        Some((w, packet))
    }
}

impl Connection {
    /// Seals the only packet of a datagram that probes a path, and sends it.
    pub(super) fn send_probe(
        &mut self,
        now: Instant,
        packet: &OpenPacket,
        buffer: &mut [u8],
        ecn: Option<Ecn>,
    ) -> Option<Transmit> {
        let (packets, mut cx) = self.outgoing(now, ecn);
        let len = packets.close_packet(&mut cx, packet, buffer);
        self.on_packets_sent(now);
        if let Some(error) = self.packets.key_updates.seal_error.take() {
            self.fail(now, *error);
            return None;
        }
        self.stats.probe_bytes_sent += len as u64;
        Some(self.send_datagram_on(now, packet.path, len, ecn))
    }

    /// Charges a datagram that was built to its path, and counts it.
    pub(super) fn send_datagram_on(&mut self, now: Instant, path: PathIndex, len: usize, ecn: Option<Ecn>) -> Transmit {
        let path = &mut self.paths[path];
        path.amplification.on_sent(len);
        let (remote, local) = (path.remote, path.local);
        self.stats.datagrams_sent += 1;
        self.stats.bytes_sent += len as u64;
        self.observation
            .tell(now, |observer, at| observer.datagrams_sent(at, &DatagramsEvent { len, segment_size: len, ecn }));
        Transmit { remote, local, ecn, len, segment_size: len }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use wire::{Dir, Side, StreamFrame, StreamId};

    use super::*;

    /// Pads a packet with a PING and a STREAM frame, with a length or without.
    fn padded(length: Option<usize>) -> Vec<u8> {
        let mut out = vec![0xff; 40];
        let mut w = Writer::new(&mut out);
        w.u8(0x01);
        StreamFrame::encode_header(&mut w, StreamId::new(Side::Client, Dir::Bi, 0), 0, false, length);
        w.bytes(b"data");
        let end = w.position();
        let mut packet = OpenPacket {
            space: SpaceId::DATA,
            path: PathIndex::default(),
            start: 0,
            pn_offset: 0,
            pn: 0,
            pn_len: 0,
            long: None,
            end,
            ack_eliciting: true,
            in_flight: true,
            probe: false,
            mtu_probe: false,
            symbol: 0,
            tail: None,
        };
        packet.pad(&mut out, 30, &mut Counts::default());
        assert_eq!(packet.end, 30);
        out.split_off(end)
    }

    #[test]
    fn padding_follows_a_frame_with_a_length() {
        let rest = padded(Some(4));
        assert!(rest.iter().take_while(|&&byte| byte == 0).count() > 15, "{rest:?}");
    }

    // RFC 9000 §19.8
    #[test]
    #[should_panic = "padding would be read as data"]
    fn no_padding_follows_a_frame_without_a_length() {
        padded(None);
    }
}
