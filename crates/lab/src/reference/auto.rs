//! The controller `auto`: random loss, many flows, neighbours with CUBIC, policers, flows with different round-trip times.

use transport::Profile;
use units::{Bitrate, DataSize, Duration};

use super::{
    Centre, Failed, Finding, TOLD, at_least, at_most, centre, finding,
    flows::{Flow, Outcome, Plan, run},
    on_all_cores,
};
use crate::stats::fairness::jain;

/// The controllers that [`paths`] compares on the same seeds.
pub const CONTROLLERS: [&str; 4] = ["cubic", "bbr1", "bbr3", "auto"];

/// Length and number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of seeds.
    pub seeds: u64,
    /// Virtual seconds measured in each run.
    pub seconds: u64,
}

impl core::fmt::Display for Effort {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} seeds x {} s after {} s", self.seeds, self.seconds, WARMUP.as_secs_f64())
    }
}

/// Time before the measurement, in which the flows converge.
const WARMUP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

fn profile(controller: &str) -> Result<Profile, Failed> {
    let congestion = controller.parse().map_err(|error| Failed(format!("{error}")))?;
    Ok(Profile { congestion, ..Profile::default() })
}

/// Flows of these controllers that begin within half a second, whichever of them first.
fn flows(controllers: &[&str], seed: u64) -> Result<Vec<Flow>, Failed> {
    (0_u64..)
        .zip(controllers)
        .map(|(index, controller)| {
            // A step that has no small period spreads the starts evenly, whatever their number.
            let start = MS * u32::try_from((index * 309 + seed * 131) % 500).unwrap_or(0);
            Ok(Flow { start, ..Flow::new(profile(controller)?) })
        })
        .collect()
}

fn outcomes(plan: &Plan, controllers: &[&str], effort: Effort) -> Result<Vec<Outcome>, Failed> {
    on_all_cores(effort.seeds, |index| run(plan, &flows(controllers, index)?, index + 1))
}

fn plan(mbps: u64, rtt_ms: u64, buffer: f64, loss: f64, effort: Effort) -> Plan {
    Plan {
        warmup: WARMUP,
        duration: Duration::from_secs(effort.seconds),
        ..Plan::new(Bitrate::from_mbps(mbps), Duration::from_millis(rtt_ms), buffer, loss)
    }
}

/// The path of the preset `mobile`: 5 % of packets are lost in each direction.
fn mobile(effort: Effort) -> Plan {
    let mut plan = plan(20, 50, 1.0, 0.05, effort);
    plan.up.loss = plan.down.loss.clone();
    plan
}

fn sum(outcome: &Outcome) -> f64 {
    outcome.flows.iter().map(|flow| flow.goodput / 1e6).sum()
}

fn fairness(outcome: &Outcome) -> f64 {
    jain(&outcome.flows.iter().map(|flow| flow.goodput).collect::<Vec<_>>()).unwrap_or(0.0)
}

/// Share of packets that the senders had to send again, in percent.
#[expect(clippy::cast_precision_loss, reason = "packets of one run")]
fn lost(outcome: &Outcome) -> f64 {
    let [sent, lost] = [|stats: &transport::Stats| stats.packets_sent, |stats: &transport::Stats| stats.packets_lost]
        .map(|counter| outcome.flows.iter().map(|flow| flow.sent(counter)).sum::<u64>() as f64);
    100.0 * lost / sent.max(1.0)
}

fn wait(outcome: &Outcome, quantile: usize) -> f64 {
    outcome.queueing_quantiles[quantile].as_secs_f64() * 1e3
}

fn read(outcomes: &[Outcome], value: impl Fn(&Outcome) -> f64) -> Result<Centre, Failed> {
    centre(&outcomes.iter().map(value).collect::<Vec<_>>())
}

/// One and twenty flows of `auto` on the path of the preset `mobile`, twenty of them compared with CUBIC.
///
/// # Errors
/// When a run cannot be used.
pub fn random_loss(effort: Effort) -> Result<Vec<Finding>, Failed> {
    let plan = mobile(effort);
    let one = outcomes(&plan, &["auto"], effort)?;
    let [many, cubic] = [["auto"; 20], ["cubic"; 20]].map(|names| outcomes(&plan, &names, effort));
    let (many, cubic) = (many?, cubic?);
    let ratio = |value: &dyn Fn(&Outcome) -> f64| {
        centre(&many.iter().zip(&cubic).map(|(auto, cubic)| value(auto) / value(cubic)).collect::<Vec<_>>())
    };
    let path = "20 Mbit/s, 50 ms, 1 BDP, 5 % i.i.d. loss each way";
    let on_path =
        |name: &str, centre, target, unit| finding(format!("{name}; {path}"), centre, target, unit, effort.to_string());
    Ok(vec![
        on_path("goodput of 1 flow", read(&one, sum)?, 15.0..=20.0, "Mbit/s"),
        on_path("queueing delay p95 of 1 flow", read(&one, |run| wait(run, 1))?, at_most(15.0), "ms"),
        on_path("goodput of 20 flows / of 20 with CUBIC", ratio(&sum)?, 1.0..=2.0, ""),
        on_path("RTT p50 of 20 flows / of 20 with CUBIC", ratio(&|run| 50.0 + wait(run, 0))?, at_most(1.0), ""),
        on_path("Jain's index of 20 flows", read(&many, fairness)?, 0.97..=1.0, ""),
    ])
}

/// `auto` beside 1, 4 and 16 flows of CUBIC: its share over a fair one, and the goodput of the CUBIC flows beside it over that beside
/// another CUBIC.
///
/// # Errors
/// When a run cannot be used.
pub fn beside_cubic(rivals: usize, buffer: f64, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let plan = plan(20, 50, buffer, 0.0, effort);
    let mut names = vec!["cubic"; rivals + 1];
    let alike = outcomes(&plan, &names, effort)?;
    names[0] = "auto";
    let mixed = outcomes(&plan, &names, effort)?;
    let others = |run: &Outcome| run.flows[1..].iter().map(|flow| flow.goodput / 1e6).sum::<f64>();
    #[expect(clippy::cast_precision_loss, reason = "a few flows")]
    let fair = |run: &Outcome| run.flows[0].goodput / 1e6 * (rivals + 1) as f64 / sum(run);
    let left: Vec<f64> = mixed.iter().zip(&alike).map(|(mixed, alike)| others(mixed) / others(alike)).collect();
    let path = format!("20 Mbit/s, 50 ms, {buffer} BDP");
    let name = format!("share of auto / fair share beside {rivals} x CUBIC; {path}");
    let detail = format!("{effort}; CUBIC in its place has {:.2} of a fair share", read(&alike, fair)?.0);
    let share = finding(name, read(&mixed, fair)?, 0.5..=1.5, "", detail);
    let name = format!("goodput of {rivals} x CUBIC beside auto / beside CUBIC; {path}");
    Ok(vec![share, finding(name, centre(&left)?, at_least(0.85), "", effort.to_string())])
}

/// Flows of `auto` alone: how they share, and the queue that they keep.
///
/// # Errors
/// When a run cannot be used.
pub fn alike(count: usize, mbps: u64, rtt_ms: u64, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let runs = outcomes(&plan(mbps, rtt_ms, 1.0, 0.0, effort), &vec!["auto"; count], effort)?;
    let detail = format!("{:.1} Mbit/s, {:.2} % lost; {effort}", read(&runs, sum)?.0, read(&runs, lost)?.0);
    let named = |what: &str| format!("{what} of {count} flows; {mbps} Mbit/s, {rtt_ms} ms, 1 BDP");
    Ok(vec![
        finding(named("Jain's index"), read(&runs, fairness)?, 0.97..=1.0, "", detail.clone()),
        finding(named("queueing delay p95"), read(&runs, |run| wait(run, 1))?, TOLD, "ms", detail),
    ])
}

/// Four flows of `auto` whose round-trip times differ by up to a factor of four: Jain's index.
///
/// # Errors
/// When a run cannot be used.
pub fn round_trips(effort: Effort) -> Result<Finding, Failed> {
    let plan = plan(40, 25, 4.0, 0.0, effort);
    let runs = on_all_cores(effort.seeds, |index| {
        let mut flows = flows(&["auto"; 4], index)?;
        // 25, 50, 75 and 100 ms: the access delay counts in both directions.
        for (flow, extra) in flows.iter_mut().zip([0.0, 12.5, 25.0, 37.5]) {
            flow.access = Duration::from_secs_f64(extra / 1e3);
        }
        run(&plan, &flows, index + 1)
    })?;
    let goodput = |place: usize| read(&runs, |run| run.flows[place].goodput / 1e6);
    let [a, b, c, d] = [goodput(0)?.0, goodput(1)?.0, goodput(2)?.0, goodput(3)?.0];
    let name = "Jain's index of 4 flows with 25, 50, 75 and 100 ms; 40 Mbit/s, buffer 100 ms".to_owned();
    let detail = format!("{a:.1}, {b:.1}, {c:.1}, {d:.1} Mbit/s; {effort}");
    Ok(finding(name, read(&runs, fairness)?, 0.97..=1.0, "", detail))
}

/// A policer at a twentieth of the line's rate: goodput over its rate, and retransmissions.
///
/// # Errors
/// When a run cannot be used.
pub fn policer(count: usize, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let mut plan = plan(100, 40, 1.0, 0.0, effort);
    let rate = Bitrate::from_mbps(5);
    let burst = DataSize::from_bytes(30_000);
    plan.down.policer = Some(netem::Policer { rate, burst, udp_only: false });
    let runs = outcomes(&plan, &vec!["auto"; count], effort)?;
    let cubic = outcomes(&plan, &vec!["cubic"; count], effort)?;
    let path = format!("{count} flows; policer of 5 Mbit/s and 30 kB on a line of 100 Mbit/s, 40 ms");
    let named = |what: &str| format!("{what}, {path}");
    let beside = |centre: Centre| format!("CUBIC: {:.2}; {effort}", centre.0);
    let used = |run: &Outcome| sum(run) / 5.0;
    Ok(vec![
        finding(named("goodput / rate of the policer"), read(&runs, used)?, 0.9..=1.0, "", beside(read(&cubic, used)?)),
        finding(named("packets lost"), read(&runs, lost)?, at_most(2.0), "%", beside(read(&cubic, lost)?)),
    ])
}

/// Goodput and queueing delay of [`CONTROLLERS`] on one path: a table, without targets.
///
/// # Errors
/// When a run cannot be used.
pub fn paths(effort: Effort) -> Result<Vec<Finding>, Failed> {
    let cells: [(u64, u64, f64, f64, usize); 8] = [
        (20, 50, 1.0, 0.0, 1),
        (20, 50, 1.0, 0.05, 1),
        (20, 50, 1.0, 0.05, 20),
        (20, 50, 1.0, 0.0, 20),
        (100, 20, 1.0, 0.001, 20),
        (50, 200, 1.0, 0.01, 1),
        (2, 100, 8.0, 0.0, 1),
        (50, 5, 0.5, 0.0, 4),
    ];
    let mut findings = Vec::new();
    for (mbps, rtt, buffer, loss, count) in cells {
        for controller in CONTROLLERS {
            let runs = outcomes(&plan(mbps, rtt, buffer, loss, effort), &vec![controller; count], effort)?;
            let name = format!(
                "{controller} x {count}; {mbps} Mbit/s, {rtt} ms, {buffer} BDP, {} % i.i.d. loss",
                loss * 100.0
            );
            let detail = format!(
                "queueing delay p50 {:.1}, p95 {:.1} ms; {:.2} % lost; Jain {:.3}",
                read(&runs, |run| wait(run, 0))?.0,
                read(&runs, |run| wait(run, 1))?.0,
                read(&runs, lost)?.0,
                read(&runs, fairness)?.0
            );
            findings.push(finding(name, read(&runs, sum)?, TOLD, "Mbit/s", detail));
        }
    }
    Ok(findings)
}
