//! Ends of connections: closing in every phase, silence, a peer that has lost its state.

use crate::support;

use std::sync::Arc;

use netem::{Forced, LinkConfig, PacketMeta, Script};
use sim::{Dumbbell, LinkId, Simulation, client_address, point_to_point, server_address};
use support::{
    CLOCK, Host, client_config, client_endpoint,
    direct::{events, give, sent},
    exchange::{Exchange, Goal},
    identity, server_config, server_endpoint,
};
use transport::{
    ClientConfig, CloseReason, Code, Event, Profile, RetryPolicy, ServerConfig, tls::rustls_backend::RustlsClient,
};
use units::{Duration, Instant, Seed};

type Sim = Simulation<Host<Exchange>>;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Client – 20 ms – server; both run until their connection has ended.
fn simulation(client_profile: &Profile, server_profile: &Profile, answer: usize) -> Sim {
    simulation_with(&client_config(client_profile), server_config(server_profile), answer)
}

fn simulation_with(config: &ClientConfig, server_config: ServerConfig, answer: usize) -> Sim {
    let link = LinkConfig { delay: Duration::from_millis(20), ..LinkConfig::default() };
    let mut client = client_endpoint(1);
    let handle = client.connect(Instant::ZERO, config, server_address(0), "server.test").unwrap();
    let asking = Exchange::client(handle, 100, answer).until(Goal::Closed);
    let answering = Exchange::server(answer).until(Goal::Closed);
    let server = server_endpoint(1, server_config);
    let (client, server) =
        (Host::new(client_address(0), client, asking), Host::new(server_address(0), server, answering));
    point_to_point(Seed::from_number(1), &link, &link, client, server).unwrap()
}

fn short_lived(millis: u64) -> Profile {
    Profile { idle_timeout: Duration::from_millis(millis), ..Profile::default() }
}

/// Runs on for so many milliseconds, also when both know that the connection has ended.
fn run_on(sim: &mut Sim, millis: u64) {
    let end = sim.now() + Duration::from_millis(millis);
    for node in 0..2 {
        sim.with_node(node, |_, host| host.app.goal = Goal::Never).unwrap();
    }
    let _ = sim.run_until(end).unwrap();
}

/// Lets the client (0) or the server (1) close with this code.
fn close(sim: &mut Sim, node: usize, code: u64) {
    sim.with_node(node, |now, host| {
        let handle = host.app.handle.or(host.app.accepted.first().copied()).unwrap();
        host.endpoint.connection_mut(handle).unwrap().close(now, code, b"enough");
    })
    .unwrap();
}

fn reasons(sim: &Sim) -> (Option<&CloseReason>, Option<&CloseReason>) {
    (sim.node(0).app.reason(), sim.node(1).app.reason())
}

// RFC 9000 §10.2 SHOULD-2; RFC 9000 §10.2.3 MUST-2, SHOULD-4
#[test]
fn a_client_may_close_at_any_time() {
    for when in [0, 1, 10, 21, 30, 41, 45, 60, 61, 79, 81, 100, 500] {
        let mut sim = simulation(&Profile::default(), &Profile::default(), 100_000);
        let _ = sim.run_until(at(when)).unwrap();
        close(&mut sim, 0, 9);
        run_on(&mut sim, 4_000);
        let (client, server) = reasons(&sim);
        assert_eq!(client, Some(&CloseReason::ThisApplication { code: 9 }), "at {when} ms");
        match server {
            // RFC 9000 §10.2.3: before the handshake is complete the application's code is not told.
            Some(CloseReason::PeerClosed { error }) if when < 45 => assert_eq!(error.code, Code::APPLICATION_ERROR),
            Some(CloseReason::PeerApplication { code: 9, reason }) if when >= 40 => assert_eq!(&reason[..], b"enough"),
            None if when < 21 => {}
            other => panic!("at {when} ms: {other:?}"),
        }
        for node in sim.nodes() {
            assert_eq!(node.endpoint.open_connections(), 0, "at {when} ms: everything is forgotten");
        }
    }
}

// RFC 9000 §10.2 SHOULD-2; RFC 9000 §10.2.3 SHOULD-1, SHOULD-2, SHOULD-3
#[test]
fn a_server_may_close_at_any_time() {
    for when in [21, 30, 41, 59, 61, 65, 79, 81, 100, 500] {
        let mut sim = simulation(&Profile::default(), &Profile::default(), 100_000);
        let _ = sim.run_until(at(when)).unwrap();
        close(&mut sim, 1, 9);
        run_on(&mut sim, 4_000);
        let (client, server) = reasons(&sim);
        assert_eq!(server, Some(&CloseReason::ThisApplication { code: 9 }), "at {when} ms");
        match client {
            Some(CloseReason::PeerClosed { error }) if when < 61 => assert_eq!(error.code, Code::APPLICATION_ERROR),
            Some(CloseReason::PeerApplication { code: 9, .. }) => {}
            other => panic!("at {when} ms: {other:?}"),
        }
        for node in sim.nodes() {
            assert_eq!(node.endpoint.open_connections(), 0, "at {when} ms: everything is forgotten");
        }
    }
}

#[test]
fn both_may_close_at_once() {
    for when in [41, 65, 200, 1_000] {
        let mut sim = simulation(&Profile::default(), &Profile::default(), 1_000);
        let _ = sim.run_until(at(when)).unwrap();
        close(&mut sim, 0, 1);
        close(&mut sim, 1, 2);
        let packets = sim.trace().packets();
        run_on(&mut sim, 4_000);
        assert_eq!(
            reasons(&sim),
            (Some(&CloseReason::ThisApplication { code: 1 }), Some(&CloseReason::ThisApplication { code: 2 }))
        );
        assert!(sim.trace().packets() - packets <= 8, "two closing ends fall silent");
        assert!(sim.nodes().all(|node| node.endpoint.open_connections() == 0));
    }
}

/// CONNECTION_CLOSE is repeated to a peer that continues sending.
// RFC 9000 §11.1 SHOULD-1
#[test]
fn a_lost_close_is_repeated_to_a_peer_that_still_sends() {
    let mut sim = simulation(&Profile::default(), &Profile::default(), 2_000_000);
    let _ = sim.run_until(at(120)).unwrap();
    let up = sim.network_mut().link_mut(Dumbbell::UP);
    let mut lost = 0;
    up.set_script(Script::new(move |_| {
        lost += 1;
        (lost == 1).then_some(Forced::Drop)
    }));
    close(&mut sim, 0, 9);
    let _ = sim.run_until(at(1_000)).unwrap();
    assert!(matches!(reasons(&sim).1, Some(CloseReason::PeerApplication { code: 9, .. })), "{:?}", reasons(&sim).1);
}

#[test]
fn silence_ends_the_connection_at_the_smaller_of_both_timeouts() {
    for (client, server, expected) in
        [(2_000, 9_000, 2_000), (9_000, 2_000, 2_000), (0, 3_000, 3_000), (3_000, 0, 3_000)]
    {
        let mut sim = simulation(&short_lived(client), &short_lived(server), 1_000);
        let outcome = sim.run_until(at(20_000)).unwrap();
        assert!(outcome.is_finished(), "{client} {server}: {outcome}");
        for node in sim.nodes() {
            let (when, reason) = node.app.closed.as_ref().unwrap();
            assert_eq!(reason, &CloseReason::IdleTimeout);
            let silent = *when - at(120);
            assert!(silent >= Duration::from_millis(expected - 100), "{client} {server}: {silent:?}");
            assert!(silent <= Duration::from_millis(expected + 400), "{client} {server}: {silent:?}");
        }
    }
}

#[test]
fn without_a_timeout_silence_lasts() {
    let mut sim = simulation(&short_lived(0), &short_lived(0), 1_000);
    let outcome = sim.run_until(at(3_600_000)).unwrap();
    assert!(!outcome.is_finished());
    assert!(sim.node(0).app.answered.is_some());
}

#[test]
fn keep_alive_keeps_the_connection() {
    for (client, server) in [(true, false), (false, true), (true, true)] {
        let profile =
            |keep: bool| Profile { keep_alive: keep.then_some(Duration::from_millis(700)), ..short_lived(2_000) };
        let mut sim = simulation(&profile(client), &profile(server), 1_000);
        let _ = sim.run_until(at(60_000)).unwrap();
        assert_eq!(reasons(&sim), (None, None), "{client} {server}");
        assert!(sim.trace().packets() < 600, "{client} {server}: {} packets", sim.trace().packets());
        // When the path dies, so does the connection.
        for link in [Dumbbell::UP, Dumbbell::DOWN] {
            sim.network_mut().link_mut(link).set_script(Script::new(|_| Some(Forced::Drop)));
        }
        assert!(sim.run_until(at(70_000)).unwrap().is_finished(), "{client} {server}");
        assert_eq!(reasons(&sim), (Some(&CloseReason::IdleTimeout), Some(&CloseReason::IdleTimeout)));
    }
}

#[test]
fn a_server_that_nobody_answers_gives_up() {
    let mut sim = simulation(&Profile::default(), &Profile::default(), 1_000);
    sim.network_mut().link_mut(Dumbbell::DOWN).set_script(Script::new(|_| Some(Forced::Drop)));
    assert!(sim.run_until(at(30_000)).unwrap().is_finished());
    assert_eq!(reasons(&sim), (Some(&CloseReason::HandshakeTimeout), Some(&CloseReason::HandshakeTimeout)));
}

fn patient(millis: u64) -> Profile {
    Profile { handshake_timeout: Duration::from_millis(millis), ..Profile::default() }
}

/// A client without the sessions of the others: the server's flight has its full size.
fn stranger(profile: &Profile) -> ClientConfig {
    let tls =
        RustlsClient::builder().roots([identity().1.clone()]).alpn("test").clock(Arc::new(CLOCK)).build().unwrap();
    ClientConfig::new(Arc::new(tls), Arc::new(profile.clone()))
}

fn lose(sim: &mut Sim, link: LinkId, which: impl Fn(&PacketMeta) -> bool + Send + 'static) {
    let script = Script::new(move |packet| which(packet).then_some(Forced::Drop));
    sim.network_mut().link_mut(link).set_script(script);
}

fn gave_up(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::PeerClosed { error } if error.code == Code::NO_ERROR)
}

/// A server with this limit of the handshake, in milliseconds, that knows the client's address, by a token or by an acknowledgement in a
/// Handshake packet, and nothing of the client's last flight; the client is connected.
fn last_flight_lost(retry: RetryPolicy, limit: u64) -> Sim {
    let config = ServerConfig { retry, ..server_config(&patient(limit)) };
    let mut sim = simulation_with(&stranger(&Profile::default()), config, 1_000);
    if retry == RetryPolicy::Always {
        // There: 0, 40 and 80 ms.
        let _ = sim.run_until(at(70)).unwrap();
    } else {
        // At first, no more arrives of the server's flight than the keys for Handshake packets.
        lose(&mut sim, Dumbbell::DOWN, |packet| (3..6).contains(&packet.number));
        let _ = sim.run_until(at(65)).unwrap();
        assert!(sim.node(0).app.connected.is_none());
    }
    lose(&mut sim, Dumbbell::UP, |_| true);
    let _ = sim.run_until(at(limit)).unwrap();
    assert!(sim.node(0).app.connected.is_some() && sim.node(1).app.connected.is_none(), "{retry:?}");
    assert_eq!(reasons(&sim), (None, None));
    sim
}

/// Without a word, the client would wait for its idle timeout of 30 s.
// RFC 9000 §10.2.3 SHOULD-1, SHOULD-3
#[test]
fn a_client_hears_that_the_server_gives_the_handshake_up() {
    for retry in [RetryPolicy::Always, RetryPolicy::Never] {
        let mut sim = last_flight_lost(retry, 2_000);
        run_on(&mut sim, 1_000);
        let (heard, reason) = sim.node(0).app.closed.as_ref().unwrap();
        let (said, cause) = sim.node(1).app.closed.as_ref().unwrap();
        assert_eq!(cause, &CloseReason::HandshakeTimeout, "{retry:?}");
        assert!(gave_up(reason), "{retry:?}: {reason:?}");
        assert!(*heard - *said <= Duration::from_millis(40), "{retry:?}: within a round trip");
        run_on(&mut sim, 4_000);
        assert!(sim.nodes().all(|node| node.endpoint.open_connections() == 0), "{retry:?}: everything is forgotten");
    }
}

fn lose_nothing(sim: &mut Sim) {
    for link in [Dumbbell::UP, Dumbbell::DOWN] {
        lose(sim, link, |_| false);
    }
}

// RFC 9000 §10.2.1 SHOULD-1
#[test]
fn a_server_that_has_given_up_tells_who_sends_again() {
    for retry in [RetryPolicy::Always, RetryPolicy::Never] {
        let mut sim = last_flight_lost(retry, 1_500);
        lose(&mut sim, Dumbbell::DOWN, |_| true);
        // After a Retry, the server begins 40 ms later.
        let _ = sim.run_until(at(1_600)).unwrap();
        assert_eq!(reasons(&sim), (None, Some(&CloseReason::HandshakeTimeout)), "{retry:?}");
        let [resend, forget] = [0, 1].map(|node| sim.node(node).endpoint.poll_timeout().unwrap().0);
        assert!(resend < forget, "{retry:?}: the client sends while the server is closing: {resend:?} {forget:?}");
        lose_nothing(&mut sim);
        run_on(&mut sim, 3_000);
        assert!(reasons(&sim).0.is_some_and(gave_up), "{retry:?}: {:?}", reasons(&sim).0);
        assert_eq!(sim.node(1).endpoint.stats().closes_repeated, 0, "{retry:?}: by the connection itself");
    }
}

/// Runs until the server has discarded its connection, whose CONNECTION_CLOSE packets are lost, and on until the client knows.
fn told_by_what_is_left(sim: &mut Sim) {
    lose(sim, Dumbbell::DOWN, |_| true);
    while sim.node(1).endpoint.open_connections() > 0 {
        run_on(sim, 50);
    }
    let forgotten = sim.now();
    assert_eq!(reasons(sim).0, None);
    lose_nothing(sim);
    for _ in 0..1_000 {
        if reasons(sim).0.is_some() {
            break;
        }
        run_on(sim, 50);
    }
    let stats = sim.node(1).endpoint.stats();
    assert!(stats.closes_repeated > 0 && stats.resets == 0, "{:?}: {stats:?}", reasons(sim).0);
    // The wait before a probe is as long as all before it together.
    let (before, after) = (forgotten - Instant::ZERO, sim.now() - forgotten);
    assert!(after <= before + Duration::from_millis(500), "{before:?} {after:?}");
}

/// The client sends again after waits that double: the next time, the server has long forgotten the connection.
// RFC 9000 §10.2.1 SHOULD-1
#[test]
fn a_client_that_sends_again_late_still_hears_that_the_server_has_given_up() {
    for retry in [RetryPolicy::Always, RetryPolicy::Never] {
        let mut sim = last_flight_lost(retry, 10_000);
        told_by_what_is_left(&mut sim);
        assert!(reasons(&sim).0.is_some_and(gave_up), "{retry:?}: {:?}", reasons(&sim).0);
    }
}

/// A server that closes as soon as it has the client's last flight: nothing of what it says arrives.
// RFC 9000 §10.2.3 MUST-1
#[test]
fn a_client_that_does_not_know_its_handshake_confirmed_still_hears_of_the_end() {
    let mut sim = simulation(&Profile::default(), &Profile::default(), 1_000);
    // The client is connected after 40 ms, the server after 60.
    let _ = sim.run_until(at(50)).unwrap();
    lose(&mut sim, Dumbbell::DOWN, |_| true);
    let _ = sim.run_until(at(65)).unwrap();
    assert!(sim.nodes().all(|node| node.app.connected.is_some()));
    close(&mut sim, 1, 9);
    told_by_what_is_left(&mut sim);
    let reason = reasons(&sim).0;
    assert!(matches!(reason, Some(CloseReason::PeerApplication { code: 9, .. })), "{reason:?}");
}

/// Two ends that close within the handshake, when they have no other packets in common, fall silent as well.
// RFC 9000 §10.2.1 SHOULD-1
#[test]
fn a_close_in_a_packet_of_the_handshake_silences() {
    let (from_client, from_server) = (client_address(0), server_address(0));
    let mut client = client_endpoint(1);
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let handle = client.connect(at(0), &stranger(&Profile::default()), from_server, "server.test").unwrap();
    for datagram in sent(&mut client, at(0)) {
        give(&mut server, at(0), from_client, &datagram.payload);
    }
    let accepted = server.poll_accept().unwrap();
    for datagram in sent(&mut server, at(0)) {
        give(&mut client, at(0), from_server, &datagram.payload);
    }
    // The client's acknowledgements, which show its address, arrive; its last flight does not.
    let last_flight: Vec<Vec<u8>> = sent(&mut client, at(0)).into_iter().map(|d| d.payload).collect();
    client.connection_mut(handle).unwrap().close(at(0), 1, b"");
    server.connection_mut(accepted).unwrap().close(at(0), 2, b"");
    let closes = [&mut client, &mut server].map(|end| sent(end, at(0)));
    assert!(closes.iter().all(|closes| closes.len() == 1 && closes[0].payload[0] & 0x80 != 0));
    give(&mut server, at(0), from_client, &closes[0][0].payload);
    give(&mut client, at(0), from_server, &closes[1][0].payload);
    for _ in 0..10 {
        for payload in &last_flight {
            give(&mut server, at(0), from_client, payload);
        }
        give(&mut client, at(0), from_server, &closes[1][0].payload);
        assert!(sent(&mut server, at(0)).is_empty() && sent(&mut client, at(0)).is_empty());
    }
}

#[test]
fn a_server_hears_that_the_client_gives_the_handshake_up() {
    // An acknowledgement is all that arrives, or the keys for Handshake packets, too.
    for arrive in [1, 3] {
        let mut sim = simulation_with(&stranger(&patient(1_000)), server_config(&Profile::default()), 1_000);
        lose(&mut sim, Dumbbell::DOWN, move |packet| packet.number >= arrive);
        let _ = sim.run_until(at(1_500)).unwrap();
        let (said, cause) = sim.node(0).app.closed.as_ref().unwrap();
        let (heard, reason) = sim.node(1).app.closed.as_ref().unwrap();
        assert_eq!((*said, cause), (at(1_000), &CloseReason::HandshakeTimeout));
        assert!(gave_up(reason), "{reason:?}");
        assert_eq!(*heard, at(1_020));
    }
}

/// Runs a server past its handshake timeout, after a client sent these payloads once. Returns its last packets, and checks what
/// it kept.
fn last_packets(payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    for payload in payloads {
        give(&mut server, at(0), client_address(0), payload);
    }
    assert_eq!(server.open_connections(), 1);
    let mut answered: usize = sent(&mut server, at(0)).iter().map(|d| d.payload.len()).sum();
    let end = Instant::ZERO + Profile::default().handshake_timeout;
    while let Some((now, ..)) = server.poll_timeout().filter(|(now, ..)| *now < end) {
        server.handle_timeout(now);
        answered += sent(&mut server, now).iter().map(|d| d.payload.len()).sum::<usize>();
    }
    let received: usize = payloads.iter().map(Vec::len).sum();
    assert!((1..=3 * received).contains(&answered), "{answered} for {received}");
    server.handle_timeout(end);
    let packets = sent(&mut server, end).into_iter().map(|d| d.payload).collect();
    let told = events(&mut server);
    assert!(told.iter().any(|(_, event)| *event == Event::Closed(CloseReason::HandshakeTimeout)), "{told:?}");
    // What was sent in vain is not answered any more, either.
    for payload in payloads.iter().filter(|payload| payload[0] & 0x30 != 0) {
        give(&mut server, end, client_address(0), payload);
    }
    assert!(sent(&mut server, end).is_empty());
    assert_eq!(server.open_connections(), 0, "nothing is kept");
    packets
}

/// Floods of half-open handshakes do not become floods of CONNECTION_CLOSE: a third party may have sent them.
// RFC 9000 §8.1 MUST NOT-1
#[test]
fn a_server_says_nothing_to_an_address_that_nobody_has_shown_to_be_his() {
    for seed in 1..=20 {
        let mut client = client_endpoint(seed);
        let config = client_config(&Profile::default());
        let _ = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
        let mut flight: Vec<Vec<u8>> = sent(&mut client, at(0)).into_iter().map(|d| d.payload).collect();
        assert!(flight.len() > 1, "the ClientHello spans two datagrams");
        for some in [&flight[..1], &flight[..]] {
            assert!(last_packets(some).is_empty(), "{seed}: {} of its datagrams", some.len());
        }
        // A Handshake packet that nobody could seal shows nothing.
        let mut forged = flight[0].clone();
        forged[0] = 0xe0;
        flight.push(forged);
        assert!(last_packets(&flight).is_empty(), "{seed}: with a forged Handshake packet");
    }
}

/// The server's process is started again: its new endpoint knows the secret and none of the connections.
// RFC 9000 §10.3.1 MUST-1, MUST-3
#[test]
fn a_server_that_lost_its_state_says_so() {
    let profile = Profile { keep_alive: Some(Duration::from_millis(500)), ..Profile::default() };
    let mut sim = simulation(&profile, &Profile::default(), 1_000);
    let _ = sim.run_until(at(400)).unwrap();
    assert!(sim.node(0).app.answered.is_some());
    sim.with_node(1, |_, host| host.endpoint = server_endpoint(1, server_config(&Profile::default()))).unwrap();
    let _ = sim.run_until(at(3_000)).unwrap();
    assert_eq!(reasons(&sim).0, Some(&CloseReason::Reset));
    assert!(sim.node(1).endpoint.stats().resets > 0);
    assert_eq!(sim.node(0).endpoint.stats().resets, 0, "a reset is not answered with another");
}

/// RFC 9000 §10.3: only IDs that were issued later have tokens at a server; it uses one after a change of address.
// RFC 9000 §10.3.1 MUST-1
#[test]
fn a_client_that_lost_its_state_says_so() {
    let profile = Profile { keep_alive: Some(Duration::from_millis(500)), ..Profile::default() };
    let mut sim = simulation(&Profile::default(), &profile, 1_000);
    let mut moved = client_address(0);
    moved.set_port(999);
    sim.with_node(0, |_, host| host.moves.push((at(300), moved))).unwrap();
    let _ = sim.run_until(at(310)).unwrap();
    sim.with_node(0, |_, host| {
        let handle = host.app.handle.unwrap();
        host.endpoint.connection_mut(handle).unwrap().ping();
    })
    .unwrap();
    let _ = sim.run_until(at(2_000)).unwrap();
    assert_eq!(sim.node(1).app.migrated, 1);
    sim.with_node(0, |_, host| host.endpoint = client_endpoint(1)).unwrap();
    let _ = sim.run_until(at(6_000)).unwrap();
    assert_eq!(reasons(&sim).1, Some(&CloseReason::Reset));
}

/// A reset that is not ours, or comes from elsewhere, ends nothing; nor does noise.
#[test]
fn forged_resets_end_nothing() {
    let mut sim = simulation(&Profile::default(), &Profile::default(), 1_000);
    let _ = sim.run_until(at(400)).unwrap();
    for len in [16, 20, 21, 22, 40, 43, 100, 1200] {
        sim.with_node(0, |now, host| {
            let noise: Vec<u8> = (0..len).map(|i| 0x40 | (i * 37 % 64) as u8).collect();
            give(&mut host.endpoint, now, server_address(0), &noise);
        })
        .unwrap();
    }
    let _ = sim.run_until(at(500)).unwrap();
    assert_eq!(reasons(&sim), (None, None));
}

// RFC 9000 §10.3 SHOULD-3, MUST NOT-1; RFC 9000 §10.3.3 MUST-1
#[test]
fn resets_grow_shorter_and_are_limited() {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let mut total = 0;
    for n in 0..10_000_u32 {
        let len = 10 + (n % 60) as usize;
        let mut noise = vec![0x41; len];
        noise[1..5].copy_from_slice(&n.to_be_bytes());
        give(&mut server, at(1), client_address(0), &noise);
        for answer in sent(&mut server, at(1)) {
            assert!(answer.payload.len() < len, "RFC 9000 §10.3.3: {} for {len}", answer.payload.len());
            total += 1;
        }
    }
    assert!((1..=200).contains(&total), "{total} resets in an instant");
}

/// Data that was read before the CONNECTION_CLOSE is reported before it: no event follows `Closed`.
#[test]
fn nothing_is_told_after_closed() {
    let mut sim = simulation(&Profile::default(), &Profile::default(), 50_000);
    let _ = sim.run_until(at(85)).unwrap();
    close(&mut sim, 1, 9);
    let mut seen = Vec::new();
    for step in 86..400 {
        let _ = sim.run_until(at(step)).unwrap();
        sim.with_node(0, |_, host| seen.extend(events(&mut host.endpoint))).unwrap();
    }
    let closed = seen.iter().position(|(_, event)| matches!(event, Event::Closed(_)));
    assert!(closed.is_none_or(|place| place + 1 == seen.len()), "{seen:?}");
}
