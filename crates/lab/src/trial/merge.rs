//! Records of one policy from several gateways, as if one gateway had seen all clients.
//!
//! Gateways whose policies have the same name and key sample clients in the same order. The clients up to the lowest place that all of them
//! kept are a sample of all clients, in which each has the same chance, at whichever gateways it was. A client of several gateways is one
//! client.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
};

use super::record::{Client, REQUESTS_MAX, Records};

/// Reason for which records of a policy cannot be merged. Sources are named as the caller names them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The policies differ in their share.
    #[error("the share is {} at {}, and {} at {}", shares[0], sources[0], shares[1], sources[1])]
    Shares {
        /// Shares as people write them.
        shares: [String; 2],
        /// Sources of both.
        sources: [String; 2],
    },
    /// A client has another place in the order of sampling.
    #[error("{} and {} assign clients by different keys: {client} shows it", sources[0], sources[1])]
    Keys {
        /// The client.
        client: IpAddr,
        /// Sources of both.
        sources: [String; 2],
    },
    /// The records do not say in which order clients are sampled.
    #[error("{0} is of an earlier version, and its clients cannot be joined with those of others")]
    Orders(String),
}

impl MergeError {
    /// Advice to the operator.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Shares { .. } => "give the policy the same share on all gateways, and another name to begin anew",
            Self::Keys { .. } => "give the policy the same `key` on all gateways, and another name to begin anew",
            Self::Orders(_) => "compare it alone, or run the same version everywhere",
        }
    }
}

/// Merges the records of one policy. Each part has the name of its source.
///
/// # Errors
/// When the gateways do not take part in the same trial, or a part does not say how it samples. `None` without parts.
pub fn merge(mut parts: Vec<(String, Records)>) -> Result<Option<Records>, MergeError> {
    if parts.len() < 2 {
        return Ok(parts.pop().map(|(_, records)| records));
    }
    let first = &parts[0];
    for other in &parts[1..] {
        if (other.1.share - first.1.share).abs() > 1e-9 {
            let shares = [first, other].map(|(_, records)| format!("{} %", 100.0 * records.share));
            return Err(MergeError::Shares { shares, sources: [first, other].map(|(source, _)| source.clone()) });
        }
    }
    let kept_to = parts.iter().filter_map(|(_, records)| records.kept_to.clone()).min();
    let mut merged = Records {
        share: first.1.share,
        since: parts.iter().map(|(_, records)| records.since).min().unwrap_or_default(),
        requests: parts.iter().map(|(_, records)| records.requests).sum(),
        clients_seen: 0.0,
        clients: Vec::new(),
        kept_to: kept_to.clone(),
    };
    let mut clients: BTreeMap<IpAddr, Joined> = BTreeMap::new();
    for (source, records) in parts {
        for client in records.clients {
            let Some(order) = client.order.clone() else { return Err(MergeError::Orders(source)) };
            if kept_to.as_ref().is_some_and(|last| order > *last) {
                continue;
            }
            match clients.entry(client.client) {
                Entry::Vacant(place) => {
                    place.insert(Joined { source: source.clone(), parts: vec![client] });
                }
                Entry::Occupied(mut place) => {
                    let joined = place.get_mut();
                    if joined.parts[0].order.as_ref() != Some(&order) {
                        let sources = [joined.source.clone(), source];
                        return Err(MergeError::Keys { client: client.client, sources });
                    }
                    joined.parts.push(client);
                }
            }
        }
    }
    merged.clients = clients.into_values().map(Joined::client).collect();
    merged.clients.sort_by(|one, other| one.order.cmp(&other.order));
    merged.clients_seen = seen(merged.clients.len(), kept_to.as_deref());
    Ok(Some(merged))
}

/// Estimated number of clients of which so many lie up to a place in the order; all are there without one.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn seen(clients: usize, kept_to: Option<&str>) -> f64 {
    match kept_to.and_then(|last| u64::from_str_radix(last, 16).ok()) {
        Some(last) if last > 0 => ((clients.max(1) - 1) as f64 * (u64::MAX as f64 / last as f64)).round(),
        _ => clients as f64,
    }
}

/// Records of one client at several gateways.
struct Joined {
    source: String,
    parts: Vec<Client>,
}

impl Joined {
    fn client(self) -> Client {
        let mut parts = self.parts.into_iter();
        let Some(mut all) = parts.next() else { unreachable!("a client has the record with which it came") };
        let mut times = vec![(all.requests(), std::mem::take(&mut all.times_ms))];
        for part in parts {
            all.in_both |= part.in_both || part.arm != all.arm;
            // Requests under another arm are in no figure.
            if part.arm != all.arm {
                continue;
            }
            all.off_arm += part.off_arm;
            all.over_quic += part.over_quic;
            times.push((part.requests(), part.times_ms));
            for (network_type, (requests, failures)) in part.counts {
                let sum = all.counts.entry(network_type).or_default();
                *sum = (sum.0 + requests, sum.1 + failures);
            }
        }
        all.times_ms = sample(times);
        all
    }
}

/// At most [`REQUESTS_MAX`] times: of each gateway as many as it has of the requests.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small counts"
)]
fn sample(times: Vec<(u64, Vec<(f64, String)>)>) -> Vec<(f64, String)> {
    let kept: usize = times.iter().map(|(_, times)| times.len()).sum();
    if kept as f64 <= REQUESTS_MAX {
        return times.into_iter().flat_map(|(_, times)| times).collect();
    }
    let requests: u64 = times.iter().map(|(requests, _)| requests).sum();
    let part = |(own, times): (u64, Vec<(f64, String)>)| {
        let wanted = (REQUESTS_MAX * own as f64 / requests.max(1) as f64).round() as usize;
        spread(times, wanted)
    };
    times.into_iter().flat_map(part).collect()
}

/// So many of a sample, at equal distances: its order is that of time for a part of it.
pub fn spread<T>(all: Vec<T>, wanted: usize) -> Vec<T> {
    let have = all.len();
    let taken = |place: usize| (place + 1) * wanted / have > place * wanted / have;
    all.into_iter().enumerate().filter(|(place, _)| wanted >= have || taken(*place)).map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trial::record::Arm;

    /// A client whose place is its number, of `requests` requests of `ms`.
    fn client(number: u32, arm: &str, requests: u64, ms: f64) -> serde_json::Value {
        let times = vec![json!([ms, "4g"]); usize::try_from(requests.min(32)).unwrap()];
        json!({
            "client": std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string(), "arm": arm, "in_both": false,
            "off_arm": 1, "over_quic": 2, "counts": {"4g": [requests, 1]}, "times_ms": times,
            "order": format!("{:016x}", u64::from(number) << 32),
        })
    }

    fn records(clients: &[serde_json::Value], kept_to: Option<u32>) -> Records {
        let kept_to = kept_to.map(|number| format!("{:016x}", u64::from(number) << 32));
        serde_json::from_value(json!({
            "share": 0.5, "since": 7, "requests": 100, "clients_seen": 3, "clients": clients, "kept_to": kept_to,
        }))
        .unwrap()
    }

    fn named(parts: Vec<Records>) -> Vec<(String, Records)> {
        parts.into_iter().zip(["a", "b", "c"]).map(|(records, name)| (name.to_owned(), records)).collect()
    }

    #[test]
    fn a_client_of_two_gateways_is_one_client() {
        let one = records(&[client(1, "tcp", 10, 100.0), client(2, "quic", 96, 50.0)], None);
        let two = records(&[client(2, "quic", 32, 80.0), client(3, "quic", 4, 70.0)], None);
        let all = merge(named(vec![one, two])).unwrap().unwrap();
        assert_eq!((all.clients.len(), all.requests, all.since), (3, 200, 7));
        assert!((all.clients_seen - 3.0).abs() < 1e-9);
        let joined = &all.clients[1];
        assert_eq!((joined.counts["4g"], joined.off_arm, joined.over_quic), ((128, 2), 2, 4));
        // 32 times, in the proportion of the requests: 96 to 32.
        let slow = joined.times_ms.iter().filter(|(ms, _)| *ms > 60.0).count();
        assert_eq!((joined.times_ms.len(), slow), (32, 8));
        assert!(!joined.in_both);
    }

    #[test]
    fn samples_are_cut_to_the_place_that_all_have_kept() {
        // The second gateway kept clients up to 2 only: beyond that nobody knows whether it had more.
        let one = records(&[1, 2, 3, 4].map(|number| client(number, "tcp", 1, 1.0)), None);
        let two = records(&[client(2, "tcp", 1, 1.0)], Some(2));
        let all = merge(named(vec![one, two])).unwrap().unwrap();
        let numbers: Vec<String> = all.clients.iter().map(|client| client.client.to_string()).collect();
        assert_eq!(numbers, ["10.0.0.1", "10.0.0.2"]);
        // One client in 2 · 2^32 places.
        assert!((all.clients_seen / 2_f64.powi(31) - 1.0).abs() < 1e-6, "{}", all.clients_seen);
    }

    #[test]
    fn a_client_in_both_arms_is_seen() {
        let one = records(&[client(1, "tcp", 10, 100.0)], None);
        let two = records(&[client(1, "quic", 10, 1.0)], None);
        let all = merge(named(vec![one, two])).unwrap().unwrap();
        assert!(all.clients[0].in_both && all.clients[0].arm == Arm::Tcp);
        assert_eq!(all.clients[0].counts["4g"], (10, 1));
    }

    #[test]
    fn gateways_of_different_trials_are_refused() {
        let one = || records(&[client(1, "tcp", 1, 1.0)], None);
        let share = merge(named(vec![one(), Records { share: 0.2, ..one() }])).unwrap_err();
        assert_eq!(share.to_string(), "the share is 50 % at a, and 20 % at b");
        let mut moved = one();
        moved.clients[0].order = Some(format!("{:016x}", 5));
        let keys = merge(named(vec![one(), one(), moved])).unwrap_err();
        assert_eq!(keys.to_string(), "a and c assign clients by different keys: 10.0.0.1 shows it");
        let mut old = one();
        old.clients[0].order = None;
        assert!(matches!(merge(named(vec![one(), old.clone()])), Err(MergeError::Orders(source)) if source == "b"));
        // Alone it is as good as ever.
        assert_eq!(merge(named(vec![old])).unwrap().unwrap().clients.len(), 1);
        assert!(merge(Vec::new()).unwrap().is_none());
    }

    #[test]
    fn a_part_of_a_sample_is_spread_over_it() {
        assert_eq!(spread((0..10).collect(), 5), [1, 3, 5, 7, 9]);
        assert_eq!(spread((0..3).collect(), 5), [0, 1, 2]);
        assert!(spread((0..10).collect::<Vec<i32>>(), 0).is_empty() && spread(Vec::<i32>::new(), 3).is_empty());
    }
}
