//! Path probes: PATH_CHALLENGE, and PATH_RESPONSE to the challenges of the peer (RFC 9000 §8.2).

use units::Instant;
use wire::{Frame, Writer};

use super::{
    Connection,
    packet::{Protection, pad_until},
    packets::{MIN_INITIAL_DATAGRAM, MIN_PACKET_ROOM},
    spaces::SpaceId,
};
use crate::{
    crypto::TAG_LEN,
    path::{Challenge, Path},
    tls::Level,
    udp::Transmit,
};

impl Connection {
    /// Sends PATH_CHALLENGE and PATH_RESPONSE, each on its path, in a separate datagram.
    pub(super) fn transmit_path_probe(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        let may_send = |path: &Path| path.amplification.budget() >= MIN_PACKET_ROOM as u64;
        let index = self.paths.find(|path| path.challenge.wants_to_send() && may_send(path))?;
        if !self.packets.keys.can_seal(Level::OneRtt) {
            return None;
        }
        let path = &mut self.paths[index];
        let room = usize::try_from(path.amplification.budget()).unwrap_or(usize::MAX).min(path.mtu.into());
        if buffer.len() < room {
            return None;
        }
        let full = MIN_INITIAL_DATAGRAM.min(path.mtu.into());
        let challenge = path.challenge.take_challenge(room >= full);
        let space = (SpaceId::DATA, Protection::Space);
        let active = index == self.paths.active_index();
        let (mut w, packet) = self.packets.begin_packet(space, (index, active), &mut buffer[..room], 0, 0)?;
        write_probe(&mut self.paths[index].challenge, challenge, &mut w);
        // RFC 9000 §8.2.1 MUST-2, RFC 9000 §8.2.2 MUST-3, MUST NOT-3: both fill a datagram of 1,200 bytes, unless the
        // amplification limit forbids.
        pad_until(&mut w, full.min(room) - TAG_LEN);
        self.send_probe(now, &packet.finish(&w), buffer, None)
    }
}

/// Writes the answers that wait, and a challenge.
fn write_probe(path: &mut Challenge, challenge: Option<[u8; 8]>, w: &mut Writer<'_>) {
    let challenge = challenge.map(Frame::PathChallenge);
    let reserved = challenge.as_ref().map_or(0, Frame::encoded_len);
    // All in one datagram, so that many challenges in one datagram cost no more than one.
    while w.remaining() >= reserved + Frame::PathResponse([0; 8]).encoded_len()
        && let Some(data) = path.take_response()
    {
        Frame::PathResponse(data).encode(w);
    }
    if let Some(challenge) = challenge {
        challenge.encode(w);
    }
}
