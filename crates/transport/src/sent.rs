//! The ledger of packets in flight: what was sent in which packet, and what became of it.
//!
//! A packet's entry stays in a ring until the packet and all before it have a verdict; the records of its frames stay in
//! a second ring, in the same order. Nothing is allocated per packet once the rings have grown to the size of the window.

mod late;

use std::collections::{VecDeque, vec_deque};
use std::ops::RangeInclusive;

use bytes::Bytes;
use units::Instant;
use wire::{Dir, StreamId};

use crate::congestion::rate::Snapshot;
use crate::error::{Code, TransportError};
use crate::range_set::RangeSet;

use late::LateLosses;
pub(crate) use late::LatePacket;

/// What a packet carried that matters once it is acknowledged or lost.
///
/// A record names state, it does not copy it: a lost `MaxData` is answered with the limit of that moment, not with the
/// old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrame {
    /// `len` bytes of a stream from `offset`, and whether its end was among them.
    Stream {
        /// The stream.
        id: StreamId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
        /// The frame carried the end of the stream.
        fin: bool,
    },
    /// `len` bytes of the handshake from `offset`, of the space the packet belongs to.
    Crypto {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
    },
    /// An acknowledgement whose largest packet number was this.
    Ack {
        /// The largest packet number it acknowledged.
        largest: u64,
    },
    /// The connection's flow control limit.
    MaxData,
    /// A stream's flow control limit.
    MaxStreamData(StreamId),
    /// The limit on streams.
    MaxStreams(Dir),
    /// The connection is blocked at this limit.
    DataBlocked(u64),
    /// The stream is blocked at its limit.
    StreamDataBlocked(StreamId),
    /// No further stream may be opened.
    StreamsBlocked(Dir),
    /// The stream was reset.
    ResetStream(StreamId),
    /// The peer was asked to stop.
    StopSending(StreamId),
    /// The connection ID with this sequence number was issued.
    NewConnectionId(u64),
    /// The peer's connection ID with this sequence number was given up.
    RetireConnectionId(u64),
    /// A token for the next connection.
    NewToken,
    /// The handshake is confirmed.
    HandshakeDone,
    /// An unreliable datagram, by its number.
    Datagram(u64),
    /// A PING that has to be sent again when lost (keep-alive, liveness); others are not recorded.
    Ping,
}

/// Which of a connection's paths carried a packet, by its place in the list of paths; below 64.
pub type PathIndex = u8;

/// A packet that has just been built, as the ledger and the recovery of its path need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPacket {
    /// When it leaves: the time of the batch, or the departure time that pacing gave it.
    pub sent_at: Instant,
    /// Bytes from the first byte of the packet's header to the end of its tag, without UDP and IP.
    pub size: u16,
    /// The path that carries it.
    pub path: PathIndex,
    /// The peer has to acknowledge it (RFC 9002 §2).
    pub ack_eliciting: bool,
    /// It counts towards the bytes in flight: it is ack-eliciting or has PADDING (RFC 9002 §2).
    pub in_flight: bool,
    /// It tries out a larger datagram size; its loss says nothing about congestion (RFC 9000 §14.4).
    pub mtu_probe: bool,
    /// It was sent because a probe timeout expired.
    pub pto_probe: bool,
    /// Its datagram carries an ECT codepoint.
    pub ecn: bool,
}

impl SentPacket {
    /// An ordinary ack-eliciting packet on path 0.
    pub const fn new(sent_at: Instant, size: u16) -> Self {
        Self {
            sent_at,
            size,
            path: 0,
            ack_eliciting: true,
            in_flight: true,
            mtu_probe: false,
            pto_probe: false,
            ecn: false,
        }
    }
}

/// What became of a packet, and so of each frame in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The peer has it.
    Acked,
    /// It counts as lost: what it carried is sent again where that still matters.
    Lost,
    /// It counted as lost, and the peer has it after all.
    AckedLate,
    /// The packet was lost, and the peer has rebuilt its content from repair symbols.
    Recovered,
    /// Its keys are gone (or a Retry or the rejection of 0-RTT voids it): nobody will ever hear of it.
    Discarded,
}

/// The state of a packet number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Outstanding,
    Acked,
    Lost,
    Recovered,
    Skipped,
    /// An acknowledgement-only packet that is no longer waited for.
    Forgotten,
}

/// One packet number, in one cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) sent_at: Instant,
    /// The connection's delivery when the packet left, see [`crate::congestion::rate`].
    pub(crate) snapshot: Snapshot,
    /// Index of the first of its frame records; indices wrap.
    frames_start: u32,
    frames: u16,
    pub(crate) size: u16,
    pub(crate) path: PathIndex,
    flags: u8,
    pub(crate) state: State,
}

const ACK_ELICITING: u8 = 1;
const IN_FLIGHT: u8 = 2;
const MTU_PROBE: u8 = 4;
const PTO_PROBE: u8 = 8;
const ECN: u8 = 16;

impl Entry {
    fn new(packet: &SentPacket, snapshot: Snapshot) -> Self {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        Self {
            sent_at: packet.sent_at,
            snapshot,
            frames_start: 0,
            frames: 0,
            size: packet.size,
            path: packet.path,
            flags: flag(packet.ack_eliciting, ACK_ELICITING)
                | flag(packet.in_flight, IN_FLIGHT)
                | flag(packet.mtu_probe, MTU_PROBE)
                | flag(packet.pto_probe, PTO_PROBE)
                | flag(packet.ecn, ECN),
            state: State::Outstanding,
        }
    }

    #[inline]
    pub(crate) fn is_ack_eliciting(&self) -> bool {
        self.flags & ACK_ELICITING != 0
    }

    #[inline]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.flags & IN_FLIGHT != 0
    }

    #[inline]
    pub(crate) fn is_mtu_probe(&self) -> bool {
        self.flags & MTU_PROBE != 0
    }

    #[inline]
    pub(crate) fn is_ecn_marked(&self) -> bool {
        self.flags & ECN != 0
    }
}

/// Acknowledgement-only packets that are kept waiting for an acknowledgement at most. The peer need not acknowledge
/// them, so without a limit an endpoint that only receives would remember all it ever sent.
const MAX_NON_ELICITING: usize = 64;

/// How far below the oldest packet in the ledger a skipped packet number is remembered.
const SKIPPED_MEMORY: u64 = 512;

/// The packets of one packet number space, in a ring indexed by packet number.
///
/// To send: [`Ledger::record`] each frame while the packet is built, then hand the packet to
/// [`crate::recovery::Recovery::on_packet_sent`], which gives it the number [`Ledger::next_pn`] had announced. A packet
/// that is not sent after all is taken back with [`Ledger::abandon`]. Verdicts come from the functions in
/// [`crate::recovery`].
#[derive(Debug, Default)]
pub struct Ledger {
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
    payloads: VecDeque<(u64, Bytes)>,
    #[cfg(test)]
    pub(crate) steps: usize,
}

/// What an acknowledgement says about a packet that it is news for.
pub(crate) enum Found<'a> {
    Acked { pn: u64, entry: &'a Entry, frames: vec_deque::Iter<'a, SentFrame> },
    Late { packet: &'a LatePacket, frames: vec_deque::Iter<'a, SentFrame> },
}

impl Ledger {
    /// An empty ledger; the first packet number is 0 and no memory is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of the next packet.
    #[inline]
    pub fn next_pn(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The largest packet number that the peer has acknowledged: packet numbers are shortened with respect to it (RFC 9000
    /// §17.1).
    #[inline]
    pub fn largest_acked(&self) -> Option<u64> {
        self.largest_acked
    }

    /// Leaves out the next packet number and returns it. RFC 9000 §21.4: a peer that acknowledges it has not seen what
    /// it acknowledges.
    pub fn skip(&mut self) -> u64 {
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
    pub fn record(&mut self, frame: SentFrame) {
        self.frames.push_back(frame);
        self.open += 1;
    }

    /// Gives back the frames of a packet that is not sent after all.
    pub fn abandon(&mut self, mut out: impl FnMut(SentFrame)) {
        for frame in self.frames.drain(self.frames.len() - self.open..) {
            out(frame);
        }
        self.open = 0;
    }

    /// Number of frames noted for the packet that is being built.
    #[inline]
    pub fn recorded(&self) -> usize {
        self.open
    }

    /// Packets sent since the last ack-eliciting one. A receiver adds a PING to an acknowledgement now and then, so that
    /// it learns which acknowledgements arrived (RFC 9000 §13.2.4).
    #[inline]
    pub fn since_ack_eliciting(&self) -> u32 {
        self.non_eliciting
    }

    /// Whether a packet waits for its verdict.
    #[inline]
    pub fn is_outstanding(&self, pn: u64) -> bool {
        self.outstanding.contains(pn)
    }

    /// The oldest packet number without a verdict.
    #[inline]
    pub fn oldest_outstanding(&self) -> Option<u64> {
        self.outstanding.min()
    }

    /// Keeps the plaintext of a sent packet until no older packet is outstanding, for repair symbols or exact
    /// retransmission.
    pub fn keep_payload(&mut self, pn: u64, payload: Bytes) {
        debug_assert!(self.payloads.back().is_none_or(|kept| kept.0 < pn) && pn < self.next_pn());
        self.payloads.push_back((pn, payload));
    }

    /// The plaintext kept for a packet.
    pub fn payload(&self, pn: u64) -> Option<&Bytes> {
        let at = self.payloads.binary_search_by_key(&pn, |kept| kept.0).ok()?;
        Some(&self.payloads[at].1)
    }

    /// Shows the frames of the oldest ack-eliciting packets in flight, `packets` at most: what a probe repeats when there
    /// is nothing new to send (RFC 9002 §6.2.4). They stay outstanding.
    pub fn oldest_unacked(&self, packets: usize, mut out: impl FnMut(SentFrame)) {
        let numbers = self.outstanding.iter().flatten();
        let entries = numbers.filter_map(|pn| self.entry(pn)).filter(|entry| entry.is_ack_eliciting());
        for entry in entries.take(packets) {
            frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames).copied().for_each(&mut out);
        }
    }

    /// Returns the memory that a busy phase left behind; `now` and the recovery's probe timeout decide which losses may
    /// still turn out to be spurious. To be called when a connection goes idle.
    pub fn shrink(&mut self) {
        if self.outstanding.is_empty() {
            self.late = LateLosses::default();
        }
        self.entries.shrink_to(self.entries.len());
        self.frames.shrink_to(self.frames.len());
        self.payloads.shrink_to(self.payloads.len());
        self.outstanding.shrink();
    }

    /// Bytes of memory held beside the struct itself.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.frames.capacity() * size_of::<SentFrame>()
            + self.skipped.capacity() * size_of::<u64>()
            + self.payloads.capacity() * size_of::<(u64, Bytes)>()
            + self.outstanding.memory()
            + self.late.memory()
    }

    /// Enters a packet with the frames recorded for it.
    #[inline]
    pub(crate) fn push(&mut self, packet: &SentPacket, snapshot: Snapshot) -> u64 {
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

    /// Whether all packets in the ring went over one path.
    #[inline]
    pub(crate) fn is_one_path(&self) -> bool {
        self.one_path_from <= self.base
    }

    /// Number of packet numbers between `pn` and `largest` that were never sent: gaps that are no reordering.
    #[inline]
    pub(crate) fn skipped_between(&self, pn: u64, largest: u64) -> u64 {
        self.skipped.iter().filter(|&&skipped| pn < skipped && skipped < largest).count() as u64
    }

    /// Whether a packet between these two, both excluded, was acknowledged.
    pub(crate) fn acked_between(&self, lower: u64, upper: u64) -> bool {
        (lower + 1..upper).any(|pn| self.entry(pn).is_some_and(|entry| entry.state == State::Acked))
    }

    /// Resolves what an acknowledgement of these ranges (descending) is news for.
    ///
    /// Looks at each range once, and only down to the oldest packet whose fate is open: ranges that repeat what is known
    /// are not even read.
    ///
    /// # Errors
    /// RFC 9000 §13.1: a packet that was never sent cannot be acknowledged.
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
            if self.skipped.iter().any(|skipped| range.contains(skipped)) {
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
        let mut pn = from;
        for entry in self.entries.range_mut(from_index..=to_index) {
            entry.state = state;
            let frames = frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames);
            on(Found::Acked { pn, entry, frames });
            pn += 1;
        }
    }

    /// Declares an outstanding packet lost, and remembers it for a while when `remember` says since when.
    pub(crate) fn declare_lost(&mut self, pn: u64, remember: Option<Instant>, mut out: impl FnMut(SentFrame)) -> Entry {
        let index = self.index(pn);
        let entry = &mut self.entries[index];
        entry.state = State::Lost;
        let entry = *entry;
        self.outstanding.remove_range(pn, pn);
        let frames = frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames);
        frames.clone().copied().for_each(&mut out);
        if let Some(lost_at) = remember {
            self.late.push(pn, &entry, lost_at, frames);
        }
        entry
    }

    /// Marks an outstanding packet as rebuilt by the peer from repair symbols, and shows its frames.
    pub(crate) fn declare_recovered(&mut self, pn: u64, mut out: impl FnMut(SentFrame)) -> Option<Entry> {
        if !self.outstanding.contains(pn) {
            return None;
        }
        let index = self.index(pn);
        self.entries[index].state = State::Recovered;
        let entry = self.entries[index];
        self.outstanding.remove_range(pn, pn);
        frames_of(&self.frames, self.frames_start, entry.frames_start, entry.frames).copied().for_each(&mut out);
        Some(entry)
    }

    /// Empties the ledger, showing every outstanding packet and its frames. Packet numbers go on.
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
        self.entries.drain(..done);
        self.base = keep_from;
        let frames = match self.entries.front() {
            Some(entry) => entry.frames_start.wrapping_sub(self.frames_start) as usize,
            None => self.frames.len() - self.open,
        };
        self.frames.drain(..frames);
        self.frames_start = self.frames_start.wrapping_add(wrapping_u32(frames));
        while self.payloads.front().is_some_and(|kept| kept.0 < keep_from) {
            self.payloads.pop_front();
        }
        while self.skipped.front().is_some_and(|skipped| skipped + SKIPPED_MEMORY < keep_from) {
            self.skipped.pop_front();
        }
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
fn frames_of(frames: &VecDeque<SentFrame>, ring_start: u32, start: u32, count: u16) -> vec_deque::Iter<'_, SentFrame> {
    let from = start.wrapping_sub(ring_start) as usize;
    frames.range(from..from + usize::from(count))
}

/// Indices of records wrap at 2^32; far fewer are alive at a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "indices wrap on purpose")]
fn wrapping_u32(number: usize) -> u32 {
    number as u32
}

fn never_sent() -> TransportError {
    TransportError::new(Code::PROTOCOL_VIOLATION, "acknowledgement of a packet that was never sent")
        .in_frame(wire::frame_type::ACK)
}
