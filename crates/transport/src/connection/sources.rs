//! Sources of frames: what a space has to say, and the order in which it is written into a packet.

use units::Instant;
use wire::{Frame, Writer};

use super::{Connection, spaces::SpaceId, transmit::Permit};
use crate::{path::Path, sent::SentFrame, streams::Tail};

/// Our `ack_delay_exponent`: the default, so that it is not sent.
pub(super) const ACK_DELAY_EXPONENT: u8 = 3;

impl Connection {
    /// Returns whether a space has anything to say beside acknowledgements.
    #[inline]
    pub(super) fn wants_to_send(&self, id: SpaceId) -> bool {
        let data = matches!(id, SpaceId::Data(_));
        data && self.streams.wants_to_send()
            || self.handshake.wants_to_send(id.level())
            || data && (self.datagrams.wants_to_send() || self.fec.wants_to_send() || self.wants_to_send_control())
    }

    /// An acknowledgement, when one is due or another packet leaves anyway.
    #[inline]
    // RFC 9000 §13.2 SHOULD-1: an acknowledgement travels with whatever packet leaves
    // RFC 9000 §13.2.1 SHOULD-2: new acknowledgements travel with other frames
    pub(super) fn write_ack(&mut self, now: Instant, id: SpaceId, w: &mut Writer<'_>) {
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
    pub(super) fn write_frames(
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
        if self.wants_to_send_control() {
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

    /// Returns whether the peer should acknowledge the next packet at once, whatever it was asked for.
    #[cold]
    pub(super) fn needs_prompt_ack(&self, id: SpaceId, permit: Permit) -> bool {
        if !matches!(id, SpaceId::Data(_)) || !self.ack_requests.is_understood() {
            return false;
        }
        // draft-ietf-quic-ack-frequency-14 §7: a probe has waited long enough.
        if permit.probe {
            return true;
        }
        // The packet fills the window, and with it the peer still collects: neither end would move until its timer does.
        let Path { recovery, mtu, .. } = self.paths.active();
        recovery.window().saturating_sub(recovery.bytes_in_flight()) < 2 * u64::from(*mtu)
            && recovery.ack_eliciting_in_flight(id) + 1 < self.ack_requests.packets_per_ack()
    }

    pub(super) fn write_immediate_ack(&mut self, w: &mut Writer<'_>) {
        if w.remaining() > 0 {
            let before = w.position();
            Frame::ImmediateAck.encode(w);
            self.stats.control_bytes_sent += (w.position() - before) as u64;
            self.stats.immediate_acks_asked += 1;
        }
    }
}
