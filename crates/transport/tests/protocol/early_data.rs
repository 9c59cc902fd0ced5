//! Early data: a request that leaves with the first packets of a connection, and what becomes of it.
//!
//! Lines that begin with `measured` are what `cargo xtask shows standards` reads. EARLY_DATA_SEEDS is the number of bad
//! networks for each of the two verdicts.

use crate::schema;
use crate::support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use netem::{Forced, LinkConfig, Loss, Script};
use rustls::{pki_types::UnixTime, time_provider::TimeProvider};
use sim::{Dumbbell, Simulation, client_address, point_to_point, server_address};
use support::{
    Host,
    direct::{Sent, converse, events, give, sent},
    exchange::{Exchange, Goal},
    identity, server_endpoint,
};
use transport::{
    ClientConfig, CloseReason, Code, Endpoint, EndpointConfig, Event, Handle, Profile, RetryPolicy, ServerConfig,
    observe::{Observer, Start},
    qlog::{QlogWriter, Vantage},
    ring::{KeyRing, MemoryRegister, Strike, StrikeId, StrikeRegister},
    streams::Order,
    tls::{
        EarlyData,
        rustls_backend::{RustlsClient, RustlsServer},
    },
};
use units::{Duration, Instant, Probability, Seed};
use wire::{
    Dir,
    version::{V1, V2},
};

/// For who reads the output: a value, and of what.
fn measured(what: &str, value: impl std::fmt::Display) {
    println!("measured {what}: {value}");
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A wall clock that the test moves.
#[derive(Debug)]
struct HandClock(AtomicU64);

impl TimeProvider for HandClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// One client and the servers that it knows: they share what they are given here.
struct World {
    clock: Arc<HandClock>,
    ring: KeyRing,
    register: Arc<dyn StrikeRegister>,
    client: Arc<RustlsClient>,
    profile: Profile,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(HandClock(AtomicU64::new(support::CLOCK.unix_secs)));
        let client = RustlsClient::builder().roots([identity().1.clone()]).alpn("test").early_data(true);
        Self {
            client: Arc::new(client.clock(clock.clone()).build().unwrap()),
            clock,
            ring: KeyRing::single([7; 32]),
            register: Arc::new(MemoryRegister::default()),
            profile: Profile::default(),
        }
    }

    fn pass(&self, secs: u64) {
        self.clock.0.fetch_add(secs, Ordering::Relaxed);
    }

    /// A server on another machine, with the same ring and register.
    fn server(&self) -> RustlsServer {
        self.server_with(|builder| builder)
    }

    fn server_with(
        &self,
        change: impl FnOnce(transport::tls::rustls_backend::ServerBuilder) -> transport::tls::rustls_backend::ServerBuilder,
    ) -> RustlsServer {
        let builder = RustlsServer::builder()
            .identity(identity().0.clone())
            .alpn("test")
            .clock(self.clock.clone())
            .ring(self.ring.clone())
            .strike_register(self.register.clone())
            .early_data(true);
        change(builder).build().unwrap()
    }

    fn server_config(&self, tls: &RustlsServer) -> ServerConfig {
        ServerConfig::new(Arc::new(tls.clone()), Arc::new(self.profile.clone()))
    }

    fn client_config(&self) -> ClientConfig {
        ClientConfig::new(self.client.clone(), Arc::new(self.profile.clone()))
    }

    /// A first connection, which leaves two tickets with the client. Returns a token of the server's.
    fn connect(&self, seed: u64, tls: &RustlsServer) -> Vec<u8> {
        let mut client = support::client_endpoint(seed + 1_000_000);
        let mut server = server_endpoint(seed + 1_000_000, self.server_config(tls));
        let now = at(0);
        let handle = client.connect(now, &self.client_config(), server_address(0), "server.test").unwrap();
        converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
        let told = events(&mut client);
        assert!(told.contains(&(handle, Event::Connected)), "{told:?}");
        let token = told.into_iter().find_map(|(_, event)| match event {
            Event::TokenReceived(token) => Some(token.to_vec()),
            _ => None,
        });
        token.expect("the server gives a token")
    }

    /// A client that sends its request early, if it can, and a server that answers.
    fn simulation(
        &self,
        seed: u64,
        link: &LinkConfig,
        tls: &RustlsServer,
        change: impl FnOnce(&mut ServerConfig),
        (request, answer): (usize, usize),
    ) -> Simulation<Host<Exchange>> {
        let mut client = support::client_endpoint(seed);
        let handle = client.connect(at(0), &self.client_config(), server_address(0), "server.test").unwrap();
        let app = Exchange::early_client(&mut client, handle, request, answer);
        let mut config = self.server_config(tls);
        change(&mut config);
        let server = server_endpoint(seed, config);
        let hosts =
            (Host::new(client_address(0), client, app), Host::new(server_address(0), server, Exchange::server(answer)));
        point_to_point(Seed::from_number(seed), link, link, hosts.0, hosts.1).unwrap()
    }
}

fn path() -> LinkConfig {
    LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() }
}

/// Loses and reorders.
fn bad_path() -> LinkConfig {
    LinkConfig {
        loss: Loss::Iid { p: Probability::new(0.1).unwrap() },
        jitter: Duration::from_millis(20),
        jitter_reorders: true,
        ..path()
    }
}

fn client_stats(sim: &Simulation<Host<Exchange>>) -> transport::Stats {
    let host = sim.node(0);
    host.endpoint.connection(host.app.handle.unwrap()).unwrap().stats()
}

/// Milliseconds that the handshake took, and whether it resumed a session: at the client, and at the server.
fn handshake(sim: &Simulation<Host<Exchange>>) -> [(u64, u64); 2] {
    [0, 1].map(|node| {
        let host = sim.node(node);
        let handle = host.app.handle.or(host.app.accepted.first().copied()).unwrap();
        let stats = host.endpoint.connection(handle).unwrap().stats();
        (stats.handshake_time / 1_000_000, stats.resumed)
    })
}

// RFC 9000 §7.4.1 MUST-3, MUST-5; RFC 9000 §13.2.6 MUST-3
#[test]
fn the_answer_begins_to_arrive_after_one_round_trip() {
    let world = World::new();
    let tls = world.server();
    let run = |expected: u64| {
        let mut sim = world.simulation(1, &path(), &tls, |_| {}, (1_000, 1_000));
        assert!(sim.run_until(at(1_000)).unwrap().is_finished());
        let first_byte = sim.node(0).app.first_byte.unwrap();
        let kind = if expected == 100 { "0-RTT" } else { "full handshake" };
        measured(&format!("ms to the first byte, {kind}"), first_byte.as_nanos() as f64 / 1e6);
        assert_eq!(first_byte, at(expected), "100 ms are the round trip");
        sim
    };
    let first = run(200);
    assert_eq!(client_stats(&first).early_packets_sent, 0);
    assert_eq!(
        handshake(&first),
        [(100, 0), (100, 0)],
        "from the first packet to the end of the handshake is a round trip"
    );
    // Its tickets may still be in progress when the run ends.
    world.connect(1, &tls);
    let before = tls.ticket_stats().early_accepted;
    let second = run(100);
    let stats = client_stats(&second);
    assert_eq!((stats.early_data_offered, stats.early_data_accepted, stats.early_data_refused), (1, 1, 0));
    assert!(stats.early_packets_sent > 0 && stats.early_bytes_sent > 1_000);
    assert_eq!((&second.node(0).app.early, &second.node(1).app.early), (&vec![true], &vec![true]));
    let server = second.node(1);
    let stats = server.endpoint.connection(server.app.accepted[0]).unwrap().stats();
    assert_eq!(stats.early_packets_received, client_stats(&second).early_packets_sent);
    assert_eq!(handshake(&second)[0], (100, 1), "the server has yet to hear of its end");
    assert!(stats.early_bytes_received >= 1_000);
    assert_eq!(tls.ticket_stats().early_accepted, before + 1);
}

#[test]
fn another_machine_with_the_ring_accepts_as_well() {
    let world = World::new();
    world.connect(1, &world.server());
    let other = world.server();
    let mut sim = world.simulation(1, &path(), &other, |_| {}, (1_000, 1_000));
    assert!(sim.run_until(at(1_000)).unwrap().is_finished());
    assert_eq!(sim.node(0).app.first_byte, Some(at(100)));
    assert_eq!(other.ticket_stats().early_accepted, 1);
}

/// The first flight of a client that sends a request early.
fn first_flight(world: &World, seed: u64) -> (Endpoint, transport::Handle, Vec<Sent>) {
    let mut client = support::client_endpoint(seed);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open_early(Dir::Bi).unwrap();
    connection.write(id, &mut b"a request"[..].into()).unwrap();
    connection.finish(id).unwrap();
    let flight = sent(&mut client, at(0));
    (client, handle, flight)
}

/// Returns what a server reads in early data after it was given these datagrams.
fn early_request(server: &mut Endpoint, now: Instant, flight: &[Sent]) -> Option<Vec<u8>> {
    flight.iter().for_each(|datagram| give(server, now, client_address(0), &datagram.payload));
    sent(server, now);
    let handle = server.poll_accept()?;
    let connection = server.connection_mut(handle)?;
    let id = connection.accept(Dir::Bi)?;
    Some(connection.read(id, 100, Order::Ordered).ok()??.data.to_vec())
}

// RFC 9001 §9.2 MUST-1; RFC 9001 §4.6.2 MUST NOT-1
#[test]
fn a_replayed_first_flight_is_refused_where_ring_and_register_are_shared() {
    let world = World::new();
    world.connect(1, &world.server());
    let (_, _, flight) = first_flight(&world, 1);
    let (one, other) = (world.server(), world.server());
    let mut first = server_endpoint(1, world.server_config(&one));
    assert_eq!(early_request(&mut first, at(50), &flight).as_deref(), Some(&b"a request"[..]));
    for wait in [0, 5, 6, 20, 100] {
        world.pass(wait);
        for tls in [&one, &other] {
            let mut second = server_endpoint(2, world.server_config(tls));
            assert_eq!(early_request(&mut second, at(60), &flight), None, "after {wait} more seconds");
            assert!(second.open_connections() > 0, "refused is the early data, not the connection");
        }
    }
    let stats = [one.ticket_stats(), other.ticket_stats()];
    measured("replays tried", 10);
    measured("replays accepted", stats.iter().map(|s| s.early_accepted).sum::<u64>() - 1);
    assert_eq!(stats[0].early_accepted + stats[1].early_accepted, 1);
    assert_eq!(stats.map(|s| s.early_replayed + s.early_stale), [5, 5]);
    assert!(stats[0].early_replayed >= 2 && stats[0].early_stale >= 2, "{stats:?}");
    // Without a register in common each accepts it once: that is what it is for.
    let world = World { register: Arc::new(MemoryRegister::default()), ..world };
    world.clock.0.store(support::CLOCK.unix_secs, Ordering::Relaxed);
    let mut third = server_endpoint(3, world.server_config(&world.server()));
    assert!(early_request(&mut third, at(60), &flight).is_some());
}

#[test]
fn a_held_back_first_flight_is_refused() {
    let world = World::new();
    world.connect(1, &world.server());
    let (_, _, flight) = first_flight(&world, 1);
    world.pass(12);
    let tls = world.server();
    let mut server = server_endpoint(1, world.server_config(&tls));
    assert_eq!(early_request(&mut server, at(50), &flight), None);
    assert_eq!(tls.ticket_stats().early_stale, 1);
}

/// Refused for every reason there is: the request is answered nevertheless, two round trips after it was asked.
// RFC 9001 §4.6.2 MUST NOT-1, MUST-1; RFC 9000 §7.4.1 MUST-4
// RFC 9000 §7.4.1 MUST NOT-2, MUST NOT-3
#[test]
fn refused_early_data_is_sent_again_by_itself() {
    type Change = fn(&mut World) -> RustlsServer;
    type Counted = fn(&RustlsServer) -> u64;
    let reasons: [(&str, Change, Counted); 7] = [
        ("a server that takes none", |w| w.server_with(|b| b.early_data(false)), |_| 1),
        (
            "another application state",
            |w| w.server_with(|b| b.early_data_state("settings")),
            |tls| tls.ticket_stats().early_reduced,
        ),
        (
            "smaller limits",
            |w| {
                w.profile.streams.receive_window_stream = 10_000;
                w.server()
            },
            |tls| tls.ticket_stats().early_reduced,
        ),
        (
            "an old ticket",
            |w| {
                w.pass(24 * 60 * 60 - 1);
                w.ring.rotate(1, [8; 32], w.clock.0.load(Ordering::Relaxed), 0).unwrap();
                w.server()
            },
            |tls| tls.ticket_stats().unknown_key,
        ),
        (
            "another ring",
            |w| {
                w.ring = KeyRing::single([9; 32]);
                w.server()
            },
            |tls| tls.ticket_stats().foreign,
        ),
        (
            "a full register",
            |w| {
                w.register = Arc::new(MemoryRegister::new(0));
                w.server()
            },
            |tls| tls.ticket_stats().early_register_full,
        ),
        (
            "another cipher suite",
            |w| w.server_with(|b| b.cipher_suites([transport::crypto::CipherSuite::ChaCha20Poly1305])),
            |tls| tls.ticket_stats().early_unusable,
        ),
    ];
    measured("reasons to refuse early data", reasons.len());
    for (name, change, counted) in reasons {
        let mut world = World::new();
        world.connect(1, &world.server());
        let tls = change(&mut world);
        let mut sim = world.simulation(1, &path(), &tls, |_| {}, (5_000, 1_000));
        let outcome = sim.run_until(at(2_000)).unwrap();
        assert!(outcome.is_finished(), "{name}: {outcome}");
        let stats = client_stats(&sim);
        assert_eq!((stats.early_data_offered, stats.early_data_refused), (1, 1), "{name}");
        assert!(stats.early_packets_sent > 0, "{name}");
        assert_eq!(sim.node(0).app.early, [false], "{name}");
        assert_eq!(sim.node(0).app.first_byte.unwrap().as_nanos() / 100_000_000, 2, "{name}");
        assert_eq!(counted(&tls), 1, "{name}: {:?}", tls.ticket_stats());
        let server = sim.node(1);
        let stats = server.endpoint.connection(server.app.accepted[0]).unwrap().stats();
        assert_eq!(stats.early_packets_received, 0, "{name}");
    }
}

#[test]
fn nothing_is_lost_on_bad_networks() {
    let seeds = std::env::var("EARLY_DATA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let (mut bytes, mut early) = (0, 0);
    for (first, accept) in [(0, true), (seeds, false)] {
        for seed in first..first + seeds {
            let world = World::new();
            world.connect(seed, &world.server());
            let tls = world.server_with(|builder| builder.early_data(accept));
            let link = bad_path();
            let retry = if seed % 3 == 0 { RetryPolicy::Always } else { RetryPolicy::Never };
            let mut sim = world.simulation(seed, &link, &tls, |config| config.retry = retry, (20_000, 50_000));
            let outcome = sim.run_until(at(60_000)).unwrap();
            assert!(outcome.is_finished(), "seed {seed}: {outcome}; {:?}", sim.node(0).app.closed);
            let stats = client_stats(&sim);
            assert_eq!((stats.early_data_accepted, stats.early_data_refused), (accept.into(), (!accept).into()));
            bytes += 70_000;
            early += stats.early_packets_sent;
        }
        let verdict = if accept { "accepted" } else { "refused" };
        measured(&format!("bad networks with early data {verdict}"), seeds);
    }
    measured("bytes compared on bad networks", bytes);
    measured("0-RTT packets sent on bad networks", early);
}

/// Every packet of the first flights, both ways, lost on its own.
#[test]
fn any_single_packet_may_be_lost() {
    for accept in [true, false] {
        for (link, number) in (0..12).flat_map(|n| [(Dumbbell::UP, n), (Dumbbell::DOWN, n)]) {
            let world = World::new();
            world.connect(1, &world.server());
            let tls = world.server_with(|builder| builder.early_data(accept));
            let mut sim = world.simulation(1, &path(), &tls, |_| {}, (5_000, 5_000));
            sim.network_mut()
                .link_mut(link)
                .set_script(Script::new(move |packet| (packet.number == number).then_some(Forced::Drop)));
            let outcome = sim.run_until(at(5_000)).unwrap();
            assert!(outcome.is_finished(), "{accept} {link:?} {number}: {outcome}");
        }
    }
}

// RFC 9000 §17.2.3 SHOULD-1, MUST-1
#[test]
fn after_a_retry_early_data_goes_out_again_and_is_accepted() {
    let world = World::new();
    let tls = world.server();
    world.connect(1, &tls);
    let always = |config: &mut ServerConfig| config.retry = RetryPolicy::Always;
    let mut sim = world.simulation(1, &path(), &tls, always, (3_000, 1_000));
    assert!(sim.run_until(at(1_000)).unwrap().is_finished());
    assert_eq!(sim.node(0).app.first_byte, Some(at(200)), "one for the Retry, one for the request");
    assert_eq!(sim.node(0).app.early, [true]);
    assert_eq!(client_stats(&sim).packets_lost, 0, "a Retry is no loss");
}

// RFC 9000 §8.1.3 MUST-4, SHOULD-4
#[test]
fn a_token_saves_the_retry() {
    let world = World::new();
    let tls = world.server();
    let token = world.connect(1, &tls);
    let mut client = support::client_endpoint(1);
    let config = ClientConfig { token, ..world.client_config() };
    let handle = client.connect(at(0), &config, server_address(0), "server.test").unwrap();
    let app = Exchange::early_client(&mut client, handle, 1_000, 1_000);
    let mut server = world.server_config(&tls);
    server.retry = RetryPolicy::Always;
    // The same secret as the endpoint that gave the token.
    let server = server_endpoint(1_000_001, server);
    let hosts =
        (Host::new(client_address(0), client, app), Host::new(server_address(0), server, Exchange::server(1_000)));
    let mut sim = point_to_point(Seed::from_number(1), &path(), &path(), hosts.0, hosts.1).unwrap();
    assert!(sim.run_until(at(1_000)).unwrap().is_finished());
    assert_eq!(sim.node(0).app.first_byte, Some(at(100)));
    assert_eq!(sim.node(1).endpoint.stats().retries, 0);
}

/// The token of the first connection is shown by the second with the same configuration, to the same server, and by no third.
// RFC 9000 §8.1.3 SHOULD-2, SHOULD NOT-1, MUST NOT-3
#[test]
fn tokens_are_kept_for_the_next_connection() {
    let world = World::new();
    let tls = world.server();
    let config = world.client_config();
    let ring = KeyRing::single([1; 32]);
    let endpoint = EndpointConfig { ring, ..EndpointConfig::from_seed(Seed::from_number(5)) };
    let mut settings = world.server_config(&tls);
    settings.retry = RetryPolicy::Always;
    let mut server = Endpoint::new(endpoint, Some(Arc::new(settings)));
    let mut connect = |seed: u64, config: &ClientConfig| {
        let before = server.stats().retries;
        let mut client = support::client_endpoint(seed);
        let handle = client.connect(at(0), config, server_address(0), "server.test").unwrap();
        converse(at(0), (&mut client, client_address(0)), (&mut server, server_address(0)));
        assert!(client.connection(handle).unwrap().is_connected());
        server.stats().retries - before
    };
    assert!(connect(1, &config) > 0, "nothing is known of the server");
    assert_eq!(connect(2, &config), 0, "the token of the first connection");
    assert_eq!(connect(3, &config.clone()), 0, "that of the second");
    let without = ClientConfig { tokens: None, ..config };
    assert!(connect(4, &without) > 0 && connect(5, &without) > 0);
}

/// The limits that hold for early data are those of before, and there is no early data once there are other keys.
// RFC 9000 §7.4.1 MUST NOT-4; RFC 9000 §17.2.3 MUST NOT-1; RFC 9001 §5.6 MUST NOT-4; RFC 9001 §4.9.3 SHOULD-1
#[test]
fn what_is_learnt_later_does_not_hold_for_early_data() {
    let mut world = World::new();
    world.profile.streams.receive_window_stream = 3_000;
    world.connect(1, &world.server());
    world.profile.streams.receive_window_stream = 100_000;
    let tls = world.server();
    let mut server = server_endpoint(1, world.server_config(&tls));
    let mut client = support::client_endpoint(1);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let connection = client.connection_mut(handle).unwrap();
        let id = connection.open_early(Dir::Bi).unwrap();
        connection.write(id, &mut vec![4; 50_000].into()).unwrap();
        streams.push(id);
    }
    let flight = sent(&mut client, at(0));
    let early = |client: &Endpoint| client.connection(handle).unwrap().stats().early_packets_sent;
    let (packets, bytes) = {
        let stats = client.connection(handle).unwrap().stats();
        (stats.early_packets_sent, stats.early_bytes_sent)
    };
    assert!(packets > 0 && (6_000..8_000).contains(&bytes), "two streams of 3,000 bytes each: {bytes}");
    flight.iter().for_each(|d| give(&mut server, at(50), client_address(0), &d.payload));
    let mut answer = sent(&mut server, at(50));
    assert!(answer.len() > 1, "the server's flight has several datagrams");
    // The first one has the parameters; the handshake is complete with the last.
    let last = answer.pop().unwrap();
    for datagram in answer {
        give(&mut client, at(100), server_address(0), &datagram.payload);
        sent(&mut client, at(100)).iter().for_each(|d| give(&mut server, at(150), client_address(0), &d.payload));
        assert_eq!(early(&client), packets, "under the limits of this connection");
    }
    give(&mut client, at(200), server_address(0), &last.payload);
    converse(at(200), (&mut client, client_address(0)), (&mut server, server_address(0)));
    client.handle_timeout(at(3_000));
    converse(at(3_000), (&mut client, client_address(0)), (&mut server, server_address(0)));
    assert!(client.connection(handle).unwrap().is_connected());
    assert_eq!((early(&client), client.connection(handle).unwrap().early_data()), (packets, EarlyData::Accepted));
    let accepted = server.poll_accept().unwrap();
    let mut read = [0, 0];
    for round in 0..20 {
        for (id, read) in streams.iter().zip(&mut read) {
            let connection = server.connection_mut(accepted).unwrap();
            while let Ok(Some(chunk)) = connection.read(*id, 100_000, Order::Ordered) {
                *read += chunk.data.len();
            }
        }
        let now = at(3_000 + round * 1_000);
        client.handle_timeout(now);
        server.handle_timeout(now);
        converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
    }
    assert_eq!((read, early(&client)), ([50_000, 50_000], packets));
}

/// A server that wants its clients elsewhere and acknowledges late, and the same server when it does neither any more.
// RFC 9000 §7.4.1 MUST NOT-1, MUST-2; RFC 9000 §9.6.2 MUST NOT-1; RFC 9000 §18.2 MUST NOT-4
#[test]
fn delays_and_addresses_of_an_earlier_connection_mean_nothing() {
    let elsewhere = std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(10, 9, 9, 9), 443);
    let mut world = World::new();
    let tls = world.server();
    let connect = |world: &World, seed: u64, preferred| {
        let config = ServerConfig {
            preferred_address: transport::PreferredAddresses { ipv4: preferred, ipv6: None },
            ..world.server_config(&tls)
        };
        let mut server = server_endpoint(seed, config);
        let mut client = support::client_endpoint(seed);
        let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
        let connection = client.connection_mut(handle).unwrap();
        let resumed = connection.early_data() == EarlyData::Offered;
        let mut tried = false;
        for _ in 0..10 {
            let up = sent(&mut client, at(0));
            tried |= up.iter().any(|d| d.to == elsewhere.into());
            // Nobody is there.
            let up = up.iter().filter(|d| d.to == server_address(0));
            up.for_each(|d| give(&mut server, at(0), client_address(0), &d.payload));
            sent(&mut server, at(0)).iter().for_each(|d| give(&mut client, at(0), server_address(0), &d.payload));
        }
        assert!(client.connection(handle).unwrap().is_connected());
        // How long the client waits for an acknowledgement, which the server may hold back.
        let connection = client.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Uni).unwrap();
        connection.write(id, &mut b"x"[..].into()).unwrap();
        sent(&mut client, at(0));
        let probes = |ms: &u64| {
            client.handle_timeout(at(*ms));
            sent(&mut client, at(*ms)).iter().any(|d| d.to == server_address(0))
        };
        let patience = (1..5_000).find(probes).expect("a probe within five seconds");
        (resumed, tried, Duration::from_millis(patience))
    };
    world.profile.acks.max_delay = Duration::from_millis(400);
    let (resumed, tried, patience) = connect(&world, 1, Some(elsewhere));
    assert!(!resumed && tried && patience > Duration::from_millis(400), "{resumed} {tried} {patience:?}");
    // What the server does not say has its default: 25 ms.
    world.profile.acks.max_delay = Duration::from_millis(25);
    let (resumed, tried, patience) = connect(&world, 2, None);
    assert!(resumed && !tried && patience < Duration::from_millis(100), "{resumed} {tried} {patience:?}");
}

// RFC 9001 §4.9.3 MUST-1
#[test]
fn a_server_opens_late_early_packets_for_a_while() {
    let world = World::new();
    world.connect(1, &world.server());
    let tls = world.server();
    let mut server = server_endpoint(1, world.server_config(&tls));
    let mut client = support::client_endpoint(1);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open_early(Dir::Bi).unwrap();
    connection.write(id, &mut vec![3; 8_000].into()).unwrap();
    let mut flight = sent(&mut client, at(0));
    let held = flight.split_off(flight.len() - 2);
    flight.iter().for_each(|d| give(&mut server, at(0), client_address(0), &d.payload));
    sent(&mut server, at(0)).iter().for_each(|d| give(&mut client, at(0), server_address(0), &d.payload));
    sent(&mut client, at(0)).iter().for_each(|d| give(&mut server, at(0), client_address(0), &d.payload));
    sent(&mut server, at(0));
    let accepted = server.poll_accept().unwrap();
    assert!(server.connection(accepted).unwrap().is_connected());
    let early = |server: &Endpoint| server.connection(accepted).unwrap().stats().early_packets_received;
    let before = early(&server);
    assert!(before > 0);
    give(&mut server, at(1), client_address(0), &held[0].payload);
    assert_eq!(early(&server), before + 1, "it was under way when the handshake ended");
    // Three probe timeouts have ended, whatever the first sample of the RTT made of them.
    server.handle_timeout(at(4_000));
    sent(&mut server, at(4_000));
    give(&mut server, at(4_000), client_address(0), &held[1].payload);
    assert_eq!(early(&server), before + 1, "the keys are forgotten");
}

// RFC 9221 §3 MUST-3
#[test]
fn a_server_that_takes_smaller_datagrams_refuses_early_data() {
    let mut world = World::new();
    world.connect(1, &world.server());
    world.profile.datagram_queue = 0;
    let tls = world.server();
    let mut sim = world.simulation(1, &path(), &tls, |_| {}, (1_000, 1_000));
    assert!(sim.run_until(at(2_000)).unwrap().is_finished());
    assert_eq!(sim.node(0).app.early, [false]);
    assert_eq!(tls.ticket_stats().early_reduced, 1);
}

// RFC 9000 §8.1.3 MUST-2
#[test]
fn no_token_is_given_twice() {
    let world = World::new();
    let tls = world.server();
    // The same address at the same moment, in some cases by an endpoint with the same seed.
    let tokens: Vec<_> = [1, 2, 3, 4].map(|seed| world.connect(seed, &tls)).into();
    let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
    assert_eq!(distinct.len(), tokens.len());
}

/// The datagrams of the first flight in every order.
#[test]
fn early_packets_may_overtake_the_client_hello() {
    let world = World::new();
    world.connect(1, &world.server());
    let (_, _, flight) = first_flight(&world, 1);
    assert_eq!(flight.len(), 2, "the ClientHello has two datagrams");
    let reversed: Vec<_> = flight.iter().rev().cloned().collect();
    let mut server = server_endpoint(1, world.server_config(&world.server()));
    assert!(early_request(&mut server, at(50), &reversed).is_some());

    // A request of several datagrams, all of which come before the first Initial packet.
    world.connect(2, &world.server());
    let mut client = support::client_endpoint(2);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open_early(Dir::Bi).unwrap();
    connection.write(id, &mut vec![3; 5_000].into()).unwrap();
    let mut flight = sent(&mut client, at(0));
    flight.reverse();
    let mut server = server_endpoint(2, world.server_config(&world.server()));
    for datagram in &flight {
        give(&mut server, at(50), client_address(0), &datagram.payload);
    }
    assert!(server.stats().early_kept >= 2, "{:?}", server.stats());
    let accepted = server.poll_accept().unwrap();
    let connection = server.connection_mut(accepted).unwrap();
    let id = connection.accept(Dir::Bi).unwrap();
    let mut read = 0;
    while let Ok(Some(chunk)) = connection.read(id, 10_000, Order::Ordered) {
        read += chunk.data.len();
    }
    assert_eq!(read, 5_000);
}

/// Streams that the application has not named for early data wait for the handshake.
// RFC 9001 §5.6 MUST NOT-1
#[test]
fn only_streams_that_are_named_leave_early() {
    let world = World::new();
    let tls = world.server();
    world.connect(1, &tls);
    let mut client = support::client_endpoint(1);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    assert_eq!(connection.early_data(), EarlyData::Offered);
    let secret = connection.open(Dir::Uni).unwrap();
    connection.write(secret, &mut b"only once"[..].into()).unwrap();
    connection.finish(secret).unwrap();
    let early = connection.open_early(Dir::Bi).unwrap();
    connection.write(early, &mut b"any number of times"[..].into()).unwrap();
    assert!(connection.send_datagram(b"never early"[..].into()).is_err());
    let flight = sent(&mut client, at(0));

    let mut server = server_endpoint(1, world.server_config(&tls));
    flight.iter().for_each(|datagram| give(&mut server, at(50), client_address(0), &datagram.payload));
    let accepted = server.poll_accept().unwrap();
    let connection = server.connection_mut(accepted).unwrap();
    assert!(!connection.is_connected());
    assert_eq!(connection.early_data(), EarlyData::Accepted);
    assert_eq!((connection.accept(Dir::Uni), connection.accept(Dir::Bi)), (None, Some(early)));
    converse(at(50), (&mut client, client_address(0)), (&mut server, server_address(0)));
    let connection = server.connection_mut(accepted).unwrap();
    assert!(connection.is_connected());
    assert_eq!(connection.accept(Dir::Uni), Some(secret));
    assert_eq!(connection.read(secret, 100, Order::Ordered).unwrap().unwrap().data, b"only once"[..]);
}

/// Output of a writer, shared with the test.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Accepted and refused: both ends record packets and keys as the draft of qlog wants them.
#[test]
fn early_packets_are_recorded() {
    for accept in [true, false] {
        let world = World::new();
        world.connect(1, &world.server());
        let tls = world.server_with(|builder| builder.early_data(accept));
        let files = [Shared::default(), Shared::default()];
        let observe = |file: &Shared| {
            let file = file.clone();
            let factory = move |_: Instant, start: &Start| -> Option<Box<dyn Observer>> {
                let (vantage, id) = (Vantage::from(start.side), start.original_dcid);
                Some(Box::new(QlogWriter::new(file.clone(), vantage, "test", id, Instant::ZERO)))
            };
            Some(Arc::new(factory) as Arc<dyn transport::observe::ObserverFactory>)
        };
        let mut client = support::client_endpoint(1);
        let config = ClientConfig { observe: observe(&files[0]), ..world.client_config() };
        let handle = client.connect(at(0), &config, server_address(0), "server.test").unwrap();
        let app = Exchange::early_client(&mut client, handle, 3_000, 1_000);
        let server = ServerConfig { observe: observe(&files[1]), ..world.server_config(&tls) };
        let server = Host::new(server_address(0), server_endpoint(1, server), Exchange::server(1_000));
        let client = Host::new(client_address(0), client, app);
        let mut sim = point_to_point(Seed::from_number(1), &path(), &path(), client, server).unwrap();
        assert!(sim.run_until(at(2_000)).unwrap().is_finished());
        let stats = client_stats(&sim);
        drop(sim);
        let [client, server] = files.map(|file| schema::check(&file.0.lock().unwrap()));
        let count = |events: &[serde_json::Value], name: &str, pointer: &str, value: &str| {
            let is =
                |e: &&serde_json::Value| e["name"] == name && e["data"].pointer(pointer).is_some_and(|v| v == value);
            events.iter().filter(is).count() as u64
        };
        let early = |events: &[serde_json::Value], name: &str| count(events, name, "/header/packet_type", "0RTT");
        assert_eq!(early(&client, "quic:packet_sent"), stats.early_packets_sent);
        assert_eq!(early(&server, "quic:packet_received"), if accept { stats.early_packets_sent } else { 0 });
        let keys = |events: &[serde_json::Value], name: &str| count(events, name, "/key_type", "client_0rtt_secret");
        assert_eq!((keys(&client, "quic:key_updated"), keys(&client, "quic:key_discarded")), (1, 1));
        assert_eq!(keys(&server, "quic:key_updated"), u64::from(accept));
    }
}

/// A register that answers only when it was asked some times, and keeps whom to wake.
struct Slow {
    refusals: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
    inner: MemoryRegister,
}

impl StrikeRegister for Slow {
    fn strike(&self, id: &StrikeId, now: u64, expires: u64, waker: &Waker) -> Strike {
        match self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => {
                self.waiting.lock().unwrap().push(waker.clone());
                Strike::Pending
            }
            Err(_) => self.inner.strike(id, now, expires, waker),
        }
    }
}

#[test]
fn the_register_may_answer_later() {
    let slow =
        Arc::new(Slow { refusals: AtomicU64::new(2), waiting: Mutex::default(), inner: MemoryRegister::default() });
    let world = World { register: slow.clone(), ..World::new() };
    let tls = world.server();
    world.connect(1, &tls);
    let (mut client, _, flight) = first_flight(&world, 1);
    let mut server = server_endpoint(1, world.server_config(&tls));
    let woken: Arc<Mutex<Vec<Handle>>> = Arc::default();
    let notes = woken.clone();
    server.set_handshake_waker(Arc::new(move |handle| notes.lock().unwrap().push(handle)));
    assert_eq!(early_request(&mut server, at(50), &flight), None);
    let mut handle = None;
    for (waits, now) in [(true, 60), (false, 70)] {
        slow.waiting.lock().unwrap().drain(..).for_each(Waker::wake);
        let [first] = woken.lock().unwrap().drain(..).collect::<Vec<_>>()[..] else { panic!("one handshake waits") };
        assert_eq!(*handle.get_or_insert(first), first);
        let waiting = |server: &Endpoint| server.connection(first).unwrap().handshake_waits_for();
        assert_eq!(waiting(&server), Some(transport::tls::Waiting::Ticket));
        server.resume_handshake(at(now), first);
        assert_eq!(waiting(&server).is_some(), waits);
    }
    let connection = server.connection_mut(handle.unwrap()).unwrap();
    let id = connection.accept(Dir::Bi).unwrap();
    assert_eq!(connection.read(id, 100, Order::Ordered).unwrap().unwrap().data, b"a request"[..]);
    converse(at(80), (&mut client, client_address(0)), (&mut server, server_address(0)));
    assert!(server.connection(handle.unwrap()).unwrap().is_connected());
}

/// Old tokens are no reason to lose a connection; an old Retry token is said to be one.
// RFC 9000 §8.1.2 SHOULD-1; RFC 9000 §8.1.3 MUST-4, SHOULD-3
#[test]
fn old_tokens_and_keys() {
    let world = World::new();
    let tls = world.server();
    let token = world.connect(1, &tls);
    let ring = KeyRing::single([1; 32]);
    let config = EndpointConfig { ring: ring.clone(), ..EndpointConfig::from_seed(Seed::from_number(5)) };
    let mut server = Endpoint::new(config, Some(Arc::new(world.server_config(&tls))));
    let garbage = vec![0xd2; 60];
    let unknown = { [&[0xd2, 0, 0, 0, 9][..], &[5; 50]].concat() };
    for (n, token) in [token, garbage, unknown].into_iter().enumerate() {
        let mut client = support::client_endpoint(10 + n as u64);
        let config = ClientConfig { token, ..world.client_config() };
        let handle = client.connect(at(0), &config, server_address(0), "server.test").unwrap();
        converse(at(0), (&mut client, client_address(0)), (&mut server, server_address(0)));
        assert!(client.connection(handle).unwrap().is_connected(), "token {n}");
    }
    measured("old or strange tokens after which the handshake went on", 3);
    let stats = server.stats();
    assert_eq!((stats.tokens_foreign, stats.tokens_unknown_key), (1, 2), "{stats:?}");

    // A client that answers a Retry after half a minute.
    let mut config = world.server_config(&tls);
    config.retry = RetryPolicy::Always;
    server.set_server_config(Some(Arc::new(config)));
    let mut client = support::client_endpoint(20);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    for datagram in sent(&mut client, at(0)) {
        give(&mut server, at(0), client_address(0), &datagram.payload);
    }
    let retry = sent(&mut server, at(0));
    give(&mut client, at(0), server_address(0), &retry[0].payload);
    let late = at(30_000);
    for datagram in sent(&mut client, at(0)) {
        give(&mut server, late, client_address(0), &datagram.payload);
    }
    for datagram in sent(&mut server, late) {
        give(&mut client, late, server_address(0), &datagram.payload);
    }
    sent(&mut client, late);
    let closed = events(&mut client).into_iter().find_map(|(h, event)| match event {
        Event::Closed(reason) if h == handle => Some(reason),
        _ => None,
    });
    assert!(
        matches!(&closed, Some(CloseReason::PeerClosed { error }) if error.code == Code::INVALID_TOKEN),
        "{closed:?}"
    );
    assert!(server.stats().tokens_invalid > 0);
    assert_eq!(server.stats().retries, 2, "no other Retry than those to the two first datagrams");
}

/// A connection that began before the ring was rotated is told that its server lost it.
#[test]
fn stateless_resets_outlive_a_rotation() {
    let world = World::new();
    let tls = world.server();
    let ring = KeyRing::single([1; 32]);
    let endpoint = |seed| {
        let config = EndpointConfig { ring: ring.clone(), ..EndpointConfig::from_seed(Seed::from_number(seed)) };
        Endpoint::new(config, Some(Arc::new(world.server_config(&tls))))
    };
    let mut server = endpoint(5);
    let mut client = support::client_endpoint(1);
    let handle = client.connect(at(0), &world.client_config(), server_address(0), "server.test").unwrap();
    converse(at(0), (&mut client, client_address(0)), (&mut server, server_address(0)));
    events(&mut client);
    ring.rotate(1, [2; 32], 1, 60).unwrap();
    let mut restarted = endpoint(6);
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open(Dir::Uni).unwrap();
    connection.write(id, &mut vec![1; 500].into()).unwrap();
    for datagram in sent(&mut client, at(2_000)) {
        give(&mut restarted, at(2_000), client_address(0), &datagram.payload);
    }
    for datagram in sent(&mut restarted, at(2_000)) {
        give(&mut client, at(2_000), server_address(0), &datagram.payload);
    }
    sent(&mut client, at(2_000));
    assert!(events(&mut client).contains(&(handle, Event::Closed(CloseReason::Reset))));
}

#[test]
fn the_goal_of_the_exchange_is_not_reached_by_itself() {
    // Guards the other tests: without a server nothing is answered.
    let world = World::new();
    let tls = world.server();
    world.connect(1, &tls);
    let mut sim = world.simulation(1, &path(), &tls, |_| {}, (1_000, 1_000));
    sim.with_node(1, |_, host| host.app.goal = Goal::Never).unwrap();
    sim.network_mut().link_mut(Dumbbell::UP).set_script(Script::new(|_| Some(Forced::Drop)));
    assert!(!sim.run_until(at(5_000)).unwrap().is_finished());
}

/// The acknowledgement of early data that filled the window was lost, and the server had nothing else to say.
#[test]
fn early_data_in_flight_does_not_hold_the_handshake_up() {
    let (seed, world) = (85, World::new());
    world.connect(seed, &world.server());
    let mut sim = world.simulation(seed, &bad_path(), &world.server(), |_| {}, (20_000, 50_000));
    let outcome = sim.run_until(at(60_000)).unwrap();
    assert!(outcome.is_finished(), "{outcome}; {:?}", sim.node(0).app.closed);
}

// RFC 9369 §4.1 MUST NOT-3
#[test]
fn early_data_keeps_the_version_of_the_first_flight() {
    let world = World::new();
    let tls = world.server();
    world.connect(1, &tls);
    let mut client = support::client_endpoint(2);
    let mut config = world.client_config();
    config.version = V1;
    config.versions = vec![V1, V2];
    let mut server_config = world.server_config(&tls);
    server_config.versions = vec![V1, V2];
    server_config.upgrade_to = Some(V2);
    let mut server = server_endpoint(2, server_config);
    let handle = client.connect(at(0), &config, server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let stream = connection.open_early(Dir::Uni).unwrap();
    connection.write(stream, &mut vec![7; 9_000].into()).unwrap();
    let mut early = 0;
    let mut now = at(0);
    let mut check = |datagrams: &[Sent]| {
        for datagram in datagrams {
            let mut rest = &datagram.payload[..];
            while let Ok(header @ wire::Header::Long { ty, version, .. }) = wire::Header::parse(rest, 8) {
                if ty == wire::LongType::ZeroRtt {
                    assert_eq!(version, V1);
                    early += 1;
                }
                rest = &rest[header.packet_len()..];
            }
        }
    };
    // The server's first answer comes when only a part of the early data has left.
    let first = sent(&mut client, now);
    check(&first);
    first.iter().for_each(|d| give(&mut server, now, client_address(0), &d.payload));
    for _ in 0..10 {
        let down = sent(&mut server, now);
        down.iter().for_each(|d| give(&mut client, now, server_address(0), &d.payload));
        let up = sent(&mut client, now);
        check(&up);
        up.iter().for_each(|d| give(&mut server, now, client_address(0), &d.payload));
        now += Duration::from_millis(10);
        client.handle_timeout(now);
        server.handle_timeout(now);
    }
    assert!(early > 3, "{early}");
    let accepted = server.poll_accept().unwrap();
    for (endpoint, handle) in [(&client, handle), (&server, accepted)] {
        let connection = endpoint.connection(handle).unwrap();
        assert_eq!((connection.version(), connection.early_data()), (V2, EarlyData::Accepted));
    }
    assert!(server.connection(accepted).unwrap().stats().early_bytes_received >= 9_000);

    // RFC 9369 §5: the tickets of this connection are for version 2.
    for (version, offers) in [(V1, false), (V2, true)] {
        let mut client = support::client_endpoint(3);
        // The older ticket of the first connection goes first.
        let config = ClientConfig { version, ..config.clone() };
        let handle = client.connect(at(100), &config, server_address(0), "server.test").unwrap();
        let offered = client.connection(handle).unwrap().early_data() == EarlyData::Offered;
        assert_eq!(offered, offers, "{version:#x}");
    }
}
