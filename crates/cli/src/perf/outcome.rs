//! Outcome of a client's run: connections, errors and transfers.

use std::{collections::BTreeMap, time::Duration};

use super::{
    datagrams::Datagrams,
    fec,
    interval::Interval,
    report::{Cpu, Sender},
    requests, tcp,
    transfer::Delivered,
};
use crate::meter::soak::Soak;

/// Outcome of the connections so far.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) attempted: u32,
    pub(super) established: u32,
    pub(super) completed: u32,
    pub(super) handshakes: Vec<Duration>,
    pub(super) errors: BTreeMap<String, u32>,
}

impl Tally {
    pub(super) fn established(&mut self, handshake: Duration) {
        self.attempted += 1;
        self.established += 1;
        self.handshakes.push(handshake);
    }

    pub(super) fn error(&mut self, error: &impl ToString) {
        *self.errors.entry(error.to_string()).or_default() += 1;
    }
}

/// Result of the transfer.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) download: Option<Delivered>,
    pub(super) upload: Option<Delivered>,
    pub(super) sender: Option<Sender>,
    pub(super) fec: Vec<fec::Direction>,
    /// Directions over the kernel's TCP.
    pub(super) tcp: Vec<tcp::Direction>,
    /// Directions of datagrams.
    pub(super) datagrams: Vec<Datagrams>,
    /// Connections for one request each.
    pub(super) requests: Vec<requests::Connections>,
    pub(super) cpu: Option<Cpu>,
    /// CPU time of the server, of a run beside others.
    pub(super) server_cpu: Option<Cpu>,
    pub(super) intervals: Vec<Interval>,
    /// Figures and memory over time.
    pub(super) soak: Option<Soak>,
    /// Ctrl-C came before the end.
    pub(super) is_partial: bool,
}
