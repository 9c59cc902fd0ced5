//! Conditions of a round.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// A condition under which a binary runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Condition {
    /// As it is.
    Plain,
    /// Beside four busy loops.
    Busy,
    /// All threads on one core.
    OneCore,
    /// Stopped three quarters of the time; every other round beside four busy loops.
    Slow,
}

impl Condition {
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::Busy, Self::OneCore, Self::Slow];

    /// Prepares the thread that starts the rounds.
    pub(super) fn settle(self) -> Result<()> {
        if self != Self::OneCore {
            return Ok(());
        }
        one_core()
    }

    /// Time that a round runs and then stands still, repeatedly.
    pub(super) fn duty(self) -> Option<(Duration, Duration)> {
        (self == Self::Slow).then_some((Duration::from_millis(5), Duration::from_millis(15)))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Busy => "busy",
            Self::OneCore => "one-core",
            Self::Slow => "slow",
        })
    }
}

/// Binds the calling thread, and what it starts, to the last of the cores that it may use.
#[allow(unsafe_code, reason = "the standard library does not bind threads to cores")]
fn one_core() -> Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of cores is plain bits, and all zeros are an empty one.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of that size, which lives through the call; 0 is the calling thread.
    let asked = unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) };
    ensure!(asked == 0, "cannot ask for the cores: {}", std::io::Error::last_os_error());
    // SAFETY: the numbers are below the number of bits of a set.
    let mut cores = (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &allowed) });
    let last = cores.next_back().context("there is no core")?;
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::CPU_SET(last, &mut one) };
    // SAFETY: as above; the set is only read.
    let bound = unsafe { libc::sched_setaffinity(0, size, &raw const one) };
    ensure!(bound == 0, "cannot stay on one core: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Busy loops that want four cores. They end when it is dropped.
pub(super) struct Busy {
    stop: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
}

impl Busy {
    pub(super) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let loops = (0..4).map(|_| {
            thread::spawn({
                let stop = stop.clone();
                move || spin(stop)
            })
        });
        Self { loops: loops.collect(), stop }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for spin in self.loops.drain(..) {
            let _ = spin.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_what_children_inherit() {
        let settled = thread::spawn(|| {
            Condition::OneCore.settle().unwrap();
            std::process::Command::new("nproc").output().unwrap().stdout
        });
        assert_eq!(String::from_utf8(settled.join().unwrap()).unwrap().trim(), "1");
    }

    #[test]
    fn busy_loops_end() {
        let busy = Busy::start();
        assert_eq!(busy.loops.len(), 4);
        drop(busy);
    }
}
