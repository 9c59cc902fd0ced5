//! State for sending packets: packet number spaces, sources of frames, keys.
//!
//! A datagram is built packet by packet. Packets stay open until the datagram is complete, so that the last one can be padded, and are
//! sealed then.

use units::Instant;
use wire::{Side, Writer};

use super::{
    ack_requests::write_immediate_ack,
    control::write_ping,
    identity::Identity,
    key_updates::KeyUpdates,
    packet::{OpenPacket, Protection},
    randomness::Randomness,
    silence::Silence,
    sources::{PacketContext, Permit, Sources},
    spaces::{SpaceId, Spaces},
    watch::Observation,
};
use crate::{
    acks::Ecn,
    crypto::TAG_LEN,
    error::TransportError,
    keys::Keys,
    observe::Initiator,
    path::Paths,
    sent::PathIndex,
    stats::Counts,
    streams::Streams,
    tls::{Level, TlsEvent},
};

/// RFC 9000 §14.1: datagrams with Initial packets are at least this long.
pub(super) const MIN_INITIAL_DATAGRAM: usize = 1200;
/// Room below which another packet is not worth starting.
pub(super) const MIN_PACKET_ROOM: usize = 64;
/// Room that is padded when streams leave it free and have more to send: a piece of a frame there is not worth its header, and
/// a shorter datagram would end the batch.
const FILL: usize = 96;
/// Number of ACK-only packets after which a receiver sends a PING, so that the acknowledgement lets it forget ranges.
const PING_AFTER_ACKS: u32 = 64;

/// Owns what packets are made of.
pub(super) struct Packets {
    pub(super) random: Randomness,
    pub(super) identity: Identity,
    pub(super) keys: Keys,
    pub(super) key_updates: KeyUpdates,
    pub(super) spaces: Spaces,
    pub(super) sources: Sources,
    /// An ack-eliciting packet was sealed since this was taken.
    pub(super) has_elicited: bool,
}

/// Accounts and observer of a packet in preparation.
pub(super) struct SendContext<'a> {
    pub(super) now: Instant,
    pub(super) side: Side,
    /// The mark of the datagram.
    pub(super) ecn: Option<Ecn>,
    pub(super) paths: &'a mut Paths,
    pub(super) silence: &'a mut Silence,
    pub(super) stats: &'a mut Counts,
    pub(super) observation: &'a mut Observation,
}

impl SendContext<'_> {
    /// The path in use, and that it is.
    #[inline]
    pub(super) fn on_active(&self) -> (PathIndex, bool) {
        (self.paths.active_index(), true)
    }
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
fn expand(open: &mut [Option<OpenPacket>], side: Side, out: &mut [u8], stats: &mut Counts) {
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

impl Packets {
    /// Lets TLS process the bytes that have arrived. Each call returns the next event that the connection has to handle.
    pub(super) fn advance_handshake(&mut self, side: Side) -> Result<Option<TlsEvent>, TransportError> {
        let event = self.sources.handshake.advance();
        self.identity.follow_handshake_version(side, &mut self.keys, &mut self.sources.handshake);
        event
    }
}

/// Decisions whether a packet may be sent.
impl Packets {
    /// Returns whether any space has frames to send other than acknowledgements.
    #[inline]
    pub(super) fn has_data(&self) -> bool {
        self.sources.wants_to_send(SpaceId::DATA, &self.identity) && self.can_seal_data()
            || !self.sources.handshake.is_confirmed()
                && (self.sources.wants_to_send(SpaceId::Initial, &self.identity)
                    || self.sources.wants_to_send(SpaceId::Handshake, &self.identity))
    }

    /// Returns whether data of a client can leave in 0-RTT packets at this moment.
    #[inline]
    pub(super) fn sends_early(&self) -> bool {
        self.keys.can_seal(Level::ZeroRtt)
    }

    /// Returns whether packets of application data can be sealed, be it with 0-RTT keys.
    #[inline]
    pub(super) fn can_seal_data(&self) -> bool {
        self.keys.can_seal(Level::OneRtt) || self.sends_early()
    }

    /// Replaces the 1-RTT keys if that is wanted and allowed.
    pub(super) fn try_update_keys(&mut self, cx: &mut SendContext<'_>) {
        let heard = self.spaces.get(SpaceId::DATA).is_some_and(|space| space.ledger.largest_acked().is_some());
        let pto = cx.paths.active().recovery.pto();
        self.key_updates.try_update(&mut self.keys, cx.stats, cx.observation, (cx.now, pto, heard));
    }
}

/// Building.
impl Packets {
    /// Builds one datagram for the active path; returns its size, 0 without data to send.
    #[inline]
    pub(super) fn build_datagram(&mut self, cx: &mut SendContext<'_>, out: &mut [u8], allowance: u64) -> usize {
        if !self.sources.handshake.is_confirmed() {
            let size = self.build_coalesced(cx, out, allowance);
            if size == 0 && self.sources.fec.wants_to_send() {
                return self.build_repair(cx, out, allowance);
            }
            return size;
        }
        if self.sources.fec.wants_to_send() {
            let size = self.build_repair(cx, out, allowance);
            if size > 0 {
                return size;
            }
        }
        // Nearly always only one space is left, and a datagram is a packet.
        let Some(permit) = self.permit(cx.now, SpaceId::DATA, allowance, out.len()) else { return 0 };
        let Some(mut packet) = self.open_packet(cx, SpaceId::DATA, out, 0, permit) else { return 0 };
        if packet.ack_eliciting
            && let Some(sender) = &mut self.sources.fec.sender
        {
            sender.on_packet(cx.now);
        }
        let limit = out.len() - TAG_LEN;
        // What ends a symbol may have no length of its own: nothing follows it.
        let cut = packet.symbol > 0 && self.sources.fec.cuts_symbols();
        if !cut && packet.end < limit && packet.leaves_gap(limit, allowance, out.len(), &self.sources.streams) {
            packet.pad(out, limit, cx.stats);
        }
        if !cut && cx.silence.take_padding() {
            packet.pad(out, MIN_INITIAL_DATAGRAM.min(out.len()) - TAG_LEN, cx.stats);
        }
        packet.book_header(cx.stats);
        self.close_packet(cx, &packet, out)
    }

    /// Builds a datagram with a packet of each space that has frames to send.
    // RFC 9001 §4 SHOULD-1: packets of several types share a datagram
    fn build_coalesced(&mut self, cx: &mut SendContext<'_>, out: &mut [u8], allowance: u64) -> usize {
        let mut open: [Option<OpenPacket>; 3] = [None; 3];
        let mut count = 0;
        let mut at = 0;
        for space in [SpaceId::Initial, SpaceId::Handshake, SpaceId::DATA] {
            if out.len() - at < MIN_PACKET_ROOM {
                break;
            }
            let Some(permit) = self.permit(cx.now, space, allowance.saturating_sub(at as u64), out.len()) else {
                continue;
            };
            // What TLS answers is due soon and takes the acknowledgement along.
            if !permit.data && self.sources.handshake.is_away() {
                continue;
            }
            if let Some(packet) = self.open_packet(cx, space, out, at, permit) {
                if packet.symbol > 0
                    && let Some(sender) = &mut self.sources.fec.sender
                {
                    sender.on_packet(cx.now);
                }
                at = packet.end + TAG_LEN;
                open[count] = Some(packet);
                count += 1;
            }
        }
        expand(&mut open, cx.side, out, cx.stats);
        let mut size = 0;
        for packet in open.iter().flatten() {
            packet.book_header(cx.stats);
            size = self.close_packet(cx, packet, out);
        }
        size
    }

    /// Returns the permission to send a packet in a space, with its limits.
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
        cx: &mut SendContext<'_>,
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
        let (mut w, packet) = self.begin_packet((id, protection), cx.on_active(), out, start, 4)?;
        let space = self.spaces.get_mut(id)?;
        let frames_start = w.position();
        // RFC 9000 §10.3 SHOULD-2: long enough that a stateless reset which answers it is long enough to look like a packet.
        let least = if matches!(id, SpaceId::Data(_)) { self.identity.local_ids.id_len() + 22 - TAG_LEN } else { 0 };
        // RFC 9000 §13.2.6 MUST-3, RFC 9000 §17.2.3 MUST-2, RFC 9001 §5.6 MUST NOT-2: a 0-RTT packet cannot carry an
        // acknowledgement.
        if !early {
            if let Some(largest) = space.write_ack(cx.now, &mut w) {
                cx.stats.ack_frames_sent += 1;
                if let SpaceId::Data(path) = id {
                    self.keys.on_ack_sent(path, largest);
                }
            }
            if self.sources.fec.receiver.is_some() && matches!(id, SpaceId::Data(_)) {
                self.sources.write_symbol_ack(&mut space.ledger, &mut w);
            }
        }
        let after_ack = w.position();
        cx.stats.ack_bytes_sent += (after_ack - frames_start) as u64;
        let (mut symbol, mut tail) = (None, None);
        if permit.data {
            if (permit.probe || self.sources.ack_requests.is_sparse())
                && self.sources.needs_prompt_ack(cx.paths.active(), id, permit)
            {
                write_immediate_ack(cx.stats, &mut w);
            }
            // Whoever looks at the packet before it is sealed sees it whole.
            let may_leave_out = !early
                && self.sources.handshake.is_confirmed()
                && cx.observation.observer.is_none()
                && self.sources.fec.sender.is_none()
                && self.keys.seals_from_elsewhere();
            let left_out = if may_leave_out { Some(&mut tail) } else { None };
            let mut context = PacketContext {
                now: cx.now,
                space: id,
                frames_start,
                pn_len: packet.pn_len,
                ledger: &mut space.ledger,
                identity: &mut self.identity,
                stats: &mut *cx.stats,
            };
            let asks = self.sources.ack_requests.wants_to_send();
            symbol = self.sources.write_frames(&mut context, left_out, &mut w);
            if asks && !self.sources.ack_requests.wants_to_send() {
                self.sources.apply_ack_delay(cx.paths);
            }
        }
        let space = self.spaces.get_mut(id)?;
        let mut ack_eliciting = w.position() > after_ack;
        // RFC 9000 §13.2.1 MUST NOT-3: not every acknowledgement asks for one itself, or they would never end
        let ask = permit.probe || (after_ack > frames_start && space.ledger.since_ack_eliciting() >= PING_AFTER_ACKS);
        // RFC 9002 §6.2.4 MUST-2: probes ask for an acknowledgement
        // RFC 9002 §6.2.4 SHOULD-3: a probe with nothing to say is a PING
        if !ack_eliciting && ask && w.remaining() > 0 {
            write_ping(&mut w);
            cx.stats.probe_bytes_sent += 1;
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
        cx.stats.padding_bytes_sent += padding;
        Some(OpenPacket {
            ack_eliciting,
            in_flight: ack_eliciting || padding > 0,
            probe: permit.probe,
            symbol: symbol.map_or(0, |at| start + at),
            tail,
            ..packet.finish(&w)
        })
    }

    /// Begins the next packet of a space on a path, which is the active one if the second half is set: see [`Identity::begin_packet`].
    #[inline(always)]
    pub(super) fn begin_packet<'b>(
        &self,
        protection: (SpaceId, Protection),
        path: (PathIndex, bool),
        out: &'b mut [u8],
        start: usize,
        least: usize,
    ) -> Option<(Writer<'b>, OpenPacket)> {
        let ledger = &self.spaces.get(protection.0)?.ledger;
        self.identity.begin_packet(ledger, protection, path, out, start, least)
    }
    /// Seals a packet, enters it into the ledger and charges its path. Returns where it ends.
    #[inline(always)]
    pub(super) fn close_packet(&mut self, cx: &mut SendContext<'_>, packet: &OpenPacket, out: &mut [u8]) -> usize {
        let end = packet.end + TAG_LEN;
        if let Some(pos) = &packet.long {
            wire::patch_length(out, pos, end);
        }
        if packet.long.is_none() {
            out[packet.start] = self.random.short_first_byte(cx.paths[packet.path].spin, out[packet.start]);
        }
        if let Some(observer) = &mut cx.observation.observer {
            observer.packet_sent(cx.now, &packet.event(out, self.keys.updates()));
        }
        if packet.symbol > 0
            && let Some(sender) = &mut self.sources.fec.sender
        {
            sender.on_sent(cx.now, packet.pn, &out[packet.symbol..packet.end]);
        }
        let sealed = packet.seal(out, &mut self.keys, &self.sources.streams);
        if packet.is_early() {
            cx.stats.early_packets_sent += 1;
            cx.stats.early_bytes_sent += (end - packet.start) as u64;
        } else if matches!(packet.space, SpaceId::Data(_)) {
            // RFC 9001 §6.6: near the limit of their use the keys are updated without being asked.
            self.key_updates.note(&self.keys, cx.stats, cx.observation, cx.now, Initiator::Local);
        }
        if let Err(error) = sealed {
            self.key_updates.seal_error = Some(Box::new(error.into()));
        }
        let sent = packet.sent(cx.now, cx.ecn);
        if let Some(space) = self.spaces.get_mut(packet.space) {
            cx.paths[packet.path].recovery.on_packet_sent(&mut space.ledger, packet.space, &sent);
        }
        cx.stats.packets_sent += 1;
        cx.stats.ack_only_packets_sent += u64::from(!packet.ack_eliciting);
        self.has_elicited |= packet.ack_eliciting;
        // RFC 9001 §4.9.1 MUST-1, MUST NOT-1: a client forgets the Initial keys when it first sends a Handshake packet.
        if cx.side == Side::Client && packet.space == SpaceId::Handshake {
            self.discard_space(cx.now, SpaceId::Initial, cx.paths, cx.observation);
        }
        end
    }
}
