//! Full self-test: known answers of the whole chain, from the link to the figure. `tiderace lab selftest` runs it.
//!
//! The answer of each check follows from arithmetic or from a standard. To show that a check can fail, [`Fault`] breaks one part of the
//! chain at a time, and the check for this part has to fail.

use core::{
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use netem::{Codel, FqCodel, Link, LinkConfig, Loss, PacketMeta, Queue, Verdict};
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

use super::{Check, anchors::anchors, chain, codes, control, figures, links, losses};
use crate::{
    contender::{BuildError, Contender, Factor, Identity, Nodes, RunSpec},
    figure::Figure,
    record::{Record, RunOutcome},
    reference::loss_response::model_window,
    run::run_one,
    scenario::{Scenario, parse},
    suite,
    tiderace::contender,
};

/// A part of the chain that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Losses are not counted.
    LossCounter,
    /// Bytes that are sent again count as goodput.
    GoodputCountsRepair,
    /// The requested controller is never attached: the stack runs another one and does not report it.
    ControllerNotAttached,
    /// RTT samples are half of the true value.
    RttHalved,
    /// A run draws from somewhere else than its seed.
    Unseeded,
}

impl Fault {
    /// All faults with the names they have on the command line.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::LossCounter, "loss-counter"),
        (Self::GoodputCountsRepair, "goodput-counts-repair"),
        (Self::ControllerNotAttached, "controller-not-attached"),
        (Self::RttHalved, "rtt-halved"),
        (Self::Unseeded, "unseeded"),
    ];
}

/// Unchecked parts, with reasons.
pub const NOT_CHECKED: [(&str, &str); 1] =
    [("V14", "agreement of virtual and real time takes an idle machine: `tiderace lab selftest --real-time`")];

/// Runs all checks on all cores, with a fault if one is given.
pub fn calibrate(fault: Option<Fault>) -> Vec<Check> {
    calibrate_while(fault, None, &|_| true)
}

/// A part of the self-test: checks that are made together.
pub(super) type Part = Box<dyn Fn() -> Result<Vec<Check>, String> + Send + Sync>;

/// Runs the parts one after the other on `threads` (`None`: all cores), the fastest first, and starts no further one once `go_on` has
/// returned false for a check. Checks are returned in the order of the parts.
pub fn calibrate_while(
    fault: Option<Fault>,
    threads: Option<NonZeroUsize>,
    go_on: &(dyn Fn(&Check) -> bool + Sync),
) -> Vec<Check> {
    let parts = parts(fault);
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let made = Mutex::new(Vec::new());
    let work = || {
        while !stopped.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, part)) = parts.get(index) else { return };
            let checks = part().unwrap_or_else(|reason| vec![check(name, false, reason)]);
            if !checks.iter().all(go_on) {
                stopped.store(true, Ordering::Relaxed);
            }
            made.lock().unwrap_or_else(PoisonError::into_inner).push((index, checks));
        }
    };
    let threads = threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    made.sort_by_key(|(index, _)| *index);
    made.into_iter().flat_map(|(_, checks)| checks).collect()
}

/// All parts with a name for the case that one cannot be made, the quick ones first.
fn parts(fault: Option<Fault>) -> Vec<(&'static str, Part)> {
    let mut parts: Vec<(&'static str, Part)> = Vec::new();
    // What no fault reaches need not be computed again to show that the fault is found.
    if fault.is_none() {
        let one = |name, make: fn() -> Result<Check, String>| -> (&'static str, Part) {
            (name, Box::new(move || make().map(|check| vec![check])))
        };
        parts.push(("figures", Box::new(|| Ok(figures::checks()))));
        parts.push(("links", Box::new(links::checks)));
        parts.push(("losses", Box::new(losses::checks)));
        parts.push(("codes", Box::new(|| Ok(codes::checks()))));
        parts.extend([
            one("what applications count", chain::applications),
            one("delayed acknowledgements", chain::delayed_acknowledgements),
            one("directions", chain::directions),
            one("exchanges", chain::exchanges),
            one("books", chain::books),
            one("warm-up", chain::warm_up),
            one("video", chain::video),
            one("rivals", chain::rivals),
            one("slow start", control::slow_start),
            one("noticing losses", chain::noticing_losses),
            one("copies and order", chain::copies_and_order),
            one("marks", control::marks),
            one("short queues", control::short_queues),
            one("minimum RTT", control::forgetting_the_minimum),
            one("sawtooth", control::sawtooth),
            one("flow control", control::flow_control),
            one("repair in figures", chain::repair),
            one("CUBIC", control::cubic),
        ]);
    }
    parts.push(("links of old", Box::new(|| Ok(vec![serialisation(), burst_loss(), fair_queue(), group_loss()]))));
    parts.push(("runs", Box::new(move || runs(fault))));
    parts.push(("cases of BBR", Box::new(move || Ok(vec![bbr_cases(fault)]))));
    if fault.is_none() {
        parts.extend(anchors());
    }
    parts
}

pub(super) fn check(name: &'static str, passed: bool, detail: impl Into<String>) -> Check {
    Check { name, passed, detail: detail.into() }
}

pub(super) fn packet(number: u64, flow: u32) -> PacketMeta {
    PacketMeta { size: 1_500, flow, number, ..PacketMeta::default() }
}

/// V1: a packet of 1500 bytes at 1.1 Mbit/s takes 10.909 ms, and a queue of 25 of them 272.7 ms.
fn serialisation() -> Check {
    let config = LinkConfig {
        rate: Some(Bitrate::from_bps(1_100_000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(25 * 1_500) },
        ..LinkConfig::default()
    };
    let Ok(mut link) = Link::new(&config, Seed::from_number(1)) else { return check("V1 link", false, "no link") };
    let transits: Vec<_> = (0..30).map(|number| link.offer(Instant::ZERO, &packet(number, 0))).collect();
    let first = transits[0].verdict.arrival().map_or(0, Instant::as_nanos);
    let longest = transits.iter().map(|transit| transit.queued.as_nanos()).max().unwrap_or(0);
    let passed = first.abs_diff(10_909_091) <= 1 && longest.abs_diff(272_727_272) <= 1;
    check("V1 link", passed, format!("a packet takes {first} ns (10909091), the full queue {longest} ns (272727272)"))
}

/// V2: mean and burst length of a Gilbert-Elliott chain, within 3.5 standard deviations of a correlated sample.
fn burst_loss() -> Check {
    const PACKETS: u32 = 400_000;
    let (mean, length) = (0.006, 6.0);
    let loss = Loss::Burst { mean: Probability::new(mean).unwrap_or(Probability::ZERO), length };
    let Ok(mut link) = Link::new(&LinkConfig { loss, ..LinkConfig::default() }, Seed::from_number(4)) else {
        return check("V2 bursts", false, "no link");
    };
    let (mut lost, mut bursts, mut inside) = (0u32, 0u32, false);
    for number in 0..PACKETS {
        let offered = link.offer(Instant::from_micros(number.into()), &packet(number.into(), 0));
        let drop = matches!(offered.verdict, Verdict::Dropped(_));
        lost += u32::from(drop);
        bursts += u32::from(drop && !inside);
        inside = drop;
    }
    let share = f64::from(lost) / f64::from(PACKETS);
    let seen = f64::from(lost) / f64::from(bursts.max(1));
    let off = (share - mean) / (mean * (1.0 - mean) * (2.0 * length - 1.0) / f64::from(PACKETS)).sqrt();
    let off_length = (seen - length) / (length * (length - 1.0) / f64::from(bursts.max(1))).sqrt();
    let passed = off.abs() < 3.5 && off_length.abs() < 3.5;
    check(
        "V2 bursts",
        passed,
        format!(
            "{:.4} % in bursts of {seen:.2} (0.6 % in bursts of 6, each within 3.5 standard deviations)",
            share * 100.0
        ),
    )
}

/// V3: two greedy flows in a fair queue get half each, to within 1 %, although one offers three times as much.
fn fair_queue() -> Check {
    let codel = Codel {
        bytes: DataSize::from_bytes(150_000),
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        ecn: false,
    };
    let config = LinkConfig {
        rate: Some(Bitrate::from_mbps(12)),
        queue: Queue::FqCodel(FqCodel { codel, quantum: 1_514 }),
        ..LinkConfig::default()
    };
    let Ok(mut link) = Link::new(&config, Seed::from_number(1)) else {
        return check("V3 fair queue", false, "no link");
    };
    let mut delivered = [0u32; 2];
    for number in 0..24_000u64 {
        let now = Instant::from_micros(number * 250);
        let flow = u32::from(number % 4 == 3);
        link.offer(now, &packet(number, flow));
        while link.deadline().is_some_and(|at| at <= now) {
            let Some(released) = link.poll(now) else { break };
            if released.transit.verdict.arrival().is_some() {
                delivered[released.packet.flow as usize] += 1;
            }
        }
    }
    let share = f64::from(delivered[0]) / f64::from((delivered[0] + delivered[1]).max(1));
    check(
        "V3 fair queue",
        (share - 0.5).abs() < 0.01,
        format!("{:.2} % and {:.2} % (50 ± 1 each)", share * 100.0, (1.0 - share) * 100.0),
    )
}

/// The link's half of V9: the injector drops exactly the configured number of packets of each group.
fn group_loss() -> Check {
    let loss = Loss::Group { size: 11, drop: 2, min_bytes: 600, after: units::Duration::ZERO };
    let Ok(mut link) = Link::new(&LinkConfig { loss, ..LinkConfig::default() }, Seed::from_number(4)) else {
        return check("V9 losses of a group", false, "no link");
    };
    let wrong = (0..1_000u64).filter(|group| {
        let lost = (0..11u64).filter(|place| {
            let number = group * 11 + place;
            link.offer(Instant::from_micros(number), &packet(number, 0)).verdict.arrival().is_none()
        });
        lost.count() != 2
    });
    let wrong = wrong.count();
    check("V9 losses of a group", wrong == 0, format!("{wrong} of 1000 groups of 11 have not lost exactly 2"))
}

/// V7: the 22 example test cases of draft-ietf-ccwg-bbr, with our BBRv3. A controller that is none of BBR passes nearly none.
fn bbr_cases(fault: Option<Fault>) -> Check {
    const NAME: &str = "V7 cases of the BBR draft";
    let attached = if fault == Some(Fault::ControllerNotAttached) { "cubic" } else { "bbr3" };
    let Some(contender) = suite::contender(attached) else { return check(NAME, false, "there is no such controller") };
    match suite::run(contender.as_ref()) {
        Ok(results) => {
            let passed = results.iter().filter(|result| result.passed()).count();
            check(NAME, passed == results.len(), format!("{passed} of {} pass (all)", results.len()))
        }
        Err(reason) => check(NAME, false, reason),
    }
}

pub(super) const LOSSY: &str = r#"
name = "calibration"
title = "Calibration"
about = "Known answers."
[path.down]
rate = "50 Mbit/s"
queue = "625 kB"
delay = "50 ms"
loss = "1 %"
[path.up]
rate = "50 Mbit/s"
queue = "625 kB"
delay = "50 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
duration = "60 s"
seeds = 1
"#;

pub(super) const CLEAN: &str = r#"
name = "calibration"
title = "Calibration"
about = "Known answers."
[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "5 s"
duration = "20 s"
seeds = 1
"#;

pub(super) fn scenario(text: &str) -> Result<Scenario, String> {
    parse(text, "calibration").map_err(|error| error.to_string())
}

pub(super) fn value(record: &Record, figure: Figure) -> Result<f64, String> {
    let reading = record.figures.get(&figure).and_then(|reading| reading.value);
    reading.ok_or_else(|| format!("no {}", figure.label()))
}

/// The checks that need the whole chain.
fn runs(fault: Option<Fault>) -> Result<Vec<Check>, String> {
    let (lossy, clean) = (scenario(LOSSY)?, scenario(CLEAN)?);
    let stack = |name: &str, seed: u64| -> Result<Broken, String> {
        let attached = if fault == Some(Fault::ControllerNotAttached) { "cubic" } else { name };
        let inner = contender(attached).ok_or_else(|| format!("there is no controller `{attached}`"))?;
        Ok(Broken { inner, asked: name.to_owned(), fault, draw: seed })
    };
    let one = |scenario: &Scenario, name: &str, seed: u64, draw: u64| -> Result<Record, String> {
        let mut record = run_one(scenario, &stack(name, draw)?, seed, None);
        if fault == Some(Fault::LossCounter) {
            record.link.dropped_loss = 0;
        }
        Ok(record)
    };
    let lossless = one(&clean, "newreno", 1, 1)?;
    let (mut ratios, mut share, mut conserved) = (Vec::new(), (0u64, 0u64), Ok(()));
    for seed in 1..=4 {
        let record = one(&lossy, "newreno", seed, 1)?;
        if let RunOutcome::Failed(reason) = &record.outcome {
            return Ok(vec![check("evidence", false, reason.clone())]);
        }
        share = (share.0 + record.link.dropped_loss, share.1 + record.link.offered);
        let goodput = value(&record, Figure::Goodput)?;
        let sums = record.connections.iter().fold((0, 0, 0), |sums, one| {
            let read = |count: Option<u64>| count.unwrap_or(0);
            (
                sums.0 + read(one.stream_bytes_sent),
                sums.1 + read(one.stream_bytes_resent),
                sums.2 + read(one.packets_sent),
            )
        });
        let (first, delivered) = (number(sums.0.saturating_sub(sums.1)), goodput * 60.0 / 8.0);
        if delivered > first {
            conserved = Err(format!(
                "seed {seed}: {delivered:.0} bytes delivered of {first:.0} that were sent for the first time"
            ));
        }
        let payload = number(sums.0) / number(sums.2.max(1));
        ratios.push(goodput / (model_window("newreno", 0.1, 0.01) * payload * 8.0 / 0.1));
    }
    let mut checks =
        vec![check("evidence", true, "every connection shows the controller that was asked for, with its counter")];
    let lost = number(share.0) / number(share.1.max(1));
    // Binomial: 1 % of some 40,000 packets, four standard deviations.
    let allowed = 4.0 * (0.01 * 0.99 / number(share.1.max(1))).sqrt();
    checks.push(check(
        "loss is counted at the link",
        (lost - 0.01).abs() <= allowed,
        format!("{:.3} % of {} packets (1 % ± {:.3})", lost * 100.0, share.1, allowed * 100.0),
    ));
    let bytes =
        conserved.clone().err().unwrap_or_else(|| "no more was delivered than was sent for the first time".to_owned());
    checks.push(check("goodput is unique bytes", conserved.is_ok(), bytes));
    let ratio = ratios.iter().sum::<f64>() / number(ratios.len() as u64);
    checks.push(check(
        "V5 response to loss",
        (0.7..=1.3).contains(&ratio),
        format!("newreno at 1 % loss carries {ratio:.2} of the model of RFC 9438 (0.7 to 1.3 over 4 × 60 s)"),
    ));
    checks.extend(on_a_clean_path(&lossless)?);
    checks.push(handshake(&clean, &stack("newreno", 1)?)?);
    // V13: the same seed gives the same record, another seed another.
    let again = one(&clean, "newreno", 1, 2)?;
    let other = one(&clean, "newreno", 2, 1)?;
    let passed = again == lossless && other.trace != lossless.trace;
    let traces = format!("{} and {}; another seed {}", lossless.trace.hash, again.trace.hash, other.trace.hash);
    checks.push(check("V13 repeatability", passed, traces));
    Ok(checks)
}

/// A download that fills a queue of one bandwidth-delay product without loss.
fn on_a_clean_path(record: &Record) -> Result<Vec<Check>, String> {
    let goodput = value(record, Figure::Goodput)?;
    let least = record.connections.first().and_then(|one| one.rtt_min).unwrap_or(0.0);
    let queue = value(record, Figure::QueueDelayP99)?;
    let p95 = value(record, Figure::RttP95)?;
    Ok(vec![
        check(
            "goodput below the link",
            goodput < 20e6 && goodput > 15e6,
            format!("{:.2} Mbit/s of 20 (15 to 20)", goodput / 1e6),
        ),
        // 50 ms of propagation and the time to send at least one small and one large packet.
        check(
            "V1 latency above propagation",
            (0.050..0.053).contains(&least),
            format!("least RTT {:.3} ms (50 to 53)", least * 1e3),
        ),
        check(
            "V4 bufferbloat is the buffer",
            (0.045..=0.0501).contains(&queue),
            format!("p99 wait {:.1} ms of 50 (45 to 50.1)", queue * 1e3),
        ),
        check("RTT under load", p95 > 0.080 && p95 < 0.103, format!("p95 {:.1} ms (80 to 103)", p95 * 1e3)),
    ])
}

/// V10: the handshake takes one round trip and the time to send its packets.
fn handshake(clean: &Scenario, stack: &Broken) -> Result<Check, String> {
    let mut scenario = clean.clone();
    (scenario.run.warmup, scenario.run.duration) = (Duration::ZERO, Duration::from_secs(1));
    let record = run_one(&scenario, stack, 1, None);
    let took = record.connections.first().and_then(|one| one.handshake).ok_or("no handshake")?;
    Ok(check(
        "V10 handshake",
        (0.050..0.056).contains(&took),
        format!("{:.2} ms (50 and the time to send five packets: 50 to 56)", took * 1e3),
    ))
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

/// Our stack, optionally with a fault between it and the laboratory.
struct Broken {
    inner: Box<dyn Contender>,
    asked: String,
    fault: Option<Fault>,
    /// Draw of an unseeded run.
    draw: u64,
}

impl Contender for Broken {
    fn identity(&self) -> Identity {
        Identity { name: format!("tiderace {}", self.asked), ..self.inner.identity() }
    }

    fn factors(&self) -> Vec<Factor> {
        vec![Factor { name: "congestion".to_owned(), value: self.asked.clone() }]
    }

    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let unseeded = RunSpec { seed: spec.seed.child("fault", self.draw), ..*spec };
        let nodes = self.inner.build(if self.fault == Some(Fault::Unseeded) { &unseeded } else { spec })?;
        let (fault, measured) = (self.fault, nodes.measured);
        let broken = move || {
            let mut all = measured();
            for one in &mut all {
                match fault {
                    Some(Fault::GoodputCountsRepair) => one.delivered += one.stream_bytes_resent.unwrap_or(0),
                    Some(Fault::RttHalved) => {
                        one.rtt_min = one.rtt_min.map(|rtt| rtt / 2);
                        one.rtt.iter_mut().flatten().for_each(|sample| *sample /= 2);
                    }
                    _ => {}
                }
            }
            all
        };
        Ok(Nodes { pairs: nodes.pairs, measured: Box::new(broken), views: nodes.views, rtts: nodes.rtts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_passes() {
        let checks = calibrate(None);
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        assert!(failed.is_empty() && checks.len() >= 20, "{failed:#?}");
    }

    #[test]
    fn every_fault_turns_its_check_red() {
        for (fault, name) in Fault::ALL {
            let expected = match fault {
                Fault::LossCounter => "loss is counted at the link",
                Fault::GoodputCountsRepair => "goodput is unique bytes",
                Fault::ControllerNotAttached => "evidence",
                Fault::RttHalved => "V1 latency above propagation",
                Fault::Unseeded => "V13 repeatability",
            };
            let failed: Vec<&str> = calibrate(Some(fault)).iter().filter(|c| !c.passed).map(|c| c.name).collect();
            assert!(failed.contains(&expected), "{name}: {failed:?}");
        }
    }
}
