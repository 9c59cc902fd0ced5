//! Environment of a matrix: data that a reader needs for its evaluation, beside the records, which are independent of the machine.

use std::{fs, path::Path, process::Command};

/// Settings of the system that move kernel TCP and sockets.
const SETTINGS: [&str; 8] = [
    "net.ipv4.tcp_congestion_control",
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_slow_start_after_idle",
];

/// Names and values, in the order in which they are shown.
pub(super) fn collect(lab: &str) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let first = |path: &str, key: &str| {
        let line = read(path)?.lines().find(|line| line.starts_with(key))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let commit = || {
        let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok();
    let build = if cfg!(debug_assertions) { "debug" } else { "optimised" };
    let entries = [
        ("program", Some(lab.to_owned())),
        ("build", Some(build.to_owned())),
        ("commit of the build", option_env!("TIDERACE_COMMIT").map(str::to_owned)),
        ("commit of the directory it was run in", commit()),
        ("command", Some(std::env::args().collect::<Vec<_>>().join(" "))),
        ("seconds since 1970", now.map(|now| now.as_secs().to_string())),
        ("system", Some(format!("{} {}", std::env::consts::OS, std::env::consts::ARCH))),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("processor", first("/proc/cpuinfo", "model name")),
        ("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string())),
        ("memory", first("/proc/meminfo", "MemTotal")),
        ("frequency governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("load at the start", read("/proc/loadavg")),
    ];
    let settings = SETTINGS.map(|name| (name, read(&format!("/proc/sys/{}", name.replace('.', "/")))));
    entries.into_iter().chain(settings).filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Writes the metadata beside the records. A file that cannot be written is no reason not to run.
pub(super) fn store(records: &Path, metadata: &[(String, String)]) {
    let map: serde_json::Map<String, serde_json::Value> =
        metadata.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    if let Ok(text) = serde_json::to_string_pretty(&map) {
        let _ = fs::write(beside(records), text + "\n");
    }
}

/// Reads the metadata of records, if there are any.
pub(super) fn load(records: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(beside(records)).unwrap_or_default();
    let map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    map.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect()
}

fn beside(records: &Path) -> std::path::PathBuf {
    records.with_extension("meta.json")
}
