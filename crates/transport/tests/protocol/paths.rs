//! Paths that change and paths that interfere: NATs that rebind, attackers that copy packets, ECN marks that are bleached
//! or invented, small MTUs, key updates while packets are lost and overtake one another.

use crate::support;

use std::collections::BTreeMap;

use bytes::Bytes;
use netem::{Ecn, Forced, LinkConfig, Loss, Reorder, Script};
use sim::{Dumbbell, Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    direct::{self, converse, sent},
    exchange::{Exchange, Goal},
    puppet::Puppet,
    server_config, server_endpoint,
};
use transport::{CloseReason, Profile, tls::Level};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::Frame;

type Sim = Simulation<Host<Exchange>>;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Client – 10 Mbit/s, 20 ms – server; the client closes when it has the answer.
fn simulation(seed: u64, loss: f64, profile: &Profile, request: usize, answer: usize) -> Sim {
    let link = LinkConfig {
        rate: Some(Bitrate::from_mbps(10)),
        queue: netem::Queue::DropTail { bytes: units::DataSize::from_bytes(60_000) },
        delay: Duration::from_millis(20),
        loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
        ..LinkConfig::default()
    };
    over(seed, &link, profile, request, answer)
}

fn over(seed: u64, link: &LinkConfig, profile: &Profile, request: usize, answer: usize) -> Sim {
    let mut client = client_endpoint(seed);
    let handle = client.connect(Instant::ZERO, &client_config(profile), server_address(0), "server.test").unwrap();
    let mut asking = Exchange::client(handle, request, answer);
    asking.close_when_answered = true;
    let server = server_endpoint(seed, server_config(profile));
    let server = Host::new(server_address(0), server, Exchange::server(answer));
    point_to_point(Seed::from_number(seed), link, link, Host::new(client_address(0), client, asking), server).unwrap()
}

fn port(number: u16) -> std::net::SocketAddr {
    let mut address = client_address(0);
    address.set_port(number);
    address
}

/// A client that only receives has to say something now and then, or the server never learns where it is.
fn talkative() -> Profile {
    Profile { keep_alive: Some(Duration::from_millis(150)), ..Profile::default() }
}

#[test]
fn a_download_survives_a_nat_that_rebinds() {
    for loss in [0.0, 0.02, 0.1] {
        for when in [120, 200, 333, 500] {
            let mut sim = simulation(when, loss, &talkative(), 100, 600_000);
            sim.with_node(0, |_, host| host.moves.push((at(when), port(1)))).unwrap();
            let outcome = sim.run_until(at(20_000)).unwrap();
            assert!(outcome.is_finished(), "{loss} at {when}: {outcome}; {:?}", sim.node(1).app.closed);
        }
    }
}

#[test]
fn an_upload_survives_a_nat_that_rebinds() {
    for loss in [0.0, 0.02, 0.1] {
        for when in [120, 200, 333, 500] {
            let mut sim = simulation(when, loss, &Profile::default(), 600_000, 100);
            sim.with_node(0, |_, host| host.moves.push((at(when), port(1)))).unwrap();
            let outcome = sim.run_until(at(20_000)).unwrap();
            assert!(outcome.is_finished(), "{loss} at {when}: {outcome}");
            assert!(sim.node(1).app.migrated >= 1, "{loss} at {when}");
        }
    }
}

#[test]
fn a_nat_may_rebind_again_and_again() {
    for loss in [0.0, 0.05] {
        for (request, answer) in [(100, 1_500_000), (1_500_000, 100)] {
            let mut sim = simulation(1, loss, &talkative(), request, answer);
            sim.with_node(0, |_, host| host.moves = (1..40).map(|n| (at(u64::from(n) * 370), port(n))).collect())
                .unwrap();
            let outcome = sim.run_until(at(60_000)).unwrap();
            assert!(outcome.is_finished(), "{loss} {request} {answer}: {outcome}");
            assert!(sim.node(0).app.answered.is_some(), "{:?}", sim.node(0).app.closed);
        }
    }
}

/// RFC 9000 §9.3: until the new address has answered, it gets three times what came from it.
// RFC 9000 §9 MUST-2; RFC 9000 §9.3 MUST-3; RFC 9000 §9.3.2 MUST-1; RFC 9000 §8.2.1 MUST-2; RFC 9000 §9.6.3 MUST-2
#[test]
fn little_is_sent_to_an_address_that_has_not_answered() {
    for size in [1, 20, 100, 1_000] {
        let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
        puppet.address = port(7);
        let packet = puppet.packet(Level::OneRtt, &vec![1; size]);
        puppet.give(&packet);
        let mut bytes = 0;
        for _ in 0..400 {
            for datagram in sent(&mut puppet.victim, puppet.now) {
                bytes += if datagram.to == port(7) { datagram.payload.len() } else { 0 };
            }
            puppet.now += Duration::from_millis(10);
            puppet.victim.handle_timeout(puppet.now);
        }
        assert!(bytes > 0 && bytes <= 3 * packet.len(), "{bytes} for {}", packet.len());
        // Nobody answered there: the peer is where it was.
        let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
        assert_eq!(connection.remote(), client_address(0));
    }
}

/// An attacker on the path forwards a client's packets from an address of its own (RFC 9000 §9.3.3).
#[test]
fn a_client_whose_packets_are_forwarded_by_another_comes_back() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    for round in 0..20_u16 {
        puppet.address = port(1_000 + round);
        puppet.send(Level::OneRtt, &[1; 60]);
        puppet.collect();
        puppet.address = client_address(0);
        puppet.now += Duration::from_millis(30);
        puppet.send(Level::OneRtt, &[1; 60]);
        puppet.collect();
        let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
        assert_eq!(connection.remote(), client_address(0), "round {round}");
    }
    assert_eq!(puppet.close_code(), None);
}

// RFC 9000 §8.2.2 MUST-2, MUST-3
#[test]
fn probing_frames_alone_move_nothing_and_are_answered_where_they_come_from() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    puppet.address = port(9);
    let mut payload = support::puppet::bytes(&[Frame::PathChallenge([3; 8])]);
    payload.resize(1150, 0);
    puppet.send(Level::OneRtt, &payload);
    let answers = sent(&mut puppet.victim, puppet.now);
    assert!(answers.iter().any(|d| d.to == port(9) && d.payload.len() >= 1200), "{answers:?}");
    assert_eq!(puppet.victim.connection(puppet.handle.unwrap()).unwrap().remote(), client_address(0));
}

#[test]
fn ecn_marks_may_be_bleached_or_invented() {
    type Rewrite = fn(Ecn) -> Ecn;
    let rewrites: [(&str, Rewrite, bool); 5] = [
        ("as they are", |ecn| ecn, false),
        ("bleached", |_| Ecn::NotEct, false),
        ("all congested", |ecn| if ecn == Ecn::NotEct { ecn } else { Ecn::Ce }, true),
        ("the other codepoint", |ecn| if ecn == Ecn::Ect0 { Ecn::Ect1 } else { ecn }, false),
        ("marks on everything", |_| Ecn::Ce, true),
    ];
    for (name, rewrite, congested) in rewrites {
        let mut sim = simulation(1, 0.0, &Profile::default(), 300_000, 300_000);
        for node in 0..2 {
            sim.with_node(node, |_, host| host.rewrite_ecn = rewrite).unwrap();
        }
        sim.with_node(0, |_, host| host.app.close_when_answered = false).unwrap();
        let outcome = sim.run_until(at(30_000)).unwrap();
        assert!(outcome.is_finished(), "{name}: {outcome}");
        let client = sim.node(0);
        let stats = client.endpoint.connection(client.app.handle.unwrap()).unwrap().stats();
        assert_eq!(stats.ecn_ce_marks > 0, congested, "{name}");
    }
}

// RFC 9000 §13.4.2: packets with marks vanish, others do not: the marks are given up, and the connection is not.
#[test]
fn a_path_that_swallows_marked_packets_is_used_without_marks() {
    for links in [&[Dumbbell::UP][..], &[Dumbbell::DOWN], &[Dumbbell::UP, Dumbbell::DOWN]] {
        let mut sim = simulation(1, 0.0, &Profile::default(), 300_000, 300_000);
        for &link in links {
            let script = Script::new(|packet| (packet.ecn != Ecn::NotEct).then_some(Forced::Drop));
            sim.network_mut().link_mut(link).set_script(script);
        }
        sim.with_node(0, |_, host| host.app.close_when_answered = false).unwrap();
        let outcome = sim.run_until(at(9_000)).unwrap();
        assert!(outcome.is_finished(), "{links:?}: {outcome}");
        // An end that hears nothing suspects its own marks, so both may give up.
        let gave_up = [(0, Dumbbell::UP), (1, Dumbbell::DOWN)].map(|(node, link)| {
            let host = sim.node(node);
            let handle = host.app.handle.or(host.app.accepted.first().copied()).unwrap();
            let stats = host.endpoint.connection(handle).unwrap().stats();
            assert!(stats.ecn_failures == 1 || !links.contains(&link), "{links:?}");
            stats.ecn_failures
        });
        assert!(gave_up.iter().sum::<u64>() >= 1);
    }
}

// RFC 9000 §14 MUST NOT-1
#[test]
fn a_path_too_small_for_quic_ends_in_a_clear_reason() {
    let mut sim = simulation(1, 0.0, &Profile::default(), 100, 100);
    for link in [Dumbbell::UP, Dumbbell::DOWN] {
        let script = Script::new(|packet| (packet.size > 1_200 + 27).then_some(Forced::Drop));
        sim.network_mut().link_mut(link).set_script(script);
    }
    sim.with_node(0, |_, host| host.app.goal = Goal::Closed).unwrap();
    assert!(sim.run_until(at(60_000)).unwrap().is_finished());
    assert_eq!(sim.node(0).app.reason(), Some(&CloseReason::HandshakeTimeout));
    assert_eq!(sim.node(1).endpoint.open_connections(), 0);
}

#[test]
fn the_last_packet_may_be_lost() {
    let count = {
        let mut sim = simulation(1, 0.0, &Profile::default(), 100, 30_000);
        assert!(sim.run_until(at(5_000)).unwrap().is_finished());
        sim.counters(Dumbbell::DOWN).offered.packets
    };
    for n in (0..count).rev().take(30) {
        let mut sim = simulation(1, 0.0, &Profile::default(), 100, 30_000);
        let script = Script::drop_numbers(0, [n]);
        sim.network_mut().link_mut(Dumbbell::DOWN).set_script(script);
        let outcome = sim.run_until(at(2_000)).unwrap();
        assert!(outcome.is_finished(), "packet {n} of {count}: {outcome}");
    }
}

/// Both ends update whenever they may, while packets are lost and overtake one another.
#[test]
fn keys_are_updated_from_both_ends_at_once() {
    for seed in 0..12 {
        let link = LinkConfig {
            delay: Duration::from_millis(10),
            loss: Loss::Iid { p: Probability::new(0.03).unwrap() },
            reorder: Some(Reorder { probability: Probability::new(0.1).unwrap(), delay: Duration::from_millis(15) }),
            rate: Some(Bitrate::from_mbps(20)),
            queue: netem::Queue::DropTail { bytes: units::DataSize::from_bytes(60_000) },
            ..LinkConfig::default()
        };
        let mut sim = over(seed, &link, &Profile::default(), 1_000_000, 1_000_000);
        let mut updates = 0;
        for step in 0..4_000 {
            if sim.run_until(at(step * 10)).unwrap().is_finished() {
                break;
            }
            for node in 0..2 {
                let both = step % 3 == 0 || step as usize % 2 == node;
                sim.with_node(node, |_, host| {
                    let handle = host.app.handle.or(host.app.accepted.first().copied());
                    let Some(connection) = handle.and_then(|h| host.endpoint.connection_mut(h)) else { return };
                    if both && connection.is_connected() {
                        connection.update_keys();
                    }
                    updates = updates.max(connection.stats().key_updates);
                })
                .unwrap();
            }
        }
        assert!(
            sim.node(0).app.answered.is_some(),
            "seed {seed}: {:?} {:?}",
            sim.node(0).app.closed,
            sim.node(1).app.closed
        );
        assert!(updates > 5, "seed {seed}: {updates} updates");
    }
}

// RFC 8899 §5 MUST-1
#[test]
fn datagrams_of_every_size_arrive() {
    let profile = Profile::default();
    let (mut client, mut server) = (client_endpoint(1), server_endpoint(1, server_config(&profile)));
    let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
    let mut now = at(1);
    converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
    let accepted = server.poll_accept().unwrap();
    let max = client.connection(handle).unwrap().max_datagram_size().unwrap();
    assert!(max > 1_100);
    let mut arrived = BTreeMap::new();
    for size in 0..=max {
        let connection = client.connection_mut(handle).unwrap();
        connection.send_datagram(Bytes::from(vec![size as u8; size])).unwrap();
        now += Duration::from_millis(1);
        converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
        while let Some(data) = server.connection_mut(accepted).unwrap().recv_datagram() {
            assert!(data.iter().all(|&byte| byte == data.len() as u8));
            *arrived.entry(data.len()).or_insert(0) += 1;
        }
    }
    assert_eq!(arrived.len(), max + 1);
    assert!(client.connection_mut(handle).unwrap().send_datagram(Bytes::from(vec![0; max + 1])).is_err());
    assert!(direct::events(&mut server).iter().all(|(_, e)| !matches!(e, transport::Event::Closed(_))));
}

/// Answers that the victim has given to challenges.
fn answers(puppet: &Puppet) -> Vec<[u8; 8]> {
    let answer = |frame| if let Frame::PathResponse(data) = frame { Some(data) } else { None };
    puppet.frames().filter_map(|(_, frame)| answer(frame)).collect()
}

/// Challenges of the victim in these datagrams, with where they go.
fn challenges(puppet: &mut Puppet, datagrams: &[direct::Sent]) -> Vec<(std::net::SocketAddr, [u8; 8])> {
    let mut all = Vec::new();
    for datagram in datagrams {
        puppet.received.clear();
        puppet.take(&datagram.payload);
        let challenge = |frame| if let Frame::PathChallenge(data) = frame { Some((datagram.to, data)) } else { None };
        all.extend(puppet.frames().filter_map(|(_, frame)| challenge(frame)));
    }
    all
}

// RFC 9000 §8.2.2 MUST-1, MUST NOT-1, MUST NOT-4; RFC 9000 §19.17 MUST-1; RFC 9000 §8.2.1 MUST NOT-1
#[test]
fn each_challenge_is_answered_at_once_and_only_once() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    // In small datagrams, two in one packet.
    puppet.send(Level::OneRtt, &support::puppet::bytes(&[Frame::PathChallenge([1; 8]), Frame::PathChallenge([2; 8])]));
    puppet.send(Level::OneRtt, &support::puppet::bytes(&[Frame::PathChallenge([3; 8])]));
    puppet.collect();
    assert_eq!(answers(&puppet), [[1; 8], [2; 8], [3; 8]], "before any time has passed");
    // What got lost the peer asks again, with other data.
    puppet.wait(Duration::from_secs(5));
    assert_eq!(answers(&puppet).len(), 3);
}

// RFC 9000 §8.2.2 MUST NOT-3
#[test]
fn an_answer_to_a_strange_address_is_no_larger_than_three_times_the_challenge() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    puppet.address = port(9);
    let challenge = support::puppet::bytes(&[Frame::PathChallenge([3; 8])]);
    let packet = puppet.packet(Level::OneRtt, &challenge);
    puppet.give(&packet);
    let sent = sent(&mut puppet.victim, puppet.now);
    let bytes: usize = sent.iter().filter(|d| d.to == port(9)).map(|d| d.payload.len()).sum();
    assert!(bytes > 0 && bytes <= 3 * packet.len(), "{bytes} bytes for {}", packet.len());
    puppet.received.clear();
    sent.iter().for_each(|d| puppet.take(&d.payload));
    assert_eq!(answers(&puppet), [[3; 8]]);
}

// RFC 9000 §9.3 MUST-2; RFC 9000 §9.3.3 MUST-1; RFC 9000 §8.2.2 MUST NOT-2
#[test]
fn both_addresses_are_asked_and_the_answer_may_come_from_either() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    puppet.address = port(7);
    puppet.send(Level::OneRtt, &[1; 1150]);
    let datagrams = sent(&mut puppet.victim, puppet.now);
    let asked = challenges(&mut puppet, &datagrams);
    let at = |address| asked.iter().find(|(to, _)| *to == address).map(|(_, data)| *data);
    assert!(at(port(7)).is_some() && at(client_address(0)).is_some(), "{asked:?}");
    // The answer takes the way of before, beside frames that move nothing.
    puppet.address = client_address(0);
    let answer = support::puppet::bytes(&[Frame::PathResponse(at(port(7)).unwrap())]);
    puppet.send(Level::OneRtt, &answer);
    puppet.collect();
    puppet.wait(Duration::from_secs(10));
    let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
    assert_eq!(connection.remote(), port(7));
    assert_eq!(puppet.events.iter().filter(|event| **event == transport::Event::Migrated).count(), 1);
}

/// A copied packet with a forged source moves the path in use, and not the address that the peer is known by.
// RFC 9000 §9.3.2 MUST-1
#[test]
fn an_address_counts_once_it_is_validated() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    let remotes = |puppet: &Puppet| {
        let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
        assert!(connection.has_validated_remote());
        (connection.remote(), connection.validated_remote())
    };
    assert_eq!(remotes(&puppet), (client_address(0), client_address(0)));
    puppet.address = port(7);
    puppet.send(Level::OneRtt, &[1; 1150]);
    assert_eq!(remotes(&puppet), (port(7), client_address(0)));
    // A second forged address, while the first is not decided.
    puppet.address = port(8);
    puppet.send(Level::OneRtt, &[1; 1150]);
    assert_eq!(remotes(&puppet), (port(8), client_address(0)));
    let datagrams = sent(&mut puppet.victim, puppet.now);
    let asked = challenges(&mut puppet, &datagrams);
    let data = asked.iter().find(|(to, _)| *to == port(8)).unwrap().1;
    puppet.send(Level::OneRtt, &support::puppet::bytes(&[Frame::PathResponse(data)]));
    assert_eq!(remotes(&puppet), (port(8), port(8)));
    puppet.address = port(9);
    puppet.send(Level::OneRtt, &[1; 1150]);
    assert_eq!(remotes(&puppet), (port(9), port(8)));
    puppet.wait(Duration::from_secs(10));
    assert_eq!(remotes(&puppet), (port(8), port(8)), "nobody answered there");
}

#[test]
fn the_address_of_a_first_packet_is_not_validated() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
    assert_eq!((connection.validated_remote(), connection.has_validated_remote()), (client_address(0), false));
    let puppet = puppet.connected();
    assert!(puppet.victim.connection(puppet.handle.unwrap()).unwrap().has_validated_remote());
}

// RFC 9000 §8.2.1 MUST-1
#[test]
fn challenges_cannot_be_foretold() {
    let mut seen = std::collections::BTreeSet::new();
    for start in [0, 500] {
        // The same endpoint, so the same seed, and another moment.
        let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
        puppet.wait(Duration::from_millis(start));
        for number in 0..40 {
            puppet.address = port(1_000 + number);
            puppet.send(Level::OneRtt, &[1; 1150]);
            let datagrams = sent(&mut puppet.victim, puppet.now);
            seen.extend(challenges(&mut puppet, &datagrams).into_iter().map(|(_, data)| data));
            puppet.wait(Duration::from_millis(1));
        }
    }
    assert!(seen.len() >= 40, "{}", seen.len());
    let ones: u32 = seen.iter().flatten().map(|byte| byte.count_ones()).sum();
    let bits = 64.0 * seen.len() as f64;
    // Six standard deviations of a fair coin.
    assert!((f64::from(ones) - bits / 2.0).abs() < 6.0 * (bits / 4.0).sqrt(), "{ones} ones of {bits} bits");
}

// RFC 9000 §9 MUST-3
#[test]
fn a_client_hears_nobody_at_an_address_that_it_does_not_know() {
    let mut puppet = Puppet::server(&Profile::default(), |_, _| {}).connected();
    let received = |puppet: &Puppet| {
        let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
        (stats.packets_received, stats.path_changes)
    };
    let before = received(&puppet);
    let known = puppet.address;
    for strange in [port(443), std::net::SocketAddr::new(known.ip(), known.port() + 1)] {
        puppet.address = strange;
        puppet.send(Level::OneRtt, &[1; 60]);
        assert_eq!(puppet.collect(), 0, "to {strange}");
        assert_eq!(received(&puppet), before);
    }
    puppet.address = known;
    puppet.send(Level::OneRtt, &[1; 60]);
    assert_eq!(received(&puppet).0, before.0 + 1);
}

/// A server acknowledges nothing that it cannot open, and learns the round-trip time without the wait for its own keys.
// RFC 9002 §5.3 SHOULD-3
#[test]
fn the_wait_for_keys_is_no_part_of_the_round_trip_time() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    let stream = connection.open(wire::Dir::Uni).unwrap();
    connection.write(stream, &mut Bytes::from_static(b"before the handshake is complete")).unwrap();
    puppet.collect();
    assert!(!puppet.seen[2].is_empty(), "the server sends before it has heard the client's Finished");
    puppet.now += Duration::from_millis(40);
    puppet.acknowledge(Level::OneRtt);
    puppet.now += Duration::from_millis(500);
    puppet.flush(&[Level::Handshake]);
    puppet.collect();
    let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
    assert!(connection.is_connected());
    assert_eq!(connection.metrics().min_rtt, Duration::from_millis(40));
}
