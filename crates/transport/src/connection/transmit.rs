//! A datagram out: chooses packets and frames, and writes them in place into the send buffer.
//!
//! Several datagrams of the same size share one buffer and one system call.

use units::Instant;
use wire::Side;

use super::{
    Connection,
    packets::{MIN_INITIAL_DATAGRAM, MIN_PACKET_ROOM, Packets, SendContext},
};
use crate::{acks::Ecn, observe::DatagramsEvent, path::BASE_MTU, recovery::Allowance, tls::Level, udp::Transmit};

/// The kernel takes at most this many datagrams in one send.
const MAX_SEGMENTS: usize = 64;

impl Connection {
    /// Fills `buffer` with datagrams for one address, up to 64 of the same size. `None` if nothing can be sent at `now`; `poll_timeout`
    /// returns the time at which sending is possible.
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
                && self.packets.sources.handshake.wants_to_send(Level::Handshake)
        };
        if (self.lifecycle.is_open() || owes_flight())
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.packets.sources.fec.sender.is_some()
            && self.lifecycle.is_open()
            && self.packets.flush_symbols(now)
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.lifecycle.is_open()
            && self.copy_handshake(now)
            && let Some(transmit) = self.transmit_batch(now, buffer)
        {
            return Some(transmit);
        }
        if self.memory.is_due_at_rest(&self.packets.sources) {
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
        let small = self.packets.spaces.wants_probes()
            && !(self.packets.sources.fec.has_probe() && path.recovery.pto_count() < 2);
        let mtu = usize::from(if small { path.mtu.min(BASE_MTU) } else { path.mtu });
        if self.packets.key_updates.is_due(&self.stats) {
            self.packets.key_updates.wanted = true;
        }
        if self.packets.key_updates.wanted {
            let (packets, mut cx) = self.outgoing(now, None);
            packets.try_update_keys(&mut cx);
        }
        let mut allowance = self.allowance(now);
        let ecn = self.ecn_mark();
        let (mut len, mut segments) = (0, 0);
        let mut segment_size = mtu;
        while segments < MAX_SEGMENTS && len + segment_size <= buffer.len() {
            let room = self.datagram_room().min(segment_size);
            // A repair symbol is longer than the packets that it repairs.
            if room == 0 || segment_size < mtu && self.packets.sources.fec.wants_to_send() {
                break;
            }
            let (packets, mut cx) = self.outgoing(now, ecn);
            let size = packets.build_datagram(&mut cx, &mut buffer[len..len + room], allowance);
            if size == 0 {
                break;
            }
            self.on_packets_sent(now);
            if let Some(error) = self.packets.key_updates.seal_error.take() {
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
                if segments > 1 || !self.packets.sources.next_is_alike() {
                    break;
                }
                segment_size = size;
            }
        }
        if len == 0 {
            return None;
        }
        // Not before the handshake is confirmed: until then the address may be anybody's.
        if self.packets.sources.handshake.is_confirmed() {
            self.paths.active_mut().on_datagrams_sent(now, segment_size, len);
        }
        self.stats.datagrams_sent += segments as u64;
        self.stats.bytes_sent += len as u64;
        let segment_size = segment_size.min(len);
        self.observation
            .tell(now, |observer, at| observer.datagrams_sent(at, &DatagramsEvent { len, segment_size, ecn }));
        Some(Transmit { remote, local, ecn, len, segment_size })
    }

    /// Size of the next datagram on the active path; 0 if the anti-amplification limit leaves no useful room: before the handshake is
    /// confirmed, no room for a datagram with an Initial packet.
    #[inline]
    pub(super) fn datagram_room(&self) -> usize {
        let least = if self.packets.sources.handshake.is_confirmed() { MIN_PACKET_ROOM } else { MIN_INITIAL_DATAGRAM };
        self.paths.active().room(least)
    }

    /// Bytes that congestion control and pacing permit at the moment.
    #[inline]
    fn allowance(&mut self, now: Instant) -> u64 {
        if !self.packets.has_data() {
            return 0;
        }
        match self.paths.active_mut().recovery.allowance(now, u64::MAX) {
            Allowance::Bytes(bytes) => bytes,
            Allowance::WindowFull | Allowance::PacedUntil(_) => 0,
        }
    }

    /// Packets, and their accounts during sending.
    #[inline]
    pub(super) fn outgoing(&mut self, now: Instant, ecn: Option<Ecn>) -> (&mut Packets, SendContext<'_>) {
        let Self { side, packets, paths, silence, stats, observation, .. } = self;
        (packets, SendContext { now, side: *side, ecn, paths, silence, stats, observation })
    }

    /// Packets of a datagram were sealed.
    // RFC 9000 §10.1: the idle timer restarts with the first packet that asks for an answer.
    #[inline]
    pub(super) fn on_packets_sent(&mut self, now: Instant) {
        if std::mem::take(&mut self.packets.has_elicited) && !self.idle.is_restarted {
            self.idle.is_restarted = true;
            self.restart_idle(now);
        }
    }

    pub(super) fn ecn_mark(&self) -> Option<Ecn> {
        self.paths.active().marks.mark().then_some(Ecn::Ect0)
    }
}
