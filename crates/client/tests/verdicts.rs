//! The race in virtual time: QUIC, its questions and their answers are the real state machines over a network that delays, loses
//! and cuts; TCP is a model (losses answered by its timeouts, first of 1 s, then of 200 ms or two round trips).

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use bytes::BytesMut;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tiderace::{
    ClientConfig, CloseReason, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::{Datagram, Endpoint, EndpointConfig, Event},
};
use tiderace_client::{
    probe,
    race::{Action, Input, Leg, Plan, Race, Verdict},
};
use units::{Duration, Instant, Seed};

/// Seeds of each case.
fn seeds() -> u64 {
    std::env::var("CLIENT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

#[derive(Clone, Copy)]
struct Network {
    rtt: Duration,
    /// Of each packet, each way.
    loss: f64,
    /// Bits per second each way.
    rate: f64,
    blocked: bool,
    sheds: bool,
    /// UDP is cut after QUIC was there, and before the next request.
    cut: bool,
}

const GOOD: Network =
    Network { rtt: Duration::from_millis(60), loss: 0.0, rate: 50e6, blocked: false, sheds: false, cut: false };

struct Tls {
    server: Arc<RustlsServer>,
    client: Arc<RustlsClient>,
}

fn tls() -> Tls {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().to_vec();
    let identity = Identity::from_der(vec![certificate.clone()], made.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("h3").build().unwrap();
    let client = RustlsClient::builder().roots([certificate]).alpn("h3").build().unwrap();
    Tls { server: Arc::new(server), client: Arc::new(client) }
}

enum Arrival {
    AtServer(SocketAddr, Vec<u8>),
    AtClient(Vec<u8>),
    AtProber(Vec<u8>),
    Tcp(Input),
}

struct World {
    network: Network,
    random: ChaCha8Rng,
    now: Instant,
    /// By time and number.
    coming: BTreeMap<(Instant, u64), Arrival>,
    number: u64,
    /// Times at which the link is free again, towards the server and back.
    free: [Instant; 2],
}

const CLIENT: &str = "10.0.0.1:1000";
const PROBER: &str = "10.0.0.1:1001";
const SERVER: &str = "10.0.0.2:443";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl World {
    fn new(network: Network, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        let free = [Instant::ZERO; 2];
        Self { network, random, now: Instant::ZERO, coming: BTreeMap::new(), number: 0, free }
    }

    fn lost(&mut self) -> bool {
        f64::from(self.random.next_u32()) < self.network.loss * f64::from(u32::MAX)
    }

    fn at(&mut self, when: Instant, what: Arrival) {
        self.number += 1;
        self.coming.insert((when, self.number), what);
    }

    /// Sends a UDP payload: `way` 0 is towards the server.
    fn send(&mut self, way: usize, size: usize, what: Arrival) {
        let start = self.free[way].max(self.now);
        self.free[way] = start + Duration::from_secs_f64((size + 28) as f64 * 8.0 / self.network.rate);
        let arrives = self.free[way] + self.network.rtt / 2;
        if !self.network.blocked && !self.lost() {
            self.at(arrives, what);
        }
    }

    /// An exchange of TCP with `packets` packets in sum, each repeated until it arrives: when it is complete.
    fn exchange(&mut self, start: Instant, packets: u32, first_timeout: Duration) -> Instant {
        let mut slowest = Duration::ZERO;
        for _ in 0..packets {
            let (mut late, mut timeout) = (Duration::ZERO, first_timeout);
            while self.lost() {
                late += timeout;
                timeout = (timeout * 2).min(Duration::from_secs(4));
            }
            slowest = slowest.max(late);
        }
        let transmission = Duration::from_secs_f64(f64::from(packets) * 1_000.0 * 8.0 / self.network.rate);
        start + self.network.rtt + transmission + slowest
    }

    fn timeout(&self) -> Duration {
        (self.network.rtt * 2).max(Duration::from_millis(200))
    }

    /// Times at which TCP is connected and TLS is done, begun at `start`.
    fn tcp(&mut self, start: Instant) -> (Instant, Instant) {
        let connected = self.exchange(start, 2, Duration::from_secs(1));
        let timeout = self.timeout();
        (connected, self.exchange(connected, 4, timeout))
    }
}

struct Outcome {
    verdict: Option<Verdict>,
    used: Option<Leg>,
    first_byte: Duration,
}

/// One race.
fn race(tls: &Tls, network: Network, seed: u64) -> Outcome {
    let mut world = World::new(network, seed);
    let profile = Arc::new(Profile::default());
    let mut accepts = ServerConfig::new(tls.server.clone(), profile.clone());
    if network.sheds {
        accepts.versions.clear();
    }
    let config = |name: &str| EndpointConfig::from_seed(Seed::from_number(seed).child(name, 0));
    let mut server = Endpoint::new(config("server"), Some(Arc::new(accepts)));
    let mut client = Endpoint::new(config("client"), None);
    let id = seed.to_be_bytes();
    let mut race = Race::new(world.now, Plan::default());
    let mut begun = world.now;
    let mut live = false;
    let mut used = None;
    let mut first_byte = None;
    let mut buffer = vec![0; 65_536];
    let end = Instant::ZERO + Duration::from_secs(60);
    loop {
        while let Some(action) = race.poll_action() {
            match action {
                // It is there already.
                Action::Start(Leg::Quic) if live => {}
                Action::Start(Leg::Quic) => {
                    let config = ClientConfig::new(tls.client.clone(), profile.clone());
                    client.connect(world.now, &config, address(SERVER), "localhost").unwrap();
                }
                Action::Start(Leg::Tcp) => {
                    let (connected, ready) = world.tcp(world.now);
                    world.at(connected, Arrival::Tcp(Input::TcpConnected));
                    world.at(ready, Arrival::Tcp(Input::TcpReady));
                }
                Action::Ask => {
                    let question = probe::question(id);
                    world.send(0, question.len(), Arrival::AtServer(address(PROBER), question));
                }
                Action::Use(leg) => {
                    used = Some(leg);
                    let (now, timeout) = (world.now, world.timeout());
                    first_byte = Some(world.exchange(now, 2, timeout));
                }
                Action::Fail | Action::Done => {}
            }
        }
        for (endpoint, way) in [(&mut client, 0), (&mut server, 1)] {
            while let Some(transmit) = endpoint.poll_transmit(world.now, &mut buffer) {
                for payload in buffer[..transmit.len].chunks(transmit.segment_size.max(1)) {
                    let (size, payload) = (payload.len(), payload.to_vec());
                    let what = match way {
                        0 => Arrival::AtServer(address(CLIENT), payload),
                        _ if transmit.remote == address(PROBER) => Arrival::AtProber(payload),
                        _ => Arrival::AtClient(payload),
                    };
                    world.send(way, size, what);
                }
            }
        }
        while server.poll_event().is_some() {}
        let mut inputs = Vec::new();
        while let Some((_, event)) = client.poll_event() {
            match event {
                Event::Connected => inputs.push(Input::QuicReady),
                Event::Closed(CloseReason::VersionMismatch { .. } | CloseReason::PeerClosed { .. }) => {
                    inputs.push(Input::QuicRefused);
                }
                Event::Closed(_) => inputs.push(Input::QuicFailed),
                _ => {}
            }
        }
        if !inputs.is_empty() {
            inputs.into_iter().for_each(|input| race.handle(world.now, input));
            continue;
        }
        if race.verdict().is_some() && used.is_some() && network.cut && !live {
            // The next request, on the connection that is there: TCP takes part after a head start without a sign of life.
            (world.network.blocked, live, begun) = (true, true, world.now);
            world.coming.clear();
            world.now = begun + Plan::default().head_start;
            race = Race::new(world.now, Plan { head_start: Duration::ZERO, ..Plan::default() });
            (used, first_byte) = (None, None);
            continue;
        }
        if race.verdict().is_some() && used.is_some() || world.now >= end {
            break;
        }
        let next = [
            client.poll_timeout().map(|(at, ..)| at),
            server.poll_timeout().map(|(at, ..)| at),
            race.poll_timeout().map(|(at, _)| at),
            world.coming.first_key_value().map(|((at, _), _)| *at),
        ];
        let Some(next) = next.into_iter().flatten().min() else { break };
        world.now = next.max(world.now);
        client.handle_timeout(world.now);
        server.handle_timeout(world.now);
        race.handle_timeout(world.now);
        let now = world.now;
        while let Some(entry) = world.coming.first_entry().filter(|entry| entry.key().0 <= now) {
            let datagram = |remote, payload: Vec<u8>| Datagram {
                remote,
                local: None,
                ecn: None,
                received_at: now,
                segment_size: payload.len(),
                payload: BytesMut::from(&payload[..]),
            };
            match entry.remove() {
                Arrival::AtServer(from, payload) => server.handle_datagram(now, datagram(from, payload)),
                Arrival::AtClient(payload) => {
                    race.handle(now, Input::PacketReceived);
                    client.handle_datagram(now, datagram(address(SERVER), payload));
                }
                Arrival::AtProber(payload) => {
                    assert!(probe::is_answer(&payload, id));
                    race.handle(now, Input::PacketReceived);
                }
                Arrival::Tcp(input) => race.handle(now, input),
            }
        }
    }
    let first_byte = first_byte.unwrap_or(end).saturating_since(begun);
    Outcome { verdict: race.verdict(), used, first_byte }
}

/// Time to the first byte with TCP alone.
fn alone(network: Network, seed: u64) -> Duration {
    let mut world = World::new(network, seed ^ 0x5555_0000);
    let (_, ready) = world.tcp(Instant::ZERO);
    let timeout = world.timeout();
    world.exchange(ready, 2, timeout).saturating_since(Instant::ZERO)
}

fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1].as_secs_f64() * 1e3
}

/// Runs a case over all seeds.
fn case(name: &str, network: Network, right: impl Fn(&Outcome) -> bool) {
    let tls = tls();
    let mut good = 0_u32;
    let (mut raced, mut baseline) = (Vec::new(), Vec::new());
    let mut wrong = BTreeMap::new();
    for seed in 1..=seeds() {
        let outcome = race(&tls, network, seed);
        if right(&outcome) {
            good += 1;
        } else {
            *wrong.entry(format!("{:?} over {:?}", outcome.verdict, outcome.used)).or_insert(0) += 1;
        }
        raced.push(outcome.first_byte);
        // TCP alone costs nothing to simulate: its tail is known well.
        baseline.extend((0..20).map(|turn| alone(network, seed + turn * 1_000_000)));
    }
    let share = f64::from(good) / seeds() as f64;
    let (raced, baseline) = (p99(raced), p99(baseline));
    println!("measured share of right verdicts, {name}: {share}");
    println!("measured p99 in ms, {name}, raced: {raced:.1}");
    println!("measured p99 in ms, {name}, TCP alone: {baseline:.1}");
    assert!(share >= 0.99, "{name}: {share}, wrong: {wrong:?}");
    assert!(raced <= baseline + 300.0, "{name}: p99 is {raced} ms, with TCP alone {baseline} ms");
}

#[test]
fn a_good_path() {
    case("good path", GOOD, |outcome| outcome.verdict == Some(Verdict::Works) && outcome.used == Some(Leg::Quic));
}

#[test]
fn udp_is_blocked() {
    case("UDP cut at start", Network { blocked: true, ..GOOD }, |outcome| {
        matches!(outcome.verdict, Some(Verdict::Blocked { .. })) && outcome.used == Some(Leg::Tcp)
    });
}

#[test]
fn udp_is_cut_in_the_middle() {
    case("UDP cut in the middle", Network { cut: true, ..GOOD }, |outcome| {
        matches!(outcome.verdict, Some(Verdict::Blocked { .. })) && outcome.used == Some(Leg::Tcp)
    });
}

#[test]
fn a_server_sheds() {
    case("server that sheds", Network { sheds: true, ..GOOD }, |outcome| {
        outcome.verdict == Some(Verdict::Refused) && outcome.used == Some(Leg::Tcp)
    });
}

#[test]
fn a_path_loses_thirty_percent() {
    // Whoever wins: UDP is not blocked, and nobody refuses.
    case("30 % loss", Network { loss: 0.3, ..GOOD }, |outcome| {
        matches!(outcome.verdict, Some(Verdict::Works | Verdict::Slower { .. } | Verdict::BadPath))
    });
}

#[test]
fn a_path_is_slow() {
    let slow = Network { rtt: Duration::from_millis(600), rate: 128e3, ..GOOD };
    case("slow path", slow, |outcome| matches!(outcome.verdict, Some(Verdict::Works | Verdict::Slower { .. })));
}
