//! Network address translation between clients and the path: the visible source of a packet, and its changes.
//!
//! A mapping lives as long as packets use it. It expires after a silence: packets from outside are then dropped, and the next packet from
//! inside gets another port. A rebinding changes every mapping at a given time, as when a gateway restarts or a telephone changes networks.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{Duration, Instant, Seed};

use crate::draw::scale;

/// The settings of a translation.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct NatConfig {
    /// A mapping that no packet has used for this long is forgotten. Zero: never.
    #[serde(with = "units::duration_text")]
    pub timeout: Duration,
    /// The timeout of a run is drawn between `timeout` and this; zero: it is `timeout`.
    #[serde(with = "units::duration_text")]
    pub timeout_max: Duration,
    /// Moments at which every mapping is replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rebind: Vec<Rebinding>,
}

/// Every mapping is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rebinding {
    /// Time from the start of the run.
    #[serde(with = "units::duration_text")]
    pub at: Duration,
    /// The address changes as well, not only the port.
    #[serde(default)]
    pub address: bool,
}

/// External address of a client.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    outside: SocketAddr,
    used: Instant,
    /// Rebindings applied so far.
    epoch: usize,
}

/// State of an address translation. Every client has one mapping for all destinations.
#[derive(Clone, Debug)]
pub struct Nat {
    timeout: Option<Duration>,
    rebind: Vec<Rebinding>,
    inside: BTreeMap<SocketAddr, Mapping>,
    outside: BTreeMap<SocketAddr, SocketAddr>,
    port: u16,
    host: u16,
    /// Mappings that were made in place of others.
    replaced: u64,
    /// Packets from outside without a mapping.
    orphaned: u64,
}

impl Nat {
    /// A translation with these settings.
    pub fn new(config: &NatConfig, seed: &Seed) -> Self {
        use rand_core::RngCore;
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let spread = nanos(config.timeout_max.saturating_sub(config.timeout));
        let drawn = scale(seed.stream("nat timeout").next_u64(), spread);
        let timeout = config.timeout + Duration::from_nanos(drawn);
        let mut rebind = config.rebind.clone();
        rebind.sort_by_key(|rebinding| rebinding.at);
        Self {
            timeout: (!timeout.is_zero()).then_some(timeout),
            rebind,
            inside: BTreeMap::new(),
            outside: BTreeMap::new(),
            port: 1_024,
            host: 1,
            replaced: 0,
            orphaned: 0,
        }
    }

    /// External source of a packet from `inside`.
    pub fn outward(&mut self, now: Instant, inside: SocketAddr) -> SocketAddr {
        let epoch = self.epoch(now);
        let current = self.inside.get(&inside).copied().filter(|mapping| self.lives(now, mapping));
        if let Some(mapping) = current {
            self.inside.insert(inside, Mapping { used: now, ..mapping });
            return mapping.outside;
        }
        let old = self.inside.get(&inside).copied();
        if let Some(old) = old {
            self.outside.remove(&old.outside);
            self.replaced += 1;
        }
        let moved =
            old.is_some_and(|old| self.rebind[old.epoch.min(epoch)..epoch].iter().any(|rebinding| rebinding.address));
        let ip = match old {
            Some(old) if !moved => old.outside.ip(),
            Some(_) => self.next_host(),
            None => inside.ip(),
        };
        let outside = SocketAddr::new(ip, if old.is_some() { self.next_port() } else { inside.port() });
        self.outside.insert(outside, inside);
        self.inside.insert(inside, Mapping { outside, used: now, epoch });
        outside
    }

    /// Recipient of a packet to `outside`; `None` when there is no such mapping (any more).
    pub fn inward(&mut self, now: Instant, outside: SocketAddr) -> Option<SocketAddr> {
        let inside = self.outside.get(&outside).copied();
        let mapping = inside.and_then(|inside| self.inside.get(&inside).copied());
        match (inside, mapping) {
            (Some(inside), Some(mapping)) if mapping.outside == outside && self.lives(now, &mapping) => {
                self.inside.insert(inside, Mapping { used: now, ..mapping });
                Some(inside)
            }
            _ => {
                self.orphaned += 1;
                None
            }
        }
    }

    /// Forgets a client, as if no packet of it had ever come.
    pub fn forget(&mut self, inside: SocketAddr) {
        if let Some(mapping) = self.inside.remove(&inside) {
            self.outside.remove(&mapping.outside);
        }
    }

    /// Mappings that were made in place of others.
    pub const fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Packets from outside without a mapping.
    pub const fn orphaned(&self) -> u64 {
        self.orphaned
    }

    fn lives(&self, now: Instant, mapping: &Mapping) -> bool {
        mapping.epoch == self.epoch(now)
            && self.timeout.is_none_or(|timeout| now.saturating_since(mapping.used) <= timeout)
    }

    /// Rebindings so far.
    fn epoch(&self, now: Instant) -> usize {
        self.rebind.partition_point(|rebinding| Instant::ZERO + rebinding.at <= now)
    }

    fn next_port(&mut self) -> u16 {
        self.port = self.port.checked_add(1).unwrap_or(1_025);
        self.port
    }

    /// 10.99.x.y: addresses that no node of the simulator has.
    fn next_host(&mut self) -> IpAddr {
        self.host = self.host.wrapping_add(1);
        let [high, low] = self.host.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(10, 99, high, low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, 0)), 50_000);

    #[test]
    fn a_silence_ends_a_mapping() {
        let config = NatConfig { timeout: Duration::from_secs(15), ..NatConfig::default() };
        let mut nat = Nat::new(&config, &Seed::from_number(1));
        let at = Instant::from_millis;
        let first = nat.outward(at(0), CLIENT);
        assert_eq!(nat.inward(at(14_000), first), Some(CLIENT));
        assert_eq!(nat.outward(at(28_000), CLIENT), first, "each packet counts, in either direction");
        assert_eq!(nat.inward(at(43_001), first), None);
        let second = nat.outward(at(43_002), CLIENT);
        assert!(second != first && second.ip() == first.ip());
        assert_eq!((nat.inward(at(43_003), second), nat.inward(at(43_003), first)), (Some(CLIENT), None));
        assert_eq!((nat.replaced(), nat.orphaned()), (1, 2));
        nat.forget(CLIENT);
        assert_eq!((nat.inward(at(43_004), second), nat.outward(at(43_005), CLIENT)), (None, first));
    }

    #[test]
    fn a_rebinding_changes_ports_or_addresses() {
        let rebind = vec![
            Rebinding { at: Duration::from_secs(1), address: false },
            Rebinding { at: Duration::from_secs(2), address: true },
        ];
        let mut nat = Nat::new(&NatConfig { rebind, ..NatConfig::default() }, &Seed::from_number(1));
        let seen: Vec<_> = [500, 1_500, 1_600, 2_500].map(|ms| nat.outward(Instant::from_millis(ms), CLIENT)).into();
        assert!(seen[0] != seen[1] && seen[0].ip() == seen[1].ip());
        assert_eq!(seen[1], seen[2]);
        assert!(seen[2].ip() != seen[3].ip());
    }

    #[test]
    fn timeouts_are_drawn_from_their_range() {
        let config = NatConfig {
            timeout: Duration::from_secs(15),
            timeout_max: Duration::from_secs(30),
            ..NatConfig::default()
        };
        let drawn: Vec<Duration> =
            (0..100).filter_map(|seed| Nat::new(&config, &Seed::from_number(seed)).timeout).collect();
        let within = Duration::from_secs(15)..=Duration::from_secs(30);
        assert!(drawn.len() == 100 && drawn.iter().all(|timeout| within.contains(timeout)));
        assert!(drawn.iter().max() > drawn.iter().min());
    }
}
