//! Whole connections over simulated paths: every byte arrives, on good networks and bad ones.

use crate::support;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use netem::{LinkConfig, Loss, Queue};
use sim::{Simulation, client_address, point_to_point, server_address};
use support::{App, CLOCK, Host, client_endpoint, identity, server_config, server_endpoint};
use transport::{
    ClientConfig, CloseReason, Endpoint, Event, Handle, Profile,
    streams::{Order, ReadError, StreamEvent, WriteError},
    tls::rustls_backend::RustlsClient,
};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{Dir, StreamId};

/// The byte at an offset of a stream: every one can be checked without keeping what was sent.
fn pattern(id: StreamId, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(id.0 * 131) >> 56) as u8
}

fn chunk(id: StreamId, offset: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| pattern(id, offset + i)).collect()
}

/// A stream being written: how far, and what is left of the chunk at hand.
struct Writing {
    written: u64,
    total: u64,
    rest: Bytes,
    done: bool,
}

/// Sends `streams` streams of `size` bytes, and checks what the peer sends on its own.
struct Peer {
    client: bool,
    dir: Dir,
    streams: usize,
    size: u64,
    opened: usize,
    writing: BTreeMap<StreamId, Writing>,
    read: BTreeMap<StreamId, u64>,
    complete: std::collections::BTreeSet<StreamId>,
    finished: usize,
    handle: Option<Handle>,
    closed: Option<CloseReason>,
    update_keys: bool,
}

impl Peer {
    fn new(client: bool, dir: Dir, streams: usize, size: u64) -> Self {
        Self {
            client,
            dir,
            streams,
            size,
            opened: 0,
            writing: BTreeMap::new(),
            read: BTreeMap::new(),
            complete: std::collections::BTreeSet::new(),
            finished: 0,
            handle: None,
            closed: None,
            update_keys: false,
        }
    }

    fn write(&mut self, endpoint: &mut Endpoint) {
        let Some(handle) = self.handle else { return };
        let Some(connection) = endpoint.connection_mut(handle) else { return };
        if !connection.is_connected() {
            return;
        }
        if self.client {
            while self.opened < self.streams
                && let Some(id) = connection.open(self.dir)
            {
                self.opened += 1;
                let writing = Writing { written: 0, total: self.size, rest: Bytes::new(), done: false };
                self.writing.insert(id, writing);
            }
        }
        for (&id, w) in &mut self.writing {
            while !w.done {
                if w.rest.is_empty() {
                    if w.written == w.total {
                        connection.finish(id).unwrap();
                        w.done = true;
                        break;
                    }
                    w.rest = chunk(id, w.written, (w.total - w.written).min(16_384) as usize);
                }
                match connection.write(id, &mut w.rest) {
                    Ok(n) => w.written += n as u64,
                    Err(WriteError::Blocked) => break,
                    Err(e) => panic!("{id:?}: {e}"),
                }
            }
        }
        self.writing.retain(|_, w| !w.done);
    }

    fn read(&mut self, endpoint: &mut Endpoint, id: StreamId) {
        if self.complete.contains(&id) {
            return;
        }
        let connection = endpoint.connection_mut(self.handle.unwrap()).unwrap();
        loop {
            match connection.read(id, usize::MAX, Order::Ordered) {
                Ok(Some(chunk)) => {
                    let at = self.read.entry(id).or_default();
                    assert_eq!(*at, chunk.offset);
                    for (i, &byte) in chunk.data.iter().enumerate() {
                        assert_eq!(byte, pattern(id, chunk.offset + i as u64), "{id:?} at {}", chunk.offset + i as u64);
                    }
                    *at += chunk.data.len() as u64;
                }
                Ok(None) => {
                    self.complete.insert(id);
                    return;
                }
                Err(ReadError::Blocked) => return,
                Err(e) => panic!("{id:?}: {e}"),
            }
        }
    }
}

impl App for Peer {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        while let Some(handle) = endpoint.poll_accept() {
            assert!(self.handle.is_none(), "one connection");
            self.handle = Some(handle);
        }
        for (_, event) in events {
            match event {
                Event::Connected if self.update_keys => {
                    endpoint.connection_mut(self.handle.unwrap()).unwrap().update_keys();
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    let mut accepted = Vec::new();
                    while let Some(id) = endpoint.connection_mut(self.handle.unwrap()).unwrap().accept(dir) {
                        accepted.push(id);
                    }
                    for id in accepted {
                        if dir == Dir::Bi {
                            let writing = Writing { written: 0, total: self.size, rest: Bytes::new(), done: false };
                            self.writing.insert(id, writing);
                        }
                        self.read(endpoint, id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read(endpoint, id),
                Event::Stream(StreamEvent::Finished { .. }) => self.finished += 1,
                Event::Closed(reason) => self.closed = Some(reason),
                _ => {}
            }
        }
        self.write(endpoint);
        let done = self.complete.len() == self.streams && self.finished == self.streams;
        if self.client && done && self.closed.is_none() {
            endpoint.connection_mut(self.handle.unwrap()).unwrap().close(now, 7, b"done");
        }
    }

    fn finished(&self) -> bool {
        self.closed.is_some()
    }
}

fn link(rate: u64, delay: u64, loss: Loss) -> LinkConfig {
    LinkConfig {
        rate: Some(Bitrate::from_mbps(rate)),
        queue: Queue::DropTail { bytes: Bitrate::from_mbps(rate).in_time(Duration::from_millis(delay * 2)) },
        delay: Duration::from_millis(delay),
        loss,
        ..LinkConfig::default()
    }
}

fn simulation(seed: u64, link: &LinkConfig, profile: &Profile, streams: usize, size: u64) -> Simulation<Host<Peer>> {
    let mut client = client_endpoint(seed);
    let server = server_endpoint(seed, server_config(profile));
    // With tickets of its own: those that other tests leave in the shared configuration would make this a resumption.
    let tls =
        RustlsClient::builder().roots([identity().1.clone()]).alpn("test").clock(Arc::new(CLOCK)).build().unwrap();
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile.clone()));
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let mut app = Peer::new(true, Dir::Bi, streams, size);
    app.handle = Some(handle);
    point_to_point(
        Seed::from_number(seed),
        link,
        link,
        Host::new(client_address(0), client, app),
        Host::new(server_address(0), server, Peer::new(false, Dir::Bi, streams, size)),
    )
    .unwrap()
}

fn run(seed: u64, link: &LinkConfig, streams: usize, size: u64, limit: u64) -> Simulation<Host<Peer>> {
    let mut sim = simulation(seed, link, &Profile::default(), streams, size);
    let outcome = sim.run_until(Instant::from_millis(limit)).unwrap();
    assert!(outcome.is_finished(), "seed {seed}: {outcome}");
    for host in sim.nodes() {
        let closed = host.app.closed.as_ref().unwrap();
        assert_eq!(host.app.complete.len(), streams, "seed {seed}: client {}: {closed}", host.app.client);
        match closed {
            CloseReason::ThisApplication { code: 7 } if host.app.client => {}
            CloseReason::PeerApplication { code: 7, reason } if !host.app.client && reason == "done" => {}
            // CONNECTION_CLOSE was lost, and is not repeated to a peer that sends nothing.
            CloseReason::IdleTimeout if !host.app.client && !matches!(link.loss, Loss::None) => {}
            other => panic!("seed {seed}: {other}"),
        }
    }
    sim
}

#[test]
fn one_stream_over_a_clean_path() {
    run(1, &link(20, 10, Loss::None), 1, 1_000_000, 5_000);
}

#[test]
fn many_streams_over_a_clean_path() {
    run(2, &link(20, 10, Loss::None), 300, 5_000, 10_000);
}

#[test]
fn every_byte_arrives_over_lossy_paths() {
    for seed in 0..40 {
        let p = Probability::new((seed % 5) as f64 * 0.05).unwrap();
        run(seed, &link(10, 25, Loss::Iid { p }), 5, 40_000, 60_000);
    }
}

#[test]
fn losses_are_seen_by_the_congestion_controller() {
    let path = link(10, 25, Loss::Iid { p: Probability::new(0.02).unwrap() });
    let mut sim = simulation(1, &path, &Profile::default(), 5, 200_000);
    let _ = sim.run_until(Instant::from_millis(1_500)).unwrap();
    let host = sim.node(0);
    let stats = host.endpoint.connection(host.app.handle.unwrap()).unwrap().stats();
    assert!(stats.packets_lost > 0, "{stats:?}");
    assert!((1..=stats.packets_lost).contains(&stats.congestion_events), "{stats:?}");
}

#[test]
fn empty_streams_are_streams() {
    run(3, &link(20, 10, Loss::None), 20, 0, 5_000);
}

#[test]
fn the_same_seed_gives_the_same_packets() {
    let path = link(10, 25, Loss::Iid { p: Probability::new(0.05).unwrap() });
    let hash = |seed| run(seed, &path, 5, 100_000, 60_000).trace().hash();
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn keys_can_be_updated_while_data_flows() {
    for seed in 0..10 {
        let path = link(10, 25, Loss::Iid { p: Probability::new(0.02).unwrap() });
        let mut sim = simulation(seed, &path, &Profile::default(), 5, 300_000);
        sim.with_node(0, |_, host| host.app.update_keys = true).unwrap();
        let outcome = sim.run_until(Instant::from_millis(60_000)).unwrap();
        assert!(outcome.is_finished(), "seed {seed}: {outcome}");
        for host in sim.nodes() {
            assert_eq!(host.app.complete.len(), 5, "seed {seed}");
        }
    }
}
