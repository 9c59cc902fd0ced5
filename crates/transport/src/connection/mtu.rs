//! Datagram size of the path in use: MTU probes and their fate.

use units::Instant;

use super::{
    Connection,
    control::write_ping,
    packet::{OpenPacket, Protection, pad_until},
    spaces::SpaceId,
};
use crate::{
    crypto::TAG_LEN,
    recovery::{AckOutcome, Allowance},
    sent::PathIndex,
    tls::Level,
    udp::Transmit,
};

impl Connection {
    /// MTU probe: a datagram of `size` bytes with PING and PADDING, alone in its batch, because it is longer than the others.
    // RFC 8899 §3 REQUIRED-1: it is larger than the size in use
    // RFC 8899 §3 RECOMMENDED-1, RFC 8899 §4.1 REQUIRED-1, MUST-1: it is ack-eliciting, waits for the window, and its
    // loss says nothing about congestion.
    #[cold]
    pub(super) fn transmit_mtu_probe(&mut self, now: Instant, buffer: &mut [u8], size: u16) -> Option<Transmit> {
        let path = self.paths.active_mut();
        if buffer.len() < usize::from(size) {
            let mtu = path.discovery.limit(u16::try_from(buffer.len()).unwrap_or(u16::MAX));
            path.set_mtu(now, mtu);
            return None;
        }
        // Not before the handshake is confirmed: until then the address may be anybody's.
        if !path.amplification.is_validated()
            || !self.packets.sources.handshake.is_confirmed()
            || !self.packets.keys.can_seal(Level::OneRtt)
        {
            return None;
        }
        // Room for a datagram of the size in use is enough: where data takes all room that an acknowledgement makes, there
        // never is more. One probe in a round trip exceeds the window by the difference.
        if !matches!(path.recovery.allowance(now, path.mtu.into()), Allowance::Bytes(_)) {
            return None;
        }
        path.discovery.on_probe_sent();
        let (ecn, path) = (self.ecn_mark(), self.paths.active_index());
        let space = (SpaceId::DATA, Protection::Space);
        let (mut w, packet) = self.packets.begin_packet(space, (path, true), &mut buffer[..usize::from(size)], 0, 0)?;
        write_ping(&mut w);
        pad_until(&mut w, usize::from(size) - TAG_LEN);
        let packet = OpenPacket { mtu_probe: true, ..packet.finish(&w) };
        let transmit = self.send_probe(now, &packet, buffer, ecn)?;
        self.stats.mtu_probes_sent += 1;
        Some(transmit)
    }

    // RFC 8899 §3 REQUIRED-2: an acknowledgement says that a probe has arrived
    /// Draws conclusions about the size of datagrams from acknowledgements and losses.
    #[inline]
    pub(super) fn on_mtu_outcome(&mut self, now: Instant, outcome: &AckOutcome) {
        if let Some((path, size)) = outcome.mtu_probe_acked {
            let mtu = self.paths[path].discovery.on_probe_acked(now, size);
            self.set_path_mtu(now, path, mtu);
        }
        if let Some((path, size)) = outcome.mtu_probe_lost {
            self.stats.mtu_probes_lost += 1;
            self.paths[path].discovery.on_probe_lost(now, size);
        }
        if outcome.lost_packets > 0 {
            let active = self.paths.active_index();
            if let Some(mtu) = self.paths[active].on_black_hole(now) {
                self.stats.mtu_black_holes += 1;
                self.set_path_mtu(now, active, mtu);
            }
        }
    }

    /// Searches for the largest datagram size without waiting for data that fills datagrams.
    pub fn discover_mtu(&mut self, now: Instant) {
        self.paths.active_mut().discovery.search(now);
    }

    /// Datagrams of a path have another size from here on.
    pub(super) fn set_path_mtu(&mut self, now: Instant, index: PathIndex, mtu: u16) {
        let Some(old) = self.paths[index].set_mtu(now, mtu) else { return };
        if index == self.paths.active_index() {
            self.fit_datagrams();
            self.observation.tell(now, |observer, at| observer.mtu_updated(at, old, mtu));
        }
    }
}
