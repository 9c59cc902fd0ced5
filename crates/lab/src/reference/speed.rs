//! Cost of a simulated second: virtual seconds per second of one core, with a full bottleneck of 20 Mbit/s.

use std::{fs, time::Instant};

use super::{Failed, Finding, centre, scenario, stack};
use crate::{record::RunOutcome, run::run_one};

/// Least speed, in virtual seconds per second.
pub const TARGET: f64 = 30.0;

/// Runs one CUBIC download for `seconds` virtual seconds, `rounds` times in a row on this thread.
///
/// Counts the CPU time of the thread, so that other programs on the machine change little; where the system does not provide it, the
/// elapsed time.
///
/// # Errors
/// When a run cannot be used.
pub fn measure(seconds: u32, rounds: u32) -> Result<Finding, Failed> {
    let scenario = scenario(&format!(
        r#"
name = "speed"
title = "One download that fills 20 Mbit/s"
about = "What simulating costs."
[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
duration = "{seconds} s"
seeds = 1
"#
    ))?;
    let contender = stack("cubic")?;
    let (mut speeds, mut packets, mut events) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        let stopwatch = Stopwatch::start();
        let record = run_one(&scenario, contender.as_ref(), u64::from(round) + 1, None);
        let spent = stopwatch.seconds();
        if let RunOutcome::Failed(reason) = record.outcome {
            return Err(Failed(reason));
        }
        (packets, events) = (record.trace.packets, record.events);
        speeds.push(record.virtual_seconds / spent);
    }
    let (value, interval) = centre(&speeds)?;
    Ok(Finding {
        name: "simulation speed at 20 Mbit/s".to_owned(),
        value,
        interval,
        target: TARGET..=f64::INFINITY,
        unit: "virtual s/s",
        detail: format!(
            "{rounds} runs of {seconds} virtual s on one thread, {packets} packets and {events} events each, in {}",
            if busy_nanos().is_some() { "CPU time" } else { "wall-clock time" }
        ),
    })
}

/// Time of the thread on its core, or of the wall clock.
struct Stopwatch {
    busy: Option<u64>,
    started: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self { busy: busy_nanos(), started: Instant::now() }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of a measurement")]
    fn seconds(&self) -> f64 {
        let busy = self.busy.zip(busy_nanos()).map(|(before, after)| after.saturating_sub(before) as f64 / 1e9);
        busy.filter(|seconds| *seconds > 0.0).unwrap_or_else(|| self.started.elapsed().as_secs_f64())
    }
}

/// Nanoseconds that this thread has spent on a core, as Linux counts them.
fn busy_nanos() -> Option<u64> {
    fs::read_to_string("/proc/thread-self/schedstat").ok()?.split_whitespace().next()?.parse().ok()
}
