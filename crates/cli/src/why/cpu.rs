//! CPU of this client: what the receiving thread used, and how long it waited for a CPU.

use std::time::{Duration, Instant};

use super::evidence::CpuFacts;

/// Clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    at: Instant,
    ran: Duration,
    waited: Duration,
}

impl Clocks {
    /// Reads the clocks of the first thread, on which the runtime of this command is. `None` where the system does not tell.
    pub(super) fn read() -> Option<Self> {
        // proc(5): time on a CPU and time in the run queue, in nanoseconds.
        let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
        let mut words = text.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
        let (ran, waited) = (words.next()?.ok()?, words.next()?.ok()?);
        // A kernel that keeps no such statistics says 0, and this thread has run.
        if ran.is_zero() {
            return None;
        }
        Some(Self { at: Instant::now(), ran, waited })
    }

    /// Shares of the time since then.
    pub(super) fn since(self) -> Option<CpuFacts> {
        let now = Self::read()?;
        let span = now.at.duration_since(self.at).as_secs_f64();
        let share = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / span;
        (span > 0.0).then(|| CpuFacts { ran: share(self.ran, now.ran), waited: share(self.waited, now.waited) })
    }
}
