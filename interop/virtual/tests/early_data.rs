//! Early data between two stacks: a first connection leaves tickets, a second one sends its request with its first packets.
//! On a clean path the answer begins to arrive after one round trip; on bad ones every byte arrives.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::BytesMut;
use rand_core::RngCore;
use units::{Instant, Seed};
use virtual_interop::{
    certificates::{ChainSize, Identity},
    peer::{Dir, Memory, Peer, Read, Settings, Side, Signal, Write},
    stacks::Stack,
};

/// One way, so that a round trip takes 100 ms.
const DELAY: Duration = Duration::from_millis(50);
const REQUEST: usize = 3_000;
const ANSWER: usize = 6_000;

const PAIRS: [(Stack, Stack); 5] = [
    (Stack::Tiderace, Stack::Tiderace),
    (Stack::Tiderace, Stack::Quinn),
    (Stack::Quinn, Stack::Tiderace),
    (Stack::Tiderace, Stack::Noq),
    (Stack::Noq, Stack::Tiderace),
];

/// Exchanged byte at an offset.
fn byte(salt: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8 ^ salt) as u8
}

/// Outcome of a connection.
#[derive(Debug)]
struct Outcome {
    first_byte: Option<Instant>,
    accepted: Option<bool>,
    early: bool,
}

/// Two ends and what is in progress between them.
struct Meeting {
    peers: [Box<dyn Peer>; 2],
    /// By arrival, with a number that keeps the order.
    under_way: BTreeMap<(Instant, u64), (usize, BytesMut)>,
    count: u64,
    random: units::RandomStream,
    /// Of 100 datagrams.
    lost: u64,
    /// Time at which the client sent something.
    sent: Vec<Instant>,
}

impl Meeting {
    fn new(pair: (Stack, Stack), memory: &Memory, identity: &Arc<Identity>, seed: &Seed, lost: u64) -> Self {
        let peer = |side: Side, stack: Stack| {
            let mut bytes = [0; 32];
            seed.child("stack", side as u64).stream("seed").fill_bytes(&mut bytes);
            let settings = Settings {
                seed: bytes,
                identity: identity.clone(),
                post_quantum: true,
                idle_timeout: Duration::from_secs(60),
                stream_window: 100_000,
                connection_window: 100_000,
                streams: 10,
                memory: Some(memory.clone()),
                log: false,
                congestion: None,
            };
            stack.peer(side, &settings).unwrap()
        };
        let peers = [peer(Side::Client, pair.0), peer(Side::Server, pair.1)];
        Self { peers, under_way: BTreeMap::new(), count: 0, random: seed.stream("loss"), lost, sent: Vec::new() }
    }

    fn send(&mut self, now: Instant) {
        for from in 0..2 {
            let mut out = Vec::new();
            self.peers[from].transmit(now, &mut out);
            for datagram in out {
                self.count += 1;
                if from == 0 {
                    self.sent.push(now);
                }
                if self.random.next_u64() % 100 >= self.lost {
                    self.under_way.insert((now + DELAY, self.count), (1 - from, datagram));
                }
            }
        }
    }

    /// The next moment at which something happens, and lets it.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        let arrival = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let deadlines = self.peers.iter_mut().filter_map(|peer| peer.deadline()).map(|(at, _)| at);
        let next = deadlines.chain(arrival).min()?.max(now);
        while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= next) {
            let (to, datagram) = entry.remove();
            self.peers[to].receive(next, datagram);
        }
        for peer in &mut self.peers {
            if peer.deadline().is_some_and(|(at, _)| at <= next) {
                peer.expire(next);
            }
        }
        Some(next)
    }

    /// A request and its answer, early when `early`. Goes on for a second after that, so that tickets arrive.
    fn exchange(&mut self, early: bool) -> Outcome {
        let mut now = Instant::ZERO;
        let mut outcome = Outcome { first_byte: None, accepted: None, early: false };
        let (mut asked, mut written, mut served) = (None, 0, None);
        let (mut request, mut answered, mut answer) = (0, 0, 0);
        let mut end = now + Duration::from_secs(120);
        if early {
            asked = self.peers[0].open_early(Dir::Bi);
            outcome.early = asked.is_some();
        }
        while now < end {
            let [client, server] = &mut self.peers;
            while let Some(signal) = client.signal() {
                assert!(!matches!(signal, Signal::Closed(_)), "{signal:?}");
                if signal == Signal::Connected && asked.is_none() {
                    asked = client.open(Dir::Bi);
                }
            }
            while let Some(signal) = server.signal() {
                assert!(!matches!(signal, Signal::Closed(_)), "{signal:?}");
            }
            if let Some(id) = asked {
                write(&mut **client, id, 1, &mut written, REQUEST);
                let before = answer;
                let done = read(&mut **client, id, 2, &mut answer);
                if answer > before {
                    outcome.first_byte.get_or_insert(now);
                }
                if done {
                    assert_eq!(answer, ANSWER);
                    end = end.min(now + Duration::from_secs(1));
                    asked = None;
                }
            }
            if served.is_none() {
                served = server.accept(Dir::Bi).map(|id| (id, false));
            }
            if let Some((id, complete)) = &mut served {
                *complete = *complete || read(&mut **server, *id, 1, &mut request);
                if *complete {
                    assert_eq!(request, REQUEST);
                    write(&mut **server, *id, 2, &mut answered, ANSWER);
                }
            }
            outcome.accepted = client.early_accepted();
            self.send(now);
            let Some(next) = self.step(now) else { break };
            now = next;
        }
        assert_eq!(answer, ANSWER, "{outcome:?}");
        outcome
    }
}

/// Writes up to `total`, then the end; `usize::MAX` says that this was done.
fn write(peer: &mut dyn Peer, id: u64, salt: usize, written: &mut usize, total: usize) {
    while *written < total {
        let data: Vec<u8> = (*written..total).map(|at| byte(salt, at)).collect();
        match peer.write(id, &data).unwrap() {
            Write::Taken(taken) => *written += taken,
            Write::Blocked => return,
            Write::Stopped(code) => panic!("stopped with {code:?}"),
        }
    }
    if *written == total {
        peer.finish(id).unwrap();
        *written = usize::MAX;
    }
}

/// Returns whether the stream is at its end.
fn read(peer: &mut dyn Peer, id: u64, salt: usize, so_far: &mut usize) -> bool {
    let mut buffer = [0; 2_000];
    loop {
        match peer.read(id, &mut buffer).unwrap() {
            Read::Data(len) => {
                for (at, byte_read) in buffer[..len].iter().enumerate() {
                    assert_eq!(*byte_read, byte(salt, *so_far + at), "at {}", *so_far + at);
                }
                *so_far += len;
            }
            Read::Finished => return true,
            Read::Blocked => return false,
            Read::Reset(code) => panic!("reset with {code}"),
        }
    }
}

#[test]
fn the_answer_to_early_data_comes_after_one_round_trip() {
    let identity = Arc::new(Identity::new(ChainSize::Medium).unwrap());
    for pair in PAIRS {
        let memory = Memory::default();
        let seed = Seed::from_number(1);
        let first = Meeting::new(pair, &memory, &identity, &seed, 0).exchange(true);
        assert!(!first.early, "{pair:?}: there is nothing to resume");
        let mut meeting = Meeting::new(pair, &memory, &identity, &seed, 0);
        let second = meeting.exchange(true);
        assert_eq!((second.early, second.accepted), (true, Some(true)), "{pair:?}");
        // One round trip after the end of the request left, which with a client that spaces its packets is not at once.
        let asked = second.first_byte.unwrap() - (Instant::ZERO + DELAY * 2);
        assert!(meeting.sent.contains(&(Instant::ZERO + asked)), "{pair:?}: {second:?}");
        let spaced = if pair.0 == Stack::Noq { Duration::from_millis(20) } else { Duration::ZERO };
        assert!(asked <= spaced, "{pair:?}: {second:?}");
    }
}

#[test]
fn every_byte_arrives_on_bad_paths() {
    let identity = Arc::new(Identity::new(ChainSize::Medium).unwrap());
    for pair in PAIRS {
        for number in 0..40 {
            let memory = Memory::default();
            let seed = Seed::from_number(number);
            Meeting::new(pair, &memory, &identity, &seed, 0).exchange(false);
            let second = Meeting::new(pair, &memory, &identity, &seed, 10).exchange(true);
            assert_eq!((second.early, second.accepted), (true, Some(true)), "{pair:?} seed {number}");
        }
    }
}
