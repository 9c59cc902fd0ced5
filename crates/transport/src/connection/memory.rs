//! Memory that a connection holds for its peer: added up once per batch, charged, and freed or refused above the budget.
//!
//! The budget is twice the receive window. So a peer that obeys flow control cannot exceed it with stream data, overhead included. The
//! budget grows with the window, that is with the data that the application reads. Memory for sending (application data, records of packets
//! in flight) raises budget and charge by the same amount: it takes no room from the peer, and counts in the budget of the process.
//!
//! Above the budget, expendable data is dropped first: datagrams, FEC symbols, packets without keys. If holes and fragments of streams
//! still exceed it, the connection is closed.

use units::Instant;

use super::{
    Connection, lifecycle::CloseFrame, packets::Packets, sources::Sources, spaces::Spaces, unopened::Reception,
};
use crate::{
    error::{Code, TransportError},
    events::{CloseReason, memory_words},
    memory::{Charge, ConnectionBudget, ProcessBudget, ProcessCharge},
    path::Paths,
    profile::Profile,
    stats::Counts,
    streams::{STREAM, StreamsConfig},
};

/// The memory that a connection may hold at least, in bytes, however small its windows are.
const BUDGET_MIN: u64 = 1 << 20;
/// Share of the budget by which receive buffers may exceed the data kept in them, for readers that are about to run.
const SLACK_SHARE: u64 = 4;
/// Memory of a connection at rest, in bytes: its state, keys, entries in tables. `tests/memory.rs` measures it.
const AT_REST: u64 = 11 * 1024;
/// Memory of a connection during its handshake, in bytes, that of the TLS library included.
const IN_HANDSHAKE: u64 = 32 * 1024;
/// Below this, what this end holds to be sent is part of a connection at rest.
const OWN_STEP: u64 = 16 * 1024;
/// Bytes of records for each byte in flight that count as this endpoint's own, for small packets. Records beyond that are of ACK-only
/// packets, which stay in the ring as long as the peer does not acknowledge the packets before them.
const RECORDS_PER_BYTE: u64 = 16;

/// Owns the account of a connection.
pub(super) struct Memory {
    pub(super) budget: ConnectionBudget,
    charge: Charge,
    /// The connection itself, which is the process's.
    itself: ProcessCharge,
    /// Bytes that the peer can make us hold.
    limit: u64,
    /// Bytes that settings permit beyond the usual: more streams, longer queues of datagrams.
    beside: u64,
    own: u64,
    /// Bytes of symbols that were sent, and how many there had been when these were counted, modulo 2^32.
    symbols: (u32, u32),
    /// Bytes that arrived since memory was charged, in batches of more than acknowledgements.
    since: u32,
    /// Turns since the last charge without new data to hold.
    quiet: u8,
    /// Set if the peer's data took almost no memory at the last charge.
    holds_little: bool,
    /// Bytes of the application that were not acknowledged then.
    unacknowledged: u64,
}

/// Received bytes after which memory is charged, if the application and the sender did not run before.
const ACCOUNT_EVERY: u32 = 16 * 1024;
/// Turns without new data after which memory is charged anyway, because records of sent packets change.
const QUIET_TURNS: u8 = 8;
/// Symbols that are sent until their memory is counted again, which takes time.
const COUNT_EVERY: u32 = 16;

impl Memory {
    /// The account of a connection with these settings.
    pub(super) fn new(profile: &Profile, process: &ProcessBudget) -> Self {
        let common = StreamsConfig::default();
        let streams = |config: &StreamsConfig| config.max_streams_bidi.saturating_add(config.max_streams_uni);
        let more_streams = streams(&profile.streams).saturating_sub(streams(&common));
        let beside =
            more_streams.saturating_mul(STREAM).saturating_add(profile.datagram_queue.saturating_sub(BUDGET_MIN));
        let limit = limit(profile.streams.receive_window_connection, beside);
        let budget = ConnectionBudget::new(limit, process);
        let (charge, itself) = (budget.empty(), process.charge(IN_HANDSHAKE));
        Self {
            budget,
            charge,
            itself,
            limit,
            beside,
            own: 0,
            symbols: (0, 0),
            since: 0,
            quiet: 0,
            holds_little: true,
            unacknowledged: 0,
        }
    }
}

fn limit(window: u64, beside: u64) -> u64 {
    window.saturating_mul(2).max(BUDGET_MIN).saturating_add(beside)
}

/// Parts of a connection that hold memory.
pub(super) struct Held<'a> {
    pub(super) sources: &'a mut Sources,
    pub(super) reception: &'a mut Reception,
    pub(super) spaces: &'a Spaces,
    pub(super) paths: &'a Paths,
    pub(super) stats: &'a mut Counts,
}

impl Held<'_> {
    /// Bytes held for the peer, without records of sent packets.
    #[inline]
    fn received(&self) -> u64 {
        self.sources.received_memory() + self.reception.memory()
    }

    /// Bytes held for sending or until their acknowledgement, without symbols; and bytes of records that a peer keeps alive by
    /// acknowledging nothing.
    #[inline]
    fn sent(&self) -> (u64, u64) {
        let (memory, records) = self.spaces.sent_memory();
        let mut of_acks = 0;
        if records as u64 >= OWN_STEP {
            let in_flight: u64 = self.paths.bytes_in_flight();
            // Room in the rings that is not in use is left from packets in flight before, and ours.
            of_acks = (records as u64).saturating_sub(OWN_STEP + RECORDS_PER_BYTE * in_flight);
        }
        let streams = &self.sources.streams;
        (streams.unacknowledged_bytes() + streams.own_memory() + memory as u64 - of_acks, of_acks)
    }

    /// Copies data that pins buffers, and then drops expendable data, for this number of bytes.
    #[cold]
    fn shed(&mut self, bytes: u64, slack: u64) {
        let target = self.received().saturating_sub(bytes);
        let excess = |this: &Self| this.received().saturating_sub(target);
        // Copies lose nothing.
        self.sources.set_slack(0);
        self.sources.datagrams.compact_if_wasteful();
        if excess(self) > 0 {
            self.sources.streams.compact_if_wasteful();
        }
        self.sources.set_slack(slack);
        if excess(self) > 0 {
            self.sources.datagrams.shed(excess(self));
        }
        if excess(self) > 0
            && let Some(receiver) = &mut self.sources.fec.receiver
        {
            receiver.shed(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if excess(self) > 0 {
            self.reception.give_up_unopened(self.stats, |_| false);
        }
    }
}

impl Memory {
    /// Bytes that buffers may have beyond what is kept of them.
    pub(super) fn slack(&self) -> u64 {
        self.limit / SLACK_SHARE
    }

    /// Called after a batch of this many bytes that is more than acknowledgements. Returns whether to charge memory at once; small batches
    /// are charged when there is no more data to send.
    #[inline]
    pub(super) fn on_arrived(&mut self, bytes: usize) -> bool {
        self.since = self.since.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.since >= ACCOUNT_EVERY
    }

    /// Returns whether to charge memory when there is no more data to send: if it may have changed by more than a step.
    ///
    /// A sender receives mostly acknowledgements, which leave no data to hold.
    #[inline]
    pub(super) fn is_due_at_rest(&mut self, sources: &Sources) -> bool {
        let Self { since: 0, holds_little, quiet, unacknowledged, .. } = self else { return true };
        let moved = sources.streams.unacknowledged_bytes().abs_diff(*unacknowledged);
        let is_due = !*holds_little || moved >= OWN_STEP || *quiet >= QUIET_TURNS || sources.fec.sender.is_some();
        *quiet += u8::from(!is_due);
        is_due
    }

    /// Charges what is held. `false` when it is too much, even without what may be lost.
    #[must_use]
    fn account(&mut self, held: &mut Held<'_>) -> bool {
        held.reception.shrink_deferred();
        held.sources.streams.compact_if_wasteful();
        if let Some(sender) = &held.sources.fec.sender
            && (sender.figures.symbols as u32).wrapping_sub(self.symbols.1) >= COUNT_EVERY
        {
            let bytes = u32::try_from(sender.memory()).unwrap_or(u32::MAX);
            self.symbols = (bytes, sender.figures.symbols as u32);
        }
        let (own, of_acks) = held.sent();
        let own = match own + u64::from(self.symbols.0) {
            little if little < OWN_STEP => 0,
            own => own.next_multiple_of(OWN_STEP),
        };
        let limit = limit(held.sources.streams.receive_window(), self.beside);
        if (limit, own) != (self.limit, self.own) {
            (self.limit, self.own) = (limit, own);
            self.budget.set_limit(limit + own);
            held.sources.set_slack(self.slack());
        }
        let mut received = held.received() + of_acks;
        let others = self.budget.held().saturating_sub(self.charge.bytes());
        if received + others > limit {
            held.shed(received + others - limit, self.slack());
            received = held.received() + of_acks;
            if received > limit {
                return false;
            }
        }
        self.charge.set(received + own);
        self.holds_little = received < OWN_STEP;
        self.unacknowledged = held.sources.streams.unacknowledged_bytes();
        let room = !self.budget.is_exceeded() && !self.budget.process().is_scarce();
        held.sources.streams.permit_growth(room);
        if held.sources.handshake.is_confirmed() {
            self.itself.set(AT_REST);
        }
        true
    }

    /// Releases all memory except that for CONNECTION_CLOSE, because the connection has ended.
    fn release(&mut self) {
        self.charge.set(0);
        self.itself.set(AT_REST);
    }
}

impl Connection {
    /// Charges what is held, and ends the connection when it is too much.
    #[inline]
    pub(super) fn account(&mut self, now: Instant) {
        (self.memory.since, self.memory.quiet) = (0, 0);
        let Self { packets: Packets { sources, spaces, .. }, reception, paths, stats, .. } = self;
        if self.lifecycle.is_open() && !self.memory.account(&mut Held { sources, reception, spaces, paths, stats }) {
            self.end_for_memory(now, false);
        }
    }

    /// Ends the connection because of its memory, or because of that of the whole process.
    pub(crate) fn end_for_memory(&mut self, now: Instant, process: bool) {
        // RFC 9000 §20.1 has no code for it; what is wrong is on this side.
        let error = TransportError::new(Code::INTERNAL_ERROR, memory_words(process));
        self.close_with(now, CloseFrame::Transport(error), CloseReason::Memory { process });
    }

    /// Releases all memory except that for CONNECTION_CLOSE, once the connection has ended and has reported it. Data from before the
    /// CONNECTION_CLOSE of the peer's application stays readable, unless `at_any_cost`.
    pub(crate) fn release_memory(&mut self, at_any_cost: bool) {
        if self.lifecycle.is_open() || self.lifecycle.is_readable() && !at_any_cost {
            return;
        }
        self.packets.sources.forget();
        self.reception.deferred = Vec::new();
        self.reception.give_up_unopened(&mut self.stats, |_| false);
        self.packets.spaces.forget_sent();
        self.memory.release();
    }
}
