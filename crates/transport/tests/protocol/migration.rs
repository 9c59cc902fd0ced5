//! A host with two networks: NATs that rebind, clients that move while data flows, servers that are better reached elsewhere.
//!
//! ```text
//! client ─┬─ 10.1.0.0 ── first network  ──┬─ server 10.2.0.0
//!         └─ 10.3.0.0 ── second network ──┴─ server 10.2.0.1
//! ```

use crate::support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use netem::{LinkConfig, Loss};
use rand_core::RngCore;
use sim::{Access, Network, Simulation};
use support::{
    Host, client_config, client_endpoint,
    direct::sent,
    exchange::Exchange,
    puppet::{Puppet, bytes},
    server_config, server_endpoint,
};
use transport::{
    CloseReason, Event, MigrateError, PreferredAddresses, Profile, ServerConfig,
    tls::{Level, testing::Toy},
};
use units::{Bitrate, DataSize, Duration, Instant, Probability, RandomStream, Seed};
use wire::Frame;

type Sim = Simulation<Host<Exchange>>;

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const BEHIND_NAT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 0);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 0), 443);
const PREFERRED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 1), 443);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn client(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddrV4::new(ip, port).into()
}

fn link(mbps: u64, delay: Duration, loss: f64) -> LinkConfig {
    let rate = Bitrate::from_mbps(mbps);
    LinkConfig {
        rate: Some(rate),
        // One bandwidth-delay product of the round trip, as buffers are sized.
        queue: netem::Queue::DropTail { bytes: DataSize::from_bytes(rate.in_time(delay * 2).as_bytes().max(30_000)) },
        delay,
        loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
        ..LinkConfig::default()
    }
}

/// A connection over the first network; `request` and `answer` are bytes.
struct Setup {
    seed: u64,
    links: [LinkConfig; 2],
    profile: Profile,
    request: usize,
    answer: usize,
    server: fn(ServerConfig) -> ServerConfig,
}

impl Setup {
    fn new(seed: u64, request: usize, answer: usize) -> Self {
        let links = [link(10, Duration::from_millis(20), 0.0), link(10, Duration::from_millis(30), 0.0)];
        Self { seed, links, profile: Profile::default(), request, answer, server: |config| config }
    }

    fn build(&self) -> Sim {
        let seed = Seed::from_number(self.seed);
        let mut network = Network::new(seed);
        let zones = [network.zone(), network.zone(), network.zone()];
        for (zone, link) in [(zones[0], &self.links[0]), (zones[1], &self.links[1])] {
            network.connect(zone, zones[2], "up", link).unwrap();
            network.connect(zones[2], zone, "down", link).unwrap();
        }
        let mut endpoint = client_endpoint(self.seed);
        let config = client_config(&self.profile);
        let handle = endpoint.connect(Instant::ZERO, &config, SERVER.into(), "server.test").unwrap();
        let mut asking = Exchange::client(handle, self.request, self.answer);
        asking.close_when_answered = true;
        let asking = Host::new(client(FIRST, 50_000), endpoint, asking);
        let config = (self.server)(server_config(&self.profile));
        let mut server = Host::new(SERVER.into(), server_endpoint(self.seed, config), Exchange::server(self.answer));
        server.also = Some(PREFERRED.into());
        let mut sim = Simulation::new(network);
        let (asking, server) = (sim.add("client", asking, Instant::ZERO), sim.add("server", server, Instant::ZERO));
        let attachments = [
            (asking, FIRST, zones[0]),
            (asking, BEHIND_NAT, zones[0]),
            (asking, SECOND, zones[1]),
            (server, *SERVER.ip(), zones[2]),
            (server, *PREFERRED.ip(), zones[2]),
        ];
        for (node, ip, zone) in attachments {
            sim.attach(node, IpAddr::V4(ip), zone, Access::default()).unwrap();
        }
        sim
    }
}

/// Packets that the two networks delivered, up and down.
fn passed(sim: &Sim) -> [u64; 4] {
    let mut all = sim.network().links().map(|link| link.counters().delivered.packets);
    std::array::from_fn(|_| all.next().unwrap())
}

fn rebind(sim: &mut Sim, when: Instant, to: SocketAddr) {
    sim.with_node(0, |_, host| host.rebinds.push((when, to))).unwrap();
}

fn nat(sim: &mut Sim, when: Instant, to: SocketAddr) {
    sim.with_node(0, |_, host| host.moves.push((when, to))).unwrap();
}

// RFC 9000 §9.3 MUST-1
#[test]
fn a_client_with_another_socket_goes_on_from_there() {
    for (request, answer) in [(100, 1_500_000), (1_500_000, 100)] {
        for to in [client(FIRST, 50_001), client(SECOND, 50_000)] {
            let mut sim = Setup::new(1, request, answer).build();
            rebind(&mut sim, at(500), to);
            let outcome = sim.run_until(at(10_000)).unwrap();
            assert!(outcome.is_finished(), "{request} {answer} {to}: {outcome}");
            assert!(sim.node(0).app.answered.is_some(), "{:?}", sim.node(0).app.closed);
            assert_eq!((sim.node(0).app.migrated, sim.node(1).app.migrated), (1, 1));
            if to.ip() == SECOND {
                let second: u64 = passed(&sim)[2..].iter().sum();
                assert!(second > 300, "{:?}", passed(&sim));
            }
        }
    }
}

/// The path is validated before anything but probes goes there; nothing is lost on the way.
#[test]
fn a_client_changes_over_to_another_network_without_a_gap() {
    for (request, answer) in [(100, 1_500_000), (1_500_000, 100)] {
        let mut sim = Setup::new(2, request, answer).build();
        sim.with_node(0, |_, host| host.also = Some(client(SECOND, 50_000))).unwrap();
        let _ = sim.run_until(at(500)).unwrap();
        let handle = sim.node(0).app.handle.unwrap();
        sim.with_node(0, |now, host| {
            let connection = host.endpoint.connection_mut(handle).unwrap();
            connection.migrate(now, IpAddr::V4(SECOND)).unwrap();
        })
        .unwrap();
        let _ = sim.run_until(at(700)).unwrap();
        assert_eq!((sim.node(0).app.migrated, sim.node(1).app.migrated), (1, 1));
        let outcome = sim.run_until(at(10_000)).unwrap();
        assert!(outcome.is_finished(), "{outcome}");
        let gap = longest_gap(&sim, usize::from(request > answer), at(500));
        assert!(gap < Duration::from_millis(150), "{gap:?}");
        assert!(passed(&sim)[2..].iter().sum::<u64>() > 300, "{:?}", passed(&sim));
    }
}

// RFC 9000 §8.2.4 SHOULD-1
#[test]
fn a_network_that_leads_nowhere_is_not_moved_to() {
    let mut setup = Setup::new(3, 100, 3_000_000);
    setup.links[1].loss = Loss::Iid { p: Probability::new(1.0).unwrap() };
    let mut sim = setup.build();
    sim.with_node(0, |_, host| host.also = Some(client(SECOND, 50_000))).unwrap();
    let _ = sim.run_until(at(300)).unwrap();
    let handle = sim.node(0).app.handle.unwrap();
    sim.with_node(0, |now, host| {
        host.endpoint.connection_mut(handle).unwrap().migrate(now, IpAddr::V4(SECOND)).unwrap();
    })
    .unwrap();
    sim.with_node(0, |_, host| host.app.close_when_answered = false).unwrap();
    let outcome = sim.run_until(at(10_000)).unwrap();
    assert!(outcome.is_finished(), "{outcome}");
    let _ = sim.run_until(at(15_000)).unwrap();
    assert_eq!((sim.node(0).app.migrated, sim.node(1).app.migrated), (0, 0));
    let stats = sim.node(0).endpoint.connection(handle).unwrap().stats();
    assert_eq!(stats.path_changes, 0);
}

// RFC 9000 §9.6: both ends send from and to the preferred address once it is validated.
// RFC 9000 §9.6.1 SHOULD-1, SHOULD-2; RFC 9000 §9.6.2 MUST-1, MUST-3
#[test]
fn clients_go_where_the_server_prefers() {
    for (request, answer) in [(100, 1_000_000), (1_000_000, 100)] {
        let mut setup = Setup::new(4, request, answer);
        setup.server = |config| ServerConfig {
            preferred_address: PreferredAddresses { ipv4: Some(PREFERRED), ipv6: None },
            ..config
        };
        let mut sim = setup.build();
        let _ = sim.run_until(at(400)).unwrap();
        let handle = sim.node(0).app.handle.unwrap();
        let client = sim.node(0).endpoint.connection(handle).unwrap();
        assert_eq!(client.remote(), PREFERRED.into());
        assert_eq!((sim.node(0).app.migrated, sim.node(1).app.migrated), (1, 1));
        let outcome = sim.run_until(at(10_000)).unwrap();
        assert!(outcome.is_finished(), "{outcome}");
    }
}

// RFC 9000 §9.6.1 MUST-1; RFC 9000 §9.6.2 MUST-1; RFC 9000 §21.5.3 MUST NOT-1
#[test]
fn a_preferred_address_that_nobody_reaches_is_not_used() {
    let mut setup = Setup::new(5, 100, 300_000);
    const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 9, 9), 443);
    setup.server =
        |config| ServerConfig { preferred_address: PreferredAddresses { ipv4: Some(NOBODY), ipv6: None }, ..config };
    let mut sim = setup.build();
    let outcome = sim.run_until(at(10_000)).unwrap();
    assert!(outcome.is_finished(), "{outcome}");
    assert!(sim.node(0).app.answered.is_some());
    assert_eq!(sim.node(0).app.migrated, 0);
}

// RFC 9000 §9, §18.2: who has been asked to stay does not move; a NAT may move it all the same.
// RFC 9000 §9 MUST NOT-2, MUST-1; RFC 9000 §18.2 MUST NOT-2
#[test]
fn a_client_that_was_asked_to_stay_stays() {
    let mut setup = Setup::new(6, 1_000_000, 100);
    setup.server = |config| ServerConfig { migration: false, ..config };
    let mut sim = setup.build();
    let _ = sim.run_until(at(300)).unwrap();
    let handle = sim.node(0).app.handle.unwrap();
    sim.with_node(0, |now, host| {
        let connection = host.endpoint.connection_mut(handle).unwrap();
        assert_eq!(connection.migrate(now, IpAddr::V4(SECOND)), Err(MigrateError::Disabled));
    })
    .unwrap();
    nat(&mut sim, at(400), client(FIRST, 7));
    let outcome = sim.run_until(at(10_000)).unwrap();
    assert!(outcome.is_finished(), "{outcome}");
    assert_eq!(sim.node(1).app.migrated, 1);
}

// RFC 9000 §9 MUST NOT-1
#[test]
fn nobody_moves_too_early_or_from_the_wrong_end() {
    let mut sim = Setup::new(7, 100, 100).build();
    let handle = sim.node(0).app.handle.unwrap();
    sim.with_node(0, |now, host| {
        let connection = host.endpoint.connection_mut(handle).unwrap();
        assert_eq!(connection.migrate(now, IpAddr::V4(SECOND)), Err(MigrateError::NotEstablished));
        connection.rebind(now, None);
        assert_eq!(connection.stats().path_changes, 0);
    })
    .unwrap();
    let _ = sim.run_until(at(110)).unwrap();
    sim.with_node(1, |now, host| {
        let handle = host.app.accepted[0];
        let connection = host.endpoint.connection_mut(handle).unwrap();
        assert_eq!(connection.migrate(now, IpAddr::V4(SECOND)), Err(MigrateError::NotClient));
    })
    .unwrap();
}

fn new_id(sequence: u64) -> Vec<u8> {
    let cid = wire::ConnectionId::new(&[sequence as u8; 8]).unwrap();
    let reset_token = wire::ResetToken([sequence as u8; 16]);
    bytes(&[Frame::NewConnectionId { sequence, retire_prior_to: 0, cid, reset_token }])
}

/// A puppet that gave the victim IDs for other paths, and whom they were used for.
fn with_ids(count: u64) -> Puppet {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    for sequence in 1..=count {
        puppet.send(Level::OneRtt, &new_id(sequence));
    }
    puppet.collect();
    puppet
}

// RFC 9000 §9.5 MUST NOT: one connection ID for two destinations.
// RFC 9000 §9.5 MUST NOT-2
#[test]
fn each_address_is_reached_by_an_id_of_its_own() {
    let mut puppet = with_ids(3);
    let mut seen = std::collections::BTreeMap::<Vec<u8>, SocketAddr>::new();
    for round in 0..6_u16 {
        puppet.address.set_port(1_000 + round % 3);
        puppet.send(Level::OneRtt, &[1; 60]);
        for datagram in sent(&mut puppet.victim, puppet.now) {
            let id = datagram.payload[1..9].to_vec();
            let first = *seen.entry(id.clone()).or_insert(datagram.to);
            assert_eq!(first, datagram.to, "{id:?} in round {round}");
        }
        puppet.now += Duration::from_millis(10);
    }
    assert!(seen.len() >= 3, "{seen:?}");
}

// RFC 9000 §8.2.1 MUST: a challenge that the limit on bytes keeps small is followed by one of full size.
// RFC 9000 §8.2.1 MUST-3; RFC 9000 §8.2.3 MUST-1; RFC 9000 §8.2.1 MUST-2
#[test]
fn a_path_validated_with_small_datagrams_is_validated_again_in_full() {
    let mut puppet = with_ids(3);
    puppet.address.set_port(7);
    puppet.send(Level::OneRtt, &[1; 60]);
    let challenge_in = |puppet: &mut Puppet| {
        let datagrams = sent(&mut puppet.victim, puppet.now);
        let sizes: Vec<usize> = datagrams.iter().filter(|d| d.to.port() == 7).map(|d| d.payload.len()).collect();
        puppet.received.clear();
        datagrams.iter().filter(|d| d.to.port() == 7).for_each(|d| puppet.take(&d.payload));
        let data =
            puppet.received.iter().flat_map(|(_, payload)| wire::Frames::new(payload).flatten().collect::<Vec<_>>());
        let data = data.into_iter().find_map(|f| if let Frame::PathChallenge(data) = f { Some(data) } else { None });
        (data, sizes.into_iter().max())
    };
    let (data, size) = challenge_in(&mut puppet);
    assert!(size.unwrap() < 300, "{size:?}");
    puppet.send(Level::OneRtt, &bytes(&[Frame::PathResponse(data.unwrap())]));
    let (data, size) = challenge_in(&mut puppet);
    assert_eq!(size, Some(1200));
    puppet.send(Level::OneRtt, &bytes(&[Frame::PathResponse(data.unwrap())]));
    let (data, _) = challenge_in(&mut puppet);
    assert_eq!(data, None, "that was enough");
}

/// A puppet as server, whose client has `count` IDs for other paths.
fn server_with_ids(count: u64, change: impl FnOnce(&mut wire::TransportParameters, &mut Vec<u8>)) -> Puppet {
    let mut puppet = Puppet::server(&Profile::default(), change).connected();
    for sequence in 1..=count {
        puppet.send(Level::OneRtt, &new_id(sequence));
    }
    puppet.collect();
    puppet
}

/// The client's socket is replaced; returns the datagrams that leave, and how the connection ended, if it did.
fn replaced_socket(puppet: &mut Puppet) -> (Vec<Vec<u8>>, Option<CloseReason>) {
    puppet.victim.rebind(puppet.now, None);
    let mut datagrams = Vec::new();
    for _ in 0..30 {
        datagrams.extend(sent(&mut puppet.victim, puppet.now).into_iter().map(|d| d.payload));
        puppet.now += Duration::from_millis(100);
        puppet.victim.handle_timeout(puppet.now);
    }
    let closed = support::direct::events(&mut puppet.victim).into_iter().find_map(|(_, event)| match event {
        Event::Closed(reason) => Some(reason),
        _ => None,
    });
    (datagrams, closed)
}

// RFC 9000 §9.5 MUST NOT-1
#[test]
fn an_id_is_used_from_one_address() {
    let mut puppet = server_with_ids(2, |_, _| {});
    let before = puppet.scid.as_slice().to_vec();
    let (datagrams, closed) = replaced_socket(&mut puppet);
    assert!(!datagrams.is_empty() && closed.is_none(), "{closed:?}");
    assert!(datagrams.iter().all(|datagram| datagram[1..9] == [1; 8]), "the first ID was {before:?}");
    // Without an ID for the new address there is no way there, and nothing is said from it.
    let mut puppet = server_with_ids(0, |_, _| {});
    assert_eq!(replaced_socket(&mut puppet), (vec![], Some(CloseReason::Stranded(MigrateError::NoConnectionId))));
}

// RFC 9000 §9 MUST NOT-2; RFC 9000 §18.2 MUST NOT-2
#[test]
fn who_was_asked_to_stay_sends_nothing_from_another_socket() {
    let mut puppet = server_with_ids(2, |parameters, _| parameters.disable_active_migration = true);
    assert_eq!(replaced_socket(&mut puppet), (vec![], Some(CloseReason::Stranded(MigrateError::Disabled))));
}

/// A server with two addresses, the second of which it prefers, before a puppet that came to the first.
fn server_with_two_addresses() -> Puppet {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
    let config = ServerConfig {
        preferred_address: PreferredAddresses { ipv4: Some(PREFERRED), ipv6: None },
        ..ServerConfig::new(std::sync::Arc::new(Toy::default()), std::sync::Arc::new(Profile::default()))
    };
    puppet.victim.set_server_config(Some(std::sync::Arc::new(config)));
    puppet.local = Some(IpAddr::V4(*SERVER.ip()));
    let mut puppet = puppet.connected();
    for sequence in 1..=3 {
        puppet.send(Level::OneRtt, &new_id(sequence));
    }
    puppet.collect();
    puppet
}

/// Returns the datagrams that a server sends at a moment: the source address of each, and whether it is more than a probe. Adds
/// the data of path challenges to `challenges`.
fn said(puppet: &mut Puppet, challenges: &mut Vec<[u8; 8]>) -> Vec<(Option<IpAddr>, bool)> {
    let datagrams = sent(&mut puppet.victim, puppet.now);
    let mut all = Vec::new();
    for datagram in datagrams {
        puppet.received.clear();
        puppet.take(&datagram.payload);
        let frames: Vec<_> = puppet.frames().map(|(_, frame)| frame).collect();
        challenges
            .extend(frames.iter().filter_map(|f| if let Frame::PathChallenge(data) = f { Some(*data) } else { None }));
        all.push((datagram.from, !frames.iter().all(Frame::is_probing)));
    }
    all
}

// RFC 9000 §9.6.2 MUST-2
#[test]
fn a_server_stays_at_its_first_address_until_the_way_to_the_other_is_proven() {
    let first = Some(IpAddr::V4(*SERVER.ip()));
    let preferred = Some(IpAddr::V4(*PREFERRED.ip()));
    let mut puppet = server_with_two_addresses();
    puppet.local = preferred;
    let mut challenges = Vec::new();
    // The client has come, and says more than a probe; its answer to the challenge got lost.
    for round in 0..3 {
        puppet.send(Level::OneRtt, &[1; 1150]);
        let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
        let stream = connection.open(wire::Dir::Uni).unwrap();
        connection.write(stream, &mut bytes::Bytes::from_static(b"data")).unwrap();
        let said = said(&mut puppet, &mut challenges);
        assert!(said.iter().any(|&(from, more)| from == first && more), "round {round}: {said:?}");
        assert!(said.iter().all(|&(from, more)| from == first || !more), "round {round}: {said:?}");
        puppet.pass(Duration::from_millis(20));
    }
    let answer = bytes(&[Frame::PathResponse(*challenges.last().unwrap())]);
    puppet.send(Level::OneRtt, &answer);
    puppet.send(Level::OneRtt, &[1; 1150]);
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    let stream = connection.open(wire::Dir::Uni).unwrap();
    connection.write(stream, &mut bytes::Bytes::from_static(b"data")).unwrap();
    let said = said(&mut puppet, &mut challenges);
    assert!(said.iter().any(|&(from, more)| from == preferred && more), "{said:?}");
    assert!(!said.iter().any(|&(from, more)| from == first && more), "{said:?}");
}

// RFC 9000 §9.6.3 MUST-1, SHOULD-1
#[test]
fn who_moves_on_the_way_to_the_preferred_address_arrives_there() {
    const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 9, 9), 443);
    type Change = fn(ServerConfig) -> ServerConfig;
    let towards: [(Change, SocketAddrV4); 2] = [
        (
            |c| ServerConfig { preferred_address: PreferredAddresses { ipv4: Some(PREFERRED), ipv6: None }, ..c },
            PREFERRED,
        ),
        (|c| ServerConfig { preferred_address: PreferredAddresses { ipv4: Some(NOBODY), ipv6: None }, ..c }, SERVER),
    ];
    for (server, arrives) in towards {
        for socket in [false, true] {
            let mut setup = Setup::new(9, 1_500_000, 100);
            setup.server = server;
            let mut sim = setup.build();
            sim.with_node(0, |_, host| host.also = (!socket).then(|| client(SECOND, 50_000))).unwrap();
            let handle = sim.node(0).app.handle.unwrap();
            let confirmed = (1..200).find(|&ms| {
                let _ = sim.run_until(at(ms)).unwrap();
                sim.node(0).endpoint.may_rebind()
            });
            let confirmed = at(confirmed.expect("the handshake is confirmed in time"));
            if socket {
                rebind(&mut sim, confirmed + Duration::from_millis(1), client(SECOND, 50_000));
            } else {
                sim.with_node(0, |now, host| {
                    host.endpoint.connection_mut(handle).unwrap().migrate(now, IpAddr::V4(SECOND)).unwrap();
                })
                .unwrap();
            }
            let _ = sim.run_until(confirmed + Duration::from_millis(700)).unwrap();
            let remote = sim.node(0).endpoint.connection(handle).unwrap().remote();
            assert_eq!(remote, arrives.into(), "another socket: {socket}");
            let outcome = sim.run_until(at(20_000)).unwrap();
            assert!(outcome.is_finished() && sim.node(0).app.answered.is_some(), "{arrives} {socket}: {outcome}");
            let [first, _, second, _] = passed(&sim);
            assert!(second > 5 * first, "most of it goes over the second network: {first} {second}");
        }
    }
}

// RFC 9000 §9.4 MUST: the window starts anew on another address; with another port it continues.
// RFC 9000 §9.4 MUST-1, MUST NOT-1
#[test]
fn the_window_starts_anew_at_another_address() {
    let window_after = |to: SocketAddr| {
        let mut sim = Setup::new(8, 100, 4_000_000).build();
        let _ = sim.run_until(at(1_500)).unwrap();
        let handle = sim.node(1).app.accepted[0];
        let before = sim.node(1).endpoint.connection(handle).unwrap().metrics();
        nat(&mut sim, at(1_500), to);
        // Who only receives says nothing at a time that is sure; the server follows what the client says.
        sim.with_node(0, |_, host| {
            let handle = host.app.handle.unwrap();
            host.endpoint.connection_mut(handle).unwrap().ping();
        })
        .unwrap();
        let mut after = before;
        for step in 1..400 {
            let _ = sim.run_until(at(1_500 + step)).unwrap();
            let connection = sim.node(1).endpoint.connection(handle).unwrap();
            after = connection.metrics();
            if connection.remote() == to {
                break;
            }
        }
        (before, after)
    };
    let (before, after) = window_after(client(FIRST, 9));
    assert!(after.window >= before.window * 9 / 10 && after.min_rtt == before.min_rtt, "{before:?} {after:?}");
    let (before, after) = window_after(client(BEHIND_NAT, 50_000));
    assert!(before.window > 30_000 && after.window <= 14_720, "{before:?} {after:?}");
    assert_eq!(after.min_rtt, Duration::ZERO);
}

/// The longest time without anything new to read at an end, over `since` or later.
fn longest_gap(sim: &Sim, end: usize, since: Instant) -> Duration {
    let progress = &sim.node(end).app.progress;
    let gaps = progress.windows(2).filter(|pair| pair[1] > since).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// Change in the middle of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// A NAT gives another port.
    Port,
    /// A NAT gives another address.
    Address,
    /// The client has another socket on the same network.
    Socket,
    /// The client moves to its second network, because the first is gone.
    Network,
    /// The client moves to its second network while the first still works.
    Planned,
}

const CHANGES: [Change; 5] = [Change::Port, Change::Address, Change::Socket, Change::Network, Change::Planned];

/// One of many: a random path, a random moment. Returns the change, whether the transfer finished, the longest stall, and
/// two round trips plus a probe timeout of the sender before the change.
fn run(seed: u64) -> (Change, bool, Duration, Duration) {
    let mut random = Seed::from_number(seed).stream("migration runs");
    let below = |random: &mut RandomStream, n: u64| random.next_u64() % n;
    let change = CHANGES[(seed % 5) as usize];
    let upload = below(&mut random, 2) == 0;
    let mut path = || {
        let delay = Duration::from_millis(5 + below(&mut random, 96));
        let loss = [0.0, 0.001, 0.01, 0.02][below(&mut random, 4) as usize];
        (2 + below(&mut random, 39), delay, loss)
    };
    let paths = [path(), path()];
    let rtt = (paths[0].1 * 2).max(if change >= Change::Network { paths[1].1 * 2 } else { Duration::ZERO });
    // Enough for six seconds of what the link carries, or of what CUBIC reaches at this loss (RFC 9438 §5.1).
    let reached = |(mbps, delay, loss): (u64, Duration, f64)| {
        let segments = if loss > 0.0 { 1.2 / loss.sqrt() } else { f64::MAX };
        (mbps as f64 * 1e6 / 8.0).min(segments * 1_400.0 / (delay * 2).as_secs_f64())
    };
    let size = (reached(paths[0]).min(reached(paths[1])) * 6.0) as usize;
    let mut setup = if upload { Setup::new(seed, size, 100) } else { Setup::new(seed, 100, size) };
    setup.links = paths.map(|(mbps, delay, loss)| link(mbps, delay, loss));
    if !upload {
        // A client that only receives cannot know that a NAT has moved it: it has to say something now and then.
        setup.profile.keep_alive = Some(Duration::from_millis(50));
    }
    let mut when = Instant::ZERO + rtt * 4 + Duration::from_millis(500 + below(&mut random, 1_500));
    let mut sim = loop {
        let mut sim = setup.build();
        sim.with_node(0, |_, host| host.also = (change == Change::Planned).then(|| client(SECOND, 50_000))).unwrap();
        let _ = sim.run_until(when).unwrap();
        // A handshake that meets losses takes longer.
        while sim.node(0).app.progress.is_empty() && sim.node(1).app.progress.is_empty() {
            when += Duration::from_millis(500);
            let _ = sim.run_until(when).unwrap();
        }
        if sim.node(0).app.answered.is_none() {
            break sim;
        }
        // Luck with losses: it was over before the move.
        (setup.request, setup.answer) = (setup.request * 2, setup.answer * 2);
    };
    let (sender, receiver) = if upload { (0, 1) } else { (1, 0) };
    let host = sim.node(sender);
    let handle = host.app.handle.or(host.app.accepted.first().copied()).unwrap();
    let metrics = host.endpoint.connection(handle).unwrap().metrics();
    let pto =
        metrics.smoothed_rtt + (metrics.rtt_variation * 4).max(Duration::from_millis(1)) + Duration::from_millis(25);
    let bound = metrics.smoothed_rtt.max(rtt) * 2 + pto;
    match change {
        Change::Port => nat(&mut sim, when, client(FIRST, 50_001)),
        Change::Address => nat(&mut sim, when, client(BEHIND_NAT, 50_000)),
        Change::Socket => rebind(&mut sim, when, client(FIRST, 50_001)),
        Change::Network => rebind(&mut sim, when, client(SECOND, 50_000)),
        Change::Planned => sim
            .with_node(0, |now, host| {
                let handle = host.app.handle.unwrap();
                host.endpoint.connection_mut(handle).unwrap().migrate(now, IpAddr::V4(SECOND)).unwrap();
            })
            .unwrap(),
    }
    let outcome = sim.run_until(when + Duration::from_secs(120)).unwrap();
    let finished = outcome.is_finished() && sim.node(0).app.answered.is_some();
    if !finished {
        eprintln!("seed {seed}: {change:?}, upload {upload}, {paths:?}: {outcome}; {:?}", sim.node(0).app.closed);
    }
    let until = when + Duration::from_secs(2) + bound * 2;
    let progress = &sim.node(receiver).app.progress;
    let gaps = progress.windows(2).filter(|pair| pair[1] > when && pair[0] < until).map(|pair| pair[1] - pair[0]);
    (change, finished, gaps.max().unwrap_or(Duration::MAX), bound)
}

/// Runs `seeds`, prints a line for each kind and one for all; the share that finished, and the median of stall over bound.
fn runs(seeds: u64) -> (f64, f64) {
    let mut results = Vec::new();
    for seed in 0..seeds {
        let (change, finished, stall, bound) = run(seed);
        results.push((change, finished, stall.as_secs_f64() / bound.as_secs_f64()));
    }
    let summary = |results: &[&(Change, bool, f64)]| {
        let mut ratios: Vec<f64> = results.iter().map(|r| r.2).collect();
        ratios.sort_by(f64::total_cmp);
        let finished = results.iter().filter(|r| r.1).count();
        let at = |share: usize| ratios[(ratios.len() - 1) * share / 100];
        (finished as f64 / results.len() as f64, at(50), at(95))
    };
    for change in CHANGES {
        let of: Vec<_> = results.iter().filter(|r| r.0 == change).collect();
        let (finished, median, p95) = summary(&of);
        println!(
            "{change:?}: {} runs, finished {finished:.4}, stall / (2 RTT + PTO): median {median:.3}, p95 {p95:.3}",
            of.len()
        );
    }
    let (finished, median, p95) = summary(&results.iter().collect::<Vec<_>>());
    println!("all: {seeds} runs, finished {finished:.4}, stall / (2 RTT + PTO): median {median:.3}, p95 {p95:.3}");
    (finished, median)
}

#[test]
fn transfers_survive_moves_with_a_short_stall() {
    let (finished, median) = runs(40);
    assert!(finished >= 0.999 && median <= 1.0, "{finished} {median}");
}

/// `cargo test -p tiderace-transport --test protocol migration:: -- --ignored --nocapture` prints the table.
#[test]
#[ignore = "takes minutes; `cargo xtask shows standards --only paths --long` runs it"]
fn a_thousand_moves() {
    let (finished, median) = runs(1_000);
    assert!(finished >= 0.999 && median <= 1.0, "{finished} {median}");
}
