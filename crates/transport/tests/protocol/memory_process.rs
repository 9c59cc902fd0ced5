//! The memory of all connections of a process: new ones are refused when it is scarce, and when it is exhausted the costliest end.

use crate::support;

use std::net::SocketAddr;

use bytes::Bytes;
use support::{
    client_config, client_endpoint,
    direct::{events, give, sent},
    server_config,
};
use transport::{
    CloseReason, Code, Endpoint, EndpointConfig, Event, Handle, Profile,
    memory::ProcessBudget,
    streams::{Order, StreamsConfig},
};
use units::{Duration, Instant, Seed};
use wire::{Dir, StreamId};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 200], 443);
const MIB: u64 = 1 << 20;

struct Client {
    endpoint: Endpoint,
    handle: Handle,
    address: SocketAddr,
    /// The server's name for the connection.
    served: Option<Handle>,
    closed: Option<CloseReason>,
}

/// Clients and their server, between which nothing is lost.
struct Net {
    now: Instant,
    process: ProcessBudget,
    server: Endpoint,
    clients: Vec<Client>,
    /// Close reasons of connections at the server.
    ends: Vec<(Handle, CloseReason)>,
}

impl Net {
    fn new(limit: u64) -> Self {
        Self::with(limit, &Profile::default())
    }

    fn with(limit: u64, profile: &Profile) -> Self {
        let process = ProcessBudget::new(limit);
        let config = EndpointConfig {
            memory: process.clone(),
            ..EndpointConfig::from_seed(Seed::from_number(1).child("server", 0))
        };
        let server = Endpoint::new(config, Some(std::sync::Arc::new(server_config(profile))));
        Self { now: Instant::ZERO, process, server, clients: Vec::new(), ends: Vec::new() }
    }

    /// Another client, after it has connected or failed to.
    fn join(&mut self) -> usize {
        let number = self.clients.len();
        let mut endpoint = client_endpoint(number as u64 + 1);
        let config = client_config(&Profile::default());
        let handle = endpoint.connect(self.now, &config, SERVER.into(), "server.test").unwrap();
        let address = ([192, 0, 2, 1], 1000 + number as u16).into();
        self.clients.push(Client { endpoint, handle, address, served: None, closed: None });
        self.pass(500);
        number
    }

    fn exchange(&mut self) {
        loop {
            let mut silent = true;
            for client in &mut self.clients {
                for datagram in sent(&mut client.endpoint, self.now) {
                    silent = false;
                    give(&mut self.server, self.now, client.address, &datagram.payload);
                }
                for (_, event) in events(&mut client.endpoint) {
                    if let Event::Closed(reason) = event {
                        client.closed = Some(reason);
                    }
                }
                while let Some(handle) = self.server.poll_accept() {
                    client.served = Some(handle);
                }
            }
            for datagram in sent(&mut self.server, self.now) {
                silent = false;
                if let Some(client) = self.clients.iter_mut().find(|client| client.address == datagram.to) {
                    give(&mut client.endpoint, self.now, SERVER.into(), &datagram.payload);
                }
            }
            for (handle, event) in events(&mut self.server) {
                if let Event::Closed(reason) = event {
                    self.ends.push((handle, reason));
                }
            }
            if silent {
                return;
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            self.exchange();
            let all = self.clients.iter().map(|client| &client.endpoint).chain([&self.server]);
            let next = all.filter_map(Endpoint::poll_timeout).map(|(at, ..)| at).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            // What takes no time at all has no round trip.
            self.now = at.max(self.now + Duration::from_micros(100)).min(end);
            self.clients.iter_mut().for_each(|client| client.endpoint.handle_timeout(self.now));
            self.server.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// The client sends so many bytes on a stream of its own, which nobody reads.
    fn upload(&mut self, client: usize, bytes: usize) {
        let Client { endpoint, handle, .. } = &mut self.clients[client];
        let Some(connection) = endpoint.connection_mut(*handle) else { return };
        let Some(id) = connection.open(Dir::Uni) else { return };
        let _ = connection.write(id, &mut Bytes::from(vec![7; bytes]));
        self.pass(500);
    }

    fn held(&self, client: usize) -> u64 {
        let served = self.clients[client].served.and_then(|served| self.server.connection(served));
        served.map_or(0, |connection| connection.memory_budget().held())
    }

    fn is_open(&self, client: usize) -> bool {
        let Client { endpoint, handle, .. } = &self.clients[client];
        endpoint.connection(*handle).is_some_and(|connection| connection.is_connected())
    }
}

#[test]
fn new_connections_are_refused_while_memory_is_scarce() {
    let mut net = Net::new(MIB);
    let first = net.join();
    assert!(net.is_open(first));
    for _ in 0..4 {
        net.upload(first, 120_000);
    }
    let filler = net.process.charge(MIB * 3 / 4 - net.process.held() + 1);
    assert!(net.process.is_scarce() && !net.process.is_exhausted());
    let second = net.join();
    let refused = |reason: &Option<CloseReason>| matches!(reason, Some(CloseReason::PeerClosed { error }) if error.code == Code::CONNECTION_REFUSED);
    assert!(refused(&net.clients[second].closed), "{:?}", net.clients[second].closed);
    // Its first flight is more than a datagram, and each is an attempt.
    assert!(net.server.stats().refused_for_memory > 0 && net.server.stats().refused == 0);
    assert!(net.is_open(first), "what is there stays");
    drop(filler);
    let third = net.join();
    assert!(net.is_open(third));
}

#[test]
fn the_costliest_end_when_memory_is_exhausted_and_nobody_else() {
    let mut net = Net::new(MIB);
    let modest: Vec<usize> = (0..6).map(|_| net.join()).collect();
    let greedy: Vec<usize> = (0..2).map(|_| net.join()).collect();
    modest.iter().for_each(|&client| net.upload(client, 2_000));
    for _ in 0..4 {
        net.upload(greedy[0], 100_000);
    }
    assert_eq!(net.server.stats().closed_for_process, 0);
    assert!(net.held(greedy[0]) > 400_000 && net.held(modest[0]) < 20_000);
    for _ in 0..6 {
        net.upload(greedy[1], 80_000);
    }
    assert_eq!(net.server.stats().closed_for_process, 1);
    assert!(!net.process.is_exhausted(), "{} bytes are held", net.process.held());
    assert!(modest.iter().all(|&client| net.is_open(client)));
    assert_eq!(greedy.iter().filter(|&&client| net.is_open(client)).count(), 1);
    let (_, reason) = &net.ends[0];
    assert_eq!(*reason, CloseReason::Memory { process: true });
    let told = net.clients.iter().find_map(|client| client.closed.clone());
    let Some(CloseReason::PeerClosed { error }) = told else { panic!("{told:?}") };
    assert!(error.code == Code::INTERNAL_ERROR && error.reason.contains("memory"), "{error}");
}

/// Attackers that all hold the same: there is no costliest, and yet the process stays within its memory.
#[test]
fn equal_shares_are_no_way_out() {
    let mut net = Net::new(2 * MIB);
    let all: Vec<usize> = (0..12).map(|_| net.join()).collect();
    assert!(all.iter().all(|&client| net.is_open(client)));
    for round in 0..5 {
        for &client in &all {
            net.upload(client, 60_000);
            assert!(net.process.held() < 2 * MIB + 128 * 1024, "round {round}: {} bytes", net.process.held());
        }
    }
    let open = all.iter().filter(|&&client| net.is_open(client)).count();
    assert!((2..12).contains(&open), "{open} are left");
    assert_eq!(net.server.stats().closed_for_process, 12 - open as u64);
}

/// Layers above hold memory of a connection for a while after its end. That ends no other connection.
#[test]
fn memory_on_its_way_back_counts() {
    let mut net = Net::new(MIB);
    let all: Vec<usize> = (0..4).map(|_| net.join()).collect();
    let served = net.clients[all[0]].served.unwrap();
    let budget = net.server.connection(served).unwrap().memory_budget().clone();
    let above = budget.charge(900_000).expect("it fits");
    for _ in 0..3 {
        net.upload(all[1], 50_000);
    }
    assert!(net.process.is_exhausted() && !net.is_open(all[0]));
    for _ in 0..3 {
        net.upload(all[2], 10_000);
    }
    assert_eq!(net.server.stats().closed_for_process, 1);
    drop(above);
    assert!(!net.process.is_scarce() && net.is_open(all[1]) && net.is_open(all[2]));
}

#[test]
fn windows_do_not_grow_while_memory_is_scarce() {
    let grown = |is_scarce: bool| {
        let mut net = Net::new(64 * MIB);
        let client = net.join();
        let _filler = net.process.charge(if is_scarce { 50 * MIB } else { 0 });
        assert_eq!(net.process.is_scarce(), is_scarce);
        let (handle, served) = (net.clients[client].handle, net.clients[client].served.unwrap());
        let connection = net.clients[client].endpoint.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Uni).unwrap();
        // Each way takes 5 ms.
        for _ in 0..100 {
            if let Some(connection) = net.clients[client].endpoint.connection_mut(handle) {
                let _ = connection.write(id, &mut Bytes::from(vec![7; 200_000]));
            }
            let up = sent(&mut net.clients[client].endpoint, net.now);
            net.now += Duration::from_millis(5);
            up.iter().for_each(|d| give(&mut net.server, net.now, net.clients[client].address, &d.payload));
            let connection = net.server.connection_mut(served).unwrap();
            while connection.accept(Dir::Uni).is_some() {}
            while let Ok(Some(_)) = connection.read(StreamId(2), usize::MAX, Order::Ordered) {}
            net.server.handle_timeout(net.now);
            let down = sent(&mut net.server, net.now);
            net.now += Duration::from_millis(5);
            down.iter().for_each(|d| give(&mut net.clients[client].endpoint, net.now, SERVER.into(), &d.payload));
            net.clients[client].endpoint.handle_timeout(net.now);
        }
        net.server.connection(served).unwrap().memory_budget().limit()
    };
    assert_eq!(grown(true), MIB);
    assert!(grown(false) > MIB);
}

/// Settings may permit thousands of streams: these are no attack, neither to the end that opens them nor to the other.
#[test]
fn streams_that_are_permitted_do_not_exceed_a_budget() {
    let streams = StreamsConfig { max_streams_bidi: 6_000, ..StreamsConfig::default() };
    let mut net = Net::with(u64::MAX, &Profile { streams, ..Profile::default() });
    let client = net.join();
    let Client { endpoint, handle, .. } = &mut net.clients[client];
    let connection = endpoint.connection_mut(*handle).unwrap();
    for _ in 0..6_000 {
        let id = connection.open(Dir::Bi).expect("it is permitted");
        connection.write(id, &mut Bytes::from_static(b"x")).unwrap();
    }
    net.pass(5_000);
    assert!(net.is_open(client), "{:?}", net.clients[client].closed);
    let served = net.server.connection(net.clients[client].served.unwrap()).unwrap();
    let budget = served.memory_budget();
    assert!(budget.held() > 6_000 * 500 && !budget.is_exceeded(), "{budget:?}");
}
