//! The handshake on bad paths: packets of the first flights lost, late, twice or damaged; Retry, Version Negotiation and
//! address validation.

use crate::support;

use netem::{Duplicate, Forced, LinkConfig, PacketMeta, Script};
use sim::{Dumbbell, LinkId, Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    direct::{converse, events, give, sent},
    exchange::{Exchange, Goal},
    server_config, server_endpoint,
};
use transport::{CloseReason, Event, Profile, RetryPolicy, ServerConfig};
use units::{Duration, Instant, Probability, Seed};
use wire::{ConnectionId, Header, Writer};

/// Packets of a direction that get a fate of their own.
const FIRST: u64 = 12;

type Sim = Simulation<Host<Exchange>>;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Client – 25 ms – server, and a request of 3,000 bytes each way.
fn simulation(link: &LinkConfig, server: ServerConfig) -> Sim {
    let profile = Profile::default();
    let mut client = client_endpoint(1);
    let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
    let client = Host::new(client_address(0), client, Exchange::client(handle, 3_000, 3_000));
    let server = Host::new(server_address(0), server_endpoint(1, server), Exchange::server(3_000));
    point_to_point(Seed::from_number(1), link, link, client, server).unwrap()
}

fn path() -> LinkConfig {
    LinkConfig { delay: Duration::from_millis(25), ..LinkConfig::default() }
}

/// Runs with a fate for packets of each direction; the answer has to be there within `limit` milliseconds.
fn run(
    name: &str,
    retry: RetryPolicy,
    limit: u64,
    fate: impl Fn(LinkId, &PacketMeta) -> Option<Forced> + Clone + Send + 'static,
) -> Sim {
    let mut server = server_config(&Profile::default());
    server.retry = retry;
    let mut sim = simulation(&path(), server);
    for link in [Dumbbell::UP, Dumbbell::DOWN] {
        let fate = fate.clone();
        sim.network_mut().link_mut(link).set_script(Script::new(move |packet| fate(link, packet)));
    }
    let outcome = sim.run_until(at(limit)).unwrap();
    assert!(outcome.is_finished(), "{name}: {outcome}");
    assert!(sim.node(0).app.closed.is_none(), "{name}: {:?}", sim.node(0).app.closed);
    sim
}

fn numbered(fates: Vec<(LinkId, u64)>, forced: Forced) -> impl Fn(LinkId, &PacketMeta) -> Option<Forced> + Clone {
    move |link, packet| fates.contains(&(link, packet.number)).then_some(forced)
}

fn each_direction() -> impl Iterator<Item = (LinkId, u64)> + Clone {
    (0..FIRST).flat_map(|n| [(Dumbbell::UP, n), (Dumbbell::DOWN, n)])
}

// RFC 9001 §4 MUST-1; RFC 9001 §4.9 MUST-1
#[test]
fn any_single_packet_may_be_lost() {
    for one in each_direction() {
        run(&format!("{one:?}"), RetryPolicy::Never, 2_500, numbered(vec![one], Forced::Drop));
    }
}

// RFC 9000 §8.1 MUST-3; RFC 9002 §6.2.2.1 MUST-1
#[test]
fn any_two_packets_may_be_lost() {
    for one in each_direction() {
        for two in each_direction().filter(|&two| two > one) {
            run(&format!("{one:?} {two:?}"), RetryPolicy::Never, 6_000, numbered(vec![one, two], Forced::Drop));
        }
    }
}

#[test]
fn any_single_packet_may_be_damaged() {
    for one in each_direction() {
        run(&format!("{one:?}"), RetryPolicy::Never, 2_500, numbered(vec![one], Forced::Corrupt));
    }
}

#[test]
fn any_single_packet_may_be_late() {
    for late in [40, 200, 700] {
        for one in each_direction() {
            let forced = Forced::Delay(Duration::from_millis(late));
            let sim = run(&format!("{one:?} by {late}"), RetryPolicy::Never, 2_500, numbered(vec![one], forced));
            assert_eq!(sim.node(1).app.accepted.len(), 1, "{one:?} by {late}");
        }
    }
}

// RFC 9000 §7.3 MUST-1; RFC 9000 §8.1.2 MUST-1
#[test]
fn any_single_packet_may_be_lost_around_a_retry() {
    for one in each_direction() {
        let sim = run(&format!("{one:?}"), RetryPolicy::Always, 4_500, numbered(vec![one], Forced::Drop));
        assert_eq!(sim.node(1).endpoint.open_connections(), 1);
        assert!(sim.node(1).endpoint.stats().retries > 0);
    }
}

#[test]
fn runs_of_lost_packets_delay_the_handshake_and_no_more() {
    for link in [Dumbbell::UP, Dumbbell::DOWN] {
        for first in 0..6 {
            for len in 2..6 {
                let fates = (first..first + len).map(|n| (link, n)).collect();
                run(&format!("{link:?} {first}+{len}"), RetryPolicy::Never, 9_000, numbered(fates, Forced::Drop));
            }
        }
    }
}

/// A copy of the client's first packets comes long after the handshake: the connection it belongs to knows it still.
#[test]
fn copies_of_first_packets_open_no_second_connection() {
    for delay in [10, 100, 2_000] {
        let duplicate = Duplicate { probability: Probability::ONE, delay: Duration::from_millis(delay) };
        let link = LinkConfig { duplicate: Some(duplicate), ..path() };
        let mut sim = simulation(&link, server_config(&Profile::default()));
        assert!(sim.run_until(at(2_500)).unwrap().is_finished());
        sim.with_node(0, |_, host| host.app.goal = Goal::Never).unwrap();
        let _ = sim.run_until(at(4_000)).unwrap();
        assert_eq!(sim.node(1).app.accepted.len(), 1, "copies within {delay} ms");
        assert_eq!(sim.node(1).endpoint.open_connections(), 1);
    }
}

/// The first datagrams of a client, which have not been answered.
fn first_flight(seed: u64) -> (transport::Endpoint, transport::Handle, Vec<Vec<u8>>) {
    let mut client = client_endpoint(seed);
    let config = client_config(&Profile::default());
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let flight: Vec<_> = sent(&mut client, Instant::ZERO).into_iter().map(|d| d.payload).collect();
    assert!(flight.len() > 1, "the ClientHello spans two datagrams");
    (client, handle, flight)
}

/// RFC 9000 §8.1: whatever a client that never answers sends, and however long the server waits.
// RFC 9000 §8 MUST-1; RFC 9000 §8.1 MUST NOT-1; RFC 9000 §14.1 MUST-4
#[test]
fn a_server_never_sends_more_than_three_times_what_it_received() {
    let (_, _, flight) = first_flight(1);
    let orders: [&[usize]; 7] = [&[0], &[1], &[0, 1], &[1, 0], &[0, 0, 0, 0], &[0, 1, 1, 0, 1, 0], &[1, 1, 1, 0]];
    for order in orders {
        let mut server = server_endpoint(1, server_config(&Profile::default()));
        let (mut received, mut answered) = (0, 0);
        let mut now = Instant::ZERO;
        for step in 0..4_000 {
            if step % 10 == 0
                && let Some(&n) = order.get(step / 10)
            {
                received += flight[n].len();
                give(&mut server, now, client_address(0), &flight[n]);
            }
            answered += sent(&mut server, now).iter().map(|d| d.payload.len()).sum::<usize>();
            assert!(answered <= 3 * received, "{order:?}: {answered} for {received}");
            now += Duration::from_millis(5);
            server.handle_timeout(now);
        }
        assert!(answered > 0, "{order:?}: nothing was sent");
        assert_eq!(server.open_connections(), 0, "{order:?}: given up after the time for the handshake");
    }
}

/// RFC 9000 §14.1: so that nobody draws large answers with small datagrams.
// RFC 9000 §14 MUST NOT-3; RFC 9000 §14.1 MUST-3
#[test]
fn a_server_discards_initial_packets_in_small_datagrams() {
    let (_, _, flight) = first_flight(1);
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    give(&mut server, Instant::ZERO, client_address(0), &flight[0]);
    let handle = server.poll_accept().unwrap();
    sent(&mut server, Instant::ZERO);
    let before = server.connection(handle).unwrap().stats().packets_received;
    // A packet of the same client that another implementation might not have padded.
    let mut keys = transport::keys::Keys::new(
        wire::Side::Client,
        transport::crypto::Labels::of(1).unwrap(),
        transport::keys::KeyLimits::default(),
    );
    let Ok(Header::Long { dcid, scid, .. }) = Header::parse(&flight[0], 8) else { panic!("a long header") };
    keys.set_initial(dcid.as_slice());
    let mut packet = support::puppet::seal_long(&mut keys, transport::tls::Level::Initial, dcid, scid, 9, &[1; 40]);
    give(&mut server, Instant::ZERO, client_address(0), &packet);
    assert_eq!(server.connection(handle).unwrap().stats().packets_received, before);
    packet = support::puppet::seal_long(&mut keys, transport::tls::Level::Initial, dcid, scid, 9, &[1; 1180]);
    give(&mut server, Instant::ZERO, client_address(0), &packet);
    assert_eq!(server.connection(handle).unwrap().stats().packets_received, before + 1);
}

fn version_negotiation(dcid: &[u8], scid: &[u8], versions: &[u32]) -> Vec<u8> {
    let mut packet = vec![0; 200];
    let mut w = Writer::new(&mut packet);
    wire::encode_version_negotiation(&mut w, 0x2a, dcid, scid, versions);
    let len = w.position();
    packet.truncate(len);
    packet
}

// RFC 9000 §6.2 MUST-1, MUST-3; RFC 8999 §6 MUST-1, MUST-2; RFC 9000 §17.2.1 MUST-1
#[test]
fn version_negotiation_ends_an_attempt_only_when_it_can_be_genuine() {
    let cases: [(&str, &[u32], bool, bool, bool); 6] = [
        ("another version", &[0xff00_001d], true, false, true),
        ("ours among others", &[0xff00_001d, 1], true, false, false),
        ("nothing", &[], true, false, false),
        ("cut off", &[0xff00_001d], true, true, false),
        ("not for the ID that we addressed", &[0xff00_001d], false, false, false),
        ("greased only", &[0x1a2a_3a4a], true, false, true),
    ];
    for (name, versions, echoes, cut, ends) in cases {
        let (mut client, handle, flight) = first_flight(1);
        let Ok(Header::Long { dcid, scid, .. }) = Header::parse(&flight[0], 8) else { panic!("a long header") };
        let from = if echoes { dcid } else { ConnectionId::new(&[9; 8]).unwrap() };
        let mut packet = version_negotiation(scid.as_slice(), from.as_slice(), versions);
        if cut {
            packet.pop();
        }
        give(&mut client, at(1), server_address(0), &packet);
        sent(&mut client, at(1));
        let closed = events(&mut client).into_iter().find_map(|(_, e)| match e {
            Event::Closed(reason) => Some(reason),
            _ => None,
        });
        match closed {
            Some(CloseReason::VersionMismatch { offered }) => {
                assert!(ends, "{name}");
                assert_eq!(offered, versions);
                client.handle_timeout(at(1));
                sent(&mut client, at(1));
                assert!(client.connection(handle).is_none(), "{name}: nothing has to drain");
            }
            None => assert!(!ends, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

// RFC 9000 §6.2 MUST-2
#[test]
fn version_negotiation_after_the_servers_first_packet_is_ignored() {
    let (mut client, handle, flight) = first_flight(1);
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let Ok(Header::Long { dcid, scid, .. }) = Header::parse(&flight[0], 8) else { panic!("a long header") };
    flight.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), d));
    let answer = sent(&mut server, Instant::ZERO);
    give(&mut client, at(1), server_address(0), &answer[0].payload);
    let forged = version_negotiation(scid.as_slice(), dcid.as_slice(), &[0xff00_001d]);
    give(&mut client, at(1), server_address(0), &forged);
    assert!(!client.connection(handle).unwrap().is_closed());
}

// RFC 9000 §5.2.2 SHOULD-1, MUST-1, SHOULD-2; RFC 9000 §6.1 MUST NOT-1
#[test]
fn a_server_offers_its_versions_to_large_datagrams_of_unknown_versions() {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let mut datagram = vec![0; 1200];
    datagram[..6].copy_from_slice(&[0xc0, 0xff, 0, 0, 0x1d, 8]);
    datagram[14] = 8;
    give(&mut server, Instant::ZERO, client_address(0), &datagram[..1199]);
    assert!(sent(&mut server, Instant::ZERO).is_empty(), "RFC 9000 §6.1: too small for a first datagram of ours");
    give(&mut server, Instant::ZERO, client_address(0), &datagram);
    let answer = sent(&mut server, Instant::ZERO);
    let Ok(Header::VersionNegotiation { versions, .. }) = Header::parse(&answer[0].payload, 8) else { panic!() };
    assert!(wire::header::versions(&answer[0].payload[versions]).any(|v| v == 1));
    give(&mut server, Instant::ZERO, client_address(0), &answer[0].payload);
    assert!(sent(&mut server, Instant::ZERO).is_empty(), "it is not answered itself");
}

// RFC 9000 §8.1.2 MUST-1; RFC 9000 §8.1.3 MUST-3; RFC 9000 §7.2 MUST-4; RFC 9000 §17.2.5.1 MUST-2
// RFC 9000 §17.2.5.2 MUST-1, MUST-2, MUST-3
#[test]
fn forged_and_second_retries_are_ignored() {
    let mut config = server_config(&Profile::default());
    config.retry = RetryPolicy::Always;
    let (mut client, handle, flight) = first_flight(1);
    let mut server = server_endpoint(1, config);
    give(&mut server, Instant::ZERO, client_address(0), &flight[0]);
    give(&mut server, Instant::ZERO, client_address(0), &flight[0]);
    let retries = sent(&mut server, Instant::ZERO);
    assert_eq!(retries.len(), 2);
    for place in [1, 6, 20, retries[0].payload.len() - 1] {
        let mut forged = retries[0].payload.clone();
        forged[place] ^= 1;
        give(&mut client, Instant::ZERO, server_address(0), &forged);
        assert!(sent(&mut client, Instant::ZERO).is_empty(), "byte {place}");
    }
    give(&mut client, Instant::ZERO, server_address(0), &retries[0].payload);
    let again = sent(&mut client, Instant::ZERO);
    assert_eq!(again.len(), flight.len(), "the ClientHello goes out again, with the token");
    give(&mut client, Instant::ZERO, server_address(0), &retries[1].payload);
    assert!(sent(&mut client, Instant::ZERO).is_empty(), "RFC 9000 §17.2.5.2: one Retry per attempt");
    again.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), &d.payload));
    converse(Instant::ZERO, (&mut client, client_address(0)), (&mut server, server_address(0)));
    assert!(client.connection(handle).unwrap().is_connected());
}

/// A token from one address proves nothing about another.
// RFC 9000 §8.1.4 MUST-4, SHOULD-1
#[test]
fn a_token_is_good_for_its_address_only() {
    let mut config = server_config(&Profile::default());
    config.retry = RetryPolicy::Always;
    let (mut client, _, flight) = first_flight(1);
    let mut server = server_endpoint(1, config);
    give(&mut server, Instant::ZERO, client_address(0), &flight[0]);
    let retry = sent(&mut server, Instant::ZERO).remove(0);
    give(&mut client, Instant::ZERO, server_address(0), &retry.payload);
    for datagram in sent(&mut client, Instant::ZERO) {
        give(&mut server, Instant::ZERO, client_address(1), &datagram.payload);
    }
    assert_eq!(server.open_connections(), 0);
    assert_eq!(sent(&mut server, Instant::ZERO).len(), 2, "another Retry for each");
}
