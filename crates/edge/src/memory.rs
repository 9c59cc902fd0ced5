//! Memory that clients can make the process hold: one budget for all listeners, and the reaction when it is used up.
//!
//! The transport refuses and closes QUIC connections itself, because it charges the same budget. TCP connections are listed here: new ones
//! are refused when three quarters are used, and those that hold most are closed when all of it is used. Memory that a flood has left in
//! the allocator is returned to the system.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tiderace::{Charge, ConnectionBudget, ProcessBudget};
use tokio::sync::Notify;

use crate::{
    admission::Admission,
    metrics::{Metrics, ReasonLabel},
};

/// Interval between checks of the memory in use.
const LOOK: Duration = Duration::from_millis(250);
/// Charge of a new TCP connection: TLS and the buffers of HTTP.
const BASE: u64 = 32 * 1024;
/// Memory is returned from the allocator to the system if this much less is held than at the last peak, …
const MUCH_LESS: u64 = 8 << 20;
/// … and if this much less is held when nothing of that size has happened for a while, …
const LESS: u64 = 1 << 20;
const A_WHILE: Duration = Duration::from_secs(4);
/// … but not more often than this: it locks the allocator.
const AT_MOST: Duration = Duration::from_secs(1);
/// Assumed memory where neither the machine nor a cgroup states a size.
const UNKNOWN: u64 = 4 << 30;

/// The budget of the process, and its connections over TCP.
pub(crate) struct Memory {
    process: ProcessBudget,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    connections: HashMap<u64, Entry>,
}

struct Entry {
    budget: ConnectionBudget,
    close: Arc<Notify>,
}

/// A connection over TCP, as long as this is kept.
pub(crate) struct Listed {
    memory: Arc<Memory>,
    number: u64,
    /// Memory budget of the client.
    pub(crate) budget: ConnectionBudget,
    /// Notification that the connection is to be closed.
    pub(crate) close: Arc<Notify>,
    _base: Charge,
}

impl Memory {
    /// A budget of this number of bytes; 0 is a quarter of the memory of the machine, or of the cgroup of this process.
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let bytes = if bytes == 0 { available() / 4 } else { bytes };
        Arc::new(Self { process: ProcessBudget::new(bytes), list: Mutex::default() })
    }

    pub(crate) fn process(&self) -> &ProcessBudget {
        &self.process
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a TCP connection that may hold this number of bytes. `None` if memory is scarce.
    pub(crate) fn enlist(self: &Arc<Self>, bytes: u64) -> Option<Listed> {
        if self.process.is_scarce() {
            return None;
        }
        let budget = ConnectionBudget::new(bytes.max(2 * BASE), &self.process);
        let base = budget.charge(BASE)?;
        let close = Arc::new(Notify::new());
        let mut list = self.list();
        let number = list.next;
        list.next += 1;
        list.connections.insert(number, Entry { budget: budget.clone(), close: close.clone() });
        Some(Listed { memory: self.clone(), number, budget, close, _base: base })
    }

    /// Closes the connections over TCP that hold most while all of the budget is held. Gives their number.
    fn shed(&self) -> u64 {
        if !self.process.is_exhausted() {
            return 0;
        }
        let list = self.list();
        let mut all: Vec<&Entry> = list.connections.values().filter(|entry| entry.budget.held() > BASE).collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.budget.held()));
        // What they hold is given back by their tasks; until below three quarters there is room for those who hold little.
        let mut excess = self.process.held().saturating_sub(self.process.limit() - self.process.limit() / 4);
        let mut closed = 0;
        for entry in all {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(entry.budget.held());
            entry.close.notify_one();
            closed += 1;
        }
        closed
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.memory.list().connections.remove(&self.number);
    }
}

/// Schedule for asking the allocator to give memory back.
struct Trimming {
    peak: u64,
    last: Instant,
    /// Repeat after a while, because some memory is always freed late.
    again: bool,
}

impl Trimming {
    fn is_due(&mut self, held: u64, now: Instant) -> bool {
        self.peak = self.peak.max(held);
        let (less, since) = (self.peak - held, now - self.last);
        let is_down = less >= MUCH_LESS && since >= AT_MOST || less >= LESS && since >= A_WHILE;
        let due = is_down || self.again && since >= A_WHILE;
        if due {
            *self = Self { peak: held, last: now, again: is_down };
        }
        due
    }
}

/// Watches the budget until its last user is gone.
pub(crate) async fn watch(memory: Weak<Memory>, admission: Arc<Admission>, metrics: Arc<Metrics>) {
    let mut trimming = Trimming { peak: 0, last: Instant::now(), again: false };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(memory) = memory.upgrade() else { return };
        let closed = memory.shed();
        metrics.memory.closed.get_or_create(&ReasonLabel { reason: "exhausted" }).inc_by(closed);
        // Connections hold what is not charged, too.
        let held = memory.process.held() + admission.total() as u64 * BASE;
        drop(memory);
        if trimming.is_due(held, Instant::now()) {
            // Not on a thread that serves: the allocator is locked meanwhile.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

/// Gives what the allocator has free back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the allocator of the C library has no other door")]
fn trim() {
    // SAFETY: the function may be called at any time, from any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves, or do not let themselves be asked.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

/// Bytes of memory that this process may use: the machine's, or the limit of its cgroups if that is less.
fn available() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let limits =
        root.join(own).ancestors().take_while(|path| path.starts_with(root)).map(Path::to_owned).collect::<Vec<_>>();
    let limits =
        limits.iter().filter_map(|path| std::fs::read_to_string(path.join("memory.max")).ok()?.trim().parse().ok());
    limits.chain(machine).min().unwrap_or(UNKNOWN)
}

/// Bytes of memory according to `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_refused_when_memory_is_scarce_and_those_that_hold_most_closed_when_it_is_used_up() {
        let memory = Memory::new(1_000_000);
        let [small, large] = [(); 2].map(|()| memory.enlist(1_000_000).unwrap());
        let held = small.budget.charge(100_000).unwrap();
        let mut much = large.budget.charge(600_000).unwrap();
        assert!(memory.enlist(1_000).is_none(), "three quarters are held");
        assert_eq!(memory.shed(), 0);
        much.set(900_000);
        assert_eq!(memory.shed(), 1);
        let is_told = |listed: &Listed| {
            let mut told = Box::pin(listed.close.notified());
            told.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
        };
        assert!(is_told(&large) && !is_told(&small));
        drop((much, large));
        assert_eq!(memory.process.held(), 100_000 + BASE);
        assert!(memory.enlist(1_000).is_some());
        drop((held, small));
        assert_eq!((memory.process.held(), memory.list().connections.len()), (0, 0));
    }

    #[test]
    fn the_allocator_is_asked_after_a_peak_and_not_too_often() {
        let start = Instant::now();
        let mut trimming = Trimming { peak: 0, last: start, again: false };
        let mut due = |held: u64, ms| trimming.is_due(held << 20, start + Duration::from_millis(ms));
        assert!(!due(100, 2_000) && !due(95, 2_250), "little has gone");
        assert!(due(80, 2_500) && !due(60, 2_750), "a second has not passed");
        assert!(due(60, 3_500) && !due(60, 4_500), "nothing has gone since");
        assert!(due(60, 8_000), "what is freed late");
        assert!(!due(60, 20_000));
    }

    #[test]
    fn what_a_machine_has() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16000 kB\n"), Some(16_384_000));
        assert_eq!(total("MemTotal: much"), None);
        assert!(available() > 0);
    }
}
