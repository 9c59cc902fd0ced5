//! Threads of a load balancer. Each has sockets for each address that clients come to, and sockets of its own for the machines: what
//! a machine answers comes back to the thread that has asked, and leaves from the socket that the client has sent to.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    thread::JoinHandle,
};

use quinn_udp::RecvMeta;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::oneshot;

use super::{
    Shared,
    counters::add,
    forward::{Outbox, Read, to_clients, to_machines},
    port::{BATCH, BUFFER, Port, open, prepared},
    tcp,
};

/// System calls before the other direction gets its turn.
const CALLS_PER_TURN: usize = 16;
/// Sockets of a thread for one address.
pub(super) struct Sockets {
    udp: std::net::UdpSocket,
    tcp: Option<std::net::TcpListener>,
}

impl Sockets {
    /// Opens an address for so many threads. With port 0, UDP and TCP get the same free port.
    pub(super) fn open(address: SocketAddr, threads: usize, accepts_tcp: bool) -> io::Result<(SocketAddr, Vec<Self>)> {
        let mut last = io::Error::other("no port is free for both UDP and TCP");
        // Only when any port will do, another may be tried.
        for _ in 0..if address.port() == 0 { 16 } else { 1 } {
            match Self::try_open(address, threads, accepts_tcp) {
                Ok(opened) => return Ok(opened),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_open(mut address: SocketAddr, threads: usize, accepts_tcp: bool) -> io::Result<(SocketAddr, Vec<Self>)> {
        let mut all = Vec::with_capacity(threads);
        for _ in 0..threads {
            let udp = bind(address)?;
            // The system has chosen the port of the first one.
            address = udp.local_addr()?;
            let tcp = accepts_tcp.then(|| tcp::bind(address)).transpose()?;
            all.push(Self { udp, tcp });
        }
        Ok((address, all))
    }
}

/// A thread that forwards until it is dropped.
pub(super) struct Worker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Binds a socket that other workers, and other load balancers on this machine, share their port with.
fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    prepared(socket)
}

impl Worker {
    /// Starts a thread with these sockets for clients.
    pub(super) fn start(number: usize, sockets: Vec<Sockets>, shared: &Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        {
            let _inside = runtime.enter();
            for Sockets { udp, tcp } in sockets {
                Lane::new(udp)?.start(shared);
                if let Some(listener) = tcp {
                    runtime.spawn(tcp::accept(tokio::net::TcpListener::from_std(listener)?, shared.clone()));
                }
            }
        }
        let name = format!("balance-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // Either way, it is time to end.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// The way of datagrams between an address that clients send to and the machines.
struct Lane {
    clients: Port,
    machines4: Option<Port>,
    machines6: Option<Port>,
}

impl Lane {
    fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let port = |any: IpAddr| open(any).map(Port::new).transpose();
        let (machines4, machines6) = (port(Ipv4Addr::UNSPECIFIED.into())?, port(Ipv6Addr::UNSPECIFIED.into())?);
        Ok(Self { clients: Port::new(socket)?, machines4, machines6 })
    }

    fn start(self, shared: &Arc<Shared>) {
        let lane = Arc::new(self);
        tokio::spawn(run(lane.clone(), shared.clone(), |lane| Some(&lane.clients), Direction::ToMachines));
        tokio::spawn(run(lane.clone(), shared.clone(), |lane| lane.machines4.as_ref(), Direction::ToClients));
        tokio::spawn(run(lane, shared.clone(), |lane| lane.machines6.as_ref(), Direction::ToClients));
    }

    /// Datagrams that the sockets of a direction send together.
    fn max_segments(&self, direction: Direction) -> usize {
        let most = |port: &Port| port.state.max_gso_segments();
        match direction {
            Direction::ToClients => most(&self.clients),
            Direction::ToMachines => {
                [&self.machines4, &self.machines6].into_iter().flatten().map(most).min().unwrap_or(1)
            }
        }
    }

    /// The socket that sends to an address.
    fn port_to(&self, direction: Direction, to: SocketAddr) -> Option<&Port> {
        match direction {
            Direction::ToClients => Some(&self.clients),
            Direction::ToMachines if to.is_ipv4() => self.machines4.as_ref(),
            Direction::ToMachines => self.machines6.as_ref(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToMachines,
    ToClients,
}

/// Forwards what one socket of a lane receives.
async fn run(lane: Arc<Lane>, shared: Arc<Shared>, port: fn(&Lane) -> Option<&Port>, direction: Direction) {
    let Some(port) = port(&lane) else { return };
    let mut buffers: [Vec<u8>; BATCH] = std::array::from_fn(|_| vec![0; BUFFER]);
    let mut metas = [RecvMeta::default(); BATCH];
    let mut outbox = Outbox::new(lane.max_segments(direction));
    for call in 1_usize.. {
        let count = match port.receive(&mut buffers, &mut metas).await {
            Ok(count) => count,
            // An ICMP message about an earlier datagram: health checks find out by themselves.
            Err(error) => {
                tracing::debug!("cannot read from the socket at {}: {error}", port.local);
                tokio::task::yield_now().await;
                continue;
            }
        };
        let table = shared.table();
        outbox.clear();
        for (buffer, meta) in buffers.iter().zip(&metas).take(count) {
            let read = Read {
                remote: SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port()),
                local: match direction {
                    Direction::ToMachines => {
                        SocketAddr::new(meta.dst_ip.unwrap_or(port.local.ip()).to_canonical(), port.local.port())
                    }
                    Direction::ToClients => lane.clients.local,
                },
                ecn: meta.ecn,
                segment_size: meta.stride,
                payload: &buffer[..meta.len],
            };
            match direction {
                Direction::ToMachines => to_machines(&table, &read, &shared.counters, &mut outbox),
                Direction::ToClients => to_clients(&table, &read, &shared.counters, &mut outbox),
            }
        }
        for (out, contents) in outbox.sends() {
            let sent = match lane.port_to(direction, out.to) {
                Some(port) => port.send(out, contents).await,
                None => Err(io::ErrorKind::AddrNotAvailable.into()),
            };
            if let Err(error) = sent {
                // To both ends it is loss.
                tracing::debug!("cannot send {} bytes to {}: {error}", contents.len(), out.to);
                add(&shared.counters.unsent, out.segments as u64);
            }
        }
        if call % CALLS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
}
