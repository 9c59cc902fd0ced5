//! The ring of packets, and the ring of their frames.

use std::collections::{VecDeque, vec_deque};
use std::ops::RangeInclusive;

use units::Instant;

use super::ecn::EcnFeedbackState;
use super::late::{LateLosses, LatePacket};
use super::{Entry, PathIndex, SentFrame, SentPacket, State};
use crate::congestion::rate::Snapshot;
use crate::error::{Code, TransportError};
use crate::range_set::RangeSet;

/// Acknowledgement-only packets that are kept waiting for an acknowledgement at most. The peer need not acknowledge
/// them, so without a limit an endpoint that only receives would remember all it ever sent.
const MAX_NON_ELICITING: usize = 64;

/// Packets with a verdict whose records wait, at most, for packets of a path that is not in use.
const MAX_WAITING: u64 = 1_024;

/// Distance below the oldest packet in the ledger up to which a skipped packet number is remembered, in packets.
const SKIPPED_MEMORY: u64 = 512;

/// The packets of one packet number space, in a ring indexed by packet number.
///
/// To send: [`Ledger::record`] each frame while the packet is built, then hand the packet to
/// [`crate::recovery::Recovery::on_packet_sent`], which gives it the number [`Ledger::next_pn`] had announced. Verdicts
/// come from the functions in [`crate::recovery`].
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The packet number of the first entry.
    base: u64,
    entries: VecDeque<Entry>,
    /// The records of all entries and, at the end, of the packet being built.
    frames: VecDeque<SentFrame>,
    /// Index of the first record; wraps.
    frames_start: u32,
    /// Records of the packet being built.
    open: usize,
    /// The packet numbers whose entries are outstanding.
    outstanding: RangeSet,
    late: LateLosses,
    /// Packet numbers never used, ascending.
    skipped: VecDeque<u64>,
    /// Packets from this number on were all sent on `last_path`.
    one_path_from: u64,
    last_path: PathIndex,
    largest_acked: Option<u64>,
    non_eliciting: u32,
    /// Most entries at a time since the ring was last empty.
    peak: usize,
    /// ECN marks that the peer reported.
    pub(crate) ecn: EcnFeedbackState,
    #[cfg(test)]
    pub(crate) steps: usize,
}

/// News of an acknowledgement about one packet.
pub(crate) enum Found<'a> {
    Acked { pn: u64, entry: &'a Entry, frames: vec_deque::Iter<'a, SentFrame> },
    Late { packet: &'a LatePacket, frames: vec_deque::Iter<'a, SentFrame> },
}

impl Ledger {
    /// An empty ledger; the first packet number is 0 and no memory is held.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The same with room for the records of so many frames.
    pub(crate) fn with_frames(frames: usize) -> Self {
        Self { frames: VecDeque::with_capacity(frames), ..Self::default() }
    }

    /// The number of the next packet.
    #[inline]
    pub(crate) fn next_pn(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The largest packet number that the peer has acknowledged: packet numbers are shortened with respect to it (RFC 9000
    /// §17.1).
    #[inline]
    pub(crate) fn largest_acked(&self) -> Option<u64> {
        self.largest_acked
    }

    /// Leaves out the next packet number and returns it. RFC 9000 §21.4: a peer that acknowledges it has not seen what
    /// it acknowledges.
    pub(crate) fn skip(&mut self) -> u64 {
        let pn = self.next_pn();
        let mut entry = Entry::new(&SentPacket::new(Instant::ZERO, 0), Snapshot::default());
        entry.state = State::Skipped;
        entry.flags = 0;
        entry.path = self.last_path;
        entry.frames_start = self.open_start();
        self.entries.push_back(entry);
        self.skipped.push_back(pn);
        pn
    }

    /// Notes a frame of the packet that is being built.
    #[inline]
    pub(crate) fn record(&mut self, frame: SentFrame) {
        self.frames.push_back(frame);
        self.open += 1;
    }

    /// Packets sent since the last ack-eliciting one. A receiver adds a PING to an acknowledgement now and then, so that
    /// it learns which acknowledgements arrived (RFC 9000 §13.2.4).
    #[inline]
    pub(crate) fn since_ack_eliciting(&self) -> u32 {
        self.non_eliciting
    }

    /// Returns whether a packet waits for its verdict.
    #[cfg(test)]
    pub(crate) fn is_outstanding(&self, pn: u64) -> bool {
        self.outstanding.contains(pn)
    }

    /// The oldest packet number without a verdict.
    #[cfg(test)]
    pub(crate) fn oldest_outstanding(&self) -> Option<u64> {
        self.outstanding.min()
    }

    /// Passes the frames of the oldest ack-eliciting packets in flight, at most `packets` of them, to `out`: a probe repeats them if there
    /// is no new data (RFC 9002 §6.2.4). They stay outstanding.
    pub(crate) fn oldest_unacked(&self, packets: usize, mut out: impl FnMut(SentFrame)) {
        let numbers = self.outstanding.iter().flatten();
        let entries = numbers.filter_map(|pn| self.entry(pn)).filter(|entry| entry.is_ack_eliciting());
        for entry in entries.take(packets) {
            frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames).copied().for_each(&mut out);
        }
    }

    /// Frees memory of a busy phase: forgets ACK-only packets at the lower end and, if nothing else is outstanding, losses that could still
    /// turn out to be spurious. Call it when a connection goes idle.
    pub(crate) fn shrink(&mut self) {
        while self.outstanding.min().is_some_and(|pn| !self.entries[self.index(pn)].is_in_flight()) {
            self.forget_oldest_non_eliciting();
        }
        if self.outstanding.is_empty() {
            self.late = LateLosses::default();
        }
        self.entries.shrink_to(self.entries.len());
        self.frames.shrink_to(self.frames.len());
        self.outstanding.shrink();
    }

    /// Bytes of memory held beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.frames.capacity() * size_of::<SentFrame>()
            + self.skipped.capacity() * size_of::<u64>()
            + self.outstanding.memory()
            + self.late.memory()
    }

    /// Bytes of the records in the ring: those without a fate, and those after them.
    #[inline]
    pub(crate) fn records(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.frames.len() * size_of::<SentFrame>()
    }

    /// Enters a packet with the frames recorded for it.
    #[inline]
    pub(crate) fn push(&mut self, packet: &SentPacket, snapshot: Snapshot) -> u64 {
        // RFC 9000 §12.3 MUST-1: packet numbers of a space rise
        // RFC 9000 §12.3 MUST NOT-1: a packet number is used once in its space
        let pn = self.next_pn();
        let mut entry = Entry::new(packet, snapshot);
        entry.frames_start = self.open_start();
        entry.frames = u16::try_from(self.open).expect("a packet has fewer frames than bytes");
        self.open = 0;
        if packet.path != self.last_path {
            self.last_path = packet.path;
            self.one_path_from = pn;
        }
        self.entries.push_back(entry);
        self.outstanding.insert(pn);
        if packet.ack_eliciting {
            self.non_eliciting = 0;
        } else {
            self.non_eliciting = self.non_eliciting.saturating_add(1);
            if !packet.in_flight && self.entries.len() > MAX_NON_ELICITING {
                self.forget_oldest_non_eliciting();
            }
        }
        pn
    }

    /// Stops waiting for the oldest packet if it is acknowledgement-only.
    fn forget_oldest_non_eliciting(&mut self) {
        let Some(pn) = self.outstanding.min() else { return };
        let index = self.index(pn);
        if !self.entries[index].is_in_flight() {
            self.entries[index].state = State::Forgotten;
            self.outstanding.remove_range(pn, pn);
            self.trim();
        }
    }

    /// Forgets the oldest packet in flight when it has nothing that is sent again, went another path than the last one, and many came after
    /// it: a probe of a path that need not lead anywhere, for which the records of all later packets would wait. Returns its path and size.
    pub(crate) fn forget_oldest_probe(&mut self) -> Option<(PathIndex, u16)> {
        if self.entries.len() <= MAX_NON_ELICITING {
            return None;
        }
        let pn = self.outstanding.min()?;
        let index = self.index(pn);
        let entry = &mut self.entries[index];
        if entry.path == self.last_path || entry.frames > 0 || !entry.is_in_flight() {
            return None;
        }
        entry.state = State::Forgotten;
        let forgotten = (entry.path, entry.size);
        self.outstanding.remove_range(pn, pn);
        Some(forgotten)
    }

    /// Path of the oldest packet without a verdict, when it is not the path of the last packet and too many records wait for it: a slow
    /// path that was left for a fast one, or one that never answered, has a long probe timeout.
    pub(crate) fn held_up_by(&self) -> Option<PathIndex> {
        if self.entries.len() as u64 <= MAX_WAITING {
            return None;
        }
        let path = self.entry(self.outstanding.min()?)?.path;
        if path == self.last_path {
            return None;
        }
        let open: u64 = self.outstanding.iter().map(|range| range.end() - range.start() + 1).sum();
        (self.entries.len() as u64 - open > MAX_WAITING).then_some(path)
    }

    /// Returns whether packets so much newer than `pn` were acknowledged that no delay of another path explains it.
    pub(crate) fn is_far_behind(&self, pn: u64) -> bool {
        self.largest_acked.is_some_and(|largest| largest > pn + MAX_WAITING)
    }

    /// Index that the first record of the packet being built has.
    #[inline]
    fn open_start(&self) -> u32 {
        self.frames_start.wrapping_add(wrapping_u32(self.frames.len() - self.open))
    }

    #[inline]
    fn index(&self, pn: u64) -> usize {
        // Entries live in memory, so their number fits.
        (pn - self.base) as usize
    }

    /// The entry of a packet number that is still in the ring.
    #[inline]
    pub(crate) fn entry(&self, pn: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(pn.checked_sub(self.base)?).ok()?)
    }

    /// The next outstanding packet from `pn` on.
    #[inline]
    pub(crate) fn next_outstanding(&self, pn: u64) -> Option<u64> {
        self.outstanding.next_from(pn)
    }

    /// Returns whether all packets in the ring were sent on one path.
    #[inline]
    pub(crate) fn is_one_path(&self) -> bool {
        self.one_path_from <= self.base
    }

    /// Number of packet numbers between `pn` and `largest` that were never sent: gaps that are no reordering.
    #[inline]
    pub(crate) fn skipped_between(&self, pn: u64, largest: u64) -> u64 {
        let below = |number| self.skipped.partition_point(|&skipped| skipped < number);
        below(largest).saturating_sub(below(pn + 1)) as u64
    }

    /// Returns whether a packet between these two, both excluded, was acknowledged.
    pub(crate) fn acked_between(&self, lower: u64, upper: u64) -> bool {
        (lower + 1..upper).any(|pn| self.entry(pn).is_some_and(|entry| entry.state == State::Acked))
    }

    /// Resolves what an acknowledgement of these ranges (descending) is news for.
    ///
    /// Examines each range once, and only down to the oldest packet without a fate: repeated ranges are not even read.
    ///
    /// # Errors
    /// RFC 9000 §13.1 SHOULD-1: a packet that was never sent cannot be acknowledged.
    pub(crate) fn acknowledge(
        &mut self,
        largest: u64,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        mut on: impl FnMut(Found<'_>),
    ) -> Result<(), TransportError> {
        if largest >= self.next_pn() {
            return Err(never_sent());
        }
        self.largest_acked = self.largest_acked.max(Some(largest));
        let mut run = self.outstanding.range_count();
        let mut late = self.late.len();
        let open = self.outstanding.min().unwrap_or(u64::MAX).min(self.late.min().unwrap_or(u64::MAX));
        let floor = open.min(self.skipped.front().copied().unwrap_or(u64::MAX));
        for range in ranges {
            let (first, last) = (*range.start(), *range.end());
            self.count_step();
            if last < floor {
                break;
            }
            // RFC 9000 §21.4: acknowledging a number that was left out on purpose gives an optimistic receiver away.
            let next = self.skipped.partition_point(|&skipped| skipped < first);
            if self.skipped.get(next).is_some_and(|&skipped| skipped <= last) {
                return Err(never_sent());
            }
            while let Some((start, end)) = run.checked_sub(1).and_then(|index| self.outstanding.range(index)) {
                self.count_step();
                if end < first {
                    break;
                }
                run -= 1;
                if start > last {
                    continue;
                }
                let (from, to) = (start.max(first), end.min(last));
                self.resolve(from, to, State::Acked, &mut on);
                self.outstanding.cut(run, from, to);
                if start < from {
                    // The rest of the run lies below this range, for the next one to meet.
                    run += 1;
                    break;
                }
            }
            late = self.late.acknowledge(late, first, last, &mut on);
        }
        Ok(())
    }

    /// Marks outstanding packets, all of one run, and shows each.
    #[inline]
    fn resolve(&mut self, from: u64, to: u64, state: State, on: &mut impl FnMut(Found<'_>)) {
        let (from_index, to_index) = (self.index(from), self.index(to));
        for (pn, entry) in (from..).zip(self.entries.range_mut(from_index..=to_index)) {
            entry.state = state;
            let frames = frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames);
            on(Found::Acked { pn, entry, frames });
        }
    }

    /// Declares an outstanding packet lost, and remembers it for a while from the time in `remember`.
    pub(crate) fn declare_lost(&mut self, pn: u64, remember: Option<Instant>, mut out: impl FnMut(SentFrame)) -> Entry {
        let index = self.index(pn);
        let entry = &mut self.entries[index];
        entry.state = State::Lost;
        let entry = *entry;
        self.outstanding.remove_range(pn, pn);
        let frames = frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames);
        frames.clone().copied().for_each(&mut out);
        if let Some(lost_at) = remember {
            self.late.push(pn, &entry, lost_at, frames, false);
        }
        entry
    }

    /// Marks an outstanding packet as rebuilt by the peer from repair symbols, and shows its frames. Like any loss it may turn
    /// out to be none, when the packet was only late.
    pub(crate) fn declare_recovered(
        &mut self,
        pn: u64,
        lost_at: Instant,
        mut out: impl FnMut(SentFrame),
    ) -> Option<Entry> {
        if !self.outstanding.contains(pn) {
            return None;
        }
        let index = self.index(pn);
        self.entries[index].state = State::Recovered;
        let entry = self.entries[index];
        self.outstanding.remove_range(pn, pn);
        let frames = frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames);
        frames.clone().copied().for_each(&mut out);
        if entry.is_in_flight() {
            self.late.push(pn, &entry, lost_at, frames, true);
        }
        Some(entry)
    }

    /// Shows the frames of a packet that was declared lost, is remembered, and was rebuilt by the peer; once.
    pub(crate) fn recover_late(&mut self, pn: u64, out: impl FnMut(SentFrame)) {
        self.late.recover(pn).into_iter().flatten().copied().for_each(out);
    }

    /// Empties the ledger, showing every outstanding packet and its frames. Packet numbers continue.
    pub(crate) fn clear(&mut self, mut on: impl FnMut(&Entry, vec_deque::Iter<'_, SentFrame>)) {
        for pn in self.outstanding.iter().flatten() {
            let entry = &self.entries[self.index(pn)];
            on(entry, frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames));
        }
        self.outstanding.clear();
        self.late = LateLosses::default();
        self.trim();
        self.shrink();
    }

    /// Forgets losses before `before`, which can no longer turn out to be spurious.
    #[inline]
    pub(crate) fn expire_losses(&mut self, before: Instant) {
        self.late.expire(before);
    }

    /// Drops the resolved entries at the lower end.
    #[inline]
    pub(crate) fn trim(&mut self) {
        let keep_from = self.outstanding.min().unwrap_or_else(|| self.next_pn());
        let done = self.index(keep_from);
        if done == 0 {
            return;
        }
        self.peak = self.peak.max(self.entries.len());
        self.entries.drain(..done);
        self.base = keep_from;
        let frames = match self.entries.front() {
            Some(entry) => entry.frames_start.wrapping_sub(self.frames_start) as usize,
            None => self.frames.len() - self.open,
        };
        self.frames.drain(..frames);
        self.frames_start = self.frames_start.wrapping_add(wrapping_u32(frames));
        while self.skipped.front().is_some_and(|skipped| skipped + SKIPPED_MEMORY < keep_from) {
            self.skipped.pop_front();
        }
        if self.entries.is_empty() {
            self.fit_memory();
        }
    }

    /// Halves rings of which not even a quarter was needed since they were last empty, so that the memory of a burst goes
    /// back by and by, and a steady window is not allocated anew for each flight.
    fn fit_memory(&mut self) {
        let capacity = self.entries.capacity();
        if capacity > MAX_NON_ELICITING && self.peak * 4 <= capacity {
            self.entries.shrink_to(capacity / 2);
            self.frames.shrink_to(self.frames.capacity() / 2);
        }
        self.peak = 0;
    }

    /// Counts what the loops over ranges do, for the test that repeated ranges are free.
    #[inline]
    fn count_step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

/// The records of one packet.
#[inline]
pub(super) fn frames_of(
    frames: &VecDeque<SentFrame>,
    ring_start: u32,
    start: u32,
    count: u16,
) -> vec_deque::Iter<'_, SentFrame> {
    let from = start.wrapping_sub(ring_start) as usize;
    frames.range(from..from + usize::from(count))
}

/// Indices of records wrap at 2^32; far fewer are alive at a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "indices wrap on purpose")]
pub(super) fn wrapping_u32(number: usize) -> u32 {
    number as u32
}

fn never_sent() -> TransportError {
    TransportError::new(Code::PROTOCOL_VIOLATION, "acknowledgement of a packet that was never sent")
        .in_frame(wire::frame_type::ACK)
}
