//! Records of a trial, as a gateway gives them.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

/// Arm of a client: what it is offered, and not what it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// HTTP/3 is withheld.
    Tcp,
    /// HTTP/3 is offered.
    Quic,
}

/// Record of one client.
#[derive(Clone, Debug, Deserialize)]
pub struct Client {
    /// Address, or the first one of a /64.
    pub client: IpAddr,
    /// Arm at its first request.
    pub arm: Arm,
    /// A request has come under another arm.
    pub in_both: bool,
    /// Requests over QUIC of a client in the TCP arm. They are in no other count.
    pub off_arm: u64,
    /// Requests over QUIC of a client in the QUIC arm.
    pub over_quic: u64,
    /// Requests and failures among them, by network type.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// Milliseconds of a sample of its requests, with their network type.
    pub times_ms: Vec<(f64, String)>,
    /// Place in the order in which clients are sampled: 16 hexadecimal digits. `None` from a gateway of an earlier version.
    #[serde(default)]
    pub order: Option<String>,
}

/// Records of a policy that withholds HTTP/3.
#[derive(Clone, Debug, Deserialize)]
pub struct Records {
    /// Share of the clients from which HTTP/3 is withheld.
    pub share: f64,
    /// Start of the observation, in Unix seconds.
    pub since: u64,
    /// Requests of all clients.
    pub requests: u64,
    /// Estimated number of all clients.
    pub clients_seen: f64,
    /// A sample of the clients.
    pub clients: Vec<Client>,
    /// Place of the last client that a full sample has kept; `None` when all clients are in it.
    #[serde(default)]
    pub kept_to: Option<String>,
}

/// Requests for which a client counts, at most: a client with more counts as one with so many, in times and in failures.
pub const REQUESTS_MAX: f64 = 32.0;

impl Client {
    /// Requests of the arm.
    pub fn requests(&self) -> u64 {
        self.counts.values().map(|(requests, _)| requests).sum()
    }

    /// Seconds of the sampled requests, of one network type or of all.
    pub fn seconds(&self, network_type: Option<&str>) -> Vec<f64> {
        let fits = |of: &str| network_type.is_none_or(|wanted| wanted == of);
        self.times_ms.iter().filter(|(_, of)| fits(of)).map(|(ms, _)| ms / 1e3).collect()
    }

    /// Failures and requests, with the weight of the client.
    pub fn failures(&self, network_type: Option<&str>) -> (f64, f64) {
        let fits = |of: &str| network_type.is_none_or(|wanted| wanted == of);
        let weight = (REQUESTS_MAX / as_f64(self.requests())).min(1.0);
        let of_type = self.counts.iter().filter(|(of, _)| fits(of));
        let sum = of_type.fold((0, 0), |sum, (_, (requests, failures))| (sum.0 + failures, sum.1 + requests));
        (weight * as_f64(sum.0), weight * as_f64(sum.1))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
