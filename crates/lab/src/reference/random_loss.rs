//! Random loss: gain of a sender that tolerates it, and cost for a neighbour.

use transport::{Profile, recovery::LossTolerance};
use units::{Bitrate, Duration, Probability};

use super::{
    Failed, Finding, centre,
    flows::{Flow, Outcome, Plan, run},
    on_all_cores,
};
use crate::stats::fairness::jain;

/// The tolerance that is measured: well above the loss of the path, well below the largest that a profile takes.
pub const TOLERANCE: f64 = 0.08;
/// 20 Mbit/s and 50 ms: the path of all these measurements.
const RATE: u64 = 20;
const RTT: Duration = Duration::from_millis(50);

/// A profile that passes over random loss up to this share.
///
/// # Errors
/// When there is no such controller or tolerance.
pub(super) fn profile(controller: &str, tolerance: f64) -> Result<Profile, Failed> {
    let failed = |error: &dyn core::fmt::Display| Failed(error.to_string());
    let share = Probability::new(tolerance).map_err(|error| failed(&error))?;
    Ok(Profile {
        congestion: controller.parse().map_err(|error| failed(&error))?,
        random_loss_tolerance: LossTolerance::try_from(share).map_err(|error| failed(&error))?,
        ..Profile::default()
    })
}

/// One flow on a path that loses 5 % at random: goodput, and the queue that it causes.
///
/// # Errors
/// When a run cannot be used, or no loss was judged to be random.
pub fn alone(controller: &'static str, seeds: u64, seconds: u64) -> Result<Vec<Finding>, Failed> {
    let plan = Plan {
        warmup: Duration::from_secs(10),
        duration: Duration::from_secs(seconds),
        ..Plan::new(Bitrate::from_mbps(RATE), RTT, 1.0, 0.05)
    };
    let runs = |tolerance| -> Result<Vec<Outcome>, Failed> {
        on_all_cores(seeds, |index| run(&plan, &[Flow::new(profile(controller, tolerance)?)], index + 1))
    };
    let (plain, tolerant) = (runs(0.0)?, runs(TOLERANCE)?);
    let passed_over = |outcome: &Outcome| outcome.flows[0].sent(|stats| stats.packets_lost_randomly);
    if tolerant.iter().any(|outcome| passed_over(outcome) == 0) || plain.iter().any(|outcome| passed_over(outcome) > 0)
    {
        return Err(Failed("no evidence: packets_lost_randomly says that no loss was passed over".to_owned()));
    }
    let goodput = |runs: &[Outcome]| centre(&runs.iter().map(|run| run.flows[0].goodput / 1e6).collect::<Vec<_>>());
    let queue: Vec<f64> = tolerant.iter().map(|run| run.queueing.as_secs_f64() * 1e3).collect();
    let name = |what: &str| format!("{what}, {controller} with 5 % random loss, {RATE} Mbit/s, 50 ms, 1 BDP");
    let (with, without, queue) = (goodput(&tolerant)?, goodput(&plain)?, centre(&queue)?);
    let detail = format!("{:.2} Mbit/s without tolerance; {seeds} seeds x {seconds} s", without.0);
    let finding = |what, (value, interval), target, unit| Finding {
        name: name(what),
        value,
        interval,
        target,
        unit,
        detail: detail.clone(),
    };
    Ok(vec![
        finding("goodput", with, 10.0..=f64::INFINITY, "Mbit/s"),
        finding("mean wait in the queue", queue, f64::NEG_INFINITY..=10.0, "ms"),
    ])
}

/// Outcome of CUBIC beside a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shared {
    jain: f64,
    /// Goodput of CUBIC in Mbit/s.
    cubic: f64,
}

/// A flow with this tolerance and CUBIC on a path that loses nothing at random, `offset` apart; a negative one lets CUBIC
/// begin.
fn shared(
    controller: &str,
    tolerance: f64,
    buffer: f64,
    offset: f64,
    seconds: u64,
    seed: u64,
) -> Result<Shared, Failed> {
    let plan = Plan {
        warmup: Duration::from_secs(10),
        duration: Duration::from_secs(seconds),
        ..Plan::new(Bitrate::from_mbps(RATE), RTT, buffer, 0.0)
    };
    let later = |offset: f64| Duration::from_secs_f64(offset.max(0.0));
    let one = Flow { start: later(offset), ..Flow::new(profile(controller, tolerance)?) };
    let cubic = Flow { start: later(-offset), ..Flow::new(profile("cubic", 0.0)?) };
    let outcome = run(&plan, &[one, cubic], seed)?;
    let goodputs: Vec<f64> = outcome.flows.iter().map(|flow| flow.goodput).collect();
    let jain = jain(&goodputs).ok_or_else(|| Failed(format!("seed {seed}: nothing was sent")))?;
    Ok(Shared { jain, cubic: goodputs[1] / 1e6 })
}

/// A flow beside CUBIC without random loss, with and without tolerance, begun at `offsets` moments: Jain's index with a buffer of two
/// bandwidth-delay products, and the goodput of CUBIC compared with that beside a neighbour without tolerance.
///
/// # Errors
/// When a run cannot be used.
pub fn beside_cubic(controller: &'static str, buffer: f64, offsets: u64, seconds: u64) -> Result<Vec<Finding>, Failed> {
    let runs = |tolerance| -> Result<Vec<Shared>, Failed> {
        on_all_cores(offsets, |index| {
            #[expect(clippy::cast_precision_loss, reason = "a few offsets")]
            let offset = (index as f64 + 0.5) / offsets as f64 * 6.0 - 3.0;
            shared(controller, tolerance, buffer, offset, seconds, index + 1)
        })
    };
    let (plain, tolerant) = (runs(0.0)?, runs(TOLERANCE)?);
    let read = |runs: &[Shared], read: fn(&Shared) -> f64| centre(&runs.iter().map(read).collect::<Vec<_>>());
    let (before, after) = (read(&plain, |shared| shared.cubic)?.0, read(&tolerant, |shared| shared.cubic)?.0);
    let ratios: Vec<f64> = tolerant.iter().zip(&plain).map(|(with, without)| with.cubic / without.cubic).collect();
    let (value, interval) = centre(&ratios)?;
    let detail = format!(
        "CUBIC gets {after:.2} Mbit/s, {before:.2} beside {controller} without tolerance; {offsets} offsets x {seconds} s"
    );
    let mut findings = vec![Finding {
        name: format!("CUBIC's goodput beside tolerant {controller} / beside plain, {buffer} BDP"),
        value,
        interval,
        target: 0.95..=f64::INFINITY,
        unit: "",
        detail: detail.clone(),
    }];
    if (buffer - 2.0).abs() < f64::EPSILON {
        let (value, interval) = read(&tolerant, |shared| shared.jain)?;
        let name = format!("Jain's index, tolerant {controller} beside CUBIC, {buffer} BDP");
        findings.push(Finding { name, value, interval, target: 0.8..=1.0, unit: "", detail });
    }
    Ok(findings)
}
