//! Tolerance of random loss where losses are none: many flows that have it, and flows of CUBIC beside them.

use transport::{Profile, recovery::LossTolerance};
use units::{Bitrate, Duration};

use super::{
    Failed, Finding,
    auto::Effort,
    centre, finding,
    flows::{Flow, Outcome, Plan, run},
    on_all_cores,
    random_loss::profile,
};
use crate::stats::fairness::jain;

/// Link that is shared.
struct Path {
    mbps: u64,
    rtt: Duration,
    /// In bandwidth-delay products.
    buffer: f64,
    /// Share of packets lost at random in each direction.
    loss: f64,
}

impl core::fmt::Display for Path {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} Mbit/s, {} ms, {} BDP", self.mbps, self.rtt.as_millis(), self.buffer)?;
        if self.loss > 0.0 { write!(f, ", {} % i.i.d. loss", 100.0 * self.loss) } else { Ok(()) }
    }
}

/// The path of the preset `production`.
const PRODUCTION: Path = Path { mbps: 100, rtt: Duration::from_millis(20), buffer: 1.0, loss: 0.001 };
/// A buffer of 5 ms.
const SHORT: Path = Path { mbps: 50, rtt: Duration::from_millis(40), buffer: 0.125, loss: 0.0 };

/// Runs with flows of these profiles, whose starts are spread over this time.
fn outcomes(
    path: &Path,
    profiles: &[Profile],
    spread: Duration,
    warmup: Duration,
    effort: Effort,
) -> Result<Vec<Outcome>, Failed> {
    let plan = Plan {
        warmup,
        duration: Duration::from_secs(effort.seconds),
        ..Plan::new(Bitrate::from_mbps(path.mbps), path.rtt, path.buffer, path.loss)
    };
    on_all_cores(effort.seeds, |seed| {
        let flows: Vec<Flow> = (0_u64..)
            .zip(profiles)
            // A step that has no small period spreads the starts evenly, whatever their number.
            .map(|(index, profile)| {
                let start = spread * u32::try_from((index * 309 + seed * 131) % 500).unwrap_or(0) / 500;
                Flow { start, ..Flow::new(profile.clone()) }
            })
            .collect();
        run(&plan, &flows, seed + 1)
    })
}

/// Share of packets that the senders had to send again, in percent.
#[expect(clippy::cast_precision_loss, reason = "packets of one run")]
fn lost(outcome: &Outcome) -> f64 {
    let [sent, lost] = [|stats: &transport::Stats| stats.packets_sent, |stats: &transport::Stats| stats.packets_lost]
        .map(|counter| outcome.flows.iter().map(|flow| flow.sent(counter)).sum::<u64>() as f64);
    100.0 * lost / sent.max(1.0)
}

fn fairness(outcome: &Outcome) -> f64 {
    jain(&outcome.flows.iter().map(|flow| flow.goodput).collect::<Vec<_>>()).unwrap_or(0.0)
}

/// Flows that pass over 15 % of random loss, alike: Jain's index, beside that of flows without a tolerance. On the path of `production` young and
/// settled, and behind a short buffer.
///
/// # Errors
/// When a run cannot be used.
pub fn alike(controller: &str, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let mut findings = vec![young(controller, effort.seeds)?];
    for (path, count) in [(PRODUCTION, 30), (SHORT, 20)] {
        findings.push(shared(controller, &path, count, [Duration::from_secs(5), Duration::from_secs(20)], effort)?);
    }
    Ok(findings)
}

/// Thirty such flows on the path of `production` in their first seven seconds.
///
/// # Errors
/// When a run cannot be used.
pub fn young(controller: &str, seeds: u64) -> Result<Finding, Failed> {
    let times = [Duration::from_millis(200), Duration::from_secs(2)];
    shared(controller, &PRODUCTION, 30, times, Effort { seeds, seconds: 5 })
}

/// Jain's index of flows whose starts are spread over the first of these times, measured after the second.
fn shared(
    controller: &str,
    path: &Path,
    count: usize,
    [spread, warmup]: [Duration; 2],
    effort: Effort,
) -> Result<Finding, Failed> {
    let runs = |tolerance| outcomes(path, &vec![profile(controller, tolerance)?; count], spread, warmup, effort);
    let (plain, tolerant) = (runs(0.0)?, runs(LossTolerance::MOST)?);
    let read = |runs: &[Outcome], value: fn(&Outcome) -> f64| centre(&runs.iter().map(value).collect::<Vec<_>>());
    let warmup = warmup.as_secs_f64();
    let name = format!("Jain's index of {count} x {controller}, tolerance 15 %; {path}, after {warmup} s");
    let detail = format!(
        "without tolerance {:.3}; lost {:.2} %, without {:.2} %; {} seeds x {} s",
        read(&plain, fairness)?.0,
        read(&tolerant, lost)?.0,
        read(&plain, lost)?.0,
        effort.seeds,
        effort.seconds
    );
    Ok(finding(name, read(&tolerant, fairness)?, 0.95..=1.0, "", detail))
}

/// As many flows of CUBIC as flows that pass over 15 % of random loss, on a link without any: share of CUBIC over a fair one. The tolerant
/// ones begin within the first five seconds, as CUBIC does.
///
/// # Errors
/// When a run cannot be used.
pub fn beside_cubic(controller: &str, buffer: f64, effort: Effort) -> Result<Finding, Failed> {
    let path = Path { buffer, loss: 0.0, ..PRODUCTION };
    let runs = |tolerance| {
        let pair = [profile(controller, tolerance)?, profile("cubic", 0.0)?];
        let profiles: Vec<Profile> = pair.iter().cycle().take(16).cloned().collect();
        outcomes(&path, &profiles, Duration::from_secs(5), Duration::from_secs(20), effort)
    };
    let (plain, tolerant) = (runs(0.0)?, runs(LossTolerance::MOST)?);
    let left = |runs: &[Outcome]| {
        let share = |run: &Outcome| {
            let goodputs = |first| run.flows.iter().skip(first).step_by(2).map(|flow| flow.goodput).sum::<f64>();
            let (others, cubic) = (goodputs(0), goodputs(1));
            2.0 * cubic / (others + cubic)
        };
        centre(&runs.iter().map(share).collect::<Vec<_>>())
    };
    let name = format!("share of 8 x cubic / fair share beside 8 x {controller}, tolerance 15 %; {path}");
    let detail = format!("{:.2} beside the same without tolerance; {effort}", left(&plain)?.0);
    Ok(finding(name, left(&tolerant)?, 0.4..=2.0, "", detail))
}

/// One flow with 5 % of random loss, which has to remain tolerated: goodput with a tolerance of 15 %.
///
/// # Errors
/// When a run cannot be used.
pub fn alone(controller: &str, effort: Effort) -> Result<Finding, Failed> {
    let path = Path { mbps: 20, rtt: Duration::from_millis(50), buffer: 1.0, loss: 0.05 };
    let runs = |tolerance| {
        let profiles = [profile(controller, tolerance)?];
        outcomes(&path, &profiles, Duration::ZERO, Duration::from_secs(4), effort)
    };
    let goodput = |runs: &[Outcome]| centre(&runs.iter().map(|run| run.flows[0].goodput / 1e6).collect::<Vec<_>>());
    let (plain, tolerant) = (goodput(&runs(0.0)?)?, goodput(&runs(LossTolerance::MOST)?)?);
    let name = format!("goodput of 1 x {controller}, tolerance 15 %; {path}");
    Ok(finding(name, tolerant, 15.0..=20.0, "Mbit/s", format!("without tolerance {:.2}; {effort}", plain.0)))
}
