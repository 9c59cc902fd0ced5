//! Packets that arrived before their keys.

use bytes::BytesMut;
use units::Instant;
use wire::Side;

use super::{Connection, frames::Deferred, receive::Arrival, spaces::SpaceId};
use crate::{acks::Ecn, observe::DropReason, path::ArrivalPath, tls::Level};

/// Packets that wait for their keys. A server's whole first flight can overtake its first packet; more is an attack.
const UNOPENED_LIMIT: usize = 16;
/// Bytes of such packets: a peer may use datagrams of up to 64 KiB.
const UNOPENED_BYTES: usize = 32 * 1024;

/// Owns what was received and is not handed up yet.
#[derive(Default)]
pub(super) struct Reception {
    /// Packets whose keys are not there yet.
    pub(super) unopened: Vec<Unopened>,
    /// Reused between batches: what a batch carried for streams and datagrams.
    pub(super) deferred: Vec<Deferred>,
}

impl Reception {
    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.deferred = Vec::new();
        self.unopened.shrink_to_fit();
    }
}

/// A packet that arrived before its keys.
pub(super) struct Unopened {
    level: Level,
    path: ArrivalPath,
    received_at: Instant,
    ecn: Option<Ecn>,
    packet: BytesMut,
}

impl Unopened {
    /// Bytes of the packet.
    pub(super) fn len(&self) -> usize {
        self.packet.len()
    }

    pub(super) fn is_early(&self) -> bool {
        self.level == Level::ZeroRtt
    }
}

impl Connection {
    pub(super) fn keep_unopened(&mut self, now: Instant, level: Level, packet: &[u8], arrival: Arrival) {
        // Only for keys that are still to come: copies of what is done with take no place away.
        let limit = match level {
            // RFC 9000 §21.9 SHOULD-1: packets that bring nothing are bounded
            // RFC 9001 §4.1.4 SHOULD-1: packets whose keys are not there yet are kept
            Level::Handshake if self.spaces.get(SpaceId::Handshake).is_some() => UNOPENED_LIMIT,
            Level::OneRtt if !self.lifecycle.was_connected() => UNOPENED_LIMIT,
            // Early data may turn out to be refused, so it leaves room for what will be needed.
            // RFC 9001 §5.6 MUST NOT-3: a client opens no 0-RTT packets
            // RFC 9001 §5.6 MUST-2: a client drops 0-RTT packets
            Level::ZeroRtt
                if self.side == Side::Server && self.early.is_undecided() && !self.lifecycle.was_connected() =>
            {
                UNOPENED_LIMIT / 2
            }
            _ => 0,
        };
        let bytes: usize = self.reception.unopened.iter().map(Unopened::len).sum();
        if self.reception.unopened.len() < limit && bytes + packet.len() <= UNOPENED_BYTES {
            self.stats.packets_buffered += 1;
            self.observe(now, |observer, at| observer.packet_buffered(at, level, packet.len()));
            self.reception.unopened.push(Unopened {
                level,
                path: arrival.path,
                // RFC 9000 §13.2.5 SHOULD-1: ACK Delay includes the time that a packet waited for its keys
                received_at: arrival.received_at,
                ecn: arrival.ecn,
                packet: BytesMut::from(packet),
            });
        } else {
            self.drop_packet(now, Some(level), packet.len(), DropReason::NoRoom);
        }
    }

    /// Opens what waited for keys, as far as they are there by now.
    pub(super) fn retry_unopened(&mut self, now: Instant) {
        while let Some(place) = self.reception.unopened.iter().position(|u| self.keys.can_open(u.level)) {
            let Unopened { path, received_at, ecn, mut packet, .. } = self.reception.unopened.remove(place);
            let end = packet.len();
            self.handle_payload(now, &mut packet, 0, end, Arrival { path, received_at, ecn, waited: true });
            self.finish_batch(now, packet, end);
            if !self.lifecycle.is_open() {
                return;
            }
        }
        if self.sources.handshake.is_confirmed() {
            self.give_up_unopened(|_| false);
        }
    }

    /// Throws away what waits for keys, but for what `keep` names.
    pub(super) fn give_up_unopened(&mut self, keep: impl Fn(&Unopened) -> bool) {
        let bytes = |unopened: &[Unopened]| unopened.iter().map(|packet| packet.len() as u64).sum::<u64>();
        let before = bytes(&self.reception.unopened);
        self.reception.unopened.retain(keep);
        self.stats.unopened_bytes_received += before - bytes(&self.reception.unopened);
        if self.reception.unopened.is_empty() {
            self.reception.unopened = Vec::new();
        }
    }
}
