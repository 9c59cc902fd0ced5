//! Random actions of both applications and of the network, compared with a reference: written data is read once, and no state remains at
//! the end.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use wire::{Dir, Side, StreamId};

use super::pair::Pair;
use crate::streams::{Order, Priority, ReadError, ResetAtError, StreamEvent, StreamsConfig, WriteError};

#[derive(Clone, Debug)]
enum Action {
    Open(usize, Dir),
    Write(usize, usize, usize),
    Finish(usize, usize),
    Reset(usize, usize, u64),
    ResetAt(usize, usize, u64, u64),
    Stop(usize, usize, u64),
    Rank(usize, usize, u8, bool),
    Read(usize, usize, usize, Order),
    Accept(usize, Dir),
    Send(usize, usize),
    Deliver(usize, usize),
    Ack(usize, usize),
    Lose(usize, usize),
    Time(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let side = 0..2usize;
    let any = 0..1000usize;
    let dir = prop_oneof![Just(Dir::Bi), Just(Dir::Uni)];
    let order = prop_oneof![3 => Just(Order::Ordered), 1 => Just(Order::Unordered)];
    prop_oneof![
        4 => (side.clone(), dir.clone()).prop_map(|(s, d)| Action::Open(s, d)),
        12 => (side.clone(), any.clone(), 0..2500usize).prop_map(|(s, i, n)| Action::Write(s, i, n)),
        2 => (side.clone(), any.clone()).prop_map(|(s, i)| Action::Finish(s, i)),
        1 => (side.clone(), any.clone(), 0..100u64).prop_map(|(s, i, c)| Action::Reset(s, i, c)),
        1 => (side.clone(), any.clone(), 0..100u64, 0..4000u64).prop_map(|(s, i, c, n)| Action::ResetAt(s, i, c, n)),
        1 => (side.clone(), any.clone(), 0..100u64).prop_map(|(s, i, c)| Action::Stop(s, i, c)),
        1 => (side.clone(), any.clone(), 0..9u8, prop::bool::ANY).prop_map(|(s, i, u, n)| Action::Rank(s, i, u, n)),
        8 => (side.clone(), any.clone(), 1..2000usize, order).prop_map(|(s, i, n, o)| Action::Read(s, i, n, o)),
        3 => (side.clone(), dir).prop_map(|(s, d)| Action::Accept(s, d)),
        20 => (side.clone(), 1..1300usize).prop_map(|(s, n)| Action::Send(s, n)),
        14 => (side.clone(), any.clone()).prop_map(|(s, i)| Action::Deliver(s, i)),
        10 => (side.clone(), any.clone()).prop_map(|(s, i)| Action::Ack(s, i)),
        5 => (side, any).prop_map(|(s, i)| Action::Lose(s, i)),
        1 => (1..200u64).prop_map(Action::Time),
    ]
}

/// Model of one direction of one stream.
#[derive(Debug, Default)]
struct Flow {
    written: u64,
    finished: bool,
    /// Code with which the writer gave up.
    reset: Option<u64>,
    /// Bytes that arrive in spite of that.
    reliable: u64,
    /// The reader's view.
    seen: Vec<bool>,
    stopped: Option<u64>,
    reader_done: bool,
}

/// Every byte has its value, by stream, writer and place.
fn byte(id: StreamId, writer: usize, at: u64) -> u8 {
    let mixed =
        (id.0 << 1 | writer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 37) as u8
}

struct World {
    pair: Pair,
    config: StreamsConfig,
    /// Streams that each application knows.
    known: [Vec<StreamId>; 2],
    flows: BTreeMap<(u64, usize), Flow>,
    now: u64,
}

impl World {
    fn new(config: StreamsConfig) -> Self {
        let pair = Pair::same(&config);
        Self { pair, config, known: [Vec::new(), Vec::new()], flows: BTreeMap::new(), now: 0 }
    }

    fn know(&mut self, side: usize, id: StreamId) {
        self.known[side].push(id);
        let opener = usize::from(id.initiator() == Side::Server);
        let writers = if id.dir() == Dir::Bi { 0..2 } else { opener..opener + 1 };
        for writer in writers {
            self.flows.entry((id.0, writer)).or_default();
        }
    }

    fn pick(&self, side: usize, i: usize) -> Option<StreamId> {
        let known = &self.known[side];
        (!known.is_empty()).then(|| known[i % known.len()])
    }

    fn flow(&mut self, writer: usize, id: StreamId) -> &mut Flow {
        self.flows.get_mut(&(id.0, writer)).expect("the stream has this part")
    }

    fn write(&mut self, side: usize, id: StreamId, len: usize) -> Result<usize, WriteError> {
        let Some(flow) = self.flows.get_mut(&(id.0, side)) else {
            let refused = self.pair.ends[side].write(id, &mut Bytes::from_static(b"x"));
            assert_eq!(refused, Err(WriteError::Unknown), "there is no such part");
            return refused;
        };
        let bytes: Vec<u8> = (flow.written..flow.written + len as u64).map(|at| byte(id, side, at)).collect();
        let mut data = Bytes::from(bytes);
        let result = self.pair.ends[side].write(id, &mut data);
        match result {
            Ok(n) => {
                assert!(!flow.finished && flow.reset.is_none());
                assert_eq!(data.len(), len - n);
                flow.written += n as u64;
            }
            Err(WriteError::Blocked) => assert!(len > 0),
            Err(WriteError::Closed) => assert!(flow.finished || flow.reset.is_some()),
            Err(WriteError::Stopped(code)) => {
                assert_eq!(flow.stopped, Some(code));
                flow.reset = Some(code);
            }
            Err(WriteError::Unknown) => {
                assert!(flow.finished || flow.reset.is_some() || flow.stopped.is_some(), "the end was not known");
            }
        }
        result
    }

    fn read(&mut self, side: usize, id: StreamId, max: usize, order: Order) -> Result<bool, ReadError> {
        let Some(flow) = self.flows.get_mut(&(id.0, 1 - side)) else {
            assert_eq!(self.pair.ends[side].read(id, max, order), Err(ReadError::Unknown));
            return Err(ReadError::Unknown);
        };
        match self.pair.ends[side].read(id, max, order) {
            Ok(Some(chunk)) => {
                assert!(!flow.reader_done && !chunk.data.is_empty() && chunk.data.len() <= max);
                let end = chunk.offset as usize + chunk.data.len();
                assert!(end as u64 <= flow.written);
                flow.seen.resize(flow.seen.len().max(end), false);
                for (at, value) in (chunk.offset..).zip(&chunk.data) {
                    assert!(!std::mem::replace(&mut flow.seen[at as usize], true), "read twice");
                    assert_eq!(*value, byte(id, 1 - side, at), "{id:?} at {at}");
                }
                if order == Order::Ordered {
                    assert!(flow.seen[..end].iter().all(|seen| *seen), "in order means nothing is left behind");
                }
                Ok(true)
            }
            Ok(None) => {
                assert!(flow.finished && !flow.reader_done, "an end that nobody wrote");
                assert_eq!(flow.seen.len() as u64, flow.written);
                assert!(flow.seen.iter().all(|seen| *seen));
                flow.reader_done = true;
                Ok(false)
            }
            Err(error) => {
                match error {
                    ReadError::Reset(code) => {
                        assert!(!flow.reader_done);
                        assert!(flow.reset == Some(code) || flow.stopped == Some(code));
                        assert!(flow.seen.iter().filter(|seen| **seen).count() as u64 >= flow.reliable);
                        assert!(flow.seen.iter().take(flow.reliable as usize).all(|seen| *seen));
                        flow.reader_done = true;
                    }
                    ReadError::Closed => assert!(flow.reader_done || flow.stopped.is_some()),
                    ReadError::Unknown => assert!(flow.reader_done || flow.stopped.is_some()),
                    ReadError::Blocked => assert!(!flow.reader_done),
                }
                Err(error)
            }
        }
    }

    fn reset_at(&mut self, side: usize, id: StreamId, code: u64, size: u64) {
        let result = self.pair.ends[side].reset_at(id, code, size);
        let Some(flow) = self.flows.get_mut(&(id.0, side)) else {
            return assert_eq!(result, Err(ResetAtError::Unknown));
        };
        let most = if flow.reset.is_some() { flow.reliable } else { flow.written };
        match result {
            Ok(()) => {
                assert!(size <= most);
                flow.reset.get_or_insert(code);
                flow.reliable = size;
            }
            Err(ResetAtError::TooLarge { limit }) => assert!(size > limit && limit == most),
            Err(ResetAtError::Stopped(code)) => {
                assert_eq!(flow.stopped, Some(code));
                flow.reset.get_or_insert(code);
                flow.reliable = 0;
            }
            Err(ResetAtError::Closed | ResetAtError::Unknown) => {
                assert!(flow.finished || flow.reset.is_some() || flow.stopped.is_some(), "the end was not known");
            }
            Err(ResetAtError::Unsupported) => panic!("both ends support it"),
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Open(side, dir) => {
                let open = self.known[side].iter().filter(|id| id.dir() == dir && id.initiator() as usize == side);
                let opened = open.count() as u64;
                if let Some(id) = self.pair.ends[side].open(dir) {
                    assert_eq!(id.index(), opened);
                    self.know(side, id);
                }
            }
            Action::Accept(side, dir) => {
                if let Some(id) = self.pair.ends[side].accept(dir) {
                    assert_ne!(id.initiator() as usize, side);
                    self.know(side, id);
                }
            }
            Action::Write(side, i, len) => {
                if let Some(id) = self.pick(side, i) {
                    let _ = self.write(side, id, len);
                }
            }
            Action::Finish(side, i) => {
                if let Some(id) = self.pick(side, i) {
                    match self.pair.ends[side].finish(id) {
                        Ok(()) => self.flow(side, id).finished = true,
                        Err(WriteError::Stopped(code)) => self.flow(side, id).reset = Some(code),
                        Err(_) => {}
                    }
                }
            }
            Action::Reset(side, i, code) => {
                if let Some(id) = self.pick(side, i)
                    && self.pair.ends[side].reset(id, code).is_ok()
                {
                    let flow = self.flow(side, id);
                    flow.reset.get_or_insert(code);
                    flow.reliable = 0;
                }
            }
            Action::ResetAt(side, i, code, size) => {
                if let Some(id) = self.pick(side, i) {
                    self.reset_at(side, id, code, size);
                }
            }
            Action::Stop(side, i, code) => {
                if let Some(id) = self.pick(side, i)
                    && self.pair.ends[side].stop_sending(id, code).is_ok()
                {
                    let flow = self.flow(1 - side, id);
                    flow.stopped = Some(code);
                    flow.reader_done = true;
                }
            }
            Action::Rank(side, i, urgency, incremental) => {
                if let Some(id) = self.pick(side, i) {
                    let _ = self.pair.ends[side].set_priority(id, Priority { urgency, incremental });
                }
            }
            Action::Read(side, i, max, order) => {
                if let Some(id) = self.pick(side, i) {
                    let _ = self.read(side, id, max, order);
                }
            }
            Action::Send(from, size) => {
                self.pair.send(from, size);
            }
            // Mostly among the latest packets, sometimes an old one once more.
            Action::Deliver(from, i) => {
                if let Some(i) = self.packet(from, i) {
                    self.pair.deliver(from, i).unwrap();
                }
            }
            Action::Ack(from, i) => {
                if let Some(i) = self.packet(from, i) {
                    self.pair.ack(from, i);
                }
            }
            Action::Lose(from, i) => {
                if let Some(i) = self.packet(from, i) {
                    self.pair.lose(from, i);
                }
            }
            Action::Time(ms) => {
                self.now += ms;
                for end in &mut self.pair.ends {
                    end.tune(units::Instant::from_millis(self.now), units::Duration::from_millis(50));
                }
            }
        }
        for end in &self.pair.ends {
            let figures = end.figures();
            assert!(figures.receive_buffered_bytes <= self.config.receive_window_max);
            let streams = figures.live_streams;
            assert!(figures.send_buffered_bytes <= self.config.send_buffer_max * 2 + 1024 * streams);
            assert!(figures.acked_bytes <= figures.sent_bytes);
        }
    }

    fn packet(&self, from: usize, i: usize) -> Option<usize> {
        let n = self.pair.packets[from].len();
        (n > 0).then(|| if i.is_multiple_of(5) { i % n } else { n - 1 - i % n.min(12) })
    }

    /// Writes what an application still wants to write, and finishes; false when it has to wait for the event.
    fn complete(&mut self, side: usize, id: StreamId, target: u64) {
        while let Some(flow) = self.flows.get(&(id.0, side)) {
            let left = target.saturating_sub(flow.written) as usize;
            if flow.finished || flow.reset.is_some() {
                break;
            }
            if left == 0 {
                match self.pair.ends[side].finish(id) {
                    Ok(()) => self.flow(side, id).finished = true,
                    Err(WriteError::Stopped(code)) => self.flow(side, id).reset = Some(code),
                    Err(error) => panic!("finishing {id:?}: {error}"),
                }
            } else if self.write(side, id, left.min(700)).is_err() {
                break;
            }
        }
    }

    fn read_all(&mut self, side: usize, id: StreamId) {
        while self.read(side, id, usize::MAX, Order::Ordered) == Ok(true) {}
    }

    /// From here on nothing is lost, and both applications do what the events tell them, and nothing else.
    fn finish(&mut self, extra: u64) {
        let targets: BTreeMap<_, _> = self.flows.iter().map(|(key, flow)| (*key, flow.written + extra)).collect();
        let target = |id: StreamId, side: usize| targets.get(&(id.0, side)).copied().unwrap_or(extra);
        for from in 0..2 {
            for i in 0..self.pair.packets[from].len() {
                if self.pair.packets[from][i].delivered {
                    self.pair.ack(from, i);
                } else {
                    self.pair.lose(from, i);
                }
            }
        }
        for side in 0..2 {
            for id in self.known[side].clone() {
                self.complete(side, id, target(id, side));
                self.read_all(side, id);
            }
        }
        loop {
            let mut progress = self.pair.exchange();
            for side in 0..2 {
                // Streams may have been opened before, whose event was polled long ago.
                for dir in [Dir::Bi, Dir::Uni] {
                    while let Some(id) = self.pair.ends[side].accept(dir) {
                        progress = true;
                        self.know(side, id);
                        self.complete(side, id, target(id, side));
                        self.read_all(side, id);
                    }
                }
                while let Some(event) = self.pair.ends[side].poll_event() {
                    progress = true;
                    match event {
                        StreamEvent::Readable { id } if self.known[side].contains(&id) => self.read_all(side, id),
                        StreamEvent::Writable { id } => self.complete(side, id, target(id, side)),
                        StreamEvent::Stopped { id, code } => {
                            let flow = self.flow(side, id);
                            assert_eq!(flow.stopped, Some(code));
                            if !flow.finished && flow.reset.is_none() {
                                assert!(self.write(side, id, 1).is_err());
                            }
                        }
                        StreamEvent::Finished { id } => {
                            let flow = &self.flows[&(id.0, side)];
                            assert!(flow.finished || flow.reset.is_some());
                        }
                        _ => {}
                    }
                }
            }
            if !progress {
                break;
            }
        }
        for (key, flow) in &self.flows {
            assert!(flow.finished || flow.reset.is_some(), "{key:?} was not completed: {flow:?}");
            assert!(flow.reader_done, "{key:?} was not read to its end: written {}", flow.written);
        }
        for end in &self.pair.ends {
            let figures = end.figures();
            assert_eq!(figures.live_streams, 0, "{:?}", end.slab);
            assert_eq!((figures.send_buffered_bytes, figures.receive_buffered_bytes), (0, 0));
            assert_eq!((figures.send_unsent_bytes, end.holdings.holes), (0, 0));
            assert_eq!(end.window.consumed(), end.received, "all credit is given back");
        }
        for (a, b) in [(0, 1), (1, 0)] {
            assert_eq!(self.pair.ends[a].credit.used, self.pair.ends[b].received, "both ends count alike");
        }
    }
}

fn small() -> StreamsConfig {
    StreamsConfig {
        send_buffer: 3000,
        send_buffer_max: 6000,
        receive_window_stream: 1500,
        receive_window_connection: 4000,
        receive_window_max: 9000,
        max_streams_bidi: 3,
        max_streams_uni: 2,
        reset_stream_at: true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    // RFC 9000 §2.2 MUST-1, MUST NOT-1, MUST NOT-2; RFC 9000 §4.1 MUST NOT-1; RFC 9000 §19.9 MUST NOT-1
    // RFC 9000 §19.10 MUST NOT-1
    #[test]
    fn what_is_written_is_read_over_any_network(
        actions in prop::collection::vec(action(), 1..400),
        extra in 0..5000u64,
        roomy in prop::bool::ANY,
    ) {
        let config = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
        let mut world = World::new(if roomy { config } else { small() });
        for action in actions {
            world.act(action);
        }
        world.finish(extra);
    }
}
