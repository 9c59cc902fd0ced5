//! A UDP socket that reads and writes batches.

use std::{
    io::{self, IoSliceMut},
    task::{Context, Poll, ready},
};

use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use transport::{Datagram, Ecn, Transmit};
use units::Instant;
use wire::ProxyHeader;

use crate::{buffers::ReceiveBuffers, clock::Clock, load_balancers::LoadBalancers, readiness::Watched};

/// Reads per system call at most.
const BATCH: usize = 4;
/// The largest payload that UDP carries, so the largest GSO batch.
pub(crate) const SEND_BUFFER: usize = 65_507;
/// Socket buffer asked of the kernel, in bytes.
const SOCKET_BUFFER: usize = 8 * 1024 * 1024;

/// Counters of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// System calls that sent data.
    pub send_calls: u64,
    /// System calls that received data.
    pub receive_calls: u64,
    /// Reads of these calls: one datagram each, or several of one size from one address (GRO).
    pub reads: u64,
    /// Datagrams in the reads.
    pub datagrams: u64,
    /// Times that the socket had no room for data to send.
    pub send_blocked: u64,
    /// Datagrams for another shard whose queue was full.
    pub forwards_dropped: u64,
    /// Reads for connections of another process that were handed to it.
    pub sibling_sent: u64,
    /// Reads for connections of another process that found no room there.
    pub sibling_dropped: u64,
    /// Reads for connections of another process that has ended.
    pub sibling_gone: u64,
    /// Reads of another process that were taken over from it.
    pub sibling_received: u64,
    /// Payloads in the reads that were taken over.
    pub sibling_payloads: u64,
    /// Reads that the kernel has steered to this process, which has handed over.
    pub steered: u64,
    /// Payloads among these that were for another process, and dropped.
    pub misdirected: u64,
    /// Payloads with the header of a load balancer that is not believed, or with a broken one.
    pub proxied_dropped: u64,
}

impl std::ops::AddAssign for SocketStats {
    fn add_assign(&mut self, other: Self) {
        self.send_calls += other.send_calls;
        self.receive_calls += other.receive_calls;
        self.reads += other.reads;
        self.datagrams += other.datagrams;
        self.send_blocked += other.send_blocked;
        self.forwards_dropped += other.forwards_dropped;
        self.sibling_sent += other.sibling_sent;
        self.sibling_dropped += other.sibling_dropped;
        self.sibling_gone += other.sibling_gone;
        self.sibling_received += other.sibling_received;
        self.sibling_payloads += other.sibling_payloads;
        self.steered += other.steered;
        self.misdirected += other.misdirected;
        self.proxied_dropped += other.proxied_dropped;
    }
}

/// Owns the socket and its buffers.
pub(crate) struct Socket {
    watched: Watched,
    state: UdpSocketState,
    buffers: ReceiveBuffers,
    /// Load balancers that name clients.
    pub(crate) balancers: Option<LoadBalancers>,
    /// Payloads with the headers for a load balancer.
    wrapped: Vec<u8>,
    pub(crate) stats: SocketStats,
}

impl Socket {
    /// Takes a bound socket; must be called within a tokio runtime.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let sock = socket2::SockRef::from(&socket);
        grow_buffers(&sock);
        // RFC 8899 §3 MUST-1: nor are probes
        // RFC 8899 §4.5 MUST-1: the system keeps no packet back for what it believes of the path
        // RFC 9000 §14 MUST NOT-2: datagrams are not fragmented by IP
        // RFC 9000 §14 MUST-1: Don't Fragment is set in IPv4 where possible
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let watched = Watched::new(socket)?;
        let (buffers, stats) = (ReceiveBuffers::default(), SocketStats::default());
        Ok(Self { watched, state, buffers, balancers: None, wrapped: Vec::new(), stats })
    }

    /// Lets another process read the socket, or reads it again; must be called within a tokio runtime.
    pub(crate) fn set_reading(&mut self, reading: bool) -> io::Result<()> {
        let copy = self.watched.socket().try_clone()?;
        self.watched = if reading { Watched::new(copy)? } else { Watched::unread(copy)? };
        Ok(())
    }

    /// Sends and receives over this interface alone, whatever the routes say.
    #[cfg(target_os = "linux")]
    pub(crate) fn stay_on(&self, device: &str) -> io::Result<()> {
        socket2::SockRef::from(self.watched.socket()).bind_device(Some(device.as_bytes()))
    }

    /// Sends and receives over this interface alone, whatever the routes say.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn stay_on(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Number of payloads that one send may carry.
    pub(crate) fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Ready when the socket, which had no room for a send, may have some.
    pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched.poll_writable(cx)
    }

    /// Makes one system call if data is available; passes each read to `take`, with the hint of a load balancer. Returns the number of
    /// bytes. Otherwise the task is woken when there is data.
    pub(crate) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        clock: &Clock,
        mut take: impl FnMut(Instant, Datagram, Option<u8>),
    ) -> Poll<io::Result<usize>> {
        let mut metas = [RecvMeta::default(); BATCH];
        let (state, buffers) = (&self.state, &mut self.buffers);
        let read = self.watched.poll_read(cx, |socket| {
            let mut free = buffers.ready(BATCH).iter_mut();
            let mut slices: [IoSliceMut<'_>; BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(free.next().expect("as many as were asked for")));
            state.recv(UdpSockRef::from(socket), &mut slices, &mut metas)
        });
        if read.is_pending() {
            self.buffers.rest();
        }
        let count = ready!(read)?;
        let now = clock.now();
        self.stats.receive_calls += 1;
        let metas = &metas[..count];
        let mut bytes = 0;
        for (payload, meta) in self.buffers.take(metas.iter().map(|meta| meta.len)).zip(metas) {
            bytes += meta.len;
            if meta.len == 0 {
                continue;
            }
            self.stats.reads += 1;
            self.stats.datagrams += meta.len.div_ceil(meta.stride.max(1)) as u64;
            let datagram = Datagram {
                remote: meta.addr,
                local: meta.dst_ip,
                ecn: meta.ecn.map(from_codepoint),
                received_at: now,
                segment_size: meta.stride,
                payload,
            };
            match &self.balancers {
                Some(balancers) if ProxyHeader::begins(&datagram.payload) => {
                    let dropped = balancers.unwrap(datagram, |part, hint| take(now, part, hint));
                    self.stats.proxied_dropped += dropped;
                }
                _ => take(now, datagram, None),
            }
        }
        Poll::Ready(Ok(bytes))
    }

    /// One system call.
    pub(crate) fn try_send(&mut self, transmit: &Transmit, payload: &[u8]) -> io::Result<()> {
        let wrapped = self.balancers.as_ref().and_then(|all| all.wrap(transmit, payload, &mut self.wrapped));
        let (transmit, payload) = match &wrapped {
            Some(wrapped) => (wrapped, &self.wrapped[..]),
            None => (transmit, payload),
        };
        let out = quinn_udp::Transmit {
            destination: transmit.remote,
            ecn: transmit.ecn.map(to_codepoint),
            contents: &payload[..transmit.len],
            segment_size: (transmit.segment_size < transmit.len).then_some(transmit.segment_size),
            src_ip: transmit.local,
        };
        let result = self.state.try_send(UdpSockRef::from(self.watched.socket()), &out);
        match &result {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.stats.send_blocked += 1,
            _ => self.stats.send_calls += 1,
        }
        result
    }
}

/// Requests large buffers: first without the administrator's limit, which needs a privilege, then within it.
pub(crate) fn grow_buffers(socket: &socket2::SockRef<'_>) {
    if force_buffers(socket).is_err() {
        // Within the limit the kernel grants what it can; that it grants less is no error.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "SO_RCVBUFFORCE and SO_SNDBUFFORCE have no safe wrapper")]
fn force_buffers(socket: &socket2::SockRef<'_>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let size = i32::try_from(SOCKET_BUFFER).expect("8 MiB fits");
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        // SAFETY: the descriptor is open for the life of `socket`, and the option takes a pointer to a C int.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const size).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn force_buffers(_: &socket2::SockRef<'_>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn from_codepoint(ecn: EcnCodepoint) -> Ecn {
    match ecn {
        EcnCodepoint::Ect0 => Ecn::Ect0,
        EcnCodepoint::Ect1 => Ecn::Ect1,
        EcnCodepoint::Ce => Ecn::Ce,
    }
}

pub(crate) fn to_codepoint(ecn: Ecn) -> EcnCodepoint {
    match ecn {
        Ecn::Ect0 => EcnCodepoint::Ect0,
        Ecn::Ect1 => EcnCodepoint::Ect1,
        Ecn::Ce => EcnCodepoint::Ce,
    }
}

/// Returns whether an error of a read is about an earlier datagram, or an interruption.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// A socket option that is a number.
    #[expect(unsafe_code, reason = "these options have no safe wrapper")]
    fn option(socket: &Socket, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        let mut value: libc::c_int = -1;
        let mut len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `value`.
        let result = unsafe {
            libc::getsockopt(socket.watched.socket().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        value
    }

    #[tokio::test]
    async fn each_datagram_of_a_read_counts() {
        let mut receiver = Socket::new(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.watched.socket().local_addr().unwrap();
        let state = UdpSocketState::new(UdpSockRef::from(&sender)).unwrap();
        let (contents, clock) = ([7; 350], Clock::start());
        // Loopback delivers such a batch in one read, where the kernel has GSO and GRO.
        let segment_size = (state.max_gso_segments() >= 4).then_some(100);
        let batch = quinn_udp::Transmit { destination: to, ecn: None, contents: &contents, segment_size, src_ip: None };
        state.try_send(UdpSockRef::from(&sender), &batch).unwrap();
        sender.send_to(&[7; 100], to).unwrap();
        let (mut bytes, mut reads) = (0, 0);
        while bytes < 450 {
            let read = std::future::poll_fn(|cx| receiver.poll_recv(cx, &clock, |_, _, _| reads += 1));
            bytes += read.await.unwrap();
        }
        let datagrams = if segment_size.is_some() { 5 } else { 2 };
        assert_eq!((receiver.stats.datagrams, receiver.stats.reads), (datagrams, reads));
    }

    // RFC 8899 §3 MUST-1; RFC 8899 §4.5 MUST-1
    #[tokio::test]
    async fn nothing_is_fragmented_and_the_system_believes_nothing_of_the_path() {
        let socket = Socket::new(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), libc::IP_PMTUDISC_PROBE);
        let Ok(six) = std::net::UdpSocket::bind("[::1]:0") else { return };
        let socket = Socket::new(six).unwrap();
        assert_eq!(option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER), libc::IPV6_PMTUDISC_PROBE);
    }
}
