//! What one side of a run measures about itself, and the JSON line it prints.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sys::{self, CpuTime};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The client: it connects and sends.
    Sender,
    /// The server: it receives and checks.
    Receiver,
}

/// UDP datagrams and system calls of one side, where the stack counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: u64,
    /// System calls that sent them.
    pub send_calls: u64,
    /// Datagrams received.
    pub received: u64,
    /// System calls that received them; absent where the stack does not count them.
    pub receive_calls: Option<u64>,
    /// Datagrams known to be lost.
    pub lost: u64,
}

/// The line one side prints when it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideReport {
    /// Sender or receiver.
    pub role: Role,
    /// Application bytes moved.
    pub bytes: u64,
    /// CPU time, user and system, from the first byte to the last, in nanoseconds.
    pub transfer_cpu_ns: u64,
    /// The user part of it as the kernel estimates, in nanoseconds.
    pub transfer_user_ns: u64,
    /// The system part of it as the kernel estimates, in nanoseconds.
    pub transfer_system_ns: u64,
    /// Wall time from the first byte to the last, in nanoseconds.
    pub transfer_wall_ns: u64,
    /// CPU time of the whole process, with start and handshake, in nanoseconds.
    pub process_cpu_ns: u64,
    /// Places at which the content was compared with what was sent; zero on the sender.
    pub content_samples: u64,
    /// The receive buffer that the kernel granted, in bytes of its own count; absent where it sizes itself.
    pub socket_buffer: Option<u64>,
    /// Absent when the stack does not count them.
    pub datagrams: Option<Datagrams>,
}

/// Reads the clocks at the first and the last byte of one side.
pub struct Meter {
    first: (Instant, CpuTime),
    last: (Instant, CpuTime),
}

impl Meter {
    /// Call immediately before the first byte is written, or when the first byte was read.
    pub fn first_byte() -> Self {
        let now = (Instant::now(), sys::process_cpu());
        Self { first: now, last: now }
    }

    /// Call when the receiver has read everything, or when the sender has its answer.
    pub fn last_byte(&mut self) {
        self.last = (Instant::now(), sys::process_cpu());
    }

    /// The report of this side; the CPU time of the whole process is read here.
    pub fn report(&self, role: Role, bytes: u64) -> SideReport {
        let (first, last) = (self.first.1, self.last.1);
        SideReport {
            role,
            bytes,
            transfer_cpu_ns: last.total_ns.saturating_sub(first.total_ns),
            transfer_user_ns: last.user_ns.saturating_sub(first.user_ns),
            transfer_system_ns: last.system_ns.saturating_sub(first.system_ns),
            transfer_wall_ns: nanos(self.last.0 - self.first.0),
            process_cpu_ns: sys::process_cpu().total_ns,
            content_samples: 0,
            socket_buffer: None,
            datagrams: None,
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
