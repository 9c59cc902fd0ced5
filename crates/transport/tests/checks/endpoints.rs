//! A client and a server under random actions and a random network, beside a model of what each reader must get.
//!
//! Whatever happens, no end panics, no end blames the other, readers get what writers wrote, no datagram arrives twice, and
//! once the network behaves everything that was written arrives.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use transport::{
    ClientConfig, CloseReason, Code, Datagram, Ecn, Endpoint, EndpointConfig, Event, Handle, KeyUpdatePolicy, Profile,
    RetryPolicy, ServerConfig,
    ack_frequency::AckFrequency,
    congestion::Algorithm,
    streams::{Order, ReadError, StreamEvent},
    tls::testing::Toy,
};
use units::{Duration, Instant, Seed};
use wire::{Dir, StreamId, version};

use super::{
    Program,
    network::{Network, Packet},
};

/// Instructions of a program that are carried out.
const INSTRUCTIONS: usize = 400;
/// Bytes that may be written to a stream.
const STREAM_BYTES: u64 = 200_000;
/// Largest distance of a deadline that is still waited for.
const SOON: Duration = Duration::from_millis(1_500);
/// Steps in which everything has to arrive once the network behaves.
const LAST_STEPS: usize = 20_000;
/// Virtual time for that.
const LAST_TIME: Duration = Duration::from_secs(200);

const SERVER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 0), 443));

fn client_at(host: u8, port: u16) -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, host), 50_000 + port).into()
}

/// One direction of a stream.
#[derive(Default)]
struct Flow {
    written: u64,
    finished: bool,
    reset: bool,
    stopped: bool,
    read: u64,
    /// The reader knows the end, or that there is none.
    ended: bool,
}

impl Flow {
    /// Returns whether all data has arrived that has to.
    fn is_done(&self) -> bool {
        self.ended || self.stopped || self.reset
    }
}

/// The byte at an offset, which says where it belongs.
fn content(by_server: bool, id: StreamId, offset: u64, len: usize) -> Bytes {
    let start = id.0.wrapping_mul(0x1357).wrapping_add(u64::from(by_server) * 0x77);
    (offset..offset + len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9).wrapping_add(start) >> 11) as u8).collect()
}

struct End {
    endpoint: Endpoint,
    handle: Option<Handle>,
    closed: Option<CloseReason>,
    /// Streams that it may act on.
    streams: Vec<StreamId>,
}

struct World {
    now: Instant,
    ends: [End; 2],
    network: Network,
    client: SocketAddr,
    /// By whether the server writes, and the stream.
    flows: BTreeMap<(bool, StreamId), Flow>,
    datagrams_sent: u64,
    datagrams_read: [BTreeSet<u64>; 2],
    closed_on_purpose: bool,
    rebound: bool,
    address_changed: bool,
    finishing: bool,
    reached: Reached,
    buffer: Vec<u8>,
}

/// Progress of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Both ends had the whole handshake.
    pub(crate) connected: bool,
    /// Bytes read from streams.
    pub(crate) read: u64,
    /// Streams read to their end.
    pub(crate) ended: usize,
    /// Datagrams read.
    pub(crate) datagrams: usize,
    /// Times that a server followed its client to another address.
    pub(crate) moves: u64,
}

/// Runs a program.
pub(crate) fn endpoints(data: &[u8]) -> Reached {
    let mut program = Program::new(data);
    let mut world = World::new(&mut program);
    world.settle();
    // Half of the programs begin after the handshake.
    if program.byte() & 1 == 0 {
        while !world.reached.connected && world.ends.iter().all(|end| end.closed.is_none()) {
            world.step();
        }
    }
    for _ in 0..INSTRUCTIONS {
        let Some(instruction) = program.instruction() else { break };
        world.act(instruction, &mut program);
        world.settle();
    }
    world.finish();
    world.reached
}

fn profile(program: &mut Program<'_>) -> Profile {
    let mut profile = Profile::default();
    let choice = program.byte();
    profile.congestion = Algorithm::ALL[usize::from(choice) % Algorithm::ALL.len()];
    profile.grease = choice & 0x40 == 0;
    profile.pacing = choice & 0x80 == 0;
    profile.streams.receive_window_stream = 500 + u64::from(program.byte()) * 200;
    profile.streams.max_streams_bidi = 1 + program.below(8) as u64;
    profile.streams.max_streams_uni = program.below(8) as u64;
    let choice = program.byte();
    profile.datagram_queue = if choice & 1 == 0 { 10_000 } else { 0 };
    profile.acks.every = 1 + u32::from(choice >> 1) % 8;
    profile.receive_timestamps = if choice & 0x10 == 0 { 0 } else { 32 };
    profile.ack_frequency = if choice & 0x20 == 0 { AckFrequency::Off } else { AckFrequency::Adaptive };
    profile.key_update = KeyUpdatePolicy { packets: (choice & 0x40 != 0).then_some(20), bytes: None };
    profile.spin = choice & 0x80 != 0;
    profile
}

impl World {
    fn new(program: &mut Program<'_>) -> Self {
        let seed = Seed::from_number(u64::from(program.word()));
        let choice = program.byte();
        let delay = Duration::from_millis(u64::from(program.byte() % 64));
        let toy = Toy {
            client_hello: 300 + usize::from(choice & 3) * 600,
            server_flight: 500 + usize::from(choice >> 2 & 3) * 2_500,
            ..Toy::default()
        };
        let tls = Arc::new(toy);
        let mut server = ServerConfig::new(tls.clone(), Arc::new(profile(program)));
        server.retry = if choice & 0x10 == 0 { RetryPolicy::Never } else { RetryPolicy::Always };
        server.upgrade_to = (choice & 0x20 != 0).then_some(version::V2);
        server.migration = choice & 0x40 == 0;
        let end = |name: &str, server: Option<ServerConfig>| End {
            endpoint: Endpoint::new(EndpointConfig::from_seed(seed.child(name, 0)), server.map(Arc::new)),
            handle: None,
            closed: None,
            streams: Vec::new(),
        };
        let mut client = end("client", None);
        let config = ClientConfig::new(tls, Arc::new(profile(program)));
        client.handle = client.endpoint.connect(Instant::ZERO, &config, SERVER, "server.test").ok();
        Self {
            now: Instant::ZERO,
            ends: [client, end("server", Some(server))],
            network: Network::new(delay),
            client: client_at(0, 0),
            flows: BTreeMap::new(),
            datagrams_sent: 0,
            datagrams_read: Default::default(),
            closed_on_purpose: false,
            rebound: false,
            address_changed: false,
            finishing: false,
            reached: Reached::default(),
            buffer: vec![0; 16 * 1500],
        }
    }

    /// Carries out one instruction.
    fn act(&mut self, instruction: u8, program: &mut Program<'_>) {
        let now = self.now;
        let side = usize::from(instruction >> 7);
        match instruction & 0x7f {
            0..=31 => (0..=instruction & 0x0f).for_each(|_| self.step_soon()),
            32..=43 => self.open(side, if instruction & 1 == 0 { Dir::Bi } else { Dir::Uni }),
            44..=60 => self.write(side, program.byte().into(), usize::from(program.byte()) * 97),
            61..=63 => self.end_stream(side, program.byte().into()),
            64..=71 => {
                self.read(side, program.byte().into(), 1 + usize::from(program.byte()) * 23);
            }
            72..=75 => self.network.drop(program.byte().into()),
            76..=78 => self.network.duplicate(now, program.byte().into(), millis(program)),
            79..=82 => {
                let (n, place, mask) = (program.byte(), program.word(), program.byte());
                self.network.change(n.into(), |packet| {
                    let place = usize::from(place) % packet.payload.len().max(1);
                    if let Some(byte) = packet.payload.get_mut(place) {
                        *byte ^= mask;
                    }
                });
                (self.network.interfered, self.network.tampered) = (true, true);
            }
            83..=86 => self.network.delay(program.byte().into(), millis(program) * 4),
            87 => {
                let (n, len) = (program.byte(), program.word());
                self.network.change(n.into(), |packet| packet.payload.truncate(usize::from(len) + 1));
                (self.network.interfered, self.network.tampered) = (true, true);
            }
            88..=90 => self.forge(side == 0, program),
            91..=92 => {
                // A NAT that gives another port, or another address.
                self.client = client_at(program.byte() % 3, u16::from(program.byte() % 4));
                self.address_changed = true;
            }
            93..=95 => self.with(side, |connection, _| connection.update_keys()),
            96..=99 => self.send_datagram(side, 8 + usize::from(program.byte()) * 6),
            100..=104 => {
                let until = now + millis(program) * 2;
                while self.next().is_some_and(|at| at <= until) {
                    self.step();
                    self.settle();
                }
                self.now = self.now.max(until);
            }
            105 => self.with(side, |connection, _| connection.ping()),
            106 => self.reset(side, program.byte().into()),
            107 => self.stop(side, program.byte().into()),
            108 => self.network.replay(now, program.byte().into()),
            109 => self.network.change(program.byte().into(), |packet| packet.ecn = Some(Ecn::Ce)),
            110 => self.network.mtu = 1_200 + usize::from(program.byte()) * 2,
            111 if self.ends[0].endpoint.may_rebind() => {
                self.client = client_at(program.byte() % 3, 10 + u16::from(program.byte() % 4));
                (self.rebound, self.address_changed) = (true, true);
                self.ends[0].endpoint.rebind(now, None);
            }
            // Rarely, or nothing else would happen.
            112 if program.byte() == 0x7f => {
                self.closed_on_purpose = true;
                self.with(side, |connection, now| connection.close(now, 7, b"enough"));
            }
            113 if program.byte() == 0x7f => self.step(),
            _ => self.step_soon(),
        }
    }

    /// The next thing happens, unless it is far away: else idle timeouts would end most programs.
    fn step_soon(&mut self) {
        if self.next().is_some_and(|at| at <= self.now + SOON) {
            self.step();
        }
    }

    fn with(&mut self, side: usize, act: impl FnOnce(&mut transport::Connection, Instant)) {
        let End { endpoint, handle, .. } = &mut self.ends[side];
        if let Some(connection) = handle.and_then(|handle| endpoint.connection_mut(handle)) {
            act(connection, self.now);
        }
    }

    fn connection(&mut self, side: usize) -> Option<&mut transport::Connection> {
        let End { endpoint, handle, closed, .. } = &mut self.ends[side];
        handle.filter(|_| closed.is_none()).and_then(|handle| endpoint.connection_mut(handle))
    }

    fn open(&mut self, side: usize, dir: Dir) {
        let Some(id) = self.connection(side).and_then(|connection| connection.open(dir)) else { return };
        let known = self.ends[side].streams.contains(&id);
        assert!(!known, "{id:?} was opened twice");
        self.ends[side].streams.push(id);
        self.flows.insert((side == 1, id), Flow::default());
        if dir == Dir::Bi {
            self.flows.insert((side == 0, id), Flow::default());
        }
    }

    fn stream(&self, side: usize, n: usize) -> Option<StreamId> {
        let streams = &self.ends[side].streams;
        streams.get(n % streams.len().max(1)).copied()
    }

    fn write(&mut self, side: usize, n: usize, len: usize) {
        let Some(id) = self.stream(side, n) else { return };
        let Some(flow) = self.flows.get(&(side == 1, id)) else { return };
        let (offset, over) = (flow.written, flow.finished || flow.reset);
        let len = len.min(usize::try_from(STREAM_BYTES - offset).unwrap_or(0));
        let mut data = content(side == 1, id, offset, len);
        let Some(connection) = self.connection(side) else { return };
        let written = connection.write(id, &mut data);
        assert!(!over || written.is_err(), "{id:?} takes data after its end");
        let flow = self.flows.get_mut(&(side == 1, id)).expect("just seen");
        flow.written += written.map_or(0, |n| n as u64);
    }

    fn end_stream(&mut self, side: usize, n: usize) {
        let Some(id) = self.stream(side, n) else { return };
        let Some(connection) = self.connection(side) else { return };
        let ended = connection.finish(id).is_ok();
        if let Some(flow) = self.flows.get_mut(&(side == 1, id)) {
            flow.finished |= ended;
        }
    }

    fn reset(&mut self, side: usize, n: usize) {
        let Some(id) = self.stream(side, n) else { return };
        let Some(connection) = self.connection(side) else { return };
        let reset = connection.reset(id, 3).is_ok();
        if let Some(flow) = self.flows.get_mut(&(side == 1, id)) {
            flow.reset |= reset;
        }
    }

    fn stop(&mut self, side: usize, n: usize) {
        let Some(id) = self.stream(side, n) else { return };
        let Some(connection) = self.connection(side) else { return };
        let stopped = connection.stop_sending(id, 4).is_ok();
        if let Some(flow) = self.flows.get_mut(&(side == 0, id)) {
            flow.stopped |= stopped;
        }
    }

    /// Reads what is there, up to `max` bytes, and compares. Returns whether anything was there.
    fn read(&mut self, side: usize, n: usize, max: usize) -> bool {
        let Some(id) = self.stream(side, n) else { return false };
        let Some(connection) = self.connection(side) else { return false };
        let result = connection.read(id, max, Order::Ordered);
        let Some(flow) = self.flows.get_mut(&(side == 0, id)) else {
            assert!(result.is_err(), "{id:?} is for sending only");
            return false;
        };
        match result {
            Ok(Some(chunk)) => {
                assert!(!flow.ended && !flow.stopped && chunk.offset == flow.read && !chunk.data.is_empty());
                assert_eq!(chunk.data, content(side == 0, id, flow.read, chunk.data.len()), "{id:?} at {}", flow.read);
                flow.read += chunk.data.len() as u64;
                self.reached.read += chunk.data.len() as u64;
                assert!(flow.read <= flow.written, "{id:?}: {} read, {} written", flow.read, flow.written);
                true
            }
            Ok(None) => {
                assert!(flow.finished && flow.read == flow.written, "{id:?} ends at {} of {}", flow.read, flow.written);
                flow.ended = true;
                self.reached.ended += 1;
                false
            }
            Err(ReadError::Reset(code)) => {
                assert!(flow.reset && code == 3 || flow.stopped, "{id:?}: reset with {code}");
                flow.ended = true;
                false
            }
            Err(_) => false,
        }
    }

    fn send_datagram(&mut self, side: usize, len: usize) {
        let number = self.datagrams_sent;
        let mut data = vec![side as u8; len];
        data[..8].copy_from_slice(&number.to_be_bytes());
        if self.connection(side).is_some_and(|connection| connection.send_datagram(data.into()).is_ok()) {
            self.datagrams_sent += 1;
        }
    }

    /// Sends a forged datagram, which may begin as an authentic one.
    fn forge(&mut self, to_server: bool, program: &mut Program<'_>) {
        let mut payload = self.network.beginning(program.byte().into(), usize::from(program.byte()));
        let len = usize::from(program.byte());
        payload.extend_from_slice(program.take(len));
        payload.resize(payload.len().max(usize::from(program.byte()) * 6).max(1), 0x55);
        let from = if !to_server {
            SERVER
        } else if program.byte() & 1 == 0 {
            self.client
        } else {
            client_at(99, 0)
        };
        (self.network.interfered, self.network.tampered) = (true, true);
        self.network.send(self.now, Packet { to_server, from, ecn: None, payload });
    }

    fn next(&self) -> Option<Instant> {
        let timeouts = self.ends.iter().filter_map(|end| end.endpoint.poll_timeout().map(|(at, ..)| at));
        timeouts.chain(self.network.next()).min()
    }

    /// The next thing happens: a datagram arrives or a timer fires.
    fn step(&mut self) {
        let Some(next) = self.next() else { return };
        self.now = self.now.max(next);
        if self.network.next().is_some_and(|at| at <= self.now)
            && let Some(Packet { to_server, from, ecn, payload }) = self.network.deliver()
        {
            let segment_size = payload.len();
            let datagram = Datagram {
                remote: from,
                local: None,
                ecn,
                received_at: self.now,
                segment_size,
                payload: BytesMut::from(&payload[..]),
            };
            self.ends[usize::from(to_server)].endpoint.handle_datagram(self.now, datagram);
        }
        for end in &mut self.ends {
            end.endpoint.handle_timeout(self.now);
        }
        self.settle();
    }

    /// Lets both ends say what they have to say.
    fn settle(&mut self) {
        let mut sent = 0;
        loop {
            let mut quiet = true;
            for side in 0..2 {
                while let Some(transmit) = self.ends[side].endpoint.poll_transmit(self.now, &mut self.buffer) {
                    quiet = false;
                    sent += 1;
                    assert!(sent < 10_000, "sends without end");
                    let from = if side == 0 { self.client } else { SERVER };
                    // Whoever the client was: its old addresses still lead to it.
                    for payload in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        let (to_server, ecn) = (side == 0, transmit.ecn);
                        self.network.send(self.now, Packet { to_server, from, ecn, payload: payload.to_vec() });
                    }
                }
                while let Some(handle) = self.ends[side].endpoint.poll_accept() {
                    quiet = false;
                    // A copy of the first packet may begin another connection when the first has ended.
                    self.ends[side].handle.get_or_insert(handle);
                }
                while let Some((handle, event)) = self.ends[side].endpoint.poll_event() {
                    quiet = false;
                    if self.ends[side].handle == Some(handle) {
                        self.on_event(side, event);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn on_event(&mut self, side: usize, event: Event) {
        match event {
            Event::Stream(StreamEvent::Opened { dir }) => {
                while let Some(id) = self.connection(side).and_then(|connection| connection.accept(dir)) {
                    assert!(self.flows.contains_key(&(side == 0, id)), "{id:?} was never opened");
                    self.ends[side].streams.push(id);
                }
            }
            Event::DatagramsReadable => {
                while let Some(data) = self.connection(side).and_then(|connection| connection.recv_datagram()) {
                    let number = u64::from_be_bytes(data[..8].try_into().expect("all have eight bytes"));
                    assert!(number < self.datagrams_sent && data[8..].iter().all(|&byte| byte == (1 - side) as u8));
                    assert!(self.datagrams_read[side].insert(number), "datagram {number} arrived twice");
                    self.reached.datagrams += 1;
                }
            }
            Event::Connected => self.reached.connected |= side == 1,
            Event::Migrated if side == 1 => self.reached.moves += 1,
            Event::Closed(reason) => {
                assert!(self.ends[side].closed.is_none(), "closed twice");
                self.judge(side, &reason);
                self.ends[side].closed = Some(reason);
            }
            _ => {}
        }
    }

    /// Checks that an end may close for this reason.
    fn judge(&self, side: usize, reason: &CloseReason) {
        let Network { interfered, tampered, .. } = self.network;
        let fair = match reason {
            CloseReason::ThisApplication { code } | CloseReason::PeerApplication { code, .. } => {
                self.closed_on_purpose && *code == 7
            }
            CloseReason::PeerClosed { error } => match error.code {
                Code::APPLICATION_ERROR => self.closed_on_purpose,
                // The other end has given up the handshake.
                Code::NO_ERROR => {
                    self.ends[1 - side].closed == Some(CloseReason::HandshakeTimeout)
                        && (interfered || self.address_changed)
                }
                // A Retry token presented from another address than it was given to.
                Code::INVALID_TOKEN => self.address_changed || interfered,
                _ => false,
            },
            // While nobody reads, there is nothing to say.
            CloseReason::IdleTimeout => interfered || self.address_changed || !self.finishing,
            CloseReason::HandshakeTimeout => interfered || self.address_changed,
            CloseReason::VersionMismatch { .. } => tampered,
            CloseReason::Stranded(_) => self.rebound,
            CloseReason::Reset => self.ends[1 - side].closed.is_some() || interfered,
            _ => false,
        };
        assert!(fair, "end {side} at {:?}: {reason:?}", self.now);
    }

    /// The network behaves, and everybody reads: everything arrives.
    fn finish(&mut self) {
        self.network.mtu = usize::MAX;
        self.finishing = true;
        let end = self.now + LAST_TIME;
        for steps in 0.. {
            for side in 0..2 {
                for n in 0..self.ends[side].streams.len() {
                    self.end_stream(side, n);
                    while self.read(side, n, usize::MAX) {}
                }
            }
            self.settle();
            if self.ends.iter().any(|end| end.closed.is_some()) || self.flows.values().all(Flow::is_done) {
                return;
            }
            assert!(
                steps < LAST_STEPS && self.now < end,
                "stalled at {:?} after {steps} steps: {}",
                self.now,
                self.state()
            );
            self.step();
        }
    }

    fn state(&self) -> String {
        let flows = self.flows.iter().filter(|(_, flow)| !flow.is_done());
        let flows: Vec<_> = flows.map(|(key, f)| format!("{key:?}: {} of {} read", f.read, f.written)).collect();
        let timers: Vec<_> = self.ends.iter().map(|end| end.endpoint.poll_timeout()).collect();
        format!("{flows:?}, next timers {timers:?}")
    }
}

fn millis(program: &mut Program<'_>) -> Duration {
    Duration::from_millis(program.byte().into())
}
