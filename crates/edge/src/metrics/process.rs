//! Metrics of the process, under the usual names of exporters for Prometheus, and the version of the program.

use std::{fs, sync::atomic::AtomicU64};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, info::Info},
    registry::Registry,
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
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
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let read = |path| fs::read_to_string(path).ok();
        if let Some(stat) = read("/proc/self/stat").and_then(|text| Stat::parse(&text)) {
            self.resident.set(number(stat.resident_pages.saturating_mul(page_size() as u64)));
            self.virtual_memory.set(number(stat.virtual_memory));
            self.threads.set(number(stat.threads));
            let ticks = clock_ticks_per_second() as f64;
            // Two that ask at the same time may count a tick twice, and never backwards.
            let more = stat.processor_ticks as f64 / ticks - self.processor.get();
            self.processor.inc_by(more.max(0.0));
            if let Some(boot) = read("/proc/stat").and_then(|text| boot_time(&text)) {
                self.start.set(boot as f64 + stat.start_ticks as f64 / ticks);
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One is that of the directory itself.
            self.descriptors.set(number(open.count().saturating_sub(1) as u64));
        }
        self.descriptors_max.set(number(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)));
    }
}

/// Fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    processor_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_memory: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the program is field 2. It is in parentheses, and may have parentheses and spaces itself.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            processor_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_memory: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Start of the system in `/proc/stat`, in seconds since 1970.
fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{SystemTime, UNIX_EPOCH},
    };

    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 4 0 900 8192 3 99 0 0";
        let expected =
            Stat { processor_ticks: 200, threads: 4, start_ticks: 900, virtual_memory: 8_192, resident_pages: 3 };
        for name in ["(edge)", "(a b)", "(a) S 7 (b)", "()"] {
            assert_eq!(Stat::parse(&format!("42 {name} {rest}\n")).as_ref(), Some(&expected), "{name}");
        }
        for cut in ["", "42 (edge)", "42 (edge) S 1 2", "42 edge S"] {
            assert_eq!(Stat::parse(cut), None, "{cut}");
        }
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
        assert_eq!(boot_time("cpu 1 2\n"), None);
    }

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
