//! Stage of a scene: network, contender, and execution of the steps.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use netem::{Forced, LinkConfig, PacketMeta, Queue, Script};
use sim::{Datagram, Dumbbell, Host, Node, Outbox, Simulation, client_address, server_address};
use units::{Bitrate, DataSize, Duration, Instant, Seed};

use super::{Act, Case, CaseResult, LinkMoment, Moment, Scene, Seen, When, ms};
use crate::{
    contender::{ConnectionSpec, Contender, RunSpec},
    scenario::{Scenario, parse},
    throttle::Throttle,
    view::{SenderView, Viewer},
};

/// Interval at which the bottleneck is sampled.
const TICK: Duration = Duration::from_millis(1);
/// Data packets are larger than this, in bytes of the IP packet; what only acknowledges is smaller.
const DATA: u32 = 600;

/// Plays the scenes of a case.
///
/// # Errors
/// When the contender cannot be set up or the simulation goes wrong.
pub fn run_case(case: &'static Case, contender: &dyn Contender) -> Result<CaseResult, String> {
    let mut clauses = Vec::new();
    for scene in case.scenes {
        let play = play(scene, contender).map_err(|error| format!("{}: {error}", case.name))?;
        let seen = Seen { scene, moments: &play.moments, steps: &play.steps, link: &play.link };
        clauses.extend(scene.clauses.iter().map(|clause| (clause.text, (clause.check)(&seen))));
    }
    Ok(CaseResult { case, clauses })
}

/// Observations of a scene.
struct Play {
    moments: Vec<Moment>,
    steps: Vec<Option<Instant>>,
    link: Vec<LinkMoment>,
}

/// Changes by the steps so far, shared by the link scripts and the sender's observer.
#[derive(Debug, Default)]
struct Controls {
    lose_every: u64,
    counted: u64,
    aggregate: Duration,
    policer: Option<Policer>,
    delayed: Option<(u64, Duration)>,
    /// Packets offered until the first moment arrive at the second.
    held: Option<(Instant, Instant)>,
    /// A change of rate that the loop has still to make.
    rate: Option<Bitrate>,
}

/// A token bucket; tokens are bits times nanoseconds.
#[derive(Debug)]
struct Policer {
    rate: u64,
    burst: u128,
    tokens: u128,
    at: Instant,
}

const TOKEN: u128 = 8_000_000_000;

impl Policer {
    fn passes(&mut self, now: Instant, size: u32) -> bool {
        self.tokens += u128::from(now.nanos_since(self.at)) * u128::from(self.rate);
        self.tokens = self.tokens.min(self.burst);
        self.at = now;
        let cost = u128::from(size) * TOKEN;
        let passes = self.tokens >= cost;
        if passes {
            self.tokens -= cost;
        }
        passes
    }
}

type Shared = Arc<Mutex<Controls>>;

fn with<T>(controls: &Shared, act: impl FnOnce(&mut Controls) -> T) -> T {
    act(&mut controls.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Controls {
    /// Outcome of a packet on its way to the client.
    fn data(&mut self, now: Instant, packet: &PacketMeta) -> Option<Forced> {
        if packet.size < DATA {
            return None;
        }
        if let Some(policer) = &mut self.policer
            && !policer.passes(now, packet.size)
        {
            return Some(Forced::Drop);
        }
        if let Some((until, release)) = self.held {
            if now < until {
                return Some(Forced::Delay(release - now));
            }
            self.held = None;
        }
        if let Some((left, late)) = &mut self.delayed {
            *left -= 1;
            let late = *late;
            if self.delayed.is_some_and(|(left, _)| left == 0) {
                self.delayed = None;
            }
            return Some(Forced::Delay(late));
        }
        if self.lose_every > 0 {
            self.counted += 1;
            if self.counted.is_multiple_of(self.lose_every) {
                return Some(Forced::Drop);
            }
        }
        None
    }

    /// Outcome of a packet on its way to the server.
    fn feedback(&self, now: Instant) -> Option<Forced> {
        let slot = u64::try_from(self.aggregate.as_nanos()).ok().filter(|&slot| slot > 0)?;
        let left = slot - now.as_nanos() % slot;
        Some(Forced::Delay(Duration::from_nanos(left)))
    }
}

/// Progress through the steps of the scene.
struct Prompter {
    scene: &'static Scene,
    controls: Shared,
    throttle: Throttle,
    next: usize,
    last: Instant,
    /// The state at the step before, or another one since.
    left: bool,
    last_state: Option<&'static str>,
    done: Vec<Option<Instant>>,
}

impl Prompter {
    /// Executes every step that is due. `view` is the sender's state; `None` when only time has passed.
    fn prompt(&mut self, now: Instant, view: Option<&SenderView>) {
        let seen = view.map(|view| view.state);
        if seen.is_some() {
            self.left |= seen != self.last_state;
        }
        while let Some(step) = self.scene.steps.get(self.next) {
            let due = match step.when {
                When::At(at) => now >= Instant::from_millis(at),
                When::After(span) => now >= self.last + ms(span),
                When::Enters(name) => self.left && seen == Some(name),
                When::Plateau(rounds) => view.and_then(|view| view.model).is_some_and(|m| m.plateau_rounds >= rounds),
            };
            if !due {
                return;
            }
            self.act(now, step.act);
            self.done[self.next] = Some(now);
            self.next += 1;
            self.last = now;
            if seen.is_some() {
                self.last_state = seen;
                self.left = false;
            }
        }
    }

    fn act(&self, now: Instant, act: Act) {
        with(&self.controls, |controls| match act {
            Act::Wait => {}
            Act::Limit(kbps) => self.throttle.limit(now, Bitrate::from_bps(kbps * 1000)),
            Act::Free => self.throttle.free(),
            Act::Rate(kbps) => controls.rate = Some(Bitrate::from_bps(kbps * 1000)),
            Act::Lose(every) => (controls.lose_every, controls.counted) = (every, 0),
            Act::Aggregate(span) => controls.aggregate = ms(span),
            Act::Police { kbps, burst } => {
                let burst = u128::from(burst) * TOKEN;
                controls.policer = Some(Policer { rate: kbps * 1000, burst, tokens: burst, at: now });
            }
            Act::Delay { packets, ms: late } => controls.delayed = Some((packets, ms(late))),
            Act::Hold { span, until } => controls.held = Some((now + ms(span), now + ms(until))),
        });
    }
}

/// The sender with a watch on it.
struct Watched {
    node: Box<dyn Node>,
    view: Option<Viewer>,
    log: Rc<RefCell<Vec<Moment>>>,
    prompter: Rc<RefCell<Prompter>>,
}

/// A node of the scene.
enum Player {
    Client(Box<dyn Node>),
    Sender(Watched),
}

impl Node for Player {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        match self {
            Self::Client(node) => node.handle(now, datagram, out),
            Self::Sender(watched) => {
                watched.node.handle(now, datagram, out);
                let view = watched.view.as_ref().and_then(|view| view());
                if let Some(view) = view {
                    watched.log.borrow_mut().push(Moment { at: now, view });
                }
                watched.prompter.borrow_mut().prompt(now, view.as_ref());
            }
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        match self {
            Self::Client(node) => node.deadline(),
            Self::Sender(watched) => watched.node.deadline(),
        }
    }
    fn finished(&self) -> bool {
        false
    }
}

fn scenario(scene: &Scene) -> Result<Scenario, String> {
    let text = format!(
        r#"
name = "bbr-suite"
title = "A case of draft-ietf-ccwg-bbr"
about = "One download whose path and application change while it runs."
[path.down]
rate = "{} bit/s"
queue = "{} B"
delay = "{} us"
[path.up]
delay = "{} us"
[traffic]
workload = "bulk"
connections = 1
[run]
duration = "{} s"
seeds = 1
"#,
        scene.kbps * 1000,
        scene.buffer,
        scene.rtt_ms * 500,
        scene.rtt_ms * 500,
        scene.seconds
    );
    parse(&text, "suite").map_err(|error| error.to_string())
}

fn play(scene: &'static Scene, contender: &dyn Contender) -> Result<Play, String> {
    let scenario = scenario(scene)?;
    let seed = Seed::from_number(scene.seed);
    let throttle = Throttle::default();
    let connections =
        [ConnectionSpec { index: 0, client: client_address(0), server: server_address(0), start: Instant::ZERO }];
    let spec = RunSpec {
        scenario: &scenario,
        seed_number: scene.seed,
        seed: seed.child("stack", 0),
        connections: &connections,
        measure_from: scenario.run.measure_from(),
        end: scenario.run.end(),
        qlog: None,
        throttle: Some(&throttle),
    };
    let mut nodes = contender.build(&spec).map_err(|error| error.to_string())?;
    let (client, server) = nodes.pairs.pop().ok_or("the contender has built no nodes")?;
    let controls = Shared::default();
    let log = Rc::new(RefCell::new(Vec::new()));
    let prompter = Rc::new(RefCell::new(Prompter {
        scene,
        controls: Arc::clone(&controls),
        throttle: throttle.clone(),
        next: 0,
        last: Instant::ZERO,
        left: true,
        last_state: None,
        done: vec![None; scene.steps.len()],
    }));
    let view = nodes.views.pop();
    let sender = Player::Sender(Watched { node: server, view, log: Rc::clone(&log), prompter: Rc::clone(&prompter) });

    let half = Duration::from_micros(scene.rtt_ms * 500);
    let queue = Queue::DropTail { bytes: DataSize::from_bytes(scene.buffer) };
    let down = LinkConfig { rate: Some(scene.rate()), queue, delay: half, ..LinkConfig::default() };
    let up = LinkConfig { delay: half, ..LinkConfig::default() };
    let dumbbell = Dumbbell { up, down, start_jitter: Duration::ZERO, nat: None };
    let hosts = ([Host::new("client", Player::Client(client))], [Host::new("server", sender)]);
    let mut simulation =
        dumbbell.build(seed.child("network", 0), hosts.0, hosts.1).map_err(|error| error.to_string())?;
    install(&mut simulation, &controls);

    let mut link = Vec::new();
    let mut now = Instant::ZERO;
    while now < spec.end {
        now += TICK;
        let _outcome = simulation.run_until(now).map_err(|error| error.to_string())?;
        prompter.borrow_mut().prompt(now, None);
        if let Some(rate) = with(&controls, |controls| controls.rate.take()) {
            simulation.network_mut().link_mut(Dumbbell::DOWN).set_rate(rate);
        }
        let counters = simulation.counters(Dumbbell::DOWN);
        link.push(LinkMoment {
            at: now,
            delivered: counters.delivered.bytes,
            packets: counters.delivered.packets,
            dropped: counters.dropped_in_all().packets,
        });
        // The application may write again: nothing else would wake it.
        if prompter.borrow_mut().throttle.take_news() {
            simulation.with_node(1, |_, _| ()).map_err(|error| error.to_string())?;
        }
    }
    drop(simulation);
    let measured = (nodes.measured)();
    if let Some(reason) = measured.iter().find_map(|connection| connection.closed.clone()) {
        return Err(format!("the connection ended: {reason}"));
    }
    if measured.iter().any(|connection| connection.wrong_bytes > 0) {
        return Err("bytes arrived wrong, twice or out of place".to_owned());
    }
    let steps = prompter.borrow().done.clone();
    Ok(Play { moments: log.take(), steps, link })
}

/// Lets the steps decide about packets.
fn install(simulation: &mut Simulation<Player>, controls: &Shared) {
    let data = Arc::clone(controls);
    let down = Script::timed(move |now, packet| with(&data, |controls| controls.data(now, packet)));
    simulation.network_mut().link_mut(Dumbbell::DOWN).set_script(down);
    let feedback = Arc::clone(controls);
    let up = Script::timed(move |now, _| with(&feedback, |controls| controls.feedback(now)));
    simulation.network_mut().link_mut(Dumbbell::UP).set_script(up);
}
