//! Acknowledgements on request (draft-ietf-quic-ack-frequency-14): both ends together, and against a peer that breaks the
//! rules.

use crate::support;

use netem::{LinkConfig, Loss, Queue};
use sim::{Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    exchange::Exchange,
    puppet::{Puppet, bytes},
    server_config, server_endpoint,
};
use transport::{Code, Profile, Stats, ack_frequency::AckFrequency, tls::Level};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{Dir, Frame};

/// 20 Mbit/s, 50 ms, a buffer of one bandwidth-delay product.
fn path(loss: f64) -> LinkConfig {
    let (rate, delay) = (Bitrate::from_mbps(20), Duration::from_millis(25));
    LinkConfig {
        rate: Some(rate),
        queue: Queue::DropTail { bytes: rate.in_time(delay * 2) },
        delay,
        loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
        ..LinkConfig::default()
    }
}

fn asking(ack_frequency: AckFrequency) -> Profile {
    Profile { ack_frequency, ..Profile::default() }
}

/// A download of `size` bytes: when it is complete, and what client and server have counted by then.
fn download(seed: u64, loss: f64, profile: &Profile, size: usize) -> (Instant, Stats, Stats) {
    let mut client = client_endpoint(seed);
    let server = server_endpoint(seed, server_config(profile));
    let handle = client.connect(Instant::ZERO, &client_config(profile), server_address(0), "server.test").unwrap();
    let mut sim: Simulation<Host<Exchange>> = point_to_point(
        Seed::from_number(seed),
        &path(loss),
        &path(loss),
        Host::new(client_address(0), client, Exchange::client(handle, 100, size)),
        Host::new(server_address(0), server, Exchange::server(size)),
    )
    .unwrap();
    let outcome = sim.run_until(Instant::from_millis(120_000)).unwrap();
    assert!(outcome.is_finished(), "seed {seed}: {outcome}");
    let stats = |index: usize| {
        let host = sim.node(index);
        let handle = host.app.handle.unwrap_or_else(|| host.app.accepted[0]);
        host.endpoint.connection(handle).expect("still open").stats()
    };
    (sim.node(0).app.answered.unwrap(), stats(0), stats(1))
}

#[test]
fn fewer_acknowledgements_for_the_asking() {
    let (unasked, usual, _) = download(1, 0.0, &asking(AckFrequency::Off), 6_000_000);
    assert_eq!((usual.ack_requests_received, usual.packets_per_ack_obeyed), (0, 2));
    for policy in [AckFrequency::Fixed(10), AckFrequency::Adaptive] {
        let (done, client, server) = download(1, 0.0, &asking(policy), 6_000_000);
        println!(
            "{policy}: {} of {} ACK packets, {:?} of {:?}, asked {} times",
            client.ack_only_packets_sent,
            usual.ack_only_packets_sent,
            done - Instant::ZERO,
            unasked - Instant::ZERO,
            server.ack_requests_sent
        );
        // Both ends show it.
        assert!(client.ack_only_packets_sent * 4 <= usual.ack_only_packets_sent);
        assert!(server.ack_only_packets_received <= client.ack_only_packets_sent);
        assert!(server.ack_requests_acked > 0 && server.ack_requests_acked <= server.ack_requests_sent);
        assert_eq!(client.ack_requests_received, server.ack_requests_sent);
        assert!(client.packets_per_ack_obeyed > 2);
        assert!(done - Instant::ZERO <= (unasked - Instant::ZERO).mul_f64(1.02));
    }
}

#[test]
fn requests_survive_loss_and_recovery_survives_requests() {
    for seed in 0..12 {
        let (_, client, server) = download(seed, 0.05, &asking(AckFrequency::Fixed(10)), 400_000);
        assert_eq!(client.packets_per_ack_obeyed, 10, "seed {seed}: {server:?}");
        assert_eq!(server.packets_per_ack_asked, 10);
        // Losses are found by packets, not by timeouts, although few packets are acknowledged.
        assert!(server.probe_timeouts * 4 <= server.packets_lost, "seed {seed}: {server:?}");
    }
}

/// A window far below what the peer waits for: neither end waits for the other's timer.
#[test]
fn a_full_window_asks_for_itself() {
    let (unasked, ..) = download(3, 0.1, &asking(AckFrequency::Off), 300_000);
    let (done, client, server) = download(3, 0.1, &asking(AckFrequency::Fixed(1000)), 300_000);
    println!("{:?} against {:?}", done - Instant::ZERO, unasked - Instant::ZERO);
    assert_eq!(client.packets_per_ack_obeyed, 1000);
    assert!(server.immediate_acks_asked > 0 && client.immediate_acks_received > 0);
    assert!(done - Instant::ZERO < (unasked - Instant::ZERO) * 2);
}

fn request(sequence: u64, eliciting_threshold: u64, max_ack_delay_us: u64) -> Vec<u8> {
    bytes(&[Frame::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold: 3 }])
}

fn puppet() -> Puppet {
    Puppet::client(&Profile::default(), |_, _| {}).connected()
}

#[test]
fn delays_out_of_range_are_violations() {
    for (delay_us, expected) in [
        (0, Some(Code::PROTOCOL_VIOLATION)),
        (999, Some(Code::PROTOCOL_VIOLATION)),
        (1_000, None),
        ((1 << 14) * 1_000 - 1, None),
        ((1 << 14) * 1_000, Some(Code::PROTOCOL_VIOLATION)),
        (wire::varint::MAX, Some(Code::PROTOCOL_VIOLATION)),
    ] {
        let mut puppet = puppet();
        puppet.send(Level::OneRtt, &request(0, 3, delay_us));
        assert_eq!(puppet.close_code(), expected, "{delay_us} us");
    }
    // An obsolete request is no excuse.
    let mut puppet = puppet();
    puppet.send(Level::OneRtt, &request(7, 3, 25_000));
    puppet.send(Level::OneRtt, &request(6, 3, 0));
    assert_eq!(puppet.close_code(), Some(Code::PROTOCOL_VIOLATION));
}

#[test]
fn who_has_not_offered_to_obey_does_not_know_the_frames() {
    let mut profile = Profile::default();
    profile.acks.obey = false;
    for frame in [request(0, 3, 25_000), bytes(&[Frame::ImmediateAck])] {
        let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
        puppet.send(Level::OneRtt, &frame);
        assert_eq!(puppet.close_code(), Some(Code::FRAME_ENCODING_ERROR));
    }
}

#[test]
fn a_shortest_delay_above_the_longest_is_refused() {
    let mut puppet = Puppet::client(&Profile::default(), |parameters, _| parameters.min_ack_delay_us = Some(25_001));
    puppet.flush(&[Level::Initial]);
    assert_eq!(puppet.close_code(), Some(Code::TRANSPORT_PARAMETER_ERROR));
}

/// ACK frames in 1-RTT packets of the victim.
fn acks(puppet: &Puppet) -> usize {
    puppet.frames().filter(|(level, frame)| *level == Level::OneRtt && matches!(frame, Frame::Ack(_))).count()
}

#[test]
fn requests_are_obeyed_and_the_newest_counts() {
    let mut puppet = puppet();
    puppet.send(Level::OneRtt, &request(5, 9, 100_000));
    // Requests that were overtaken on the way change nothing.
    puppet.send(Level::OneRtt, &request(4, 0, 1_000));
    puppet.wait(Duration::from_millis(200));
    puppet.collect();
    let before = acks(&puppet);
    for _ in 0..9 {
        puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
        puppet.collect();
    }
    assert_eq!(acks(&puppet), before, "nine of ten");
    puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
    puppet.collect();
    assert_eq!(acks(&puppet), before + 1);
    // After the delay that was asked for, not before.
    puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
    puppet.wait(Duration::from_millis(99));
    assert_eq!(acks(&puppet), before + 1);
    puppet.wait(Duration::from_millis(1));
    assert_eq!(acks(&puppet), before + 2);
    // And at once when that is asked for.
    puppet.send(Level::OneRtt, &bytes(&[Frame::ImmediateAck]));
    puppet.collect();
    assert_eq!(acks(&puppet), before + 3);
}

/// A probe asks for an answer at once, from a peer that understands.
#[test]
fn probes_ask_for_an_answer_at_once() {
    for understood in [true, false] {
        let change = |parameters: &mut wire::TransportParameters, _: &mut Vec<u8>| {
            parameters.min_ack_delay_us = understood.then_some(1_000);
        };
        let mut puppet = Puppet::server(&Profile::default(), change).connected();
        puppet.acknowledge(Level::OneRtt);
        let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut bytes::Bytes::from_static(b"lost")).unwrap();
        puppet.collect();
        assert!(!puppet.frames().any(|(_, frame)| frame == Frame::ImmediateAck));
        puppet.wait(Duration::from_secs(3));
        let asked = puppet.frames().filter(|(_, frame)| *frame == Frame::ImmediateAck).count();
        assert_eq!(asked > 0, understood);
        let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
        assert!(stats.probe_timeouts > 0);
        assert_eq!(stats.immediate_acks_asked, asked as u64);
    }
}
