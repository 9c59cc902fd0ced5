//! A NAT that gives a client another mapping in the middle of a transfer: neither end is told, and what the server sends to the
//! mapping before arrives nowhere.
//!
//! ```text
//! client – NAT – rate, delay, loss – server
//! ```

use crate::support;

use netem::{LinkConfig, Loss, NatConfig, Queue, Rebinding};
use rand_core::RngCore;
use sim::{Dumbbell, Simulation, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    exchange::{Exchange, Goal},
    server_config, server_endpoint,
};
use transport::{Profile, Stats};
use units::{Bitrate, DataSize, Duration, Instant, Probability, RandomStream, Seed};

type Sim = Simulation<Host<Exchange>>;

/// Transfer in progress when the mapping changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Download,
    Upload,
    /// The server thinks for seconds before it answers.
    LongAnswer,
}

const ALL: [Transfer; 3] = [Transfer::Download, Transfer::Upload, Transfer::LongAnswer];
/// The transfer alone takes about so long.
const SECONDS: u64 = 7;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn between(draws: &mut RandomStream, from: u64, to: u64) -> u64 {
    from + draws.next_u64() % (to - from)
}

/// One connection and its network.
struct Run {
    sim: Sim,
    transfer: Transfer,
    /// Time at which the server answers.
    answer_at: Instant,
    /// Times at which the mapping changes.
    rebind: Vec<Duration>,
}

impl Run {
    fn new(seed: u64, transfer: Transfer, silence_pings: bool) -> Self {
        let seed = Seed::from_number(seed);
        let mut draws = seed.stream("rebinding");
        let mbps = between(&mut draws, 2, 9);
        let rtt = between(&mut draws, 10, 200);
        let loss = [0.0, 0.0, 0.01, 0.03][between(&mut draws, 0, 4) as usize];
        let link = LinkConfig {
            rate: Some(Bitrate::from_mbps(mbps)),
            // A round trip of the path, and 20 ms.
            queue: Queue::DropTail { bytes: DataSize::from_bytes(mbps * 125 * (rtt + 20)) },
            delay: Duration::from_micros(rtt * 500),
            loss: if loss > 0.0 { Loss::Iid { p: Probability::new(loss).unwrap() } } else { Loss::None },
            ..LinkConfig::default()
        };
        let bytes = (mbps * 125_000 * SECONDS) as usize;
        let (request, answer) = match transfer {
            Transfer::Download => (100, bytes),
            Transfer::Upload => (bytes, 100),
            Transfer::LongAnswer => (100, 100_000),
        };
        let answer_at = at(between(&mut draws, 1_500, 8_000));
        let first = between(&mut draws, 1_000, 2_000);
        let rebind = match transfer {
            Transfer::LongAnswer => vec![between(&mut draws, 900, millis(answer_at - Instant::ZERO))],
            Transfer::Download | Transfer::Upload => vec![first, first + between(&mut draws, 3_000, 4_000)],
        };
        let rebind: Vec<Duration> = rebind.into_iter().map(Duration::from_millis).collect();
        let address = draws.next_u64() % 2 == 1;
        let nat =
            NatConfig { rebind: rebind.iter().map(|&at| Rebinding { at, address }).collect(), ..NatConfig::default() };
        let profile = Profile { silence_pings, ..Profile::default() };
        let mut client = client_endpoint(seed.child("ends", 0).stream("client").next_u64());
        let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
        let client = Host::new(client_address(0), client, Exchange::client(handle, request, answer));
        let endpoint =
            server_endpoint(seed.child("ends", 1).stream("server").next_u64(), server_config(&Profile::default()));
        let mut server = Host::new(server_address(0), endpoint, Exchange::server(answer));
        server.app.thinks = transfer == Transfer::LongAnswer;
        let net = Dumbbell { up: link.clone(), down: link, nat: Some(nat), ..Dumbbell::default() };
        let sim = net.build(seed, [sim::Host::new("client", client)], [sim::Host::new("server", server)]).unwrap();
        Self { sim, transfer, answer_at, rebind }
    }

    /// The client's figures and its probe timeout in milliseconds.
    fn client(&self) -> (Stats, u64) {
        let host = self.sim.node(0);
        let connection = host.endpoint.connection(host.app.handle.unwrap());
        let stats = connection.map(transport::Connection::stats).unwrap_or_default();
        let max_ack_delay = Duration::from_millis(25);
        let variation = Duration::from_nanos(4 * stats.rtt_variation).max(Duration::from_millis(1));
        (stats, millis(Duration::from_nanos(stats.smoothed_rtt) + variation + max_ack_delay))
    }

    /// Runs until `end`, or until everything has arrived.
    fn until(&mut self, end: Instant) {
        if self.sim.node(1).app.thinks && self.answer_at < end {
            let _ = self.sim.run_until(self.answer_at).unwrap();
            self.sim.with_node(1, |_, host| host.app.thinks = false).unwrap();
        }
        let _ = self.sim.run_until(end).unwrap();
    }

    /// The longest time in which the receiver waited for data that could come, what is permitted, and the PINGs. `None` when the
    /// mapping changes before the handshake is complete, which nobody follows (RFC 9000 §9).
    fn finish(mut self) -> Option<(u64, u64, u64)> {
        let mut pto = 0;
        for at in self.rebind.clone() {
            self.until(Instant::ZERO + at);
            self.sim.node(1).app.connected?;
            pto = pto.max(self.client().1);
        }
        let end = at(90_000);
        self.until(end);
        let (stats, last) = self.client();
        let app = |node| &self.sim.node(node).app;
        let receiver = app(usize::from(self.transfer == Transfer::Upload));
        let done = app(0).answered.unwrap_or(end);
        let begin = match self.transfer {
            Transfer::LongAnswer => self.answer_at,
            Transfer::Download | Transfer::Upload => *receiver.progress.first().unwrap_or(&Instant::ZERO),
        };
        let mut moments = vec![begin];
        moments.extend(receiver.progress.iter().filter(|&&at| at > begin));
        moments.push(done);
        let longest = moments.windows(2).map(|pair| millis(pair[1].saturating_since(pair[0]))).max().unwrap();
        Some((longest, 3 * pto.max(last) + 1_000, stats.silence_pings))
    }
}

/// Runs that stalled, of so many seeds of each transfer.
fn measure(seeds: u64, silence_pings: bool) -> usize {
    let mut all = 0;
    for transfer in ALL {
        let (mut stalled, mut longest, mut allowed, mut pings, mut early) = (Vec::new(), 0, 0, 0, 0);
        for seed in 1..=seeds {
            let Some((gap, limit, sent)) = Run::new(seed, transfer, silence_pings).finish() else {
                early += 1;
                continue;
            };
            if gap > limit {
                stalled.push((seed, gap, limit));
            }
            (longest, allowed, pings) = (longest.max(gap), allowed.max(limit), pings + sent);
        }
        println!(
            "rebinding: seeds {seeds} | stalled {} | longest {longest} ms | limit {allowed} ms | pings {pings} | {transfer:?}, {early} in the handshake",
            stalled.len()
        );
        assert!(100 * early <= seeds, "{early} of {seeds} seeds say nothing");
        if !stalled.is_empty() {
            println!("  seed, ms without data, ms allowed: {:?}", &stalled[..stalled.len().min(20)]);
        }
        all += stalled.len();
    }
    all
}

#[test]
fn a_change_of_the_mapping_stalls_no_transfer() {
    assert_eq!(measure(40, true), 0);
}

/// The negative control: it is the PINGs that do it.
#[test]
fn without_pings_transfers_stall() {
    assert!(measure(40, false) > 0);
}

#[test]
#[ignore = "takes minutes"]
fn a_change_of_the_mapping_stalls_none_of_a_thousand() {
    assert_eq!(measure(1_000, true), 0);
}

/// PINGs that a client sends in the first and the second minute after its request, without a NAT.
fn pings_by_minute(answer: usize, thinks: bool) -> [u64; 2] {
    let link = LinkConfig { delay: Duration::from_millis(20), ..LinkConfig::default() };
    let profile = Profile { idle_timeout: Duration::from_secs(300), ..Profile::default() };
    let mut client = client_endpoint(1);
    let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
    let app = Exchange::client(handle, 100, answer).until(Goal::Never);
    let client = Host::new(client_address(0), client, app);
    let endpoint = server_endpoint(1, server_config(&profile));
    let mut server = Host::new(server_address(0), endpoint, Exchange::server(answer).until(Goal::Never));
    server.app.thinks = thinks;
    let mut sim = point_to_point(Seed::from_number(1), &link, &link, client, server).unwrap();
    let mut pings = [0; 2];
    for minute in 0..2 {
        let _ = sim.run_until(at(60_000 * (minute as u64 + 1))).unwrap();
        let host = sim.node(0);
        let stats = host.endpoint.connection(handle).unwrap().stats();
        pings[minute] = stats.silence_pings - pings[..minute].iter().sum::<u64>();
    }
    pings
}

/// Cost in battery: no packets when nothing is awaited, and at most a dozen in a silence of any length.
#[test]
fn an_idle_client_sends_no_pings() {
    let idle = pings_by_minute(100_000, false);
    println!("rebinding: PINGs of an idle connection in each minute {idle:?}");
    assert_eq!(idle, [0, 0]);
    let silent = pings_by_minute(100_000, true);
    println!("rebinding: PINGs while an answer is awaited in vain, in each minute {silent:?}");
    assert_eq!(silent, [12, 0]);
}
