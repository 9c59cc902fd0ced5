//! Packet trace: time, flow, size and fate of every packet, hashed and, on request, kept.

use core::fmt;

use netem::{PacketMeta, Transit, Verdict};
use units::Instant;

/// Hash of a whole packet trace, 128 bits. Equal traces have equal hashes in every process and on every machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceHash(u128);

/// The constants of 128-bit FNV-1a. Whole 64-bit words are folded in, so the result is not that of FNV over bytes.
const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

impl TraceHash {
    const EMPTY: Self = Self(BASIS);

    /// Folds a word in. Multiplication carries upwards only, so the upper half is brought down again.
    #[inline]
    const fn fold(&mut self, word: u64) {
        let mixed = (self.0 ^ word as u128).wrapping_mul(PRIME);
        self.0 = mixed ^ (mixed >> 67);
    }
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One packet's passage through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Time at which it was offered to the link; for a packet that was held, when its fate was known.
    pub at: Instant,
    /// The link, in the order in which links were added.
    pub link: u32,
    /// Packet as the link knew it.
    pub packet: PacketMeta,
    /// Outcome of it.
    pub transit: Transit,
}

/// Losses of a flow at the links, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowLoss {
    /// Time of the first one; `None` without losses.
    pub first: Option<Instant>,
    /// Time at which it was the last time.
    pub last: Option<Instant>,
    /// Number of packets.
    pub packets: u64,
}

/// Every packet that was offered to a link.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: TraceHash,
    packets: u64,
    kept: Vec<TraceRecord>,
    room: usize,
    /// By flow, for flows with losses.
    lost: Vec<FlowLoss>,
}

impl Trace {
    pub(crate) const fn new() -> Self {
        Self { hash: TraceHash::EMPTY, packets: 0, kept: Vec::new(), room: 0, lost: Vec::new() }
    }

    /// Hash of all packets.
    pub const fn hash(&self) -> TraceHash {
        self.hash
    }

    /// Number of packets there that were.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// The first packets, up to the number of [`Simulation::keep_trace`](crate::Simulation::keep_trace).
    pub fn records(&self) -> &[TraceRecord] {
        &self.kept
    }

    /// Losses of a flow at the links. The connections of a [`Dumbbell`](crate::Dumbbell) are its flows, in their order.
    pub fn loss(&self, flow: usize) -> FlowLoss {
        self.lost.get(flow).copied().unwrap_or_default()
    }

    fn note_loss(&mut self, record: &TraceRecord) {
        let flow = record.packet.flow as usize;
        if flow >= self.lost.len() {
            self.lost.resize(flow + 1, FlowLoss::default());
        }
        let lost = &mut self.lost[flow];
        lost.first = lost.first.or(Some(record.at));
        lost.last = Some(record.at);
        lost.packets += 1;
    }

    /// Keeps the first `records` packets.
    pub(crate) const fn keep(&mut self, records: usize) {
        self.room = records;
    }

    #[inline]
    pub(crate) fn add(&mut self, record: &TraceRecord) {
        self.packets += 1;
        let (packet, transit) = (&record.packet, &record.transit);
        self.hash.fold(record.at.as_nanos());
        self.hash.fold(u64::from(packet.flow) << 32 | u64::from(packet.size));
        self.hash.fold(u64::from(record.link) << 8 | u64::from(packet.ecn.bits()));
        match transit.verdict {
            Verdict::Dropped(reason) => {
                self.hash.fold(reason as u64);
                self.note_loss(record);
            }
            // The simulation adds a held packet when its fate is known.
            Verdict::Held(ticket) => self.hash.fold(1 << 62 | ticket.0),
            Verdict::Delivered { first, copy } => {
                self.hash.fold(1 << 63 | first.at.as_nanos());
                if let Some(random) = first.corrupt {
                    self.hash.fold(random);
                }
                if let Some(copy) = copy {
                    self.hash.fold(copy.at.as_nanos());
                }
            }
        }
        if self.kept.len() < self.room {
            self.kept.push(*record);
        }
    }
}

#[cfg(test)]
mod tests {
    use netem::{Delivery, DropReason, Ecn};
    use units::Duration;

    use super::*;

    fn record() -> TraceRecord {
        let first = Delivery { at: Instant::from_millis(7), corrupt: None, ecn: Ecn::NotEct };
        TraceRecord {
            at: Instant::from_millis(5),
            link: 1,
            packet: PacketMeta {
                size: 1228,
                flow: 3,
                number: 0,
                ecn: Ecn::Ect0,
                protocol: netem::Protocol::Udp,
                tag: 0,
            },
            transit: Transit { queued: Duration::ZERO, verdict: Verdict::Delivered { first, copy: None } },
        }
    }

    fn hash(records: &[TraceRecord]) -> TraceHash {
        let mut trace = Trace::new();
        records.iter().for_each(|record| trace.add(record));
        trace.hash()
    }

    #[test]
    fn each_part_of_a_packet_counts() {
        let base = record();
        let mut variants = vec![base; 9];
        variants[1].at = Instant::from_nanos(5_000_001);
        variants[2].link = 0;
        variants[3].packet.size = 1229;
        variants[4].packet.flow = 4;
        variants[5].packet.ecn = Ecn::Ce;
        variants[6].transit.verdict = Verdict::Dropped(DropReason::Loss);
        variants[7].transit.verdict = Verdict::Dropped(DropReason::Queue);
        let first = Delivery { at: Instant::from_nanos(7_000_001), corrupt: None, ecn: Ecn::NotEct };
        variants[8].transit.verdict = Verdict::Delivered { first, copy: None };
        let mut hashes: Vec<TraceHash> = variants.iter().map(|variant| hash(&[*variant])).collect();
        hashes.push(hash(&[base, base]));
        hashes.push(hash(&[]));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 11);
    }

    #[test]
    fn the_order_counts() {
        let (one, mut other) = (record(), record());
        other.packet.size = 40;
        assert_ne!(hash(&[one, other]), hash(&[other, one]));
    }

    /// The hash is a promise: a change of it makes every recorded run look different.
    #[test]
    fn the_hash_stays_what_it_is() {
        assert_eq!(hash(&[record()]).to_string(), "55f57020be4cf878b55fa2c5d49307a3");
    }
}
