//! Received data that is not processed yet: packets before their keys, payload until its batch is read.

use bytes::{Bytes, BytesMut};
use units::Instant;
use wire::Side;

use super::{Connection, frames::Deferred, receive::Arrival, sources::Sources, spaces::SpaceId};
use crate::{
    acks::Ecn, error::TransportError, keys::Keys, memory::ITEM_OVERHEAD, observe::DropReason, path::ArrivalPath,
    stats::Counts, tls::Level,
};

/// Packets that wait for their keys. A server's whole first flight can overtake its first packet; more is an attack.
const UNOPENED_LIMIT: usize = 16;
/// The same of 1-RTT packets where both ends repair: a short message is cut into more of them.
const UNOPENED_WITH_REPAIR: usize = 32;
/// Bytes of such packets: a peer may use datagrams of up to 64 KiB.
const UNOPENED_BYTES: usize = 32 * 1024;
/// Records of frames that are kept between batches.
const DEFERRED_KEPT: usize = 256;

/// Owner of the received data that is not handed up yet.
#[derive(Default)]
pub(super) struct Reception {
    /// Packets whose keys are not there yet.
    pub(super) unopened: Vec<Unopened>,
    /// Reused between batches: what a batch carried for streams and datagrams.
    pub(super) deferred: Vec<Deferred>,
}

impl Reception {
    /// Bytes of packets that wait for their keys.
    #[inline]
    pub(super) fn unopened_bytes(&self) -> usize {
        self.unopened.iter().map(Unopened::len).sum()
    }

    /// Bytes of memory that packets without keys and records of frames take.
    #[inline]
    pub(super) fn memory(&self) -> u64 {
        let unopened: u64 = self.unopened.iter().map(|unopened| unopened.len() as u64 + ITEM_OVERHEAD).sum();
        unopened + (self.deferred.capacity() * size_of::<Deferred>()) as u64
    }

    /// Keeps a packet until its keys are available, as one of at most `limit`. Returns `false` without room.
    fn keep(&mut self, limit: usize, level: Level, packet: &[u8], arrival: Arrival) -> bool {
        if self.unopened.len() >= limit || self.unopened_bytes() + packet.len() > UNOPENED_BYTES {
            return false;
        }
        // RFC 9000 §13.2.5 SHOULD-1: ACK Delay includes the time that a packet waited for its keys
        let Arrival { path, received_at, ecn, .. } = arrival;
        self.unopened.push(Unopened { level, path, received_at, ecn, packet: BytesMut::from(packet) });
        true
    }

    /// First packet whose keys are available.
    fn take_openable(&mut self, keys: &Keys) -> Option<(BytesMut, Arrival)> {
        let place = self.unopened.iter().position(|unopened| keys.can_open(unopened.level))?;
        let Unopened { path, received_at, ecn, packet, .. } = self.unopened.remove(place);
        Some((packet, Arrival { path, received_at, ecn, waited: true }))
    }

    /// Discards packets that wait for keys, except those that `keep` selects.
    pub(super) fn give_up_unopened(&mut self, stats: &mut Counts, keep: impl Fn(&Unopened) -> bool) {
        let before = self.unopened_bytes();
        self.unopened.retain(keep);
        stats.unopened_bytes_received += (before - self.unopened_bytes()) as u64;
        if self.unopened.is_empty() {
            self.unopened = Vec::new();
        }
    }

    /// Hands up what a batch carried. Streams and datagrams get slices of the buffer: one reference each, no copy.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        sources: &mut Sources,
        stats: &mut Counts,
        payload: &Bytes,
        buffer: usize,
    ) -> Result<(), TransportError> {
        let Sources { streams, datagrams, .. } = sources;
        streams.next_buffer(buffer, payload.len());
        datagrams.next_buffer(buffer, payload.len());
        let mut rest = &self.deferred[..];
        while let Some(item) = rest.first() {
            let count;
            let result = match item {
                &Deferred::Stream { id, offset, .. } => {
                    let run = stream_run(rest);
                    count = run.frames;
                    stats.stream_bytes_received += run.len;
                    let parts = rest[..count].iter().map(|item| payload.slice(item.range().clone()));
                    streams.on_stream_run(id, offset, run.len, parts, run.fin)
                }
                Deferred::Datagram { range, frame_size } => {
                    count = 1;
                    datagrams.on_datagram(payload.slice(range.clone()), *frame_size)
                }
            };
            if result.is_err() {
                self.deferred.clear();
                return result;
            }
            rest = &rest[count..];
        }
        self.deferred.clear();
        Ok(())
    }

    /// Returns memory that a large batch left behind.
    pub(super) fn shrink_deferred(&mut self) {
        if self.deferred.capacity() > DEFERRED_KEPT {
            self.deferred.shrink_to(DEFERRED_KEPT);
        }
    }

    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.deferred = Vec::new();
        self.unopened.shrink_to_fit();
    }
}

/// STREAM frames at the front of the deferred ones that are consecutive on one stream.
struct StreamRun {
    frames: usize,
    len: u64,
    /// The last one ends the stream.
    fin: bool,
}

/// The packets of a bulk transfer carry one frame each, and a batch has dozens of them.
#[inline]
fn stream_run(deferred: &[Deferred]) -> StreamRun {
    let mut run = StreamRun { frames: 0, len: 0, fin: false };
    let mut stream = None;
    for item in deferred {
        let Deferred::Stream { id, offset, range, fin } = item else { break };
        let (first, start) = *stream.get_or_insert((*id, *offset));
        if run.fin || first != *id || start + run.len != *offset {
            break;
        }
        run.frames += 1;
        run.len += (range.end - range.start) as u64;
        run.fin = *fin;
    }
    run
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
            Level::Handshake if self.packets.spaces.get(SpaceId::Handshake).is_some() => UNOPENED_LIMIT,
            Level::OneRtt if !self.lifecycle.was_connected() && self.packets.sources.fec.receiver.is_some() => {
                UNOPENED_WITH_REPAIR
            }
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
        if self.reception.keep(limit, level, packet, arrival) {
            self.stats.packets_buffered += 1;
            self.observation.tell(now, |observer, at| observer.packet_buffered(at, level, packet.len()));
        } else {
            self.observation.drop_packet(&mut self.stats, now, Some(level), packet.len(), DropReason::NoRoom);
        }
    }

    /// Opens waiting packets whose keys are available.
    pub(super) fn retry_unopened(&mut self, now: Instant) {
        while let Some((mut packet, arrival)) = self.reception.take_openable(&self.packets.keys) {
            let end = packet.len();
            self.handle_payload(now, &mut packet, 0, end, arrival);
            self.finish_batch(now, packet, end);
            if !self.lifecycle.is_open() {
                return;
            }
        }
        if self.packets.sources.handshake.is_confirmed() {
            self.reception.give_up_unopened(&mut self.stats, |_| false);
        }
    }
}
