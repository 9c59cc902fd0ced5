//! Statistics of the kernel about a TCP connection (`TCP_INFO`), and the kernel's congestion controllers.

use std::{io, os::fd::BorrowedFd};

use units::{Bitrate, Duration};

use super::{Namespace, sys};

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
