//! Links to other machines that serve the same address: they take the datagrams whose connection ID names another machine.

use std::{net::IpAddr, sync::Arc};

use transport::{Datagram, Holder, Machines};

use crate::{driver::Driver, endpoint::Endpoint, load_balancers::LoadBalancers, shared::State};

/// Links to other machines. The tasks that drive the shards call it, and wait for it.
pub trait MachineLinks: Machines {
    /// Sends a client's datagram to the machine that holds its connection. `shard` has read it. Where `has_header`, a load balancer or
    /// another machine has forwarded it already.
    fn forward(&self, shard: u8, holder: Holder, datagram: &Datagram, has_header: bool);

    /// Counts payloads that a trusted sender at this address has forwarded.
    fn count_received(&self, sender: IpAddr, payloads: u64);
}

impl Endpoint {
    /// Sets the links to other machines; `None` leaves all packets to this one.
    pub fn set_machines(&self, links: Option<&Arc<dyn MachineLinks>>) {
        for shared in &self.shards {
            let mut state = shared.lock();
            state.endpoint.set_machines(links.map(|links| links.clone() as Arc<dyn Machines>));
            state.machines = links.cloned();
        }
    }
}

impl Driver {
    /// Hands datagrams of connections that other machines hold to the links.
    pub(crate) fn forward_elsewhere(&self, state: &mut State) {
        while let Some((holder, datagram)) = state.endpoint.poll_elsewhere() {
            let Some(links) = &state.machines else { continue };
            let has_header = self.balancers().and_then(|all| all.way_back(datagram.local)).is_some();
            links.forward(self.shard(), holder, &datagram, has_header);
        }
    }
}

/// Counts a datagram that came with a header.
pub(crate) fn count(links: Option<&Arc<dyn MachineLinks>>, balancers: Option<&LoadBalancers>, datagram: &Datagram) {
    if let (Some(links), Some(balancers)) = (links, balancers)
        && let Some(way) = balancers.way_back(datagram.local)
    {
        let payloads = datagram.payload.len().div_ceil(datagram.segment_size.max(1));
        links.count_received(way.balancer.ip().to_canonical(), payloads as u64);
    }
}
