//! What asking for fewer acknowledgements saves, and what it costs: the same downloads with and without, seed by seed.

use transport::Profile;
pub use transport::ack_frequency::AckFrequency;
use units::{Bitrate, Duration};

use super::{
    Failed, Finding, centre,
    flows::{Flow, Plan, Told, run},
};

/// A path and a controller on which the policy is compared with asking for nothing.
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

/// The least saving of ACK packets, where nothing is lost.
pub const SAVED: f64 = 0.75;
/// The largest difference in goodput.
pub const GOODPUT: f64 = 0.02;
/// How much later a loss may be found, in round trips.
pub const LATER: f64 = 0.25;

/// How long and how often a cell is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of pairs of runs.
    pub seeds: u64,
    /// Virtual seconds measured in each.
    pub seconds: u64,
}

/// One pair of runs, or all of them: with the policy, as ratios to without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Goodput over goodput.
    pub goodput: f64,
    /// ACK packets saved, of those without.
    pub saved: f64,
    /// How much later losses were found on average, in round trips of the empty path; `None` without losses.
    pub later: Option<f64>,
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
    let one = |ack_frequency| -> Result<Told, Failed> {
        let congestion = cell.controller.parse().map_err(|error| Failed(format!("{error}")))?;
        let profile = Profile { congestion, ack_frequency, ..Profile::default() };
        let mut outcome = run(&plan, &[Flow::new(profile)], seed)?;
        Ok(outcome.flows.remove(0))
    };
    let (without, with) = (one(AckFrequency::Off)?, one(policy)?);
    let last = &with.sender[1];
    if last.ack_requests_acked == 0 || with.receiver[1].ack_requests_received == 0 {
        return Err(Failed(format!("seed {seed}: no evidence of `{policy}`: no request was made and acknowledged")));
    }
    let acks = |told: &Told| count(told.received(|stats| stats.ack_only_packets_sent));
    let found = |told: &Told| {
        let lost = told.sent(|stats| stats.packets_lost);
        (lost > 0).then(|| count(told.sent(|stats| stats.loss_detection_time)) / count(lost) / 1e6)
    };
    let later = found(&with).zip(found(&without)).map(|(with, without)| (with - without) / count(cell.rtt));
    Ok(Compared {
        goodput: with.goodput / without.goodput,
        saved: 1.0 - acks(&with) / acks(&without),
        later,
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
    let pairs: Vec<Compared> =
        (1..=effort.seeds).map(|seed| pair(cell, policy, effort.seconds, seed)).collect::<Result<_, _>>()?;
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
    if !later.is_empty() {
        findings.push(finding("losses found later by", &later, f64::NEG_INFINITY..=LATER, "RTT")?);
    }
    Ok(findings)
}

#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53")]
fn count(count: u64) -> f64 {
    count as f64
}
