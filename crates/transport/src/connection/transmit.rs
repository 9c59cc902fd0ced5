//! A datagram out: which packets, which frames, in place in the buffer that leaves.
//!
//! A datagram is built packet by packet; packets stay open until the datagram is complete, so that the last one can be
//! padded, and are sealed then. Several datagrams of the same size share one buffer and one system call.

use rand_core::RngCore;
use units::{Instant, RandomStream};
use wire::{Frame, HeaderPos, LongHeader, LongType, Side, Writer, packet_number_len};

use super::{Connection, lifecycle::CloseFrame, spaces::SpaceId};
use crate::{
    acks::Ecn,
    crypto::TAG_LEN,
    endpoint::{Epitaph, MAX_AGE, MAX_WORDS, Transmit},
    observe::{DatagramsEvent, Initiator, PacketEvent, PacketSpace},
    path::{BASE_MTU, Path},
    recovery::Allowance,
    sent::{SentFrame, SentPacket},
    streams::Tail,
    tls::Level,
};

/// The kernel takes at most this many datagrams in one send.
const MAX_SEGMENTS: usize = 64;
/// RFC 9000 §14.1: datagrams with Initial packets are at least this long.
pub(super) const MIN_INITIAL_DATAGRAM: usize = 1200;
/// Our `ack_delay_exponent`: the default, so that it is not sent.
const ACK_DELAY_EXPONENT: u8 = 3;
/// Room below which another packet is not worth starting.
pub(super) const MIN_PACKET_ROOM: usize = 64;
/// Room that is padded when streams leave it free and have more to send: a piece of a frame there is not worth its header, and
/// a shorter datagram would end the batch.
const FILL: usize = 96;
/// Bytes of an acknowledgement in front of a close, at most.
const LAST_ACK: usize = 256;
/// A receiver that sends only acknowledgements asks for one itself after this many, so that it can forget ranges.
const PING_AFTER_ACKS: u32 = 64;

/// A packet whose frames are written and that is not sealed yet.
#[derive(Clone, Copy)]
pub(super) struct OpenPacket {
    pub(super) space: SpaceId,
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
    /// It tries out a larger datagram size.
    pub(super) mtu_probe: bool,
    /// Where its source symbol starts; 0 when it has none.
    pub(super) symbol: usize,
    /// What was left out at its end.
    pub(super) tail: Option<Tail>,
}

impl OpenPacket {
    /// Application data in a long packet: 0-RTT.
    #[inline]
    fn is_early(&self) -> bool {
        matches!(self.space, SpaceId::Data(_)) && self.long.is_some()
    }
}

/// What may go into a packet.
#[derive(Clone, Copy)]
struct Permit {
    /// Frames that count against congestion control.
    data: bool,
    /// It is a probe: it has to elicit an acknowledgement.
    probe: bool,
}

/// Packet numbers that are left out now and then (RFC 9000 §21.4): a peer that acknowledges one has not seen what it
/// acknowledges. The gaps grow, as there is ever less to gain.
pub(super) struct Skip {
    next: u64,
    gap: u64,
}

impl Skip {
    /// Packets before the first gap, at least.
    const FIRST: u64 = 64;
    const LONGEST: u64 = 1 << 16;

    pub(super) fn new() -> Self {
        Self { next: 0, gap: Self::FIRST }
    }

    /// Whether `pn` is to be left out.
    #[inline]
    fn due(&mut self, pn: u64, random: &mut RandomStream) -> bool {
        if pn < self.next {
            return false;
        }
        let first = self.next == 0;
        self.next = pn + self.gap + random.next_u64() % self.gap;
        self.gap = (self.gap * 2).min(Self::LONGEST);
        !first
    }
}

impl Connection {
    /// Fills `buffer` with datagrams for one address, up to 64 of the same size. `None` when nothing can be sent at
    /// `now`: then `poll_timeout` says when something can.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        if self.lifecycle.is_open()
            && let Some(transmit) = self.transmit_path_probe(now, buffer)
        {
            return Some(transmit);
        }
        if self.lifecycle.is_open()
            && let Some(size) = self.paths[self.active].discovery.due()
            && let Some(transmit) = self.transmit_mtu_probe(now, buffer, size)
        {
            return Some(transmit);
        }
        // A client that closes as soon as it is connected still ends the handshake: the other end learns of the
        // connection and of its code.
        let owes_flight = || {
            self.side == Side::Client && self.lifecycle.is_leaving() && self.handshake.wants_to_send(Level::Handshake)
        };
        if (self.lifecycle.is_open() || owes_flight())
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.fec.sender.is_some()
            && self.lifecycle.is_open()
            && self.flush_symbols(now)
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        self.account_at_rest(now);
        // A packet that cannot be sealed ends the connection on the way, and so does too much that is held.
        if !self.lifecycle.is_open() {
            return self.transmit_close(now, buffer);
        }
        self.refresh_timers(now);
        self.observe_limit(now);
        None
    }

    fn transmit_batch(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        let path = &self.paths[self.active];
        let (remote, local) = (path.remote, path.local);
        // Larger ones may be what is lost: probes after a timeout have the size that every path carries.
        // A repair symbol has the size of what it repairs, though; with the second timeout the size is in doubt.
        let small = self.spaces.wants_probes() && !(self.fec.has_probe() && path.recovery.pto_count() < 2);
        let mtu = usize::from(if small { path.mtu.min(BASE_MTU) } else { path.mtu });
        if self.rekey.is_due(&self.stats) {
            self.key_update_wanted = true;
        }
        if self.key_update_wanted {
            self.try_update_keys(now);
        }
        let mut allowance = self.allowance(now);
        let ecn = self.ecn_mark();
        let (mut len, mut segments) = (0, 0);
        let mut segment_size = mtu;
        while segments < MAX_SEGMENTS && len + segment_size <= buffer.len() {
            let room = self.datagram_room().min(segment_size);
            // A repair symbol is longer than the packets that it repairs.
            if room == 0 || segment_size < mtu && self.fec.wants_to_send() {
                break;
            }
            let size = self.build_datagram(now, &mut buffer[len..len + room], allowance, ecn);
            if size == 0 {
                break;
            }
            if let Some(error) = self.seal_failed.take() {
                self.stats.bytes_unsealed += size as u64;
                self.fail(now, *error);
                break;
            }
            self.paths[self.active].amplification.on_sent(size);
            allowance = allowance.saturating_sub(size as u64);
            len += size;
            segments += 1;
            // Only the last datagram of a buffer may be shorter than the others: the first gives their size.
            if size < segment_size {
                if segments > 1 || !self.next_is_alike() {
                    break;
                }
                segment_size = size;
            }
        }
        if len == 0 {
            return None;
        }
        self.note_full_datagrams(now, segment_size, len);
        self.stats.datagrams_sent += segments as u64;
        self.stats.bytes_sent += len as u64;
        let segment_size = segment_size.min(len);
        self.observe(now, |observer, at| observer.datagrams_sent(at, &DatagramsEvent { len, segment_size, ecn }));
        Some(Transmit { remote, local, ecn, len, segment_size })
    }

    /// Whether the next packet will have the size of the last although that did not fill a datagram: a flow of DATAGRAM
    /// frames of equal length, with nothing beside them that would fill the rest.
    #[inline]
    fn next_is_alike(&self) -> bool {
        self.datagrams.next_is_alike() && !self.streams.wants_to_send() && self.handshake.is_confirmed()
    }

    /// Bytes that the next datagram on the path in use may have; 0 while so little may go to its address that nothing
    /// useful fits: before the handshake is confirmed, a datagram with an Initial packet.
    #[inline]
    pub(super) fn datagram_room(&self) -> usize {
        let path = &self.paths[self.active];
        let room = usize::try_from(path.amplification.budget()).unwrap_or(usize::MAX).min(path.mtu.into());
        let least = if self.handshake.is_confirmed() { MIN_PACKET_ROOM } else { MIN_INITIAL_DATAGRAM };
        if room < least { 0 } else { room }
    }

    /// Bytes that congestion control and pacing permit at the moment.
    #[inline]
    fn allowance(&mut self, now: Instant) -> u64 {
        if !self.has_data() {
            return 0;
        }
        match self.paths[self.active].recovery.allowance(now, u64::MAX) {
            Allowance::Bytes(bytes) => bytes,
            Allowance::WindowFull | Allowance::PacedUntil(_) => 0,
        }
    }

    /// Whether any space has anything to say beside acknowledgements.
    #[inline]
    pub(super) fn has_data(&self) -> bool {
        self.wants_to_send(SpaceId::DATA) && self.can_seal_data()
            || !self.handshake.is_confirmed()
                && (self.wants_to_send(SpaceId::Initial) || self.wants_to_send(SpaceId::Handshake))
    }

    fn try_update_keys(&mut self, now: Instant) {
        // The first update waits for an acknowledgement as every later one has to (RFC 9001 §6.1): a client that does not know yet
        // that the handshake is confirmed may not follow it, and some peers take a first packet under new keys for an error.
        let heard = self.spaces.get(SpaceId::DATA).is_some_and(|space| space.ledger.largest_acked().is_some());
        if heard && self.keys.update(now, self.pto() * 3) {
            self.key_update_wanted = false;
            self.note_key_updates(now, Initiator::Local);
        }
    }

    /// Builds one datagram for the active path; returns its size, 0 when there is nothing to send.
    #[inline]
    fn build_datagram(&mut self, now: Instant, out: &mut [u8], allowance: u64, ecn: Option<Ecn>) -> usize {
        if !self.handshake.is_confirmed() {
            return self.build_coalesced(now, out, allowance, ecn);
        }
        if self.fec.wants_to_send() {
            let size = self.build_repair(now, out, allowance, ecn);
            if size > 0 {
                return size;
            }
        }
        // Nearly always only one space is left, and a datagram is a packet.
        let Some(permit) = self.permit(now, SpaceId::DATA, allowance, out.len()) else { return 0 };
        let Some(mut packet) = self.open_packet(now, SpaceId::DATA, out, 0, permit) else { return 0 };
        if packet.ack_eliciting
            && let Some(sender) = &mut self.fec.sender
        {
            sender.on_packet(now);
        }
        let limit = out.len() - TAG_LEN;
        if packet.end < limit && self.leaves_gap(limit - packet.end, &packet, allowance, out.len()) {
            self.pad(&mut packet, out, limit);
        }
        if self.silence.take_padding() {
            self.pad(&mut packet, out, MIN_INITIAL_DATAGRAM.min(out.len()) - TAG_LEN);
        }
        self.book_header(&packet);
        self.close_packet(now, &packet, out, ecn)
    }

    /// Fills a packet up to `target`, where it does not reach that far.
    fn pad(&mut self, packet: &mut OpenPacket, out: &mut [u8], target: usize) {
        if packet.end < target {
            self.stats.padding_bytes_sent += (target - packet.end) as u64;
            out[packet.end..target].fill(0);
            packet.end = target;
        }
    }

    /// Enters what protects and names a packet into the books.
    #[inline]
    fn book_header(&mut self, packet: &OpenPacket) {
        self.stats.header_bytes_sent += (packet.pn_offset + packet.pn_len - packet.start + TAG_LEN) as u64;
    }

    /// Whether the end of a packet is to be padded so that the next one, which follows at once, can travel with it.
    fn leaves_gap(&self, gap: usize, packet: &OpenPacket, allowance: u64, datagram: usize) -> bool {
        gap <= FILL
            && packet.ack_eliciting
            && packet.long.is_none()
            && allowance >= 2 * datagram as u64
            && self.streams.wants_to_send_data()
    }

    /// Builds a datagram of a packet in each space that has something to say.
    // RFC 9001 §4 SHOULD-1: packets of several types share a datagram
    fn build_coalesced(&mut self, now: Instant, out: &mut [u8], allowance: u64, ecn: Option<Ecn>) -> usize {
        let mut open: [Option<OpenPacket>; 3] = [None; 3];
        let mut count = 0;
        let mut at = 0;
        for space in [SpaceId::Initial, SpaceId::Handshake, SpaceId::DATA] {
            if out.len() - at < MIN_PACKET_ROOM {
                break;
            }
            let Some(permit) = self.permit(now, space, allowance.saturating_sub(at as u64), out.len()) else {
                continue;
            };
            // What TLS answers is due soon and takes the acknowledgement along.
            if !permit.data && self.handshake.is_away() {
                continue;
            }
            if let Some(packet) = self.open_packet(now, space, out, at, permit) {
                at = packet.end + TAG_LEN;
                open[count] = Some(packet);
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        // RFC 9000 §8.1 MUST-2, RFC 9000 §14.1 MUST-1, MUST-2, RFC 9001 §9.3 MUST-1: a client pads every datagram
        // with an Initial packet, a server those that elicit acknowledgements.
        let pad = open
            .iter()
            .flatten()
            .any(|p| p.space == SpaceId::Initial && (self.side == Side::Client || p.ack_eliciting));
        if pad {
            let last = open[count - 1].as_mut().expect("count packets are open");
            let target = MIN_INITIAL_DATAGRAM.min(out.len()).saturating_sub(TAG_LEN);
            // RFC 9000 §14 MUST NOT-1: no QUIC over paths that cannot carry 1200 bytes
            if last.end < target {
                last.in_flight = true;
                self.pad(last, out, target);
            }
        }
        let mut size = 0;
        for packet in open.iter().flatten() {
            self.book_header(packet);
            size = self.close_packet(now, packet, out, ecn);
        }
        size
    }

    /// Whether a packet may be sent in a space, and with what.
    #[inline]
    fn permit(&self, now: Instant, id: SpaceId, allowance: u64, datagram: usize) -> Option<Permit> {
        let keys = match id {
            SpaceId::Data(_) => self.can_seal_data(),
            _ => self.keys.can_seal(id.level()),
        };
        if !keys {
            return None;
        }
        let space = self.spaces.get(id)?;
        let probe = space.probes > 0;
        // RFC 9002 §7 MUST NOT-1, RFC 9002 §7.5 MUST NOT-1, RFC 9221 §5.4 MUST-1: what is in flight stays below the
        // window; only probes may exceed it.
        let data = probe || (allowance >= datagram as u64 && self.wants_to_send(id));
        (data || space.acks.wants_ack(now)).then_some(Permit { data, probe })
    }

    /// Whether a space has anything to say beside acknowledgements.
    #[inline]
    pub(super) fn wants_to_send(&self, id: SpaceId) -> bool {
        let data = matches!(id, SpaceId::Data(_));
        data && self.streams.wants_to_send()
            || self.handshake.wants_to_send(id.level())
            || data
                && (self.datagrams.wants_to_send()
                    || self.control.wants_to_send()
                    || self.ack_requests.wants_to_send()
                    || self.fec.wants_to_send()
                    || self.local_ids.wants_to_send()
                    || self.remote_ids.next_retirement().is_some())
    }

    /// Writes header and frames of a packet at `start`. `None` when no frame found room.
    #[inline(always)]
    fn open_packet(
        &mut self,
        now: Instant,
        id: SpaceId,
        out: &mut [u8],
        start: usize,
        permit: Permit,
    ) -> Option<OpenPacket> {
        let early = matches!(id, SpaceId::Data(_)) && !self.keys.can_seal(Level::OneRtt);
        let space = self.spaces.get_mut(id)?;
        // RFC 9000 §21.4: now and then a packet number is left out, to catch a peer that acknowledges blindly.
        if matches!(id, SpaceId::Data(_)) && self.skip.due(space.ledger.next_pn(), &mut self.random) {
            space.ledger.skip();
        }
        let pn = space.ledger.next_pn();
        let pn_len = packet_number_len(pn, space.ledger.largest_acked());
        let limit = out.len() - TAG_LEN;
        // RFC 9000 §12.2 MUST NOT-1: packets in a datagram have the same destination ID
        let dcid = *self.remote_ids.current();
        let mut w = Writer::new(&mut out[start..limit]);
        let (long, pn_offset) = match id {
            SpaceId::Data(_) if !early => (None, wire::encode_short(&mut w, &dcid, pn, pn_len, false, false)),
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
                if w.remaining() < header.encoded_len(token.len(), pn_len) + 4 {
                    return None;
                }
                let pos = header.encode(&mut w, token, pn, pn_len);
                (Some(pos), pos.pn_offset)
            }
        };
        let frames_start = w.position();
        // RFC 9000 §10.3 SHOULD-2: long enough that a stateless reset which answers it is long enough to look like a packet.
        let least = if matches!(id, SpaceId::Data(_)) { self.local_ids.id_len() + 22 - TAG_LEN } else { 0 };
        // RFC 9000 §13.2.6 MUST-3, RFC 9000 §17.2.3 MUST-2, RFC 9001 §5.6 MUST NOT-2: a 0-RTT packet cannot carry an
        // acknowledgement.
        if !early {
            self.write_ack(now, id, &mut w);
            if self.fec.receiver.is_some() && matches!(id, SpaceId::Data(_)) {
                self.write_symbol_ack(&mut w);
            }
        }
        let after_ack = w.position();
        self.stats.ack_bytes_sent += (after_ack - frames_start) as u64;
        let (mut symbol, mut tail) = (None, None);
        if permit.data {
            if (permit.probe || self.ack_requests.is_sparse()) && self.needs_prompt_ack(id, permit) {
                self.write_immediate_ack(&mut w);
            }
            // Whoever looks at the packet before it is sealed sees it whole.
            let may_leave_out = long.is_none()
                && self.handshake.is_confirmed()
                && self.observer.is_none()
                && self.fec.sender.is_none()
                && self.keys.seals_from_elsewhere();
            let left_out = if may_leave_out { Some(&mut tail) } else { None };
            symbol = self.write_frames(now, id, frames_start, pn_len, left_out, &mut w);
        }
        let space = self.spaces.get_mut(id)?;
        let mut ack_eliciting = w.position() > after_ack;
        // RFC 9000 §13.2.1 MUST NOT-3: not every acknowledgement asks for one itself, or they would never end
        let ask = permit.probe || (after_ack > frames_start && space.ledger.since_ack_eliciting() >= PING_AFTER_ACKS);
        // RFC 9002 §6.2.4 MUST-2: probes ask for an acknowledgement
        // RFC 9002 §6.2.4 SHOULD-3: a probe with nothing to say is a PING
        if !ack_eliciting && ask && w.remaining() > 0 {
            Frame::Ping.encode(&mut w);
            self.stats.probe_bytes_sent += 1;
            ack_eliciting = true;
        }
        // RFC 9000 §12.4 MUST-1: packets are not sent without a frame
        if w.position() == frames_start {
            return None;
        }
        if permit.probe && ack_eliciting {
            space.probes -= 1;
        }
        // RFC 9001 §5.4.2 MUST: enough bytes follow the packet number for the sample of header protection.
        let mut in_flight = ack_eliciting;
        let least = if ack_eliciting { least.max(pn_offset + 4) } else { pn_offset + 4 };
        while w.position() < least && w.remaining() > 0 {
            w.u8(0);
            self.stats.padding_bytes_sent += 1;
            in_flight = true;
        }
        let end = start + w.position();
        Some(OpenPacket {
            space: id,
            start,
            pn_offset: start + pn_offset,
            pn,
            pn_len,
            long: long.map(|p| HeaderPos {
                start: p.start + start,
                length_offset: p.length_offset + start,
                pn_offset: p.pn_offset + start,
            }),
            end,
            ack_eliciting,
            in_flight,
            probe: permit.probe,
            mtu_probe: false,
            symbol: symbol.map_or(0, |at| start + at),
            tail,
        })
    }

    /// An acknowledgement, when one is due or another packet leaves anyway.
    #[inline]
    // RFC 9000 §13.2 SHOULD-1: an acknowledgement travels with whatever packet leaves
    // RFC 9000 §13.2.1 SHOULD-2: new acknowledgements travel with other frames
    fn write_ack(&mut self, now: Instant, id: SpaceId, w: &mut Writer<'_>) {
        let Some(space) = self.spaces.get_mut(id).filter(|space| space.acks.has_news()) else { return };
        if let Some(largest) = space.acks.write(w, now, ACK_DELAY_EXPONENT) {
            // RFC 9000 §13.2.6 MUST-1: ACK frames travel in the space that they speak of
            // RFC 9000 §13.2.6 MUST-2: 1-RTT packets are acknowledged in 1-RTT packets
            // RFC 9000 §17.2.3 MUST-2: 1-RTT packets are acknowledged in 1-RTT packets
            space.ledger.record(SentFrame::Ack { largest });
            self.stats.ack_frames_sent += 1;
            if let SpaceId::Data(path) = id {
                self.keys.on_ack_sent(path, largest);
            }
        }
    }

    /// The frames of a packet, most urgent first. Returns where its source symbol starts, if it has one.
    #[inline]
    fn write_frames(
        &mut self,
        now: Instant,
        id: SpaceId,
        frames_start: usize,
        pn_len: usize,
        tail: Option<&mut Option<Tail>>,
        w: &mut Writer<'_>,
    ) -> Option<usize> {
        let space = self.spaces.get_mut(id)?;
        let ledger = &mut space.ledger;
        if let Some(crypto) = self.handshake.crypto(id.level())
            && crypto.wants_to_send()
        {
            let before = w.position();
            crypto.write_frames(w, &mut |f| ledger.record(f));
            self.stats.crypto_bytes_sent += (w.position() - before) as u64;
        }
        // RFC 9000 §12.5 MUST-1: the application's CONNECTION_CLOSE stays in the space of application data
        // RFC 9000 §12.5 MUST-2: frames other than those of the handshake stay in the space of application data
        // RFC 9001 §4.9 MUST-2: new data goes out at the highest level there is
        // RFC 9221 §5 MUST-1: datagrams travel in 0-RTT and 1-RTT packets only
        // RFC 9221 §6 MUST-1: datagrams are protected as stream data is
        if !matches!(id, SpaceId::Data(_)) {
            return None;
        }
        if self.control.wants_to_send()
            || self.ack_requests.wants_to_send()
            || self.local_ids.wants_to_send()
            || self.remote_ids.next_retirement().is_some()
        {
            let before = w.position();
            self.write_control(now, w);
            self.stats.control_bytes_sent += (w.position() - before) as u64;
        }
        let capacity = w.position() + w.remaining() - frames_start;
        if self.fec.sender.is_some() {
            if !self.protects_next(now) {
                self.write_unprotected(now, w);
                return None;
            }
            if let Some(room) = self.symbol_room(capacity, w.remaining(), pn_len) {
                return self.write_symbol(now, room, w);
            }
        }
        let space = self.spaces.get_mut(id)?;
        let ledger = &mut space.ledger;
        // RFC 9221 §5 SHOULD-1: a datagram leaves as soon as it may
        if self.datagrams.wants_to_send() {
            self.datagrams.write(now, w, &mut |f| ledger.record(f));
        }
        if self.streams.wants_to_send() {
            match tail {
                Some(tail) => *tail = self.streams.write_frames_but_tail(w, &mut |f| ledger.record(f)),
                None => self.streams.write_frames(w, &mut |f| ledger.record(f)),
            }
        }
        None
    }

    /// Whether the peer should acknowledge the next packet at once, whatever it was asked for.
    #[cold]
    fn needs_prompt_ack(&self, id: SpaceId, permit: Permit) -> bool {
        if !matches!(id, SpaceId::Data(_)) || !self.ack_requests.is_understood() {
            return false;
        }
        // draft-ietf-quic-ack-frequency-14 §7: a probe has waited long enough.
        if permit.probe {
            return true;
        }
        // The packet fills the window, and with it the peer still collects: neither end would move until its timer does.
        let Path { recovery, mtu, .. } = &self.paths[self.active];
        recovery.window().saturating_sub(recovery.bytes_in_flight()) < 2 * u64::from(*mtu)
            && recovery.ack_eliciting_in_flight(id.recovery()) + 1 < self.ack_requests.packets_per_ack()
    }

    fn write_immediate_ack(&mut self, w: &mut Writer<'_>) {
        if w.remaining() > 0 {
            let before = w.position();
            Frame::ImmediateAck.encode(w);
            self.stats.control_bytes_sent += (w.position() - before) as u64;
            self.stats.immediate_acks_asked += 1;
        }
    }

    fn write_control(&mut self, now: Instant, w: &mut Writer<'_>) {
        let Some(space) = self.spaces.get_mut(SpaceId::DATA) else { return };
        let ledger = &mut space.ledger;
        if let Some((sequence, frame)) = self.ack_requests.next_frame()
            && w.remaining() >= frame.encoded_len()
        {
            frame.encode(w);
            ledger.record(SentFrame::AckFrequency(sequence));
            self.ack_requests.on_sent(now);
            self.stats.ack_requests_sent += 1;
            self.apply_ack_delay();
        }
        let Some(space) = self.spaces.get_mut(SpaceId::DATA) else { return };
        let ledger = &mut space.ledger;
        if self.control.handshake_done && w.remaining() >= Frame::HandshakeDone.encoded_len() {
            Frame::HandshakeDone.encode(w);
            ledger.record(SentFrame::HandshakeDone);
            self.control.handshake_done = false;
        }
        while let Some(issued) = self.local_ids.next_announcement() {
            let frame = Frame::NewConnectionId {
                sequence: issued.sequence,
                // RFC 9000 §19.15 MUST-3: Retire Prior To is at most the sequence number
                retire_prior_to: 0,
                cid: issued.id,
                reset_token: issued.reset_token,
            };
            if w.remaining() < frame.encoded_len() {
                return;
            }
            frame.encode(w);
            ledger.record(SentFrame::NewConnectionId(issued.sequence));
            self.local_ids.announced();
        }
        // RFC 9000 §19.16 MUST NOT-1: the ID that a packet is addressed to is not retired in it
        while let Some(sequence) = self.remote_ids.next_retirement() {
            let frame = Frame::RetireConnectionId { sequence };
            if w.remaining() < frame.encoded_len() {
                return;
            }
            frame.encode(w);
            ledger.record(SentFrame::RetireConnectionId(sequence));
            self.remote_ids.retirement_sent();
        }
        if self.control.ping && w.remaining() > 0 {
            Frame::Ping.encode(w);
            ledger.record(SentFrame::Ping);
            self.control.ping = false;
        }
        if let Some(token) = self.control.token() {
            let frame = Frame::NewToken { token };
            if w.remaining() >= frame.encoded_len() {
                frame.encode(w);
                ledger.record(SentFrame::NewToken);
                self.control.token_sent();
            }
        }
    }

    /// Seals a packet and enters it into the ledger. Returns where it ends.
    #[inline(always)]
    pub(super) fn close_packet(
        &mut self,
        now: Instant,
        packet: &OpenPacket,
        out: &mut [u8],
        ecn: Option<Ecn>,
    ) -> usize {
        let end = packet.end + TAG_LEN;
        if let Some(pos) = &packet.long {
            wire::patch_length(out, pos, end);
        }
        let pn_offset = packet.pn_offset - packet.start;
        if packet.long.is_none() {
            out[packet.start] = self.short_first_byte(out[packet.start]);
        }
        if let Some(observer) = &mut self.observer {
            let frames = packet.pn_offset + packet.pn_len;
            let event = PacketEvent {
                space: if packet.is_early() { PacketSpace::ZeroRtt } else { packet.space.observed() },
                pn: packet.pn,
                size: end - packet.start,
                header: &out[packet.start..frames],
                key_phase: self.keys.updates(),
                payload: &out[frames..packet.end],
                out_of_turn: packet.probe,
            };
            observer.packet_sent(now, &event);
        }
        if packet.symbol > 0
            && let Some(sender) = &mut self.fec.sender
        {
            sender.on_sent(now, packet.pn, &out[packet.symbol..packet.end]);
        }
        let bytes = &mut out[packet.start..end];
        let sealed = match packet.space {
            SpaceId::Data(_) if packet.is_early() => {
                self.stats.early_packets_sent += 1;
                self.stats.early_bytes_sent += (end - packet.start) as u64;
                self.keys.seal_long(Level::ZeroRtt, bytes, pn_offset, packet.pn)
            }
            SpaceId::Data(path) => {
                let tail = packet.tail.map_or(&[][..], |tail| self.streams.tail(tail));
                let sealed = self.keys.seal_short_with(bytes, pn_offset, packet.pn, path, tail);
                // RFC 9001 §6.6: near the limit of their use the keys are updated without being asked.
                self.note_key_updates(now, Initiator::Local);
                sealed
            }
            space => self.keys.seal_long(space.level(), bytes, pn_offset, packet.pn),
        };
        if let Err(error) = sealed {
            self.seal_failed = Some(Box::new(error.into()));
        }
        let sent = SentPacket {
            sent_at: now,
            size: u16::try_from(end - packet.start).unwrap_or(u16::MAX),
            path: self.active as u8,
            ack_eliciting: packet.ack_eliciting,
            in_flight: packet.in_flight,
            mtu_probe: packet.mtu_probe,
            pto_probe: packet.probe,
            ecn: ecn.is_some(),
        };
        if let Some(space) = self.spaces.get_mut(packet.space) {
            self.paths[self.active].recovery.on_packet_sent(&mut space.ledger, packet.space.recovery(), &sent);
        }
        self.stats.packets_sent += 1;
        self.stats.ack_only_packets_sent += u64::from(!packet.ack_eliciting);
        if packet.ack_eliciting && !self.sent_since_received {
            // RFC 9000 §10.1: the idle timer restarts with the first packet that asks for an answer.
            self.sent_since_received = true;
            self.restart_idle(now);
        }
        // RFC 9001 §4.9.1 MUST-1, MUST NOT-1: a client forgets the Initial keys when it first sends a Handshake packet.
        if self.side == Side::Client && packet.space == SpaceId::Handshake {
            self.discard_space(now, SpaceId::Initial);
        }
        end
    }

    /// The goodbye, in every level that the peer may be able to read.
    fn transmit_close(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        // What the address may not be sent yet waits for its next datagram.
        if self.datagram_room() == 0 {
            return None;
        }
        let frame = self.lifecycle.take_to_send()?.clone();
        self.keys.say_last_words();
        let path = &self.paths[self.active];
        let (remote, local) = (path.remote, path.local);
        let room = usize::try_from(path.amplification.budget()).unwrap_or(usize::MAX).min(path.mtu.into());
        let out = &mut buffer[..room.min(usize::from(path.mtu))];
        let mut at = 0;
        let mut packets: Vec<OpenPacket> = Vec::new();
        // RFC 9000 §10.2.3 MUST-1: after the handshake is confirmed the goodbye is in a 1-RTT packet
        // RFC 9000 §10.2.3 SHOULD-1: a server that cannot know which keys the client has closes in Initial and
        // Handshake packets
        // RFC 9000 §10.2.3 SHOULD-2: before the handshake is confirmed, one closes in Handshake and in 1-RTT packets
        // RFC 9000 §10.2.3 SHOULD-3: before the handshake is confirmed, a server closes in an Initial packet as well
        let levels: &[SpaceId] = if self.handshake.is_confirmed() {
            &[SpaceId::DATA]
        } else {
            &[SpaceId::Initial, SpaceId::Handshake, SpaceId::DATA]
        };
        for &id in levels {
            if !self.keys.can_seal(id.level()) || out.len() < at + MIN_PACKET_ROOM {
                continue;
            }
            if let Some(packet) = self.open_close_packet(now, id, out, at, &frame) {
                at = packet.end + TAG_LEN;
                packets.push(packet);
            }
        }
        // RFC 9000 §14.1: a server expands what asks for an acknowledgement, which a goodbye does not. A small one may answer what
        // is small itself.
        if self.side == Side::Client && packets.first().is_some_and(|first| first.space == SpaceId::Initial) {
            let last = packets.last_mut().expect("there is a first");
            let target = MIN_INITIAL_DATAGRAM.min(out.len()) - TAG_LEN;
            self.pad(last, out, target);
        }
        let mut len = 0;
        for packet in &packets {
            self.book_header(packet);
            len = self.close_packet(now, packet, out, None);
        }
        // RFC 9001 §6.6 MUST-2, MUST-4: what cannot be sealed does not leave at all.
        if self.seal_failed.take().is_some() || len == 0 {
            self.stats.bytes_unsealed += len as u64;
            return None;
        }
        self.lifecycle.on_sent(len);
        self.keep_epitaph(now, &packets, out);
        self.paths[self.active].amplification.on_sent(len);
        self.stats.datagrams_sent += 1;
        self.stats.bytes_sent += len as u64;
        self.observe(now, |observer, at| {
            observer.datagrams_sent(at, &DatagramsEvent { len, segment_size: len, ecn: None });
        });
        Some(Transmit { remote, local, ecn: None, len, segment_size: len })
    }

    /// Lets the goodbye outlive the connection where the client may not hear of it before the closing period ends: one that
    /// has not acknowledged HANDSHAKE_DONE sends Handshake packets until it learns what became of them. Whoever does that can read
    /// Handshake packets, or 1-RTT packets once the server has its last flight and has forgotten the keys for the others.
    fn keep_epitaph(&mut self, now: Instant, packets: &[OpenPacket], out: &[u8]) {
        let path = &self.paths[self.active];
        if self.side == Side::Client || self.control.handshake_done_arrived || !path.amplification.is_validated() {
            return;
        }
        let Some(packet) = packets.iter().find(|packet| packet.space != SpaceId::Initial) else { return };
        let words = &out[packet.start..packet.end + TAG_LEN];
        if words.len() > MAX_WORDS {
            return;
        }
        // The client is silent for no longer.
        let idle = if self.idle_timeout.is_zero() { MAX_AGE } else { self.idle_timeout.max(self.pto() * 3) };
        let epitaph = Epitaph {
            id: self.local_ids.first(),
            remote: path.remote,
            until: now + idle.min(MAX_AGE),
            words: words.into(),
        };
        self.lifecycle.set_epitaph(epitaph);
    }

    fn open_close_packet(
        &mut self,
        now: Instant,
        id: SpaceId,
        out: &mut [u8],
        start: usize,
        close: &CloseFrame,
    ) -> Option<OpenPacket> {
        let limit = out.len() - TAG_LEN;
        let space = self.spaces.get_mut(id)?;
        let pn = space.ledger.next_pn();
        let pn_len = packet_number_len(pn, space.ledger.largest_acked());
        let dcid = *self.remote_ids.current();
        let mut w = Writer::new(&mut out[start..limit]);
        let (long, pn_offset) = match id {
            SpaceId::Data(_) => (None, wire::encode_short(&mut w, &dcid, pn, pn_len, false, false)),
            _ => {
                let (ty, token): (_, &[u8]) =
                    if id == SpaceId::Initial { (LongType::Initial, &self.token) } else { (LongType::Handshake, &[]) };
                let header = LongHeader { ty, version: self.version, dcid, scid: self.local_ids.first() };
                if w.remaining() < header.encoded_len(token.len(), pn_len) + 32 {
                    return None;
                }
                let pos = header.encode(&mut w, token, pn, pn_len);
                (Some(pos), pos.pn_offset)
            }
        };
        let data = matches!(id, SpaceId::Data(_));
        let frames_start = w.position();
        let mut after_ack = frames_start;
        let error;
        // The words may be cut to fit: they are for people. RFC 9000 §19.19 SHOULD-1: what was UTF-8 stays so.
        let cut = |reason: &[u8], room: usize| {
            let most = reason.len().min(room.saturating_sub(24));
            str::from_utf8(reason).map_or(most, |text| text.floor_char_boundary(most))
        };
        match close {
            CloseFrame::Application { code, reason } if data => {
                // What arrived before the application closed is acknowledged: the peer learns that it was delivered.
                if space.acks.has_news()
                    && w.remaining() > 2 * LAST_ACK
                    && space.acks.write_within(&mut w, now, ACK_DELAY_EXPONENT, LAST_ACK).is_some()
                {
                    self.stats.ack_frames_sent += 1;
                    after_ack = w.position();
                }
                let len = cut(reason, w.remaining());
                Frame::ApplicationClose { error: *code, reason: &reason[..len] }.encode(&mut w);
            }
            _ => {
                error =
                    if let (CloseFrame::Transport(e), true) = (close, data) { e.clone() } else { close.in_handshake() };
                let reason = error.reason.as_bytes();
                let len = cut(reason, w.remaining());
                Frame::ConnectionClose { error: error.code.0, frame_type: error.frame_type, reason: &reason[..len] }
                    .encode(&mut w);
            }
        }
        self.stats.ack_bytes_sent += (after_ack - frames_start) as u64;
        self.stats.control_bytes_sent += (w.position() - after_ack) as u64;
        while w.position() < pn_offset + 4 && w.remaining() > 0 {
            w.u8(0);
            self.stats.padding_bytes_sent += 1;
        }
        let end = start + w.position();
        Some(OpenPacket {
            space: id,
            start,
            pn_offset: start + pn_offset,
            pn,
            pn_len,
            long: long.map(|p| HeaderPos {
                start: p.start + start,
                length_offset: p.length_offset + start,
                pn_offset: p.pn_offset + start,
            }),
            end,
            ack_eliciting: false,
            in_flight: false,
            probe: false,
            mtu_probe: false,
            symbol: 0,
            tail: None,
        })
    }

    pub(super) fn ecn_mark(&self) -> Option<Ecn> {
        self.paths[self.active].marks.mark().then_some(Ecn::Ect0)
    }
}
