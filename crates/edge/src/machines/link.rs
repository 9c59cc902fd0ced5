//! Link of a listener to the other machines, which sends them clients' datagrams.
//!
//! Each worker has a socket of its own for the machines, so an answer is known by the socket that it arrives at
//! (`answers`). No client has state here.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, OnceLock},
    time::Instant,
};

use quinn_udp::{EcnCodepoint, UdpSockRef};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use tiderace::{
    MachineLinks,
    transport::{self, Datagram, Ecn, Holder, quic_lb::ServerId},
};
use tokio::{runtime::Handle, task::AbortHandle};
use wire::ProxyHeader;

use super::{
    Machines,
    answers::{ClientSocket, take_answers},
};
use crate::balance::{
    counters::add,
    port::{self, Port},
};

/// Socket for the machines of an address family, with the task that takes their answers.
struct MachineSocket {
    port: Arc<Port>,
    answers: AbortHandle,
}

impl Drop for MachineSocket {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// Sockets of a shard.
struct Lane {
    worker: Handle,
    clients: Arc<ClientSocket>,
    /// Sockets for machines of IPv4 and of IPv6, once there are such machines.
    machines: [OnceLock<MachineSocket>; 2],
}

/// Link of a listener.
pub(crate) struct MachineLink {
    all: Arc<Machines>,
    lanes: Vec<Lane>,
}

impl MachineLink {
    /// The link of a listener, for each socket with the worker that drives it. A socket that is still missing sends through another one.
    pub(crate) fn new<'a>(
        all: &Arc<Machines>,
        sockets: impl Iterator<Item = &'a UdpSocket> + Clone,
        workers: &[Handle],
    ) -> io::Result<Self> {
        let lane = |(socket, worker): (&UdpSocket, &Handle)| {
            let clients = Arc::new(ClientSocket::new(socket.try_clone()?)?);
            Ok(Lane { worker: worker.clone(), clients, machines: Default::default() })
        };
        let lanes = sockets.cycle().zip(workers).map(lane).collect::<io::Result<_>>()?;
        let this = Self { all: all.clone(), lanes };
        this.prepare();
        Ok(this)
    }

    /// Opens the sockets that the machines of the table need. Without one, datagrams are counted as unsent.
    pub(crate) fn prepare(&self) {
        let table = self.all.table();
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        for any in any.into_iter().filter(|any| table.all.iter().any(|one| one.address.is_ipv4() == any.is_ipv4())) {
            for lane in &self.lanes {
                let place = &lane.machines[usize::from(any.is_ipv6())];
                if place.get().is_some() {
                    continue;
                }
                match lane.open(any, &self.all) {
                    // Two reloads do not run at once.
                    Ok(socket) => drop(place.set(socket)),
                    Err(error) => tracing::error!("cannot open a socket for other machines: {error}"),
                }
            }
        }
    }
}

impl Lane {
    fn open(&self, any: IpAddr, all: &Arc<Machines>) -> io::Result<MachineSocket> {
        let socket = port::open(any).ok_or_else(io::Error::last_os_error)?;
        let _inside = self.worker.enter();
        let port = Arc::new(Port::new(socket)?);
        allow_fragments(&port)?;
        let task = take_answers(port.clone(), self.clients.clone(), all.clone());
        Ok(MachineSocket { port, answers: self.worker.spawn(task).abort_handle() })
    }
}

/// Lets the system fragment what is too long for the path. The header makes a packet longer, and the client, whose path to this machine has not changed,
/// would have to find that out by loss.
fn allow_fragments(port: &Port) -> io::Result<()> {
    if port.local.is_ipv4() {
        sockopt::set_ip_mtu_discover(&port.socket, Ipv4PathMtuDiscovery::WANT)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&port.socket, Ipv6PathMtuDiscovery::WANT)?;
    }
    Ok(())
}

impl transport::Machines for MachineLink {
    fn may_hold(&self, server_id: &ServerId) -> bool {
        self.all.table().may_hold(server_id)
    }
}

impl MachineLinks for MachineLink {
    fn forward(&self, shard: u8, holder: Holder, datagram: &Datagram, has_header: bool) {
        let (table, drops) = (self.all.table(), &self.all.drops);
        let payloads = datagram.payload.chunks(datagram.segment_size.max(1));
        // A reload may have removed it meanwhile.
        let Some(machine) = table.of_id(&holder.server_id) else { return };
        if has_header {
            return add(&drops.again, payloads.len() as u64);
        }
        let Some(lane) = self.lanes.get(usize::from(shard)) else { return };
        let socket = lane.machines[usize::from(machine.address.is_ipv6())].get();
        let Some(MachineSocket { port, .. }) = socket else { return add(&drops.unsent, payloads.len() as u64) };
        let local = lane.clients.local;
        let server = SocketAddr::new(datagram.local.unwrap_or(local.ip()), local.port());
        let mut header = [0; ProxyHeader::MAX_LEN];
        let header_len = ProxyHeader { client: datagram.remote, server, hint: Some(holder.hint) }.encode(&mut header);
        let (now, mut contents) = (Instant::now(), Vec::new());
        let mut forwarded = 0;
        for payload in payloads {
            contents.clear();
            contents.extend_from_slice(&header[..header_len]);
            contents.extend_from_slice(payload);
            if !self.all.rate.take(now, contents.len() as u64, table.rate) {
                add(&drops.rate, 1);
                continue;
            }
            let transmit = quinn_udp::Transmit {
                destination: machine.address,
                ecn: datagram.ecn.map(codepoint),
                contents: &contents,
                segment_size: None,
                src_ip: None,
            };
            // No client waits: to both ends it is loss.
            match port.state.try_send(UdpSockRef::from(&port.socket), &transmit) {
                Ok(()) => forwarded += 1,
                Err(error) => {
                    tracing::debug!("cannot forward {} bytes to {}: {error}", contents.len(), machine.address);
                    add(&drops.unsent, 1);
                }
            }
        }
        add(&machine.counters.forwarded, forwarded);
    }

    fn count_received(&self, sender: IpAddr, payloads: u64) {
        let table = self.all.table();
        if let Some(machine) = table.by_ip.get(&sender).and_then(|number| table.all.get(*number)) {
            add(&machine.counters.received, payloads);
        }
    }
}

fn codepoint(ecn: Ecn) -> EcnCodepoint {
    match ecn {
        Ecn::Ect0 => EcnCodepoint::Ect0,
        Ecn::Ect1 => EcnCodepoint::Ect1,
        Ecn::Ce => EcnCodepoint::Ce,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::BytesMut;
    use tiderace::units;

    use super::*;
    use crate::{
        balance::counters::get,
        config::{LoadBalancer, OtherMachine, Size},
    };

    fn datagram(len: usize) -> Datagram {
        Datagram {
            remote: "198.51.100.1:5000".parse().unwrap(),
            local: Some(Ipv4Addr::LOCALHOST.into()),
            ecn: Some(Ecn::Ect0),
            received_at: units::Instant::ZERO,
            segment_size: len,
            payload: BytesMut::from(&vec![7; 2 * len][..]),
        }
    }

    #[tokio::test]
    async fn datagrams_go_to_their_machine_once_and_within_the_rate() {
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        there.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let machine = OtherMachine { server_id: "0a02".to_owned(), address: there.local_addr().unwrap().to_string() };
        let config = LoadBalancer { machines: vec![machine], forward_rate: Size(1), ..LoadBalancer::default() };
        let all = Arc::new(Machines::default());
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = here.local_addr().unwrap();
        let link = MachineLink::new(&all, std::iter::once(&here), &[Handle::current()]).unwrap();
        let holder = Holder { server_id: "0a02".parse().unwrap(), hint: 5 };
        // Nothing is known of the machine.
        link.forward(0, holder, &datagram(100), false);
        all.set(&config);
        // There is no socket yet.
        link.forward(0, holder, &datagram(100), false);
        assert_eq!(get(&all.drops.unsent), 2);
        link.prepare();
        link.forward(0, holder, &datagram(100), true);
        assert_eq!(get(&all.drops.again), 2, "it has been forwarded before");
        // The first begins within the burst, and the next hour is taken.
        link.forward(0, holder, &datagram(100), false);
        let counters = &all.table().all[0].counters;
        assert_eq!((get(&counters.forwarded), get(&all.drops.rate)), (1, 1));
        let mut buffer = [0; 2_048];
        let forwarded = loop {
            let (len, _) = there.recv_from(&mut buffer).unwrap();
            // The machine is also asked for its health.
            if ProxyHeader::begins(&buffer[..len]) {
                break &buffer[..len];
            }
        };
        let (header, at) = ProxyHeader::parse(forwarded).unwrap();
        assert_eq!((header.client, header.server, header.hint), (datagram(1).remote, local, Some(5)));
        assert_eq!(forwarded[at..], [7; 100]);
        link.count_received(Ipv4Addr::LOCALHOST.into(), 3);
        link.count_received(Ipv4Addr::new(127, 0, 0, 2).into(), 4);
        assert_eq!(get(&counters.received), 3);
    }

    #[tokio::test]
    async fn the_system_fragments_what_the_header_makes_too_long() {
        let four = Port::new(port::open(Ipv4Addr::UNSPECIFIED.into()).unwrap()).unwrap();
        allow_fragments(&four).unwrap();
        assert_eq!(sockopt::ip_mtu_discover(&four.socket).unwrap(), Ipv4PathMtuDiscovery::WANT);
        let Some(six) = port::open(Ipv6Addr::UNSPECIFIED.into()) else { return };
        let six = Port::new(six).unwrap();
        allow_fragments(&six).unwrap();
        assert_eq!(sockopt::ipv6_mtu_discover(&six.socket).unwrap(), Ipv6PathMtuDiscovery::WANT);
    }
}
