//! Detection of lost packets (RFC 9002 §6.1) and of persistent congestion (§7.6), and other removals of packets from the ledger.

use units::Instant;

use super::ack::AckOutcome;
use super::reordering::lost_at;
use super::{Fates, Paths, Recovery, SpaceId};
use crate::congestion::LostPacket;
use crate::sent::{EcnFeedback, Entry, Ledger, PathIndex, SentFrame, Verdict};

/// RFC 9002 §7.6.1 RECOMMENDED-1: number of probe timeouts over which losses are persistent congestion.
const PERSISTENT_CONGESTION_THRESHOLD: u32 = 3;

/// Number of probe timeouts for which a loss is remembered, in case it is spurious.
const LATE_MEMORY_PTOS: u32 = 2;

/// Threshold by which a packet was declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossTrigger {
    /// Packets sent later were acknowledged, more of them than reordering explains (RFC 9002 §6.1.1).
    ReorderingThreshold,
    /// A packet sent later was acknowledged, longer ago than reordering explains (RFC 9002 §6.1.2).
    TimeThreshold,
}

/// Verdict on an outstanding packet.
enum Judgement {
    Lost(LossTrigger),
    /// Neither this packet nor a later one on the same path is lost.
    Keep,
    /// Not waited for.
    Ignore,
}

impl Recovery {
    /// Judges an outstanding packet; notes when it would count as lost by time.
    fn judge(
        &mut self,
        space: SpaceId,
        pn: u64,
        entry: &Entry,
        largest_of_all: Option<u64>,
        skipped: impl Fn(u64) -> u64,
        now: Instant,
    ) -> Judgement {
        // RFC 9002 §6.1: only packets sent before one that was acknowledged can be lost.
        let largest = self.spaces[space.index()].largest_acked.filter(|&largest| pn < largest);
        let at = match largest {
            Some(_) => lost_at(entry.sent_at, self.reordering.time_threshold(&self.rtt)),
            // What was acknowledged went over another path: the two say nothing of each other's order, but a probe timeout
            // of this path is time enough. Without this, what was in flight when the peer moved would wait for ever.
            None if largest_of_all.is_some_and(|largest| pn < largest) => entry.sent_at + self.pto(),
            None => return Judgement::Keep,
        };
        // RFC 9002 §6.1.1, §6.1.2: lost by number or by time. Numbers that were left out are no reordering.
        let by_number =
            largest.is_some_and(|largest| largest - pn - skipped(largest) >= self.reordering.packet_threshold());
        if by_number {
            return Judgement::Lost(LossTrigger::ReorderingThreshold);
        }
        // RFC 9002 §6.1.2 SHOULD-1: a packet that left long before one that was acknowledged counts as lost
        if at <= now {
            // RFC 9002 §7.4 MUST NOT-1: losses of packets that left after the first acknowledged one count
            return Judgement::Lost(LossTrigger::TimeThreshold);
        }
        if !entry.is_in_flight() {
            return Judgement::Ignore;
        }
        let state = &mut self.spaces[space.index()];
        // RFC 9002 §6.1.2 SHOULD-2: a packet that is not yet late enough gets a timer
        state.loss_time = Some(state.loss_time.map_or(at, |time| time.min(at)));
        Judgement::Keep
    }

    /// Takes in a packet in flight that was declared lost.
    fn on_packet_lost(&mut self, space: SpaceId, pn: u64, entry: &Entry, now: Instant) {
        let bytes = u64::from(entry.size);
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(bytes);
        if entry.is_ack_eliciting() {
            let in_flight = &mut self.spaces[space.index()].eliciting_in_flight;
            *in_flight = in_flight.saturating_sub(1);
        }
        // RFC 9000 §14.4 SHOULD NOT-1: the loss of a probe of the datagram size is no sign of congestion.
        if entry.is_mtu_probe() {
            return;
        }
        self.black_hole.on_lost(now, entry.size, entry.sent_at);
        self.rate.on_packet_lost(entry.size);
        self.batch.lost_packets += 1;
        self.batch.lost_bytes += bytes;
        if self.batch.largest_lost.is_none_or(|largest| largest.1 <= entry.sent_at) {
            self.batch.largest_lost = Some((pn, entry.sent_at));
        }
        self.controller.on_packet_lost(
            now,
            &LostPacket {
                pn,
                bytes: entry.size,
                sent_at: entry.sent_at,
                snapshot: entry.snapshot,
                lost_since_sent: self.rate.lost().saturating_sub(entry.snapshot.lost),
                delivered: self.rate.delivered(),
            },
        );
    }

    /// Extends the run of losses without an acknowledgement in between, and checks for persistent congestion. `unbroken_since` returns
    /// whether nothing after that packet number was acknowledged.
    fn extend_run(&mut self, space: SpaceId, pn: u64, entry: &Entry, unbroken_since: impl Fn(u64) -> bool) {
        // RFC 9002 §7.6.2 MUST-1, SHOULD NOT-1: only ack-eliciting packets count, and only those sent after the first
        // RTT sample.
        if !entry.is_ack_eliciting()
            || entry.is_mtu_probe()
            || self.rtt.first_sample_at().is_none_or(|first| entry.sent_at <= first)
        {
            return;
        }
        let start = match self.batch.run {
            Some((start, last)) if unbroken_since(last) => start,
            _ => entry.sent_at,
        };
        self.batch.run = Some((start, pn));
        // RFC 9002 §7.6.1: the delay counts in every space.
        let duration = self.pto() * PERSISTENT_CONGESTION_THRESHOLD;
        // RFC 9002 §7.6.2 SHOULD-1: acknowledgements in other spaces count as well.
        let acked_elsewhere = SpaceId::ALL.into_iter().filter(|other| *other != space).any(|other| {
            let acked = self.spaces[other.index()].last_acked_sent_at;
            acked.is_some_and(|sent_at| start < sent_at && sent_at < entry.sent_at)
        });
        if entry.sent_at - start > duration && !acked_elsewhere {
            self.batch.persistent = true;
        }
    }
}

/// RFC 9002 appendix A.10: declares lost what is, and notes when to look again.
pub(super) fn detect_losses<P: Paths + ?Sized>(
    ledger: &mut Ledger,
    paths: &mut P,
    space: SpaceId,
    now: Instant,
    outcome: &mut AckOutcome,
    out: &mut impl Fates,
) {
    let mut memory = now;
    for path in PathIndex::all(paths.count()) {
        if let Some(recovery) = paths.recovery(path) {
            recovery.spaces[space.index()].loss_time = None;
            memory = memory.min(now.saturating_sub(recovery.pto() * LATE_MEMORY_PTOS));
        }
    }
    ledger.expire_losses(memory);
    let largest_of_all = ledger.largest_acked();
    let held_up_by = ledger.held_up_by();

    let mut from = 0;
    while let Some(pn) = ledger.next_outstanding(from) {
        from = pn + 1;
        let Some(&entry) = ledger.entry(pn) else { break };
        let Some(recovery) = paths.recovery(entry.path) else {
            ledger.declare_lost(pn, None, |frame| out.frame(Verdict::Lost, frame));
            continue;
        };
        let judgement = if held_up_by == Some(entry.path) && ledger.is_far_behind(pn) {
            Judgement::Lost(LossTrigger::ReorderingThreshold)
        } else {
            recovery.judge(space, pn, &entry, largest_of_all, |largest| ledger.skipped_between(pn, largest), now)
        };
        match judgement {
            // On one path, packets sent later are judged no worse: the rest is not looked at.
            Judgement::Keep if ledger.is_one_path() => break,
            Judgement::Keep | Judgement::Ignore => {}
            Judgement::Lost(trigger) => {
                if entry.is_in_flight() {
                    out.packet_lost(pn, entry.size, entry.is_mtu_probe(), trigger, now - entry.sent_at);
                    recovery.on_packet_lost(space, pn, &entry, now);
                    if !entry.is_mtu_probe() {
                        outcome.loss_detection_time += now - entry.sent_at;
                    }
                    recovery.extend_run(space, pn, &entry, |last| !ledger.acked_between(last, pn));
                    if entry.is_mtu_probe() {
                        outcome.mtu_probe_lost = Some((entry.path, entry.size));
                    }
                }
                let remember = (entry.is_in_flight() && !entry.is_mtu_probe()).then_some(now);
                ledger.declare_lost(pn, remember, |frame| out.frame(Verdict::Lost, frame));
            }
        }
    }
}

/// Declares lost what has been missing for too long; to be called when a [`super::Reason::LossTime`] is due.
pub(crate) fn on_loss_timer<P: Paths + ?Sized>(
    ledger: &mut Ledger,
    paths: &mut P,
    space: SpaceId,
    now: Instant,
    out: &mut impl Fates,
) -> AckOutcome {
    let mut outcome = AckOutcome::default();
    begin(paths);
    detect_losses(ledger, paths, space, now, &mut outcome, out);
    end(ledger, paths, now, &mut outcome);
    outcome
}

/// The peer has rebuilt a lost packet from repair symbols: its frames are delivered, and the network has lost it all the
/// same. `None` when the packet already has another verdict; where it counts as lost, its content need not be sent again.
pub(crate) fn on_recovered<P: Paths + ?Sized>(
    ledger: &mut Ledger,
    paths: &mut P,
    space: SpaceId,
    pn: u64,
    now: Instant,
    out: &mut impl Fates,
) -> Option<AckOutcome> {
    let Some(entry) = ledger.declare_recovered(pn, now, |frame| out.frame(Verdict::Recovered, frame)) else {
        ledger.recover_late(pn, |frame| {
            if frame.is_in_symbol() {
                out.frame(Verdict::Recovered, frame);
            }
        });
        return None;
    };
    let mut outcome = AckOutcome::default();
    begin(paths);
    if let Some(recovery) = paths.recovery(entry.path).filter(|_| entry.is_in_flight()) {
        recovery.on_packet_lost(space, pn, &entry, now);
    }
    end(ledger, paths, now, &mut outcome);
    Some(outcome)
}

/// Declares outstanding packets lost on a path that is abandoned together with its recovery.
pub(crate) fn abandon_path(ledger: &mut Ledger, path: PathIndex, out: &mut impl FnMut(Verdict, SentFrame)) {
    let mut from = 0;
    while let Some(pn) = ledger.next_outstanding(from) {
        from = pn + 1;
        if ledger.entry(pn).is_some_and(|entry| entry.path == path) {
            ledger.declare_lost(pn, None, |frame| out(Verdict::Lost, frame));
        }
    }
    ledger.trim();
}

/// Forgets probes of paths that are not in use, for which the records of later packets wait.
pub(super) fn forget_path_probes<P: Paths + ?Sized>(ledger: &mut Ledger, paths: &mut P, space: SpaceId, now: Instant) {
    while let Some((path, size)) = ledger.forget_oldest_probe() {
        let Some(recovery) = paths.recovery(path) else { continue };
        let bytes = u64::from(size);
        recovery.bytes_in_flight = recovery.bytes_in_flight.saturating_sub(bytes);
        recovery.controller.on_discarded(now, bytes, recovery.bytes_in_flight);
        let state = &mut recovery.spaces[space.index()];
        state.eliciting_in_flight = state.eliciting_in_flight.saturating_sub(1);
        recovery.update_outputs(now);
    }
}

/// Forgets all packets of a space, whose keys are gone, or which a Retry or the rejection of 0-RTT voids. Packet numbers
/// continue where they were.
pub(crate) fn discard_space<P: Paths + ?Sized>(
    ledger: &mut Ledger,
    paths: &mut P,
    space: SpaceId,
    now: Instant,
    out: &mut impl Fates,
) {
    ledger.clear(|entry, frames| {
        frames.for_each(|frame| out.frame(Verdict::Discarded, *frame));
        if let Some(recovery) = paths.recovery(entry.path).filter(|_| entry.is_in_flight()) {
            let bytes = u64::from(entry.size);
            // RFC 9002 §6.4 MUST-1, MUST-2: they no longer count as in flight.
            recovery.bytes_in_flight = recovery.bytes_in_flight.saturating_sub(bytes);
            recovery.controller.on_discarded(now, bytes, recovery.bytes_in_flight);
        }
    });
    for path in PathIndex::all(paths.count()) {
        if let Some(recovery) = paths.recovery(path) {
            // RFC 9002 §6.2.2 MUST-1: discarding keys is progress: timers and backoff start anew.
            let state = &mut recovery.spaces[space.index()];
            state.eliciting_in_flight = 0;
            state.loss_time = None;
            recovery.pto_count = 0;
            recovery.last_event_at = now;
            recovery.update_outputs(now);
        }
    }
}

fn begin<P: Paths + ?Sized>(paths: &mut P) {
    for path in PathIndex::all(paths.count()) {
        if let Some(recovery) = paths.recovery(path) {
            recovery.begin_batch();
        }
    }
}

fn end<P: Paths + ?Sized>(ledger: &mut Ledger, paths: &mut P, now: Instant, outcome: &mut AckOutcome) {
    for path in PathIndex::all(paths.count()) {
        if let Some(recovery) = paths.recovery(path).filter(|recovery| recovery.batch.lost_packets > 0) {
            recovery.end_batch(now, EcnFeedback::None, ledger, outcome);
        }
    }
    ledger.trim();
}
