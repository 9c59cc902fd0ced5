//! The loop on small networks: times, batches, order, limits and explanations.

mod nodes;

use std::net::SocketAddr;

use bytes::BytesMut;
use netem::{DropReason, LinkConfig, Queue, Script};
use nodes::{Actor, Echo, Pacer};
use sim::{
    Access, Datagram, Dumbbell, Ended, Host, Limits, Node, Outbox, SimError, Simulation, client_address,
    point_to_point, server_address,
};
use tiderace_sim as sim;
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

const MS: Duration = Duration::from_millis(1);
const LONG: Instant = Instant::from_millis(3_600_000);

fn path(mbps: u64, delay: Duration) -> LinkConfig {
    LinkConfig {
        rate: Some(Bitrate::from_mbps(mbps)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(100_000) },
        delay,
        ..LinkConfig::default()
    }
}

fn pair(link: &LinkConfig, pacer: Pacer) -> Simulation<Actor> {
    point_to_point(Seed::from_number(1), link, link, Actor::Pacer(pacer), Actor::Echo(Echo::default())).unwrap()
}

fn pacer(count: u64, gap: Duration) -> Pacer {
    Pacer { wanted: count, ..Pacer::new(client_address(0), server_address(0), count, gap) }
}

#[test]
fn the_idle_round_trip_is_exact() {
    // 1228 bytes at 20 Mbit/s take 491.2 µs, each way, and 25 ms of way.
    let mut simulation = pair(&path(20, 25 * MS), pacer(10, 100 * MS));
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    for (n, (at, first, len)) in (0..).zip(&simulation.node(0).pacer().received) {
        assert_eq!(*at, Instant::from_nanos(u64::from(n) * 100_000_000 + 50_982_400));
        assert_eq!((*first, *len), (n, 1200));
    }
}

#[test]
fn a_batch_is_cut_where_it_enters_the_network() {
    let batch = Pacer { batch: 10, count: 25, wanted: 25, ..pacer(25, 10 * MS) };
    let mut simulation = pair(&path(20, MS), batch);
    simulation.keep_trace(100);
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    let received = &simulation.node(0).pacer().received;
    assert_eq!(received.iter().map(|arrival| arrival.1).collect::<Vec<_>>(), (0..25).collect::<Vec<u8>>());
    assert!(received.iter().all(|arrival| arrival.2 == 1200));
    // The segments leave one after the other at the link's rate.
    assert!(received[..10].windows(2).all(|pair| (pair[1].0 - pair[0].0).as_nanos() == 491_200));
    let records = simulation.trace().records();
    assert_eq!(records.len(), 50);
    assert!(records.iter().all(|record| record.packet.size == 1228 && record.packet.flow == 0));
    let numbers: Vec<u64> = records.iter().filter(|r| r.link == 1).map(|record| record.packet.number).collect();
    assert_eq!(numbers, (0..25).collect::<Vec<_>>());
}

#[test]
fn a_script_drops_the_packet_it_names_and_the_stall_is_explained() {
    let mut simulation = pair(&path(20, 25 * MS), pacer(3, 100 * MS));
    simulation.network_mut().link_mut(Dumbbell::DOWN).set_script(Script::drop_numbers(0, [1]));
    let outcome = simulation.run_until(LONG).unwrap();
    assert_eq!(outcome.ended, Ended::Stalled);
    assert_eq!(simulation.node(0).pacer().received.len(), 2);
    assert_eq!(simulation.counters(Dumbbell::DOWN).dropped(DropReason::Script).packets, 1);
    assert_eq!(
        outcome.to_string(),
        "stalled at 0.250982400s after 9 events: nothing can happen any more; packets on their way: 0; not finished: 1\n  \
         client waits for a datagram and has no deadline"
    );
}

#[test]
fn packets_can_be_told_apart_by_content() {
    let mut simulation = pair(&path(20, MS), pacer(10, MS));
    simulation.tag_with(|datagram| u64::from(datagram.payload[0]));
    let odd = Script::new(|packet| (packet.tag % 2 == 1).then_some(netem::Forced::Drop));
    simulation.network_mut().link_mut(Dumbbell::UP).set_script(odd);
    let _ = simulation.run_until(LONG).unwrap();
    let received: Vec<u8> = simulation.node(0).pacer().received.iter().map(|arrival| arrival.1).collect();
    assert_eq!(received, [0, 2, 4, 6, 8]);
}

#[test]
fn a_time_limit_explains_itself_and_the_run_goes_on() {
    let mut simulation = pair(&path(20, 25 * MS), pacer(10, 100 * MS));
    let outcome = simulation.run_until(Instant::from_millis(420)).unwrap();
    assert_eq!((outcome.ended, outcome.at), (Ended::TimeLimit, Instant::from_millis(420)));
    let text = outcome.to_string();
    assert!(text.contains("packets on their way: 1;"), "{text}");
    assert!(text.ends_with("\n  client waits until 0.500000000s: the next packet is due"), "{text}");
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    assert_eq!(simulation.node(0).pacer().received.len(), 10);
}

#[test]
fn damage_and_copies_arrive() {
    let probability = Probability::new(0.5).unwrap();
    let link = LinkConfig {
        corrupt: probability,
        duplicate: Some(netem::Duplicate { probability, delay: MS }),
        ..path(20, MS)
    };
    let endless = Pacer { wanted: u64::MAX, ..pacer(200, MS) };
    let (client, server) = (Actor::Pacer(endless), Actor::Echo(Echo::default()));
    let mut simulation = point_to_point(Seed::from_number(1), &link, &path(20, MS), client, server).unwrap();
    let _ = simulation.run_until(LONG).unwrap();
    let counters = *simulation.counters(Dumbbell::UP);
    assert!((70..130).contains(&counters.duplicated) && (70..130).contains(&counters.corrupted), "{counters:?}");
    assert_eq!(simulation.node(0).pacer().received.len() as u64, 200 + counters.duplicated);
}

#[test]
fn access_delay_jitter_and_start_belong_to_the_node() {
    let hosts = (0..3u16).map(|n| Host {
        access: Access { delay: u32::from(n) * 10 * MS, jitter: Duration::ZERO },
        start: Instant::from_millis(1000 * u64::from(n)),
        ..Host::new(
            format!("client {n}"),
            Actor::Pacer(Pacer { wanted: 1, ..Pacer::new(client_address(n), server_address(0), 1, MS) }),
        )
    });
    let links = Dumbbell { up: path(20, 25 * MS), down: path(20, 25 * MS), ..Dumbbell::default() };
    let mut simulation =
        links.build(Seed::from_number(1), hosts, [Host::new("server", Actor::Echo(Echo::default()))]).unwrap();
    simulation.keep_trace(10);
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    for n in 0..3 {
        // The way to the bottleneck and back comes on top, each way.
        let expected = 1_000_000_000 * n as u64 + 50_982_400 + 20_000_000 * n as u64;
        assert_eq!(simulation.node(n).pacer().received[0].0, Instant::from_nanos(expected));
    }
    let flows: Vec<u32> = simulation.trace().records().iter().map(|record| record.packet.flow).collect();
    assert_eq!(flows, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn jitters_stay_within_their_spans_and_keep_the_order() {
    let run = |seed| {
        let access = Access { delay: Duration::ZERO, jitter: Duration::from_micros(300) };
        let node = Pacer { gap: Duration::from_micros(100), ..pacer(2000, MS) };
        let host = Host { access, ..Host::new("client", Actor::Pacer(node)) };
        let wire = LinkConfig::default();
        let links = Dumbbell { up: wire.clone(), down: wire, start_jitter: 50 * MS, nat: None };
        let server = [Host::new("server", Actor::Echo(Echo::default()))];
        let mut simulation = links.build(Seed::from_number(seed), [host], server).unwrap();
        simulation.keep_trace(10_000);
        assert!(simulation.run_until(LONG).unwrap().is_finished());
        let up: Vec<Instant> = simulation.trace().records().iter().filter(|r| r.link == 0).map(|r| r.at).collect();
        assert!(up.is_sorted());
        assert!(up[1999] - up[0] < 200 * MS + Duration::from_micros(300));
        up[0]
    };
    let starts: Vec<Instant> = (0..20).map(run).collect();
    assert!(starts.iter().all(|start| start.as_nanos() <= 50_300_000));
    assert!(starts.iter().any(|start| start.as_nanos() > 30_000_000), "{starts:?}");
    assert!(starts.iter().any(|start| start.as_nanos() < 20_000_000), "{starts:?}");
}

#[test]
fn a_packet_for_nobody_is_counted() {
    let mut simulation = pair(&path(20, MS), Pacer { to: "192.0.2.1:1".parse().unwrap(), wanted: 0, ..pacer(3, MS) });
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    assert_eq!(simulation.network().undeliverable().no_address, 3);
    assert_eq!(simulation.counters(Dumbbell::UP).offered.packets, 0);
}

#[test]
fn two_nodes_cannot_have_one_address() {
    let mut simulation = pair(&path(20, MS), pacer(1, MS));
    let zone = sim::Network::new(Seed::from_number(1)).zone();
    let error = simulation.attach(1, client_address(0).ip(), zone, Access::default()).unwrap_err();
    assert_eq!(error.to_string(), "the address 10.1.0.0 belongs to two nodes");
}

#[test]
fn settings_that_contradict_themselves_name_the_link() {
    let bad = LinkConfig { queue: Queue::Unlimited, ..path(20, MS) };
    let dumbbell = Dumbbell { up: path(20, MS), down: bad, ..Dumbbell::default() };
    let error = dumbbell.build::<Actor>(Seed::from_number(1), [], []).unwrap_err();
    assert!(error.to_string().starts_with("down: a link with a rate needs a queue"), "{error}");
}

/// Misbehaves in one of three ways.
enum Rogue {
    /// Deadline is always in the past.
    Impatient,
    /// Sends each packet back at once, for ever.
    PingPong,
    /// Sends without end in one call.
    Flooder(SocketAddr, SocketAddr),
}

impl Node for Rogue {
    fn handle(&mut self, _: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        match (self, datagram) {
            (Self::PingPong, Some(mut datagram)) => {
                std::mem::swap(&mut datagram.from, &mut datagram.to);
                out.send(datagram);
            }
            (Self::PingPong, None) => {
                out.send(Datagram::new(client_address(0), server_address(0), BytesMut::zeroed(1200)));
            }
            (Self::Flooder(from, to), _) => {
                let mut batch = Datagram::new(*from, *to, BytesMut::zeroed(60_000));
                batch.segment_size = Some(1);
                out.send(batch.clone());
                out.send(batch);
            }
            _ => {}
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        matches!(self, Self::Impatient).then_some((Instant::ZERO, "loss detection"))
    }
    fn finished(&self) -> bool {
        false
    }
}

#[test]
fn nodes_without_end_are_stopped_by_name() {
    let run = |link: &LinkConfig, one, other| {
        let mut simulation = point_to_point(Seed::from_number(1), link, link, one, other).unwrap();
        simulation.set_limits(Limits { events: 1_000_000, ..Limits::default() });
        simulation.run_until(LONG).unwrap_err()
    };
    let error = run(&path(20, MS), Rogue::PingPong, Rogue::Impatient);
    assert!(matches!(&error, SimError::Spinning { node, reason: "loss detection", .. } if node == "server"), "{error}");

    let error = run(&path(20, MS), Rogue::PingPong, Rogue::PingPong);
    assert!(matches!(&error, SimError::TooManyEvents { reason: "a datagram arrived", .. }), "{error}");

    let error = run(&LinkConfig::default(), Rogue::PingPong, Rogue::PingPong);
    assert!(matches!(&error, SimError::Spinning { reason: "a datagram arrived", .. }), "{error}");

    let flooder = Rogue::Flooder(client_address(0), server_address(0));
    let error = run(&path(20, MS), flooder, Rogue::PingPong);
    assert_eq!(error.to_string(), "client sent 120000 packets in one call at 0.000000000s; the limit is 65536");
}

#[test]
fn an_empty_datagram_and_odd_segment_sizes_do_no_harm() {
    struct Odd(bool);
    impl Node for Odd {
        fn handle(&mut self, _: Instant, _: Option<Datagram>, out: &mut Outbox) {
            for (len, segment) in [(0, None), (0, Some(0)), (10, Some(0)), (10, Some(100)), (10, Some(3))] {
                let mut datagram = Datagram::new(client_address(0), server_address(0), BytesMut::zeroed(len));
                datagram.segment_size = segment;
                out.send(datagram);
            }
            self.0 = true;
        }
        fn deadline(&self) -> Option<(Instant, &'static str)> {
            None
        }
        fn finished(&self) -> bool {
            self.0
        }
    }
    let links = Dumbbell { up: path(20, MS), down: path(20, MS), ..Dumbbell::default() };
    let nodes: [Host<Box<dyn Node>>; 1] = [Host::new("client", Box::new(Odd(false)))];
    let servers: [Host<Box<dyn Node>>; 1] = [Host::new("server", Box::new(Echo::default()))];
    let mut simulation = links.build(Seed::from_number(1), nodes, servers).unwrap();
    simulation.keep_trace(10);
    assert!(simulation.run_until(LONG).unwrap().is_finished());
    let sizes: Vec<u32> = simulation.trace().records().iter().map(|record| record.packet.size - 28).collect();
    assert_eq!(sizes, [0, 0, 10, 10, 3, 3, 3, 1]);
}

/// The lab runs one simulation per seed and core.
#[test]
fn a_simulation_can_move_to_another_thread() {
    fn movable<T: Send>(_: &T) {}
    movable(&pair(&path(20, MS), pacer(1, MS)));
}
