//! RESET_STREAM_AT (draft-ietf-quic-reliable-stream-reset) between whole endpoints: over bad networks, in early data, from peers
//! that were not asked.

use crate::support;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use netem::{LinkConfig, Loss, Queue, Reorder};
use rand_core::RngCore;
use sim::{Simulation, client_address, point_to_point, server_address};
use support::{
    App, Host, client_config, client_endpoint,
    direct::{converse, give, sent},
    identity,
    puppet::{Puppet, bytes},
    server_config, server_endpoint,
};
use transport::{
    ClientConfig, CloseReason, Code, Endpoint, Event, Handle, Profile, ServerConfig,
    ring::{KeyRing, MemoryRegister},
    streams::{Order, ReadError, ResetAtError, StreamEvent, StreamsConfig},
    tls::{
        EarlyData, Level,
        rustls_backend::{RustlsClient, RustlsServer},
    },
};
use units::{Bitrate, Duration, Instant, Probability, RandomStream, Seed};
use wire::{Dir, Frame, StreamId};

fn profile(reset_stream_at: bool) -> Profile {
    Profile { streams: StreamsConfig { reset_stream_at, ..StreamsConfig::default() }, ..Profile::default() }
}

/// The bytes of a direction of a stream.
fn pattern(id: StreamId, client: bool, len: usize) -> Bytes {
    (0..len).map(|at| (at as u64 * 7 + id.0 * 3 + u64::from(client)) as u8).collect()
}

const STREAMS: usize = 12;
const CODE: u64 = 77;

/// Promise of a writer for a stream: so many bytes are written, these arrive, and then the reset.
fn promise(id: StreamId, client: bool) -> (usize, usize) {
    let n = id.0 as usize * 2 + usize::from(client);
    let written = 1 + n * 7919 % 60_000;
    (written, 1 + n * 104_729 % written)
}

/// Writes on each stream what it has promised, lowers the reliable size in steps, and reads what the other end has promised.
struct Resetting {
    client: bool,
    handle: Option<Handle>,
    random: RandomStream,
    opened: usize,
    /// Bytes that are not written yet.
    writing: BTreeMap<StreamId, Bytes>,
    /// Reliable sizes that are still to be named, the last one first.
    lowering: BTreeMap<StreamId, Vec<usize>>,
    read: BTreeMap<StreamId, Vec<u8>>,
    resets: usize,
    acknowledged: usize,
    packets_lost: u64,
    closed: Option<CloseReason>,
}

impl Resetting {
    fn new(seed: u64, client: bool, handle: Option<Handle>) -> Self {
        let random = Seed::from_number(seed).stream(if client { "client's resets" } else { "server's resets" });
        Self {
            client,
            handle,
            random,
            opened: 0,
            writing: BTreeMap::new(),
            lowering: BTreeMap::new(),
            read: BTreeMap::new(),
            resets: 0,
            acknowledged: 0,
            packets_lost: 0,
            closed: None,
        }
    }

    fn begin(&mut self, id: StreamId) {
        let (written, reliable) = promise(id, self.client);
        self.writing.insert(id, pattern(id, self.client, written));
        self.lowering.insert(id, vec![reliable, (reliable + written) / 2, written]);
    }

    fn write(&mut self, connection: &mut transport::Connection) {
        if self.client && connection.is_connected() {
            while self.opened < STREAMS
                && let Some(id) = connection.open(Dir::Bi)
            {
                self.opened += 1;
                self.begin(id);
            }
        }
        for (&id, data) in &mut self.writing {
            while !data.is_empty() && connection.write(id, data).is_ok() {}
            // At some acknowledgement, as long as there are any to come.
            if data.is_empty()
                && (self.random.next_u64().is_multiple_of(3) || connection.unacknowledged_bytes() == 0)
                && let Some(size) = self.lowering.get_mut(&id).and_then(Vec::pop)
            {
                match connection.reset_at(id, CODE, size as u64) {
                    Ok(()) => {}
                    // All of it has arrived already, as it was promised before.
                    Err(ResetAtError::Closed | ResetAtError::Unknown) => self.lowering.get_mut(&id).unwrap().clear(),
                    Err(error) => panic!("{id:?}: {error}"),
                }
            }
        }
        self.writing.retain(|id, _| !self.lowering[id].is_empty());
    }

    fn read(&mut self, connection: &mut transport::Connection, id: StreamId) {
        loop {
            match connection.read(id, usize::MAX, Order::Ordered) {
                Ok(Some(chunk)) => self.read.entry(id).or_default().extend_from_slice(&chunk.data),
                Ok(None) => panic!("{id:?} ends cleanly"),
                Err(ReadError::Reset(CODE)) => {
                    let (written, reliable) = promise(id, !self.client);
                    let read = self.read.remove(&id).unwrap_or_default();
                    assert!((reliable..=written).contains(&read.len()), "{id:?}: {} of {reliable}", read.len());
                    assert_eq!(read, pattern(id, !self.client, written)[..read.len()]);
                    self.resets += 1;
                    return;
                }
                Err(ReadError::Blocked) => return,
                Err(error) => panic!("{id:?}: {error}"),
            }
        }
    }
}

impl App for Resetting {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        self.handle = self.handle.or_else(|| endpoint.poll_accept());
        self.closed = self.closed.take().or_else(|| {
            events
                .iter()
                .find_map(|(_, event)| if let Event::Closed(reason) = event { Some(reason.clone()) } else { None })
        });
        let Some(handle) = self.handle else { return };
        let Some(connection) = endpoint.connection_mut(handle) else { return };
        for (_, event) in events {
            match event {
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = connection.accept(dir) {
                        self.begin(id);
                        self.read(connection, id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read(connection, id),
                Event::Stream(StreamEvent::Finished { .. }) => self.acknowledged += 1,
                _ => {}
            }
        }
        self.write(connection);
        self.packets_lost = connection.stats().packets_lost;
        let done = self.resets == STREAMS && self.acknowledged == STREAMS;
        if self.client && done && self.closed.is_none() {
            connection.close(now, 0, b"");
        }
    }

    fn finished(&self) -> bool {
        self.closed.is_some()
    }
}

/// All bytes up to the reliable size arrive, then the reset, in both directions.
#[test]
fn promised_bytes_arrive_over_bad_networks() {
    for seed in 0..30 {
        let profile = profile(true);
        let link = LinkConfig {
            rate: Some(Bitrate::from_mbps(10)),
            queue: Queue::DropTail { bytes: Bitrate::from_mbps(10).in_time(Duration::from_millis(50)) },
            delay: Duration::from_millis(25),
            loss: Loss::Iid { p: Probability::new((seed % 5) as f64 * 0.05).unwrap() },
            reorder: (seed % 2 == 1)
                .then(|| Reorder { probability: Probability::new(0.2).unwrap(), delay: Duration::from_millis(20) }),
            ..LinkConfig::default()
        };
        let mut client = client_endpoint(seed);
        let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
        let mut sim: Simulation<Host<Resetting>> = point_to_point(
            Seed::from_number(seed),
            &link,
            &link,
            Host::new(client_address(0), client, Resetting::new(seed, true, Some(handle))),
            Host::new(
                server_address(0),
                server_endpoint(seed, server_config(&profile)),
                Resetting::new(seed, false, None),
            ),
        )
        .unwrap();
        let outcome = sim.run_until(Instant::from_millis(60_000)).unwrap();
        assert!(outcome.is_finished(), "seed {seed}: {outcome}");
        for host in sim.nodes() {
            assert_eq!(host.app.resets, STREAMS, "seed {seed}: client {}", host.app.client);
        }
        let lost = sim.node(0).app.packets_lost;
        assert!(lost > 0 || seed % 5 == 0, "seed {seed}");
    }
}

/// Frames of a peer that knows the extension, and their outcome.
#[test]
fn frames_of_peers() {
    let at = |final_size, reliable_size| {
        bytes(&[Frame::ResetStreamAt { id: StreamId(0), code: 1, final_size, reliable_size }])
    };
    let data = bytes(&[Frame::Stream(wire::StreamFrame { id: StreamId(0), offset: 0, fin: false, data: b"abc" })]);
    let window = StreamsConfig::default().receive_window_stream;
    for (what, advertised, payload, expected) in [
        ("§3: not advertised", false, at(0, 0), Some(Code::PROTOCOL_VIOLATION)),
        ("advertised", true, at(0, 0), None),
        ("§4 MUST: a reliable size above the final size", true, at(3, 4), Some(Code::FRAME_ENCODING_ERROR)),
        ("§4 MUST: beyond flow control", true, at(window + 1, 0), Some(Code::FLOW_CONTROL_ERROR)),
        ("§5.2 MUST: another final size", true, [data, at(2, 0)].concat(), Some(Code::FINAL_SIZE_ERROR)),
    ] {
        let mut puppet = Puppet::client(&profile(advertised), |_, _| {}).connected();
        puppet.send(Level::OneRtt, &payload);
        assert_eq!(puppet.close_code(), expected, "{what}");
    }
}

/// A frame in every 1-RTT packet: the credit of each stream is back, and so is the stream.
#[test]
fn a_thousand_streams_that_are_reset_cost_no_credit() {
    let mut puppet = Puppet::client(&profile(true), |_, _| {}).connected();
    let window = StreamsConfig::default().receive_window_stream;
    for n in 0..1000 {
        let id = StreamId::new(wire::Side::Client, Dir::Uni, n);
        let stream = wire::StreamFrame { id, offset: 100, fin: false, data: &[7; 900] };
        let reset = Frame::ResetStreamAt { id, code: 1, final_size: window, reliable_size: 50 };
        let first = wire::StreamFrame { id, offset: 0, fin: false, data: &[7; 100] };
        for frame in [Frame::Stream(stream), reset, Frame::Stream(first)] {
            puppet.send(Level::OneRtt, &bytes(&[frame]));
        }
        puppet.collect();
        puppet.acknowledge(Level::OneRtt);
        let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
        assert_eq!(connection.accept(Dir::Uni), Some(id));
        assert_eq!(connection.read(id, 1000, Order::Ordered).unwrap().unwrap().data.len(), 50);
        assert_eq!(connection.read(id, 1000, Order::Ordered), Err(ReadError::Reset(1)));
    }
    assert_eq!(puppet.close_code(), None);
    let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
    assert_eq!(connection.stats().balance(), Ok(()));
}

/// A client resets a stream in early data. Returns what the server did with early data, what its application read, and
/// how its reading ended.
fn early(now_supported: bool) -> (EarlyData, Vec<u8>, Result<(), ReadError>) {
    let clock = Arc::new(support::CLOCK);
    let tls = RustlsClient::builder().roots([identity().1.clone()]).alpn("test").early_data(true);
    let tls = Arc::new(tls.clock(clock.clone()).build().unwrap());
    let server = RustlsServer::builder()
        .identity(identity().0.clone())
        .alpn("test")
        .clock(clock)
        .ring(KeyRing::single([7; 32]))
        .strike_register(Arc::new(MemoryRegister::default()))
        .early_data(true);
    let server = Arc::new(server.build().unwrap());
    let server_with = |supported| ServerConfig::new(server.clone(), Arc::new(profile(supported)));
    let config = ClientConfig::new(tls, Arc::new(profile(false)));
    let now = Instant::ZERO;
    let mut first = (client_endpoint(1), server_endpoint(1, server_with(true)));
    first.0.connect(now, &config, server_address(0), "server.test").unwrap();
    converse(now, (&mut first.0, client_address(0)), (&mut first.1, server_address(0)));

    let (mut client, mut server) = (client_endpoint(2), server_endpoint(2, server_with(now_supported)));
    let handle = client.connect(now, &config, server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open_early(Dir::Uni).expect("there is a ticket");
    connection.write(id, &mut vec![4; 5_000].into()).unwrap();
    connection.reset_at(id, 9, 2_000).expect("the server accepted it before");
    let flight = sent(&mut client, now);
    assert!(client.connection(handle).unwrap().stats().early_packets_sent > 0);
    flight.iter().for_each(|d| give(&mut server, now, client_address(0), &d.payload));
    converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
    let early = client.connection(handle).unwrap().early_data();
    let accepted = server.poll_accept().unwrap();
    let connection = server.connection_mut(accepted).unwrap();
    assert_eq!(connection.accept(Dir::Uni), Some(id));
    let mut all = Vec::new();
    loop {
        match connection.read(id, usize::MAX, Order::Ordered) {
            Ok(Some(chunk)) => all.extend_from_slice(&chunk.data),
            Ok(None) => return (early, all, Ok(())),
            Err(error) => return (early, all, Err(error)),
        }
    }
}

/// §3 MUST: both ends remember the extension; a server that does not have it any more refuses early data.
#[test]
fn the_extension_is_remembered_for_early_data() {
    assert_eq!(early(true), (EarlyData::Accepted, vec![4; 2_000], Err(ReadError::Reset(9))));
    assert_eq!(early(false), (EarlyData::Rejected, vec![], Err(ReadError::Reset(9))));
}
