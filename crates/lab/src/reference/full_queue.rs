//! Delay of a full queue: a sender that fills the buffer until packets are lost makes packets wait for the time in which the buffer drains,
//! whatever its size.

use super::{Failed, Finding, centre, figure, runs, scenario};
use crate::{figure::Figure, scenario::Scenario};

/// Distance of the 99th percentile below the buffer at most, as a share of the buffer. It may not lie above.
pub const TOLERANCE: f64 = 0.04;

/// Buffers in bandwidth-delay products of the path.
pub const BUFFERS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// One bandwidth-delay product: 20 Mbit/s × 50 ms.
const BDP_BYTES: f64 = 125_000.0;
/// The time that it takes to send.
const BDP_SECONDS: f64 = 0.05;

/// Length and number of the runs of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of seeds.
    pub seeds: u32,
    /// Virtual seconds measured in each run.
    pub seconds: u32,
}

impl Default for Effort {
    /// CUBIC fills a buffer of four bandwidth-delay products about every eight seconds.
    fn default() -> Self {
        Self { seeds: 6, seconds: 60 }
    }
}

/// Fills a buffer with one CUBIC download: the 99th percentile of the time that packets waited in it, as a share of the
/// time that the full buffer takes to drain.
///
/// # Errors
/// When a run cannot be used.
pub fn measure(buffer_bdp: f64, effort: Effort) -> Result<Finding, Failed> {
    let records = runs(&path(buffer_bdp, effort)?, "cubic")?;
    let full = buffer_bdp * BDP_SECONDS;
    let p99 = records.iter().map(|record| figure(record, Figure::QueueDelayP99)).collect::<Result<Vec<f64>, _>>()?;
    let goodputs = records.iter().map(|record| figure(record, Figure::Goodput)).collect::<Result<Vec<f64>, _>>()?;
    let shares: Vec<f64> = p99.iter().map(|p99| p99 / full).collect();
    let (value, interval) = centre(&shares)?;
    Ok(Finding {
        name: format!("cubic, buffer of {buffer_bdp} BDP, p99 wait / buffer"),
        value,
        interval,
        target: 1.0 - TOLERANCE..=1.0,
        unit: "",
        detail: format!(
            "p99 {:.2} ms of {:.0} ms, {:.2} Mbit/s; {} seeds x {} s",
            centre(&p99)?.0 * 1e3,
            full * 1e3,
            centre(&goodputs)?.0 / 1e6,
            effort.seeds,
            effort.seconds
        ),
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred thousand bytes")]
fn path(buffer_bdp: f64, effort: Effort) -> Result<Scenario, Failed> {
    let bytes = (buffer_bdp * BDP_BYTES) as u64;
    scenario(&format!(
        r#"
name = "full-queue"
title = "One CUBIC download through a drop-tail queue"
about = "Bufferbloat is the size of the buffer."
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
warmup = "15 s"
duration = "{} s"
seeds = {}
"#,
        effort.seconds, effort.seeds
    ))
}
