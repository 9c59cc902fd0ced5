//! One seed, one pair of stacks: builds the two ends and the path, lets time pass, and gives the verdict.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Result;
use bytes::BytesMut;
use netem::DropReason;
use serde::Serialize;
use sim::{Datagram, Dumbbell, Limits, Node, Outbox, Simulation, client_address, point_to_point, server_address};
use units::{Duration, Instant, Seed};

use crate::{
    certificates::{ChainSize, Identity},
    network::Network,
    peer::{Closed, Peer, Settings, Side},
    plan::Plan,
    script::Script,
    stacks::Stack,
};

/// Every run ends within this virtual time, or it has failed. With a fifth of all packets lost in bursts on a path of
/// 1 Mbit/s and 240 ms, a sound stack needs minutes for a megabyte.
pub const TIME_LIMIT: Duration = Duration::from_secs(1_800);
/// Every run ends within so many events (datagrams that arrive, deadlines), or it has failed.
pub const EVENT_LIMIT: u64 = 2_000_000;
/// Time that a run continues without a look at whether an end has failed.
const STEP: Duration = Duration::from_secs(5);

/// Print every datagram that an end sends or receives to standard error.
pub static TRACE: AtomicBool = AtomicBool::new(false);

/// Let every stack that can keep a qlog in memory.
pub static LOG: AtomicBool = AtomicBool::new(false);

/// Datagrams and timers of each end that are kept for the report of a failure: a stack that draws randomness of its own
/// does not go the same way a second time.
const KEPT: usize = 300;

/// Step of an end: the direction of a datagram, the type of its first packet, and its size.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: Instant,
    way: &'static str,
    kind: &'static str,
    len: usize,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} {} {}", self.at, self.way, self.kind, self.len)
    }
}

/// The type of a datagram's first packet (RFC 9000 §17: it is in the upper bits, which are not encrypted).
fn kind(datagram: &[u8]) -> &'static str {
    match datagram.first() {
        Some(first) if first & 0x80 == 0 => "1-RTT",
        Some(_) if datagram.get(1..5) == Some(&[0; 4]) => "Version Negotiation",
        Some(first) => ["Initial", "0-RTT", "Handshake", "Retry"][usize::from(first >> 4 & 3)],
        None => "empty",
    }
}

/// The certificates of all runs, made once.
#[derive(Clone, Debug)]
pub struct Identities([std::sync::Arc<Identity>; 3]);

impl Identities {
    /// Makes them.
    ///
    /// # Errors
    /// When a certificate cannot be made.
    pub fn new() -> Result<Self> {
        let make = |size| Identity::new(size).map(std::sync::Arc::new);
        Ok(Self([make(ChainSize::Small)?, make(ChainSize::Medium)?, make(ChainSize::Large)?]))
    }

    fn get(&self, size: ChainSize) -> std::sync::Arc<Identity> {
        self.0[size as usize].clone()
    }
}

/// Pair of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The stack that opens the connection.
    pub client: Stack,
    /// The stack that waits for it.
    pub server: Stack,
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.client, self.server)
    }
}

/// Measurements of a run that did as planned.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Virtual seconds until both ends had forgotten the connection.
    pub seconds: f64,
    /// Simulation events.
    pub events: u64,
    /// Application bytes read and compared, both ends.
    pub bytes_compared: u64,
    /// Packets offered to the links.
    pub packets: u64,
    /// Packets that the links dropped by loss or for want of room. Probes larger than the MTU are not counted.
    pub dropped: u64,
    /// Packets that the links damaged.
    pub corrupted: u64,
    /// Packets that the links delivered twice.
    pub duplicated: u64,
    /// Key updates the plan asked for and the stack started.
    pub key_updates: u64,
    /// The end that was to learn of the close learned of it by timeout or stateless reset, because the close got lost.
    pub close_lost: bool,
    /// The network let nothing through to one end for its whole idle timeout although the other end kept sending: the
    /// connection ended as it must. What was read until then was compared.
    pub starved: bool,
    /// Hash of times, sizes and fates of all packets: equal in two runs that went the same way.
    pub trace: String,
}

/// A run that did not do as planned.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Failure {
    /// Fault, and what each end waits for.
    pub what: String,
    /// Virtual seconds.
    pub seconds: f64,
    /// The defect of a peer that it comes from, when that is known.
    pub known_defect: Option<String>,
    /// Known facts of the client and of the server.
    #[serde(skip)]
    pub accounts: Box<[Account; 2]>,
}

/// Known facts of one end of a failed run.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The stack's own counters.
    pub figures: String,
    /// The last datagrams and timers, a line each.
    pub steps: Vec<String>,
    /// Qlog, when [`LOG`] is set and the stack writes one.
    pub qlog: Vec<u8>,
}

/// A known defect of a peer that explains a failure, so that it does not count against the other stack. Each must be
/// narrow: what it names cannot come about by what the other stack does.
fn known_defect(
    pair: Pair,
    ends: [&End; 2],
    what: &str,
    figures: &Figures,
    idle_timeout: Duration,
) -> Option<&'static str> {
    let [client, server] = ends;
    // RFC 9002 §6.2.1: a client must not arm the probe timeout of application data before the handshake is confirmed. One of
    // this family probes with application data only, which the server cannot read without the Finished, and the window full
    // of such data holds the lost Finished back.
    if matches!(pair.client, Stack::Quinn | Stack::Noq)
        && client.script.closed() == Some(&Closed::Idle)
        && client.peer.crypto_frames_since_complete() == Some(1)
        && !server.script.connected()
    {
        return Some("quinn and noq clients never repeat a lost Finished while their window is full");
    }
    let family = matches!(pair.server, Stack::Quinn | Stack::Noq);
    // RFC 9000 §13.2.1: Initial packets that ask for an acknowledgement get one at once, and the client's probes do. A server
    // that is silent in that space holds its ServerHello back as well.
    if matches!(pair.server, Stack::Quinn | Stack::Noq)
        && server.script.closed() == Some(&Closed::Idle)
        && !client.script.connected()
        && server.initials_unanswered >= 2
    {
        return Some("quinn and noq servers never repeat a lost ServerHello while their window is full");
    }
    // RFC 9000 §13.3: what is lost is sent again, and RFC 9002 §6.2 arms a probe timeout while data is in flight. A sender that
    // has taken data within the other end's limits is never silent for a whole idle timeout; that the other end keeps nothing
    // back is checked in quiet moments.
    let silent = |sender: &End, stack: Stack, receiver: &End| {
        stack.to_string() == "quiche"
            && sender.script.closed() == Some(&Closed::Idle)
            && sender.ended.zip(sender.sent.back()).is_some_and(|(ended, &sent)| ended - sent >= idle_timeout)
            && sender.script.owes(&receiver.script)
    };
    if silent(client, pair.client, server) || silent(server, pair.server, client) {
        return Some("quiche now and then falls silent with data that it has taken and not sent");
    }
    // RFC 9000 §17.2.5: a server must discard a Retry packet. A client here never sends one: damaged bits of the type do.
    (family && figures.corrupted > 0 && what.contains("client sent Retry"))
        .then_some("quinn and noq servers close when damage turns a packet's type into Retry")
}

/// One end: a stack, its script and its place in the network.
struct End {
    side: Side,
    peer: Box<dyn Peer>,
    script: Script,
    deadline: Option<(Instant, &'static str)>,
    out: Vec<BytesMut>,
    /// Time at which a datagram last arrived here.
    heard: Instant,
    /// Time at which the last datagrams left from here, [`SENDS`] at most.
    sent: VecDeque<Instant>,
    /// Initial packets that have arrived here since one left from here, unless damage hides them.
    initials_unanswered: usize,
    /// Time at which the connection was over for this end.
    ended: Option<Instant>,
    /// The last [`KEPT`] steps.
    steps: VecDeque<Step>,
    /// In quiet moments the script looks for data that the stack did not signal. Only where looking is free of side effects.
    checks_silence: bool,
}

/// After so long without a datagram a moment is quiet.
const QUIET: Duration = Duration::from_secs(5);

/// Datagrams lost in a row from which on the network is held responsible for an end that hears
/// nothing: more than a stack sends that forgets to repeat itself.
const SENDS: usize = 8;

impl End {
    fn new(side: Side, stack: Stack, other: Stack, settings: &Settings, plan: &Plan) -> Result<Self> {
        let peer = stack.peer(side, settings)?;
        Ok(Self {
            side,
            peer,
            script: Script::new(side, plan, other.resets_may_finish()),
            deadline: None,
            out: vec![],
            heard: Instant::ZERO,
            sent: VecDeque::new(),
            initials_unanswered: 0,
            ended: None,
            steps: VecDeque::new(),
            checks_silence: stack == Stack::Tiderace,
        })
    }

    /// Remembers a step, and prints it when all are to be printed.
    fn step(&mut self, at: Instant, way: &'static str, datagram: &[u8]) {
        let step = Step { at, way, kind: kind(datagram), len: datagram.len() };
        if TRACE.load(Ordering::Relaxed) {
            eprintln!("{:?} {step}", self.side);
        }
        if self.steps.len() == KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    fn explain(&self) -> String {
        let mut text = match self.script.failure() {
            Some(failure) => failure.to_owned(),
            None if self.finished() => "done".into(),
            None if self.script.done() => "done, but its connection is not drained".into(),
            None => format!("waits for {}", self.script.waits_for()),
        };
        match self.deadline {
            Some((at, reason)) => text.push_str(&format!(" [deadline {at:?}: {reason}]")),
            None => text.push_str(" [no deadline]"),
        }
        text
    }
}

impl Node for End {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        match datagram {
            Some(datagram) => {
                self.step(now, "<-", &datagram.payload);
                self.heard = now;
                self.initials_unanswered += usize::from(kind(&datagram.payload) == "Initial");
                self.peer.receive(now, datagram.payload);
            }
            None if self.deadline.is_some_and(|(at, _)| at <= now) => {
                self.step(now, "timer", &[]);
                self.peer.expire(now);
                if self.checks_silence && now - self.heard >= QUIET && self.script.closed().is_none() {
                    self.script.expect_nothing_unsignalled(&mut *self.peer);
                }
            }
            None => {}
        }
        self.script.advance(now, &mut *self.peer);
        self.peer.transmit(now, &mut self.out);
        // Sending may have made room or found an error.
        self.script.advance(now, &mut *self.peer);
        self.peer.transmit(now, &mut self.out);
        let (here, there) = match self.side {
            Side::Client => (client_address(0), server_address(0)),
            Side::Server => (server_address(0), client_address(0)),
        };
        for payload in std::mem::take(&mut self.out) {
            self.step(now, "->", &payload);
            if kind(&payload) == "Initial" {
                self.initials_unanswered = 0;
            }
            out.send(Datagram::new(here, there, payload));
            self.sent.push_back(now);
        }
        while self.sent.len() > SENDS {
            self.sent.pop_front();
        }
        if self.script.closed().is_some() {
            self.ended.get_or_insert(now);
        }
        self.deadline = self.peer.deadline();
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.deadline
    }

    fn finished(&self) -> bool {
        self.script.failure().is_some() || (self.script.done() && self.peer.gone())
    }
}

/// Runs one seed with one pair. A panic of a stack is a failure like any other.
pub fn run(number: u64, pair: Pair, identities: &Identities) -> Result<Figures, Failure> {
    catch_unwind(AssertUnwindSafe(|| simulate(number, pair, identities))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Failure { what: format!("panic: {}", text.unwrap_or("no text")), ..Failure::default() })
    })
}

fn simulate(number: u64, pair: Pair, identities: &Identities) -> Result<Figures, Failure> {
    let seed = Seed::from_number(number);
    let (mut plan, network) = (Plan::new(&seed), Network::new(&seed));
    if !pair.client.reads_new_keys_before_confirmation() {
        plan.key_updates[Side::Server as usize].clear();
    }
    if plan.key_updates.iter().all(|updates| !updates.is_empty()) {
        for (side, stack) in [(Side::Client, pair.client), (Side::Server, pair.server)] {
            if !stack.waits_before_key_update() {
                plan.key_updates[side as usize].clear();
            }
        }
    }
    let mut simulation = build(&seed, pair, &plan, &network, identities)
        .map_err(|error| Failure { what: format!("cannot start: {error:#}"), ..Failure::default() })?;
    simulation.set_limits(Limits { events: EVENT_LIMIT, ..Limits::default() });
    let limit = Instant::ZERO + TIME_LIMIT;
    let verdict = loop {
        let until = (simulation.now() + STEP).min(limit);
        match simulation.run_until(until) {
            Err(error) => break Some(error.to_string()),
            Ok(_) if simulation.nodes().any(|end| end.script.failure().is_some()) => break Some("failed".into()),
            Ok(outcome) if outcome.is_finished() => break None,
            Ok(outcome) if outcome.ended == sim::Ended::TimeLimit && until < limit => {}
            Ok(outcome) => break Some(outcome.to_string()),
        }
    };
    let mut figures = figures(&simulation, pair, &plan);
    if verdict.is_some() && starved(&simulation, &plan) {
        figures.starved = true;
        return Ok(figures);
    }
    match verdict.or_else(|| lost_close_without_reason(&figures, &network)) {
        None => Ok(figures),
        Some(verdict) => {
            let (client, server) = (simulation.node(0).explain(), simulation.node(1).explain());
            let what = format!("{verdict}\n  client {}: {client}\n  server {}: {server}", pair.client, pair.server);
            let ends = [simulation.node(0), simulation.node(1)];
            let known_defect = known_defect(pair, ends, &what, &figures, plan.idle_timeout).map(str::to_owned);
            let accounts = Box::new([0, 1].map(|end| {
                let end = simulation.node(end);
                let steps = end.steps.iter().map(Step::to_string).collect();
                Account { figures: end.peer.figures(), steps, qlog: end.peer.log() }
            }));
            Err(Failure { what, seconds: figures.seconds, known_defect, accounts })
        }
    }
}

fn build(seed: &Seed, pair: Pair, plan: &Plan, network: &Network, identities: &Identities) -> Result<Simulation<End>> {
    let end = |side: Side, stack: Stack, other: Stack| {
        let mut bytes = [0; 32];
        rand_core::RngCore::fill_bytes(&mut seed.child("stack", side as u64).stream("seed"), &mut bytes);
        let settings = Settings {
            seed: bytes,
            identity: identities.get(plan.chain),
            post_quantum: plan.post_quantum,
            idle_timeout: plan.idle_timeout,
            stream_window: plan.stream_window,
            connection_window: plan.connection_window,
            streams: plan.concurrent,
            memory: None,
            log: LOG.load(Ordering::Relaxed),
            congestion: None,
        };
        End::new(side, stack, other, &settings, plan)
    };
    let (client, server) = (end(Side::Client, pair.client, pair.server)?, end(Side::Server, pair.server, pair.client)?);
    Ok(point_to_point(seed.child("path", 0), &network.up, &network.down, client, server)?)
}

fn figures(simulation: &Simulation<End>, pair: Pair, plan: &Plan) -> Figures {
    let links = [simulation.counters(Dumbbell::UP), simulation.counters(Dumbbell::DOWN)];
    let started = [(Side::Client, pair.client), (Side::Server, pair.server)]
        .into_iter()
        .filter(|(_, stack)| stack.starts_key_updates())
        .map(|(side, _)| plan.key_updates[side as usize].len() as u64)
        .sum();
    Figures {
        seconds: simulation.now().as_secs_f64(),
        events: simulation.events(),
        bytes_compared: simulation.nodes().map(|end| end.script.bytes_compared()).sum(),
        packets: simulation.trace().packets(),
        dropped: links.iter().map(|link| link.dropped_in_all().packets - link.dropped(DropReason::Mtu).packets).sum(),
        corrupted: links.iter().map(|link| link.corrupted).sum(),
        duplicated: links.iter().map(|link| link.duplicated).sum(),
        key_updates: started,
        close_lost: simulation.nodes().any(|end| {
            matches!(plan.ending, crate::plan::Ending::Close { .. })
                && matches!(end.script.closed(), Some(Closed::Idle | Closed::Reset))
        }),
        starved: false,
        trace: simulation.trace().hash().to_string(),
    }
}

/// Returns whether the network is to blame for an end that gave up: nothing arrived there for the idle timeout, although the other
/// end sent at least [`SENDS`] datagrams, or because the other end did not hear a word either while this one sent. A stack that drops
/// what arrives, or falls silent by itself, is not excused.
fn starved(simulation: &Simulation<End>, plan: &Plan) -> bool {
    let gave_up = |end: &End, other: &End| {
        let Some(ended) = end.ended.filter(|_| end.script.closed() == Some(&Closed::Idle)) else { return false };
        let lost_on_the_way = |sender: &End, since: Instant| sender.sent.len() == SENDS && sender.sent[0] > since;
        let deaf_too = other.heard <= end.heard && lost_on_the_way(end, other.heard);
        ended - end.heard >= plan.idle_timeout && (lost_on_the_way(other, end.heard) || deaf_too)
    };
    let (client, server) = (simulation.node(0), simulation.node(1));
    gave_up(client, server) || gave_up(server, client)
}

/// On a path that drops nothing a close arrives.
fn lost_close_without_reason(figures: &Figures, network: &Network) -> Option<String> {
    (figures.close_lost && figures.dropped == 0 && network.is_clean())
        .then(|| "the close was not noticed although the path lost nothing".into())
}
