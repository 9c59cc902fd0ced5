//! State machine of a connection, without input or output.
//!
//! Contract: bytes of the peer are passed to [`Mux::handle_bytes`], time to [`Mux::handle_timeout`]; the application gives commands. After
//! each of these, [`Mux::poll_event`] and [`Mux::poll_transmit`] are called until they return nothing, the latter as often as the
//! underlying stream accepts bytes. [`Mux::poll_timeout`] returns the next deadline. When [`Mux::is_finished`], the sending side of the
//! underlying stream is shut down.

mod commands;
mod receive;
mod transmit;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use transport::{
    Code, TransportError,
    memory::{Charge, ConnectionBudget, ITEM_OVERHEAD, ProcessBudget},
};
use units::{Duration, Instant};
use wire::{Dir, Side, StreamId};

use crate::{
    parameters::Parameters,
    record::{self, Records},
    streams::{Recv, Send},
};

/// QX_TRANSPORT_PARAMETERS (§4.2 of the draft).
const PARAMETERS: u64 = 0x3f51_5330_0d0a_0d0a;
/// QX_PING, the question and the answer (§4.3).
const PING: u64 = 0x348c_6752_9ef8_c7bd;
const PONG: u64 = 0x348c_6752_9ef8_c7be;
/// Frames without effect that are accepted at once, …
const IDLE_BURST: u32 = 10_000;
/// … and each second after that. A conforming peer needs fewer (§12.2 SHOULD).
const IDLE_RATE: u32 = 1_000;
/// Bytes of a reason that are kept.
const REASON: usize = 256;

/// Bytes that a stream holds beside its data, in all places where it is known.
const STREAM: u64 = 1024;
/// Excess of a charge over what is held, in bytes, from which on the charge is lowered.
const SLACK: u64 = 8 * 1024;

/// Settings of an end.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that the peer may send beyond what was read, on all streams together.
    pub window: u64,
    /// … and on each.
    pub stream_window: u64,
    /// Bidirectional streams that the peer may have open at a time.
    pub streams_bidi: u64,
    /// Unidirectional ones.
    pub streams_uni: u64,
    /// Size in bytes of the queues of received and of sent datagrams, each of which drops the oldest. 0 disables datagrams.
    pub datagram_queue: usize,
    /// Memory budget for the peer's data; the connection ends when it is exceeded. Within the windows the peer needs at most twice the
    /// bytes of streams, the queue of datagrams and 1 KiB for each stream. `None`: enough for that.
    pub memory: Option<ConnectionBudget>,
    /// The connection ends after this silence; the smaller of both ends' values holds. Zero: never.
    pub idle_timeout: Duration,
    /// A QX_PING leaves after this silence.
    pub keep_alive: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 1 << 20,
            stream_window: 256 << 10,
            streams_bidi: 100,
            streams_uni: 100,
            datagram_queue: 256 << 10,
            memory: None,
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
        }
    }
}

/// Reason why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// Closed by this end.
    #[error("closed by this end (code {0})")]
    Local(u64),
    /// The application of the peer has.
    #[error("closed by the peer (code {code}){}", in_words(.reason))]
    Application {
        /// The application's code.
        code: u64,
        /// For people.
        reason: String,
    },
    /// The peer found a fault.
    #[error("the peer found a fault: {code}{}", in_words(.reason))]
    Peer {
        /// Error code.
        code: Code,
        /// For people.
        reason: String,
    },
    /// The peer is at fault.
    #[error("the peer is at fault: {0}")]
    Fault(#[from] TransportError),
    /// The stream below has ended.
    #[error("the connection below has ended")]
    Ended,
    /// Idle timeout.
    #[error("nothing was heard for too long")]
    Idle,
}

fn in_words(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// A command that cannot be obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The stream has ended.
    #[error("the stream is over")]
    StreamClosed,
    /// The peer wants no more of it.
    #[error("the peer asked to stop (code {0})")]
    Stopped(u64),
    /// The peer has given the stream up.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The peer takes no datagrams, or none of this size.
    #[error("the peer takes no datagram of this size")]
    Datagram,
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    Closed(#[from] Closed),
}

/// Event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer's parameters have arrived: streams can be opened, within its limits.
    Connected,
    /// The peer has opened a stream.
    Opened(Dir),
    /// More streams may be opened.
    Available(Dir),
    /// A stream can be read.
    Readable(StreamId),
    /// A stream can be written, or has ended.
    Writable(StreamId),
    /// A datagram has come.
    Datagram,
    /// The connection has ended.
    Closed(Closed),
}

#[derive(Debug)]
struct Stream {
    /// `None` where there is no such half, or it has ended.
    send: Option<Send>,
    recv: Option<Recv>,
}

/// Charge of a waiting datagram.
fn cost(datagram: &Bytes) -> usize {
    datagram.len() + ITEM_OVERHEAD as usize
}

/// Index of a stream direction.
fn kind(dir: Dir) -> usize {
    match dir {
        Dir::Bi => 0,
        Dir::Uni => 1,
    }
}

/// A connection.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    config: Config,
    records: Records,
    peer: Option<Parameters>,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams that this end has opened, and may open.
    opened: [u64; 2],
    may_open: [u64; 2],
    /// Numbers of streams that the peer has opened, that have ended, and that were announced to it.
    peer_opened: [u64; 2],
    peer_over: [u64; 2],
    told: [u64; 2],
    to_accept: [VecDeque<StreamId>; 2],
    /// Flow control of the connection: bytes sent and limit, …
    sent: u64,
    may_send: u64,
    /// … received, read, announced to the peer.
    received: u64,
    read: u64,
    told_data: u64,
    /// Streams with data to send, in turn.
    line: VecDeque<StreamId>,
    /// Streams with a frame for the peer: new limits, or STOP_SENDING.
    notices: VecDeque<StreamId>,
    datagrams_in: VecDeque<Bytes>,
    datagrams_out: VecDeque<Bytes>,
    /// Bytes that these two hold.
    queued: [usize; 2],
    /// Bytes that streams hold that wait to be read.
    unread: u64,
    charge: Charge,
    /// The event for the reader of datagrams is queued.
    datagram_told: bool,
    /// The events for openers of streams are queued.
    available_told: [bool; 2],
    greeted: bool,
    /// Highest ping of the peer, and whether it is to be answered.
    ping_seen: Option<u64>,
    pong_due: bool,
    /// Pings of this end.
    pings: u64,
    ping_due: bool,
    idle_budget: u32,
    budget_at: Instant,
    heard_or_sent: Instant,
    closed: Option<Closed>,
    /// Close to be sent: code, whether it is the application's, reason.
    farewell: Option<(u64, bool, String)>,
    events: VecDeque<Event>,
    scratch: Vec<u8>,
}

impl Mux {
    /// A connection on an open stream of bytes.
    pub fn new(side: Side, now: Instant, config: Config) -> Self {
        let Config { window, streams_bidi, streams_uni, datagram_queue, .. } = config;
        let enough = 2 * window + datagram_queue as u64 + (streams_bidi + streams_uni) * STREAM + (64 << 10);
        let memory = config.memory.clone();
        let memory = memory.unwrap_or_else(|| ConnectionBudget::new(enough, &ProcessBudget::default()));
        Self {
            side,
            records: Records::new(record::DEFAULT_MAX),
            peer: None,
            streams: BTreeMap::new(),
            opened: [0; 2],
            may_open: [0; 2],
            peer_opened: [0; 2],
            peer_over: [0; 2],
            told: [config.streams_bidi, config.streams_uni],
            to_accept: Default::default(),
            sent: 0,
            may_send: 0,
            received: 0,
            read: 0,
            told_data: config.window,
            line: VecDeque::new(),
            notices: VecDeque::new(),
            datagrams_in: VecDeque::new(),
            datagrams_out: VecDeque::new(),
            queued: [0; 2],
            unread: 0,
            charge: memory.empty(),
            datagram_told: false,
            available_told: [false; 2],
            greeted: false,
            ping_seen: None,
            pong_due: false,
            pings: 0,
            ping_due: false,
            idle_budget: IDLE_BURST,
            budget_at: now,
            heard_or_sent: now,
            closed: None,
            farewell: None,
            events: VecDeque::new(),
            scratch: vec![0; usize::try_from(record::DEFAULT_MAX).expect("small")],
            config,
        }
    }

    /// Releases a stream that has ended, and announces room for another to the peer.
    fn tidy(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send.take_if(|send| send.may_go());
        stream.recv.take_if(|recv| recv.is_over());
        let to_tell = stream
            .recv
            .as_ref()
            .is_some_and(|recv| recv.next_limit().is_some() || recv.stop.is_some_and(|(_, told)| !told));
        if to_tell && !self.notices.contains(&id) {
            self.notices.push_back(id);
        }
        if stream.send.is_none() && stream.recv.is_none() {
            self.streams.remove(&id);
            if id.initiator() != self.side {
                self.peer_over[kind(id.dir())] += 1;
            }
        }
    }

    fn queue(&mut self, id: StreamId) {
        if let Some(send) = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut())
            && !send.in_line
        {
            send.in_line = true;
            self.line.push_back(id);
        }
    }

    /// Queues a datagram: `way` 0 for one received, 1 for one to be sent.
    fn push_datagram(&mut self, way: usize, data: Bytes) {
        let queue = if way == 0 { &mut self.datagrams_in } else { &mut self.datagrams_out };
        self.queued[way] += cost(&data);
        queue.push_back(data);
        while self.queued[way] > self.config.datagram_queue
            && let Some(oldest) = queue.pop_front()
        {
            self.queued[way] -= cost(&oldest);
        }
    }

    /// Bytes that the peer makes this end hold.
    fn held(&self) -> u64 {
        self.unread + (self.queued[0] + self.records.held()) as u64 + self.streams.len() as u64 * STREAM
    }

    /// Charges what is held after bytes have come: datagrams are dropped when there is no room for them.
    ///
    /// # Errors
    /// When there is no room for data that must not be dropped.
    fn settle(&mut self) -> Result<(), TransportError> {
        let held = self.held();
        if held == self.charge.bytes() || self.charge.try_set(held) {
            return Ok(());
        }
        while let Some(oldest) = self.datagrams_in.pop_front() {
            self.queued[0] -= cost(&oldest);
            if self.charge.try_set(self.held()) {
                // A chunk of many small datagrams makes many places, which are memory, too.
                self.datagrams_in.shrink_to(2 * self.datagrams_in.len());
                return Ok(());
            }
        }
        // RFC 9000 §20.1 has no code for it.
        Err(TransportError::new(Code::INTERNAL_ERROR, "the connection holds too much"))
    }

    /// Lowers the charge after data was read or released.
    fn relax(&mut self) {
        let held = self.held();
        if held + SLACK < self.charge.bytes() || self.unread == 0 && held < self.charge.bytes() {
            self.charge.set(held);
        }
    }

    /// Queues the event for the reader of a stream that data has come, once.
    fn tell_reader(&mut self, id: StreamId) {
        if let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut())
            && !std::mem::replace(&mut recv.told, true)
        {
            self.events.push_back(Event::Readable(id));
        }
    }

    fn end(&mut self, closed: Closed) {
        if self.closed.is_none() {
            self.closed = Some(closed.clone());
            self.line.clear();
            self.notices.clear();
            self.datagrams_out.clear();
            // What has come can still be read, unless the peer is at fault: what it made this end hold is given back.
            if matches!(closed, Closed::Fault(_)) {
                self.streams.clear();
                self.datagrams_in = VecDeque::new();
                self.records = Records::new(record::DEFAULT_MAX);
                (self.queued[0], self.unread) = (0, 0);
                self.read = self.received;
                self.charge.set(0);
            }
            self.events.push_back(Event::Closed(closed));
        }
    }

    /// Queues the event that more streams may be opened, once.
    fn tell_opener(&mut self, dir: Dir) {
        if !std::mem::replace(&mut self.available_told[kind(dir)], true) {
            self.events.push_back(Event::Available(dir));
        }
    }

    fn idle_timeout(&self) -> Option<Duration> {
        let peer = self.peer.map_or(Duration::ZERO, |peer| peer.max_idle_timeout);
        [self.config.idle_timeout, peer].into_iter().filter(|timeout| !timeout.is_zero()).min()
    }

    /// Time to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.closed.is_some() {
            return None;
        }
        let spans = [self.idle_timeout(), self.config.keep_alive.filter(|_| self.peer.is_some())];
        spans.into_iter().flatten().min().map(|span| self.heard_or_sent + span)
    }

    /// Takes the time: a deadline has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let silence = now.saturating_since(self.heard_or_sent);
        if self.closed.is_some() {
            return;
        }
        if self.idle_timeout().is_some_and(|timeout| silence >= timeout) {
            // draft-ietf-quic-qmux §7.2: nothing is said.
            self.end(Closed::Idle);
        } else if self.config.keep_alive.is_some_and(|span| silence >= span) && self.peer.is_some() {
            self.ping_due = true;
        }
    }
}
