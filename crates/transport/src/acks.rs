//! Packets to acknowledge, and the time of the acknowledgement (RFC 9000 §13.2).
//!
//! Packets are recorded one by one. The decision is made once per batch of datagrams: a receive call with 44 packets leads to one
//! acknowledgement.

mod times;

use units::{Duration, Instant};
use wire::{Ack, EcnCounts, Writer};

pub(crate) use times::{ArrivalTimes, MAX_TIMES};

use crate::range_set::RangeSet;

/// ECN codepoint other than Not-ECT (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// Capable: ECT(0).
    Ect0,
    /// Capable: ECT(1).
    Ect1,
    /// Congestion Experienced.
    Ce,
}

impl Ecn {
    /// The two bits in the IP header (RFC 3168 §5). Not-ECT, which has no variant here, is 0.
    pub fn bits(self) -> u8 {
        match self {
            Self::Ect1 => 0b01,
            Self::Ect0 => 0b10,
            Self::Ce => 0b11,
        }
    }
}

/// Number of new gaps after which an acknowledgement is sent, so that no unreported range is forgotten (draft-ietf-quic-ack-frequency-14
/// §6).
const MAX_UNREPORTED_GAPS: u32 = 24;

/// Ranges that are remembered and reported at most. RFC 9000 §13.2.3: a receiver limits them.
const MAX_RANGES: usize = 64;

/// Policy of acknowledgements of ack-eliciting packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// Number of ack-eliciting packets after which an acknowledgement is due (RFC 9000 §13.2.2 SHOULD-1: 2).
    pub ack_eliciting_threshold: u32,
    /// … or longest delay of an acknowledgement, as advertised to the peer (RFC 9000 §18.2).
    pub max_ack_delay: Duration,
    /// … or at once when a packet is missing and this number of later ones has arrived (draft-ietf-quic-ack-frequency-14 §6.2): 1 for any
    /// gap, as RFC 9000 §13.2.1 requires; 0 for never.
    pub reordering_threshold: u64,
}

impl Default for AckPolicy {
    fn default() -> Self {
        Self { ack_eliciting_threshold: 2, max_ack_delay: Duration::from_millis(25), reordering_threshold: 1 }
    }
}

impl AckPolicy {
    /// Every packet at once, as Initial and Handshake packets are acknowledged.
    pub const IMMEDIATE: Self =
        Self { ack_eliciting_threshold: 1, max_ack_delay: Duration::ZERO, reordering_threshold: 1 };
}

/// Owner of the record of received packets of one packet number space.
#[derive(Clone, Debug)]
pub struct AckState {
    received: RangeSet,
    /// Packets below have been forgotten, and count as duplicates.
    floor: u64,
    largest_received_at: Instant,
    /// The largest ack-eliciting packet number.
    largest_eliciting: Option<u64>,
    /// The largest packet number reported in an ACK frame.
    largest_reported: Option<u64>,
    /// Ack-eliciting packets since the last ACK frame was written.
    unacked_eliciting: u32,
    /// A packet arrived since the last ACK frame was written.
    unreported: bool,
    /// Do not wait for the threshold.
    at_once: bool,
    deadline: Option<Instant>,
    /// Gaps since the last ACK frame was written.
    unreported_gaps: u32,
    ecn: EcnCounts,
    /// The packet before carried ECN-CE.
    congested: bool,
    policy: AckPolicy,
    /// The number of the newest request that was obeyed.
    request: Option<u64>,
    /// Receive timestamps, if the peer requests them.
    times: Option<Box<ArrivalTimes>>,
}

impl AckState {
    /// State before the first packet.
    pub fn new(policy: AckPolicy) -> Self {
        Self {
            received: RangeSet::new(),
            floor: 0,
            largest_received_at: Instant::ZERO,
            largest_eliciting: None,
            largest_reported: None,
            unacked_eliciting: 0,
            unreported: false,
            at_once: false,
            deadline: None,
            unreported_gaps: 0,
            ecn: EcnCounts::default(),
            congested: false,
            policy,
            request: None,
            times: None,
        }
    }

    /// For Initial and Handshake packets. RFC 9000 §13.2.1 MUST-2: they are acknowledged at once.
    pub fn handshake() -> Self {
        Self::new(AckPolicy::IMMEDIATE)
    }

    /// State of the acknowledgements that are due.
    pub fn policy(&self) -> &AckPolicy {
        &self.policy
    }

    /// Processes a request of the peer for another frequency; `sequence` numbers its requests. Returns false unless it is the newest one,
    /// which alone counts.
    // draft-ietf-quic-ack-frequency-14 §4 MUST: ignored unless its number is above that of the last one obeyed.
    pub fn on_request(&mut self, sequence: u64, policy: AckPolicy) -> bool {
        if self.request.is_some_and(|newest| sequence <= newest) {
            return false;
        }
        self.request = Some(sequence);
        // What waits already waits for the new delay.
        if let Some(deadline) = &mut self.deadline {
            *deadline = deadline.saturating_sub(self.policy.max_ack_delay) + policy.max_ack_delay;
        }
        self.policy = policy;
        true
    }

    /// Makes the next ACK frame due at once, as the current packet requests (IMMEDIATE_ACK).
    // draft-ietf-quic-ack-frequency-14 §5 SHOULD. One per batch of datagrams, like every acknowledgement.
    pub fn on_immediate(&mut self) {
        self.at_once = true;
    }

    /// Reports the arrival times of packets to the peer from here on.
    pub(crate) fn report_times(&mut self, times: ArrivalTimes) {
        self.times = Some(Box::new(times));
    }

    /// Receive times that were reported.
    pub(crate) fn times_reported(&self) -> u64 {
        self.times.as_ref().map_or(0, |times| times.reported())
    }

    /// Returns whether the packet was received before, or is so old that this is no longer known.
    #[inline]
    pub fn is_duplicate(&self, pn: u64) -> bool {
        pn < self.floor || (self.largest().is_some_and(|largest| pn <= largest) && self.received.contains(pn))
    }

    /// Records an authenticated packet that is no duplicate, with the arrival time of its datagram. Returns true if its number is the
    /// highest so far.
    #[inline]
    pub fn on_packet(&mut self, pn: u64, received_at: Instant, ack_eliciting: bool, ecn: Option<Ecn>) -> bool {
        let newest = self.largest().is_none_or(|largest| pn > largest);
        self.received.insert(pn);
        if self.received.range_count() > MAX_RANGES
            && let Some(lowest) = self.received.pop_lowest()
        {
            // RFC 9000 §13.2.3 MUST-1: ranges are kept until nothing in them could be accepted again
            self.floor = lowest.end() + 1;
        }
        if newest {
            self.largest_received_at = received_at;
        }
        // RFC 9000 §13.4.1 MUST-1: ECN marks received are reported, whether or not we mark
        match ecn {
            None => self.congested = false,
            Some(Ecn::Ect0) => {
                self.ecn.ect0 += 1;
                self.congested = false;
            }
            Some(Ecn::Ect1) => {
                self.ecn.ect1 += 1;
                self.congested = false;
            }
            Some(Ecn::Ce) => {
                self.ecn.ce += 1;
                // RFC 9000 §13.2.1 SHOULD-4: congestion is reported at once. draft-ietf-quic-ack-frequency-14 §6.3: only where it
                // begins, when the peer wants few acknowledgements.
                let begins = !self.congested || self.policy.ack_eliciting_threshold <= 2;
                self.at_once |= ack_eliciting && begins;
                self.congested = true;
            }
        }
        self.unreported = true;
        if ack_eliciting {
            self.on_ack_eliciting(pn, received_at);
        }
        newest
    }

    #[inline]
    fn on_ack_eliciting(&mut self, pn: u64, received_at: Instant) {
        self.unacked_eliciting += 1;
        if let Some(times) = &mut self.times {
            times.on_packet(pn, received_at);
        }
        // RFC 9000 §13.2.1 SHOULD-1: each packet is acknowledged at least once
        // RFC 9000 §13.2.1 MUST-1: ack-eliciting packets are acknowledged within the delay that we announced
        if self.deadline.is_none() {
            self.deadline = Some(received_at + self.policy.max_ack_delay);
        }
        let in_order = match self.largest_eliciting {
            // RFC 9000 §13.2.1 SHOULD-3: nothing is missing between the last and this one.
            Some(largest) => pn == largest + 1 || (pn > largest && self.received.contains_all(largest, pn)),
            None => pn == 0 || self.received.contains_all(0, pn),
        };
        self.largest_eliciting = self.largest_eliciting.max(Some(pn));
        if !in_order {
            self.unreported_gaps += 1;
            self.at_once |= self.unreported_gaps >= MAX_UNREPORTED_GAPS;
        }
        if !in_order || self.policy.reordering_threshold > 1 {
            self.at_once |= self.exceeds_reordering(pn);
        }
    }

    /// Returns whether missing packets have to be reported to the peer at once.
    fn exceeds_reordering(&self, pn: u64) -> bool {
        let threshold = self.policy.reordering_threshold;
        match threshold {
            0 => return false,
            // RFC 9000 §13.2.1: a packet out of order, or one that leaves a gap.
            1 => return true,
            _ => {}
        }
        let Some(largest) = self.largest_eliciting else { return false };
        // draft-ietf-quic-ack-frequency-14 §6.2: what the peer has already declared lost arrives.
        let reported = self.largest_reported.and_then(|acked| acked.checked_sub(threshold));
        if reported.is_some_and(|reported| pn <= reported) {
            return true;
        }
        // … or a missing packet that has not been reported becomes old enough to be declared lost.
        let from = reported.map_or(0, |reported| reported + 1).max(self.floor);
        self.received.first_missing(from).is_some_and(|missing| missing < largest && largest - missing >= threshold)
    }

    /// Returns whether an ACK frame is due. To be asked once per batch of datagrams.
    #[inline]
    pub fn wants_ack(&self, now: Instant) -> bool {
        // RFC 9000 §13.2.1 MUST NOT-1: one ack-eliciting packet causes at most one packet of nothing but an
        // acknowledgement
        // RFC 9000 §13.2.1 MUST NOT-2: packets that ask for no acknowledgement do not cause one by themselves
        self.unacked_eliciting > 0
            && (self.at_once
                || self.unacked_eliciting >= self.policy.ack_eliciting_threshold
                || self.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// Time at which an ACK frame is due if no further packet arrives.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether an ACK frame would have new information, so that it is worth its bytes in a packet that is sent anyway.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.unreported
    }

    /// Writes an ACK frame; returns the largest acknowledged packet number, to be recorded as [`crate::sent::SentFrame::Ack`]. `None`
    /// without packets to acknowledge, or without room.
    pub fn write(&mut self, w: &mut Writer<'_>, now: Instant, ack_delay_exponent: u8) -> Option<u64> {
        let room = w.remaining();
        self.write_within(w, now, ack_delay_exponent, room)
    }

    /// Like [`write`](Self::write), in at most `room` bytes, which leaves room for other frames.
    pub fn write_within(
        &mut self,
        w: &mut Writer<'_>,
        now: Instant,
        ack_delay_exponent: u8,
        room: usize,
    ) -> Option<u64> {
        let largest = self.largest()?;
        // RFC 9000 §13.2.5 MUST NOT-1: ACK Delay holds our own delay only
        let delay = (now - self.largest_received_at).as_micros() >> ack_delay_exponent;
        let delay = u64::try_from(delay).unwrap_or(wire::varint::MAX).min(wire::varint::MAX);
        // RFC 9000 §13.4.2: counts are reported as soon as any mark arrived.
        let ecn = (self.ecn != EcnCounts::default()).then_some(self.ecn);
        let (ranges, count) = (self.received.descending(), self.received.range_count());
        // RFC 9000 §13.2.3 SHOULD-1: acknowledgements name the newest packets
        // RFC 9000 §13.2.3 SHOULD-3: each ACK frame has the largest number received
        let written = match self.times.as_mut().filter(|times| !times.is_empty()) {
            None => Ack::encode(w, delay, ranges, count, ecn, room),
            Some(times) => {
                // draft-ietf-quic-receive-ts-02 §5 MUST: no more of them than the peer wants.
                let (most, newest) = (times.most(), times.newest_first());
                let (written, told) = Ack::encode_with_times(w, delay, ranges, count, ecn, newest, most, room);
                if written > 0 {
                    times.on_reported(told);
                }
                written
            }
        };
        if written == 0 {
            return None;
        }
        self.largest_reported = Some(largest);
        self.unacked_eliciting = 0;
        self.unreported = false;
        self.at_once = false;
        self.unreported_gaps = 0;
        self.deadline = None;
        Some(largest)
    }

    /// Processes the acknowledgement of an ACK frame of this endpoint that covered up to `largest`. RFC 9000 §13.2.3 SHOULD-2: these
    /// packets need not be acknowledged again.
    pub fn on_ack_acked(&mut self, largest: u64) {
        // The newest range stays: the next ACK frame needs a largest packet number.
        // RFC 9000 §13.2.3 MUST-2: the largest number is never forgotten
        let keep_from = self.received.max().map_or(0, |max| max.min(largest + 1));
        if keep_from > self.floor {
            self.received.remove_below(keep_from);
            self.floor = keep_from;
        }
    }

    /// The largest packet number received.
    #[inline]
    pub fn largest(&self) -> Option<u64> {
        self.received.max()
    }

    /// Counts of received ECN marks.
    pub fn ecn_counts(&self) -> EcnCounts {
        self.ecn
    }

    /// Returns memory that a busy phase left behind.
    pub fn shrink(&mut self) {
        self.received.shrink();
    }

    /// Bytes of memory held beside the struct itself.
    pub fn memory(&self) -> usize {
        self.received.memory() + self.times.as_ref().map_or(0, |times| size_of::<ArrivalTimes>() + times.memory())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use wire::{Frame, Frames};

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn state() -> AckState {
        AckState::new(AckPolicy::default())
    }

    /// Content of an ACK frame: ranges, raw delay, counts.
    fn written(acks: &mut AckState, now: Instant) -> (Vec<std::ops::RangeInclusive<u64>>, u64, Option<EcnCounts>) {
        let mut buffer = [0; 1000];
        let mut w = Writer::new(&mut buffer);
        acks.write(&mut w, now, 3).expect("something to acknowledge");
        let Some(Ok(Frame::Ack(ack))) = Frames::new(w.written()).next() else { panic!("no ACK frame") };
        (ack.ranges().collect(), ack.delay, ack.ecn)
    }

    // RFC 9000 §13.2.1 SHOULD-1, MUST-1, MUST NOT-1; RFC 9000 §13.2.2 SHOULD-1
    #[test]
    fn every_second_or_after_the_delay() {
        let mut acks = state();
        acks.on_packet(0, at(0), true, None);
        assert!(!acks.wants_ack(at(24)));
        assert_eq!(acks.deadline(), Some(at(25)));
        assert!(acks.wants_ack(at(25)));
        acks.on_packet(1, at(2), true, None);
        assert!(acks.wants_ack(at(2)));
        assert_eq!(written(&mut acks, at(10)), (vec![0..=1], 1000, None), "8 ms in units of 8 us");
        assert_eq!((acks.wants_ack(at(1000)), acks.deadline()), (false, None));
    }

    // RFC 9000 §13.2.1 MUST NOT-2
    #[test]
    fn what_asks_for_nothing_is_not_acknowledged_by_itself() {
        let mut acks = state();
        for pn in 0..10 {
            acks.on_packet(pn, at(pn), false, None);
        }
        assert_eq!((acks.wants_ack(at(1000)), acks.deadline(), acks.has_news()), (false, None, true));
        // Nor does it make a gap of those that ask.
        acks.on_packet(10, at(10), true, None);
        assert!(!acks.wants_ack(at(10)));
    }

    // RFC 9000 §13.2.1 SHOULD-3
    #[test]
    fn gaps_and_late_packets_are_reported_at_once() {
        let mut acks = state();
        acks.on_packet(0, at(0), true, None);
        acks.on_packet(2, at(0), true, None);
        assert!(acks.at_once);
        written(&mut acks, at(0));
        acks.on_packet(3, at(1), true, None);
        assert!(!acks.wants_ack(at(1)), "the gap has been reported");
        acks.on_packet(1, at(1), true, None);
        assert!(acks.at_once);
    }

    // RFC 9000 §13.2.1 MUST-2, SHOULD-4; RFC 9000 §13.4.1 MUST-1
    #[test]
    fn handshake_packets_and_congestion_marks_are_reported_at_once() {
        let mut acks = AckState::handshake();
        acks.on_packet(0, at(0), true, None);
        assert!(acks.wants_ack(at(0)));
        let mut acks = state();
        acks.on_packet(0, at(0), true, Some(Ecn::Ce));
        assert!(acks.wants_ack(at(0)));
        assert_eq!(written(&mut acks, at(0)).2, Some(EcnCounts { ect0: 0, ect1: 0, ce: 1 }));
    }

    /// The table of draft-ietf-quic-ack-frequency §6.2.1 for a threshold of 3.
    #[test]
    fn reordering_threshold_of_three() {
        let mut acks =
            AckState::new(AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 3, ..AckPolicy::default() });
        for (pn, expected) in
            [(0, false), (1, false), (3, false), (4, false), (5, true), (8, false), (9, true), (10, true)]
        {
            acks.on_packet(pn, at(0), true, None);
            assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
            if expected {
                written(&mut acks, at(0));
            }
        }
    }

    /// The table of draft-ietf-quic-ack-frequency-14 §6.2.1 for a threshold of 5.
    #[test]
    fn reordering_threshold_of_five() {
        let mut acks =
            AckState::new(AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 5, ..AckPolicy::default() });
        for (pn, expected) in
            [(0, false), (1, false), (3, false), (5, false), (6, false), (7, true), (8, false), (9, true)]
        {
            acks.on_packet(pn, at(0), true, None);
            assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
            if expected {
                written(&mut acks, at(0));
            }
        }
        // draft-ietf-quic-ack-frequency-14 §6.2: what the peer has declared lost by then arrives.
        acks.on_packet(4, at(0), true, None);
        assert!(acks.wants_ack(at(0)));
    }

    /// A threshold of 0: reordering alone makes no acknowledgement.
    #[test]
    fn reordering_threshold_of_none() {
        let mut acks =
            AckState::new(AckPolicy { ack_eliciting_threshold: 10, reordering_threshold: 0, ..AckPolicy::default() });
        for pn in [0, 5, 3, 20, 30, 1, 2, 40, 39] {
            acks.on_packet(pn, at(0), true, None);
            assert!(!acks.wants_ack(at(24)), "{pn}");
        }
        acks.on_packet(50, at(0), true, None);
        assert!(acks.wants_ack(at(0)), "the tenth");
    }

    #[test]
    fn the_newest_request_counts() {
        let mut acks = state();
        let policy = |packets, millis| AckPolicy {
            ack_eliciting_threshold: packets,
            max_ack_delay: Duration::from_millis(millis),
            reordering_threshold: 3,
        };
        acks.on_packet(0, at(0), true, None);
        assert!(acks.on_request(4, policy(10, 60)));
        assert_eq!(acks.deadline(), Some(at(60)), "what waits may wait as long as what follows");
        assert!(!acks.on_request(3, policy(2, 5)) && !acks.on_request(4, policy(2, 5)));
        for pn in 1..9 {
            acks.on_packet(pn, at(1), true, None);
        }
        assert!(!acks.wants_ack(at(59)));
        acks.on_packet(9, at(1), true, None);
        assert!(acks.wants_ack(at(1)));
        written(&mut acks, at(1));
        acks.on_packet(10, at(2), true, None);
        assert!(acks.on_request(5, policy(10, 5)));
        assert_eq!(acks.deadline(), Some(at(7)));
        acks.on_immediate();
        assert!(acks.wants_ack(at(2)));
    }

    /// draft-ietf-quic-ack-frequency-14 §6.3.
    #[test]
    fn congestion_is_reported_where_it_begins() {
        let mut acks = AckState::new(AckPolicy { ack_eliciting_threshold: 10, ..AckPolicy::default() });
        for (pn, mark, expected) in
            [(0, Ecn::Ect0, false), (1, Ecn::Ce, true), (2, Ecn::Ce, false), (3, Ecn::Ect0, false), (4, Ecn::Ce, true)]
        {
            acks.on_packet(pn, at(0), true, Some(mark));
            assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
            if expected {
                written(&mut acks, at(0));
            }
        }
    }

    /// However few acknowledgements the peer wants: every range is reported once before it is forgotten.
    #[test]
    fn no_range_is_forgotten_unreported() {
        let policy = AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 0, ..AckPolicy::default() };
        let mut acks = AckState::new(policy);
        let mut reported = BTreeSet::new();
        for pn in (0..2000).step_by(2) {
            acks.on_packet(pn, at(0), true, None);
            if acks.wants_ack(at(0)) {
                reported.extend(written(&mut acks, at(0)).0.into_iter().flatten());
            }
        }
        assert!((0..1900).step_by(2).all(|pn| reported.contains(&pn)));
    }

    // RFC 9000 §13.2.5 MUST NOT-1
    #[test]
    fn arrival_of_the_largest_gives_the_delay() {
        let mut acks = state();
        acks.on_packet(5, at(10), true, None);
        acks.on_packet(4, at(17), true, None);
        assert_eq!(written(&mut acks, at(18)), (vec![4..=5], 1000, None));
    }

    // RFC 9000 §12.3 MUST-3; RFC 9000 §13.2.3 SHOULD-2, MUST-1, MUST-2
    #[test]
    fn forgets_what_the_peer_knows() {
        let mut acks = state();
        for pn in [0, 1, 3, 4, 8] {
            acks.on_packet(pn, at(0), true, None);
        }
        acks.on_ack_acked(3);
        assert_eq!(written(&mut acks, at(0)).0, [8..=8, 4..=4]);
        assert!(acks.is_duplicate(2), "unknown whether it is one: treated as such");
        assert!(!acks.is_duplicate(5));
        acks.on_ack_acked(100);
        assert_eq!(written(&mut acks, at(0)).0, [8..=8]);
        assert!(acks.is_duplicate(8) && acks.is_duplicate(7) && !acks.is_duplicate(9));
    }

    #[test]
    fn memory_is_bounded() {
        let mut acks = state();
        for pn in 0..100_000 {
            if !acks.is_duplicate(pn * 2) {
                acks.on_packet(pn * 2, at(0), true, None);
            }
        }
        assert_eq!(acks.received.range_count(), MAX_RANGES);
        assert!(acks.memory() <= 2048);
        assert!(acks.is_duplicate(3));
        let mut small = [0; 20];
        let mut w = Writer::new(&mut small);
        assert_eq!(acks.write(&mut w, at(0), 3), Some(199_998), "as many ranges as fit");
    }

    proptest! {
        /// No packet is taken twice, and all that is reported was received.
        // RFC 9000 §13.2.3 SHOULD-1, SHOULD-3
        #[test]
        fn reports_only_what_arrived(pns in proptest::collection::vec(0u64..300, 1..400), acked in 0u64..300) {
            let mut acks = state();
            let mut model = BTreeSet::new();
            for (i, pn) in pns.into_iter().enumerate() {
                if !acks.is_duplicate(pn) {
                    acks.on_packet(pn, at(0), true, None);
                    prop_assert!(model.insert(pn), "{} twice", pn);
                }
                if i == 100 {
                    acks.on_ack_acked(acked);
                }
            }
            prop_assert_eq!(acks.largest(), model.last().copied());
            for pn in written(&mut acks, at(0)).0.into_iter().flatten() {
                prop_assert!(model.contains(&pn));
            }
        }
    }
}
