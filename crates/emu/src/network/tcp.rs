//! Statistics of the kernel about a TCP connection (`TCP_INFO`), and the kernel's congestion controllers.

use std::{fs, io, os::fd::BorrowedFd};

use units::{Bitrate, Duration};

use super::{Namespace, sys};

/// Bit of `tcpi_options`: data of the SYN was acknowledged (`TCPI_OPT_SYN_DATA`).
const SYN_DATA: u8 = 32;
/// Flag of `struct mptcp_info`: the other end, or something between, does not speak it.
const MPTCP_FALLBACK: u32 = 1;
/// Both roles send and take data in a SYN, without a cookie: as where the client has one (`tcp_fastopen` of the kernel's ip-sysctl).
const FAST_OPEN: &str = "519";
/// Connections that may wait for the end of a handshake whose SYN carried data.
const FAST_OPEN_BACKLOG: libc::c_int = 16;

/// Statistics of a TCP connection, of its sending side unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed RTT.
    pub smoothed_rtt: Duration,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Duration,
    /// Largest payload of a sent packet (MSS).
    pub segment_size: u32,
    /// Congestion window in packets.
    pub window: u32,
    /// Packets in flight: sent and neither acknowledged nor declared lost.
    pub unacknowledged: u32,
    /// Bytes that wait to be sent for the first time.
    pub unsent: u32,
    /// Packets sent again.
    pub retransmits: u32,
    /// Packets with data, those sent again included.
    pub data_packets_sent: u32,
    /// Bytes of data sent, those sent again included.
    pub bytes_sent: u64,
    /// Bytes among them that had been sent before.
    pub bytes_resent: u64,
    /// Rate at which data was delivered lately; `None` before there is a sample.
    pub delivery_rate: Option<Bitrate>,
    /// RTT as the receiving side estimates it; zero before there is a sample.
    pub receive_rtt: Duration,
    /// Packets received with data.
    pub data_packets_received: u32,
    /// Packets received with data beyond a gap; zero where the kernel is older than 5.4 and does not count them.
    pub out_of_order_packets: u32,
    /// Bytes of data received in order.
    pub bytes_received: u64,
    /// The SYN carried data, and the other end took it (RFC 7413).
    pub syn_data: bool,
}

impl TcpInfo {
    /// Reads the statistics of a socket.
    ///
    /// # Errors
    /// When it is no TCP socket, or the kernel is older than 4.19 and does not count bytes.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut bytes = [0; 256];
        let length = sys::tcp_info(socket, &mut bytes)?;
        Self::read(&bytes[..length]).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Sums up the sockets that one end uses together: counters, windows and rates are sums, the smallest RTT is that of all, the smoothed
    /// ones are averaged. `None` without a socket.
    pub fn sum(infos: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut infos = infos.into_iter();
        let first = infos.next()?;
        let (mut count, mut rtts) = (1, first.smoothed_rtt);
        let mut sum = infos.fold(first, |sum, info| {
            (count, rtts) = (count + 1, rtts + info.smoothed_rtt);
            let rates = [sum.delivery_rate, info.delivery_rate].into_iter().flatten();
            Self {
                smoothed_rtt: sum.smoothed_rtt,
                min_rtt: sum.min_rtt.min(info.min_rtt),
                segment_size: sum.segment_size.max(info.segment_size),
                window: sum.window.saturating_add(info.window),
                unacknowledged: sum.unacknowledged.saturating_add(info.unacknowledged),
                unsent: sum.unsent.saturating_add(info.unsent),
                retransmits: sum.retransmits.saturating_add(info.retransmits),
                data_packets_sent: sum.data_packets_sent.saturating_add(info.data_packets_sent),
                bytes_sent: sum.bytes_sent.saturating_add(info.bytes_sent),
                bytes_resent: sum.bytes_resent.saturating_add(info.bytes_resent),
                delivery_rate: rates.map(Bitrate::as_bps).reduce(u64::saturating_add).map(Bitrate::from_bps),
                receive_rtt: sum.receive_rtt.max(info.receive_rtt),
                data_packets_received: sum.data_packets_received.saturating_add(info.data_packets_received),
                out_of_order_packets: sum.out_of_order_packets.saturating_add(info.out_of_order_packets),
                bytes_received: sum.bytes_received.saturating_add(info.bytes_received),
                syn_data: sum.syn_data || info.syn_data,
            }
        });
        sum.smoothed_rtt = rtts / count;
        Some(sum)
    }

    /// By the places of `struct tcp_info` in the kernel's `uapi/linux/tcp.h`, which grows at its end only.
    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let micros = |at: usize| Some(Duration::from_micros(word(at)?.into()));
        Some(Self {
            smoothed_rtt: micros(68)?,
            segment_size: word(16)?,
            window: word(80)?,
            unacknowledged: word(24)?,
            unsent: word(144)?,
            retransmits: word(100)?,
            // All ones: no sample yet.
            min_rtt: micros(148)?,
            data_packets_sent: word(156)?,
            delivery_rate: Some(long(160)?)
                .filter(|rate| *rate > 0)
                .map(|rate| Bitrate::from_bps(rate.saturating_mul(8))),
            bytes_sent: long(200)?,
            bytes_resent: long(208)?,
            receive_rtt: micros(92)?,
            data_packets_received: word(152)?,
            out_of_order_packets: word(224).unwrap_or(0),
            bytes_received: long(128)?,
            syn_data: bytes.get(5)? & SYN_DATA != 0,
        })
    }
}

/// Congestion controllers that the kernel has loaded or has in itself, as a side of a network sees them.
///
/// # Errors
/// When the kernel does not return them.
pub fn controllers(side: &Namespace) -> io::Result<Vec<String>> {
    let text = side.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control"))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Returns whether a socket speaks Multipath TCP and has not fallen back to TCP.
///
/// # Errors
/// When it is no socket of Multipath TCP, or the kernel is older than 5.16.
pub fn is_multipath(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(sys::mptcp_flags(socket)? & MPTCP_FALLBACK == 0)
}

/// Permits TCP Fast Open (RFC 7413) on a side of a network, without cookies: each connection is as one to a server that the client knows.
///
/// # Errors
/// When the system keeps the setting of a network namespace from being written.
pub fn permit_fast_open(side: &Namespace) -> io::Result<()> {
    side.run(|| fs::write("/proc/sys/net/ipv4/tcp_fastopen", FAST_OPEN))
}

/// Lets a listener take data in a SYN.
///
/// # Errors
/// When the kernel does not have TCP Fast Open.
pub fn accept_fast_open(listener: BorrowedFd<'_>) -> io::Result<()> {
    sys::set_tcp_option(listener, libc::TCP_FASTOPEN, FAST_OPEN_BACKLOG)
}

/// Lets a socket that is not connected yet send its first data in the SYN: connecting returns at once, and the first write sends both.
///
/// # Errors
/// When the kernel does not have TCP Fast Open.
pub fn connect_fast_open(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::set_tcp_option(socket, libc::TCP_FASTOPEN_CONNECT, 1)
}
