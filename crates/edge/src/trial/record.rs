//! Record of one client: its arm, its counts, and a sample of the times of its requests.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Arm, Assignment, NetworkType};

/// Times that are kept of each client: a sample in which each of its requests has the same chance.
pub const TIMES_KEPT: usize = 32;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRequest {
    /// The request came over QUIC.
    pub is_quic: bool,
    /// Network type that the client has reported.
    pub network_type: NetworkType,
    /// Seconds until the client had the whole response; `None` when it never had it.
    pub seconds: Option<f64>,
}

/// Time of a request.
#[derive(Clone, Copy, Debug)]
struct Kept {
    micros: u32,
    network_type: NetworkType,
}

/// Requests and failures of one network type.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u32,
    failures: u32,
}

/// Record of one client.
#[derive(Clone, Debug)]
pub(super) struct ClientRecord {
    client: IpAddr,
    arm: Arm,
    /// A request has come under another arm: the share or the key of the policy has changed.
    is_in_both: bool,
    /// Requests over QUIC of a client from which it is withheld. They are in no other count.
    off_arm: u32,
    /// Requests over QUIC of a client to which it is offered.
    over_quic: u32,
    counts: [Counts; NetworkType::COUNT],
    /// Requests with a time.
    timed: u32,
    times: Vec<Kept>,
}

/// Bytes that a record can come to hold, with its place in the table.
pub(super) const RECORD_BYTES: u64 = (2 * size_of::<(u64, ClientRecord)>() + TIMES_KEPT * size_of::<Kept>()) as u64;

/// Scrambled number (splitmix64): which times are kept depends on the client and on the count of its requests only.
fn scrambled(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl ClientRecord {
    pub(super) fn new(assignment: &Assignment) -> Self {
        Self {
            client: assignment.client,
            arm: assignment.arm,
            is_in_both: false,
            off_arm: 0,
            over_quic: 0,
            counts: [Counts::default(); NetworkType::COUNT],
            timed: 0,
            times: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, assignment: &Assignment, request: &ObservedRequest) {
        if assignment.arm != self.arm {
            self.is_in_both = true;
            return;
        }
        if request.is_quic && self.arm == Arm::Tcp {
            self.off_arm = self.off_arm.saturating_add(1);
            return;
        }
        self.over_quic = self.over_quic.saturating_add(u32::from(request.is_quic));
        let counts = &mut self.counts[request.network_type as usize];
        counts.requests = counts.requests.saturating_add(1);
        let Some(seconds) = request.seconds else {
            counts.failures = counts.failures.saturating_add(1);
            return;
        };
        // Casts of floats saturate. A time of nothing has no logarithm.
        let kept = Kept { micros: ((seconds * 1e6) as u32).max(1), network_type: request.network_type };
        self.timed = self.timed.saturating_add(1);
        if self.times.len() < TIMES_KEPT {
            if self.times.is_empty() {
                self.times.reserve_exact(1);
            }
            self.times.push(kept);
            return;
        }
        let lot = scrambled(assignment.order ^ u64::from(self.timed)) % u64::from(self.timed);
        if let Some(place) = usize::try_from(lot).ok().and_then(|lot| self.times.get_mut(lot)) {
            *place = kept;
        }
    }

    /// The record, with the client's place in the order of sampling.
    pub(super) fn to_json(&self, order: &str) -> Value {
        let types = NetworkType::ALL.into_iter().zip(&self.counts).filter(|(_, counts)| counts.requests > 0);
        let counts: serde_json::Map<String, Value> =
            types.map(|(of, counts)| (of.name().to_owned(), json!([counts.requests, counts.failures]))).collect();
        let times: Vec<Value> =
            self.times.iter().map(|kept| json!([f64::from(kept.micros) / 1e3, kept.network_type.name()])).collect();
        json!({
            "client": self.client.to_string(),
            "order": order,
            "arm": self.arm.name(),
            "in_both": self.is_in_both,
            "off_arm": self.off_arm,
            "over_quic": self.over_quic,
            "counts": counts,
            "times_ms": times,
        })
    }
}
