//! Memory that a peer can make a connection hold, attack by attack, in bytes that are really allocated. The program runs
//! without the test harness and in one thread, with an allocator that counts what is live.
//!
//! Each attack prints `attack: NAME | budget BYTES | heap BYTES`: the budget that the connection stated, and the live bytes above
//! an idle connection, when they were most. Buffers are like those of the driver: 64 KiB each, whatever a datagram fills.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::BytesMut;
use support::{
    direct,
    puppet::{Puppet, ack, bytes},
};
use transport::{
    Datagram, Profile,
    fec::FecPolicy,
    memory::ConnectionBudget,
    streams::{Order, StreamsConfig},
    tls::Level,
};
use units::Duration;
use wire::{ConnectionId, Dir, Frame, RepairFrame, ResetToken, StreamFrame, StreamId};

const BUFFER: usize = 64 * 1024;
/// Bytes of the frames in a packet of the usual size.
const ROOM: usize = 1160;
/// Beneath this, held bytes need not be charged.
const SMALL: usize = 64 * 1024;

/// The system's allocator, and the bytes that it has given out, those of its own records included. Its own count (`mallinfo2`)
/// takes what it keeps for the next allocation for live.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Bytes that the allocator took for an allocation.
#[expect(unsafe_code, reason = "the size of an allocation has no safe wrapper")]
fn size(at: *mut u8) -> usize {
    // SAFETY: the allocator gave out the pointer and has not taken it back.
    if at.is_null() { 0 } else { unsafe { libc::malloc_usable_size(at.cast()) + 8 } }
}

#[expect(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let at = unsafe { System.alloc(layout) };
        LIVE.fetch_add(size(at), Relaxed);
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let at = unsafe { System.alloc_zeroed(layout) };
        LIVE.fetch_add(size(at), Relaxed);
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(size(at), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        LIVE.fetch_sub(size(at), Relaxed);
        // SAFETY: as the caller promises.
        let moved = unsafe { System.realloc(at, layout, new) };
        LIVE.fetch_add(size(if moved.is_null() { at } else { moved }), Relaxed);
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are allocated at the moment.
fn allocated() -> usize {
    LIVE.load(Relaxed)
}

/// Arrangement of payloads in the buffers that the endpoint receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// Each in a buffer of its own.
    Single,
    /// As many as fit into a buffer, in one read.
    Full,
}

#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    heap: usize,
    held: u64,
    limit: u64,
}

/// An attack in progress.
struct Attack {
    name: String,
    puppet: Puppet,
    idle: usize,
    budget: Option<ConnectionBudget>,
    /// Bytes of packets that were not given to the victim yet.
    besides: usize,
    /// Moment at which most was allocated, and moment at which most of it was not charged.
    worst: Worst,
    uncharged: Worst,
    /// The newest limits of the victim: of the connection, and of stream 0.
    max_data: u64,
    max_stream: u64,
}

fn stream(id: u64, offset: u64, data: &[u8]) -> Frame<'_> {
    Frame::Stream(StreamFrame { id: StreamId(id), offset, fin: false, data })
}

impl Attack {
    fn on(name: &str, puppet: Puppet) -> Self {
        let StreamsConfig { receive_window_stream, receive_window_connection, .. } = StreamsConfig::default();
        let mut attack = Self {
            name: name.to_owned(),
            puppet,
            idle: 0,
            budget: None,
            besides: 0,
            worst: Worst::default(),
            uncharged: Worst::default(),
            max_data: receive_window_connection,
            max_stream: receive_window_stream,
        };
        attack.puppet.victim.set_receive_buffer(BUFFER);
        attack.collect();
        attack.idle = allocated();
        attack.measure();
        attack.worst.limit = attack.budget.as_ref().map_or(0, ConnectionBudget::limit);
        attack
    }

    /// Against a server whose handshake is complete.
    fn start(name: &str) -> Self {
        Self::with(name, &Profile::default())
    }

    fn with(name: &str, profile: &Profile) -> Self {
        let mut puppet = Puppet::client(profile, |p, _| p.fec_window = Some(256)).connected();
        puppet.acknowledge(Level::OneRtt);
        Self::on(name, puppet)
    }

    /// Gives payloads of frames to the victim, and measures after each read.
    fn send(&mut self, reads: Reads, payloads: impl IntoIterator<Item = Vec<u8>>) {
        let payloads: Vec<Vec<u8>> = payloads.into_iter().collect();
        let before = allocated();
        let packets: Vec<Vec<u8>> = payloads.iter().map(|payload| self.puppet.packet(Level::OneRtt, payload)).collect();
        self.besides = allocated() - before;
        drop(payloads);
        self.give(reads, packets);
        self.besides = 0;
        self.measure();
    }

    fn give(&mut self, reads: Reads, packets: Vec<Vec<u8>>) {
        let mut packets = packets.into_iter().peekable();
        while let Some(first) = packets.next() {
            let segment_size = first.len();
            // Packets that wait here are not the victim's.
            self.besides = self.besides.saturating_sub(size(first.as_ptr().cast_mut()));
            let mut buffer = BytesMut::zeroed(BUFFER);
            buffer[..segment_size].copy_from_slice(&first);
            let mut len = segment_size;
            while reads == Reads::Full
                && let Some(next) = packets.next_if(|next| next.len() == segment_size && len + next.len() <= BUFFER)
            {
                self.besides = self.besides.saturating_sub(size(next.as_ptr().cast_mut()));
                buffer[len..len + next.len()].copy_from_slice(&next);
                len += next.len();
            }
            let payload = buffer.split_to(len);
            drop((buffer, first));
            let now = self.puppet.now;
            let remote = self.puppet.address;
            let datagram = Datagram { remote, local: None, ecn: None, received_at: now, segment_size, payload };
            self.puppet.victim.handle_datagram(now, datagram);
            self.collect();
            self.measure();
        }
    }

    fn collect(&mut self) {
        self.puppet.collect_quietly();
        for (_, frame) in self.puppet.frames().collect::<Vec<_>>() {
            match frame {
                Frame::MaxData(limit) => self.max_data = self.max_data.max(limit),
                Frame::MaxStreamData { id: StreamId(0), limit } => self.max_stream = self.max_stream.max(limit),
                _ => {}
            }
        }
        self.puppet.received = Vec::new();
        self.puppet.events = Vec::new();
        while self.puppet.seen[2].len() > 64 {
            self.puppet.seen[2].pop_first();
        }
        if self.budget.is_none()
            && let Some(connection) = self.puppet.handle.and_then(|handle| self.puppet.victim.connection(handle))
        {
            self.budget = Some(connection.memory_budget().clone());
        }
    }

    fn measure(&mut self) {
        let heap = allocated().saturating_sub(self.idle + self.besides);
        let Some(budget) = &self.budget else { return };
        let now = Worst { heap, held: budget.held(), limit: budget.limit() };
        if heap > self.worst.heap {
            self.worst = now;
        }
        let uncharged = |w: Worst| w.heap.saturating_sub(2 * w.held as usize);
        if uncharged(now) > uncharged(self.uncharged) {
            self.uncharged = now;
        }
    }

    fn is_over(&self) -> bool {
        self.puppet.handle.and_then(|h| self.puppet.victim.connection(h)).is_none_or(|c| c.is_closed())
    }

    /// The application reads what is there of a stream.
    fn read(&mut self, id: u64, max: usize) -> usize {
        let Some(connection) = self.puppet.handle.and_then(|h| self.puppet.victim.connection_mut(h)) else { return 0 };
        let mut read = 0;
        while connection.accept(StreamId(id).dir()).is_some() {}
        while read < max
            && let Ok(Some(chunk)) = connection.read(StreamId(id), max - read, Order::Ordered)
        {
            read += chunk.data.len();
        }
        read
    }

    /// The connection ends; prints and checks.
    fn end(mut self, failures: &mut Vec<String>) {
        self.measure();
        let Worst { heap, limit, held } = self.worst;
        println!("attack: {} | budget {limit} | heap {heap}", self.name);
        let mut fail = |what: String| failures.push(format!("{}: {what}", self.name));
        if heap as u64 > 2 * limit {
            fail(format!("{heap} bytes live, {limit} were stated"));
        }
        let unknown = self.uncharged;
        if unknown.heap > SMALL && unknown.heap as u64 > 2 * unknown.held {
            fail(format!("{} bytes live, {} are charged", unknown.heap, unknown.held));
        }
        if held > 2 * limit {
            fail(format!("{held} bytes charged, {limit} were stated"));
        }
        let Some(budget) = self.budget.take() else { panic!("{}: there was no connection", self.name) };
        let handle = self.puppet.handle.expect("there was a connection");
        if let Some(connection) = self.puppet.victim.connection_mut(handle) {
            connection.close(self.puppet.now, 0, b"");
        }
        direct::sent(&mut self.puppet.victim, self.puppet.now);
        direct::events(&mut self.puppet.victim);
        if budget.held() > 0 {
            fail(format!("{} bytes are charged after the end", budget.held()));
        }
        let left = allocated().saturating_sub(self.idle);
        if left > SMALL {
            fail(format!("{left} bytes are live after the end"));
        }
        self.puppet.pass(Duration::from_secs(100));
        assert!(self.puppet.victim.connection(handle).is_none());
        let left = allocated().saturating_sub(self.idle);
        if left > SMALL / 4 {
            fail(format!("{left} bytes are live when the connection is gone"));
        }
        if budget.process().held() > 0 {
            fail(format!("{} bytes of the process are charged when the connection is gone", budget.process().held()));
        }
    }
}

/// Frames in payloads of the usual size.
fn packed<'a>(frames: impl IntoIterator<Item = Frame<'a>>) -> Vec<Vec<u8>> {
    let mut payloads = vec![Vec::new()];
    for frame in frames {
        let frame = bytes(&[frame]);
        let last = payloads.last_mut().expect("there is one");
        if last.len() + frame.len() > ROOM {
            payloads.push(frame);
        } else {
            last.extend(frame);
        }
    }
    for payload in &mut payloads {
        // Padding makes them alike, so that one read can bring many.
        payload.resize(ROOM, 0);
    }
    payloads
}

const BIG: &[u8] = &[7; 1100];
const READS: [Reads; 2] = [Reads::Single, Reads::Full];

/// Data of the usual size with a byte missing after each packet; then in as many streams as there are.
fn holes(failures: &mut Vec<String>) {
    for reads in READS {
        let mut attack = Attack::start(&format!("holes in one stream, {reads:?}"));
        attack.send(reads, (0..235).map(|i| bytes(&[stream(0, 1 + i * 1101, BIG)])));
        assert!(!attack.is_over(), "every second packet lost is no attack");
        attack.end(failures);
        let mut attack = Attack::start(&format!("holes in many streams, {reads:?}"));
        attack.send(reads, (0..470).map(|i| bytes(&[stream(4 * (i % 100), 1 + i / 100 * 1101, BIG)])));
        assert!(!attack.is_over(), "every second packet lost is no attack");
        attack.end(failures);
        let mut attack = Attack::start(&format!("single bytes between holes, {reads:?}"));
        attack.send(reads, packed((0..12_000).map(|i| stream(4 * (i % 100), 1 + i / 100 * 2, b"x"))));
        assert!(attack.is_over(), "nobody sends like that");
        attack.end(failures);
    }
}

fn fragments(failures: &mut Vec<String>) {
    for reads in READS {
        for len in [1, 7, 100] {
            let mut attack = Attack::start(&format!("fragments of {len} from behind, {reads:?}"));
            let count = 60_000 / len as u64;
            let frames = (1..count).rev().map(|i| stream(0, i * len as u64, &BIG[..len]));
            attack.send(reads, packed(frames));
            attack.end(failures);
            let mut attack = Attack::start(&format!("fragments of {len} from behind in many streams, {reads:?}"));
            let count = 400_000 / len as u64;
            let frames = (100..count).rev().map(|i| stream(4 * (i % 100), i / 100 * len as u64, &BIG[..len]));
            attack.send(reads, packed(frames));
            attack.end(failures);
        }
        let mut attack = Attack::start(&format!("single bytes in order, {reads:?}"));
        attack.send(reads, packed((0..100_000).map(|i| stream(4 * (i % 100), i / 100, b"x"))));
        assert!(!attack.is_over());
        attack.end(failures);
        let mut attack = Attack::start(&format!("a single byte in each packet, {reads:?}"));
        attack.send(reads, (0..5_000).map(|i| packed([stream(4 * (i % 100), i / 100, b"x")]).remove(0)));
        assert!(!attack.is_over());
        attack.end(failures);
        let mut attack = Attack::start(&format!("empty stream frames, {reads:?}"));
        (0..20).for_each(|_| attack.send(reads, packed((0..20_000).map(|i| stream(4 * (i % 50), 0, b"")))));
        attack.end(failures);
    }
}

/// A whole window of data that nobody reads, as a well-behaved peer sends it.
fn slow_readers(failures: &mut Vec<String>) {
    for reads in READS {
        for streams in [3, 60] {
            let mut attack = Attack::start(&format!("the whole window in {streams} streams, {reads:?}"));
            let window = StreamsConfig::default().receive_window_connection;
            let each = (window / streams).min(StreamsConfig::default().receive_window_stream) / 1100;
            attack
                .send(reads, (0..each * streams).map(|i| bytes(&[stream(4 * (i % streams), i / streams * 1100, BIG)])));
            assert!(!attack.is_over(), "nothing is wrong with that");
            assert!(!attack.budget.as_ref().unwrap().is_exceeded());
            attack.end(failures);
        }
    }
}

/// The application reads, and leaves what pins much.
fn picky_readers(failures: &mut Vec<String>) {
    for reads in READS {
        let mut attack = Attack::start(&format!("what is read leaves single bytes, {reads:?}"));
        for round in 0..100 {
            let frames = |i: u64| [stream(0, (round * 20 + i) * 1100, BIG), stream(4 + 4 * (i % 20), round, b"y")];
            attack.send(reads, (0..20).map(|i| packed(frames(i)).remove(0)));
            assert_eq!(attack.read(0, usize::MAX), 22_000);
            attack.puppet.acknowledge(Level::OneRtt);
            attack.collect();
            attack.measure();
        }
        assert!(!attack.is_over());
        attack.end(failures);

        let mut attack = Attack::start(&format!("all but one byte is read, {reads:?}"));
        for id in (0..400).step_by(4) {
            attack.send(reads, (0..15).map(|i| bytes(&[stream(id, i * 1100, BIG)])));
            assert_eq!(attack.read(id, 15 * 1100 - 1), 15 * 1100 - 1);
            attack.puppet.acknowledge(Level::OneRtt);
            attack.collect();
            attack.measure();
        }
        assert!(!attack.is_over());
        attack.end(failures);

        let mut attack = Attack::start(&format!("queues of many streams were long, {reads:?}"));
        for id in (0..400).step_by(4) {
            attack.send(reads, (0..200).map(|i| bytes(&[stream(id, i * 1100, BIG)])));
            assert_eq!(attack.read(id, usize::MAX), 220_000);
            attack.puppet.acknowledge(Level::OneRtt);
            attack.collect();
            attack.measure();
        }
        assert!(!attack.is_over());
        attack.end(failures);

        let mut attack = Attack::start(&format!("holes that are filled, {reads:?}"));
        for id in (0..400).step_by(4) {
            attack.send(reads, packed((0..2_000).map(|i| stream(id, 1 + i * 2, b"x"))));
            attack.send(reads, packed((0..2_000).map(|i| stream(id, i * 2, b"x"))));
            assert_eq!(attack.read(id, usize::MAX), 4_000);
            attack.puppet.acknowledge(Level::OneRtt);
            attack.collect();
            attack.measure();
        }
        assert!(!attack.is_over());
        attack.end(failures);
    }
}

fn datagrams(failures: &mut Vec<String>) {
    for reads in READS {
        for len in [0, 1, 1100] {
            let mut attack = Attack::start(&format!("datagrams of {len} bytes that nobody reads, {reads:?}"));
            let data = &BIG[..len];
            for _ in 0..10 {
                let count = if len > 100 { 300 } else { 20_000 };
                attack.send(reads, packed((0..count).map(|_| Frame::Datagram { data })));
            }
            assert!(!attack.is_over(), "they are dropped");
            attack.end(failures);
        }
        let mut attack = Attack::start(&format!("a datagram of one byte in each packet, {reads:?}"));
        attack.send(reads, (0..3_000).map(|_| packed([Frame::Datagram { data: b"x" }]).remove(0)));
        attack.end(failures);
        let mut attack = Attack::start(&format!("small datagrams beside a window that is full, {reads:?}"));
        attack.send(reads, (0..470).map(|i| bytes(&[stream(4 * (i % 100), i / 100 * 1100, BIG)])));
        attack.send(Reads::Single, (0..32).map(|_| bytes(&[Frame::Datagram { data: b"small" }])));
        let connection = attack.puppet.handle.and_then(|handle| attack.puppet.victim.connection_mut(handle));
        let connection = connection.expect("it is open");
        let received = std::iter::from_fn(|| connection.recv_datagram()).count();
        if received < 32 {
            failures.push(format!("{}: {received} of 32 arrived, although a copy of each is small", attack.name));
        }
        attack.end(failures);
        let mut attack = Attack::start(&format!("datagrams beside a window that is full, {reads:?}"));
        attack.send(reads, (0..470).map(|i| bytes(&[stream(4 * (i % 100), i / 100 * 1100, BIG)])));
        attack.send(reads, packed((0..2_000).map(|_| Frame::Datagram { data: BIG })));
        assert!(!attack.is_over(), "they are dropped");
        attack.end(failures);
    }
}

fn many_streams(failures: &mut Vec<String>) {
    let mut attack = Attack::start("a byte in each of all streams");
    attack
        .send(Reads::Single, (0..100).map(|i| packed([stream(4 * i, 0, b"x"), stream(4 * i + 2, 0, b"x")]).remove(0)));
    attack.end(failures);
    for accepts in [false, true] {
        let mut attack = Attack::start(&format!("empty streams without end, accepted: {accepts}"));
        let fin = |id| Frame::Stream(StreamFrame { id: StreamId(id), offset: 0, fin: true, data: b"" });
        let rounds = if accepts { 40 } else { 1 };
        for round in 0..rounds {
            attack.send(Reads::Full, packed((0..50).map(|i| fin(2 + 4 * (round * 50 + i)))));
            if accepts {
                let connection = attack.puppet.victim.connection_mut(attack.puppet.handle.unwrap()).unwrap();
                while let Some(id) = connection.accept(Dir::Uni) {
                    assert_eq!(connection.read(id, 1, Order::Ordered), Ok(None));
                }
            }
            attack.collect();
            attack.puppet.acknowledge(Level::OneRtt);
            attack.measure();
        }
        assert!(!attack.is_over());
        attack.end(failures);
    }
}

fn handshakes(failures: &mut Vec<String>) {
    let gaps = |n: u64| packed((0..n).map(|i| Frame::Crypto { offset: 10_000 + i * 100, data: &BIG[..60] }));
    let mut attack = Attack::start("CRYPTO fragments after the handshake");
    attack.send(Reads::Single, gaps(250));
    attack.end(failures);

    let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
    let mut pieces = puppet.pieces(Level::Initial, 100);
    let last = pieces.pop().unwrap();
    puppet.send(Level::Initial, &pieces[0]);
    puppet.collect();
    let mut attack = Attack::on("CRYPTO fragments in Initial packets", puppet);
    for payload in gaps(250) {
        let packet = attack.puppet.packet(Level::Initial, &payload);
        attack.give(Reads::Single, vec![packet]);
    }
    drop((last, pieces));
    attack.end(failures);

    for len in [1_100, 30_000, 60_000] {
        let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        let mut attack = Attack::on(&format!("packets of {len} bytes without keys"), puppet);
        attack.send(Reads::Single, (0..100).map(|_| vec![1; len]));
        attack.end(failures);
    }
}

fn floods(failures: &mut Vec<String>) {
    let mut attack = Attack::start("connection ID churn");
    for n in 0..1_000u64 {
        let id = |s: u64| Frame::NewConnectionId {
            sequence: s,
            retire_prior_to: s,
            cid: ConnectionId::new(&s.to_be_bytes()).unwrap(),
            reset_token: ResetToken([0; 16]),
        };
        attack.send(Reads::Single, [bytes(&[id(n + 1)])]);
        attack.puppet.acknowledge(Level::OneRtt);
        attack.collect();
    }
    attack.end(failures);

    let mut attack = Attack::start("PATH_CHALLENGE");
    attack.send(Reads::Full, (0..3_000u64).map(|n| bytes(&[Frame::PathChallenge(n.to_be_bytes()); 100])));
    attack.end(failures);

    let mut attack = Attack::start("packets of a peer that acknowledges nothing");
    for _ in 0..100 {
        attack.send(Reads::Single, (0..300).map(|_| vec![1; 40]));
    }
    assert!(attack.is_over());
    attack.end(failures);

    let mut attack = Attack::start("addresses without end");
    for port in 0..1_000 {
        attack.puppet.address.set_port(10_000 + port);
        attack.send(Reads::Single, [vec![1; 60]]);
    }
    attack.end(failures);

    for reads in READS {
        let mut attack = Attack::start(&format!("gaps in packet numbers, {reads:?}"));
        for _ in 0..50 {
            let packets = (0..100).map(|_| {
                attack.puppet.next_pn[2] += 1;
                attack.puppet.packet(Level::OneRtt, &[1, 0, 0, 0])
            });
            let packets = packets.collect();
            attack.give(reads, packets);
        }
        assert!(!attack.is_over());
        attack.end(failures);
        let mut attack = Attack::start(&format!("acknowledgements with many ranges, {reads:?}"));
        for _ in 0..300 {
            // Every second packet of the victim.
            let connection = attack.puppet.victim.connection_mut(attack.puppet.handle.unwrap()).unwrap();
            connection.ping();
            attack.collect();
            let numbers = attack.puppet.seen[2].iter().copied().filter(|pn| pn % 2 == 0).collect();
            attack.send(reads, [ack(&numbers)]);
        }
        attack.end(failures);
    }
}

/// Round trips with a reader that keeps up make the window grow; then it stops reading.
fn grown_windows(failures: &mut Vec<String>) {
    for (reads, scattered) in [(Reads::Single, false), (Reads::Full, false), (Reads::Single, true), (Reads::Full, true)]
    {
        let name = format!(
            "a window that a quick reader has grown, {reads:?}, {}",
            if scattered { "with holes" } else { "in order" }
        );
        let mut attack = Attack::start(&name);
        let mut offset = 0;
        let mut window = 0;
        while window < 8 << 20 {
            let connection = attack.puppet.victim.connection_mut(attack.puppet.handle.unwrap()).unwrap();
            connection.ping();
            attack.collect();
            attack.puppet.now += Duration::from_millis(50);
            attack.puppet.acknowledge(Level::OneRtt);
            attack.collect();
            let room = (attack.max_stream.min(attack.max_data) - offset) / 1100;
            let start = offset;
            attack.send(Reads::Full, (0..room).map(|i| bytes(&[stream(0, start + i * 1100, BIG)])));
            offset += room * 1100;
            assert_eq!(attack.read(0, usize::MAX) as u64, room * 1100);
            attack.puppet.now += Duration::from_millis(1);
            attack.collect();
            let grown = attack.max_stream.min(attack.max_data) - offset;
            assert!(!attack.is_over() && grown >= window, "{window} {grown}");
            window = grown;
        }
        attack.worst = Worst::default();
        attack.measure();
        assert!(attack.worst.heap < 1 << 20, "{} bytes after all was read", attack.worst.heap);
        let step = if scattered { 1200 } else { 1100 };
        let skip = u64::from(scattered);
        attack.send(reads, (0..window / step - 1).map(|i| bytes(&[stream(0, offset + skip + i * step, BIG)])));
        assert!(!attack.is_over(), "nothing is wrong with that");
        attack.end(failures);
    }
}

fn symbols(failures: &mut Vec<String>) {
    let profile = Profile { fec: FecPolicy::Receive, ..Profile::default() };
    // With each symbol's ID, the length of its content.
    for len in [1_000, 50_000] {
        let mut attack = Attack::with(&format!("source symbols of {len} bytes with gaps"), &profile);
        for n in 0..600 {
            attack.puppet.next_pn[2] += 1;
            let mut payload = bytes(&[Frame::SourceSymbol { id: 2 * n }]);
            payload.extend(bytes(&[stream(0, 0, &vec![7; len])]));
            attack.send(Reads::Single, [payload]);
        }
        attack.end(failures);
        let data = vec![0x5a; len];
        let mut attack = Attack::with(&format!("repair symbols of {len} bytes that never suffice"), &profile);
        attack.puppet.next_pn[2] = 10_000;
        for n in 0..600u64 {
            let repair = RepairFrame { first: n, count: 190, stride: 1, row: (n % 16) as u8, data: &data };
            attack.send(Reads::Single, [bytes(&[Frame::Repair(repair)])]);
            if attack.is_over() {
                break;
            }
        }
        attack.end(failures);
    }
}

fn main() {
    let mut failures = Vec::new();
    // What is made once, such as tables of coefficients, is not a connection's.
    let mut warm_up = Attack::start("nothing");
    warm_up.send(Reads::Full, (0..100).map(|_| vec![1; 100]));
    warm_up.end(&mut failures);
    type Group = fn(&mut Vec<String>);
    let groups: [(&str, Group); 10] = [
        ("holes", holes),
        ("fragments", fragments),
        ("slow_readers", slow_readers),
        ("picky_readers", picky_readers),
        ("datagrams", datagrams),
        ("many_streams", many_streams),
        ("handshakes", handshakes),
        ("floods", floods),
        ("grown_windows", grown_windows),
        ("symbols", symbols),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, group) in groups {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            group(&mut failures);
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
