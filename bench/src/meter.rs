//! Measurements of one side of a run, and the JSON line it prints.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    sys::{self, CpuTime},
    workload::latency::Latency,
};

/// Role of a process on the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Connects, and sends where something is only sent.
    Client,
    /// Listens, and receives and checks.
    Server,
}

/// UDP datagrams and system calls of one side, where the stack counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: u64,
    /// System calls that sent them; absent where the stack does not count them.
    pub send_calls: Option<u64>,
    /// Datagrams received.
    pub received: u64,
    /// System calls that received them; absent where the stack does not count them.
    pub receive_calls: Option<u64>,
    /// Datagrams known to be lost.
    pub lost: u64,
}

/// The line one side prints when it is done. What a side cannot tell is absent, never zero.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideReport {
    /// Client or server.
    pub role: Role,
    /// Amount between the first clock reading and the last: bytes, handshakes, requests, datagrams, connections.
    pub units: u64,
    /// CPU time, user and system, of that work, in nanoseconds.
    pub cpu_ns: u64,
    /// The user part of it as the kernel estimates, in nanoseconds.
    pub user_ns: u64,
    /// The system part of it as the kernel estimates, in nanoseconds.
    pub system_ns: u64,
    /// Wall time of that work, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of the whole process, with its start, in nanoseconds.
    pub process_cpu_ns: u64,
    /// Places at which content was compared with what was sent.
    #[serde(default)]
    pub content_samples: u64,
    /// The receive buffer that the kernel granted, in bytes of its own count.
    #[serde(default)]
    pub socket_buffer: Option<u64>,
    /// Datagrams on the network, the handshakes included.
    #[serde(default)]
    pub datagrams: Option<Datagrams>,
    /// Signatures that a server made for those units.
    #[serde(default)]
    pub signatures: Option<u64>,
    /// Key agreements of those units.
    #[serde(default)]
    pub key_agreements: Option<u64>,
    /// Units whose session was resumed.
    #[serde(default)]
    pub resumed: Option<u64>,
    /// Units whose request was accepted as early data.
    #[serde(default)]
    pub early: Option<u64>,
    /// By how much the process's resident memory grew, in bytes.
    #[serde(default)]
    pub memory_growth: Option<u64>,
    /// Requests per second that the stack answers when it is asked for as many as it can.
    #[serde(default)]
    pub capacity: Option<f64>,
    /// Latencies of requests, by condition.
    #[serde(default)]
    pub latencies: Option<Vec<Latency>>,
}

/// Reads the clocks when the work begins and when it is done.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    first: (Instant, CpuTime),
    last: (Instant, CpuTime),
}

impl Meter {
    /// The work begins.
    pub fn start() -> Self {
        let now = (Instant::now(), sys::process_cpu());
        Self { first: now, last: now }
    }

    /// The work is done.
    pub fn stop(&mut self) {
        self.last = (Instant::now(), sys::process_cpu());
    }

    /// The report of this side; the CPU time of the whole process is read here.
    pub fn report(&self, role: Role, units: u64) -> SideReport {
        let (first, last) = (self.first.1, self.last.1);
        SideReport {
            role,
            units,
            cpu_ns: last.total_ns.saturating_sub(first.total_ns),
            user_ns: last.user_ns.saturating_sub(first.user_ns),
            system_ns: last.system_ns.saturating_sub(first.system_ns),
            wall_ns: nanos(self.last.0 - self.first.0),
            process_cpu_ns: sys::process_cpu().total_ns,
            content_samples: 0,
            socket_buffer: None,
            datagrams: None,
            signatures: None,
            key_agreements: None,
            resumed: None,
            early: None,
            memory_growth: None,
            capacity: None,
            latencies: None,
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Resident memory of this process, in bytes.
pub fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is no number")?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_shows() {
        let before = resident_bytes().unwrap();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let grown = resident_bytes().unwrap() - before;
        assert!(grown >= 60 << 20, "{grown} for {} bytes", block.len());
    }
}
