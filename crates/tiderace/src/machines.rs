//! Links to other machines that serve the same address: they take the datagrams whose connection ID names another machine.

use std::{net::IpAddr, sync::Arc};

use transport::{Datagram, Holder, Machines};

use crate::load_balancers::LoadBalancers;

/// Links to other machines. The tasks that drive the shards call it, and wait for it.
pub trait MachineLinks: Machines {
    /// Sends a client's datagram to the machine that holds its connection. `shard` has read it. Where `has_header`, a load balancer or
    /// another machine has forwarded it already.
    fn forward(&self, shard: u8, holder: Holder, datagram: &Datagram, has_header: bool);

    /// Counts payloads that a trusted sender at this address has forwarded.
    fn count_received(&self, sender: IpAddr, payloads: u64);
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
