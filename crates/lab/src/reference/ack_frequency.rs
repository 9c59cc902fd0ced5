//! Savings and costs of fewer acknowledgements: the same downloads with and without, seed by seed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

pub use transport::ack_frequency::AckFrequency;
use transport::{
    Profile,
    observe::{LossEvent, Observer, ObserverFactory, PacketEvent, PacketSpace, RecoveryMetrics, Start},
};
use units::{Bitrate, Duration, Instant};

use super::{
    Failed, Finding, centre,
    flows::{Flow, FlowCounters, Plan, run},
    on_all_cores,
};

/// A path and a controller on which the policy is compared with no request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The congestion controller.
    pub controller: &'static str,
    /// Of the bottleneck in Mbit/s.
    pub rate: u64,
    /// Round trip of the empty path in milliseconds.
    pub rtt: u64,
    /// Share of packets lost at random.
    pub loss: f64,
}

/// Smallest saving of ACK packets without loss.
pub const SAVED: f64 = 0.75;
/// The largest difference in goodput.
pub const GOODPUT: f64 = 0.02;
/// Delay of loss detection at most, in round trips.
pub const LATER: f64 = 0.25;

/// Length and number of a cell's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of pairs of runs.
    pub seeds: u64,
    /// Virtual seconds measured in each.
    pub seconds: u64,
}

/// Lateness of loss detection: the time from the departure of a lost packet to the verdict, in whole and beyond the time that the
/// path took at that moment (the last RTT sample less the wait that the receiver reports). A queue makes every verdict later
/// and is no fault of the acknowledgements.
#[derive(Debug, Default)]
struct Lateness {
    begin: Instant,
    sent: BTreeMap<u64, Instant>,
    /// The last sample of the RTT, without what the peer waited before it acknowledged.
    path: Duration,
    /// Verdicts of the acknowledgement that is being worked through.
    verdicts: Vec<Duration>,
    /// Seconds in whole, and seconds beyond the path's.
    late: Vec<[f64; 2]>,
}

/// Watches the sender of the data.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Lateness>>);

impl Watch {
    fn with<T>(&self, act: impl FnOnce(&mut Lateness) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Watch {
    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        if packet.space == PacketSpace::OneRtt {
            self.with(|seen| {
                seen.sent.insert(packet.pn, now);
                // More than are ever in flight on these paths.
                if seen.sent.len() > 4096 {
                    seen.sent.pop_first();
                }
            });
        }
    }

    fn packet_lost(&mut self, now: Instant, lost: &LossEvent) {
        self.with(|seen| {
            let sent_at = seen.sent.get(&lost.pn).filter(|_| lost.space == PacketSpace::OneRtt && !lost.mtu_probe);
            seen.verdicts.extend(sent_at.map(|&at| now - at));
        });
    }

    fn rtt_sample(&mut self, _now: Instant, _latest: Duration, adjusted: Duration) {
        self.with(|seen| seen.path = adjusted);
    }

    fn metrics(&mut self, now: Instant, _: &RecoveryMetrics) {
        self.with(|seen| {
            let path = seen.path.as_secs_f64();
            let late = seen.verdicts.drain(..).map(|taken| taken.as_secs_f64()).map(|taken| [taken, taken - path]);
            let late = late.collect::<Vec<_>>();
            if now >= seen.begin {
                seen.late.extend(late);
            }
        });
    }
}

impl ObserverFactory for Watch {
    fn observe(&self, _now: Instant, _start: &Start) -> Option<Box<dyn Observer>> {
        Some(Box::new(self.clone()))
    }
}

/// One pair of runs, or all of them: with the policy, as ratios to without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Goodput over goodput.
    pub goodput: f64,
    /// ACK packets saved, of those without.
    pub saved: f64,
    /// Mean delay of loss detection, in round trips of the empty path; `None` without losses.
    pub later: Option<f64>,
    /// The same without the time that the path took, which grows with the queue.
    pub later_beyond: Option<f64>,
    /// Packets per ACK packet.
    pub packets_per_ack: f64,
    /// Goodput with the policy, in bit/s.
    pub with: f64,
    /// Goodput without it, in bit/s.
    pub without: f64,
}

/// Runs a pair with one seed.
///
/// # Errors
/// When a run cannot be used, or the policy did not show on the wire.
pub fn pair(cell: Cell, policy: AckFrequency, seconds: u64, seed: u64) -> Result<Compared, Failed> {
    let plan = Plan {
        warmup: Duration::from_secs(5),
        duration: Duration::from_secs(seconds),
        ..Plan::new(Bitrate::from_mbps(cell.rate), Duration::from_millis(cell.rtt), 1.0, cell.loss)
    };
    let one = |ack_frequency| -> Result<(FlowCounters, Option<[f64; 2]>), Failed> {
        let congestion = cell.controller.parse().map_err(|error| Failed(format!("{error}")))?;
        let profile = Profile { congestion, ack_frequency, ..Profile::default() };
        let watch = Watch::default();
        watch.with(|seen| seen.begin = Instant::ZERO + plan.warmup);
        let flow = Flow { watch_sender: Some(Arc::new(watch.clone())), ..Flow::new(profile) };
        let mut outcome = run(&plan, &[flow], seed)?;
        let late = watch.with(|seen| {
            let all = u32::try_from(seen.late.len()).ok().filter(|&all| all > 0)?;
            Some([0, 1].map(|kind: usize| seen.late.iter().map(|late| late[kind]).sum::<f64>() / f64::from(all)))
        });
        Ok((outcome.flows.remove(0), late))
    };
    let ((without, late_without), (with, late_with)) = (one(AckFrequency::Off)?, one(policy)?);
    let last = &with.sender[1];
    if last.ack_requests_acked == 0 || with.receiver[1].ack_requests_received == 0 {
        return Err(Failed(format!("seed {seed}: no evidence of `{policy}`: no request was made and acknowledged")));
    }
    let acks = |told: &FlowCounters| count(told.received(|stats| stats.ack_only_packets_sent));
    let later = |kind: usize| -> Option<f64> { Some((late_with?[kind] - late_without?[kind]) * 1e3 / count(cell.rtt)) };
    Ok(Compared {
        goodput: with.goodput / without.goodput,
        saved: 1.0 - acks(&with) / acks(&without),
        later: later(0),
        later_beyond: later(1),
        packets_per_ack: count(with.sent(|stats| stats.packets_sent)) / acks(&with),
        with: with.goodput,
        without: without.goodput,
    })
}

/// Runs a cell: goodput, saving, and how much later losses are found.
///
/// # Errors
/// When a run cannot be used.
pub fn measure(cell: Cell, policy: AckFrequency, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let pairs: Vec<Compared> = on_all_cores(effort.seeds, |index| pair(cell, policy, effort.seconds, index + 1))?;
    let Cell { controller, rate, rtt, loss } = cell;
    let name = |what: &str| format!("{what}, {policy}: {controller}, {rate} Mbit/s, {rtt} ms, {} % loss", loss * 100.0);
    let read = |read: fn(&Compared) -> f64| pairs.iter().map(read).collect::<Vec<f64>>();
    let rates = format!(
        "{:.2} Mbit/s against {:.2}; {:.1} packets per ACK packet; {} pairs x {} s",
        centre(&read(|pair| pair.with))?.0 / 1e6,
        centre(&read(|pair| pair.without))?.0 / 1e6,
        centre(&read(|pair| pair.packets_per_ack))?.0,
        effort.seeds,
        effort.seconds
    );
    let finding = |what, values: &[f64], target, unit| -> Result<Finding, Failed> {
        let (value, interval) = centre(values)?;
        Ok(Finding { name: name(what), value, interval, target, unit, detail: rates.clone() })
    };
    let least = 1.0 - GOODPUT;
    let most = if loss > 0.0 { f64::INFINITY } else { 1.0 + GOODPUT };
    let mut findings = vec![finding("goodput / without", &read(|pair| pair.goodput), least..=most, "")?];
    if loss == 0.0 {
        findings.push(finding("ACK packets saved", &read(|pair| pair.saved), SAVED..=1.0, "")?);
    }
    let later: Vec<f64> = pairs.iter().filter_map(|pair| pair.later).collect();
    let beyond: Vec<f64> = pairs.iter().filter_map(|pair| pair.later_beyond).collect();
    let kinds = [("losses found later by, departure to verdict", later), ("… of which not the queue's", beyond)];
    for (what, later) in kinds {
        if !later.is_empty() {
            findings.push(finding(what, &later, f64::NEG_INFINITY..=LATER, "RTT")?);
        }
    }
    Ok(findings)
}

/// Goodput with a way back of 100 kbit/s, which acknowledgements of every second packet more than fill: `policy` over one
/// acknowledgement for five packets, the best of the fixed numbers there (10 Mbit/s, 50 ms).
///
/// # Errors
/// When a run cannot be used.
pub fn thin_way_back(controller: &'static str, policy: AckFrequency, effort: Effort) -> Result<Finding, Failed> {
    let mut plan = Plan {
        warmup: Duration::from_secs(5),
        duration: Duration::from_secs(effort.seconds),
        ..Plan::new(Bitrate::from_mbps(10), Duration::from_millis(50), 1.0, 0.0)
    };
    plan.up.rate = Some(Bitrate::from_bps(100_000));
    let goodput = |ack_frequency, seed| -> Result<f64, Failed> {
        let congestion = controller.parse().map_err(|error| Failed(format!("{error}")))?;
        let profile = Profile { congestion, ack_frequency, ..Profile::default() };
        Ok(run(&plan, &[Flow::new(profile)], seed)?.flows[0].goodput)
    };
    let told = on_all_cores(effort.seeds, |index| {
        let policies = [policy, AckFrequency::Fixed(5), AckFrequency::Off];
        policies.into_iter().map(|policy| goodput(policy, index + 1)).collect::<Result<Vec<f64>, Failed>>()
    })?;
    let middle = |place: usize| -> Result<f64, Failed> {
        Ok(centre(&told.iter().map(|goodputs| goodputs[place] / 1e6).collect::<Vec<_>>())?.0)
    };
    let ratios: Vec<f64> = told.iter().map(|goodputs| goodputs[0] / goodputs[1]).collect();
    let (value, interval) = centre(&ratios)?;
    Ok(Finding {
        name: format!("goodput over 100 kbit/s back, {policy} / fixed:5: {controller}"),
        value,
        interval,
        target: 1.0 - GOODPUT..=f64::INFINITY,
        unit: "",
        detail: format!(
            "10 Mbit/s, 50 ms, no loss; {:.2} Mbit/s, {:.2} with fixed:5, {:.2} with off; {} seeds x {} s",
            middle(0)?,
            middle(1)?,
            middle(2)?,
            effort.seeds,
            effort.seconds
        ),
    })
}

/// Cost of a fixed number under random loss, for comparison: goodput over that without a request, without a target.
///
/// # Errors
/// When a run cannot be used.
pub fn fixed_cost(cell: Cell, packets: u32, effort: Effort) -> Result<Finding, Failed> {
    let pairs: Vec<f64> = on_all_cores(effort.seeds, |index| {
        Ok(pair(cell, AckFrequency::Fixed(packets), effort.seconds, index + 1)?.goodput)
    })?;
    let (value, interval) = centre(&pairs)?;
    let Cell { controller, rate, rtt, loss } = cell;
    Ok(Finding {
        name: format!(
            "goodput / without, fixed:{packets}: {controller}, {rate} Mbit/s, {rtt} ms, {} % loss",
            loss * 100.0
        ),
        value,
        interval,
        target: 0.0..=f64::INFINITY,
        unit: "",
        detail: format!("for comparison, no target; {} pairs x {} s", effort.seeds, effort.seconds),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53")]
fn count(count: u64) -> f64 {
    count as f64
}

/// Packets per acknowledgement when N are requested: the ratio to N, on 20 Mbit/s and 50 ms without loss. The receiver's timer adds
/// acknowledgements only if N packets take longer than it.
///
/// # Errors
/// When a run cannot be used.
pub fn rhythm(packets: u32, effort: Effort) -> Result<Finding, Failed> {
    let cell = Cell { controller: "cubic", rate: 20, rtt: 50, loss: 0.0 };
    let pairs: Vec<Compared> =
        on_all_cores(effort.seeds, |index| pair(cell, AckFrequency::Fixed(packets), effort.seconds, index + 1))?;
    let ratios: Vec<f64> = pairs.iter().map(|pair| pair.packets_per_ack / f64::from(packets)).collect();
    let (value, interval) = centre(&ratios)?;
    Ok(Finding {
        name: format!("packets per ACK packet / {packets} asked for"),
        value,
        interval,
        target: 0.9..=1.1,
        unit: "",
        detail: format!(
            "cubic, 20 Mbit/s, 50 ms, no loss; goodput x {:.3}; {} seeds x {} s",
            centre(&pairs.iter().map(|pair| pair.goodput).collect::<Vec<_>>())?.0,
            effort.seeds,
            effort.seconds
        ),
    })
}
