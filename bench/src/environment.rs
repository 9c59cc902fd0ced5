//! Environment of a measurement.

use std::{fs, thread::available_parallelism};

use serde::Serialize;

/// The machine and its settings.
#[derive(Debug, Serialize)]
pub struct Environment {
    /// The processor's name.
    pub processor: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The congestion control that kernel TCP uses.
    pub tcp_congestion_control: String,
    /// `GLIBC_TUNABLES`, which contenders inherit: it can change what a copy costs (see the README).
    pub glibc_tunables: Option<String>,
}

impl Environment {
    /// Asks the kernel; what it does not say is "unknown".
    pub fn read() -> Self {
        let read = |path| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let unknown = || "unknown".to_owned();
        let processor = read("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Self {
            processor: processor.unwrap_or_else(unknown),
            cpus: available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown()),
            tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|_| unknown()),
            glibc_tunables: std::env::var("GLIBC_TUNABLES").ok().filter(|value| !value.is_empty()),
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let tunables = self.glibc_tunables.as_ref().map(|value| format!(", GLIBC_TUNABLES={value}"));
        format!(
            "{}, {} CPUs, Linux {}, TCP with {}{}",
            self.processor,
            self.cpus,
            self.kernel,
            self.tcp_congestion_control,
            tunables.unwrap_or_default()
        )
    }
}
