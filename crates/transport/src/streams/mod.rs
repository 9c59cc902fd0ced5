//! Streams of a connection: sending, receiving, flow control, priorities (RFC 9000 §2–§4).
//!
//! [`Streams`] composes the parts; each part owns its state and has its file, in the order in which data meets them:
//!
//! ```text
//! write()   application → budget → buffer, send → schedule → outgoing → packet
//! verdict   ledger → verdicts → send → buffer, budget
//! frame     packet → incoming → recv → assembler → application → read()
//! ```
//!
//! Beside them `flow` (credit both ways), `limits` (numbers of streams), `slab` (where streams live), `events`.
//!
//! **Contract.** Commands of the application ([`open`](Streams::open), [`write`](Streams::write), [`read`](Streams::read), …)
//! and frames of the peer (`on_…`) come in any order. After them, while [`wants_to_send`](Streams::wants_to_send), packets
//! are filled by `write_frames`, and for everything it recorded exactly one of
//! `on_acked` and `on_lost` follows, or `on_acked` after `on_lost` when the loss was
//! spurious. [`poll_event`](Streams::poll_event) until it has no more. [`tune`](Streams::tune) tells the time, once for each
//! batch of datagrams received.
//!
//! The cost of every call is independent of the number of streams that it does not concern, and in bulk transfer nothing
//! is allocated or hashed per packet.

mod application;
mod assembler;
mod awaited;
mod budget;
mod buffer;
mod early;
mod events;
mod flow;
mod incoming;
mod limits;
mod outgoing;
mod queue;
mod ranges;
mod recv;
mod schedule;
mod send;
mod slab;
mod stream;
#[cfg(test)]
mod tests;
mod verdicts;

use serde::{Deserialize, Serialize};
use units::{Duration, Instant};
use wire::{Dir, Side, StreamId, TransportParameters};

pub use self::{
    application::{Chunk, Order, ReadError, ReadStatus, ReceivedBytes, ResetAtError, Unread, WriteError},
    events::StreamEvent,
    stream::Priority,
};
use self::{
    assembler::Holdings,
    budget::Budget,
    events::Events,
    flow::{Clock, Credit, ReceiveWindow},
    limits::{LocalStreams, RemoteStreams},
    recv::RecvPart,
    schedule::Schedule,
    send::SendPart,
    slab::{CONTROL, Queue, Slab, Slot},
    stream::Stream,
};
pub(crate) use self::{awaited::Awaited, outgoing::Tail};
use crate::error::{Code, TransportError};

/// Limits of the streams of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamsConfig {
    /// Bytes of unacknowledged and unsent data that [`Streams::write`] accepts, for all streams together.
    pub send_buffer: u64,
    /// Bytes up to which `send_buffer` may grow: it follows twice the bytes in flight.
    pub send_buffer_max: u64,
    /// Flow control window of a stream at its start, in bytes.
    pub receive_window_stream: u64,
    /// Flow control window of the connection at its start, in bytes.
    pub receive_window_connection: u64,
    /// Bytes to which the windows may grow by themselves, of the connection and of each stream in it.
    pub receive_window_max: u64,
    /// Bidirectional streams that the peer may have open at the same time.
    pub max_streams_bidi: u64,
    /// Unidirectional streams that the peer may have open at the same time.
    pub max_streams_uni: u64,
    /// Accept RESET_STREAM_AT (draft-ietf-quic-reliable-stream-reset): the peer may reset a stream and still have its first
    /// bytes delivered. This end may do the same where the peer accepts it.
    pub reset_stream_at: bool,
}

impl Default for StreamsConfig {
    /// 256 KiB per stream and 512 KiB per connection are the amounts that any peer can make this endpoint hold before a round trip. With
    /// overhead this is within the 1 MiB that a connection may hold (docs/limits.md). A sender that starts with ten packets needs four
    /// round trips to have a quarter of 256 KiB in flight. From then on the window grows faster than slow start. 32 MiB are more than twice
    /// the bytes in flight of 400 Mbit/s at 250 ms (12.5 MB).
    fn default() -> Self {
        Self {
            send_buffer: 4 << 20,
            send_buffer_max: 32 << 20,
            receive_window_stream: 256 << 10,
            receive_window_connection: 512 << 10,
            receive_window_max: 32 << 20,
            max_streams_bidi: 100,
            max_streams_uni: 100,
            reset_stream_at: false,
        }
    }
}

/// Figures of the streams: what they have done and hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFigures {
    /// Bytes of stream data sent for the first time.
    pub sent_bytes: u64,
    /// Bytes of stream data sent again.
    pub resent_bytes: u64,
    /// Bytes of the headers of STREAM frames sent.
    pub header_bytes: u64,
    /// Bytes of the other frames of streams sent.
    pub control_bytes: u64,
    /// Bytes of stream data acknowledged.
    pub acked_bytes: u64,
    /// Flow control credit that the peer has used: the sum of the highest offsets received.
    pub received_bytes: u64,
    /// Bytes handed to the application.
    pub delivered_bytes: u64,
    /// Bytes received that had been received before.
    pub duplicate_bytes: u64,
    /// Received bytes that the application does not read.
    pub unwanted_bytes: u64,
    /// Streams that are live: not both parts over, acknowledged and known to the application.
    pub live_streams: u64,
    /// Bytes written, not yet acknowledged.
    pub send_buffered_bytes: u64,
    /// Bytes of these never sent.
    pub send_unsent_bytes: u64,
    /// Bytes received, not yet read.
    pub receive_buffered_bytes: u64,
    /// Bytes of heap for everything beside the data of the application and of received packets.
    pub overhead_bytes: u64,
}

impl StreamFigures {
    /// Bytes of memory that streams take: their state, and data that waits to be acknowledged or to be read.
    pub(crate) fn memory(&self) -> u64 {
        self.overhead_bytes + self.send_buffered_bytes - self.send_unsent_bytes + self.receive_buffered_bytes
    }
}

/// Memory of a stream before it holds data, in bytes, at most: places are made for up to twice as many as there are.
pub(crate) const STREAM: u64 = 2 * (size_of::<Option<Stream>>() + 48) as u64;

/// Limits for streams of the peer's transport parameters.
#[derive(Debug, Default)]
struct PeerLimits {
    bidi_local: u64,
    bidi_remote: u64,
    uni: u64,
    reset_stream_at: bool,
}

/// Control frames of the connection that wait to be sent, as bits.
mod pending {
    pub(super) const MAX_DATA: u8 = 1;
    pub(super) const DATA_BLOCKED: u8 = 2;
    /// Shifted by the direction.
    pub(super) const MAX_STREAMS: u8 = 4;
    /// Shifted by the direction.
    pub(super) const STREAMS_BLOCKED: u8 = 16;
}

/// All streams of a connection.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    config: StreamsConfig,
    slab: Slab,
    schedule: Schedule,
    /// Streams with control frames to send.
    control: Queue<CONTROL>,
    /// Bits of [`pending`].
    pending: u8,
    budget: Budget,
    /// The connection's credit to send.
    credit: Credit,
    /// The connection's window to receive.
    window: ReceiveWindow,
    /// Sum of the highest offsets received.
    received: u64,
    local: [LocalStreams; 2],
    remote: [RemoteStreams; 2],
    peer: PeerLimits,
    holdings: Holdings,
    clock: Clock,
    events: Events,
    figures: StreamFigures,
    /// Only early data can be sent.
    early: bool,
    /// A stream was opened that must not be protected by forward error correction.
    some_unprotected: bool,
    /// Memory for larger windows is available.
    may_grow: bool,
}

impl Streams {
    /// Returns memory that a busy phase left behind.
    pub(crate) fn shrink(&mut self) {
        self.slab.shrink();
        self.events.shrink();
        self.holdings.shrink();
    }

    /// No streams yet, and no permission to open any.
    pub fn new(side: Side, config: &StreamsConfig) -> Self {
        let clock = Clock::default();
        Self {
            side,
            slab: Slab::new(),
            schedule: Schedule::new(),
            control: Queue::new(),
            pending: 0,
            budget: Budget::new(config.send_buffer, config.send_buffer_max),
            credit: Credit::new(0),
            window: ReceiveWindow::new(
                config.receive_window_connection,
                config.receive_window_max,
                flow::CONNECTION_AHEAD,
                clock.now,
            ),
            received: 0,
            local: Default::default(),
            remote: [RemoteStreams::new(config.max_streams_bidi), RemoteStreams::new(config.max_streams_uni)],
            peer: PeerLimits::default(),
            holdings: Holdings::default(),
            clock,
            events: Events::default(),
            figures: StreamFigures::default(),
            early: false,
            some_unprotected: false,
            may_grow: true,
            config: config.clone(),
        }
    }

    /// Fills in the limits that the peer starts with.
    pub fn local_parameters(&self, parameters: &mut TransportParameters) {
        parameters.initial_max_data = self.config.receive_window_connection;
        parameters.initial_max_stream_data_bidi_local = self.config.receive_window_stream;
        parameters.initial_max_stream_data_bidi_remote = self.config.receive_window_stream;
        parameters.initial_max_stream_data_uni = self.config.receive_window_stream;
        parameters.initial_max_streams_bidi = self.remote[Dir::Bi as usize].limit();
        parameters.initial_max_streams_uni = self.remote[Dir::Uni as usize].limit();
        parameters.reset_stream_at = self.config.reset_stream_at;
    }

    /// Sets the initial limits of the peer: those remembered for early data, and then those of the handshake.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION when they fall below what was used under the remembered ones. RFC 9000 §7.4.1: a server that accepts
    /// early data must not reduce them. (When it refused, [`Streams::on_zero_rtt_rejected`] comes first.)
    pub fn set_peer_parameters(&mut self, parameters: &TransportParameters) -> Result<(), TransportError> {
        let peer = PeerLimits {
            bidi_local: parameters.initial_max_stream_data_bidi_local,
            bidi_remote: parameters.initial_max_stream_data_bidi_remote,
            uni: parameters.initial_max_stream_data_uni,
            reset_stream_at: parameters.reset_stream_at,
        };
        let shrunk = |what: &'static str| {
            Err(TransportError::new(Code::PROTOCOL_VIOLATION, format!("{what} is below what early data has used")))
        };
        if parameters.initial_max_data < self.credit.used {
            return shrunk("initial_max_data");
        }
        let streams = [parameters.initial_max_streams_bidi, parameters.initial_max_streams_uni];
        // Without a limit of before, no stream was sent under it.
        if (0..2).any(|dir| self.local[dir].max > 0 && streams[dir] < self.local[dir].next) {
            return shrunk("initial_max_streams");
        }
        self.peer = peer;
        for slot in self.slab.slots() {
            let (id, used) = (self.slab[slot].id, self.slab[slot].send.credit.used);
            let limit = self.send_limit(id);
            if used > limit {
                return shrunk("initial_max_stream_data");
            }
            self.slab[slot].send.credit.raise(limit);
            if !self.peer.reset_stream_at && self.slab[slot].send.is_reset_at() {
                // Early data was refused, and the server does not accept the frame any more.
                self.abandon(slot, SendPart::reset_at_once);
            }
            self.refresh(slot);
        }
        self.on_max_data(parameters.initial_max_data);
        for (dir, limit) in [Dir::Bi, Dir::Uni].into_iter().zip(streams) {
            self.raise_streams(dir, limit);
        }
        Ok(())
    }

    /// The peer's limit for a new stream.
    fn send_limit(&self, id: StreamId) -> u64 {
        // RFC 9000 §18.2: "local" and "remote" are seen from the peer, who sent the parameters.
        match (id.dir(), id.initiator() == self.side) {
            (Dir::Bi, true) => self.peer.bidi_remote,
            (Dir::Bi, false) => self.peer.bidi_local,
            (Dir::Uni, _) => self.peer.uni,
        }
    }

    /// Makes a stream with the parts that its kind has.
    fn create(&mut self, id: StreamId) -> Slot {
        let ours = id.initiator() == self.side;
        let send = if ours || id.dir() == Dir::Bi { SendPart::open(self.send_limit(id)) } else { SendPart::absent() };
        let recv = if !ours || id.dir() == Dir::Bi {
            let (window, max) = (self.config.receive_window_stream, self.config.receive_window_max);
            RecvPart::open(ReceiveWindow::new(window, max, flow::STREAM_AHEAD, self.clock.now))
        } else {
            RecvPart::absent()
        };
        let mut stream = Stream::new(id, send, recv);
        stream.held_back = self.early;
        self.slab.insert(stream)
    }

    /// Frees a stream whose parts have ended, and lets the peer open another for it.
    fn release_if_over(&mut self, slot: Slot) {
        let stream = &self.slab[slot];
        let (id, dir) = (stream.id, stream.id.dir() as usize);
        let remote = id.initiator() != self.side;
        // The application learns of a stream before it is gone.
        let known = !remote || id.index() < self.remote[dir].accepted;
        // RFC 9000 §4.4 MUST-1: the other direction of a stream keeps its flow control until it ends by itself
        if !(stream.send.is_over() && stream.recv.is_over() && known) {
            return;
        }
        self.schedule.remove(&mut self.slab, slot);
        self.control.remove(&mut self.slab, slot);
        self.budget.leave(&mut self.slab, slot);
        self.slab.remove(slot);
        if remote {
            self.remote[dir].close();
            if self.remote[dir].credit_due() {
                self.pending |= pending::MAX_STREAMS << dir;
            }
        }
    }

    /// Updates the lists for the data that the stream has to send. Called after every change of its sending part.
    #[inline]
    fn refresh(&mut self, slot: Slot) {
        self.schedule.refresh(&mut self.slab, slot);
        // RFC 9000 §4.1 SHOULD-1: a sender with data and no credit says so with a blocked frame
        // RFC 9000 §19.12 SHOULD-1: DATA_BLOCKED tells that the connection's credit is used up
        // RFC 9000 §19.13 SHOULD-1: STREAM_DATA_BLOCKED tells that a stream's credit is used up
        if self.slab[slot].send.report_blocked() {
            self.set_pending(slot, stream::pending::BLOCKED);
        }
        if self.schedule.has_new() && self.credit.report_blocked() {
            self.pending |= pending::DATA_BLOCKED;
        }
    }

    /// Returns whether data waits behind a limit of the peer.
    pub fn is_blocked(&self) -> bool {
        self.schedule.has_new() && self.credit.available() == 0
            || self.slab.slots().any(|slot| self.slab[slot].send.is_blocked())
    }

    /// Repeats DATA_BLOCKED or STREAM_DATA_BLOCKED for the limit in force. Returns `false` without one.
    pub fn repeat_blocked(&mut self) -> bool {
        if self.schedule.has_new() && self.credit.available() == 0 {
            self.pending |= pending::DATA_BLOCKED;
            return true;
        }
        // One is enough to keep the connection alive.
        let blocked = self.slab.slots().find(|&slot| self.slab[slot].send.is_blocked());
        if let Some(slot) = blocked {
            self.set_pending(slot, stream::pending::BLOCKED);
        }
        blocked.is_some()
    }

    fn set_pending(&mut self, slot: Slot, bit: u8) {
        self.slab[slot].pending |= bit;
        if !self.slab[slot].held_back {
            self.control.push_back(&mut self.slab, slot);
        }
    }

    /// A reset waits to be sent, unless it has arrived or data goes before it.
    fn set_reset_pending(&mut self, slot: Slot) {
        let stream = &self.slab[slot];
        if stream.send.reset_to_send(stream.id).is_some() {
            self.set_pending(slot, stream::pending::RESET);
        }
    }

    fn clear_pending(&mut self, slot: Slot, bits: u8) {
        let stream = &mut self.slab[slot];
        stream.pending &= !bits;
        if stream.pending == 0 {
            self.control.remove(&mut self.slab, slot);
        }
    }

    /// Gives credit of the connection back to the peer.
    #[inline]
    fn return_credit(&mut self, bytes: u64) {
        if self.window.consume(bytes) {
            self.pending |= pending::MAX_DATA;
        }
    }

    /// Sets the time and the smoothed RTT (zero while unknown), before each batch of datagrams is processed. The windows are tuned by them.
    #[inline]
    pub fn tune(&mut self, now: Instant, rtt: Duration) {
        // Without a round trip nothing is tuned.
        self.clock = Clock { now, rtt: if self.may_grow { rtt } else { Duration::ZERO } };
        if self.window.observe(&self.clock) {
            self.pending |= pending::MAX_DATA;
        }
    }

    /// Announces another receive buffer for the data of further frames, of `size` bytes, of which `used` carry received data. Call it
    /// before each buffer, so that memory pinned by unread slices is bounded.
    #[inline]
    pub fn next_buffer(&mut self, size: usize, used: usize) {
        self.holdings.next_buffer(size, used);
    }

    /// Sets the bytes by which receive buffers may exceed a quarter more than the data kept in them.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.holdings.set_slack(bytes);
    }

    /// Returns whether there is memory for receive windows that grow.
    #[inline]
    pub(crate) fn permit_growth(&mut self, permitted: bool) {
        self.may_grow = permitted;
    }

    /// Bytes by which the peer may be ahead of the application at the moment.
    #[inline]
    pub(crate) fn receive_window(&self) -> u64 {
        self.window.window()
    }

    /// Returns whether data that the application has not read takes half of that, or more.
    pub(crate) fn is_mostly_unread(&self) -> bool {
        self.holdings.bytes >= self.window.window() / 2
    }

    /// Copies data that pins much larger receive buffers, if this is too much in total.
    #[inline]
    pub(crate) fn compact_if_wasteful(&mut self) {
        if self.holdings.is_wasteful() {
            self.compact();
        }
    }

    /// The work is proportional to the freed memory: at least the slack was wasted, by bytes that arrived and were read since the last
    /// call.
    #[cold]
    pub(crate) fn compact(&mut self) {
        for slot in self.slab.slots() {
            self.slab[slot].recv.compact(&mut self.holdings);
        }
    }

    /// Bytes of memory that the peer makes the streams hold: what was not read, with the buffers that it lies in, and the streams
    /// themselves.
    #[inline]
    pub(crate) fn received_memory(&self) -> u64 {
        self.holdings.memory() + self.remote_memory() + self.events.heap() as u64
    }

    /// Bytes of the streams that the peer has opened.
    #[inline]
    fn remote_memory(&self) -> u64 {
        let live = self.remote[0].live() + self.remote[1].live();
        (live * STREAM).min(self.slab.table() as u64)
    }

    /// Bytes of the streams that this end has opened, and of places for streams that are not in use.
    #[inline]
    pub(crate) fn own_memory(&self) -> u64 {
        self.slab.table() as u64 - self.remote_memory()
    }

    /// Forgets everything but events and figures; the connection has ended.
    pub(crate) fn forget(&mut self) {
        self.figures.unwanted_bytes += self.holdings.bytes + self.holdings.thrown_away;
        let (figures, events) = (self.figures, std::mem::take(&mut self.events));
        *self = Self { figures, events, received: self.received, ..Self::new(self.side, &self.config) };
    }

    /// Returns whether there is an event of a stream.
    #[inline]
    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the next event of a stream, oldest first. To be polled until there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop()
    }

    /// Bytes written, not yet acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.budget.held()
    }

    /// Bytes written, never sent.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.budget.unsent()
    }

    /// Returns whether a bidirectional stream is not at its end. Walks over all streams.
    pub fn has_bidi(&self) -> bool {
        self.slab.slots().any(|slot| self.slab[slot].id.dir() == Dir::Bi)
    }

    /// Streams that are live: not both parts over, acknowledged and known to the application.
    pub(crate) fn live(&self) -> usize {
        self.slab.len()
    }

    /// Figures since the beginning. Walks over all streams for the memory.
    pub fn figures(&self) -> StreamFigures {
        StreamFigures {
            live_streams: self.slab.len() as u64,
            received_bytes: self.received,
            send_buffered_bytes: self.budget.held(),
            send_unsent_bytes: self.budget.unsent(),
            receive_buffered_bytes: self.holdings.bytes,
            unwanted_bytes: self.figures.unwanted_bytes + self.holdings.thrown_away,
            overhead_bytes: (self.slab.heap() + self.events.heap() + self.schedule.heap() + self.holdings.heap())
                as u64,
            ..self.figures
        }
    }
}
