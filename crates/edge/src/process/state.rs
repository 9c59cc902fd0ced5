//! State of a process that others ask about, and metrics of upgrades.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use serde_json::{Value, json};
use tiderace::SocketStats;

use super::Process;
use crate::{
    config::Config,
    metrics::{ProcessLabel, ReasonLabel},
};

impl Process {
    /// Number of the process: how many have served, each an upgrade of the one before.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether another process serves.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over.borrow().is_done()
    }

    pub(crate) fn config(&self) -> Config {
        self.shared.current().config.clone()
    }

    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.services.metrics().and_then(|(_, socket)| socket.local_addr().ok())
    }

    /// Connections of all kinds; those over QUIC also before their handshake is complete, and until they are drained.
    pub(crate) fn open_connections(&self) -> u64 {
        let listeners = self.listeners.secure();
        let quic: usize = listeners.values().map(|listener| listener.endpoint().open_connections()).sum();
        (quic.max(self.shared.admission.total())) as u64
    }

    /// Informs all endpoints about the processes with connections at their addresses.
    pub(crate) fn tell_siblings(&self) {
        let (listeners, mut retained) = (self.listeners.secure(), self.listeners.retained());
        retained.retain(|address, _| self.siblings.need(address));
        for (address, listener) in listeners.iter().chain(retained.iter()) {
            self.siblings.tell(*address, listener.endpoint());
        }
    }

    /// Follows the older processes, and informs the endpoints when one has ended.
    pub(super) fn follow_siblings(self: &Arc<Self>) {
        let process = Arc::downgrade(self);
        self.siblings.follow(move |ended| {
            let Some(process) = process.upgrade() else { return };
            if let Some(ended) = ended {
                process.siblings.remove(ended);
            }
            process.tell_siblings();
        });
    }

    /// Brings the metrics of older processes and of other machines up to date.
    pub(crate) fn count_siblings(&self) {
        let metrics = &self.shared.metrics.upgrade;
        metrics.connections.clear();
        for (process, _, report) in self.siblings.status() {
            let label = ProcessLabel { process };
            metrics.connections.get_or_create(&label).set(report.connections.unwrap_or_default().cast_signed());
        }
        metrics.kernel_steering.set(i64::from(self.steering_fault().is_none()));
        let sum = self.socket_stats();
        for (reason, count) in [("datagrams", sum.datagrams), ("reads", sum.reads)] {
            self.shared.metrics.quic.received.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        for (reason, count) in [
            ("sent", sum.sibling_sent),
            ("no-room", sum.sibling_dropped),
            ("gone", sum.sibling_gone),
            ("received", sum.sibling_received),
            ("steered", sum.steered),
            ("misdirected", sum.misdirected),
        ] {
            metrics.datagrams.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        self.shared.persistent.machines.count(&self.shared.metrics.other_machines, sum.proxied_dropped);
    }

    /// Steering of packets to older processes by the kernel, or the reason why there is none at some address; reads that had to be forwarded.
    pub(super) fn kernel_steering(&self) -> Value {
        let fault = self.steering_fault();
        json!({"on": fault.is_none(), "reason": fault, "forwarded": self.socket_stats().sibling_sent})
    }

    fn steering_fault(&self) -> Option<String> {
        let listeners = self.listeners.secure();
        listeners.values().find_map(|listener| listener.endpoint().steering_fault().map(str::to_owned))
    }

    /// Counters of all UDP sockets together.
    pub(super) fn socket_stats(&self) -> SocketStats {
        let mut sum = SocketStats::default();
        for listener in self.listeners.secure().values().chain(self.listeners.retained().values()) {
            sum += listener.endpoint().socket_stats();
        }
        sum
    }

    /// Upgrades as an operator has ordered: `{}`, or `{"program": PATH}`.
    pub(crate) async fn ordered_upgrade(self: &Arc<Self>, order: &str) -> Value {
        let order: Value = match serde_json::from_str(order) {
            Ok(order) => order,
            Err(error) => return json!({"error": format!("the order cannot be read: {error}")}),
        };
        match self.upgrade(order["program"].as_str().map(PathBuf::from)).await {
            Ok(pid) => json!({"process": self.number() + 1, "pid": pid}),
            Err(error) => json!({"error": error.to_string(), "hint": error.hint()}),
        }
    }
}
