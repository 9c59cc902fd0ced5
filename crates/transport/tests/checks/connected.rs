//! A connection past its handshake, and a peer that has its keys: a program of bytes says what is in the packets.
//!
//! Each instruction makes a frame (or several, or garbage), puts it into a packet with valid protection and gives it to the
//! endpoint, up to 256 times over; others damage a packet, let time pass, or act as the application. What always holds:
//!
//! - no panic, and no endless work: what an endpoint sends at an instant and how often its timers fire has a bound,
//! - what is charged to the connection's budget stays within its limit, with room for what one packet adds,
//! - when the peer falls silent, the connection ends, and the endpoint returns all memory and waits for nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use transport::{
    Event, Profile,
    fec::DatagramFlow,
    memory::ProcessBudget,
    streams::{Order, StreamsConfig},
    tls::Level,
};
use units::{Duration, Instant};
use wire::{ConnectionId, Dir, Frame, RepairFrame, ResetToken, Side, StreamFrame, StreamId};

use crate::{
    checks::Program,
    support::{
        direct,
        puppet::{Puppet, ack, bytes},
    },
};

/// Packets that a program may send, so that each one ends soon.
const PACKETS: usize = 6_000;
/// Bytes that a packet may add before they are charged: its buffer, and the first memory of the streams that it opens.
const SLACK: u64 = 64 << 10;

/// Progress of a program.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Packets that the endpoint was given.
    pub(crate) packets: usize,
    /// Bytes of streams, and datagrams, that its application has read.
    pub(crate) read: usize,
    pub(crate) datagrams: usize,
    /// The program did not bring the connection to its end; and why it did.
    pub(crate) open: bool,
    pub(crate) closed: Option<String>,
    /// The most that was charged to the connection.
    pub(crate) held: u64,
}

struct World<'a> {
    puppet: Puppet,
    process: ProcessBudget,
    program: Program<'a>,
    /// The application reads what comes.
    reads: bool,
    /// Rules are broken as well.
    wild: bool,
    /// The last payload that was sent, and its packet.
    last: (Vec<u8>, Vec<u8>),
    /// Limits that the endpoint has announced: of each stream as an offset, and of the connection with the bytes used of it.
    allowed: BTreeMap<StreamId, u64>,
    credit: (u64, u64),
    /// Offset that the peer has reached in each of its streams, and streams that have ended.
    ends: BTreeMap<StreamId, u64>,
    over: BTreeSet<StreamId>,
    /// The peer's last connection ID, and the endpoint's.
    sequence: u64,
    issued: u64,
    /// Forward error correction was agreed on.
    has_symbols: bool,
    /// The last source symbol.
    symbol: u64,
    reached: Reached,
}

const STREAM_WINDOW: u64 = 16 << 10;
const WINDOW: u64 = 64 << 10;

/// Small windows, so that limits are met soon, and everything that is negotiable.
fn profile(first: u8) -> Profile {
    let fec = ["off", "receive", "rlc:1/5:40", "rs:10+2"][usize::from(first >> 2) % 4];
    Profile {
        fec: fec.parse().expect("a policy"),
        streams: StreamsConfig {
            receive_window_stream: STREAM_WINDOW,
            receive_window_connection: WINDOW,
            receive_window_max: 256 << 10,
            send_buffer: 64 << 10,
            send_buffer_max: 256 << 10,
            reset_stream_at: true,
            ..StreamsConfig::default()
        },
        datagram_queue: 16 << 10,
        receive_timestamps: if first & 0x10 == 0 { 0 } else { 64 },
        grease: first & 0x20 == 0,
        idle_timeout: Duration::from_secs(20),
        ..Profile::default()
    }
}

/// Runs a program.
pub(crate) fn connected(program: &[u8]) -> Reached {
    let mut program = Program::new(program);
    let first = program.byte();
    let profile = profile(first);
    let change = |parameters: &mut wire::TransportParameters, _: &mut Vec<u8>| {
        parameters.fec_window = (first & 0x0c != 0).then_some(256);
        parameters.min_ack_delay_us = Some(1_000);
        parameters.reset_stream_at = true;
    };
    let puppet = match first & 1 {
        0 => Puppet::client(&profile, change),
        _ => Puppet::server(&profile, change),
    };
    let puppet = puppet.connected();
    let connection = puppet.victim.connection(puppet.handle.expect("it is connected")).expect("it is connected");
    let process = connection.memory_budget().process().clone();
    let reads = first & 2 == 0;
    let mut world = World {
        puppet,
        process,
        program,
        reads,
        wild: first & 0x40 != 0,
        last: Default::default(),
        allowed: BTreeMap::new(),
        credit: (WINDOW, 0),
        ends: BTreeMap::new(),
        over: BTreeSet::new(),
        sequence: 0,
        issued: 0,
        has_symbols: first & 0x0c != 0,
        symbol: 0,
        reached: Reached::default(),
    };
    while world.reached.packets < PACKETS {
        let Some(instruction) = world.program.instruction() else { break };
        world.step(instruction);
        world.check();
    }
    world.end();
    world.reached
}

impl World<'_> {
    fn step(&mut self, instruction: u8) {
        let payload = match instruction & 0x1f {
            0..=4 => self.stream(),
            5 => self.datagram(),
            6 => ack(&self.puppet.seen[2]),
            7 => self.reset(),
            8 => self.number_frame(|word, side| Frame::StopSending { id: theirs(word, side), code: 7 }),
            9 => self.number_frame(|word, side| Frame::MaxStreamData {
                id: theirs(word, side),
                limit: u64::from(word) << 6,
            }),
            10 => self.number_frame(|word, _| Frame::MaxData(u64::from(word) << 6)),
            11 => self.new_connection_id(),
            12 if self.issued > 0 => {
                let sequence = 1 + u64::from(self.program.byte()) % self.issued;
                bytes(&[Frame::RetireConnectionId { sequence }])
            }
            13 => self.number_frame(|word, _| Frame::PathChallenge(u64::from(word).to_be_bytes())),
            14 if self.wild => self.crypto(),
            14 | 15 if self.has_symbols || self.wild => {
                let payload = self.symbol();
                self.send(&payload);
                // What has a number of its own is not sent again.
                self.last.0.clear();
                return self.puppet.collect_quietly();
            }
            16 => self.number_frame(|word, _| Frame::AckFrequency {
                sequence: word.into(),
                eliciting_threshold: u64::from(word & 0xff),
                max_ack_delay_us: 25_000 + u64::from(word) * 10,
                reordering_threshold: u64::from(word & 3),
            }),
            17 => bytes(&[Frame::ImmediateAck]),
            18 => self.number_frame(|word, _| Frame::MaxStreams { dir: dir(word), limit: word.into() }),
            19 => self.number_frame(|word, _| Frame::StreamsBlocked { dir: dir(word), limit: word.into() }),
            // Bytes of the program itself.
            20 if self.wild => {
                let len = self.program.byte();
                self.program.take(len.into()).to_vec()
            }
            12 | 14 | 15 | 20 => bytes(&[Frame::Ping]),
            21 => self.last.0.clone(),
            22 => return self.damaged(),
            23 => {
                // Numbers that are left out leave holes in what is acknowledged.
                self.puppet.next_pn[2] += u64::from(self.program.byte());
                return;
            }
            24..=27 => return self.application(),
            28 | 29 => {
                let amount = u64::from(self.program.byte());
                return self.pass(Duration::from_millis(amount * amount / 8));
            }
            30 => {
                // A NAT that gives the peer another port.
                let port = 4_000 + u16::from(self.program.byte() % 8);
                self.puppet.address.set_port(port);
                return;
            }
            _ => {
                self.reads = !self.reads;
                return;
            }
        };
        // Once, or many times the same with other packet numbers; an offset that moves makes each a new piece.
        let times = if instruction & 0xe0 == 0xe0 { 1 + usize::from(self.program.byte()) } else { 1 };
        for _ in 0..times {
            self.send(&payload);
        }
        self.puppet.collect_quietly();
    }

    fn send(&mut self, payload: &[u8]) {
        if payload.is_empty() || payload.len() > 1_300 {
            return;
        }
        let packet = self.puppet.packet(Level::OneRtt, payload);
        self.puppet.give(&packet);
        self.last = (payload.to_vec(), packet);
        self.reached.packets += 1;
    }

    /// Takes the frames that the endpoint has sent, for the limits in them.
    fn listen(&mut self) {
        for (_, frame) in self.puppet.frames() {
            match frame {
                Frame::MaxData(limit) => self.credit.0 = self.credit.0.max(limit),
                Frame::MaxStreamData { id, limit } => {
                    let allowed = self.allowed.entry(id).or_insert(STREAM_WINDOW);
                    *allowed = limit.max(*allowed);
                }
                Frame::NewConnectionId { sequence, .. } => self.issued = self.issued.max(sequence),
                _ => {}
            }
        }
        self.puppet.received.clear();
    }

    fn number_frame(&mut self, frame: impl FnOnce(u16, Side) -> Frame<'static>) -> Vec<u8> {
        let word = self.program.word();
        bytes(&[frame(word, self.puppet.side)])
    }

    /// A piece of a stream of the peer; or as many pieces of a byte with a hole behind each as a packet holds.
    fn stream(&mut self) -> Vec<u8> {
        let (word, kind, len) = (self.program.word(), self.program.byte(), self.program.byte());
        let data = [kind; 1_100];
        let id = ours(word, self.puppet.side);
        let piece = |offset, data, fin| Frame::Stream(StreamFrame { id, offset, data, fin });
        if self.wild && kind & 0x70 == 0x70 {
            return bytes(&[piece(u64::from(word) * 8, &data[..usize::from(len) * 4], kind & 1 == 1)]);
        }
        let end = *self.ends.entry(id).or_default();
        let allowed = *self.allowed.entry(id).or_insert(STREAM_WINDOW);
        let room = (allowed - end).min(self.credit.0 - self.credit.1).min(1_024) as usize;
        if self.over.contains(&id) || room == 0 {
            // Again what has come, as after a loss.
            let len = (end as usize).min(len.into());
            return bytes(&[piece(0, &data[..len], false)]);
        }
        if kind & 0x80 == 0 {
            let (len, fin) = (room.min(usize::from(len) * 4), kind & 0x1f == 0x1f);
            self.used(id, end + len as u64, fin);
            return bytes(&[piece(end, &data[..len], fin)]);
        }
        // Small enough for a packet, whatever the offsets are.
        let count = (room as u64 / 2).min(len.into()).min(140);
        self.used(id, end + 2 * count, false);
        bytes(&(0..count).map(|n| piece(end + 2 * n + 1, &data[..1], false)).collect::<Vec<_>>())
    }

    fn used(&mut self, id: StreamId, end: u64, fin: bool) {
        let before = self.ends.insert(id, end).unwrap_or(0);
        self.credit.1 += end - before;
        if fin {
            self.over.insert(id);
        }
    }

    fn reset(&mut self) -> Vec<u8> {
        let word = self.program.word();
        let id = ours(word, self.puppet.side);
        let end = self.ends.get(&id).copied().unwrap_or(0);
        self.used(id, end, true);
        let final_size = end + if self.wild { u64::from(word >> 8) } else { 0 };
        // Every other one leaves some of the stream.
        if word & 0x20 == 0 {
            return bytes(&[Frame::ResetStream { id, code: 7, final_size }]);
        }
        let reliable_size = final_size / 8 * u64::from(word >> 6 & 7);
        bytes(&[Frame::ResetStreamAt { id, code: 7, final_size, reliable_size }])
    }

    fn datagram(&mut self) -> Vec<u8> {
        let len = usize::from(self.program.byte()) * 4;
        bytes(&[Frame::Datagram { data: &[0xda; 1_024][..len] }])
    }

    fn new_connection_id(&mut self) -> Vec<u8> {
        let amount = self.program.byte();
        // An old one again, a new one in place of all before, or too many.
        self.sequence += u64::from(amount & 3 != 0 || self.sequence == 0);
        let sequence = self.sequence;
        let retire_prior_to = if self.wild && amount & 4 != 0 { 0 } else { sequence };
        let cid = ConnectionId::new(&sequence.to_be_bytes()).expect("8 bytes");
        let reset_token = ResetToken([sequence as u8; 16]);
        bytes(&[Frame::NewConnectionId { sequence, retire_prior_to, cid, reset_token }])
    }

    fn crypto(&mut self) -> Vec<u8> {
        let (word, len) = (self.program.word(), self.program.byte());
        bytes(&[Frame::Crypto { offset: u64::from(word) * 2, data: &[0; 255][..len.into()] }])
    }

    /// A source symbol around a frame, or a repair symbol.
    fn symbol(&mut self) -> Vec<u8> {
        let (kind, back) = (self.program.byte(), u64::from(self.program.byte()));
        // A repair symbol that repairs nothing is a broken rule, once it meets the symbols that it speaks of.
        if kind & 1 == 0 || !self.wild {
            // Some are left out, as if they had been lost.
            self.symbol = (self.symbol + 1 + back % 3).min(self.puppet.next_pn[2]).max(self.symbol + 1);
            let inner = if kind & 2 == 0 { self.stream() } else { self.datagram() };
            return [bytes(&[Frame::SourceSymbol { id: self.symbol }]), inner].concat();
        }
        let (count, stride, row) = (self.program.byte(), self.program.byte(), self.program.byte());
        let first = self.symbol.saturating_sub(back);
        let data = [kind; 1_024];
        let data = &data[..usize::from(kind) * 4];
        bytes(&[Frame::Repair(RepairFrame { first, count, stride, row, data })])
    }

    /// The last packet again: as it was, cut, with a bit turned, or with another behind it.
    fn damaged(&mut self) {
        let (kind, at) = (self.program.byte(), usize::from(self.program.word()));
        let mut packet = self.last.1.clone();
        if packet.is_empty() {
            return;
        }
        let place = at % packet.len();
        match kind % 4 {
            0 => {}
            1 => packet.truncate(place),
            2 => packet[place] ^= 1 << (kind >> 5),
            _ => packet.extend_from_slice(&self.last.1[place..]),
        }
        self.puppet.give(&packet);
        self.reached.packets += 1;
        self.puppet.collect_quietly();
    }

    /// Acts as the application of the endpoint.
    fn application(&mut self) {
        let (what, amount) = (self.program.byte(), usize::from(self.program.byte()));
        let now = self.puppet.now;
        let Some(connection) = self.puppet.handle.and_then(|handle| self.puppet.victim.connection_mut(handle)) else {
            return;
        };
        let word = u16::from(what >> 4) | (amount as u16 & 1) << 4;
        let id = if what & 8 == 0 { theirs(word, self.puppet.side) } else { ours(word, self.puppet.side) };
        match what & 7 {
            0 => drop(connection.open(Dir::Bi)),
            1 => drop(connection.open(Dir::Uni)),
            2 | 3 => drop(connection.write(id, &mut Bytes::from(vec![7; amount * 64]))),
            4 => {
                let flow = DatagramFlow::default();
                let _ = connection.send_datagram_in(now, &flow, Bytes::from(vec![8; amount * 5]));
            }
            5 => drop(connection.finish(id)),
            6 if amount.is_multiple_of(2) => drop(connection.reset(id, 5)),
            6 => drop(connection.reset_at(id, 5, amount as u64 * 16)),
            _ => drop(connection.stop_sending(id, 6)),
        }
        self.puppet.collect_quietly();
    }

    /// Lets time pass, with everything that falls due; timers fire a number of times that time bounds.
    fn pass(&mut self, span: Duration) {
        let end = self.puppet.now + span;
        let most = 10_000 + span.as_millis() * 10;
        let mut fired = 0;
        while let Some((at, ..)) = self.puppet.victim.poll_timeout().filter(|(at, ..)| *at <= end) {
            self.puppet.now = self.puppet.now.max(at);
            self.puppet.victim.handle_timeout(self.puppet.now);
            self.puppet.collect_quietly();
            fired += 1;
            assert!(fired <= most, "timers fire without end within {span:?}");
        }
        self.puppet.now = end;
    }

    /// Reads if it should, and looks at what is held.
    fn check(&mut self) {
        let events = direct::events(&mut self.puppet.victim).into_iter().map(|(_, event)| event);
        for event in self.puppet.events.drain(..).chain(events) {
            if let Event::Closed(reason) = event {
                self.reached.closed = Some(reason.to_string());
            }
        }
        self.listen();
        let Some(connection) = self.puppet.handle.and_then(|handle| self.puppet.victim.connection_mut(handle)) else {
            return;
        };
        let (held, limit) = (connection.memory_budget().held(), connection.memory_budget().limit());
        assert!(held <= limit.saturating_add(SLACK), "{held} bytes are held, {limit} may be");
        self.reached.held = self.reached.held.max(held);
        if !self.reads {
            return;
        }
        while connection.recv_datagram().is_some() {
            self.reached.datagrams += 1;
        }
        for dir in [Dir::Bi, Dir::Uni] {
            while connection.accept(dir).is_some() {}
        }
        for number in 0..32 {
            while let Ok(Some(chunk)) = connection.read(StreamId(number), 4_096, Order::Ordered) {
                self.reached.read += chunk.data.len();
            }
        }
    }

    /// The peer falls silent: all comes to its end.
    fn end(&mut self) {
        let connection = self.puppet.handle.and_then(|handle| self.puppet.victim.connection(handle));
        self.reached.open = connection.is_some_and(|connection| !connection.is_closed());
        let begun: Instant = self.puppet.now;
        self.pass(Duration::from_secs(600));
        while self.puppet.victim.poll_event().is_some() {}
        if let Some(handle) = self.puppet.handle {
            let closed = self.puppet.victim.connection(handle).is_none_or(|connection| connection.is_closed());
            assert!(closed, "a silent peer's connection is there 600 s after {begun:?}");
        }
        let next = self.puppet.victim.poll_timeout();
        assert!(next.is_none(), "nobody is there, and a timer waits: {next:?}");
        assert_eq!(self.process.held(), 0, "memory that nobody holds");
    }
}

/// One of the peer's first streams.
fn ours(word: u16, side: Side) -> StreamId {
    let initiator = u64::from(side == Side::Server);
    StreamId(u64::from(word & 7) << 2 | u64::from(word & 8) >> 2 | initiator)
}

/// A bidirectional stream on which the endpoint sends: of the peer, most often.
fn theirs(word: u16, side: Side) -> StreamId {
    let initiator = u64::from(side == Side::Server);
    StreamId(u64::from(word & 7) << 2 | initiator)
}

fn dir(word: u16) -> Dir {
    if word & 1 == 0 { Dir::Bi } else { Dir::Uni }
}
