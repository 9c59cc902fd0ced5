//! Known properties of BBR: goodput under random loss, queueing delay, shares of two flows.
//!
//! BBRv1 sends a quarter more than the path delivers in one round of eight, and so keeps its rate under every loss below 1 - 1 / 1.25 = 20
//! %. BBRv3 treats a loss of more than 2 % of a flight as too much in flight, and its goodput collapses beyond that. Neither lets the queue
//! grow with the buffer.

use transport::{
    Profile,
    congestion::{Algorithm, PathModel},
};
use units::{Bitrate, Duration};

use super::{
    Failed, Finding, TOLD, centre, figure, finding,
    flows::{self, Flow, Plan},
    on_all_cores, runs, scaled, scenario,
};
use crate::{figure::Figure, scenario::Scenario, stats::fairness::jain};

/// Length and number of a cell's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of seeds, or of start offsets.
    pub seeds: u32,
    /// Virtual seconds measured in each run.
    pub seconds: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { seeds: 10, seconds: 60 }
    }
}

/// A controller, the loss rate, and the required goodput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The controller.
    pub controller: &'static str,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Least and most Mbit/s.
    pub target: (f64, f64),
}

const fn cell(controller: &'static str, loss: f64, low: f64, high: f64) -> Cell {
    Cell { controller, loss, target: (low, high) }
}

/// 50 Mbit/s, 100 ms, a buffer of one bandwidth-delay product: both versions below, at and beyond the loss at which they collapse.
pub const CELLS: [Cell; 8] = [
    cell("bbr1", 0.01, 40.0, 50.0),
    cell("bbr1", 0.10, 30.0, 50.0),
    cell("bbr1", 0.15, 25.0, 50.0),
    // 1.25 x (1 - 0.25) < 1: each cycle finds less than the one before.
    cell("bbr1", 0.25, 0.0, 15.0),
    cell("bbr3", 0.0, 40.0, 50.0),
    cell("bbr3", 0.01, 37.0, 50.0),
    cell("bbr3", 0.05, 0.0, 25.0),
    cell("bbr3", 0.10, 0.0, 8.0),
];

/// Runs a cell: its goodput.
///
/// # Errors
/// When a run cannot be used.
pub fn loss(cell: Cell, effort: Effort) -> Result<Finding, Failed> {
    let records = runs(&lossy(cell, effort)?, cell.controller)?;
    let goodputs = records.iter().map(|record| figure(record, Figure::Goodput)).collect::<Result<Vec<f64>, _>>()?;
    let goodputs: Vec<f64> = goodputs.iter().map(|goodput| goodput / 1e6).collect();
    let (value, interval) = centre(&goodputs)?;
    let (least, most) = goodputs.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &one| (a.min(one), b.max(one)));
    Ok(Finding {
        name: format!("{} at {} % loss", cell.controller, cell.loss * 100.0),
        value,
        interval,
        target: cell.target.0..=cell.target.1,
        unit: "Mbit/s",
        detail: format!(
            "50 Mbit/s, 100 ms, 1 BDP; {least:.1} to {most:.1} over {} seeds x {} s",
            effort.seeds, effort.seconds
        ),
    })
}

/// Loss rates around a cliff, in ascending order, its expected place, and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cliff {
    /// The controller.
    pub controller: &'static str,
    /// Shares of lost packets at which goodput is measured.
    pub losses: &'static [f64],
    /// Range of the cliff.
    pub target: (f64, f64),
}

/// BBRv1 near 1 - 1 / 1.25 = 20 %, BBRv3 near its threshold of 2 %.
pub const CLIFFS: [Cliff; 2] = [
    Cliff { controller: "bbr1", losses: &[0.15, 0.18, 0.20, 0.22, 0.25], target: (0.17, 0.23) },
    Cliff { controller: "bbr3", losses: &[0.01, 0.015, 0.02, 0.03, 0.05], target: (0.01, 0.03) },
];

/// Cliff: the loss at which goodput falls below half of the rate that the loss leaves of the path's 50 Mbit/s, in per cent, interpolated
/// linearly between the two measured ones. The interval is that of the cliffs of single seeds.
///
/// # Errors
/// When a run cannot be used, or there is no cliff between the losses.
pub fn cliff(cliff: Cliff, effort: Effort) -> Result<Finding, Failed> {
    // Goodput over what is left, by loss and seed.
    let mut shares = Vec::new();
    for &loss in cliff.losses {
        let records = runs(&lossy(cell(cliff.controller, loss, 0.0, 50.0), effort)?, cliff.controller)?;
        let goodputs = records.iter().map(|record| figure(record, Figure::Goodput));
        shares
            .push(goodputs.map(|goodput| Ok(goodput? / (50e6 * (1.0 - loss)))).collect::<Result<Vec<f64>, Failed>>()?);
    }
    let crossing = |share: &dyn Fn(usize) -> f64| -> Option<f64> {
        let place = (1..cliff.losses.len()).find(|&place| share(place) < 0.5 && share(place - 1) >= 0.5)?;
        let (low, high) = (share(place - 1), share(place));
        let along = (low - 0.5) / (low - high);
        Some(100.0 * (cliff.losses[place - 1] + along * (cliff.losses[place] - cliff.losses[place - 1])))
    };
    let medians = shares.iter().map(|shares| Ok(centre(shares)?.0)).collect::<Result<Vec<f64>, Failed>>()?;
    let value = crossing(&|place| medians[place]);
    let value =
        value.ok_or_else(|| Failed(format!("{}: no cliff between the losses: {medians:?}", cliff.controller)))?;
    let single: Vec<f64> = (0..shares[0].len()).filter_map(|seed| crossing(&|place| shares[place][seed])).collect();
    let seen: Vec<String> = cliff
        .losses
        .iter()
        .zip(&medians)
        .map(|(loss, share)| format!("{:.1} Mbit/s at {} %", share * 50.0 * (1.0 - loss), loss * 100.0))
        .collect();
    Ok(Finding {
        name: format!("{}: loss at which half of the rest is used", cliff.controller),
        value,
        interval: centre(&single)?.1,
        target: 100.0 * cliff.target.0..=100.0 * cliff.target.1,
        unit: "%",
        detail: format!("50 Mbit/s, 100 ms, 1 BDP; {}; {} seeds x {} s", seen.join(", "), effort.seeds, effort.seconds),
    })
}

fn lossy(cell: Cell, effort: Effort) -> Result<Scenario, Failed> {
    scenario(&format!(
        r#"
name = "bbr-loss"
title = "Random loss on a wide path"
about = "BBR's answer to loss."
[path.down]
rate = "50 Mbit/s"
queue = "625 kB"
delay = "50 ms"
loss = "{} %"
[path.up]
rate = "50 Mbit/s"
queue = "625 kB"
delay = "50 ms"
[traffic]
workload = "bulk"
connections = 1
start-spread = "100 ms"
[run]
warmup = "10 s"
duration = "{} s"
seeds = {}
"#,
        cell.loss * 100.0,
        effort.seconds,
        effort.seeds
    ))
}

/// Buffers in bandwidth-delay products.
pub const BUFFERS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// Time that packets of one BBRv3 download wait, in bandwidth-delay products: the 99th percentile, which bounds the 95th.
///
/// # Errors
/// When a run cannot be used.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred thousand bytes")]
pub fn queue(buffer: f64, effort: Effort) -> Result<Finding, Failed> {
    let bytes = (buffer * 125_000.0) as u64;
    let scenario = scenario(&format!(
        r#"
name = "bbr-queue"
title = "One BBRv3 download through a drop-tail queue"
about = "A queue that does not follow the buffer."
[path.down]
rate = "20 Mbit/s"
queue = "{bytes} B"
delay = "25 ms"
[path.up]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[traffic]
workload = "bulk"
connections = 1
start-spread = "100 ms"
[run]
warmup = "5 s"
duration = "{} s"
seeds = {}
"#,
        effort.seconds, effort.seeds
    ))?;
    let records = runs(&scenario, "bbr3")?;
    let waits = records.iter().map(|record| figure(record, Figure::QueueDelayP99)).collect::<Result<Vec<f64>, _>>()?;
    let goodputs = records.iter().map(|record| figure(record, Figure::Goodput)).collect::<Result<Vec<f64>, _>>()?;
    let waits: Vec<f64> = waits.iter().map(|wait| wait / 0.05).collect();
    let (value, interval) = centre(&waits)?;
    Ok(Finding {
        name: format!("bbr3, buffer of {buffer} BDP, p99 wait"),
        value,
        interval,
        target: 0.0..=1.5,
        unit: "BDP",
        detail: format!(
            "20 Mbit/s, 50 ms; {:.2} Mbit/s; {} seeds x {} s",
            centre(&goodputs)?.0 / 1e6,
            effort.seeds,
            effort.seconds
        ),
    })
}

/// Two BBRv3 downloads, the second of which begins later: Jain's index of their goodput, over start offsets.
///
/// # Errors
/// When a run cannot be used.
pub fn fairness(effort: Effort) -> Result<Finding, Failed> {
    let plan = Plan {
        warmup: Duration::from_secs(20),
        duration: Duration::from_secs(effort.seconds.into()),
        ..Plan::new(Bitrate::from_mbps(20), Duration::from_millis(50), 1.0, 0.0)
    };
    let profile = Profile { name: "bbr3".to_owned(), congestion: Algorithm::Bbr3, ..Profile::default() };
    let indices = on_all_cores(effort.seeds.into(), |offset| {
        // Offsets of 0.1 s to some seconds, none a multiple of another.
        let start = Duration::from_millis(100 + 437 * offset);
        let pair = [Flow::new(profile.clone()), Flow { start, ..Flow::new(profile.clone()) }];
        let outcome = flows::run(&plan, &pair, offset + 1)?;
        let goodputs: Vec<f64> = outcome.flows.iter().map(|flow| flow.goodput).collect();
        jain(&goodputs).ok_or_else(|| Failed("nothing was delivered".to_owned()))
    })?;
    let (value, interval) = centre(&indices)?;
    let least = indices.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Finding {
        name: "two bbr3 flows, Jain's index".to_owned(),
        value,
        interval,
        target: 0.95..=1.0,
        unit: "",
        detail: format!(
            "20 Mbit/s, 50 ms, 1 BDP; {least:.3} at the least over {} start offsets x {} s",
            effort.seeds, effort.seconds
        ),
    })
}

/// Sum of the path models of BBRv3 flows on one path with a queue of one bandwidth-delay product.
///
/// Each flow keeps the largest delivery rate of two cycles, and once in a cycle sends a quarter more. Flows that probe at different times
/// all keep the highest rate that each has reached: the sum exceeds the rate of the link.
///
/// # Errors
/// When a run cannot be used.
pub fn many(count: usize, rate: Bitrate, rtt: Duration, effort: Effort) -> Result<Vec<Finding>, Failed> {
    let plan = Plan {
        warmup: Duration::from_secs(15),
        duration: Duration::from_secs(effort.seconds.into()),
        ..Plan::new(rate, rtt, 1.0, 0.0)
    };
    let outcomes = on_all_cores(effort.seeds.into(), |seed| {
        let profile = Profile { congestion: Algorithm::Bbr3, ..Profile::default() };
        let flow = |index: u32| Flow {
            start: Duration::from_millis(u64::from(index) * 37 % 500),
            ..Flow::new(profile.clone())
        };
        let flows: Vec<Flow> = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(flow).collect();
        flows::run(&plan, &flows, seed + 1)
    })?;
    let sums = |read: &dyn Fn(&PathModel) -> f64| {
        let sum = |run: &flows::Outcome| run.flows.iter().filter_map(|flow| flow.model.as_ref()).map(read).sum::<f64>();
        centre(&outcomes.iter().map(sum).collect::<Vec<_>>())
    };
    #[expect(clippy::cast_precision_loss, reason = "rates, and bytes of a few windows")]
    let (link, product, flows) = (
        rate.as_bps() as f64,
        rate.in_time(rtt).as_bytes() as f64,
        outcomes.first().map_or(1, |run| run.flows.len()) as f64,
    );
    let share = |(value, interval), of: f64| scaled((value, interval), 1.0 / of, 0.0);
    #[expect(clippy::cast_precision_loss, reason = "rates below 2^53 bit/s")]
    let rates = share(sums(&|model| model.max_bandwidth.as_bps() as f64)?, link);
    let times = share(sums(&|model| model.min_rtt.map_or(0.0, |rtt| rtt.as_secs_f64()))?, flows * rtt.as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "bytes of a few windows")]
    let extra = share(sums(&|model| model.extra_acked as f64)?, product);
    let median = centre(&outcomes.iter().map(|run| run.queueing_quantiles[0].as_secs_f64() * 1e3).collect::<Vec<_>>())?;
    let path = format!("{count} x bbr3; {rate}, {} ms, 1 BDP", rtt.as_millis());
    let told = |what: &str, value, unit| {
        let detail = format!("{} seeds x {} s after 15 s", effort.seeds, effort.seconds);
        finding(format!("{what}; {path}"), value, TOLD, unit, detail)
    };
    Ok(vec![
        told("sum of the bandwidths kept / rate of the link", rates, ""),
        told("mean of the smallest RTTs kept / propagation delay", times, ""),
        told("sum of the bytes allowed for aggregation / BDP", extra, ""),
        told("queueing delay p50", median, "ms"),
    ])
}
