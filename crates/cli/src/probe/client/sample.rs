//! Pings and trains: their shape and their results.

use std::time::Duration;

use super::inbox::Pong;
use crate::probe::{estimate::overload::Train, protocol::Order, wire::Record};

/// Answers to pings.
pub(super) struct Pings {
    pub(super) sent: u32,
    pub(super) pongs: Vec<Pong>,
    /// Refusal of this size by this machine's interface.
    pub(super) is_too_large: bool,
}

impl Pings {
    pub(super) fn rtts(&self) -> Vec<u64> {
        self.pongs.iter().map(|pong| pong.rtt).collect()
    }
}

/// Shape of a train.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of UDP payload.
    pub(super) size: u16,
    pub(super) count: u32,
    pub(super) gap_ns: u64,
    pub(super) ecn: u8,
}

impl Shape {
    /// Packets of this size at a rate of IP packets for a time.
    pub(super) fn at(rate: f64, size: u16, head: u32, lasts: Duration) -> Self {
        let wire = f64::from(u32::from(size) + head) * 8.0;
        let gap = (wire / rate).max(4e-6);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and below 2^32")]
        let (gap_ns, count) = ((gap * 1e9) as u64, (lasts.as_secs_f64() / gap).ceil().min(1e6) as u32);
        Self { size, count: count.max(2), gap_ns, ecn: 0 }
    }

    pub(super) const fn order(&self, to: u64, train: u8) -> Order {
        Order { to, train, size: self.size, count: self.count, gap_ns: self.gap_ns, ecn: self.ecn }
    }
}

/// A train and the packets of it that arrived.
pub(super) struct Sample {
    pub(super) train: Train,
    /// ECN fields with which its packets arrived.
    pub(super) fields: Vec<u8>,
    /// Packets that the receiver had no room to record.
    pub(super) unrecorded: u64,
    pub(super) is_too_large: bool,
}

impl Sample {
    pub(super) fn new(
        shape: Shape,
        head: u64,
        sent: Vec<u64>,
        records: Vec<Record>,
        unrecorded: u64,
        is_too_large: bool,
    ) -> Self {
        let size = u32::from(shape.size) + u32::try_from(head).unwrap_or(0);
        let count = u32::try_from(sent.len()).unwrap_or(u32::MAX);
        // Packets that were never sent are somebody else's invention.
        let records = records.into_iter().filter(|record| record.arrival.number < count);
        let (arrivals, fields) = records.map(|record| (record.arrival, record.ecn)).unzip();
        Self { train: Train { size, sent, arrivals }, fields, unrecorded, is_too_large }
    }
}
