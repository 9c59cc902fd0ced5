//! Sockets towards targets: one that is connected, and one for many peers.

use std::{
    cell::RefCell,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};

/// Bytes that the system writes at once when it has put datagrams together (GRO).
const SCRATCH: usize = 64 * 1024;

thread_local! {
    /// Buffer for received data; empty between calls.
    static RECEIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// A socket for one target.
pub(crate) struct TargetSocket {
    io: UdpSocket,
    state: UdpSocketState,
    target: SocketAddr,
}

impl TargetSocket {
    /// Opens a socket that takes datagrams of `target` alone.
    // RFC 9298 §3.1 MUST NOT-1, MUST-9: no fragments; and connected, so that the system drops what comes from elsewhere
    pub(crate) async fn connect(target: SocketAddr) -> io::Result<Self> {
        let any = if target.is_ipv4() { SocketAddr::from(([0; 4], 0)) } else { SocketAddr::from(([0; 16], 0)) };
        let io = UdpSocket::bind(any).await?;
        let state = UdpSocketState::new((&io).into())?;
        io.connect(target).await?;
        // Until then every attempt to send finds that it would block.
        io.writable().await?;
        Ok(Self { io, state, target })
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.io.readable().await
    }

    #[cfg(test)]
    pub(super) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    #[cfg(test)]
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.io.peer_addr()
    }

    // RFC 9298 §6.2 MUST-2: Not-ECT
    pub(crate) fn try_send(&self, payload: &[u8]) -> io::Result<()> {
        let transmit =
            Transmit { destination: self.target, ecn: None, contents: payload, segment_size: None, src_ip: None };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }

    /// Passes each received datagram to `take`, at most those of one system call.
    // RFC 9298 §6.2 MUST-1: ECN marks are not looked at
    pub(crate) fn try_receive(&self, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        receive(&self.io, &self.state, |_, payload| take(payload))
    }
}

/// A socket for many peers of one address family, which sends from one port.
pub(super) struct PeersSocket {
    io: UdpSocket,
    state: UdpSocketState,
}

impl PeersSocket {
    /// Opens a socket at a free port of an address.
    // RFC 9298 §3.1 MUST NOT-1: no fragments
    pub(super) async fn bind(local: IpAddr) -> io::Result<Self> {
        let domain = if local.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if local.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(local, 0).into())?;
        let io = UdpSocket::from_std(socket.into())?;
        let state = UdpSocketState::new((&io).into())?;
        // Until then every attempt to send finds that it would block.
        io.writable().await?;
        Ok(Self { io, state })
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.io.readable().await
    }

    // RFC 9298 §6.2 MUST-2: Not-ECT
    pub(super) fn try_send(&self, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let transmit = Transmit { destination: peer, ecn: None, contents: payload, segment_size: None, src_ip: None };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }

    /// Passes each received datagram to `take`, at most those of one system call.
    // RFC 9298 §6.2 MUST-1: ECN marks are not looked at
    pub(super) fn try_receive(&self, mut take: impl FnMut(SocketAddr, &[u8])) -> io::Result<usize> {
        // Without the flow label and the zone of IPv6, as in capsules.
        receive(&self.io, &self.state, |peer, payload| take(SocketAddr::new(peer.ip(), peer.port()), payload))
    }
}

/// Passes each datagram of one system call to `take`. Returns their number.
fn receive(io: &UdpSocket, state: &UdpSocketState, mut take: impl FnMut(SocketAddr, &[u8])) -> io::Result<usize> {
    RECEIVED.with_borrow_mut(|buffer| {
        let mut meta = [RecvMeta::default()];
        let received =
            io.try_io(Interest::READABLE, || state.recv(io.into(), &mut [IoSliceMut::new(buffer)], &mut meta))?;
        let mut count = 0;
        for meta in &meta[..received] {
            if meta.len == 0 {
                take(meta.addr, &[]);
                count += 1;
            }
            for payload in buffer[..meta.len].chunks(meta.stride.max(1)) {
                take(meta.addr, payload);
                count += 1;
            }
        }
        Ok(count)
    })
}
