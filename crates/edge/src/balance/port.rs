//! UDP sockets that read and send batches.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};

use super::forward::Outgoing;

/// Reads per system call at most.
pub(crate) const BATCH: usize = 8;
/// A read with GRO returns up to this many bytes.
pub(crate) const BUFFER: usize = 64 * 1024;
/// Socket buffer asked of the kernel, in bytes.
const SOCKET_BUFFER: usize = 8 * 1024 * 1024;

/// A socket for the machines of an address family; `None` where the system has none.
pub(crate) fn open(any: IpAddr) -> Option<std::net::UdpSocket> {
    let address = SocketAddr::new(any, 0);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).ok()?;
    if any.is_ipv6() {
        socket.set_only_v6(true).ok()?;
    }
    socket.bind(&address.into()).ok()?;
    prepared(socket).ok()
}

pub(super) fn prepared(socket: Socket) -> io::Result<std::net::UdpSocket> {
    socket.set_nonblocking(true)?;
    // Within the administrator's limit the kernel grants what it can.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    Ok(socket.into())
}

/// A socket with its capabilities.
pub(crate) struct Port {
    pub(crate) socket: UdpSocket,
    pub(crate) state: UdpSocketState,
    pub(crate) local: SocketAddr,
}

impl Port {
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let (state, local) = (UdpSocketState::new(UdpSockRef::from(&socket))?, socket.local_addr()?);
        Ok(Self { socket: UdpSocket::from_std(socket)?, state, local })
    }

    pub(crate) async fn receive(
        &self,
        buffers: &mut [Vec<u8>; BATCH],
        metas: &mut [RecvMeta; BATCH],
    ) -> io::Result<usize> {
        let mut free = buffers.iter_mut();
        let mut slices: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(free.next().expect("as many as there are")));
        let read = || self.state.recv(UdpSockRef::from(&self.socket), &mut slices, metas);
        self.socket.async_io(Interest::READABLE, read).await
    }

    pub(crate) async fn send(&self, out: &Outgoing, contents: &[u8]) -> io::Result<()> {
        let transmit = transmit(out, contents, self.local);
        let send = || self.state.try_send(UdpSockRef::from(&self.socket), &transmit);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}

/// A send by a socket at the address `local`.
pub(crate) fn transmit<'c>(out: &Outgoing, contents: &'c [u8], local: SocketAddr) -> quinn_udp::Transmit<'c> {
    let destination = match (out.to.ip(), local) {
        // A socket of both families has addresses of IPv4 in this form.
        (IpAddr::V4(ip), SocketAddr::V6(_)) => SocketAddr::new(ip.to_ipv6_mapped().into(), out.to.port()),
        _ => out.to,
    };
    quinn_udp::Transmit {
        destination,
        ecn: out.ecn,
        contents,
        segment_size: (out.segments > 1).then_some(out.segment_size),
        src_ip: out.from,
    }
}
