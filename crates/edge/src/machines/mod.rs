//! Other machines that serve the same address, without a load balancer in between that finds the machine of a connection. A packet that arrives at
//! the wrong machine is forwarded to the one that its connection ID names, with the client's address in front, as `tiderace balance` does it.
//!
//! `link` forwards for a listener, within the rate of `rate`, and `answers` come back; `counters` has what came of it. A datagram that has
//! the header already is not forwarded again, so tables that contradict each other make no loop.

mod answers;
mod counters;
mod link;
mod rate;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tiderace::transport::quic_lb::ServerId;
use tokio::task::AbortHandle;

pub(crate) use self::link::MachineLink;
use self::{
    counters::{Drops, MachineCounters},
    rate::ByteRate,
};
use crate::{
    balance::{
        counters::get,
        health::{self, Asked, Health, HealthState},
    },
    config::LoadBalancer,
    metrics::{MachineLabel, MachineLabels, OtherMachineMetrics, ReasonLabel},
};

/// Time between health checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Health checks in a row without an answer by which a machine is down.
const FAILURES: u32 = 3;
/// A process that has handed over waits so long for further answers of other machines.
const ANSWERS_END: Duration = Duration::from_secs(3);

/// Another machine.
pub(crate) struct OtherMachine {
    server_id: ServerId,
    address: SocketAddr,
    health: HealthState,
    counters: Arc<MachineCounters>,
}

impl Asked for OtherMachine {
    fn server_id(&self) -> ServerId {
        self.server_id
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> &HealthState {
        &self.health
    }
}

/// The other machines of a configuration.
#[derive(Default)]
struct Table {
    all: Vec<OtherMachine>,
    by_id: HashMap<ServerId, usize>,
    by_address: HashMap<SocketAddr, usize>,
    by_ip: HashMap<IpAddr, usize>,
    /// Bytes per second that are forwarded.
    rate: u64,
}

impl Table {
    /// The table of a configuration. Machines of `before` keep their health and counters.
    fn new(config: &LoadBalancer, before: &Self) -> Self {
        let machine = |(server_id, address)| {
            let known = before.of_id(&server_id).filter(|known| known.address == address);
            let health = known.map(|known| known.health.clone()).unwrap_or_default();
            let counters = known.map(|known| known.counters.clone()).unwrap_or_default();
            OtherMachine { server_id, address, health, counters }
        };
        let all: Vec<OtherMachine> = config.others().map(machine).collect();
        let numbered = || all.iter().enumerate();
        let by_id = numbered().map(|(number, machine)| (machine.server_id, number)).collect();
        let by_address = numbered().map(|(number, machine)| (machine.address, number)).collect();
        let by_ip = numbered().map(|(number, machine)| (machine.address.ip(), number)).collect();
        Self { by_id, by_address, by_ip, all, rate: config.forward_rate.0 }
    }

    fn of_id(&self, id: &ServerId) -> Option<&OtherMachine> {
        self.all.get(*self.by_id.get(id)?)
    }

    fn at(&self, address: SocketAddr) -> Option<&OtherMachine> {
        self.all.get(*self.by_address.get(&SocketAddr::new(address.ip().to_canonical(), address.port()))?)
    }

    /// Returns whether a machine may hold connections. When none of several answers, the checks are not believed.
    fn may_hold(&self, id: &ServerId) -> bool {
        let is_up = |machine: &OtherMachine| machine.health.get() != Health::Down;
        self.of_id(id).is_some_and(|machine| is_up(machine) || self.all.len() > 1 && !self.all.iter().any(is_up))
    }
}

/// The other machines, over all reloads.
pub(crate) struct Machines {
    table: RwLock<Arc<Table>>,
    rate: ByteRate,
    drops: Drops,
    /// Time of the newest answer of a machine.
    answered: Mutex<Option<Instant>>,
    checks: Mutex<Option<AbortHandle>>,
}

impl Default for Machines {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            rate: ByteRate::new(Instant::now()),
            drops: Drops::default(),
            answered: Mutex::default(),
            checks: Mutex::default(),
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if let Some(checks) = self.checks.get_mut().unwrap_or_else(PoisonError::into_inner) {
            checks.abort();
        }
    }
}

impl Machines {
    fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the table, and asks its machines for their health from here on. Must be called within a tokio runtime.
    pub(crate) fn set(&self, config: &LoadBalancer) {
        let next = Arc::new(Table::new(config, &self.table()));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = checks.take() {
            before.abort();
        }
        if !next.all.is_empty() {
            let asking = async move { health::check(&next.all, INTERVAL, FAILURES).await };
            *checks = Some(tokio::spawn(asking).abort_handle());
        }
    }

    /// Returns whether answers of other machines have passed in the last seconds.
    pub(crate) fn is_answering(&self) -> bool {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|at| at.elapsed() < ANSWERS_END)
    }

    fn note_answer(&self) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Machines with their states and counters as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let machine = |machine: &OtherMachine| {
            json!({
                "server_id": machine.server_id.to_string(),
                "address": machine.address.to_string(),
                "state": machine.health.get().name(),
                "forwarded": get(&machine.counters.forwarded),
                "answered": get(&machine.counters.answered),
                "received": get(&machine.counters.received),
            })
        };
        self.table().all.iter().map(machine).collect()
    }

    /// Counters of dropped datagrams by reason. `untrusted` are those whose header came from an untrusted address, or was malformed.
    pub(crate) fn dropped(&self, untrusted: u64) -> impl Iterator<Item = (&'static str, u64)> {
        self.drops.all().into_iter().chain([("untrusted", untrusted)])
    }

    /// Brings the metrics up to date, with `untrusted` as in [`dropped`](Self::dropped).
    pub(crate) fn count(&self, metrics: &OtherMachineMetrics, untrusted: u64) {
        metrics.up.clear();
        metrics.datagrams.clear();
        for machine in &self.table().all {
            let name = machine.server_id.to_string();
            let is_up = machine.health.get() != Health::Down;
            metrics.up.get_or_create(&MachineLabel { machine: name.clone() }).set(is_up.into());
            for (direction, count) in machine.counters.all() {
                let labels = MachineLabels { machine: name.clone(), direction };
                metrics.datagrams.get_or_create(&labels).set(count as f64);
            }
        }
        for (reason, count) in self.dropped(untrusted) {
            metrics.dropped.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::counters::add;

    fn machines(ids: &[&str]) -> LoadBalancer {
        let machine = |(number, id): (usize, &&str)| crate::config::OtherMachine {
            server_id: (*id).to_owned(),
            address: format!("10.0.0.{number}:443"),
        };
        LoadBalancer { machines: ids.iter().enumerate().map(machine).collect(), ..LoadBalancer::default() }
    }

    fn may_hold(table: &Table, id: &str) -> bool {
        table.may_hold(&id.parse().unwrap())
    }

    #[test]
    fn machines_that_are_down_hold_nothing_unless_all_seem_to_be() {
        let two = Table::new(&machines(&["0a02", "0a03"]), &Table::default());
        assert!(may_hold(&two, "0a02") && !may_hold(&two, "0a04"));
        two.all[0].health.set(Health::Down);
        assert!(!may_hold(&two, "0a02") && may_hold(&two, "0a03"));
        two.all[1].health.set(Health::Down);
        assert!(may_hold(&two, "0a02") && may_hold(&two, "0a03"), "no machine answers: the fault may be here");
        let one = Table::new(&machines(&["0a02"]), &Table::default());
        one.all[0].health.set(Health::Closing);
        assert!(may_hold(&one, "0a02"), "a machine that ends completes its connections");
        one.all[0].health.set(Health::Down);
        assert!(!may_hold(&one, "0a02"));
    }

    #[test]
    fn a_reload_keeps_health_and_counters_of_a_machine_at_its_address() {
        let before = Table::new(&machines(&["0a02", "0a03"]), &Table::default());
        before.all[0].health.set(Health::Down);
        add(&before.all[0].counters.forwarded, 7);
        let same = Table::new(&machines(&["0a02"]), &before);
        assert_eq!((same.all[0].health.get(), get(&same.all[0].counters.forwarded)), (Health::Down, 7));
        let moved = Table::new(&machines(&["0a03", "0a02"]), &before);
        let id = "0a02".parse().unwrap();
        assert_eq!(moved.of_id(&id).unwrap().health.get(), Health::Up, "another address is another machine");
    }
}
