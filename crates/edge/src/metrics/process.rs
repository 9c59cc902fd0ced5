//! Metrics of the process, under the usual names of exporters for Prometheus, and the version of the program.

use std::sync::atomic::AtomicU64;

use procfs::process::{LimitValue, Process};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, info::Info},
    registry::Registry,
};

/// Metrics of the process, read from the system on demand.
pub(crate) struct ProcessMetrics {
    /// Without the prefix of the gateway's figures.
    pub(super) registry: Registry,
    resident: Gauge,
    virtual_memory: Gauge,
    descriptors: Gauge,
    descriptors_max: Gauge,
    threads: Gauge,
    start: Gauge<f64, AtomicU64>,
    processor: Counter<f64, AtomicU64>,
}

/// The version of the program, for `build_info`.
pub(super) fn build() -> Info<Vec<(&'static str, &'static str)>> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    Info::new(vec![("version", version), ("architecture", architecture), ("profile", profile)])
}

impl ProcessMetrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("process");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let this = Self {
            resident: gauge("resident_memory_bytes", "Memory of the process that is in RAM"),
            virtual_memory: gauge("virtual_memory_bytes", "Address space of the process"),
            descriptors: gauge("open_fds", "File descriptors that are open"),
            descriptors_max: gauge("max_fds", "File descriptors that may be open"),
            threads: gauge("threads", "Threads of the process"),
            start: Gauge::default(),
            processor: Counter::default(),
            registry: Registry::default(),
        };
        registry.register("start_time_seconds", "Start of the process, in seconds since 1970", this.start.clone());
        registry.register("cpu_seconds", "Time of processors that the process has used", this.processor.clone());
        Self { registry, ..this }
    }

    /// Reads the system's values. Missing values do not change.
    pub(crate) fn refresh(&self) {
        let Ok(process) = Process::myself() else { return };
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        if let Ok(stat) = process.stat() {
            self.resident.set(number(stat.rss.saturating_mul(procfs::page_size())));
            self.virtual_memory.set(number(stat.vsize));
            self.threads.set(stat.num_threads);
            let ticks = procfs::ticks_per_second() as f64;
            // Two that ask at the same time may count a tick twice, and never backwards.
            let more = (stat.utime + stat.stime) as f64 / ticks - self.processor.get();
            self.processor.inc_by(more.max(0.0));
            if let Ok(boot) = procfs::boot_time_secs() {
                self.start.set(boot as f64 + stat.starttime as f64 / ticks);
            }
        }
        if let Ok(count) = process.fd_count() {
            self.descriptors.set(number(count as u64));
        }
        if let Ok(limits) = process.limits() {
            let max = match limits.max_open_files.soft_limit {
                LimitValue::Unlimited => u64::MAX,
                LimitValue::Value(max) => max,
            };
            self.descriptors_max.set(number(max));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{SystemTime, UNIX_EPOCH},
    };

    use super::*;

    #[test]
    fn figures_are_those_of_the_system() {
        let metrics = ProcessMetrics::new();
        metrics.refresh();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - 24.0 * 3_600.0..=now + 2.0).contains(&metrics.start.get()), "{}", metrics.start.get());
        assert!((1 << 20..1 << 40).contains(&metrics.resident.get()), "{}", metrics.resident.get());
        assert!(metrics.virtual_memory.get() > metrics.resident.get() && metrics.threads.get() >= 1);
        assert!(metrics.descriptors_max.get() >= metrics.descriptors.get());
        // Other tests open files, too, but not hundreds that stay.
        let before = metrics.descriptors.get();
        let files: Vec<File> = (0..300).map(|_| File::open("/proc/self/stat").unwrap()).collect();
        metrics.refresh();
        assert!(metrics.descriptors.get() >= before + 200, "{} after {before}", metrics.descriptors.get());
        drop(files);
    }
}
