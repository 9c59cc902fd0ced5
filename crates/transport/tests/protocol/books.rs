//! The books balance at both ends and at the links, whatever the network and the applications do: every byte, every packet and every
//! datagram is in exactly one column.
//!
//! ```text
//! client – (NAT) – rate, queue, delay, jitter, loss, reordering, copies, corruption – server
//! ```

use crate::support;

use bytes::Bytes;
use netem::{
    Codel, Duplicate, Fate, FqCodel, IPV4_OVERHEAD, LinkConfig, Loss, NatConfig, Outage, Queue, Rebinding, Reorder,
};
use rand_core::RngCore;
use sim::{Dumbbell, Simulation, client_address, server_address};
use support::{App, Host, client_config, client_endpoint, server_config, server_endpoint};
use transport::{Connection, Endpoint, Event, Handle, Profile, RetryPolicy, congestion::Algorithm, streams::Order};
use units::{Bitrate, DataSize, Duration, Instant, Probability, RandomStream, Seed};
use wire::{Dir, StreamId};

struct Draws(RandomStream);

impl Draws {
    /// From `from` up to and without `to`.
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.0.next_u64() % (to - from)
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }

    fn probability(&mut self, most: f64) -> Probability {
        Probability::new(most * self.between(0, 1_000) as f64 / 1_000.0).unwrap()
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.between(from * 1_000, to * 1_000))
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.between(0, from.len() as u64) as usize]
    }
}

/// An application that does anything at any time, and comes to an end of it.
struct Chaos {
    draws: Draws,
    handles: Vec<Handle>,
    streams: Vec<(Handle, StreamId)>,
    /// Actions left.
    acts: u32,
    /// Payload of datagrams and pieces of streams at most.
    piece: u64,
}

impl Chaos {
    fn new(draws: Draws, handle: Option<Handle>) -> Self {
        let handles = handle.into_iter().collect();
        Self { draws, handles, streams: Vec::new(), acts: 300, piece: 20_000 }
    }

    fn do_something(&mut self, now: Instant, connection: &mut Connection, handle: Handle) {
        let draws = &mut self.draws;
        let dir = *draws.pick(&[Dir::Bi, Dir::Uni]);
        match draws.between(0, 100) {
            0..20 => {
                if let Some(id) = connection.open(dir) {
                    self.streams.push((handle, id));
                }
            }
            20..60 => {
                for &(_, id) in self.streams.iter().filter(|(of, _)| *of == handle) {
                    let mut data = Bytes::from(vec![7; draws.between(0, self.piece) as usize]);
                    let _ = connection.write(id, &mut data);
                    if draws.happens(20) {
                        let _ = connection.finish(id);
                    }
                    if draws.happens(2) {
                        let _ = connection.reset(id, 3);
                    }
                    if draws.happens(2) {
                        let _ = connection.stop_sending(id, 4);
                    }
                }
            }
            60..95 => {
                for _ in 0..draws.between(1, 30) {
                    let Some(most) = connection.max_datagram_size() else { break };
                    let len = draws.between(0, most as u64 + 1) as usize;
                    let _ = connection.send_datagram(Bytes::from(vec![9; len]));
                }
            }
            95 => connection.update_keys(),
            96 => connection.ping(),
            97 => connection.set_congestion(now, *draws.pick(&Algorithm::ALL)),
            _ if draws.happens(10) => connection.close(now, 5, b"enough"),
            _ => {}
        }
    }

    fn read(&mut self, connection: &mut Connection, handle: Handle) {
        for dir in [Dir::Bi, Dir::Uni] {
            while let Some(id) = connection.accept(dir) {
                self.streams.push((handle, id));
            }
        }
        for &(_, id) in self.streams.iter().filter(|(of, _)| *of == handle) {
            let order = *self.draws.pick(&[Order::Ordered, Order::Ordered, Order::Unordered]);
            let most = self.draws.between(1, 100_000) as usize;
            while self.draws.happens(90) && matches!(connection.read(id, most, order), Ok(Some(_))) {}
        }
        while self.draws.happens(90) && connection.recv_datagram().is_some() {}
    }
}

impl App for Chaos {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, _: Vec<(Handle, Event)>) {
        while let Some(handle) = endpoint.poll_accept() {
            self.handles.push(handle);
        }
        for handle in self.handles.clone() {
            let Some(connection) = endpoint.connection_mut(handle) else { continue };
            self.read(connection, handle);
            if self.acts > 0 && connection.is_connected() && self.draws.happens(30) {
                self.acts -= 1;
                self.do_something(now, connection, handle);
            }
        }
    }

    fn finished(&self) -> bool {
        false
    }
}

fn link(draws: &mut Draws) -> LinkConfig {
    let rate = draws.happens(80).then(|| Bitrate::from_bps(draws.between(200_000, 30_000_000)));
    let bytes = DataSize::from_bytes(draws.between(3_000, 100_000));
    let (target, interval) = (Duration::from_millis(5), Duration::from_millis(100));
    let codel = Codel { bytes, target, interval, ecn: draws.happens(50) };
    let queue = match (rate, draws.between(0, 4)) {
        (None, _) => Queue::Unlimited,
        (_, 0) => Queue::Codel(codel),
        (_, 1) => Queue::FqCodel(FqCodel { codel, quantum: 1_514 }),
        _ => Queue::DropTail { bytes },
    };
    let loss = match draws.between(0, 3) {
        0 => Loss::None,
        1 => Loss::Iid { p: draws.probability(0.1) },
        _ => Loss::Burst { mean: Probability::new(0.03).unwrap(), length: 4.0 },
    };
    let jitter = if draws.happens(50) { draws.millis(1, 20) } else { Duration::ZERO };
    let often = |draws: &mut Draws, percent| draws.happens(percent).then(|| draws.probability(0.05));
    let outage = |draws: &mut Draws| Outage {
        at: draws.millis(50, 2_000),
        lasts: draws.millis(10, 400),
        every: None,
        packets: *draws.pick(&[Fate::Lost, Fate::Held]),
    };
    LinkConfig {
        rate,
        queue,
        loss,
        jitter,
        delay: draws.millis(0, 80),
        jitter_reorders: !jitter.is_zero() && draws.happens(50),
        reorder: often(draws, 30).map(|probability| Reorder { probability, delay: draws.millis(1, 30) }),
        duplicate: often(draws, 40).map(|probability| Duplicate { probability, delay: draws.millis(0, 30) }),
        corrupt: often(draws, 30).unwrap_or_default(),
        mtu: draws.happens(20).then(|| draws.between(1_228, 1_500) as u32),
        outages: if draws.happens(20) { vec![outage(draws)] } else { Vec::new() },
        ..LinkConfig::default()
    }
}

fn profile(draws: &mut Draws) -> Profile {
    let fec = *draws.pick(&["off", "off", "auto", "xor:5", "rs:10+3", "rlc:1/5:40"]);
    Profile {
        congestion: *draws.pick(&Algorithm::ALL),
        fec: fec.parse().unwrap(),
        ack_frequency: draws.pick(&["off", "fixed:4", "adaptive"]).parse().unwrap(),
        receive_timestamps: *draws.pick(&[0, 0, 32]),
        datagram_queue: *draws.pick(&[0, 5_000, 20_000, 1 << 20]),
        idle_timeout: draws.millis(500, 10_000),
        pacing: draws.happens(80),
        ecn: draws.happens(50),
        grease: draws.happens(50),
        keep_alive: draws.happens(20).then(|| Duration::from_millis(300)),
        ..Profile::default()
    }
}

/// Runs a network with a seed, and looks into the books at three moments.
fn run(number: u64) -> Result<Totals, String> {
    let seed = Seed::from_number(number);
    let mut draws = Draws(seed.stream("network"));
    let (profiles, links) = ([profile(&mut draws), profile(&mut draws)], [link(&mut draws), link(&mut draws)]);
    let mut client = client_endpoint(number);
    let config = client_config(&profiles[0]);
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").map_err(|e| e.to_string())?;
    let client = Host::new(client_address(0), client, Chaos::new(Draws(seed.stream("client")), Some(handle)));
    let mut config = server_config(&profiles[1]);
    config.retry = if draws.happens(30) { RetryPolicy::Always } else { RetryPolicy::Never };
    let server = server_endpoint(number, config);
    let server = Host::new(server_address(0), server, Chaos::new(Draws(seed.stream("server")), None));
    let rebind =
        (0..draws.between(0, 3)).map(|_| Rebinding { at: draws.millis(100, 4_000), address: draws.happens(50) });
    let rebind = rebind.collect();
    let timeout = if draws.happens(20) { draws.millis(100, 2_000) } else { Duration::ZERO };
    let nat = draws.happens(40).then_some(NatConfig { timeout, rebind, ..NatConfig::default() });
    let [up, down] = links;
    let net = Dumbbell { up, down, nat, ..Dumbbell::default() };
    let hosts = [sim::Host::new("client", client)];
    let mut sim: Simulation<Host<Chaos>> =
        net.build(seed, hosts, [sim::Host::new("server", server)]).map_err(|e| e.to_string())?;
    let mut totals = Totals::default();
    for end in [draws.millis(10, 300), draws.millis(300, 3_000), Duration::from_secs(8)] {
        let _ = sim.run_until(Instant::ZERO + end).map_err(|e| e.to_string())?;
        totals = check(&sim).map_err(|difference| format!("seed {number} at {end:?}: {difference}"))?;
    }
    Ok(totals)
}

/// Contents of a run, so that a test can check that nothing was left out.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    packets: u64,
    dropped: u64,
    duplicated: u64,
    undeliverable: u64,
    undecryptable: u64,
    stateless: u64,
    stream_again: u64,
    unwanted: u64,
    repair: u64,
    datagrams_dropped: u64,
}

fn check(sim: &Simulation<Host<Chaos>>) -> Result<Totals, String> {
    sim.balance().map_err(|error| error.to_string())?;
    let books = sim.books();
    let (mut sent, mut received) = ((0, 0), (0, 0));
    let mut totals = Totals {
        packets: books.sent.packets,
        dropped: books.dropped.iter().map(|dropped| dropped.packets).sum(),
        duplicated: books.duplicated.packets,
        undeliverable: books.undeliverable.packets,
        ..Totals::default()
    };
    for host in sim.nodes() {
        host.endpoint.balance().map_err(|error| error.to_string())?;
        let books = host.endpoint.books();
        let header = u64::from(IPV4_OVERHEAD);
        let whole = |total: transport::Carried| (total.datagrams, total.bytes + header * total.datagrams);
        let (out, inward) = (whole(books.sent.total), whole(books.received.total));
        sent = (sent.0 + out.0, sent.1 + out.1);
        received = (received.0 + inward.0, received.1 + inward.1);
        totals.stateless += books.sent.stateless.datagrams + books.received.stateless.datagrams;
        for handle in &host.app.handles {
            let Some(connection) = host.endpoint.connection(*handle) else { continue };
            let stats = connection.stats();
            totals.undecryptable += stats.undecryptable_bytes_received;
            totals.stream_again += stats.stream_bytes_retransmitted;
            totals.unwanted += stats.stream_bytes_unwanted;
            totals.repair += stats.fec_repair_bytes_sent;
            totals.datagrams_dropped += stats.datagram_frames_dropped;
        }
    }
    let pairs = [
        ("sent by endpoints and by nodes", sent, (books.sent.packets, books.sent.bytes)),
        ("received by endpoints and delivered to nodes", received, (books.delivered.packets, books.delivered.bytes)),
    ];
    for (what, ends, network) in pairs {
        if ends != network {
            return Err(format!("{what}: {ends:?} and {network:?} (packets, bytes)"));
        }
    }
    Ok(totals)
}

/// Differences in so many random simulations; prints what they were made of.
fn differences(seeds: std::ops::Range<u64>) -> Vec<String> {
    let count = seeds.end - seeds.start;
    let (mut found, mut sum) = (Vec::new(), Totals::default());
    for seed in seeds {
        match run(seed) {
            Ok(totals) => {
                sum.packets += totals.packets;
                sum.dropped += totals.dropped;
                sum.duplicated += totals.duplicated;
                sum.undeliverable += totals.undeliverable;
                sum.undecryptable += totals.undecryptable;
                sum.stateless += totals.stateless;
                sum.stream_again += totals.stream_again;
                sum.unwanted += totals.unwanted;
                sum.repair += totals.repair;
                sum.datagrams_dropped += totals.datagrams_dropped;
            }
            Err(difference) => found.push(difference),
        }
    }
    println!(
        "books: simulations {count} | differences {} | packets {} | dropped {}",
        found.len(),
        sum.packets,
        sum.dropped
    );
    println!("  {sum:?}");
    found.iter().take(20).for_each(|difference| println!("  {difference}"));
    for (what, count) in [
        ("drops", sum.dropped),
        ("copies", sum.duplicated),
        ("packets to nobody", sum.undeliverable),
        ("corrupt packets", sum.undecryptable),
        ("packets without state", sum.stateless),
        ("retransmissions", sum.stream_again),
        ("unwanted data", sum.unwanted),
        ("repair", sum.repair),
        ("dropped datagrams", sum.datagrams_dropped),
    ] {
        assert!(count > 0, "no {what} in {:?}", found.len());
    }
    found
}

#[test]
fn books_balance() {
    assert_eq!(differences(0..150), Vec::<String>::new());
}

#[test]
#[ignore = "takes minutes"]
fn books_balance_in_ten_thousand_simulations() {
    assert_eq!(differences(1_000..11_000), Vec::<String>::new());
}
