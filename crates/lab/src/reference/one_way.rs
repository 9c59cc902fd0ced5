//! Variation of the one-way delay, estimated by the sender from receive timestamps, compared with the simulator's exact values.
//!
//! Departure and arrival of each packet are known exactly. The clocks of the two ends differ by an hour and may drift apart; neither end
//! knows.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use transport::{
    Profile,
    observe::{Observer, ObserverFactory, PacketEvent, PacketSpace, Start},
    recovery::PathDirection,
};
use units::{Duration, Instant};

use super::{
    Failed, Finding,
    flows::{Clock, Flow, Plan, run},
    scenario,
};

/// Distance of an estimate from the truth at most.
pub const TOLERANCE: Duration = Duration::from_millis(1);

/// The smallest delay must be seen once before an increase can be measured: estimates count from here on.
const LEARNING: Duration = Duration::from_secs(3);

/// Log of both ends, by packet number: the sender's packets in [`PathDirection::Forward`], the receiver's in
/// [`PathDirection::Reverse`].
#[derive(Debug, Default)]
struct Log {
    sent: [BTreeMap<u64, Instant>; 2],
    received: [BTreeMap<u64, Instant>; 2],
    estimates: Vec<(Instant, PathDirection, u64, Duration)>,
}

/// Watches one end and writes down true times.
#[derive(Clone)]
struct Watch {
    log: Arc<Mutex<Log>>,
    /// Direction of the packets that this end sends.
    direction: PathDirection,
    clock: Clock,
}

impl Watch {
    fn note(&self, write: impl FnOnce(&mut Log)) {
        write(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Observer for Watch {
    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        if packet.space == PacketSpace::OneRtt {
            self.note(|log| _ = log.sent[self.direction as usize].insert(packet.pn, self.clock.truth(now)));
        }
    }

    fn packet_received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        if packet.space == PacketSpace::OneRtt {
            let direction =
                if self.direction == PathDirection::Forward { PathDirection::Reverse } else { PathDirection::Forward };
            self.note(|log| _ = log.received[direction as usize].insert(packet.pn, self.clock.truth(now)));
        }
    }

    fn one_way_sample(&mut self, now: Instant, direction: PathDirection, pn: u64, variation: Duration) {
        if self.direction == PathDirection::Forward {
            self.note(|log| log.estimates.push((now, direction, pn, variation)));
        }
    }
}

impl ObserverFactory for Watch {
    fn observe(&self, _now: Instant, _start: &Start) -> Option<Box<dyn Observer>> {
        Some(Box::new(self.clone()))
    }
}

/// Sends for `seconds` over a path with 5 ms of jitter to the receiver and 15 ms back, with clocks that drift apart by
/// `drift_ppm`: by how much the estimates are wrong, each way.
///
/// # Errors
/// When the run cannot be used.
pub fn measure(drift_ppm: i32, seconds: u64, seed: u64) -> Result<Vec<Finding>, Failed> {
    let path = scenario(PATH)?.path;
    let plan = Plan {
        up: path.up().clone(),
        down: path.down,
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(seconds),
    };
    let log = Arc::new(Mutex::new(Log::default()));
    let receiver_clock = Clock { ahead: Duration::from_secs(3600), ppm: drift_ppm };
    let watch = |direction, clock| -> Option<Arc<dyn ObserverFactory>> {
        Some(Arc::new(Watch { log: Arc::clone(&log), direction, clock }))
    };
    let flow = Flow {
        profile: Profile {
            congestion: "newreno".parse().map_err(|error| Failed(format!("{error}")))?,
            receive_timestamps: 64,
            ..Profile::default()
        },
        receiver_clock,
        watch_sender: watch(PathDirection::Forward, Clock::default()),
        watch_receiver: watch(PathDirection::Reverse, receiver_clock),
        ..Flow::default()
    };
    let outcome = run(&plan, &[flow], seed)?;
    let told = &outcome.flows[0];
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let mut findings = Vec::new();
    for direction in [PathDirection::Forward, PathDirection::Reverse] {
        let (sent, received) = (&log.sent[direction as usize], &log.received[direction as usize]);
        let delay = |pn: &u64| Some(*received.get(pn)? - *sent.get(pn)?);
        let smallest = received.keys().filter_map(delay).min().unwrap_or_default();
        let errors: Vec<f64> = log
            .estimates
            .iter()
            .filter(|(at, estimated, ..)| *estimated == direction && *at > Instant::ZERO + LEARNING)
            .filter_map(|(_, _, pn, variation)| {
                let truth = delay(pn)? - smallest;
                Some((variation.as_secs_f64() - truth.as_secs_f64()).abs() * 1e3)
            })
            .collect();
        let worst = errors.iter().copied().fold(f64::NAN, f64::max);
        let spread = received.keys().filter_map(delay).max().unwrap_or_default() - smallest;
        findings.push(Finding {
            name: format!("one-way variation, {direction:?}, clocks drifting by {drift_ppm} ppm: largest error"),
            value: worst,
            interval: None,
            target: 0.0..=TOLERANCE.as_secs_f64() * 1e3,
            unit: "ms",
            detail: format!(
                "{} estimates; the delay varied by {:.1} ms; {} times reported, {} taken in",
                errors.len(),
                spread.as_secs_f64() * 1e3,
                told.receiver[1].receive_times_sent,
                told.sender[1].receive_times_received
            ),
        });
    }
    Ok(findings)
}

/// Random loss keeps the window small, so no queue builds and the truth is jitter alone.
const PATH: &str = r#"
name = "one-way"
title = "Jitter that differs by direction"
about = "Receive times."
[path.down]
rate = "50 Mbit/s"
queue = "1 MB"
delay = "20 ms"
jitter = "5 ms"
jitter-period = "8 ms"
loss = "1 %"
[path.up]
rate = "50 Mbit/s"
queue = "1 MB"
delay = "30 ms"
jitter = "15 ms"
jitter-period = "20 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
duration = "10 s"
"#;
