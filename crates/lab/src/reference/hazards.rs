//! Known hazards of congestion control: dips of ProbeRTT, and reordering with sparse acknowledgements.

use std::sync::{Arc, Mutex, PoisonError};

use netem::Reorder;
use transport::{
    Profile,
    observe::{Observer, ObserverFactory, RecoveryMetrics, Start},
};
use units::{Bitrate, Duration, Instant, Probability};

use super::{
    Failed, Finding, centre,
    flows::{Flow, Plan, run},
    on_all_cores,
};

/// 20 Mbit/s and 50 ms: the path of these measurements.
const RATE: Bitrate = Bitrate::from_mbps(20);
const RTT: Duration = Duration::from_millis(50);

/// Length and number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of seeds.
    pub seeds: u64,
    /// Virtual seconds measured in each run.
    pub seconds: u64,
}

/// Observation of the sender: time, state, bytes in flight.
type Moment = (Instant, &'static str, u64);

#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<Moment>>>);

impl Observer for Watch {
    fn metrics(&mut self, now: Instant, metrics: &RecoveryMetrics) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((now, metrics.state, metrics.in_flight));
    }
}

impl ObserverFactory for Watch {
    fn observe(&self, _now: Instant, _start: &Start) -> Option<Box<dyn Observer>> {
        Some(Box::new(self.clone()))
    }
}

/// Entries into ProbeRTT in a run.
#[derive(Debug, Default)]
struct Dips {
    count: u32,
    longest: Duration,
    /// The smallest flight in any of them.
    least: Option<u64>,
}

impl Dips {
    fn of(moments: &[Moment]) -> Self {
        let (mut dips, mut since) = (Self::default(), None);
        for &(at, state, in_flight) in moments {
            if state == "probe_rtt" {
                let begin = *since.get_or_insert(at);
                dips.longest = dips.longest.max(at - begin);
                dips.least = Some(dips.least.map_or(in_flight, |least| least.min(in_flight)));
            } else if since.take().is_some() {
                dips.count += 1;
            }
        }
        dips
    }
}

fn profile(controller: &str, ack: &str) -> Result<Profile, Failed> {
    let failed = |error: &dyn core::fmt::Display| Failed(error.to_string());
    Ok(Profile {
        congestion: controller.parse().map_err(|error| failed(&error))?,
        ack_frequency: ack.parse().map_err(|error| failed(&error))?,
        ..Profile::default()
    })
}

/// ProbeRTT empties a part of the pipe every five seconds: its amount, duration and cost. BBRv1 goes down to four packets, the later
/// versions to half of the pipe.
///
/// # Errors
/// When a run cannot be used, or ProbeRTT never occurred.
pub fn probe_rtt(controller: &'static str, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let plan = Plan { duration: Duration::from_secs(effort.seconds), ..Plan::new(RATE, RTT, 2.0, 0.0) };
    #[expect(clippy::cast_precision_loss, reason = "some hundred thousand bytes")]
    let share = |bytes: u64| bytes as f64 / RATE.in_time(RTT).as_bytes() as f64;
    let told = on_all_cores(effort.seeds, |index| {
        let seed = index + 1;
        let watch = Watch::default();
        let flow = Flow { watch_sender: Some(Arc::new(watch.clone())), ..Flow::new(profile(controller, "off")?) };
        let goodput = run(&plan, &[flow], seed)?.flows[0].goodput / 1e6;
        let dips = Dips::of(&watch.0.lock().unwrap_or_else(PoisonError::into_inner));
        let least = share(dips.least.ok_or_else(|| Failed(format!("seed {seed}: no ProbeRTT was seen")))?);
        Ok([dips.longest.as_secs_f64() * 1e3, least, goodput, f64::from(dips.count)])
    })?;
    let [longest, least, goodputs, counts] =
        [0, 1, 2, 3].map(|place: usize| told.iter().map(|told| told[place]).collect::<Vec<f64>>());
    let detail = format!(
        "20 Mbit/s, 50 ms, 2 BDP; {:.0} dips in each; {} seeds x {} s",
        centre(&counts)?.0,
        effort.seeds,
        effort.seconds
    );
    let finding = |what: &str, values: &[f64], target, unit| -> Result<Finding, Failed> {
        let (value, interval) = centre(values)?;
        Ok(Finding {
            name: format!("{controller}, ProbeRTT: {what}"),
            value,
            interval,
            target,
            unit,
            detail: detail.clone(),
        })
    };
    // The draft: 200 ms, and at least a round trip more; half of the pipe, less what the acknowledgement of a burst uncovers.
    Ok(vec![
        finding("longest dip", &longest, 0.0..=350.0, "ms")?,
        finding("smallest flight", &least, if controller == "bbr1" { 0.0 } else { 0.3 }..=1.0, "BDP")?,
        finding("goodput", &goodputs, 18.0..=20.0, "Mbit/s")?,
    ])
}

/// One packet in a hundred arrives 5 ms late, with one acknowledgement for ten packets: goodput over that of a path without reordering, and
/// spurious losses.
///
/// # Errors
/// When a run cannot be used.
pub fn reordering(controller: &'static str, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let share = Probability::new(0.01).map_err(|error| Failed(error.to_string()))?;
    let told = |ack: &str, reordered: bool, seed: u64| -> Result<(f64, f64), Failed> {
        let mut plan = Plan { duration: Duration::from_secs(effort.seconds), ..Plan::new(RATE, RTT, 1.0, 0.0) };
        if reordered {
            plan.down.reorder = Some(Reorder { probability: share, delay: Duration::from_millis(5) });
        }
        let flow = run(&plan, &[Flow::new(profile(controller, ack)?)], seed)?.flows.remove(0);
        #[expect(clippy::cast_precision_loss, reason = "thousands of packets")]
        let spurious =
            flow.sent(|stats| stats.packets_lost_spuriously) as f64 / flow.sent(|stats| stats.packets_sent) as f64;
        Ok((flow.goodput, 100.0 * spurious))
    };
    let mut findings = Vec::new();
    for ack in ["off", "fixed:10", "adaptive"] {
        let runs = on_all_cores(effort.seeds, |index| {
            let ((plain, _), (goodput, lost)) = (told("off", false, index + 1)?, told(ack, true, index + 1)?);
            Ok((goodput / plain, lost))
        })?;
        let (ratios, spurious): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
        let (value, interval) = centre(&ratios)?;
        findings.push(Finding {
            name: format!("{controller}, 1 % of packets 5 ms late, acknowledgements {ack}: goodput / in order"),
            value,
            interval,
            target: 0.9..=f64::INFINITY,
            unit: "",
            detail: format!(
                "20 Mbit/s, 50 ms, 1 BDP; {:.3} % of packets were declared lost and arrived; {} seeds x {} s",
                centre(&spurious)?.0,
                effort.seeds,
                effort.seconds
            ),
        });
    }
    Ok(findings)
}
