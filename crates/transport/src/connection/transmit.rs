//! A datagram out: which packets, which frames, in place in the buffer that leaves.
//!
//! A datagram is built packet by packet; packets stay open until the datagram is complete, so that the last one can be
//! padded, and are sealed then. Several datagrams of the same size share one buffer and one system call.

use units::Instant;
use wire::{Frame, Side};

use super::{
    Connection,
    packet::{OpenPacket, Protection},
    sources::{PacketContext, write_immediate_ack},
    spaces::SpaceId,
};
use crate::{
    acks::Ecn, crypto::TAG_LEN, observe::DatagramsEvent, path::BASE_MTU, recovery::Allowance, stats::Stats,
    streams::Streams, tls::Level, udp::Transmit,
};

/// The kernel takes at most this many datagrams in one send.
const MAX_SEGMENTS: usize = 64;
/// RFC 9000 §14.1: datagrams with Initial packets are at least this long.
pub(super) const MIN_INITIAL_DATAGRAM: usize = 1200;
/// Room below which another packet is not worth starting.
pub(super) const MIN_PACKET_ROOM: usize = 64;
/// Room that is padded when streams leave it free and have more to send: a piece of a frame there is not worth its header, and
/// a shorter datagram would end the batch.
const FILL: usize = 96;
/// A receiver that sends only acknowledgements asks for one itself after this many, so that it can forget ranges.
const PING_AFTER_ACKS: u32 = 64;

/// What may go into a packet.
#[derive(Clone, Copy)]
pub(super) struct Permit {
    /// Frames that count against congestion control.
    data: bool,
    /// A probe: it has to elicit an acknowledgement.
    pub(super) probe: bool,
}

impl OpenPacket {
    /// Returns whether its end, below `limit`, is to be padded so that the next packet, which follows at once, can travel with it.
    fn leaves_gap(&self, limit: usize, allowance: u64, datagram: usize, streams: &Streams) -> bool {
        limit - self.end <= FILL
            && self.ack_eliciting
            && self.long.is_none()
            && allowance >= 2 * datagram as u64
            && streams.wants_to_send_data()
    }
}

/// Pads the last of `open` packets where its datagram has to be of full size.
// RFC 9000 §8.1 MUST-2, RFC 9000 §14.1 MUST-1, MUST-2, RFC 9001 §9.3 MUST-1: a client pads every datagram
// with an Initial packet, a server those that elicit acknowledgements.
fn expand(open: &mut [Option<OpenPacket>], side: Side, out: &mut [u8], stats: &mut Stats) {
    let pads = |p: &OpenPacket| p.space == SpaceId::Initial && (side == Side::Client || p.ack_eliciting);
    if !open.iter().flatten().any(pads) {
        return;
    }
    let target = MIN_INITIAL_DATAGRAM.min(out.len()).saturating_sub(TAG_LEN);
    // RFC 9000 §14 MUST NOT-1: no QUIC over paths that cannot carry 1200 bytes
    if let Some(last) = open.iter_mut().flatten().last().filter(|last| last.end < target) {
        last.in_flight = true;
        last.pad(out, target, stats);
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
            && let Some(size) = self.paths.active().discovery.due()
            && let Some(transmit) = self.transmit_mtu_probe(now, buffer, size)
        {
            return Some(transmit);
        }
        // A client that closes as soon as it is connected still ends the handshake: the other end learns of the
        // connection and of its code.
        let owes_flight = || {
            self.side == Side::Client
                && self.lifecycle.is_leaving()
                && self.sources.handshake.wants_to_send(Level::Handshake)
        };
        if (self.lifecycle.is_open() || owes_flight())
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.sources.fec.sender.is_some()
            && self.lifecycle.is_open()
            && self.flush_symbols(now)
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.memory.is_due_at_rest(&self.sources) {
            self.account(now);
        }
        // A packet that cannot be sealed ends the connection on the way, and so does too much that is held.
        if !self.lifecycle.is_open() {
            return self.transmit_close(now, buffer);
        }
        self.refresh_timers(now);
        self.observe_limit(now);
        None
    }

    fn transmit_batch(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        let path = self.paths.active();
        let (remote, local) = (path.remote, path.local);
        // Larger ones may be what is lost: probes after a timeout have the size that every path carries.
        // A repair symbol has the size of what it repairs, though; with the second timeout the size is in doubt.
        let small = self.spaces.wants_probes() && !(self.sources.fec.has_probe() && path.recovery.pto_count() < 2);
        let mtu = usize::from(if small { path.mtu.min(BASE_MTU) } else { path.mtu });
        if self.key_updates.is_due(&self.stats) {
            self.key_updates.wanted = true;
        }
        if self.key_updates.wanted {
            self.try_update_keys(now);
        }
        let mut allowance = self.allowance(now);
        let ecn = self.ecn_mark();
        let (mut len, mut segments) = (0, 0);
        let mut segment_size = mtu;
        while segments < MAX_SEGMENTS && len + segment_size <= buffer.len() {
            let room = self.datagram_room().min(segment_size);
            // A repair symbol is longer than the packets that it repairs.
            if room == 0 || segment_size < mtu && self.sources.fec.wants_to_send() {
                break;
            }
            let size = self.build_datagram(now, &mut buffer[len..len + room], allowance, ecn);
            if size == 0 {
                break;
            }
            if let Some(error) = self.key_updates.seal_error.take() {
                self.stats.bytes_unsealed += size as u64;
                self.fail(now, *error);
                break;
            }
            self.paths.active_mut().amplification.on_sent(size);
            allowance = allowance.saturating_sub(size as u64);
            len += size;
            segments += 1;
            // Only the last datagram of a buffer may be shorter than the others: the first gives their size.
            if size < segment_size {
                if segments > 1 || !self.sources.next_is_alike() {
                    break;
                }
                segment_size = size;
            }
        }
        if len == 0 {
            return None;
        }
        // Not before the handshake is confirmed: until then the address may be anybody's.
        if self.sources.handshake.is_confirmed() {
            self.paths.active_mut().on_datagrams_sent(now, segment_size, len);
        }
        self.stats.datagrams_sent += segments as u64;
        self.stats.bytes_sent += len as u64;
        let segment_size = segment_size.min(len);
        self.observation
            .tell(now, |observer, at| observer.datagrams_sent(at, &DatagramsEvent { len, segment_size, ecn }));
        Some(Transmit { remote, local, ecn, len, segment_size })
    }

    /// Bytes that the next datagram on the path in use may have; 0 while so little may go to its address that nothing
    /// useful fits: before the handshake is confirmed, a datagram with an Initial packet.
    #[inline]
    pub(super) fn datagram_room(&self) -> usize {
        let least = if self.sources.handshake.is_confirmed() { MIN_PACKET_ROOM } else { MIN_INITIAL_DATAGRAM };
        self.paths.active().room(least)
    }

    /// Bytes that congestion control and pacing permit at the moment.
    #[inline]
    fn allowance(&mut self, now: Instant) -> u64 {
        if !self.has_data() {
            return 0;
        }
        match self.paths.active_mut().recovery.allowance(now, u64::MAX) {
            Allowance::Bytes(bytes) => bytes,
            Allowance::WindowFull | Allowance::PacedUntil(_) => 0,
        }
    }

    /// Returns whether any space has anything to say beside acknowledgements.
    #[inline]
    pub(super) fn has_data(&self) -> bool {
        self.sources.wants_to_send(SpaceId::DATA, &self.identity) && self.can_seal_data()
            || !self.sources.handshake.is_confirmed()
                && (self.sources.wants_to_send(SpaceId::Initial, &self.identity)
                    || self.sources.wants_to_send(SpaceId::Handshake, &self.identity))
    }

    fn try_update_keys(&mut self, now: Instant) {
        let heard = self.spaces.get(SpaceId::DATA).is_some_and(|space| space.ledger.largest_acked().is_some());
        let Self { keys, stats, observation, .. } = self;
        self.key_updates.try_update(keys, stats, observation, (now, self.paths.active().recovery.pto(), heard));
    }

    /// Builds one datagram for the active path; returns its size, 0 when there is nothing to send.
    #[inline]
    fn build_datagram(&mut self, now: Instant, out: &mut [u8], allowance: u64, ecn: Option<Ecn>) -> usize {
        if !self.sources.handshake.is_confirmed() {
            return self.build_coalesced(now, out, allowance, ecn);
        }
        if self.sources.fec.wants_to_send() {
            let size = self.build_repair(now, out, allowance, ecn);
            if size > 0 {
                return size;
            }
        }
        // Nearly always only one space is left, and a datagram is a packet.
        let Some(permit) = self.permit(now, SpaceId::DATA, allowance, out.len()) else { return 0 };
        let Some(mut packet) = self.open_packet(now, SpaceId::DATA, out, 0, permit) else { return 0 };
        if packet.ack_eliciting
            && let Some(sender) = &mut self.sources.fec.sender
        {
            sender.on_packet(now);
        }
        let limit = out.len() - TAG_LEN;
        if packet.end < limit && packet.leaves_gap(limit, allowance, out.len(), &self.sources.streams) {
            packet.pad(out, limit, &mut self.stats);
        }
        if self.silence.take_padding() {
            packet.pad(out, MIN_INITIAL_DATAGRAM.min(out.len()) - TAG_LEN, &mut self.stats);
        }
        packet.book_header(&mut self.stats);
        self.close_packet(now, &packet, out, ecn)
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
            if !permit.data && self.sources.handshake.is_away() {
                continue;
            }
            if let Some(packet) = self.open_packet(now, space, out, at, permit) {
                at = packet.end + TAG_LEN;
                open[count] = Some(packet);
                count += 1;
            }
        }
        expand(&mut open, self.side, out, &mut self.stats);
        let mut size = 0;
        for packet in open.iter().flatten() {
            packet.book_header(&mut self.stats);
            size = self.close_packet(now, packet, out, ecn);
        }
        size
    }

    /// Returns whether a packet may be sent in a space, and with what.
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
        let data = probe || (allowance >= datagram as u64 && self.sources.wants_to_send(id, &self.identity));
        (data || space.acks.wants_ack(now)).then_some(Permit { data, probe })
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
        if matches!(id, SpaceId::Data(_)) && self.random.skips(space.ledger.next_pn()) {
            space.ledger.skip();
        }
        let protection = if early { Protection::Early } else { Protection::Space };
        let (mut w, packet) = self.begin_packet((id, protection), self.paths.active_index(), out, start, 4)?;
        let space = self.spaces.get_mut(id)?;
        let frames_start = w.position();
        // RFC 9000 §10.3 SHOULD-2: long enough that a stateless reset which answers it is long enough to look like a packet.
        let least = if matches!(id, SpaceId::Data(_)) { self.identity.local_ids.id_len() + 22 - TAG_LEN } else { 0 };
        // RFC 9000 §13.2.6 MUST-3, RFC 9000 §17.2.3 MUST-2, RFC 9001 §5.6 MUST NOT-2: a 0-RTT packet cannot carry an
        // acknowledgement.
        if !early {
            if let Some(largest) = space.write_ack(now, &mut w) {
                self.stats.ack_frames_sent += 1;
                if let SpaceId::Data(path) = id {
                    self.keys.on_ack_sent(path, largest);
                }
            }
            if self.sources.fec.receiver.is_some() && matches!(id, SpaceId::Data(_)) {
                self.sources.write_symbol_ack(&mut space.ledger, &mut w);
            }
        }
        let after_ack = w.position();
        self.stats.ack_bytes_sent += (after_ack - frames_start) as u64;
        let (mut symbol, mut tail) = (None, None);
        if permit.data {
            if (permit.probe || self.sources.ack_requests.is_sparse())
                && self.sources.needs_prompt_ack(self.paths.active(), id, permit)
            {
                write_immediate_ack(&mut self.stats, &mut w);
            }
            // Whoever looks at the packet before it is sealed sees it whole.
            let may_leave_out = !early
                && self.sources.handshake.is_confirmed()
                && self.observation.observer.is_none()
                && self.sources.fec.sender.is_none()
                && self.keys.seals_from_elsewhere();
            let left_out = if may_leave_out { Some(&mut tail) } else { None };
            let mut context = PacketContext {
                now,
                space: id,
                frames_start,
                pn_len: packet.pn_len,
                ledger: &mut space.ledger,
                identity: &mut self.identity,
                stats: &mut self.stats,
            };
            let asks = self.sources.ack_requests.wants_to_send();
            symbol = self.sources.write_frames(&mut context, left_out, &mut w);
            if asks && !self.sources.ack_requests.wants_to_send() {
                self.apply_ack_delay();
            }
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
        let padding = packet.pad_to_sample(&mut w, if ack_eliciting { least } else { 0 });
        self.stats.padding_bytes_sent += padding;
        Some(OpenPacket {
            ack_eliciting,
            in_flight: ack_eliciting || padding > 0,
            probe: permit.probe,
            symbol: symbol.map_or(0, |at| start + at),
            tail,
            ..packet.finish(&w)
        })
    }

    pub(super) fn ecn_mark(&self) -> Option<Ecn> {
        self.paths.active().marks.mark().then_some(Ecn::Ect0)
    }
}
