//! Paths that carry more or less than others, and paths that change: what discovery finds, and how long it takes.

use crate::support;

use netem::{DropReason, Forced, LinkConfig, Loss, Script};
use sim::{Dumbbell, Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint, exchange::Exchange, puppet::Puppet, server_config, server_endpoint,
};
use transport::{Profile, Stats, tls::Level};
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};
use wire::Frame;

type Sim = Simulation<Host<Exchange>>;

/// IPv4 and UDP in front of a payload.
const HEADERS: u32 = 28;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Client – 20 Mbit/s, 20 ms, packets of at most `mtu` bytes – server, which sends `answer` bytes.
fn download(seed: u64, mtu: Option<u32>, loss: f64, profile: &Profile, answer: usize) -> Sim {
    let link = LinkConfig {
        rate: Some(Bitrate::from_mbps(20)),
        queue: netem::Queue::DropTail { bytes: DataSize::from_bytes(100_000) },
        delay: Duration::from_millis(20),
        loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
        mtu,
        ..LinkConfig::default()
    };
    let mut client = client_endpoint(seed);
    let handle = client.connect(Instant::ZERO, &client_config(profile), server_address(0), "server.test").unwrap();
    let server = Host::new(server_address(0), server_endpoint(seed, server_config(profile)), Exchange::server(answer));
    let client = Host::new(client_address(0), client, Exchange::client(handle, 100, answer));
    point_to_point(Seed::from_number(seed), &link, &link, client, server).unwrap()
}

/// The figures of the server, as long as the connection is open.
fn server_stats(sim: &Sim) -> Stats {
    let host = sim.node(1);
    host.endpoint.connection(host.app.accepted[0]).unwrap().stats()
}

/// From `since` on, packets above `mtu` bytes vanish without a word.
fn black_hole(sim: &mut Sim, since: Instant, mtu: u32) {
    let _ = sim.run_until(since).unwrap();
    let script = Script::new(move |packet| (packet.size > mtu).then_some(Forced::Drop));
    sim.network_mut().link_mut(Dumbbell::DOWN).set_script(script);
}

// RFC 8899 §5.3, RFC 9000 §14.3: larger datagrams are used where they arrive, and only there.
// RFC 9000 §14.2 SHOULD-1; RFC 9000 §14.3 SHOULD-1; RFC 8899 §5.1.2 RECOMMENDED-1; RFC 8899 §3 MUST NOT-1, REQUIRED-2
#[test]
fn discovery_finds_what_the_path_carries() {
    for mtu in [1228, 1280, 1350, 1400, 1480, 1500, 9000] {
        let mut sim = download(1, Some(mtu), 0.0, &Profile::default(), 5_000_000);
        let outcome = sim.run_until(at(20_000)).unwrap();
        assert!(outcome.is_finished(), "{mtu}: {outcome}");
        let stats = server_stats(&sim);
        let best = u64::from(mtu - HEADERS).min(1452);
        assert!(stats.mtu <= best && best - stats.mtu < 8, "{mtu}: {}", stats.mtu);
        assert_eq!(stats.mtu_black_holes, 0, "{mtu}");
        // RFC 9000 §14.4: what the link drops for its size is no congestion. The last may not be noticed yet.
        let dropped = |reason| sim.counters(Dumbbell::DOWN).dropped(reason).packets;
        let (too_large, queue_full) = (dropped(DropReason::Mtu), dropped(DropReason::Queue));
        assert!(too_large <= stats.mtu_probes_lost + 1 && stats.mtu_probes_lost <= too_large + queue_full, "{mtu}");
        assert!(stats.packets_lost <= queue_full, "{mtu}");
    }
}

// RFC 8899 §3 REQUIRED-4
#[test]
fn discovery_finds_it_on_a_lossy_path_too() {
    for (seed, mtu) in [(1, 1280), (2, 1400), (3, 1480), (4, 1500)] {
        let mut sim = download(seed, Some(mtu), 0.02, &Profile::default(), 3_000_000);
        let outcome = sim.run_until(at(30_000)).unwrap();
        assert!(outcome.is_finished(), "{mtu}: {outcome}");
        let (found, best) = (server_stats(&sim).mtu, u64::from(mtu - HEADERS).min(1452));
        assert!(found <= best && best - found < 80, "{mtu}: {found}");
    }
}

#[test]
fn jumbo_frames_are_used_when_they_are_wanted() {
    let profile = Profile { max_mtu: 8_952, ..Profile::default() };
    let mut sim = download(1, Some(9_000), 0.0, &profile, 1_000_000);
    assert!(sim.run_until(at(5_000)).unwrap().is_finished());
    assert_eq!(server_stats(&sim).mtu, 8_952);
}

#[test]
fn a_question_and_an_answer_need_no_probe() {
    let mut sim = download(1, None, 0.0, &Profile::default(), 5_000);
    assert!(sim.run_until(at(5_000)).unwrap().is_finished());
    let stats = server_stats(&sim);
    assert_eq!((stats.mtu_probes_sent, stats.mtu), (0, 1200));
}

#[test]
fn no_discovery_when_the_bound_is_the_start() {
    let profile = Profile { initial_mtu: 1350, max_mtu: 1350, ..Profile::default() };
    let mut sim = download(1, None, 0.0, &profile, 1_000_000);
    assert!(sim.run_until(at(5_000)).unwrap().is_finished());
    let stats = server_stats(&sim);
    assert_eq!((stats.mtu_probes_sent, stats.mtu), (0, 1350));
}

// RFC 8899 §4.3: a path that carries less from some moment on, and says nothing.
// RFC 8899 §3 MUST-4; RFC 8899 §4.3 MUST NOT-1
#[test]
fn a_transfer_survives_a_path_that_shrinks() {
    for seed in 0..10 {
        for mtu in [1228, 1300, 1400] {
            let mut sim = download(seed, None, 0.0, &Profile::default(), 4_000_000);
            black_hole(&mut sim, at(500 + 37 * seed), mtu);
            assert_eq!(server_stats(&sim).mtu, 1452);
            let outcome = sim.run_until(at(6_000)).unwrap();
            assert!(outcome.is_finished(), "seed {seed}, {mtu}: {outcome}");
            let stats = server_stats(&sim);
            let best = u64::from(mtu - HEADERS);
            assert!(stats.mtu <= best && best - stats.mtu < 8, "seed {seed}, {mtu}: {}", stats.mtu);
            assert!(stats.mtu_black_holes >= 1);
        }
    }
}

#[test]
fn a_path_that_shrinks_and_grows_again_is_used_in_full() {
    let profile = Profile { mtu_search_interval: Duration::from_secs(3), ..Profile::default() };
    let mut sim = download(3, None, 0.0, &profile, 30_000_000);
    black_hole(&mut sim, at(500), 1300);
    let _ = sim.run_until(at(2_500)).unwrap();
    assert!(server_stats(&sim).mtu <= 1272);
    black_hole(&mut sim, at(2_500), 65_535);
    assert!(sim.run_until(at(30_000)).unwrap().is_finished());
    assert_eq!(server_stats(&sim).mtu, 1452);
}

/// Loss is no black hole, however bad: large datagrams get through now and then.
#[test]
fn loss_is_seldom_taken_for_a_black_hole() {
    let mut holes = 0;
    for seed in 0..10 {
        let mut sim = download(seed, None, 0.1, &Profile::default(), 1_000_000);
        let outcome = sim.run_until(at(60_000)).unwrap();
        assert!(outcome.is_finished(), "{seed}: {outcome}");
        holes += server_stats(&sim).mtu_black_holes;
    }
    assert!(holes <= 2, "{holes}");
}

/// A start that is larger than the path: the handshake falls back to what every path carries.
#[test]
fn a_start_that_does_not_arrive_costs_a_timeout_and_not_the_connection() {
    let profile = Profile { initial_mtu: 1350, ..Profile::default() };
    for seed in 0..5 {
        let mut sim = download(seed, Some(1280), 0.0, &profile, 300_000);
        let outcome = sim.run_until(at(8_000)).unwrap();
        assert!(outcome.is_finished(), "{seed}: {outcome}");
        assert!(server_stats(&sim).mtu <= 1252);
    }
}

/// A handshake that was late for another reason: the size that was configured is asked for before there is traffic to fill it, and
/// used again.
#[test]
fn a_start_that_was_doubted_for_nothing_comes_back() {
    let profile = Profile { initial_mtu: 1350, max_mtu: 1350, ..Profile::default() };
    for seed in 0..5 {
        // The smaller one has ended before the probe is answered.
        for (answer, mtu) in [(2_000, 1200), (40_000, 1350)] {
            let mut sim = download(seed, None, 0.0, &profile, answer);
            black_hole(&mut sim, at(0), 0);
            black_hole(&mut sim, at(300), 65_535);
            let outcome = sim.run_until(at(5_000)).unwrap();
            assert!(outcome.is_finished(), "{seed}: {outcome}");
            let stats = server_stats(&sim);
            assert!(stats.probe_timeouts > 0, "{seed}: {stats:?}");
            assert_eq!((stats.mtu_probes_sent, stats.mtu), (1, mtu), "{seed}");
        }
    }
}

// RFC 9000 §18.2: the peer says how much it takes.
#[test]
fn the_peer_is_sent_no_more_than_it_takes() {
    for (takes, expected) in [(1200, 1200), (1300, 1300), (65_527, 1452)] {
        let mut puppet = Puppet::client(&Profile::default(), |p, _| p.max_udp_payload_size = takes).connected();
        let handle = puppet.handle.unwrap();
        let stream = puppet.victim.connection_mut(handle).unwrap().open(wire::Dir::Uni).unwrap();
        for _ in 0..30 {
            let connection = puppet.victim.connection_mut(handle).unwrap();
            let _ = connection.write(stream, &mut vec![7; 20_000].into());
            for datagram in support::direct::sent(&mut puppet.victim, puppet.now) {
                assert!(datagram.payload.len() as u64 <= takes);
                puppet.take(&datagram.payload);
            }
            puppet.acknowledge(Level::OneRtt);
            puppet.now += Duration::from_millis(10);
            puppet.victim.handle_timeout(puppet.now);
        }
        assert_eq!(puppet.victim.connection(handle).unwrap().stats().mtu, expected);
    }
}

/// A probe is one datagram of PING and PADDING, and asks for an acknowledgement.
// RFC 8899 §3 RECOMMENDED-1, REQUIRED-1; RFC 8899 §4.1 REQUIRED-1
#[test]
fn a_probe_carries_nothing_that_could_be_lost() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
    let handle = puppet.handle.unwrap();
    let stream = puppet.victim.connection_mut(handle).unwrap().open(wire::Dir::Uni).unwrap();
    puppet.victim.connection_mut(handle).unwrap().write(stream, &mut vec![7; 20_000].into()).unwrap();
    puppet.collect();
    puppet.received.clear();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    let probes: Vec<_> = puppet.received.iter().filter(|(_, payload)| payload.len() > 1200).collect();
    assert_eq!(probes.len(), 1);
    let frames: Vec<_> = wire::Frames::new(&probes[0].1).map(Result::unwrap).collect();
    assert!(matches!(frames[..], [Frame::Ping, Frame::Padding { .. }]), "{frames:?}");
}
