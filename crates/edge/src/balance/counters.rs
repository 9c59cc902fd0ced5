//! Counters of a load balancer: of each machine, and of what comes to none.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// Counters of one machine. They outlive reloads that keep the machine.
#[derive(Debug, Default)]
pub(crate) struct MachineCounters {
    /// Datagrams that were sent on because their connection ID names the machine.
    pub(crate) routed: AtomicU64,
    /// Datagrams that were sent on by the client's address.
    pub(crate) unroutable: AtomicU64,
    /// Answers that went to clients.
    pub(crate) answered: AtomicU64,
    /// Connections of TCP that the machine has taken.
    pub(crate) connections: AtomicU64,
    /// Connections of TCP that are open.
    pub(crate) open: AtomicU64,
    /// Connections that the machine has not taken: refused, or too late.
    pub(crate) failed: AtomicU64,
    /// Bytes of connections from clients.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes of connections to clients.
    pub(crate) bytes_out: AtomicU64,
}

/// Counters of what belongs to no machine.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Datagrams that came to the machines' side from other addresses than theirs.
    pub(crate) refused: AtomicU64,
    /// Datagrams without a connection ID, and answers without a good header.
    pub(crate) malformed: AtomicU64,
    /// Datagrams that the system did not take.
    pub(crate) unsent: AtomicU64,
    /// Connections of TCP.
    pub(crate) tcp: TcpCounters,
}

/// Ends of connections of TCP that are not their own.
#[derive(Debug, Default)]
pub(crate) struct TcpCounters {
    /// Connections beyond the limit.
    pub(crate) over_limit: AtomicU64,
    /// Connections that no machine has taken.
    pub(crate) untaken: AtomicU64,
    /// Connections that could not be accepted: no descriptor is free.
    pub(crate) unaccepted: AtomicU64,
    /// Connections that both sides have closed.
    pub(crate) completed: AtomicU64,
    /// Connections that the client has reset.
    pub(crate) client_reset: AtomicU64,
    /// Connections that the machine has reset.
    pub(crate) machine_reset: AtomicU64,
    /// Connections on which nothing moved for the idle limit.
    pub(crate) idle: AtomicU64,
    /// Connections that the end of the load balancer has cut off.
    pub(crate) cut: AtomicU64,
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Adds to a counter, which costs nothing where there is nothing to add.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl MachineCounters {
    pub(crate) fn datagrams(&self) -> Value {
        json!({"routed": get(&self.routed), "unroutable": get(&self.unroutable), "answered": get(&self.answered)})
    }

    pub(crate) fn connections(&self) -> Value {
        json!({
            "connections": get(&self.connections),
            "open": get(&self.open),
            "failed": get(&self.failed),
            "bytes_in": get(&self.bytes_in),
            "bytes_out": get(&self.bytes_out),
        })
    }
}

impl TcpCounters {
    /// Counters by the name of the end.
    pub(crate) fn ends(&self) -> [(&'static str, &AtomicU64); 8] {
        [
            ("over_limit", &self.over_limit),
            ("untaken", &self.untaken),
            ("unaccepted", &self.unaccepted),
            ("completed", &self.completed),
            ("client_reset", &self.client_reset),
            ("machine_reset", &self.machine_reset),
            ("idle", &self.idle),
            ("cut", &self.cut),
        ]
    }
}
