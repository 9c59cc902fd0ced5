//! Load of the machine: waiting until it is quiet, and the CPU time of others during a run.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::sys::{self, Who};

/// The machine counts as quiet while others use less than this share of one CPU.
pub const QUIET_CORES: f64 = 0.06;
/// Time that one look at the load takes.
const LOOK: Duration = Duration::from_millis(500);

/// CPU time of the machine and of our own processes, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    at: Instant,
    busy_ns: u64,
    stolen_ns: u64,
    ours_ns: u64,
}

/// Load by others between two moments, in CPUs (1 = one CPU busy all the time).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foreign {
    /// Used by processes that are not ours.
    pub cores: f64,
    /// Taken by the host from this virtual machine, as far as the host tells.
    pub stolen_cores: f64,
}

impl Load {
    /// Reads the clocks. Our own time counts children only once they have ended.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let (busy, stolen) = busy_ticks(&text).context("/proc/stat has no line for all CPUs")?;
        let tick_ns = 1_000_000_000 / sys::ticks_per_second();
        let ours = [Who::Myself, Who::Children].map(sys::rusage_ns);
        Ok(Self {
            at: Instant::now(),
            busy_ns: busy * tick_ns,
            stolen_ns: stolen * tick_ns,
            ours_ns: ours.iter().map(|(user, system)| user + system).sum(),
        })
    }

    /// Load by others since `self`.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a few minutes fit")]
    pub fn foreign_since(&self) -> Result<Foreign> {
        let now = Self::read()?;
        let wall = (now.at - self.at).as_nanos().max(1) as f64;
        let busy = now.busy_ns.saturating_sub(self.busy_ns);
        let ours = now.ours_ns.saturating_sub(self.ours_ns);
        Ok(Foreign {
            cores: busy.saturating_sub(ours) as f64 / wall,
            stolen_cores: now.stolen_ns.saturating_sub(self.stolen_ns) as f64 / wall,
        })
    }
}

/// Busy and stolen ticks of all CPUs together.
///
/// Stolen time is apart: it is the host's doing. Guest time is contained in user time and not added again.
fn busy_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some((user + nice + system + irq + softirq, steal))
}

/// Waits until others use less than [`QUIET_CORES`], at most for `patience`.
///
/// Returns what they used when the wait ended; above the limit, the patience ran out.
pub fn wait_until_quiet(patience: Duration) -> Result<f64> {
    let start = Instant::now();
    loop {
        let before = Load::read()?;
        sleep(LOOK);
        let foreign = before.foreign_since()?.cores;
        if foreign < QUIET_CORES || start.elapsed() >= patience {
            return Ok(foreign);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_of_all_cpus() {
        let stat = "cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\nintr 1\n";
        assert_eq!(busy_ticks(stat), Some((163, 8)));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7 8 0 0\n"), None);
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
    }

    #[test]
    fn own_work_is_not_foreign() {
        let before = Load::read().unwrap();
        let start = sys::process_cpu().total_ns;
        // Long enough that a tick of /proc/stat more or less does not matter.
        while sys::process_cpu().total_ns - start < 200_000_000 {
            std::hint::spin_loop();
        }
        let total = Load::read().unwrap();
        assert!(total.ours_ns - before.ours_ns >= 190_000_000, "{before:?} {total:?}");
    }

    #[test]
    fn the_wait_is_bounded() {
        let start = Instant::now();
        let foreign = wait_until_quiet(Duration::ZERO).unwrap();
        assert!(foreign >= 0.0);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
