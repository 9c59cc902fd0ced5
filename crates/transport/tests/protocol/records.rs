//! Records of sent packets while clients move: data in flight on a path that is left is never acknowledged, and the records of later
//! packets wait for its fate.
//!
//! ```text
//! client ─┬─ 10.1.0.0 ── first network,  slow ──┬─ server 10.2.0.0
//!         └─ 10.3.0.0 ── second network, fast ──┘
//! ```

use crate::support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use bytes::Bytes;
use netem::LinkConfig;
use sim::{Access, Network, Simulation};
use support::{App, Host, client_config, client_endpoint, server_config, server_endpoint};
use transport::{CloseReason, Connection, Endpoint, Event, Handle, Profile};
use units::{Duration, Instant, Seed};

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 0);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 0), 443);

/// Sender and receiver of small datagrams, each in a packet of its own.
#[derive(Default)]
struct Feed {
    handle: Option<Handle>,
    connected: bool,
    received: u64,
    migrated: u64,
    closed: Option<CloseReason>,
}

impl Feed {
    fn connection<'a>(&self, endpoint: &'a mut Endpoint) -> Option<&'a mut Connection> {
        endpoint.connection_mut(self.handle?).filter(|connection| !connection.is_closed())
    }
}

impl App for Feed {
    fn act(&mut self, _now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        if let Some(accepted) = endpoint.poll_accept() {
            self.handle = Some(accepted);
        }
        for (_, event) in events {
            match event {
                Event::Connected => self.connected = true,
                Event::Migrated => self.migrated += 1,
                Event::Closed(reason) => self.closed = Some(reason),
                _ => {}
            }
        }
        if let Some(connection) = self.connection(endpoint) {
            while connection.recv_datagram().is_some() {
                self.received += 1;
            }
        }
    }

    fn finished(&self) -> bool {
        false
    }
}

/// Change of the client to another address.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Another address by a NAT, of which the endpoint knows nothing.
    Nat(SocketAddr),
    /// Another socket, of which the endpoint is told.
    Socket(SocketAddr),
}

type Sim = Simulation<Host<Feed>>;

fn simulation(delays: [Duration; 2]) -> Sim {
    let seed = Seed::from_number(1);
    let mut network = Network::new(seed);
    let zones = [network.zone(), network.zone(), network.zone()];
    for (zone, delay) in zones.into_iter().zip(delays) {
        let link = LinkConfig { delay, ..LinkConfig::default() };
        network.connect(zone, zones[2], "up", &link).unwrap();
        network.connect(zones[2], zone, "down", &link).unwrap();
    }
    let mut endpoint = client_endpoint(1);
    let profile = Profile::default();
    let handle = endpoint.connect(Instant::ZERO, &client_config(&profile), SERVER.into(), "server.test").unwrap();
    let app = Feed { handle: Some(handle), ..Feed::default() };
    let client = Host::new(SocketAddrV4::new(FIRST, 50_000).into(), endpoint, app);
    let server = Host::new(SERVER.into(), server_endpoint(1, server_config(&profile)), Feed::default());
    let mut sim = Simulation::new(network);
    let (client, server) = (sim.add("client", client, Instant::ZERO), sim.add("server", server, Instant::ZERO));
    for (node, ip, zone) in [(client, FIRST, zones[0]), (client, SECOND, zones[1]), (server, *SERVER.ip(), zones[2])] {
        sim.attach(node, IpAddr::V4(ip), zone, Access::default()).unwrap();
    }
    sim
}

/// Datagrams of both ends, and moves of the client.
struct Course {
    /// One-way delays of the networks.
    delays: [Duration; 2],
    /// Datagrams of each end in a millisecond.
    rate: usize,
    /// Time between moves, in milliseconds.
    every: u64,
    millis: u64,
    moves: Vec<Move>,
}

/// Outcome of a course; the client is first.
struct Outcome {
    sim: Sim,
    /// Most bytes of records.
    most: [usize; 2],
}

const SETTLED: u64 = 3_000;

impl Course {
    fn run(&self) -> Outcome {
        let mut sim = simulation(self.delays);
        let _ = sim.run_until(Instant::from_millis(SETTLED)).unwrap();
        let mut most = [0; 2];
        let mut moves = self.moves.iter().cycle();
        for milli in 1..=self.millis {
            let now = Instant::from_millis(SETTLED + milli);
            if milli % self.every == 0 {
                let next = *moves.next().unwrap();
                sim.with_node(0, |_, host| match next {
                    Move::Nat(to) => host.moves.push((now, to)),
                    Move::Socket(to) => host.rebinds.push((now, to)),
                })
                .unwrap();
            }
            for (node, most) in most.iter_mut().enumerate() {
                let records = sim.with_node(node, |_, host| {
                    let Some(connection) = host.app.connection(&mut host.endpoint) else { return 0 };
                    for _ in 0..self.rate {
                        // A full queue drops the oldest one.
                        let _ = connection.send_datagram(Bytes::from_static(&[7; 20]));
                    }
                    connection.records_memory()
                });
                *most = records.unwrap().max(*most);
            }
            let _ = sim.run_until(now).unwrap();
        }
        Outcome { sim, most }
    }
}

fn first(port: u16) -> SocketAddr {
    SocketAddrV4::new(FIRST, port).into()
}

fn second(port: u16) -> SocketAddr {
    SocketAddrV4::new(SECOND, port).into()
}

const MS: Duration = Duration::from_millis(1);

/// A minute of small packets, of which all records together would be 5 MB.
#[test]
fn records_do_not_outlive_the_paths_of_their_packets() {
    let ports = || (1..=5).map(|port| Move::Nat(first(port)));
    let back_and_forth = || vec![Move::Nat(second(1)), Move::Nat(first(50_000))];
    let sockets = (1..=6).map(|port| Move::Socket(if port % 2 == 1 { second(port) } else { first(port) }));
    for (name, every, moves) in [
        ("ports of a NAT", 500, ports().collect::<Vec<_>>()),
        ("a path in each round trip", 50, ports().collect()),
        ("back and forth", 500, back_and_forth()),
        ("back before the path is validated", 30, back_and_forth()),
        ("sockets", 500, sockets.collect()),
    ] {
        let course = Course { delays: [20 * MS, 20 * MS], rate: 1, every, millis: 60_000, moves };
        let Outcome { sim, most } = course.run();
        for (node, most) in most.into_iter().enumerate() {
            let app = &sim.node(node).app;
            assert_eq!(app.closed, None, "{name}, {node}");
            assert!(app.received > 100, "{name}, {node}: {}", app.received);
            assert!(most < 64 << 10, "{name}, {node}: {most} bytes of records");
        }
    }
}

/// The probe timeout of the slow path is long, and on the fast one many packets are acknowledged meanwhile.
#[test]
fn records_of_a_fast_path_do_not_wait_for_a_slow_one() {
    let nat = vec![Move::Nat(second(1)), Move::Nat(first(50_000))];
    let sockets = vec![Move::Socket(second(1)), Move::Socket(first(2))];
    for moves in [nat, sockets] {
        let course = Course { delays: [300 * MS, MS], rate: 60, every: 2_000, millis: 8_000, moves };
        let Outcome { sim, .. } = course.run();
        for node in 0..2 {
            let app = &sim.node(node).app;
            assert_eq!(app.closed, None, "{:?}, {node}", course.moves);
            assert!(app.received > 20_000, "{:?}, {node}: {}", course.moves, app.received);
        }
        assert!(sim.node(1).app.migrated >= 3);
    }
}
