//! UDP socket of a probe: packets with their ECN fields and times, never fragmented, and trains of them at a rate.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    sync::LazyLock,
    time::{Duration, Instant},
};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket};

use super::{
    protocol::{Order, Sent},
    wire::{Kind, Packet},
};

/// Socket buffer asked of the kernel, in bytes.
const BUFFER: usize = 8 << 20;
/// Room for the packets that the kernel hands over together.
const READ: usize = 65_536;

/// Packets of a train after which other tasks have their turn.
const YIELD: u32 = 32;

/// Time in microseconds since this process began to measure.
pub(super) fn now() -> u64 {
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(STARTED.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A packet that has arrived.
pub(super) struct Arrived<'a> {
    pub(super) from: SocketAddr,
    /// Destination address, if the system reports it.
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: u8,
    /// Bytes of UDP payload.
    pub(super) bytes: &'a [u8],
    pub(super) at: u64,
}

/// The socket.
pub(super) struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Port {
    /// Binds it; must be called within a tokio runtime.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        // The clock starts with the first socket.
        now();
        let socket = std::net::UdpSocket::bind(address)?;
        let reference = socket2::SockRef::from(&socket);
        // Within the administrator's limit; less costs packets of the fastest trains, which the receiver cannot tell from the
        // path's losses.
        let _ = reference.set_recv_buffer_size(BUFFER);
        let _ = reference.set_send_buffer_size(BUFFER);
        // Sets Don't Fragment and leaves path MTU discovery to whoever probes.
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UdpSocket::from_std(socket)?, state })
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Hands over every packet that arrives, until the task is dropped.
    pub(super) async fn receive(&self, mut take: impl FnMut(Arrived<'_>)) {
        let mut buffer = vec![0; READ];
        loop {
            let mut meta = [RecvMeta::default()];
            let read = self
                .socket
                .async_io(Interest::READABLE, || {
                    let mut slices = [IoSliceMut::new(&mut buffer)];
                    self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut meta)
                })
                .await;
            let at = now();
            let [meta] = meta;
            match read {
                Ok(1) if meta.len > 0 => {
                    let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
                    for bytes in buffer[..meta.len].chunks(meta.stride.max(1)) {
                        take(Arrived { from: meta.addr, to: meta.dst_ip, ecn, bytes, at });
                    }
                }
                Ok(_) => {}
                // An ICMP message about an earlier packet; anybody can forge those.
                Err(error) => {
                    tracing::debug!("probe: {error}");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Sends a packet at once, or as soon as the socket has room.
    pub(super) async fn send(&self, to: SocketAddr, source: Option<IpAddr>, bytes: &[u8], ecn: u8) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: EcnCodepoint::from_bits(ecn),
            contents: bytes,
            segment_size: None,
            src_ip: source,
        };
        loop {
            match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The readiness of tokio knows nothing of sends that it did not make.
                    let _ = tokio::time::timeout(Duration::from_millis(1), self.socket.writable()).await;
                    tokio::task::yield_now().await;
                }
                result => return result,
            }
        }
    }

    /// Sends without an ECN mark and without waiting for room.
    pub(super) fn send_now(&self, to: SocketAddr, source: Option<IpAddr>, bytes: &[u8]) -> io::Result<()> {
        let transmit = Transmit { destination: to, ecn: None, contents: bytes, segment_size: None, src_ip: source };
        self.state.try_send(UdpSockRef::from(&self.socket), &transmit)
    }

    /// Sends a train of packets. `may_send` is called before each with its size; `sent` is called with the time of each.
    pub(super) async fn train(
        &self,
        to: SocketAddr,
        source: Option<IpAddr>,
        packet: Packet,
        order: Order,
        mut may_send: impl FnMut(u64) -> bool,
        mut sent: impl FnMut(u64),
    ) -> Sent {
        let mut bytes = vec![0; usize::from(order.size).max(super::wire::HEAD)];
        let mut account = Sent::default();
        let begun = Instant::now();
        for number in 0..order.count {
            let due = begun + Duration::from_nanos(order.gap_ns.saturating_mul(number.into()));
            // Timers have a grain of a millisecond: what is due within it leaves together.
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await;
            } else if number % YIELD == 0 {
                // A train that is behind its time must not keep other tasks from running.
                tokio::task::yield_now().await;
            }
            if !may_send(bytes.len() as u64) {
                account.is_cut = true;
                break;
            }
            let at = now();
            Packet { number, sent: at, train: order.train, kind: Kind::Data, ..packet }.write(&mut bytes);
            if let Err(error) = self.send(to, source, &bytes, order.ecn).await {
                account.is_too_large |= is_too_large(&error);
                break;
            }
            sent(at);
            account.count += 1;
            account.last = at;
            if number == 0 {
                account.first = at;
            }
        }
        account
    }
}

/// Returns whether this machine's interface takes no packets of this size.
pub(super) fn is_too_large(error: &io::Error) -> bool {
    // EMSGSIZE has no kind of its own.
    #[cfg(unix)]
    return error.raw_os_error() == Some(libc::EMSGSIZE);
    #[cfg(not(unix))]
    return error.raw_os_error() == Some(10_040);
}
