//! Observer of a connection over QUIC: gathers what a client can see of the path and of the server.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use tiderace::transport::observe::{
    Both, DatagramsEvent, Initiator, LossEvent, Observer, ObserverFactory, PacketEvent, PacketSpace, Start, Unsealed,
};
use units::{Duration, Instant};
use wire::{Frame, Frames, TransportParameters};

use super::{
    arrivals::{Arrivals, Stalls},
    evidence::{QuicFacts, Tail},
    handshake::Handshake,
    streams::{OBJECT, Piece, Streams},
};

/// Gap of packet numbers that counts as skipped by the server, not as lost: memory follows what arrives.
const SKIPPED: u64 = 4_096;
/// Packet numbers that are remembered as missing.
const MISSING_MAX: usize = 65_536;
/// RTT samples that are kept.
const SAMPLES_MAX: usize = 65_536;
/// Facts in the making.
#[derive(Debug, Default)]
pub(super) struct Trace {
    started: Option<Instant>,
    facts: QuicFacts,
    handshake: Handshake,
    largest: Option<u64>,
    missing: BTreeSet<u64>,
    /// Packets in order that carry only data below what had arrived.
    refills: u64,
    streams: Streams,
    min_rtt: Option<Duration>,
    rtts: Vec<f64>,
    /// Arrivals of packets with data of the object.
    arrivals: Arrivals,
    stalls: Stalls,
    /// Packets that were missing when data of the object came last.
    missing_at_data: usize,
    /// First and last new data of the object.
    first_data: Option<Instant>,
    last_data: Option<Instant>,
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

impl Trace {
    /// Datagrams received so far; `None` before the handshake is complete.
    pub(super) fn datagrams(&self) -> Option<u64> {
        self.facts.connected.then_some(self.facts.datagrams)
    }

    /// Facts so far.
    pub(super) fn facts(&self) -> QuicFacts {
        let mut facts = self.facts.clone();
        facts.handshake = (!facts.connected).then(|| self.handshake.facts());
        facts.missing = u64::try_from(self.missing.len()).unwrap_or(u64::MAX);
        // Servers skip numbers to see through forged acknowledgements (RFC 9000 §21.4): what was lost is sent again.
        facts.lost = facts.missing.min(self.refills);
        let lost: Vec<u64> = self.missing.iter().copied().collect();
        facts.lost_together = together(&lost);
        facts.numbers = self.largest.map_or(0, |largest| largest + 1);
        let totals = self.streams.totals();
        (facts.stream_bytes, facts.stream_bytes_again) = (totals.bytes, totals.again);
        let mut rtts = self.rtts.clone();
        rtts.sort_by(f64::total_cmp);
        facts.rtt_samples = rtts.len();
        facts.rtt_min_ms = self.min_rtt.map(millis);
        facts.rtt_median_ms = lab::stats::quantile::median(&rtts);
        facts.data_ms = self.first_data.zip(self.last_data).map(|(first, last)| millis(last.saturating_since(first)));
        facts.blocked_ms = self.streams.blocked_for(self.last_data).map(millis);
        facts.arrivals = self.arrivals.facts();
        facts.stalls = self.stalls.list();
        facts.pauses_ms = self.last_data.map(|_| millis(self.stalls.pauses()));
        facts
    }

    /// Takes a packet number; whether it is a late one.
    fn number(&mut self, pn: u64) -> bool {
        match self.largest {
            None => self.largest = Some(pn),
            Some(largest) if pn > largest => {
                if pn - largest <= SKIPPED && self.missing.len() < MISSING_MAX {
                    self.missing.extend(largest + 1..pn);
                }
                self.largest = Some(pn);
            }
            Some(largest) => {
                if self.missing.remove(&pn) {
                    self.facts.late += 1;
                    // RFC 9002 §6.1.1: packets after a gap of three count as lost.
                    self.facts.late_by_three += u64::from(largest - pn >= 3);
                    return true;
                }
            }
        }
        false
    }

    fn received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let is_late = self.number(packet.pn);
        let (mut eliciting, mut grew, mut data, mut object) = (false, false, false, Part::default());
        for frame in Frames::new(packet.payload) {
            let Ok(frame) = frame else { break };
            eliciting |= frame.is_ack_eliciting();
            match frame {
                Frame::Stream(stream) => {
                    let len = stream.data.len() as u64;
                    data |= len > 0;
                    let is_new = self.streams.take(now, Piece { id: stream.id, end: stream.offset + len, len });
                    grew |= is_new;
                    if stream.id == OBJECT {
                        object = Part { carries: object.carries || len > 0, grew: object.grew || is_new };
                    }
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
        self.of_object(now, packet.size, object);
    }

    /// Clocks of the object: what comes on other streams does not move them.
    fn of_object(&mut self, now: Instant, size: usize, object: Part) {
        if object.carries {
            let since = self.started.map_or(Duration::ZERO, |started| now.saturating_since(started));
            self.arrivals.add(since, size as u64);
        }
        if object.grew {
            (self.facts.tail, self.missing_at_data) = (Tail::default(), self.missing.len());
            self.first_data.get_or_insert(now);
            self.last_data = Some(now);
            self.stalls.data(now, size, self.missing.len(), self.min_rtt);
        } else {
            self.facts.tail.packets += 1;
            self.facts.tail.largest = self.facts.tail.largest.max(size);
            self.facts.tail.missing = self.missing.len().saturating_sub(self.missing_at_data);
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
                Frame::MaxData(limit) => self.streams.raise_connection(effective, limit),
                Frame::MaxStreamData { id, limit } => self.streams.raise(effective, id, limit),
                _ => {}
            }
        }
        self.facts.eliciting_sent += u64::from(eliciting);
    }
}

/// Data of the object in a packet.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    carries: bool,
    /// Some of it is further than all before.
    grew: bool,
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
            trace.streams = Streams::new(parameters.initial_max_stream_data_bidi_local, parameters.initial_max_data);
        }
    }

    fn datagrams_received(&mut self, _: Instant, datagrams: &DatagramsEvent) {
        let mut trace = self.trace();
        let largest = datagrams.sizes().max().unwrap_or(0);
        trace.facts.datagrams += datagrams.sizes().len() as u64;
        trace.facts.largest_datagram = trace.facts.largest_datagram.max(largest as u64);
    }

    fn packet_received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let mut trace = self.trace();
        match packet.space {
            PacketSpace::OneRtt => trace.received(now, packet),
            _ => trace.handshake.received(packet),
        }
    }

    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        let mut trace = self.trace();
        match packet.space {
            PacketSpace::OneRtt => trace.sent(now, packet),
            _ => trace.handshake.sent(packet),
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

/// Makes recorders for the connections of one exchange. The trace is that of the first, which carries the object: a small request
/// that finds it closed opens another.
pub(super) struct Recorders {
    /// Trace of the first connection.
    pub(super) trace: Arc<Mutex<Trace>>,
    /// Qlog files, where they are wanted.
    pub(super) qlog: Option<Arc<dyn ObserverFactory>>,
}

impl Recorders {
    /// The recorder of the first connection; `None` for others.
    fn first(&self, now: Instant) -> Option<Recorder> {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        if trace.started.is_some() {
            return None;
        }
        trace.started = Some(now);
        Some(Recorder(self.trace.clone()))
    }
}

impl ObserverFactory for Recorders {
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        let qlog = self.qlog.as_ref().and_then(|qlog| qlog.observe(now, start));
        let Some(own) = self.first(now) else { return qlog };
        match qlog {
            Some(qlog) => Some(Box::new(Both(Box::new(own), qlog))),
            None => Some(Box::new(own)),
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
    fn clocks_are_those_of_the_object() {
        let at = Instant::from_millis;
        let mut trace = Trace { started: Some(at(0)), streams: Streams::new(1 << 20, 1 << 20), ..Trace::default() };
        let object = Part { carries: true, grew: true };
        trace.of_object(at(100), 1_400, object);
        trace.of_object(at(300), 1_400, object);
        // Answers to small requests come before and after, and count for nothing but the tail.
        for millis in [10, 400, 900] {
            trace.of_object(at(millis), 90, Part::default());
        }
        let facts = trace.facts();
        assert_eq!((facts.data_ms, facts.tail.packets, facts.stalls.len()), (Some(200.0), 3, 1), "{facts:?}");
        assert!((facts.arrivals.unwrap().mean / (2_800.0 * 8.0 / 0.21) - 1.0).abs() < 1e-9, "{facts:?}");
        // Without data there is nothing to tell.
        let facts = Trace::default().facts();
        assert_eq!((facts.data_ms, facts.pauses_ms, facts.arrivals), (None, None, None));
    }

    #[test]
    fn a_second_connection_leaves_the_trace_alone() {
        let recorders = Recorders { trace: Arc::default(), qlog: None };
        assert!(recorders.first(Instant::from_millis(1)).is_some());
        recorders.trace.lock().unwrap().facts.datagrams = 7;
        assert!(recorders.first(Instant::from_millis(9)).is_none());
        let trace = recorders.trace.lock().unwrap();
        assert_eq!((trace.started, trace.facts.datagrams), (Some(Instant::from_millis(1)), 7));
    }

    #[test]
    fn losses_of_a_policer_come_together() {
        let spread: Vec<u64> = (0..50).map(|n| n * 97).collect();
        let bursts: Vec<u64> = (0..50).map(|n| n / 10 * 1_000 + n % 10 * 3).collect();
        assert_eq!((together(&spread), together(&spread[..3])), (Some(0.0), None));
        assert!(together(&bursts).unwrap() > 0.85);
    }
}
