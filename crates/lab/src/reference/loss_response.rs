//! Goodput under random loss: NewReno and CUBIC compared with the average windows of RFC 9438 §5.1.
//!
//! The model has no timeouts, slow start or bottleneck. The path is therefore wide (50 Mbit/s where the model predicts 1.4 to 4.4), the
//! loss at most 1 %, and the start is not measured.

use super::{Failed, Finding, centre, figure, runs, scenario};
use crate::{figure::Figure, measure::LinkWindow, record::Record, scenario::Scenario, stats::distribution::to_f64};

/// Distance of the median from the model at most.
pub const TOLERANCE: f64 = 0.25;

/// Round-trip time of the path in seconds. The model is asked with it; the bottleneck is never full, so the connections
/// see hardly more.
const RTT: f64 = 0.1;

/// A controller and the share of packets that is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// `newreno` or `cubic`.
    pub controller: &'static str,
    /// Probability that a packet is lost.
    pub loss: f64,
}

/// The cells that the model is compared in.
pub const CELLS: [Cell; 4] = [
    Cell { controller: "newreno", loss: 0.001 },
    Cell { controller: "newreno", loss: 0.01 },
    Cell { controller: "cubic", loss: 0.001 },
    Cell { controller: "cubic", loss: 0.01 },
];

/// Length and number of a cell's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of seeds.
    pub seeds: u32,
    /// Virtual seconds measured in each run.
    pub seconds: u32,
}

impl Default for Effort {
    /// At 0.1 % loss a reduction comes every three seconds, so 100 s average over some 35 of them in each of 16 runs.
    fn default() -> Self {
        Self { seeds: 16, seconds: 100 }
    }
}

/// The average window of the model in segments.
pub fn model_window(controller: &str, rtt_seconds: f64, loss: f64) -> f64 {
    // RFC 9438 §5.1: the average window of Reno with delayed losses at regular distance, figure 5.
    let reno = 1.2 / loss.sqrt();
    // RFC 9438 §5.1: that of CUBIC with C = 0.4, figure 6; where Reno would be larger, CUBIC is to behave as Reno does.
    let cubic = 1.054 * (rtt_seconds / loss).powf(0.75);
    if controller == "cubic" { reno.max(cubic) } else { reno }
}

/// Runs a cell: the ratio of its goodput to the model's.
///
/// # Errors
/// When a run cannot be used.
pub fn measure(cell: Cell, effort: Effort) -> Result<Finding, Failed> {
    let records = runs(&path(cell, effort)?, cell.controller)?;
    let goodputs = records.iter().map(|record| figure(record, Figure::Goodput)).collect::<Result<Vec<f64>, _>>()?;
    let models = records.iter().map(|record| model(cell, record)).collect::<Result<Vec<f64>, _>>()?;
    let ratios: Vec<f64> = goodputs.iter().zip(&models).map(|(goodput, model)| goodput / model).collect();
    let count = |read: fn(&LinkWindow) -> u64| -> f64 {
        to_f64(usize::try_from(records.iter().map(|record| read(&record.link)).sum::<u64>()).unwrap_or(usize::MAX))
    };
    let (value, interval) = centre(&ratios)?;
    Ok(Finding {
        name: format!("{} at {} % loss, goodput / model", cell.controller, cell.loss * 100.0),
        value,
        interval,
        target: 1.0 - TOLERANCE..=1.0 + TOLERANCE,
        unit: "",
        detail: format!(
            "{:.2} Mbit/s, model {:.2}; {} seeds x {} s, {:.3} % of packets lost",
            centre(&goodputs)?.0 / 1e6,
            centre(&models)?.0 / 1e6,
            effort.seeds,
            effort.seconds,
            count(|link| link.dropped_loss) / count(|link| link.offered) * 100.0
        ),
    })
}

/// The model's goodput in bits per second, with the run's own payload per packet.
fn model(cell: Cell, record: &Record) -> Result<f64, Failed> {
    let sum = |read: fn(&crate::record::ConnectionRecord) -> Option<u64>| -> Option<f64> {
        let sum: Option<u64> = record.connections.iter().map(read).sum();
        sum.map(|sum| to_f64(usize::try_from(sum).unwrap_or(usize::MAX)))
    };
    let (bytes, packets) = (sum(|c| c.stream_bytes_sent), sum(|c| c.packets_sent));
    match (bytes, packets) {
        (Some(bytes), Some(packets)) if packets > 0.0 => {
            Ok(model_window(cell.controller, RTT, cell.loss) * (bytes / packets) * 8.0 / RTT)
        }
        _ => Err(Failed(format!("seed {}: the payload per packet is not known", record.seed))),
    }
}

/// One download over 50 Mbit/s, 100 ms, a buffer of one bandwidth-delay product. Acknowledgements are not lost.
fn path(cell: Cell, effort: Effort) -> Result<Scenario, Failed> {
    // Written out, as in `bbr`: each reference reads as its path, and the two answer to different documents.
    scenario(&format!(
        r#"
name = "loss-response"
title = "Random loss on a wide path"
about = "RFC 9438 §5.1."
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
warmup = "20 s"
duration = "{} s"
seeds = {}
"#,
        cell.loss * 100.0,
        effort.seconds,
        effort.seeds
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_rfc() {
        // RFC 9438 tables 1 and 2: RTT 0.1 s and 0.01 s, packet loss 1e-2 to 1e-8, C = 0.4.
        for (loss, reno, cubic) in [
            (1e-2, 12.0, 12.0),
            (1e-3, 38.0, 38.0),
            (1e-4, 120.0, 187.0),
            (1e-5, 379.0, 1_054.0),
            (1e-8, 12_000.0, 187_400.0),
        ] {
            let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.015;
            assert!(close(model_window("newreno", 0.1, loss), reno), "{loss}");
            assert!(close(model_window("cubic", 0.1, loss), cubic), "{loss} {}", model_window("cubic", 0.1, loss));
        }
        assert!((model_window("cubic", 0.01, 1e-7) / 5_926.0 - 1.0).abs() < 0.01);
    }
}
