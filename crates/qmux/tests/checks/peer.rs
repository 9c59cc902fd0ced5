//! An end of QMux, and a peer that a program of bytes writes for: records and frames as they come from the network, past the exchange of
//! parameters, in both roles.
//!
//! Each instruction makes a frame, up to 4,000 times over and in records of their own or together; others damage what was sent, let time
//! pass, block the stream of bytes below, or act as the application. What always holds:
//!
//! - no panic, and no endless work: what the end sends at a time has a bound,
//! - what is charged stays within the budget, and the heap within twice that beside what the application has written,
//! - the end keeps to what the peer allows, and sends what its application has written,
//! - a peer that keeps to the rules is never at fault, and what it sends is read as it was sent,
//! - all memory is given back.

mod frames;
mod listens;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tiderace_qmux::{
    Closed, Config, Event, Mux,
    parameters::Parameters,
    record::{self, Records},
};
use transport::memory::{ConnectionBudget, ProcessBudget};
use units::{Duration, Instant};
use wire::{Dir, Frame, Side, StreamId, Writer, varint};

/// QX_TRANSPORT_PARAMETERS, QX_PING, and the answer to that (§4 of the draft).
const PARAMETERS: u64 = 0x3f51_5330_0d0a_0d0a;
const PING: u64 = 0x348c_6752_9ef8_c7bd;
const PONG: u64 = 0x348c_6752_9ef8_c7be;

/// Frames and bytes that a program may send, so that each one ends soon.
const FRAMES: usize = 20_000;
const BYTES: usize = 4 << 20;
/// Frames that change nothing and are fine: the end takes 10,000 at once.
const IDLE_FRAMES: usize = 9_000;
/// Memory of the program, of its records and of the tables of this file, and buffers of constant size of the end.
const SLACK: usize = 96 << 10;
/// An entry in a table of this file.
const TABLE_ENTRY: usize = 128;
/// Bytes that the end may hand out at a time while nobody takes more.
const UNDER_WAY: usize = 64 << 10;
/// Bytes that a driver reads at a time.
const CHUNK: usize = 64 << 10;

/// Reach of a program.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Frames that the end was given.
    pub(crate) frames: usize,
    /// Bytes of streams, and datagrams, that its application has read.
    pub(crate) read: usize,
    pub(crate) datagrams: usize,
    /// Bytes of streams that it has sent.
    pub(crate) sent: u64,
    /// Reason why the connection was over before the program.
    pub(crate) closed: Option<Closed>,
    /// The most that was charged, and the most that was on the heap beside what the application wrote.
    pub(crate) held: u64,
    pub(crate) heap: usize,
}

/// The byte of a stream at an offset.
fn content(id: StreamId, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 16) as u8 ^ id.0 as u8
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut buffer = vec![0; frame.encoded_len() + 16];
    let mut w = Writer::new(&mut buffer);
    frame.encode(&mut w);
    w.written().to_vec()
}

/// A stream that the peer sends on.
#[derive(Default)]
struct Theirs {
    sent: u64,
    is_over: bool,
}

/// A stream that the end sends on.
#[derive(Default)]
struct Ours {
    written: u64,
    sent: u64,
    is_over: bool,
}

struct Peer<'a> {
    mux: Mux,
    budget: ConnectionBudget,
    now: Instant,
    program: std::slice::Iter<'a, u8>,
    heap: &'a dyn Fn() -> usize,
    /// Live bytes before.
    before: usize,
    side: Side,
    config: Config,
    declared: Parameters,
    /// The application reads what comes, and streams are opened and written by it.
    reads: bool,
    /// Rules are broken as well: anything may end the connection.
    wild: bool,
    /// The transport below takes no data of the end.
    is_blocked: bool,
    /// Pieces that bytes come in.
    piece: usize,
    /// The last record.
    last: Vec<u8>,
    /// Frames that changed nothing, and pings.
    idle: usize,
    pings: u64,
    asked: u64,
    given: usize,
    theirs: BTreeMap<StreamId, Theirs>,
    ours: BTreeMap<StreamId, Ours>,
    read: BTreeMap<StreamId, u64>,
    readable: BTreeSet<StreamId>,
    /// Limit that the end allows the peer.
    may_send: u64,
    sent: u64,
    may_send_on: BTreeMap<StreamId, u64>,
    may_open: [u64; 2],
    /// Limit that the peer allows the end.
    allows: u64,
    allows_on: BTreeMap<StreamId, u64>,
    allows_streams: [u64; 2],
    greeted: bool,
    records: Records,
    /// Bytes that the application has handed over, datagrams included, and bytes that are on their way to the end.
    handed: usize,
    carried: usize,
    reached: Reached,
}

fn at(dir: Dir) -> usize {
    usize::from(dir == Dir::Uni)
}

/// Small windows, so that limits are met soon; those of a default, so that more is held.
fn config(first: u8) -> Config {
    let small = Config {
        window: 4_000,
        stream_window: 1_000,
        streams_bidi: 4,
        streams_uni: 2,
        datagram_queue: if first & 4 == 0 { 2_000 } else { 0 },
        keep_alive: Some(Duration::from_secs(10)),
        ..Config::default()
    };
    if first & 8 == 0 { small } else { Config { keep_alive: None, ..Config::default() } }
}

/// Parameters of the peer: little, much, nothing, or all that can be said.
fn declared(first: u8) -> Parameters {
    let [data, stream, streams, datagram] = match first >> 4 & 3 {
        0 => [3_000, 1_000, 3, 500],
        1 => [1 << 20, 256 << 10, 100, record::DEFAULT_MAX],
        2 => [0; 4],
        _ => [varint::MAX, varint::MAX, StreamId::MAX_STREAMS, varint::MAX],
    };
    Parameters {
        max_idle_timeout: Duration::from_secs(20),
        initial_max_data: data,
        stream_data_bidi_local: stream,
        stream_data_bidi_remote: stream,
        stream_data_uni: stream,
        streams_bidi: streams,
        streams_uni: streams,
        max_datagram_frame_size: datagram,
        ..Parameters::default()
    }
}

/// Runs a program; `heap` tells the bytes that are live, if anybody counts them.
pub(crate) fn peer(program: &[u8], heap: &dyn Fn() -> usize) -> Reached {
    let before = heap();
    let mut program = program.iter();
    let first = program.next().copied().unwrap_or(0);
    let side = if first & 1 == 0 { Side::Client } else { Side::Server };
    let process = ProcessBudget::new(64 << 20);
    let mut config = config(first);
    // As `Config::memory` states it.
    let enough = 2 * config.window + config.datagram_queue as u64 + (config.streams_bidi + config.streams_uni) * 1_024;
    let budget = ConnectionBudget::new(if first & 0x80 == 0 { enough + (64 << 10) } else { 20_000 }, &process);
    config.memory = Some(budget.clone());
    let (may_open, may_send) = ([config.streams_bidi, config.streams_uni], config.window);
    let declared = declared(first);
    let mut peer = Peer {
        mux: Mux::new(side.peer(), Instant::ZERO, config.clone()),
        budget,
        now: Instant::ZERO,
        program,
        heap,
        before,
        side,
        config,
        declared,
        reads: first & 2 == 0,
        wild: first & 0x40 != 0,
        is_blocked: false,
        piece: CHUNK,
        last: Vec::new(),
        idle: 0,
        pings: 0,
        asked: 0,
        given: 0,
        theirs: BTreeMap::new(),
        ours: BTreeMap::new(),
        read: BTreeMap::new(),
        readable: BTreeSet::new(),
        may_send,
        sent: 0,
        may_send_on: BTreeMap::new(),
        may_open,
        allows: declared.initial_max_data,
        allows_on: BTreeMap::new(),
        allows_streams: [declared.streams_bidi, declared.streams_uni],
        greeted: false,
        records: Records::new(record::DEFAULT_MAX),
        handed: 0,
        carried: 0,
        reached: Reached::default(),
    };
    peer.run();
    let Peer { mux, budget, reached, .. } = peer;
    drop((mux, budget));
    assert_eq!(process.held(), 0, "memory that nobody holds");
    reached
}

impl Peer<'_> {
    fn run(&mut self) {
        let mut encoded = Vec::new();
        self.declared.encode(&mut encoded);
        let mut greeting = Vec::new();
        varint::push(&mut greeting, PARAMETERS);
        varint::push(&mut greeting, encoded.len() as u64);
        greeting.extend_from_slice(&encoded);
        self.settle();
        self.record(&greeting);
        while let Some(instruction) = self.program.next().copied()
            && self.reached.frames < FRAMES
            && self.given < BYTES
        {
            self.step(instruction);
        }
        self.reached.closed = self.mux.closed().cloned();
        // The peer falls silent, then the stream below ends.
        self.is_blocked = false;
        self.pass(Duration::from_secs(120));
        if self.config.keep_alive.is_none() {
            assert!(self.mux.closed().is_some(), "a silent peer's connection is there after two minutes");
        }
        self.mux.handle_end();
        self.settle();
        assert!(self.mux.closed().is_some() && self.mux.poll_timeout().is_none() && self.mux.is_finished());
    }

    fn byte(&mut self) -> u8 {
        self.program.next().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        self.program.by_ref().take(len).copied().collect()
    }

    fn step(&mut self, instruction: u8) {
        let kind = instruction & 0x1f;
        match kind {
            18 if self.wild => {
                // A record of the program's own bytes, or bytes without one.
                let (is_record, len) = (self.byte() & 1 == 0, self.byte());
                let raw = self.take(len.into());
                self.reached.frames += 1;
                return if is_record { self.record(&raw) } else { self.deliver(&raw) };
            }
            19 if self.wild => return self.damaged(),
            20..=23 => return self.application(),
            24 => {
                let amount = u64::from(self.byte());
                return self.pass(Duration::from_millis(amount * amount / 4));
            }
            25 => {
                self.is_blocked = !self.is_blocked;
                return self.settle();
            }
            26 => {
                self.reads = !self.reads;
                return self.settle();
            }
            27 => {
                let piece = usize::from(self.byte());
                self.piece = if piece == 0 { CHUNK } else { piece * piece };
                return;
            }
            28 if self.wild => {
                if self.byte() == 0 {
                    self.mux.handle_end();
                }
                return self.settle();
            }
            _ => {}
        }
        let (word, amount) = (self.word(), self.byte());
        let times = if instruction & 0xc0 == 0xc0 { 1 + 16 * usize::from(self.byte()) } else { 1 };
        let together = instruction & 0x20 != 0;
        let mut payload = Vec::new();
        let mut bundle = Vec::new();
        for _ in 0..times {
            let frame = self.frame(kind, word, amount);
            if frame.is_empty() {
                break;
            }
            self.reached.frames += 1;
            if payload.len() + frame.len() > 16_000 || !together && !payload.is_empty() {
                record::push(&mut bundle, &payload);
                payload.clear();
            }
            payload.extend_from_slice(&frame);
        }
        if !payload.is_empty() {
            record::push(&mut bundle, &payload);
            self.last = payload;
            self.deliver(&bundle);
        }
    }

    /// The last record again: cut, with a bit turned, or with another behind it.
    fn damaged(&mut self) {
        let (kind, place) = (self.byte(), usize::from(self.word()));
        let mut payload = self.last.clone();
        if payload.is_empty() {
            return;
        }
        let place = place % payload.len();
        match kind & 3 {
            0 => payload.truncate(place.max(1)),
            1 => payload[place] ^= 1 << (kind >> 5),
            2 => payload.insert(place, kind),
            _ => payload.extend_from_within(place..),
        }
        payload.truncate(16_000);
        self.reached.frames += 1;
        self.record(&payload);
    }

    fn application(&mut self) {
        let (what, amount) = (self.byte(), self.byte());
        let known: Vec<StreamId> = self.ours.keys().copied().collect();
        let id = known.get(usize::from(what >> 4) % known.len().max(1)).copied();
        match (what & 0x0f, id) {
            (0, _) => self.opened(Dir::Bi),
            (1, _) => self.opened(Dir::Uni),
            (2..=5, Some(id)) => {
                let ours = self.ours.get_mut(&id).expect("it is known");
                let mut data: Bytes = (0..u64::from(amount) * 100).map(|at| content(id, ours.written + at)).collect();
                let taken = self.mux.write(id, &mut data).unwrap_or(0);
                ours.written += taken as u64;
                self.handed += taken + 64;
            }
            (6, Some(id)) => drop(self.mux.finish(id)),
            (7, Some(id)) => drop(self.mux.reset(id, amount.into())),
            (8 | 9, Some(id)) => self.mux.stop(id, amount.into()),
            (10, _) => self.mux.stop(self.receiving_known(amount), 9),
            (11 | 12, _) => {
                let len = usize::from(amount) * 4;
                if self.mux.send_datagram(vec![amount; len].into()).is_ok() {
                    self.handed += len + 64;
                }
            }
            (13, _) => self.mux.ping(),
            (14, _) if amount == 0 => self.mux.close(7, "enough"),
            _ => {}
        }
        self.settle();
    }

    fn receiving_known(&self, amount: u8) -> StreamId {
        let known: Vec<StreamId> = self.theirs.keys().copied().collect();
        known.get(usize::from(amount) % known.len().max(1)).copied().unwrap_or(StreamId(0))
    }

    fn opened(&mut self, dir: Dir) {
        if self.ours.len() < 40
            && let Some(id) = self.mux.open(dir)
        {
            assert!(id.index() < self.allows_streams[at(dir)], "{id:?} is beyond what the peer allows");
            self.ours.insert(id, Ours::default());
        }
    }

    /// Lets time pass, with everything that falls due.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        let mut fired = 0;
        while let Some(next) = self.mux.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.mux.handle_timeout(self.now);
            let is_blocked = std::mem::replace(&mut self.is_blocked, false);
            self.settle();
            self.is_blocked = is_blocked;
            fired += 1;
            assert!(fired <= 100, "timers fire without end");
        }
        self.now = end;
    }

    fn record(&mut self, payload: &[u8]) {
        let mut framed = Vec::new();
        record::push(&mut framed, payload);
        self.last = payload.to_vec();
        self.deliver(&framed);
    }

    fn deliver(&mut self, data: &[u8]) {
        self.given += data.len();
        // A vector that has grown has up to twice the room that it needs.
        self.carried = 2 * data.len();
        // Few pieces, so that a program ends soon.
        for piece in data.chunks(self.piece.max(data.len() / 64)) {
            self.mux.handle_bytes(self.now, piece);
            // What is held is most before anybody looks.
            self.weigh();
            self.settle();
        }
        self.carried = 0;
    }

    fn weigh(&mut self) {
        let (held, limit) = (self.budget.held(), self.budget.limit());
        assert!(held <= limit, "{held} bytes are held, {limit} may be");
        self.reached.held = self.reached.held.max(held);
        let tables =
            self.theirs.len() + self.ours.len() + self.read.len() + self.may_send_on.len() + self.allows_on.len();
        let own = self.before + self.handed + self.carried + tables * TABLE_ENTRY;
        let used = (self.heap)().saturating_sub(own);
        self.reached.heap = self.reached.heap.max(used);
        assert!(used <= 2 * limit as usize + SLACK, "{used} bytes of heap, {limit} are stated and {held} charged");
    }

    /// Events, what is read, and what leaves.
    fn settle(&mut self) {
        while let Some(event) = self.mux.poll_event() {
            if let Event::Readable(id) = event {
                self.readable.insert(id);
            }
        }
        if self.reads {
            self.read();
        }
        if !self.is_blocked {
            self.transmit();
        }
        if !self.wild {
            let is_fault = matches!(self.mux.closed(), Some(Closed::Fault(_) | Closed::Peer { .. }));
            // Windows of a budget that is stated too small are no peer's fault.
            let is_scarce = self.budget.limit() == 20_000;
            assert!(!is_fault || is_scarce, "the peer keeps to the rules: {:?}", self.mux.closed());
        }
        self.weigh();
    }

    fn read(&mut self) {
        while self.mux.recv_datagram().is_some() {
            self.reached.datagrams += 1;
        }
        for dir in [Dir::Bi, Dir::Uni] {
            while let Some(id) = self.mux.accept(dir) {
                self.readable.insert(id);
                if dir == Dir::Bi {
                    self.ours.insert(id, Ours::default());
                }
            }
        }
        for id in std::mem::take(&mut self.readable) {
            let offset = self.read.entry(id).or_default();
            while let Ok(Some(data)) = self.mux.read(id, 700)
                && !data.is_empty()
            {
                let expected = (0..data.len() as u64).map(|at| content(id, *offset + at));
                assert!(self.wild || expected.eq(data.iter().copied()), "stream {id:?} at {offset}");
                *offset += data.len() as u64;
                self.reached.read += data.len();
            }
        }
    }

    fn transmit(&mut self) {
        let mut out = Vec::new();
        let mut rounds = 0;
        loop {
            while out.len() < UNDER_WAY && self.mux.poll_transmit(self.now, &mut out) {}
            if out.is_empty() {
                return;
            }
            let sent = std::mem::take(&mut out);
            self.listen(&sent);
            rounds += 1;
            assert!(rounds < 200, "the end sends without end");
        }
    }
}
