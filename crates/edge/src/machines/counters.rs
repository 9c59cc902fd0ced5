//! Counters of datagrams between machines.

use std::sync::atomic::AtomicU64;

use crate::balance::counters::get;

/// Counters of one machine. They outlive reloads that keep it.
#[derive(Debug, Default)]
pub(super) struct MachineCounters {
    /// Datagrams of clients that were sent to the machine.
    pub(super) forwarded: AtomicU64,
    /// Answers of the machine that were sent to clients.
    pub(super) answered: AtomicU64,
    /// Datagrams of clients that the machine has forwarded here.
    pub(super) received: AtomicU64,
}

impl MachineCounters {
    /// Counters by direction.
    pub(super) fn all(&self) -> [(&'static str, u64); 3] {
        [("forwarded", get(&self.forwarded)), ("answered", get(&self.answered)), ("received", get(&self.received))]
    }
}

/// Datagrams that were dropped, by reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    /// Datagrams of another machine's connection that were forwarded before.
    pub(super) again: AtomicU64,
    /// Datagrams beyond the rate.
    pub(super) rate: AtomicU64,
    /// Datagrams that the system did not take.
    pub(super) unsent: AtomicU64,
    /// Answers that came from another address than that of a machine.
    pub(super) stranger: AtomicU64,
    /// Answers without a good header.
    pub(super) malformed: AtomicU64,
}

impl Drops {
    /// Counters by reason.
    pub(super) fn all(&self) -> [(&'static str, u64); 5] {
        [
            ("again", get(&self.again)),
            ("rate", get(&self.rate)),
            ("unsent", get(&self.unsent)),
            ("stranger", get(&self.stranger)),
            ("malformed", get(&self.malformed)),
        ]
    }
}
