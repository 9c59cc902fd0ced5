//! Connections that are watched from their first packet on: every event happens, and what is written as qlog is what the
//! draft defines and what the connection has counted.

use crate::schema;
use crate::support;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use netem::{Duplicate, LinkConfig, Loss, Queue, Reorder};
use serde_json::Value;
use sim::{client_address, point_to_point, server_address};
use support::{App, Host, client_config, client_endpoint, server_config, server_endpoint};
use transport::{
    CloseReason, Datagram, Endpoint, Event, Handle, Profile, RetryPolicy, ServerConfig, Stats,
    observe::{Both, ByName, EVENTS, Observer, ObserverFactory, Start},
    qlog::{QlogWriter, Vantage},
    streams::{Order, StreamEvent, WriteError},
};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{Dir, Side, StreamId};

/// Output of a writer, shared with the test.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes qlog of both ends, and remembers the names of all events.
#[derive(Clone, Default)]
struct Recorder {
    client: Shared,
    server: Shared,
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
    starts: Arc<Mutex<Vec<Start>>>,
}

impl Recorder {
    fn factory(&self) -> Option<Arc<dyn ObserverFactory>> {
        let recorder = self.clone();
        Some(Arc::new(move |now: Instant, start: &Start| -> Option<Box<dyn Observer>> {
            assert!(start.side == Side::Server || now == Instant::ZERO);
            recorder.starts.lock().unwrap().push(*start);
            let out = if start.side == Side::Client { &recorder.client } else { &recorder.server };
            let vantage = Vantage::from(start.side);
            let writer = QlogWriter::new(out.clone(), vantage, "test", start.original_dcid, Instant::ZERO);
            Some(Box::new(Both(recorder.ear(), Box::new(writer))))
        }))
    }

    /// The ID that the server sends to.
    fn client_id(&self) -> wire::ConnectionId {
        self.starts.lock().unwrap()[0].local_id
    }

    fn ear(&self) -> Box<dyn Observer> {
        let seen = self.seen.clone();
        Box::new(ByName(move |_: Instant, name: &'static str| {
            seen.lock().unwrap().insert(name);
        }))
    }

    /// Events of client and server, checked against the draft.
    fn events(&self) -> [Vec<Value>; 2] {
        [&self.client, &self.server].map(|file| schema::check(&file.0.lock().unwrap()))
    }
}

/// A client that sends streams and datagrams, a server that reads them.
struct Bulk {
    handle: Option<Handle>,
    /// Streams that are written, and how many bytes are missing.
    open: BTreeMap<StreamId, usize>,
    streams: usize,
    finished: usize,
    stats: Stats,
    closed: Option<CloseReason>,
}

impl Bulk {
    fn new(handle: Option<Handle>, streams: usize) -> Self {
        Self { handle, open: BTreeMap::new(), streams, finished: 0, stats: Stats::default(), closed: None }
    }
}

const SIZE: usize = 150_000;

impl App for Bulk {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        self.handle = self.handle.or_else(|| endpoint.poll_accept());
        let Some(handle) = self.handle else { return };
        if let Some((_, Event::Closed(reason))) = events.last() {
            self.closed = Some(reason.clone());
        }
        let Some(connection) = endpoint.connection_mut(handle) else { return };
        self.stats = connection.stats();
        for (_, event) in events {
            match event {
                Event::Connected if connection.side() == Side::Client => {
                    connection.update_keys();
                    connection.send_datagram(Bytes::from_static(b"hello")).unwrap();
                    for _ in 0..self.streams {
                        self.open.insert(connection.open(Dir::Uni).unwrap(), SIZE);
                    }
                }
                Event::Stream(StreamEvent::Opened { dir }) => while connection.accept(dir).is_some() {},
                Event::Stream(StreamEvent::Readable { id }) => {
                    while let Ok(Some(_)) = connection.read(id, usize::MAX, Order::Unordered) {}
                }
                Event::Stream(StreamEvent::Finished { .. }) => self.finished += 1,
                _ => {}
            }
        }
        for (&id, missing) in &mut self.open {
            while *missing > 0 {
                match connection.write(id, &mut vec![7; (*missing).min(10_000)].into()) {
                    Ok(n) => *missing -= n,
                    Err(WriteError::Blocked | WriteError::Closed) => break,
                    Err(error) => panic!("{error}"),
                }
                if *missing == 0 {
                    connection.finish(id).unwrap();
                }
            }
        }
        if self.finished == self.streams && self.streams > 0 && self.closed.is_none() {
            connection.close(now, 7, b"done");
        }
    }

    fn finished(&self) -> bool {
        self.closed.is_some()
    }
}

fn bad_link() -> LinkConfig {
    let p = |p| Probability::new(p).unwrap();
    LinkConfig {
        rate: Some(Bitrate::from_mbps(10)),
        queue: Queue::DropTail { bytes: units::DataSize::from_bytes(40_000) },
        delay: Duration::from_millis(20),
        reorder: Some(Reorder { probability: p(0.03), delay: Duration::from_millis(30) }),
        duplicate: Some(Duplicate { probability: p(0.02), delay: Duration::from_millis(5) }),
        corrupt: p(0.01),
        loss: Loss::Iid { p: p(0.03) },
        ..LinkConfig::default()
    }
}

/// Runs a transfer over a bad network. Returns who recorded it, and the figures of both ends.
fn transfer(seed: u64) -> (Recorder, [Stats; 2]) {
    transfer_with(seed, &Profile { receive_timestamps: 16, ..Profile::default() })
}

fn transfer_with(seed: u64, profile: &Profile) -> (Recorder, [Stats; 2]) {
    let recorder = Recorder::default();
    let mut client = client_endpoint(seed);
    let mut config = client_config(profile);
    config.observe = recorder.factory();
    let server = server_endpoint(seed, ServerConfig { observe: recorder.factory(), ..server_config(profile) });
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let link = bad_link();
    let mut sim = point_to_point(
        Seed::from_number(seed),
        &link,
        &link,
        Host::new(client_address(0), client, Bulk::new(Some(handle), 4)),
        Host::new(server_address(0), server, Bulk::new(None, 0)),
    )
    .unwrap();
    let outcome = sim.run_until(Instant::from_millis(120_000)).unwrap();
    assert!(outcome.is_finished(), "seed {seed}: {outcome}");
    let stats = [0, 1].map(|end| {
        let host = sim.node(end);
        let connection = host.app.handle.and_then(|handle| host.endpoint.connection(handle));
        connection.map_or(host.app.stats, transport::Connection::stats)
    });
    // With the connections go their observers, which write what they have collected.
    drop(sim);
    (recorder, stats)
}

fn named<'a>(events: &'a [Value], name: &str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["name"] == name).map(|event| &event["data"])
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.sum()
}

#[test]
fn the_file_agrees_with_the_figures() {
    let (mut lost, mut dropped) = (0, 0);
    for seed in 0..6 {
        let (recorder, stats) = transfer(seed);
        for (end, (events, stats)) in recorder.events().iter().zip(stats).enumerate() {
            let count = |name| named(events, name).count() as u64;
            let dropped_as = |triggers: &[&str]| {
                let hit = |data: &&Value| triggers.contains(&data["trigger"].as_str().unwrap());
                named(events, "quic:packet_dropped").filter(hit).count() as u64
            };
            let context = format!("seed {seed}, end {end}");
            assert_eq!(count("quic:packet_sent"), stats.packets_sent, "{context}");
            assert_eq!(count("quic:packet_received"), stats.packets_received, "{context}");
            assert_eq!(count("quic:packet_lost"), stats.packets_lost + stats.mtu_probes_lost, "{context}");
            assert_eq!(count("quic:packet_buffered"), stats.packets_buffered, "{context}");
            assert_eq!(dropped_as(&["duplicate"]), stats.packets_duplicate, "{context}");
            let bad = dropped_as(&["invalid", "decryption_failure", "rejected"]);
            assert_eq!(bad, stats.packets_undecryptable, "{context}");
            // Each update is one of both directions' keys; the first ones come from TLS.
            let updates = named(events, "quic:key_updated").filter(|d| d["key_phase"].as_u64() > Some(0)).count();
            assert_eq!(updates as u64, stats.key_updates * 2, "{context}");
            for (name, datagrams, bytes) in [
                ("quic:udp_datagrams_sent", stats.datagrams_sent, stats.bytes_sent),
                ("quic:udp_datagrams_received", stats.datagrams_received, stats.bytes_received),
            ] {
                let sizes = |d: &Value| sum(d["raw"].as_array().unwrap().iter().map(|r| r["length"].as_u64().unwrap()));
                assert_eq!(sum(named(events, name).map(|d| d["count"].as_u64().unwrap())), datagrams, "{context}");
                assert_eq!(sum(named(events, name).map(sizes)), bytes, "{context}");
            }
            let (sent, parsed) = ("quic:packet_sent", "quic:packet_received");
            let acks = |name| {
                let is_ack = |frame: &&Value| frame["frame_type"] == "ack";
                named(events, name).flat_map(|d| d["frames"].as_array().unwrap()).filter(is_ack).count() as u64
            };
            assert_eq!((acks(sent), acks(parsed)), (stats.ack_frames_sent, stats.ack_frames_received), "{context}");
            lost += stats.packets_lost;
            dropped += stats.packets_duplicate + stats.packets_undecryptable;
        }
    }
    assert!(lost > 0 && dropped > 0, "the network was not bad: {lost} lost, {dropped} dropped");
}

/// Events of repair in the file are as many as the figures say.
#[test]
fn repair_is_told() {
    let (recorder, stats) = transfer_with(1, &Profile { fec: "rlc:1/5:40".parse().unwrap(), ..Profile::default() });
    let mut recovered = 0;
    for (events, stats) in recorder.events().iter().zip(stats) {
        let count = |name| named(events, name).count() as u64;
        let frames = |name, ty| {
            let all = named(events, name).flat_map(|data| data["frames"].as_array().unwrap());
            all.filter(|frame| frame["frame_type"] == ty).count() as u64
        };
        assert_eq!(frames("quic:packet_sent", "repair"), stats.fec_repairs_sent);
        assert_eq!(frames("quic:packet_sent", "source_symbol"), stats.fec_symbols_sent);
        assert_eq!(frames("quic:packet_received", "repair"), stats.fec_repairs_received);
        assert_eq!(count("fec:symbol_recovered"), stats.fec_symbols_recovered);
        assert_eq!(count("fec:packet_recovered"), stats.fec_packets_recovered);
        let code = named(events, "fec:code_updated").next().unwrap();
        assert_eq!((&code["old"], &code["new"]), (&Value::from("off"), &Value::from("rlc:1/5:40")));
        recovered += stats.fec_symbols_recovered;
    }
    assert!(recovered > 5, "{recovered}");
}

#[test]
fn both_ends_write_the_same_events() {
    let (recorder, _) = transfer(9);
    let [client, server] = recorder.events();
    let groups = [&recorder.client, &recorder.server]
        .map(|file| schema::records(&file.0.lock().unwrap())[0]["trace"]["common_fields"]["group_id"].clone());
    assert_eq!(groups[0], groups[1]);
    // What one end received is what the other has sent: type, number, size and frames.
    let key = |d: &Value| (d["header"]["packet_type"].to_string(), d["header"]["packet_number"].as_u64().unwrap());
    for (from, to) in [(&client, &server), (&server, &client)] {
        let sent: BTreeMap<_, _> = named(from, "quic:packet_sent").map(|d| (key(d), d)).collect();
        assert_eq!(sent.len(), named(from, "quic:packet_sent").count(), "packet numbers are used once");
        for received in named(to, "quic:packet_received") {
            let sent = sent[&key(received)];
            for field in ["frames", "raw", "header"] {
                assert_eq!(sent[field], received[field], "{sent}\n{received}");
            }
        }
    }
    for (events, start) in [(&client, "client_versions"), (&server, "server_versions")] {
        assert_eq!(events[0]["name"], "quic:connection_started");
        assert_eq!(events[1]["data"][start][0], "00000001");
        let states: Vec<_> =
            named(events, "quic:connection_state_updated").map(|d| d["new"].as_str().unwrap()).collect();
        let expected = ["attempted", "handshake_started", "handshake_complete", "handshake_confirmed"];
        assert_eq!(states[..4], expected);
        let parameters: Vec<_> =
            named(events, "quic:parameters_set").filter_map(|d| d.get("initiator")?.as_str()).collect();
        assert_eq!(parameters, ["local", "remote"]);
        assert_eq!(named(events, "quic:alpn_information").next().unwrap()["chosen_alpn"]["string_value"], "test");
    }
    let close = named(&client, "quic:connection_closed").next().unwrap();
    assert_eq!(
        (&close["initiator"], &close["error_code"], &close["trigger"]),
        (&"local".into(), &7.into(), &"application".into())
    );
}

/// Two endpoints that hand each other datagrams without a network.
struct Pair {
    now: Instant,
    client: Endpoint,
    server: Endpoint,
    addresses: [SocketAddr; 2],
    handle: Handle,
    recorder: Recorder,
    events: Vec<Event>,
}

impl Pair {
    fn new(seed: u64, retry: RetryPolicy) -> Self {
        let recorder = Recorder::default();
        let profile = Profile::default();
        let mut client = client_endpoint(seed);
        let mut config = client_config(&profile);
        config.observe = recorder.factory();
        let server =
            server_endpoint(seed, ServerConfig { observe: recorder.factory(), retry, ..server_config(&profile) });
        let addresses = [client_address(0), server_address(0)];
        let handle = client.connect(Instant::ZERO, &config, addresses[1], "server.test").unwrap();
        Self { now: Instant::ZERO, client, server, addresses, handle, recorder, events: Vec::new() }
    }

    fn exchange(&mut self) {
        let mut buffer = vec![0; 64 * 1500];
        loop {
            let mut quiet = true;
            for end in [0, 1] {
                let (from, to) =
                    if end == 0 { (&mut self.client, &mut self.server) } else { (&mut self.server, &mut self.client) };
                while let Some(transmit) = from.poll_transmit(self.now, &mut buffer) {
                    quiet = false;
                    if transmit.remote == self.addresses[1 - end] {
                        let payload = BytesMut::from(&buffer[..transmit.len]);
                        deliver(self.now, to, self.addresses[end], payload, transmit.segment_size);
                    }
                }
            }
            while let Some((_, event)) = self.client.poll_event() {
                self.events.push(event);
            }
            while self.server.poll_event().is_some() {}
            if quiet {
                return;
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
            self.exchange();
        }
    }

    fn client(&mut self) -> &mut transport::Connection {
        self.client.connection_mut(self.handle).unwrap()
    }

    /// The end of everything: the observers write what they have collected.
    fn finish(self) -> (Recorder, Vec<Event>) {
        (self.recorder, self.events)
    }
}

fn deliver(now: Instant, to: &mut Endpoint, remote: SocketAddr, payload: BytesMut, segment_size: usize) {
    to.handle_datagram(now, Datagram { remote, local: None, ecn: None, received_at: now, segment_size, payload });
}

#[test]
fn a_retry_is_recorded() {
    let mut pair = Pair::new(20, RetryPolicy::Always);
    pair.exchange();
    assert!(pair.client().is_connected());
    let (recorder, _) = pair.finish();
    let [client, server] = recorder.events();
    let retry = named(&client, "quic:packet_received").next().unwrap();
    assert_eq!(retry["header"]["packet_type"], "retry");
    let initial = named(&client, "quic:packet_sent").nth(2).unwrap();
    assert_eq!(initial["header"]["token"]["raw"]["length"], retry["header"]["token"]["raw"]["length"]);
    let keys = |name| named(&client, name).filter(|d| d["key_type"] == "client_initial_secret").count();
    assert_eq!((keys("quic:key_updated"), keys("quic:key_discarded")), (2, 2));
    // The server starts to write when it starts to keep state.
    assert_eq!(named(&server, "quic:packet_received").next().unwrap()["header"]["packet_type"], "initial");
}

#[test]
fn a_version_that_nobody_speaks_is_recorded() {
    let mut pair = Pair::new(21, RetryPolicy::Never);
    let mut buffer = vec![0; 1500];
    pair.client.poll_transmit(pair.now, &mut buffer).unwrap();
    let wire::Header::Long { dcid, scid, .. } = wire::Header::parse(&buffer, 8).unwrap() else { panic!() };
    let mut packet = [0; 100];
    let mut w = wire::Writer::new(&mut packet);
    wire::encode_version_negotiation(&mut w, 0, scid.as_slice(), dcid.as_slice(), &[0x1a2a_3a4a, 2]);
    let len = w.position();
    deliver(pair.now, &mut pair.client, pair.addresses[1], BytesMut::from(&packet[..len]), len);
    let file = pair.recorder.client.clone();
    let (recorder, _) = pair.finish();
    assert!(recorder.server.0.lock().unwrap().is_empty(), "nothing authentic reached the server");
    let events = schema::check(&file.0.lock().unwrap());
    let packet = named(&events, "quic:packet_received").next().unwrap();
    assert_eq!(packet["supported_versions"], serde_json::json!(["1a2a3a4a", "00000002"]));
    assert_eq!(named(&events, "quic:connection_closed").next().unwrap()["trigger"], "version_mismatch");
}

#[test]
fn a_move_is_recorded() {
    let mut pair = Pair::new(22, RetryPolicy::Never);
    pair.exchange();
    pair.pass(100);
    pair.addresses[0].set_port(pair.addresses[0].port() + 1);
    pair.client().ping();
    pair.pass(100);
    let (recorder, _) = pair.finish();
    let [_, server] = recorder.events();
    let moves: Vec<_> = named(&server, "quic:migration_state_updated").map(|d| d["new"].as_str().unwrap()).collect();
    assert_eq!(moves, ["migration_started", "migration_complete"]);
}

#[test]
fn a_stateless_reset_is_recorded() {
    let mut pair = Pair::new(25, RetryPolicy::Never);
    pair.exchange();
    // Another server with the same secret does not know the connection. A reset is shorter than what it answers, so that
    // has to be long enough.
    pair.client().send_datagram(vec![0; 500].into()).unwrap();
    let mut buffer = vec![0; 1500];
    let transmit = pair.client.poll_transmit(pair.now, &mut buffer).unwrap();
    pair.server = server_endpoint(25, server_config(&Profile::default()));
    deliver(pair.now, &mut pair.server, pair.addresses[0], BytesMut::from(&buffer[..transmit.len]), transmit.len);
    let transmit = pair.server.poll_transmit(pair.now, &mut buffer).unwrap();
    let id = pair.recorder.client_id();
    buffer[1..=id.len()].copy_from_slice(id.as_slice());
    deliver(pair.now, &mut pair.client, pair.addresses[1], BytesMut::from(&buffer[..transmit.len]), transmit.len);
    let (recorder, _) = pair.finish();
    let [client, _] = recorder.events();
    assert_eq!(named(&client, "quic:packet_received").last().unwrap()["header"]["packet_type"], "stateless_reset");
    assert_eq!(named(&client, "quic:connection_closed").next().unwrap()["trigger"], "stateless_reset");
}

#[test]
fn a_silent_server_is_recorded() {
    let mut pair = Pair::new(23, RetryPolicy::Never);
    pair.addresses[0].set_port(1);
    pair.addresses[1].set_port(1);
    pair.pass(40_000);
    assert_eq!(pair.events, [Event::Closed(CloseReason::HandshakeTimeout)]);
    let file = pair.recorder.client.clone();
    drop(pair);
    let events = schema::check(&file.0.lock().unwrap());
    let probes = named(&events, "quic:packet_sent").filter(|d| d["trigger"] == "pto_probe").count();
    assert!(probes >= 3, "{probes} probes");
    let expired: Vec<_> = named(&events, "quic:timer_updated").map(|d| d["timer_type"].as_str().unwrap()).collect();
    assert_eq!(expired.last(), Some(&"handshake_timeout"));
    assert!(named(&events, "quic:recovery_metrics_updated").any(|d| d["pto_count"] == 3));
    assert!(named(&events, "quic:recovery_metrics_updated").all(|d| d.get("smoothed_rtt").is_none()));
}

#[test]
fn every_event_happens() {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for seed in 0..4 {
        seen.extend(transfer(seed).0.seen.lock().unwrap().iter());
    }
    let repaired = Profile { fec: "rlc:1/5:40".parse().unwrap(), ..Profile::default() };
    seen.extend(transfer_with(1, &repaired).0.seen.lock().unwrap().iter());
    let mut pair = Pair::new(24, RetryPolicy::Always);
    pair.exchange();
    pair.pass(100);
    pair.addresses[0].set_port(pair.addresses[0].port() + 1);
    pair.client().ping();
    pair.pass(10);
    seen.extend(pair.finish().0.seen.lock().unwrap().iter());
    let missing: Vec<_> = EVENTS.iter().filter(|event| !seen.contains(*event)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
