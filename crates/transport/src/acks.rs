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
pub(crate) struct AckPolicy {
    /// Number of ack-eliciting packets after which an acknowledgement is due (RFC 9000 §13.2.2 SHOULD-1: 2).
    pub(crate) ack_eliciting_threshold: u32,
    /// … or longest delay of an acknowledgement, as advertised to the peer (RFC 9000 §18.2).
    pub(crate) max_ack_delay: Duration,
    /// … or at once when a packet is missing and this number of later ones has arrived (draft-ietf-quic-ack-frequency-14 §6.2): 1 for any
    /// gap, as RFC 9000 §13.2.1 requires; 0 for never.
    pub(crate) reordering_threshold: u64,
}

impl Default for AckPolicy {
    fn default() -> Self {
        Self { ack_eliciting_threshold: 2, max_ack_delay: Duration::from_millis(25), reordering_threshold: 1 }
    }
}

impl AckPolicy {
    /// Every packet at once, as Initial and Handshake packets are acknowledged.
    pub(crate) const IMMEDIATE: Self =
        Self { ack_eliciting_threshold: 1, max_ack_delay: Duration::ZERO, reordering_threshold: 1 };
}

/// Owner of the record of received packets of one packet number space.
#[derive(Clone, Debug)]
pub(crate) struct AckState {
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
    pub(crate) fn new(policy: AckPolicy) -> Self {
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
    pub(crate) fn handshake() -> Self {
        Self::new(AckPolicy::IMMEDIATE)
    }

    /// State of the acknowledgements that are due.
    pub(crate) fn policy(&self) -> &AckPolicy {
        &self.policy
    }

    /// Processes a request of the peer for another frequency; `sequence` numbers its requests. Returns false unless it is the newest one,
    /// which alone counts.
    // draft-ietf-quic-ack-frequency-14 §4 MUST: ignored unless its number is above that of the last one obeyed.
    pub(crate) fn on_request(&mut self, sequence: u64, policy: AckPolicy) -> bool {
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
    pub(crate) fn on_immediate(&mut self) {
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
    pub(crate) fn is_duplicate(&self, pn: u64) -> bool {
        pn < self.floor || (self.largest().is_some_and(|largest| pn <= largest) && self.received.contains(pn))
    }

    /// Records an authenticated packet that is no duplicate, with the arrival time of its datagram. Returns true if its number is the
    /// highest so far.
    #[inline]
    pub(crate) fn on_packet(&mut self, pn: u64, received_at: Instant, ack_eliciting: bool, ecn: Option<Ecn>) -> bool {
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
    pub(crate) fn wants_ack(&self, now: Instant) -> bool {
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
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether an ACK frame would have new information, so that it is worth its bytes in a packet that is sent anyway.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.unreported
    }

    /// Writes an ACK frame; returns the largest acknowledged packet number, to be recorded as [`crate::sent::SentFrame::Ack`]. `None`
    /// without packets to acknowledge, or without room.
    pub(crate) fn write(&mut self, w: &mut Writer<'_>, now: Instant, ack_delay_exponent: u8) -> Option<u64> {
        let room = w.remaining();
        self.write_within(w, now, ack_delay_exponent, room)
    }

    /// Like [`write`](Self::write), in at most `room` bytes, which leaves room for other frames.
    pub(crate) fn write_within(
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
    pub(crate) fn on_ack_acked(&mut self, largest: u64) {
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
    pub(crate) fn largest(&self) -> Option<u64> {
        self.received.max()
    }

    /// Returns memory that a busy phase left behind.
    pub(crate) fn shrink(&mut self) {
        self.received.shrink();
    }

    /// Bytes of memory held beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.received.memory() + self.times.as_ref().map_or(0, |times| size_of::<ArrivalTimes>() + times.memory())
    }
}

#[cfg(test)]
mod tests;
