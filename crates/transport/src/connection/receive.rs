//! A datagram in: split into packets, decrypted in place, processed frame by frame.

use std::{net::SocketAddr, ops::Range};

use bytes::BytesMut;
use units::Instant;
use wire::{ConnectionId, LongType, PacketKind, ResetToken, Side};

use super::{
    Connection,
    coalesced::{Coalesced, LongPacket, Part, Rules},
    labels,
    packets::Packets,
    spaces::SpaceId,
};
use crate::{
    PathId,
    acks::Ecn,
    events::CloseReason,
    keys::{OpenError, Opened},
    observe::{DropReason, Ending, Initiator, PacketEvent, Unsealed},
    path::ArrivalPath,
    sent::PathIndex,
    timers::Timer,
    tls::Level,
    udp::Datagram,
};

/// Properties of a packet's datagram.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) path: ArrivalPath,
    pub(super) received_at: Instant,
    pub(super) ecn: Option<Ecn>,
    /// The packet had to wait for its keys.
    pub(super) waited: bool,
}

/// Space, level and kind of packets with this long header.
pub(super) fn place_of(ty: LongType) -> (SpaceId, Level, PacketKind) {
    match ty {
        LongType::Initial => (SpaceId::Initial, Level::Initial, PacketKind::Initial),
        LongType::Handshake => (SpaceId::Handshake, Level::Handshake, PacketKind::Handshake),
        LongType::ZeroRtt => (SpaceId::DATA, Level::ZeroRtt, PacketKind::ZeroRtt),
    }
}

/// Properties of an opened packet, for the parts in the order in which they handle it.
pub(super) struct PacketSeen<'a> {
    pub(super) space: SpaceId,
    pub(super) kind: PacketKind,
    pub(super) pn: u64,
    /// The ID that it was sent to.
    pub(super) dcid: &'a [u8],
    pub(super) arrival: Arrival,
    /// The path that it arrived on.
    pub(super) path: PathIndex,
    /// Sealed with the keys of the phase before the present one.
    pub(super) old_keys: bool,
    /// Spin bit; meaningless in packets with a long header.
    pub(super) spin: bool,
}

impl<'a> PacketSeen<'a> {
    /// Packet with a short header. `header` begins with everything before the packet number.
    #[inline]
    fn short(header: &'a [u8], opened: &Opened, arrival: Arrival) -> Self {
        Self {
            space: SpaceId::DATA,
            kind: PacketKind::OneRtt,
            pn: opened.pn,
            dcid: &header[1..],
            arrival,
            path: PathIndex::FIRST,
            old_keys: opened.old_keys,
            spin: header[0] & wire::bits::SPIN != 0,
        }
    }

    /// Event for observers: the packet in `opened`, with `header` bytes before its frames. It had `size` bytes.
    fn event<'b>(&self, opened: &'b [u8], header: usize, size: usize, key_phase: u64) -> PacketEvent<'b> {
        let (header, payload) = opened.split_at(header);
        PacketEvent {
            space: self.kind,
            pn: self.pn,
            size,
            header,
            key_phase: key_phase.saturating_sub(u64::from(self.old_keys)),
            payload,
            out_of_turn: self.arrival.waited,
        }
    }
}

impl Connection {
    /// Processes payloads of one read for this connection. A slice of them pins `buffer` bytes in memory.
    pub(crate) fn handle_datagram(&mut self, now: Instant, datagram: Datagram, buffer: usize) {
        self.observation.datagrams_received(now, &datagram);
        let Datagram { remote, local, ecn, received_at, segment_size, mut payload } = datagram;
        let bytes = payload.len();
        let segments = bytes.div_ceil(segment_size.max(1)) as u64;
        self.stats.datagrams_received += segments;
        self.stats.bytes_received += payload.len() as u64;
        if !self.lifecycle.is_open() {
            self.stats.closing_bytes_received += payload.len() as u64;
            if let Some(path) = self.paths.iter_mut().find(|path| path.may_be(remote, local)) {
                path.amplification.on_received(payload.len());
            }
            payload.chunks_mut(segment_size.max(1)).for_each(|payload| {
                self.lifecycle.hear(payload, &mut self.packets.keys, &self.packets.spaces, &self.packets.identity);
            });
            return;
        }
        let Some(path) = self.path_of(now, remote, local, payload.len()) else { return };
        if let ArrivalPath::Known(path) = path {
            // RFC 9000 §8.1 MUST-1: all bytes of datagrams that belong to the connection count towards the limit
            self.paths[path].amplification.on_received(payload.len());
        }
        self.packets.sources.streams.tune(now, self.paths.active().recovery.rtt().sampled());
        let arrival = Arrival { path, received_at, ecn, waited: false };
        let (processed, acks_only) = (self.stats.packets_received, self.stats.ack_only_packets_received);
        let mut start = 0;
        while start < payload.len() && self.lifecycle.is_open() {
            let end = (start + segment_size.max(1)).min(payload.len());
            self.handle_payload(now, &mut payload, start, end, arrival);
            start = end;
        }
        self.stats.closing_bytes_received += (payload.len() - start) as u64;
        self.finish_batch(now, payload, buffer);
        if !self.reception.unopened.is_empty() {
            self.retry_unopened(now);
        }
        if self.stats.packets_received > processed && self.lifecycle.is_open() {
            self.restart_idle(now);
            self.restart_silence(now);
        }
        let packets = self.stats.packets_received - processed;
        let acks_only = packets != 0 && packets <= self.stats.ack_only_packets_received - acks_only;
        if !acks_only && self.memory.on_arrived(bytes) {
            self.account(now);
        }
    }

    /// Hands up what the batch carried.
    pub(super) fn finish_batch(&mut self, now: Instant, payload: BytesMut, buffer: usize) {
        if self.reception.deferred.is_empty() {
            return;
        }
        let payload = payload.freeze();
        if let Err(error) = self.reception.deliver(&mut self.packets.sources, &mut self.stats, &payload, buffer) {
            self.fail(now, error);
        }
    }

    /// One UDP payload: packets one after the other.
    #[inline]
    pub(super) fn handle_payload(
        &mut self,
        now: Instant,
        buffer: &mut BytesMut,
        start: usize,
        end: usize,
        arrival: Arrival,
    ) {
        let id_len = self.packets.identity.local_ids.id_len();
        // After the handshake a datagram is one packet with a short header.
        // RFC 9287 §3 MUST-2: who offers that takes packets without the fixed bit
        let payload = &buffer[start..end];
        if !wire::is_long(payload) && (self.profile.grease || wire::fixed_bit(payload)) && payload.len() > id_len {
            self.handle_short(now, buffer, start, end, 1 + id_len, arrival);
        } else {
            self.handle_coalesced(now, buffer, start, end, arrival);
        }
    }

    /// Processes coalesced packets, and bytes that are no packet.
    fn handle_coalesced(&mut self, now: Instant, buffer: &mut BytesMut, start: usize, end: usize, arrival: Arrival) {
        let rules =
            Rules { side: self.side, id_len: self.packets.identity.local_ids.id_len(), grease: self.profile.grease };
        let mut parts = Coalesced::new(rules, start, end);
        // The first packet has a long header and cannot be opened.
        let mut unreadable = wire::is_long(&buffer[start..end]);
        while self.lifecycle.is_open()
            && let Some((place, part)) = parts.next(buffer)
        {
            match part {
                Part::Short => self.handle_last_short(now, buffer, place.start, end, arrival),
                Part::Long(packet) => {
                    // RFC 9000 §5.2.1 MUST-1: a client drops packets of a version other than the one it chose
                    let Self { side, packets: Packets { identity, keys, sources, .. }, .. } = self;
                    if !identity.speaks(*side, &packet, &buffer[place.clone()], keys, &mut sources.handshake) {
                        self.stats.ignored_bytes_received += (place.len() + parts.skip_rest()) as u64;
                    } else if packet.is_refused {
                        self.drop_invalid(now, place.len());
                    } else {
                        let opened = self.handle_long(now, buffer, place, &packet, arrival);
                        unreadable &= !packet.is_first || !opened;
                    }
                }
                Part::Retry { scid, token } => {
                    let token = buffer[place.clone()][token].to_vec();
                    let packet = buffer[place].to_vec();
                    self.handle_retry(now, &packet, scid, token);
                }
                Part::VersionNegotiation { scid, versions } => {
                    let packet = &buffer[place.clone()];
                    // RFC 8999 §6: it comes from the ID that we addressed, which only who saw our packet knows.
                    if packet[scid] == *self.packets.identity.remote_ids.current().as_slice() {
                        let offered: Vec<u32> = wire::header::versions(&packet[versions]).collect();
                        self.handle_version_negotiation(now, offered, place.len());
                    } else {
                        self.stats.ignored_bytes_received += (place.len() + parts.skip_rest()) as u64;
                    }
                }
                Part::Invalid => self.drop_invalid(now, place.len()),
                Part::Ignored => self.stats.ignored_bytes_received += place.len() as u64,
            }
        }
        // What follows a packet that ended the connection.
        self.stats.closing_bytes_received += parts.rest() as u64;
        // RFC 9000 §10.3 MUST-4: another version may have resets with long headers.
        if unreadable && self.lifecycle.is_open() {
            self.check_reset(now, &buffer[start..end]);
        }
    }

    fn drop_invalid(&mut self, now: Instant, size: usize) {
        self.observation.drop_packet(&mut self.stats, now, None, size, DropReason::Invalid);
    }

    /// `false` when the packet cannot be opened.
    fn handle_long(
        &mut self,
        now: Instant,
        buffer: &mut BytesMut,
        place: Range<usize>,
        packet: &LongPacket,
        arrival: Arrival,
    ) -> bool {
        let &LongPacket { ty, version, dcid, scid, pn_offset, .. } = packet;
        let Range { start, end } = place;
        let (space, level, kind) = place_of(ty);
        let expected = self.packets.spaces.expected_pn(space);
        let packet = &mut buffer[start..end];
        let opened = match level {
            Level::Initial if version != self.packets.identity.version => {
                self.packets.keys.open_first_initial(packet, pn_offset, expected)
            }
            _ => self.packets.keys.open_long(level, packet, pn_offset, expected),
        };
        match opened {
            Ok(opened) => {
                self.start_watching(now);
                if !self.packets.identity.accept_source(scid) {
                    self.stats.ignored_bytes_received += (end - start) as u64;
                    return true;
                }
                self.lifecycle.on_answered();
                if self.side == Side::Server
                    && level == Level::Handshake
                    && let ArrivalPath::Known(path) = arrival.path
                {
                    // RFC 9000 §8.1: whoever can seal a Handshake packet has received ours, so the address is real.
                    self.paths[path].amplification.validate();
                    // RFC 9001 §4.9.1 MUST-2: a server's Initial keys go with the first Handshake packet that it
                    // opens
                    // RFC 9001 §4.9.1 MUST NOT-1: no Initial packets after that
                    self.packets.discard_space(now, SpaceId::Initial, &mut self.paths, &mut self.observation);
                }
                let (pn, path) = (opened.pn, PathIndex::FIRST);
                let seen = PacketSeen { space, kind, pn, dcid: &dcid, arrival, path, old_keys: false, spin: false };
                self.handle_opened(now, buffer, start, opened, seen);
                true
            }
            Err(OpenError::NoKeys) if self.packets.spaces.get(space).is_some() => {
                self.keep_unopened(now, level, &buffer[start..end], arrival);
                false
            }
            // RFC 9000 §12.2 MUST-3: a packet that cannot be opened does not stop the others in its datagram
            Err(error) => {
                self.on_unopenable(now, level, end - start, error);
                false
            }
        }
    }

    /// A packet with a short header behind others. Apart, so that those that come alone stay cheap.
    #[inline(never)]
    fn handle_last_short(&mut self, now: Instant, buffer: &mut BytesMut, start: usize, end: usize, arrival: Arrival) {
        let pn_offset = 1 + self.packets.identity.local_ids.id_len();
        self.handle_short(now, buffer, start, end, pn_offset, arrival);
    }

    #[inline(always)]
    fn handle_short(
        &mut self,
        now: Instant,
        buffer: &mut BytesMut,
        start: usize,
        end: usize,
        pn_offset: usize,
        arrival: Arrival,
    ) {
        let expected = self.packets.spaces.expected_pn(SpaceId::DATA);
        match self.packets.keys.open_short(&mut buffer[start..end], pn_offset, PathId(0), expected) {
            Ok(opened) => {
                if opened.new_phase {
                    // RFC 9001 §6.5 SHOULD-2, SHOULD-3: late packets of the old phase are opened for three probe
                    // timeouts.
                    self.packets.keys.retire_previous_at(now + self.pto() * 3);
                    self.packets.key_updates.note(
                        &self.packets.keys,
                        &mut self.stats,
                        &mut self.observation,
                        now,
                        Initiator::Remote,
                    );
                }
                let seen = PacketSeen::short(&buffer[start..start + pn_offset], &opened, arrival);
                self.handle_opened(now, buffer, start, opened, seen);
            }
            Err(OpenError::NoKeys) => self.keep_unopened(now, Level::OneRtt, &buffer[start..end], arrival),
            Err(error) => {
                self.on_unopenable(now, Level::OneRtt, end - start, error);
                if error.fatal().is_none() {
                    self.check_reset(now, &buffer[start..end]);
                }
            }
        }
    }

    #[cold]
    fn on_unopenable(&mut self, now: Instant, level: Level, size: usize, error: OpenError) {
        match error.fatal() {
            Some(error) => {
                self.stats.undecryptable_bytes_received += size as u64;
                self.fail(now, error);
            }
            None => self.observation.drop_packet(&mut self.stats, now, Some(level), size, DropReason::Undecryptable),
        }
    }

    /// An authentic packet: its frames, then what the whole packet means.
    #[inline(always)]
    fn handle_opened(
        &mut self,
        now: Instant,
        buffer: &BytesMut,
        start: usize,
        opened: Opened,
        mut seen: PacketSeen<'_>,
    ) {
        let size = opened.payload.end + crate::crypto::TAG_LEN;
        // RFC 9000 §12.3 MUST-3, MUST-4: a packet number is processed once.
        if self.packets.spaces.get(seen.space).is_none_or(|s| s.acks.is_duplicate(seen.pn)) {
            self.observation.drop_packet(&mut self.stats, now, Some(seen.kind), size, DropReason::Duplicate);
            return;
        }
        seen.path = match seen.arrival.path {
            ArrivalPath::Known(path) => path,
            ArrivalPath::Candidate => {
                let Some(path) = self.promote_candidate(now) else {
                    self.stats.ignored_bytes_received += size as u64;
                    return;
                };
                path
            }
        };
        self.stats.packets_received += 1;
        self.stats.packet_bytes_received += size as u64;
        if seen.kind == PacketKind::ZeroRtt {
            self.stats.early_packets_received += 1;
            self.stats.early_bytes_received += opened.payload.len() as u64;
        }
        let range = start + opened.payload.start..start + opened.payload.end;
        if let Some(observer) = &mut self.observation.observer {
            let event = seen.event(&buffer[start..range.end], range.start - start, size, self.packets.keys.updates());
            observer.packet_received(now, &event);
        }
        match self.handle_frames(now, &buffer[range.clone()], range.start, &seen) {
            Ok(()) => self.on_packet_processed(now, &seen),
            // RFC 9000 §5.2 MUST-1: a packet in which an error is found half-way either ends the connection or leaves
            // no trace
            // RFC 9000 §11.1 MUST-1: what makes the connection unusable is said with CONNECTION_CLOSE
            Err(error) => self.fail(now, error),
        }
    }

    /// Lets the handshake use what the packet brought. The idle timer restarts once for the whole batch.
    fn on_packet_processed(&mut self, now: Instant, seen: &PacketSeen<'_>) {
        if !self.lifecycle.is_open() {
            return;
        }
        self.idle.is_restarted = false;
        // Tickets come in 1-RTT packets after the handshake.
        if seen.kind != PacketKind::OneRtt
            || !self.packets.sources.handshake.is_confirmed()
            || self.packets.sources.handshake.has_unread()
        {
            self.progress_handshake(now);
        }
    }

    /// Checks an unreadable packet for a stateless reset.
    // RFC 9000 §10.3.1 MUST-1, MUST-2: compare the last 16 bytes with the token of the ID in use, without leaking by
    // timing.
    fn check_reset(&mut self, now: Instant, packet: &[u8]) {
        if let Some(token) = ResetToken::at_end_of(packet)
            && self.packets.identity.remote_ids.is_reset(&token.0)
        {
            self.on_reset(now, packet.len());
        }
    }

    /// Processes a stateless reset that the endpoint has found by the token of the peer's active ID. Returns `false` if it comes from
    /// another address than the peer's.
    // RFC 9000 §10.3.1: a token counts for the remote address that its ID was used with.
    pub(crate) fn handle_reset(&mut self, now: Instant, remote: SocketAddr, size: usize) -> bool {
        let known = self.paths.has_remote(remote);
        if known {
            self.on_reset(now, size);
        }
        known
    }

    #[cold]
    fn on_reset(&mut self, now: Instant, size: usize) {
        self.observation.tell(now, |observer, at| observer.unsealed_received(at, &Unsealed::StatelessReset, size));
        // RFC 9000 §10.3.1 MUST-3: a reset that fits drains the connection, and nothing more is sent
        self.drain(now, CloseReason::Reset);
    }

    /// Processes Retry: the server wants its token back before it keeps state.
    fn handle_retry(&mut self, now: Instant, packet: &[u8], scid: ConnectionId, token: Vec<u8>) {
        // RFC 9000 §17.2.5.2 MUST-1, MUST-2, MUST-3, MUST-4, RFC 9000 §17.2.5.1 MUST-1: only a client's first, only
        // before anything else was accepted, only with a token, an ID that differs from ours, and a valid tag.
        let original = *self.packets.identity.remote_ids.current();
        if self.side == Side::Server || self.lifecycle.is_answered() || token.is_empty() || scid == original {
            self.stats.ignored_bytes_received += packet.len() as u64;
            return;
        }
        if crate::crypto::verify_retry_tag(labels(self.packets.identity.version), original.as_slice(), packet).is_err()
        {
            self.observation.drop_packet(&mut self.stats, now, None, packet.len(), DropReason::Undecryptable);
            return;
        }
        self.stats.unsealed_bytes_received += packet.len() as u64;
        let retry = Unsealed::Retry { scid, token_len: token.len() };
        self.observation.tell(now, |observer, at| observer.unsealed_received(at, &retry, packet.len()));
        self.lifecycle.on_answered();
        self.packets.identity.follow_retry(scid, token);
        self.packets.keys.set_initial(scid.as_slice());
        self.observation.initial_keys_replaced(now);
        self.packets.resend_initial(now, &mut self.paths);
        self.packets.void_early(now, true, &mut self.paths);
    }

    // RFC 9000 §6.2 MUST-1, MUST-2, MUST-3: Version Negotiation counts only before any other packet, and not if it
    // offers what we chose.
    fn handle_version_negotiation(&mut self, now: Instant, offered: Vec<u32>, size: usize) {
        // RFC 9368 §2.1 MUST-1: a server ignores it
        if self.side == Side::Server
            || self.lifecycle.is_answered()
            || !self.packets.identity.minds_negotiation(&offered)
        {
            self.stats.ignored_bytes_received += size as u64;
            return;
        }
        self.stats.unsealed_bytes_received += size as u64;
        let negotiation = Unsealed::VersionNegotiation { versions: &offered };
        self.observation.tell(now, |observer, at| observer.unsealed_received(at, &negotiation, size));
        if self.lifecycle.drain() {
            self.end(now, CloseReason::VersionMismatch { offered }, Ending::Silent);
            // Nobody holds state for this connection: nothing has to drain.
            self.timers.set(Timer::Close, Some(now));
        }
    }
}
