//! Repair `auto` at the beginning of a connection: copies of the handshake, the end of the first message, and peers and losses
//! that are in the way.

use std::net::SocketAddr;

use netem::{LinkConfig, Loss, Queue};
use sim::{client_address, point_to_point, server_address};
use transport::{Endpoint, Handle, Profile, Stats, recovery::LossTolerance};
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

use crate::support::{
    App, Host, client_config, client_endpoint,
    direct::{Sent, events, give, sent},
    exchange::Exchange,
    server_config, server_endpoint,
};

const MS: Duration = Duration::from_millis(1);

fn profile(fec: &str) -> Profile {
    // A window that a lost packet has made smaller costs a round trip of its own.
    let random_loss_tolerance = LossTolerance::try_from(Probability::new(0.15).unwrap()).unwrap();
    Profile { fec: fec.parse().unwrap(), max_mtu: 1200, random_loss_tolerance, ..Profile::default() }
}

/// Two ends, 50 ms apart unless said otherwise, and the application of each. Datagrams are carried by hand, so that any of them can be lost.
struct Pair {
    ends: [(Endpoint, Exchange, SocketAddr); 2],
    handle: Handle,
    /// Datagrams so far, by sender.
    count: [usize; 2],
    /// Datagrams on the way: arrival, receiver, payload.
    way: Vec<(Instant, usize, Sent)>,
    now: Instant,
    delay: Duration,
}

impl Pair {
    fn new(fec: [&str; 2], request: usize, answer: usize) -> Self {
        let mut client = client_endpoint(1);
        let server = server_endpoint(1, server_config(&profile(fec[1])));
        let config = client_config(&profile(fec[0]));
        let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
        let ends = [
            (client, Exchange::client(handle, request, answer), client_address(0)),
            (server, Exchange::server(answer), server_address(0)),
        ];
        Self { ends, handle, count: [0; 2], way: Vec::new(), now: Instant::ZERO, delay: 50 * MS }
    }

    /// Runs until the answer is complete, without the datagrams for which `lost` says so, by sender, number and size. Returns when
    /// the client was connected and when it was answered, in milliseconds.
    fn run(&mut self, lost: impl Fn(usize, usize, usize) -> bool) -> (u64, u64) {
        while self.now < Instant::from_millis(20_000) {
            for end in 0..2 {
                let (endpoint, app, _) = &mut self.ends[end];
                let happened = events(endpoint);
                app.act(self.now, endpoint, happened);
                for datagram in sent(endpoint, self.now) {
                    let number = self.count[end];
                    self.count[end] += 1;
                    if !lost(end, number, datagram.payload.len()) {
                        self.way.push((self.now + self.delay, 1 - end, datagram));
                    }
                }
            }
            let millis = |at: Instant| at.saturating_since(Instant::ZERO).as_millis() as u64;
            let client = &self.ends[0].1;
            if let (Some(connected), Some(answered)) = (client.connected, client.answered) {
                return (millis(connected), millis(answered));
            }
            self.now += MS;
            for (_, to, datagram) in self.way.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
                let from = self.ends[1 - to].2;
                give(&mut self.ends[to].0, self.now, from, &datagram.payload);
            }
            self.ends.iter_mut().for_each(|(endpoint, ..)| endpoint.handle_timeout(self.now));
        }
        panic!("no answer");
    }

    fn stats(&self, end: usize) -> Stats {
        let handle = if end == 0 { self.handle } else { self.ends[1].1.accepted[0] };
        self.ends[end].0.connection(handle).unwrap().stats()
    }
}

const AUTO: [&str; 2] = ["auto", "auto"];
const OFF: [&str; 2] = ["off", "off"];

/// Each single datagram of a request of 12 kB on a new connection may be lost: nothing waits for a timeout or a round trip.
#[test]
fn any_datagram_of_a_new_connection_may_be_lost() {
    let (_, plain) = Pair::new(AUTO, 12_000, 10).run(|_, _, _| false);
    assert!((200..=250).contains(&plain), "{plain}");
    let mut pair = Pair::new(AUTO, 12_000, 10);
    pair.run(|_, _, _| false);
    let mut slow_without = 0;
    for number in 0..pair.count[0] {
        let lose = |end, at, _| end == 0 && at == number;
        let (_, answered) = Pair::new(AUTO, 12_000, 10).run(lose);
        assert!(answered <= plain + 45, "datagram {number} lost: {answered} ms instead of {plain}");
        let (_, answered) = Pair::new(OFF, 12_000, 10).run(lose);
        slow_without += usize::from(answered > plain + 90);
    }
    assert!(slow_without >= 10, "{slow_without}");
    // The same of the server's datagrams, when the answer is long.
    let (_, plain) = Pair::new(AUTO, 200, 12_000).run(|_, _, _| false);
    let mut pair = Pair::new(AUTO, 200, 12_000);
    pair.run(|_, _, _| false);
    for number in 0..pair.count[1] {
        let (_, answered) = Pair::new(AUTO, 200, 12_000).run(|end, at, _| end == 1 && at == number);
        assert!(answered <= plain + 45, "datagram {number} lost: {answered} ms instead of {plain}");
    }
}

/// Two at the end of a request: the last data and a repair symbol.
#[test]
fn the_last_datagrams_may_be_lost() {
    let mut pair = Pair::new(AUTO, 12_000, 10);
    let (_, plain) = pair.run(|_, _, _| false);
    // What the client sends after them acknowledges the server's flight.
    let large: Vec<usize> = {
        let sizes = std::cell::RefCell::new(Vec::new());
        Pair::new(AUTO, 12_000, 10).run(|end, at, len| {
            if end == 0 && len > 500 && len < 1200 {
                sizes.borrow_mut().push(at);
            }
            false
        });
        sizes.into_inner()
    };
    let last = &large[large.len() - 4..large.len() - 2];
    let (_, answered) = Pair::new(AUTO, 12_000, 10).run(|end, at, _| end == 0 && last.contains(&at));
    assert!(answered <= plain + 45, "{answered} ms instead of {plain}");
}

#[test]
fn a_lost_first_packet_costs_no_second() {
    // The ClientHello takes two datagrams.
    let first = |end, number, _| end == 0 && number < 2;
    let (without, _) = Pair::new(OFF, 100, 100).run(first);
    assert!(without >= 1_000, "{without}");
    let mut pair = Pair::new(AUTO, 100, 100);
    let (with, _) = pair.run(first);
    assert!((100..=115).contains(&with), "{with}");
    // One copy of each flight, and no probe timeout.
    assert_eq!(pair.stats(0).probe_timeouts + pair.stats(1).probe_timeouts, 0);
}

/// A handshake that has ended before its copy is due leaves no deadline behind.
#[test]
fn a_handshake_quicker_than_its_copy_leaves_no_timer() {
    let mut pair = Pair { delay: MS, ..Pair::new(AUTO, 100, 100) };
    pair.run(|_, _, _| false);
    for _ in 0..30 {
        pair.now += MS;
        for (endpoint, ..) in &mut pair.ends {
            endpoint.handle_timeout(pair.now);
            while !sent(endpoint, pair.now).is_empty() {}
            let next = endpoint.poll_timeout().map(|(at, ..)| at);
            assert!(next.is_none_or(|next| next > pair.now), "{next:?} at {:?}", pair.now);
        }
    }
}

/// A client copies its first flight for any server; a server answers to one without repair as ever.
#[test]
fn who_does_not_repair_gets_no_copies_and_no_symbols() {
    let count = |fec| {
        let mut pair = Pair::new(fec, 3_000, 3_000);
        pair.run(|_, _, _| false);
        let symbols = pair.stats(0).fec_symbols_sent + pair.stats(1).fec_symbols_sent;
        (pair.count, symbols, [0, 1].map(|end| pair.stats(end).fec_repairs_sent))
    };
    let (plain, symbols, _) = count(OFF);
    assert_eq!(symbols, 0);
    let (count_of_auto, symbols, _) = count(["auto", "off"]);
    // The ClientHello takes two datagrams.
    assert_eq!((count_of_auto[0], count_of_auto[1] <= plain[1] + 2, symbols), (plain[0] + 2, true, 0));
    assert_eq!(count(["off", "auto"]), (plain, 0, [0, 0]));
    let (_, symbols, repairs) = count(AUTO);
    assert!(symbols > 4 && repairs.iter().all(|count| *count >= 1), "{symbols} {repairs:?}");
    // Whoever only receives is protected and protects nothing.
    let (_, _, repairs) = count(["receive", "auto"]);
    assert!(repairs[0] == 0 && repairs[1] > 0, "{repairs:?}");
}

/// Messages of all sizes arrive as they were sent: symbols are cut, packets in front of them padded, ends recovered.
#[test]
fn what_is_cut_arrives_whole() {
    let link = |loss: Loss| LinkConfig {
        rate: Some(Bitrate::from_mbps(20)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(250_000) },
        delay: 50 * MS,
        loss,
        ..LinkConfig::default()
    };
    let mut recovered = 0;
    for seed in 0..120_u64 {
        let (request, answer) = (1 + 233 * seed as usize, 1 + 571 * seed as usize);
        let profile = Profile { max_mtu: if seed % 2 == 0 { 1200 } else { 1452 }, ..profile("auto") };
        let mut client = client_endpoint(seed);
        let server = server_endpoint(seed, server_config(&profile));
        let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
        let client = Host::new(client_address(0), client, Exchange::client(handle, request, answer));
        let server = Host::new(server_address(0), server, Exchange::server(answer));
        let loss = link(Loss::Iid { p: Probability::new(0.05).unwrap() });
        let mut simulation = point_to_point(Seed::from_number(seed), &loss, &loss, client, server).unwrap();
        let outcome = simulation.run_until(Instant::from_millis(60_000)).unwrap();
        assert!(outcome.is_finished(), "{seed}: {outcome}");
        let mut nodes = simulation.into_nodes();
        let client = nodes.next().unwrap();
        assert!(client.app.answered.is_some(), "{seed}");
        recovered += client.endpoint.connection(handle).unwrap().stats().fec_symbols_recovered;
    }
    assert!(recovered > 20, "{recovered}");
}

/// A transfer that continues is not covered: its symbols end after a short message's worth, and so does repair.
#[test]
fn a_long_transfer_without_loss_has_no_repair() {
    let mut pair = Pair::new(AUTO, 200, 2_000_000);
    pair.run(|_, _, _| false);
    let server = pair.stats(1);
    assert!(server.fec_symbols_sent <= 64 && server.fec_repairs_sent <= 4, "{server:?}");
}
