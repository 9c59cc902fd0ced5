//! Address translation between the clients and the links: the mapping of a packet, and whether it still exists.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use netem::{Nat, NatConfig};
use units::{Instant, Seed};

/// The simulator's NAT, mapped to addresses of this machine. Times are those of the links.
#[derive(Debug)]
pub(crate) struct Translation {
    nat: Nat,
    /// The latest time seen. Packets are worked off in batches, so that one may be a moment behind another one; a NAT's time does not go
    /// back.
    latest: Instant,
}

impl Translation {
    pub(crate) fn new(config: &NatConfig, seed: &Seed) -> Self {
        Self { nat: Nat::new(config, &seed.child("nat", 0)), latest: Instant::ZERO }
    }

    /// Address that the NAT gives a client for a packet that leaves it at `at`.
    pub(crate) fn outward(&mut self, at: Instant, inside: SocketAddr) -> SocketAddr {
        self.latest = self.latest.max(at);
        self.nat.outward(self.latest, inside)
    }

    /// True if a packet that reaches the NAT at `at` finds its mapping. Counts as use of it.
    pub(crate) fn admits(&mut self, at: Instant, outside: SocketAddr) -> bool {
        self.inward(at, outside).is_some()
    }

    /// The address inside for which a packet is that reaches the NAT at `at`; `None` when its mapping is gone. Counts as use of it.
    pub(crate) fn inward(&mut self, at: Instant, outside: SocketAddr) -> Option<SocketAddr> {
        self.latest = self.latest.max(at);
        self.nat.inward(self.latest, outside)
    }

    /// Forgets a client that has lost its place.
    pub(crate) fn forget(&mut self, inside: SocketAddr) {
        self.nat.forget(inside);
    }

    /// Mappings that were made in place of others.
    pub(crate) const fn rebindings(&self) -> u64 {
        self.nat.replaced()
    }
}

/// The address of this machine from which packets of a mapping leave: that of the way to the server, unless a rebinding changed the
/// address. Then it is another one of the loopback network, of which every machine has 2^24.
pub(crate) fn source(inside: SocketAddr, outside: SocketAddr, server: SocketAddr) -> IpAddr {
    match outside.ip() {
        IpAddr::V4(ip) if outside.ip() != inside.ip() => {
            let [_, second, third, fourth] = ip.octets();
            Ipv4Addr::new(127, second, third, fourth).into()
        }
        _ if server.is_ipv6() => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Index of the first rebinding that needs a second address where none is available.
pub(crate) fn impossible(config: &NatConfig, server: SocketAddr) -> Option<usize> {
    let possible = server.is_ipv4() && server.ip().is_loopback();
    config.rebind.iter().position(|rebinding| rebinding.address && !possible)
}
