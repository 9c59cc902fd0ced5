//! Packets of a handshake, of both sides: which of them did not arrive, while it is not complete.

use std::collections::BTreeSet;

use tiderace::transport::observe::{PacketEvent, PacketSpace};
use wire::{Frame, Frames};

use super::evidence::HandshakeFacts;

/// Gap of packet numbers that counts as skipped by the server, not as lost.
const SKIPPED: u64 = 64;
/// Packets of this end that are remembered in each space.
const PACKETS_MAX: usize = 256;

/// Initial or Handshake packets.
#[derive(Debug, Default)]
struct Space {
    /// Ack-eliciting packets of this end that are not acknowledged.
    unacknowledged: BTreeSet<u64>,
    sent: u64,
    received: u64,
    /// Largest packet number received.
    largest: Option<u64>,
    /// Numbers below it that did not come.
    missing: u64,
}

impl Space {
    fn send(&mut self, pn: u64) {
        if self.unacknowledged.len() < PACKETS_MAX {
            self.unacknowledged.insert(pn);
            self.sent += 1;
        }
    }

    fn receive(&mut self, pn: u64) {
        self.received += 1;
        match self.largest {
            // A server need not begin at 0: what is below the first that comes is unknown.
            None => self.largest = Some(pn),
            Some(largest) if pn > largest => {
                let gap = pn - largest - 1;
                self.missing += if gap <= SKIPPED { gap } else { 0 };
                self.largest = Some(pn);
            }
            Some(_) => self.missing = self.missing.saturating_sub(1),
        }
    }
}

/// Both spaces of a handshake.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    initial: Space,
    handshake: Space,
}

impl Handshake {
    fn space(&mut self, space: PacketSpace) -> Option<&mut Space> {
        match space {
            PacketSpace::Initial => Some(&mut self.initial),
            PacketSpace::Handshake => Some(&mut self.handshake),
            _ => None,
        }
    }

    pub(super) fn sent(&mut self, packet: &PacketEvent<'_>) {
        let elicits = Frames::new(packet.payload).map_while(Result::ok).any(|frame| frame.is_ack_eliciting());
        if let Some(space) = self.space(packet.space).filter(|_| elicits) {
            space.send(packet.pn);
        }
    }

    pub(super) fn received(&mut self, packet: &PacketEvent<'_>) {
        let Some(space) = self.space(packet.space) else { return };
        space.receive(packet.pn);
        for frame in Frames::new(packet.payload).map_while(Result::ok) {
            if let Frame::Ack(ack) = frame {
                space.unacknowledged.retain(|pn| !ack.ranges().any(|range| range.contains(pn)));
            }
        }
    }

    pub(super) fn facts(&self) -> HandshakeFacts {
        let spaces = [&self.initial, &self.handshake];
        let sum = |of: fn(&Space) -> u64| spaces.into_iter().map(of).sum();
        HandshakeFacts {
            sent: sum(|space| space.sent),
            unacknowledged: sum(|space| space.unacknowledged.len() as u64),
            received: sum(|space| space.received),
            missing: sum(|space| space.missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with these frames.
    fn packet(space: PacketSpace, pn: u64, payload: &[u8]) -> PacketEvent<'_> {
        PacketEvent { space, pn, size: 1_200, header: &[], key_phase: 0, payload, out_of_turn: false }
    }

    const PING: &[u8] = &[1];
    const PADDING: &[u8] = &[0, 0];
    /// ACK of packets 0 and 2.
    const ACK: &[u8] = &[2, 2, 0, 1, 0, 0, 0];

    #[test]
    fn what_was_not_acknowledged_and_what_did_not_come_is_counted() {
        let mut handshake = Handshake::default();
        for pn in 0..4 {
            handshake.sent(&packet(PacketSpace::Initial, pn, PING));
        }
        handshake.sent(&packet(PacketSpace::Initial, 4, PADDING));
        handshake.sent(&packet(PacketSpace::OneRtt, 0, PING));
        // 5 is the first that comes; 6 and 8 do not, 7 is late.
        for pn in [5, 9, 7] {
            handshake.received(&packet(PacketSpace::Initial, pn, ACK));
        }
        handshake.received(&packet(PacketSpace::Handshake, 0, PADDING));
        let facts = HandshakeFacts { sent: 4, unacknowledged: 2, received: 4, missing: 2 };
        assert_eq!(handshake.facts(), facts);
        assert_eq!((facts.lost(), facts.packets()), (4, 10));
        // A number of the other space acknowledges nothing here, and a jump is no loss.
        handshake.received(&packet(PacketSpace::Handshake, 1 << 40, &[2, 3, 0, 0, 3]));
        assert_eq!(handshake.facts(), HandshakeFacts { received: 5, ..facts });
    }

    #[test]
    fn memory_is_bounded() {
        let mut handshake = Handshake::default();
        for pn in 0..100_000 {
            handshake.sent(&packet(PacketSpace::Initial, pn, PING));
        }
        assert_eq!(handshake.facts().unacknowledged, PACKETS_MAX as u64);
    }
}
