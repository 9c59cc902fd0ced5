//! CPU time: that of the machine, of other programs, and of the host below a virtual machine.

use std::fs;

use super::sys;

/// CPU time up to a moment, in seconds of all cores together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// Seconds that there were: cores × time.
    pub total: f64,
    /// Seconds that were used.
    pub used: f64,
    /// Seconds that a host took away from this virtual machine.
    pub stolen: f64,
    /// Seconds that this process used, kernel included, and the programs that it had started and that have ended.
    pub own: f64,
}

impl CpuTime {
    /// Reads the counters of the system; zero where it has none.
    pub fn now() -> Self {
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self::read(&machine, &own, sys::ticks_per_second())
    }

    #[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ticks")]
    fn read(machine: &str, own: &str, per_second: u64) -> Self {
        let seconds = |ticks: u64| ticks as f64 / per_second as f64;
        let columns: Vec<u64> = machine
            .lines()
            .next()
            .into_iter()
            .flat_map(str::split_whitespace)
            .skip(1)
            .map(|column| column.parse().unwrap_or(0))
            .collect();
        let column = |index: usize| columns.get(index).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
        let stolen = column(7);
        let used: u64 = [0, 1, 2, 5, 6].map(column).iter().sum();
        let total = used + stolen + column(3) + column(4);
        // The name in parentheses may have spaces in it. From behind it: state is 0, user time 11, system time 12; 13 and 14 are
        // those of children that have ended.
        let fields: Vec<&str> = own.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let own: u64 = [11, 12, 13, 14].iter().filter_map(|&index| fields.get(index)?.parse::<u64>().ok()).sum();
        Self { total: seconds(total), used: seconds(used), stolen: seconds(stolen), own: seconds(own) }
    }

    /// Use between two moments, as shares of the machine.
    pub fn since(&self, before: &Self) -> Load {
        let total = self.total - before.total;
        let share = |part: f64| if total > 0.0 { (part / total).clamp(0.0, 1.0) } else { 0.0 };
        let own = self.own - before.own;
        Load {
            foreign: share(self.used - before.used - own),
            stolen: share(self.stolen - before.stolen),
            own_seconds: own,
        }
    }
}

/// CPU time between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of the machine that other processes used, from 0 to 1.
    pub foreign: f64,
    /// Share that a host took away from this virtual machine, from 0 to 1.
    pub stolen: f64,
    /// Seconds that this process used, and the programs that it had started and that have ended.
    pub own_seconds: f64,
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu() -> u64 {
    sys::thread_cpu()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_whole_machine() {
        let own = |ticks: u32| format!("7 (a b) c) R 1 2 3 4 5 6 7 8 9 10 {ticks} 2 2 1 20");
        let before = CpuTime::read("cpu  100 0 100 700 50 0 0 50 9 9\ncpu0 1", &own(10), 100);
        let after = CpuTime::read("cpu  200 0 150 730 50 0 0 70 9 9\ncpu0 1", &own(110), 100);
        assert!((before.total - 10.0).abs() < 1e-9 && (before.own - 0.15).abs() < 1e-9, "{before:?}");
        // 200 ticks passed: 150 used of which 100 by this process, 20 stolen.
        let load = after.since(&before);
        assert!((load.foreign - 0.25).abs() < 1e-9 && (load.stolen - 0.1).abs() < 1e-9, "{load:?}");
        assert!((load.own_seconds - 1.0).abs() < 1e-9, "{load:?}");
    }

    #[test]
    fn this_machine_has_counters() {
        let now = CpuTime::now();
        assert!(now.total > 0.0 && now.used > 0.0, "{now:?}");
    }
}
