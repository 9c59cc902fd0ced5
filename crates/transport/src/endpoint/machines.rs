//! Other machines that serve the same address: the connection ID of a packet names the one that holds its connection (QUIC-LB).
//!
//! A packet of another machine's connection is returned by [`Endpoint::poll_elsewhere`], and this endpoint does not answer it: no stateless
//! reset may end a connection that the machine may know.

use std::{collections::VecDeque, sync::Arc};

use super::{Endpoint, Target};
use crate::{cid::Holder, quic_lb::ServerId, udp::Datagram};

/// Datagrams that wait to be sent to another machine.
const QUEUE_LIMIT: usize = 256;

/// The other machines, as far as they are known here.
pub trait Machines: Send + Sync {
    /// Returns whether a machine may hold connections. For one that does not, packets are answered here.
    fn may_hold(&self, server_id: &ServerId) -> bool;
}

/// Owner of the datagrams that wait for another machine.
#[derive(Default)]
pub(super) struct Elsewhere {
    machines: Option<Arc<dyn Machines>>,
    queue: VecDeque<(Holder, Datagram)>,
}

impl Endpoint {
    /// Sets the other machines; `None` leaves all packets to this one.
    pub fn set_machines(&mut self, machines: Option<Arc<dyn Machines>>) {
        self.elsewhere.machines = machines;
    }

    /// Returns the next datagram for another machine. Drain it after each [`handle_datagram`](Self::handle_datagram).
    pub fn poll_elsewhere(&mut self) -> Option<(Holder, Datagram)> {
        self.elsewhere.queue.pop_front()
    }

    /// Finds the machine of an ID that names no connection of this one.
    pub(super) fn machine_of(&self, id: &[u8]) -> Option<Target> {
        let machines = self.elsewhere.machines.as_ref()?;
        let holder = self.ids.holder_of(id).filter(|holder| machines.may_hold(&holder.server_id))?;
        Some(Target::Machine(holder))
    }

    /// Queues a datagram for another machine. The buffer is not copied: the queue is drained before the next read.
    pub(super) fn send_elsewhere(&mut self, holder: Holder, datagram: Datagram) {
        if self.elsewhere.queue.len() < QUEUE_LIMIT {
            self.elsewhere.queue.push_back((holder, datagram));
        } else {
            self.stats.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use units::{Instant, Seed};

    use super::*;
    use crate::{
        cid::{ConnectionIdGenerator, RoutableConfig, RoutableIds},
        config::EndpointConfig,
        quic_lb::QuicLbParameters,
    };

    /// Knows one machine.
    struct One(ServerId);

    impl Machines for One {
        fn may_hold(&self, server_id: &ServerId) -> bool {
            *server_id == self.0
        }
    }

    fn ids(server_id: &str) -> RoutableIds {
        let parameters =
            QuicLbParameters { config_id: 0, server_id_len: 2, nonce_len: 14, key: Some([7; 16]), encodes_len: false };
        let config = RoutableConfig { parameters, server_id: server_id.parse().unwrap() };
        RoutableIds::new(3, 1, config, &Seed::from_number(1)).unwrap()
    }

    fn read(packets: &[Vec<u8>]) -> Datagram {
        Datagram {
            remote: "192.0.2.1:1000".parse().unwrap(),
            local: None,
            ecn: None,
            received_at: Instant::ZERO,
            segment_size: packets[0].len(),
            payload: BytesMut::from(&packets.concat()[..]),
        }
    }

    #[test]
    fn packets_of_a_machine_are_its_own_and_those_of_no_machine_are_answered() {
        let config = EndpointConfig { ids: Box::new(ids("0a01")), ..EndpointConfig::from_seed(Seed::from_number(2)) };
        let mut endpoint = Endpoint::new(config, None);
        endpoint.set_machines(Some(Arc::new(One("0a02".parse().unwrap()))));
        let (mut second, mut third) = (ids("0a02"), ids("0a03"));
        let short = |id: &[u8]| [&[0x40], id, &[9; 60]].concat();
        let long = |id: &[u8]| [&[0xe0, 0, 0, 0, 1, 17], id, &[0; 55]].concat();
        let (own, other) = (short(&second.generate()), short(&third.generate()));
        // One read with packets of both.
        endpoint.handle_datagram(Instant::ZERO, read(&[own.clone(), own.clone(), other.clone(), own.clone()]));
        let holder = Holder { server_id: "0a02".parse().unwrap(), hint: 3 };
        let mut taken = Vec::new();
        while let Some((to, datagram)) = endpoint.poll_elsewhere() {
            assert_eq!((to, datagram.remote), (holder, "192.0.2.1:1000".parse().unwrap()));
            taken.push(datagram.payload.to_vec());
        }
        assert_eq!(taken, [[own.clone(), own.clone()].concat(), own.clone()]);
        let mut buffer = [0; 1_500];
        assert!(
            endpoint.poll_transmit(Instant::ZERO, &mut buffer).is_some(),
            "a stateless reset for the third machine"
        );
        assert_eq!((endpoint.poll_transmit(Instant::ZERO, &mut buffer), endpoint.stats().resets), (None, 1));
        // Handshake packets have an ID of the server, too.
        let handshake = long(&second.generate());
        endpoint.handle_datagram(Instant::ZERO, read(std::slice::from_ref(&handshake)));
        assert_eq!(endpoint.poll_elsewhere().unwrap().1.payload.to_vec(), handshake);
        endpoint.set_machines(None);
        endpoint.handle_datagram(Instant::ZERO, read(&[own]));
        assert!(endpoint.poll_elsewhere().is_none());
        assert_eq!(endpoint.stats().resets, 2);
    }

    #[test]
    fn waiting_datagrams_are_bounded() {
        let config = EndpointConfig { ids: Box::new(ids("0a01")), ..EndpointConfig::from_seed(Seed::from_number(2)) };
        let mut endpoint = Endpoint::new(config, None);
        endpoint.set_machines(Some(Arc::new(One("0a02".parse().unwrap()))));
        let packet = [&[0x40], &ids("0a02").generate()[..], &[9; 60]].concat();
        for _ in 0..QUEUE_LIMIT + 5 {
            endpoint.handle_datagram(Instant::ZERO, read(std::slice::from_ref(&packet)));
        }
        assert_eq!(std::iter::from_fn(|| endpoint.poll_elsewhere()).count(), QUEUE_LIMIT);
        assert_eq!(endpoint.stats().dropped, 5);
    }
}
