//! Resources of a process: processor time and resident memory, as Linux says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinHandle;

#[derive(Clone, Copy)]
pub(crate) struct Meter(u32);

impl Meter {
    pub(crate) fn new(process: u32) -> Self {
        Self(process)
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident(self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0)).expect("the gateway lives");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Processor time of its threads so far, in seconds. The sum of ticks in `stat` is no finer than a hundredth of a second, which
    /// is more than some attacks cost.
    pub(crate) fn cpu(self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0)).expect("the gateway lives");
        let nanoseconds = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        nanoseconds.sum::<f64>() / 1e9
    }

    /// Looks at the memory from now on.
    pub(crate) fn watch(self) -> Watching {
        let peak = Arc::new(AtomicU64::new(0));
        let seen = peak.clone();
        let task = tokio::spawn(async move {
            loop {
                seen.fetch_max(self.resident(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Watching { peak, task }
    }
}

pub(crate) struct Watching {
    peak: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Watching {
    /// The most that was seen, in KiB.
    pub(crate) fn peak(self) -> u64 {
        self.task.abort();
        self.peak.load(Ordering::Relaxed)
    }
}
