//! Trials: requests of clients from which a policy withholds HTTP/3, and of those to which it is offered.
//!
//! The unit is the client. Of each policy the records of a bounded number of clients are kept: those that come first in an order which
//! depends on the key of the policy and the client's address only. That is a sample in which each client has the same chance, whatever its
//! arm and however many requests it sends, and a kept client is kept from its first request on.
//!
//! Addresses count once they are validated: see `observe`, which notes requests here.

mod assignment;
mod awaited;
mod network_type;
mod record;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tiderace::{ProcessBudget, transport::memory::ProcessCharge};

pub(crate) use self::awaited::Awaited;
use self::awaited::Awaiting;
use self::record::{ClientRecord, RECORD_BYTES};
pub use self::{
    assignment::{Arm, Assignment, Withholding},
    awaited::AWAITED,
    network_type::NetworkType,
    record::{ObservedRequest, TIMES_KEPT},
};

/// Clients that are kept of each policy.
pub const CLIENTS_KEPT: usize = 8_192;

/// Observations of one policy.
struct Trial {
    /// Share of the latest assignment.
    share: f64,
    /// Start of the observation, in Unix seconds.
    since: u64,
    /// Requests of all clients, kept or not.
    requests: u64,
    /// Kept clients, by their order.
    clients: BTreeMap<u64, ClientRecord>,
    charge: ProcessCharge,
}

impl Trial {
    /// Record of a client; `None` when it is not in the sample.
    fn record(&mut self, assignment: &Assignment) -> Option<&mut ClientRecord> {
        if !self.clients.contains_key(&assignment.order) {
            if self.clients.len() >= CLIENTS_KEPT {
                let (last, _) = self.clients.last_key_value()?;
                if assignment.order > *last {
                    return None;
                }
                self.clients.pop_last();
            }
            self.clients.insert(assignment.order, ClientRecord::new(assignment));
            self.charge.set(self.clients.len() as u64 * RECORD_BYTES);
        }
        self.clients.get_mut(&assignment.order)
    }

    /// Order of the last kept client; `None` when all clients are kept.
    fn kept_to(&self) -> Option<u64> {
        let (last, _) = self.clients.last_key_value()?;
        (self.clients.len() >= CLIENTS_KEPT).then_some(*last)
    }

    /// Estimated number of clients: the order of the last kept one says how dense they lie.
    fn clients_seen(&self) -> f64 {
        match self.kept_to() {
            Some(last) => (CLIENTS_KEPT - 1) as f64 * (u64::MAX as f64 / last as f64),
            None => self.clients.len() as f64,
        }
    }
}

/// A place in the order of clients. Readers of JSON do not keep all digits of such a number.
fn digits(order: u64) -> String {
    format!("{order:016x}")
}

/// The trials of all policies. They outlive reloads: a policy is known by its name.
pub struct Trials {
    trials: Mutex<BTreeMap<String, Trial>>,
    awaiting: Arc<Awaiting>,
    memory: ProcessBudget,
}

impl Trials {
    /// `memory` is charged for the records.
    pub fn new(memory: &ProcessBudget) -> Arc<Self> {
        Arc::new(Self { trials: Mutex::default(), awaiting: Arc::default(), memory: memory.clone() })
    }

    fn trials(&self) -> MutexGuard<'_, BTreeMap<String, Trial>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request of a client whose address is validated.
    pub fn note(&self, assignment: &Assignment, request: &ObservedRequest) {
        let mut trials = self.trials();
        if !trials.contains_key(&assignment.policy) {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let (clients, charge) = (BTreeMap::new(), self.memory.charge(0));
            let trial = Trial { share: assignment.share, since, requests: 0, clients, charge };
            trials.insert(assignment.policy.clone(), trial);
        }
        let trial = trials.get_mut(&assignment.policy).expect("it is there");
        (trial.share, trial.requests) = (assignment.share, trial.requests.saturating_add(1));
        if let Some(record) = trial.record(assignment) {
            record.note(assignment, request);
        }
    }

    /// Takes a place for a response whose delivery is awaited. `None` where the client has [`AWAITED`] of them: the request is left out, which is
    /// no failure.
    pub(crate) fn awaits(&self, assignment: &Assignment) -> Option<Awaited> {
        self.awaiting.enter(assignment.client, &self.memory)
    }

    /// Forgets the policies that a new configuration does not have.
    pub(crate) fn retain(&self, withholding: &Withholding) {
        self.trials().retain(|name, _| withholding.has(name));
    }

    /// Returns all records, by policy.
    pub fn to_json(&self) -> Value {
        // The records are copied, so that no request waits while they are written.
        let copies: Vec<_> = {
            let trials = self.trials();
            let copy = |(name, trial): (&String, &Trial)| {
                let clients: Vec<(u64, ClientRecord)> =
                    trial.clients.iter().map(|(order, record)| (*order, record.clone())).collect();
                let head = json!({
                    "share": trial.share, "since": trial.since, "requests": trial.requests,
                    "clients_seen": trial.clients_seen().round(), "kept_to": trial.kept_to().map(digits),
                });
                (name.clone(), head, clients)
            };
            trials.iter().map(copy).collect()
        };
        let trials = copies.into_iter().map(|(name, mut trial, clients)| {
            let clients: Vec<Value> = clients.iter().map(|(order, client)| client.to_json(&digits(*order))).collect();
            trial["clients"] = clients.into();
            (name, trial)
        });
        Value::Object(trials.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn assignment(number: u32, arm: Arm) -> Assignment {
        Assignment {
            policy: "p".to_owned(),
            share: 0.5,
            arm,
            client: IpAddr::V4(number.into()),
            // Spread over all orders.
            order: u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    const OVER_TCP: ObservedRequest =
        ObservedRequest { is_quic: false, network_type: NetworkType::Unreported, seconds: Some(0.1) };

    fn of(trials: &Trials, number: u32) -> Value {
        let client = IpAddr::V4(number.into()).to_string();
        let json = trials.to_json();
        let clients = json["p"]["clients"].as_array().unwrap();
        clients.iter().find(|record| record["client"] == *client).cloned().unwrap_or_default()
    }

    #[test]
    fn memory_is_bounded_charged_and_fair() {
        let budget = ProcessBudget::new(1 << 30);
        let trials = Trials::new(&budget);
        let total = 40_000;
        for round in 0..2 {
            for number in 0..total {
                trials.note(&assignment(number, Arm::Quic), &OVER_TCP);
            }
            assert_eq!(budget.held(), CLIENTS_KEPT as u64 * RECORD_BYTES, "{round}");
        }
        assert!(budget.held() < 8 << 20, "{}", budget.held());
        let json = trials.to_json();
        let clients = json["p"]["clients"].as_array().unwrap();
        assert_eq!(clients.len(), CLIENTS_KEPT);
        // A client that was not kept at first is never kept with a part of its requests.
        assert!(clients.iter().all(|client| client["counts"]["unreported"][0] == 2));
        let seen = json["p"]["clients_seen"].as_f64().unwrap();
        assert!((seen / f64::from(total) - 1.0).abs() < 0.1, "{seen}");
        assert_eq!(json["p"]["requests"], 2 * total);
        drop(trials);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_client_with_a_million_requests_takes_the_room_of_one() {
        let trials = Trials::new(&ProcessBudget::new(1 << 30));
        let busy = assignment(7, Arm::Tcp);
        for number in 0..1_000_000_u32 {
            let seconds = Some(f64::from(number) / 1e6);
            trials.note(&busy, &ObservedRequest { seconds, ..OVER_TCP });
        }
        let record = of(&trials, 7);
        assert_eq!(record["counts"]["unreported"], json!([1_000_000, 0]));
        let times: Vec<f64> = record["times_ms"].as_array().unwrap().iter().map(|t| t[0].as_f64().unwrap()).collect();
        assert_eq!(times.len(), TIMES_KEPT);
        // Each request has the same chance: six standard errors of the mean of 32 out of a uniform distribution.
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((mean - 500.0).abs() < 6.0 * 1_000.0 / 12_f64.sqrt() / 32_f64.sqrt(), "{mean}");
    }

    #[test]
    fn requests_that_do_not_belong_to_an_arm_are_counted_apart() {
        let trials = Trials::new(&ProcessBudget::new(1 << 30));
        let quic = ObservedRequest { is_quic: true, network_type: NetworkType::FourG, seconds: Some(0.05) };
        let failed = ObservedRequest { seconds: None, ..quic };
        for number in [1, 2] {
            let arm = if number == 1 { Arm::Tcp } else { Arm::Quic };
            for request in [OVER_TCP, quic, failed] {
                trials.note(&assignment(number, arm), &request);
            }
        }
        let (tcp, both) = (of(&trials, 1), of(&trials, 2));
        assert_eq!((&tcp["off_arm"], &tcp["over_quic"]), (&json!(2), &json!(0)));
        assert_eq!(tcp["counts"], json!({"unreported": [1, 0]}));
        assert_eq!(tcp["times_ms"], json!([[100.0, "unreported"]]));
        assert_eq!((&both["off_arm"], &both["over_quic"]), (&json!(0), &json!(2)));
        assert_eq!(both["counts"], json!({"unreported": [1, 0], "4g": [2, 1]}));
        assert_eq!(both["times_ms"], json!([[100.0, "unreported"], [50.0, "4g"]]));
        trials.note(&assignment(1, Arm::Quic), &OVER_TCP);
        let moved = of(&trials, 1);
        assert_eq!((&moved["in_both"], &moved["arm"], &moved["counts"]), (&json!(true), &json!("tcp"), &tcp["counts"]));
    }

    #[test]
    fn a_policy_that_is_gone_is_forgotten() {
        let budget = ProcessBudget::new(1 << 30);
        let trials = Trials::new(&budget);
        trials.note(&assignment(1, Arm::Tcp), &OVER_TCP);
        trials.retain(&Withholding::default());
        assert_eq!((trials.to_json(), budget.held()), (json!({}), 0));
    }
}
