//! 0-RTT packets that arrived before the Initial packet of their connection.

use std::collections::VecDeque;

use bytes::BytesMut;
use units::{Duration, Instant};
use wire::ConnectionId;

use super::Endpoint;
use crate::memory::{ProcessBudget, ProcessCharge, allocation};
use crate::udp::Datagram;

/// Bytes that are kept for all connections together: memory that anyone can claim.
const MAX_BYTES: usize = 64 * 1024;
/// Datagrams that are kept for one connection: a client's first flight after its Initial packets.
const MAX_DATAGRAMS: usize = 8;
/// An Initial packet that comes later than this was lost; the early data is sent again anyway.
const MAX_AGE: Duration = Duration::from_millis(500);

struct Held {
    dcid: ConnectionId,
    datagram: Datagram,
}

/// Bytes that a datagram takes.
fn cost(datagram: &Datagram) -> usize {
    size_of::<Held>() + allocation(datagram.payload.len())
}

/// Owner of 0-RTT packets until their connection begins.
pub(super) struct EarlyPackets {
    held: VecDeque<Held>,
    bytes: usize,
    charge: ProcessCharge,
}

impl EarlyPackets {
    /// None, charged to a process.
    pub(super) fn new(process: &ProcessBudget) -> Self {
        Self { held: VecDeque::new(), bytes: 0, charge: process.charge(0) }
    }

    fn pop(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.bytes -= cost(&held.datagram);
        Some(held)
    }

    /// Forgets what waited for too long, the oldest first. Returns how many datagrams that were.
    fn expire(&mut self, now: Instant) -> u64 {
        let mut expired = 0;
        while self.held.front().is_some_and(|h| now.saturating_since(h.datagram.received_at) > MAX_AGE) {
            self.pop();
            expired += 1;
        }
        expired
    }

    /// Keeps a datagram; others may be evicted. Returns the number of evicted ones.
    fn keep(&mut self, now: Instant, dcid: ConnectionId, datagram: Datagram) -> u64 {
        let mut lost = self.expire(now);
        if cost(&datagram) > MAX_BYTES || self.held.iter().filter(|h| h.dcid == dcid).count() >= MAX_DATAGRAMS {
            return lost + 1;
        }
        while self.bytes + cost(&datagram) > MAX_BYTES {
            self.pop();
            lost += 1;
        }
        self.bytes += cost(&datagram);
        self.charge.set(self.bytes as u64);
        // A copy: the buffer that it arrived in may be many times as large.
        let payload = BytesMut::from(&datagram.payload[..]);
        self.held.push_back(Held { dcid, datagram: Datagram { payload, ..datagram } });
        lost
    }

    fn take(&mut self, dcid: &ConnectionId) -> Vec<Datagram> {
        if self.held.iter().all(|held| held.dcid != *dcid) {
            return Vec::new();
        }
        let (ours, others) = std::mem::take(&mut self.held).into_iter().partition(|held| held.dcid == *dcid);
        let ours: VecDeque<Held> = ours;
        self.held = others;
        self.bytes = self.held.iter().map(|held| cost(&held.datagram)).sum();
        self.charge.set(self.bytes as u64);
        ours.into_iter().map(|held| held.datagram).collect()
    }
}

impl Endpoint {
    /// Keeps a 0-RTT packet without a connection.
    // RFC 9000 §5.2.2 MAY: a limited number, in anticipation of an Initial packet that comes late.
    pub(super) fn keep_early(&mut self, now: Instant, dcid: ConnectionId, datagram: Datagram) {
        self.stats.early_kept += 1;
        self.stats.dropped += self.early.keep(now, dcid, datagram);
    }

    /// Passes earlier 0-RTT packets to a connection that has begun.
    pub(super) fn deliver_early(&mut self, now: Instant, index: u32, dcid: &ConnectionId) {
        for datagram in self.early.take(dcid) {
            let size = datagram.payload.len();
            self.ledger.on_adopted(size, datagram.segment_size);
            self.deliver(now, index, datagram, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(at: u64, len: usize) -> Datagram {
        Datagram {
            remote: "192.0.2.1:1".parse().unwrap(),
            local: None,
            ecn: None,
            received_at: Instant::from_millis(at),
            segment_size: len,
            payload: BytesMut::zeroed(len),
        }
    }

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    #[test]
    fn what_waits_is_bounded_and_does_not_wait_for_long() {
        let mut early = EarlyPackets::new(&ProcessBudget::default());
        let now = Instant::from_millis(0);
        let lost: u64 = (0..20).map(|_| early.keep(now, id(1), datagram(0, 1200))).sum();
        assert_eq!((lost, early.held.len()), (12, 8), "of one connection");
        let lost: u64 = (0..200).map(|n| early.keep(now, id(2 + n), datagram(0, 1200))).sum();
        let most = MAX_BYTES / cost(&datagram(0, 1200));
        assert_eq!((lost, early.held.len()), (208 - most as u64, most), "of all");
        assert!(early.bytes <= MAX_BYTES);
        assert_eq!(early.take(&id(201)).len(), 1);
        assert_eq!(early.take(&id(201)).len(), 0);
        assert_eq!(early.bytes, (most - 1) * cost(&datagram(0, 1200)));
        let later = Instant::from_millis(501);
        assert_eq!(early.keep(later, id(1), datagram(501, 1200)), most as u64 - 1);
        assert_eq!(early.take(&id(1)).len(), 1);
        assert_eq!(early.bytes, 0);
    }
}
