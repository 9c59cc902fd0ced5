//! Probes of paths out: challenges, and answers to those of the peer (RFC 9000 §8.2).

use units::Instant;
use wire::{Frame, Writer, packet_number_len};

use super::{
    Connection,
    spaces::SpaceId,
    transmit::{MIN_INITIAL_DATAGRAM, MIN_PACKET_ROOM, OpenPacket},
};
use crate::{crypto::TAG_LEN, endpoint::Transmit, observe::DatagramsEvent, path::Path, tls::Level};

impl Connection {
    /// PATH_CHALLENGE and PATH_RESPONSE, each on the path that it is about, in a datagram of its own.
    pub(super) fn transmit_path_probe(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        let may_send = |path: &Path| path.amplification.budget() >= MIN_PACKET_ROOM as u64;
        let place = self.paths.0.iter().position(|p| p.challenge.wants_to_send() && may_send(p))?;
        if !self.keys.can_seal(Level::OneRtt) {
            return None;
        }
        let path = &mut self.paths[place];
        let room = usize::try_from(path.amplification.budget()).unwrap_or(usize::MAX).min(path.mtu.into());
        if buffer.len() < room {
            return None;
        }
        let full = MIN_INITIAL_DATAGRAM.min(path.mtu.into());
        let challenge = path.challenge.take_challenge(room >= full);
        let (remote, local) = (path.remote, path.local);
        let space = self.spaces.get_mut(SpaceId::DATA)?;
        let pn = space.ledger.next_pn();
        let pn_len = packet_number_len(pn, space.ledger.largest_acked());
        let dcid = if place == self.active { *self.remote_ids.current() } else { *self.remote_ids.on_path(place) };
        let mut w = Writer::new(&mut buffer[..room - TAG_LEN]);
        let pn_offset = wire::encode_short(&mut w, &dcid, pn, pn_len, false, false);
        let challenge = challenge.map(Frame::PathChallenge);
        let reserved = challenge.as_ref().map_or(0, Frame::encoded_len);
        // All in one datagram, so that many challenges in one datagram cost no more than one.
        while w.remaining() >= reserved + Frame::PathResponse([0; 8]).encoded_len()
            && let Some(data) = self.paths[place].challenge.take_response()
        {
            Frame::PathResponse(data).encode(&mut w);
        }
        if let Some(challenge) = challenge {
            challenge.encode(&mut w);
        }
        // RFC 9000 §8.2.1 MUST-2, RFC 9000 §8.2.2 MUST-3, MUST NOT-3: both fill a datagram of 1,200 bytes, unless the
        // amplification limit forbids.
        let end = w.position().max(full.min(room) - TAG_LEN);
        let padding = end - w.position();
        w.reserve(padding).fill(0);
        let packet = OpenPacket {
            space: SpaceId::DATA,
            start: 0,
            pn_offset,
            pn,
            pn_len,
            long: None,
            end,
            ack_eliciting: true,
            in_flight: true,
            probe: false,
            mtu_probe: false,
            symbol: 0,
            tail: None,
        };
        let active = std::mem::replace(&mut self.active, place);
        let len = self.close_packet(now, &packet, buffer, None);
        self.active = active;
        if let Some(error) = self.seal_failed.take() {
            self.fail(now, *error);
            return None;
        }
        self.paths[place].amplification.on_sent(len);
        self.stats.datagrams_sent += 1;
        self.stats.probe_bytes_sent += len as u64;
        self.stats.bytes_sent += len as u64;
        self.observe(now, |observer, at| {
            observer.datagrams_sent(at, &DatagramsEvent { len, segment_size: len, ecn: None });
        });
        Some(Transmit { remote, local, ecn: None, len, segment_size: len })
    }
}
