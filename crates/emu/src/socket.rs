//! The relay's sockets and the options they need.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sys;

/// Requested size of each socket buffer in bytes. The receive buffer must hold what arrives while the relay's thread is not scheduled; the
/// system may grant less.
const BUFFER: usize = 8 << 20;

/// A UDP socket that reports ECN bits, receive times and drops, and never waits.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    socket: Socket,
    pub(crate) ipv6: bool,
    /// The kernel's drop counter as last reported.
    pub(crate) kernel_drops: u32,
}

impl UdpSocket {
    /// A socket that listens on `address`.
    pub(crate) fn listen(address: SocketAddr) -> io::Result<Self> {
        let socket = Self::open(address.is_ipv6())?;
        socket.socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    }

    /// Opens a socket on its own port, connected to `address`.
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let any = if address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Self::connect_from(any, address)
    }

    /// Opens a socket on its own port at one of this machine's addresses, connected to `address`.
    pub(crate) fn connect_from(source: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let ipv6 = address.is_ipv6();
        if address.port() == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the port is 0"));
        }
        let socket = Self::open(ipv6)?;
        socket.socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
        socket.socket.connect(&SockAddr::from(address))?;
        Ok(socket)
    }

    fn open(ipv6: bool) -> io::Result<Self> {
        let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        if ipv6 {
            // With IPv4 in the same socket, ECN bits would come and go in two ways.
            socket.set_only_v6(true)?;
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            // RFC 9000 §14: datagrams must not be fragmented. Without this an MTU probe would arrive in pieces.
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        } else {
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        }
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        // The first pair needs a privilege, the second one is cut to what the system allows everybody.
        let wanted = i32::try_from(BUFFER).unwrap_or(i32::MAX);
        if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
            socket.set_recv_buffer_size(BUFFER)?;
        }
        if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted).is_err() {
            socket.set_send_buffer_size(BUFFER)?;
        }
        Ok(Self { socket, ipv6, kernel_drops: 0 })
    }

    /// The address it is bound to.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes note of the kernel's drop counter; returns how many packets it has dropped since the last time.
    pub(crate) fn dropped_since(&mut self, counter: Option<u32>) -> u64 {
        let Some(counter) = counter else { return 0 };
        let new = counter.wrapping_sub(self.kernel_drops);
        self.kernel_drops = counter;
        u64::from(new)
    }
}
