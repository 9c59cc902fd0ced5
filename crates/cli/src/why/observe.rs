//! Observer of a connection over QUIC: gathers what a client can see of the path and of the server.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use tiderace::transport::observe::{
    Both, DatagramsEvent, Initiator, LossEvent, Observer, ObserverFactory, PacketEvent, PacketSpace, Start, Unsealed,
};
use units::{Duration, Instant};
use wire::{Frame, Frames, StreamId, TransportParameters};

use super::{
    arrivals::{Arrivals, Stalls},
    evidence::{QuicFacts, Tail},
};

/// Gap of packet numbers that counts as skipped by the server, not as lost: memory follows what arrives.
const SKIPPED: u64 = 4_096;
/// Packet numbers that are remembered as missing.
const MISSING_MAX: usize = 65_536;
/// RTT samples that are kept.
const SAMPLES_MAX: usize = 65_536;
/// A sender with less credit than this sends no full packet.
const PACKET: u64 = 1_500;

/// Credit of a stream or of the connection, as the server knows it.
#[derive(Debug, Default)]
struct Credit {
    /// Limit that the server knew when it sent what arrives.
    known: u64,
    /// Later limits, with the time at which they take effect on what arrives.
    on_the_way: VecDeque<(Instant, u64)>,
}

impl Credit {
    fn new(limit: u64) -> Self {
        Self { known: limit, on_the_way: VecDeque::new() }
    }

    fn raise(&mut self, effective: Instant, limit: u64) {
        self.on_the_way.push_back((effective, limit));
    }

    fn left(&mut self, now: Instant, used: u64) -> u64 {
        while let Some((_, limit)) = self.on_the_way.pop_front_if(|(at, _)| *at <= now) {
            self.known = self.known.max(limit);
        }
        self.known.saturating_sub(used)
    }
}

/// One receiving stream.
#[derive(Debug)]
struct Received {
    highest: u64,
    bytes: u64,
    credit: Credit,
}

/// Facts in the making.
#[derive(Debug, Default)]
pub(super) struct Trace {
    started: Option<Instant>,
    facts: QuicFacts,
    largest: Option<u64>,
    missing: BTreeMap<u64, ()>,
    /// Packets in order that carry only data below what had arrived.
    refills: u64,
    streams: HashMap<StreamId, Received>,
    /// Limits of a stream that this client opens, and of the connection, at the start.
    initial_stream: u64,
    connection: Credit,
    /// Time since which the server has had no credit.
    blocked: Option<Instant>,
    blocked_for: Duration,
    min_rtt: Option<Duration>,
    rtts: Vec<f64>,
    /// Arrivals of datagrams.
    arrivals: Arrivals,
    stalls: Stalls,
    /// Packets that were missing when data came last.
    missing_at_data: usize,
    first_data: Option<Instant>,
    last_data: Option<Instant>,
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

impl Trace {
    /// Facts so far.
    pub(super) fn facts(&self) -> QuicFacts {
        let mut facts = self.facts.clone();
        facts.missing = u64::try_from(self.missing.len()).unwrap_or(u64::MAX);
        // Servers skip numbers to see through forged acknowledgements (RFC 9000 §21.4): what was lost is sent again.
        facts.lost = facts.missing.min(self.refills);
        let lost: Vec<u64> = self.missing.keys().copied().collect();
        facts.lost_together = together(&lost);
        facts.numbers = self.largest.map_or(0, |largest| largest + 1);
        let (bytes, unique) = self
            .streams
            .values()
            .fold((0, 0), |(bytes, unique), stream| (bytes + stream.bytes, unique + stream.highest.min(stream.bytes)));
        facts.stream_bytes = bytes;
        facts.stream_bytes_again = bytes - unique;
        let mut rtts = self.rtts.clone();
        rtts.sort_by(f64::total_cmp);
        facts.rtt_samples = rtts.len();
        facts.rtt_min_ms = self.min_rtt.map(millis);
        facts.rtt_median_ms = lab::stats::quantile::median(&rtts);
        if let (Some(first), Some(last)) = (self.first_data, self.last_data) {
            facts.data_ms = millis(last.saturating_since(first));
        }
        let open = self.blocked.zip(self.last_data).map(|(since, last)| last.saturating_since(since));
        facts.blocked_ms = millis(self.blocked_for + open.unwrap_or_default());
        facts.arrivals = self.arrivals.facts();
        facts.stalls = self.stalls.list();
        facts.pauses_ms = millis(self.stalls.pauses());
        facts
    }

    /// Takes a packet number; whether it is a late one.
    fn number(&mut self, pn: u64) -> bool {
        match self.largest {
            None => self.largest = Some(pn),
            Some(largest) if pn > largest => {
                if pn - largest <= SKIPPED && self.missing.len() < MISSING_MAX {
                    self.missing.extend((largest + 1..pn).map(|missing| (missing, ())));
                }
                self.largest = Some(pn);
            }
            Some(largest) => {
                if self.missing.remove(&pn).is_some() {
                    self.facts.late += 1;
                    // RFC 9002 §6.1.1: packets after a gap of three count as lost.
                    self.facts.late_by_three += u64::from(largest - pn >= 3);
                    return true;
                }
            }
        }
        false
    }

    /// Takes stream data; whether it is the furthest so far.
    fn stream(&mut self, now: Instant, id: StreamId, end: u64, len: u64) -> bool {
        let initial = self.initial_stream;
        let stream =
            self.streams.entry(id).or_insert_with(|| Received { highest: 0, bytes: 0, credit: Credit::new(initial) });
        stream.bytes += len;
        let grew = end > stream.highest;
        stream.highest = stream.highest.max(end);
        // Behind a gap nothing is read, so no credit is given: that is the fault of the loss.
        let has_gap = stream.bytes < stream.highest;
        let stream_left = stream.credit.left(now, stream.highest);
        let used = self.streams.values().map(|stream| stream.highest).sum();
        let left = stream_left.min(self.connection.left(now, used));
        if let Some(since) = self.blocked.take() {
            self.blocked_for += now.saturating_since(since);
        }
        if left < PACKET && !has_gap {
            self.blocked = Some(now);
        }
        grew
    }

    fn received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let is_late = self.number(packet.pn);
        let (mut eliciting, mut grew, mut data) = (false, false, false);
        for frame in Frames::new(packet.payload) {
            let Ok(frame) = frame else { break };
            eliciting |= frame.is_ack_eliciting();
            match frame {
                Frame::Stream(stream) => {
                    let len = stream.data.len() as u64;
                    data |= len > 0;
                    grew |= self.stream(now, stream.id, stream.offset + len, len);
                }
                Frame::DataBlocked(_) | Frame::StreamDataBlocked { .. } => self.facts.blocked_frames += 1,
                Frame::AckFrequency { eliciting_threshold, .. } => {
                    self.facts.ack_requests += 1;
                    self.facts.ack_threshold = self.facts.ack_threshold.max(Some(eliciting_threshold));
                }
                _ => {}
            }
        }
        self.facts.eliciting_received += u64::from(eliciting);
        self.refills += u64::from(data && !grew && !is_late);
        if !grew {
            self.facts.tail.packets += 1;
            self.facts.tail.largest = self.facts.tail.largest.max(packet.size);
            self.facts.tail.missing = self.missing.len().saturating_sub(self.missing_at_data);
        }
        if grew {
            (self.facts.tail, self.missing_at_data) = (Tail::default(), self.missing.len());
            self.first_data.get_or_insert(now);
            self.last_data = Some(now);
            self.stalls.data(now, packet.size, self.missing.len(), self.min_rtt);
        }
    }

    fn sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let effective = now + self.min_rtt.unwrap_or_default();
        let mut eliciting = false;
        for frame in Frames::new(packet.payload) {
            let Ok(frame) = frame else { break };
            eliciting |= frame.is_ack_eliciting();
            match frame {
                Frame::Ack(_) => self.facts.acks_sent += 1,
                Frame::MaxData(limit) => self.connection.raise(effective, limit),
                Frame::MaxStreamData { id, limit } => {
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.credit.raise(effective, limit);
                    }
                }
                _ => {}
            }
        }
        self.facts.eliciting_sent += u64::from(eliciting);
    }
}

/// Share of gaps between lost packets that are shorter than ten packets.
fn together(lost: &[u64]) -> Option<f64> {
    let gaps = lost.windows(2).filter(|pair| pair[1] - pair[0] <= 10).count();
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 packets")]
    (lost.len() > 4).then(|| gaps as f64 / (lost.len() - 1) as f64)
}

/// A trace that a connection writes.
struct Recorder(Arc<Mutex<Trace>>);

impl Recorder {
    fn trace(&self) -> std::sync::MutexGuard<'_, Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    fn parameters_set(&mut self, _: Instant, by: Initiator, parameters: &TransportParameters) {
        let mut trace = self.trace();
        if by == Initiator::Local {
            trace.initial_stream = parameters.initial_max_stream_data_bidi_local;
            trace.connection = Credit::new(parameters.initial_max_data);
        }
    }

    fn datagrams_received(&mut self, now: Instant, datagrams: &DatagramsEvent) {
        let mut trace = self.trace();
        let largest = datagrams.sizes().max().unwrap_or(0);
        trace.facts.datagrams += datagrams.sizes().len() as u64;
        trace.facts.largest_datagram = trace.facts.largest_datagram.max(largest as u64);
        let since = trace.started.map_or(Duration::ZERO, |started| now.saturating_since(started));
        trace.arrivals.add(since, datagrams.len as u64);
    }

    fn packet_received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let mut trace = self.trace();
        if packet.space == PacketSpace::OneRtt {
            trace.received(now, packet);
        }
    }

    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        if packet.space == PacketSpace::OneRtt {
            self.trace().sent(now, packet);
        }
    }

    fn unsealed_received(&mut self, _: Instant, packet: &Unsealed<'_>, _: usize) {
        let mut trace = self.trace();
        match packet {
            Unsealed::Retry { .. } => trace.facts.retry = true,
            Unsealed::VersionNegotiation { .. } => trace.facts.version_negotiation = true,
            Unsealed::StatelessReset => {}
        }
    }

    fn packet_lost(&mut self, _: Instant, lost: &LossEvent) {
        if !lost.mtu_probe && lost.space == PacketSpace::OneRtt {
            self.trace().facts.sent_lost += 1;
        }
    }

    fn rtt_sample(&mut self, _: Instant, latest: Duration, adjusted: Duration) {
        let mut trace = self.trace();
        trace.min_rtt = Some(trace.min_rtt.map_or(latest, |least| least.min(latest)));
        if trace.rtts.len() < SAMPLES_MAX {
            trace.rtts.push(millis(adjusted));
        }
    }

    fn connected(&mut self, now: Instant, _: &[u8]) {
        let mut trace = self.trace();
        trace.facts.connected = true;
        trace.facts.handshake_ms = trace.started.map(|started| millis(now.saturating_since(started)));
    }
}

/// Makes recorders for the connections of one exchange; the trace is that of the last.
pub(super) struct Recorders {
    /// Trace of the last connection.
    pub(super) trace: Arc<Mutex<Trace>>,
    /// Qlog files, where they are wanted.
    pub(super) qlog: Option<Arc<dyn ObserverFactory>>,
}

impl ObserverFactory for Recorders {
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner) = Trace { started: Some(now), ..Trace::default() };
        let own = Box::new(Recorder(self.trace.clone()));
        match self.qlog.as_ref().and_then(|qlog| qlog.observe(now, start)) {
            Some(qlog) => Some(Box::new(Both(own, qlog))),
            None => Some(own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_packets_are_not_lost() {
        let mut trace = Trace { refills: 10, ..Trace::default() };
        for pn in [0, 1, 5, 2, 6, 8, 7] {
            trace.number(pn);
        }
        let facts = trace.facts();
        // 3 and 4 never came; 2 came after 5, and 7 after 8.
        assert_eq!((facts.lost, facts.late, facts.late_by_three, facts.numbers), (2, 2, 1, 9));
        // A jump costs no memory.
        trace.number(1 << 40);
        assert_eq!(trace.facts().lost, 2);
        // A number that was skipped is no loss: nothing is sent again.
        trace.refills = 1;
        assert_eq!((trace.facts().lost, trace.facts().missing), (1, 2));
    }

    #[test]
    fn credit_counts_when_the_server_knows_it() {
        let at = Instant::from_millis;
        let mut trace = Trace { initial_stream: 10_000, connection: Credit::new(1 << 20), ..Trace::default() };
        trace.stream(at(0), StreamId(0), 9_000, 9_000);
        assert!(trace.blocked.is_some());
        // More credit was sent, and what arrives until a round trip later was sent without it.
        trace.streams.get_mut(&StreamId(0)).unwrap().credit.raise(at(40), 30_000);
        trace.stream(at(20), StreamId(0), 10_000, 1_000);
        assert!(trace.blocked.is_some());
        trace.stream(at(50), StreamId(0), 11_000, 1_000);
        assert!(trace.blocked.is_none());
        assert_eq!(trace.blocked_for, Duration::from_millis(50));
        // Behind a gap there is no credit because of the loss.
        trace.stream(at(50), StreamId(4), 9_500, 1_000);
        assert!(trace.blocked.is_none());
        trace.streams.remove(&StreamId(4));
        // What came twice was sent twice.
        trace.stream(at(51), StreamId(0), 11_000, 1_000);
        assert_eq!(trace.facts().stream_bytes_again, 1_000);
    }

    #[test]
    fn losses_of_a_policer_come_together() {
        let spread: Vec<u64> = (0..50).map(|n| n * 97).collect();
        let bursts: Vec<u64> = (0..50).map(|n| n / 10 * 1_000 + n % 10 * 3).collect();
        assert_eq!((together(&spread), together(&spread[..3])), (Some(0.0), None));
        assert!(together(&bursts).unwrap() > 0.85);
    }
}
