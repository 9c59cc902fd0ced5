//! QUIC version 2, and how the two ends agree on a version: RFC 9368, RFC 9369.

use crate::support;

use std::sync::Arc;

use bytes::BytesMut;
use netem::{LinkConfig, Loss};
use sim::{Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    direct::{converse, events, give, sent},
    exchange::Exchange,
    puppet::Puppet,
    server_config, server_endpoint,
};
use transport::{ClientConfig, CloseReason, Code, Event, Profile, RetryPolicy, ServerConfig};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{
    ConnectionId, Header, VersionInformation,
    version::{V1, V2},
};

fn client(version: u32, versions: &[u32]) -> ClientConfig {
    ClientConfig { version, versions: versions.to_vec(), ..client_config(&Profile::default()) }
}

fn server(versions: &[u32], upgrade_to: Option<u32>) -> ServerConfig {
    ServerConfig { versions: versions.to_vec(), upgrade_to, ..server_config(&Profile::default()) }
}

type Sim = Simulation<Host<Exchange>>;

fn simulation(seed: u64, loss: f64, client: &ClientConfig, server: ServerConfig) -> Sim {
    let link = LinkConfig {
        rate: Some(Bitrate::from_mbps(20)),
        queue: netem::Queue::DropTail { bytes: units::DataSize::from_bytes(60_000) },
        delay: Duration::from_millis(15),
        loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
        ..LinkConfig::default()
    };
    let mut endpoint = client_endpoint(seed);
    let handle = endpoint.connect(Instant::ZERO, client, server_address(0), "server.test").unwrap();
    let asking = Host::new(client_address(0), endpoint, Exchange::client(handle, 20_000, 200_000));
    let answering = Host::new(server_address(0), server_endpoint(seed, server), Exchange::server(200_000));
    point_to_point(Seed::from_number(seed), &link, &link, asking, answering).unwrap()
}

/// The version at each end, once the answer is there.
fn agreed(seed: u64, loss: f64, client: &ClientConfig, server: ServerConfig) -> [u32; 2] {
    let mut sim = simulation(seed, loss, client, server);
    let outcome = sim.run_until(Instant::from_millis(60_000)).unwrap();
    assert!(outcome.is_finished(), "seed {seed}: {outcome}");
    [0, 1].map(|end| {
        let host = sim.node(end);
        let handle = host.app.handle.or(host.app.accepted.first().copied()).unwrap();
        host.endpoint.connection(handle).map_or(0, transport::Connection::version)
    })
}

// RFC 9369 §3 MUST-1
#[test]
fn both_versions_work() {
    for version in [V1, V2] {
        for (seed, loss) in [(1, 0.0), (2, 0.1), (3, 0.2)] {
            assert_eq!(agreed(seed, loss, &client(version, &[version]), server(&[V1, V2], None)), [version; 2]);
        }
    }
}

// RFC 9368 §2.3: no round trip more, whatever is lost.
// RFC 9368 §2.3 MUST-1; RFC 9369 §4 SHOULD-2; RFC 9368 §8 MUST-1
#[test]
fn a_server_moves_a_client_to_the_version_that_it_prefers() {
    for (from, to) in [(V1, V2), (V2, V1)] {
        for seed in 0..12 {
            let loss = [0.0, 0.1, 0.25][seed as usize % 3];
            let found = agreed(seed, loss, &client(from, &[V1, V2]), server(&[V1, V2], Some(to)));
            assert_eq!(found, [to; 2], "seed {seed}");
        }
    }
}

#[test]
fn a_move_to_another_version_costs_no_time() {
    let answered = |upgrade| {
        let mut sim = simulation(5, 0.0, &client(V1, &[V1, V2]), server(&[V1, V2], upgrade));
        assert!(sim.run_until(Instant::from_millis(60_000)).unwrap().is_finished());
        sim.node(0).app.connected.unwrap()
    };
    // Less than a round trip, which takes 30 ms: only the sizes of the first packets differ.
    assert!(answered(Some(V2)) < answered(None) + Duration::from_millis(5));
}

// RFC 9368 §2.2 MUST NOT-1
#[test]
fn a_client_is_not_moved_to_what_it_does_not_offer_or_nobody_knows() {
    assert_eq!(agreed(1, 0.0, &client(V1, &[V1]), server(&[V1, V2], Some(V2))), [V1; 2]);
    let unknown = 0x0a1a_2a3a;
    assert_eq!(agreed(1, 0.0, &client(V1, &[V1, unknown]), server(&[V1, V2], Some(unknown))), [V1; 2]);
}

// RFC 9369 §4.1: the Retry is of the first flight's version; the keys of Initial packets follow from its connection ID.
// RFC 9369 §4.1 MUST-1, MUST NOT-1, MUST-2
#[test]
fn a_retry_comes_before_the_move() {
    for (version, upgrade) in [(V1, Some(V2)), (V2, None), (V2, Some(V1))] {
        let config = ServerConfig { retry: RetryPolicy::Always, ..server(&[V1, V2], upgrade) };
        let expected = upgrade.unwrap_or(version);
        assert_eq!(agreed(4, 0.05, &client(version, &[V1, V2]), config), [expected; 2]);
    }
}

/// A client against a server, without a network.
fn meet(config: &ClientConfig, server: ServerConfig, forge: Option<&[u32]>) -> (Option<CloseReason>, u32) {
    let mut endpoint = client_endpoint(9);
    let mut server = server_endpoint(9, server);
    let handle = endpoint.connect(Instant::ZERO, config, server_address(0), "server.test").unwrap();
    if let Some(versions) = forge {
        let flight = sent(&mut endpoint, Instant::ZERO);
        let Ok(Header::Long { dcid, scid, .. }) = Header::parse(&flight[0].payload, 8) else { panic!() };
        let mut packet = [0; 100];
        let mut w = wire::Writer::new(&mut packet);
        wire::encode_version_negotiation(&mut w, 0, scid.as_slice(), dcid.as_slice(), versions);
        let len = w.position();
        give(&mut endpoint, Instant::ZERO, server_address(0), &packet[..len]);
    }
    converse(Instant::ZERO, (&mut endpoint, client_address(0)), (&mut server, server_address(0)));
    let version = endpoint.connection(handle).map_or(0, transport::Connection::version);
    let closed = events(&mut endpoint).into_iter().find_map(|(_, event)| match event {
        Event::Closed(reason) => Some(reason),
        _ => None,
    });
    (closed, version)
}

// RFC 9368 §2.1 SHALL-1, SHALL-2, SHALL-3, SHALL-4; RFC 9368 §6 MUST-1
#[test]
fn version_negotiation_leads_to_another_attempt() {
    let first = client(V1, &[V2, V1]);
    let (closed, _) = meet(&first, server(&[V2], None), None);
    let Some(CloseReason::VersionMismatch { offered }) = closed else { panic!("{closed:?}") };
    assert!(offered.contains(&V2) && !offered.contains(&V1));
    let second = first.react_to(&offered).unwrap();
    assert_eq!(second.version, V2);
    assert_eq!(meet(&second, server(&[V2], None), None), (None, V2));
    assert!(client(V1, &[V1]).react_to(&offered).is_none());
}

// RFC 9368 §4 MUST: who was led to a lesser version by a forged packet notices.
// RFC 9368 §4 MUST-2, MUST-14, MUST-15
#[test]
fn a_forged_version_negotiation_is_noticed() {
    let first = client(V2, &[V2, V1]);
    let (closed, _) = meet(&first, server(&[V1, V2], None), Some(&[V1]));
    assert_eq!(closed, Some(CloseReason::VersionMismatch { offered: vec![V1] }));
    let second = first.react_to(&[V1]).unwrap();
    let (closed, _) = meet(&second, server(&[V1, V2], None), None);
    let Some(CloseReason::PeerMisbehaved(error)) = closed else { panic!("{closed:?}") };
    assert_eq!(error.code, Code::VERSION_NEGOTIATION_ERROR);
    // RFC 9368 §4 MUST: in that attempt another Version Negotiation packet is ignored.
    let conforming = client(V1, &[V2, V1]).react_to(&[V2]).unwrap();
    assert_eq!(meet(&conforming, server(&[V2], None), Some(&[V1])).0, None);
}

// RFC 9368 §4 MUST: what the peer says it chose is what its packets are of.
// RFC 9368 §4 MUST-3, MUST-9, MUST-10, MUST-11, MUST-12, MUST-17, MUST-18; RFC 9369 §4 MUST-1
#[test]
fn what_the_peer_says_must_fit_its_packets() {
    let says = |chosen: u32| Some(VersionInformation { chosen, available: vec![V1, V2, chosen] });
    let refused = Some(Code::VERSION_NEGOTIATION_ERROR);
    // The last is of a version that nobody has offered.
    for (information, code) in [(says(V1), None), (None, None), (says(V2), refused), (says(0x0a1a_2a3a), refused)] {
        for server in [false, true] {
            let change = |p: &mut wire::TransportParameters| p.version_information.clone_from(&information);
            let mut puppet = if server {
                Puppet::server(&Profile::default(), |p, _| change(p))
            } else {
                Puppet::client(&Profile::default(), |p, _| change(p))
            };
            for _ in 0..10 {
                puppet.flush(&support::puppet::LEVELS);
                puppet.collect_quietly();
            }
            let closed = puppet.events.iter().find_map(|event| match event {
                Event::Closed(CloseReason::PeerMisbehaved(error)) => Some(error.code),
                _ => None,
            });
            let closed = closed.or_else(|| {
                events(&mut puppet.victim).into_iter().find_map(|(_, event)| match event {
                    Event::Closed(CloseReason::PeerMisbehaved(error)) => Some(error.code),
                    _ => None,
                })
            });
            assert_eq!(closed, code, "{information:?} from a server: {server}");
        }
    }
}

// RFC 9368 §4 MUST-16; RFC 9368 §8 SHALL-1; RFC 8999 §7 MUST-1
#[test]
fn after_version_negotiation_the_server_has_to_confirm_it() {
    let says = |available: &[u32]| Some(VersionInformation { chosen: V1, available: available.to_vec() });
    let refused = Some(Code::VERSION_NEGOTIATION_ERROR);
    for (information, code) in [(says(&[V1]), None), (says(&[]), refused), (None, None)] {
        let tls = Arc::new(transport::tls::testing::Toy::default());
        let mut config = ClientConfig::new(tls, Arc::new(Profile::default()));
        config.versions = vec![V1];
        let config = config.react_to(&[V1]).unwrap();
        let mut puppet = Puppet::server_to(&config, |p, _| p.version_information.clone_from(&information));
        for _ in 0..10 {
            puppet.flush(&support::puppet::LEVELS);
            puppet.collect_quietly();
        }
        let all = puppet.events.drain(..).chain(events(&mut puppet.victim).into_iter().map(|(_, event)| event));
        let closed = all.into_iter().find_map(|event| match event {
            Event::Closed(CloseReason::PeerMisbehaved(error)) => Some(error.code),
            _ => None,
        });
        assert_eq!(closed, code, "{information:?}");
    }
}

// RFC 9368 §4 MUST-1
#[test]
fn version_negotiation_that_offers_what_is_spoken_is_ignored() {
    let config = client(V2, &[V2, V1]);
    assert_eq!(meet(&config, server(&[V1, V2], None), Some(&[V1, V2])), (None, V2));
}

// RFC 9368 §2.1 MUST NOT-1, MUST-1
#[test]
fn clients_negotiate_no_versions_and_servers_are_not_negotiated_with() {
    let mut unknown = vec![0; 1200];
    unknown[..18].copy_from_slice(&[0xc0, 0x0a, 0x1a, 0x2a, 0x3a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 3, 1, 2, 3]);
    let mut asked = server_endpoint(9, server(&[V1, V2], None));
    give(&mut asked, Instant::ZERO, client_address(0), &unknown);
    assert_eq!(sent(&mut asked, Instant::ZERO).len(), 1, "a server answers it");
    let mut endpoint = client_endpoint(9);
    let handle = endpoint.connect(Instant::ZERO, &client(V1, &[V1]), server_address(0), "server.test").unwrap();
    let flight = sent(&mut endpoint, Instant::ZERO);
    give(&mut endpoint, Instant::ZERO, server_address(0), &unknown);
    assert!(sent(&mut endpoint, Instant::ZERO).is_empty(), "a client does not");

    let mut answering = server_endpoint(9, server(&[V1, V2], None));
    flight.iter().for_each(|d| give(&mut answering, Instant::ZERO, client_address(0), &d.payload));
    let first = sent(&mut answering, Instant::ZERO);
    let Ok(Header::Long { dcid, scid, .. }) = Header::parse(&first[0].payload, 8) else { panic!() };
    let mut packet = [0; 100];
    let mut w = wire::Writer::new(&mut packet);
    wire::encode_version_negotiation(&mut w, 0, dcid.as_slice(), scid.as_slice(), &[V2]);
    let len = w.position();
    give(&mut answering, Instant::ZERO, client_address(0), &packet[..len]);
    first.iter().for_each(|d| give(&mut endpoint, Instant::ZERO, server_address(0), &d.payload));
    converse(Instant::ZERO, (&mut endpoint, client_address(0)), (&mut answering, server_address(0)));
    assert!(endpoint.connection(handle).unwrap().is_connected());
}

/// Types and versions of the packets with long headers in datagrams.
fn long_packets(datagrams: &[support::direct::Sent]) -> Vec<(wire::LongType, u32)> {
    let mut found = Vec::new();
    for datagram in datagrams {
        let mut rest = &datagram.payload[..];
        while let Ok(header) = Header::parse(rest, 8) {
            if let Header::Long { ty, version, .. } = header {
                found.push((ty, version));
            }
            rest = &rest[header.packet_len()..];
            if rest.is_empty() {
                break;
            }
        }
    }
    found
}

// RFC 9369 §4.1 MUST-3, MUST-4, MUST-5, MUST NOT-2
#[test]
fn after_the_move_everything_is_of_the_negotiated_version_and_the_first_is_still_read() {
    let (mut asking, mut answering) = (client_endpoint(9), server_endpoint(9, server(&[V1, V2], Some(V2))));
    let mut now = Instant::ZERO;
    let handle = asking.connect(now, &client(V1, &[V1, V2]), server_address(0), "server.test").unwrap();
    let flight = sent(&mut asking, now);
    assert!(long_packets(&flight).iter().all(|(_, version)| *version == V1));
    flight.iter().for_each(|d| give(&mut answering, now, client_address(0), &d.payload));
    let lost = sent(&mut answering, now);
    assert!(!lost.is_empty() && long_packets(&lost).iter().all(|(_, version)| *version == V2));

    // The client has not heard of it: what it sends is of the first version, and is read.
    let accepted = answering.poll_accept();
    now += Duration::from_secs(2);
    asking.handle_timeout(now);
    let again = sent(&mut asking, now);
    assert!(!again.is_empty() && long_packets(&again).iter().all(|packet| *packet == (wire::LongType::Initial, V1)));
    let read = |endpoint: &transport::Endpoint| {
        let connection = accepted.and_then(|handle| endpoint.connection(handle)).expect("the server has it");
        (connection.stats().packets_received, connection.stats().packets_undecryptable)
    };
    let before = read(&answering);
    again.iter().for_each(|d| give(&mut answering, now, client_address(0), &d.payload));
    let after = read(&answering);
    assert_eq!((after.0 - before.0, after.1), (again.len() as u64, before.1));

    let answer = sent(&mut answering, now);
    assert!(long_packets(&answer).iter().all(|(_, version)| *version == V2));
    lost.iter().chain(&answer).for_each(|d| give(&mut asking, now, server_address(0), &d.payload));
    let finished = sent(&mut asking, now);
    let packets = long_packets(&finished);
    assert!(packets.iter().any(|(ty, _)| *ty == wire::LongType::Handshake));
    assert!(packets.iter().all(|(_, version)| *version == V2), "{packets:?}");

    // A Handshake packet of the first version is none.
    let before = read(&answering);
    let handshake = finished.iter().find_map(|datagram| {
        let mut rest = &datagram.payload[..];
        while let Ok(header @ Header::Long { ty, .. }) = Header::parse(rest, 8) {
            let (packet, after) = rest.split_at(header.packet_len());
            if ty == wire::LongType::Handshake {
                return Some(packet.to_vec());
            }
            rest = after;
        }
        None
    });
    let mut other = handshake.expect("there is one");
    // The type is in other bits, too.
    other[0] = 0xe0 | other[0] & 0x0f;
    other[1..5].copy_from_slice(&V1.to_be_bytes());
    let parsed = Header::parse(&other, 8);
    assert!(matches!(parsed, Ok(Header::Long { ty: wire::LongType::Handshake, version: V1, .. })), "{parsed:?}");
    give(&mut answering, now, client_address(0), &other);
    assert_eq!(read(&answering), before);
    finished.iter().for_each(|d| give(&mut answering, now, client_address(0), &d.payload));
    converse(now, (&mut asking, client_address(0)), (&mut answering, server_address(0)));
    assert!(asking.connection(handle).unwrap().is_connected());
    assert_eq!(asking.connection(handle).unwrap().version(), V2);
}

/// Packets in a version that the client did not offer, or that nobody who saw its packets has sealed, change nothing.
#[test]
fn forged_packets_of_another_version_change_nothing() {
    let mut endpoint = client_endpoint(9);
    let config = client(V1, &[V1, V2]);
    let handle = endpoint.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let flight = sent(&mut endpoint, Instant::ZERO);
    let Ok(Header::Long { scid, .. }) = Header::parse(&flight[0].payload, 8) else { panic!() };
    let header = wire::LongHeader {
        ty: wire::LongType::Initial,
        version: V2,
        dcid: scid,
        scid: ConnectionId::new(&[1; 8]).unwrap(),
    };
    let mut packet = vec![0; 1200];
    let mut w = wire::Writer::new(&mut packet);
    let position = header.encode(&mut w, &[], 0, 4);
    wire::patch_length(&mut packet, &position, 1200);
    give(&mut endpoint, Instant::ZERO, server_address(0), &packet);
    assert_eq!(endpoint.connection(handle).unwrap().version(), V1);
    let mut server = server_endpoint(9, server(&[V1, V2], Some(V2)));
    for datagram in flight {
        let segment_size = datagram.payload.len();
        let payload = BytesMut::from(&datagram.payload[..]);
        let datagram = transport::Datagram {
            remote: client_address(0),
            local: None,
            ecn: None,
            received_at: Instant::ZERO,
            segment_size,
            payload,
        };
        server.handle_datagram(Instant::ZERO, datagram);
    }
    converse(Instant::ZERO, (&mut endpoint, client_address(0)), (&mut server, server_address(0)));
    assert_eq!(endpoint.connection(handle).unwrap().version(), V2);
    assert!(endpoint.connection(handle).unwrap().is_connected());
}
