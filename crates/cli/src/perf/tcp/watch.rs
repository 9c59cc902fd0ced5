//! The kernel's statistics of a TCP connection (`TCP_INFO`), read during a transfer.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use socket2::{SockRef, Socket};
use tokio::{net::TcpStream, task::JoinHandle, time::MissedTickBehavior};

use super::report::TcpReport;
use crate::perf::samples::Samples;

/// Time between two readings.
const PERIOD: Duration = Duration::from_millis(10);
/// Time between two looks at whether all data is acknowledged.
#[cfg(target_os = "linux")]
const LOOK: Duration = Duration::from_millis(1);

/// Counters and estimates of a connection, of its sending side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// Smoothed RTT in nanoseconds.
    pub(super) smoothed_rtt: u64,
    /// Smallest RTT in nanoseconds; 0 before there is a sample.
    pub(super) min_rtt: u64,
    /// Congestion window in bytes.
    pub(super) window: u64,
    /// Packets with data, those sent again included.
    pub(super) packets_sent: u64,
    /// Packets sent again.
    pub(super) packets_resent: u64,
    /// Bytes of TLS records sent, those sent again included.
    pub(super) bytes_sent: u64,
    /// Bytes among them that had been sent before.
    pub(super) bytes_resent: u64,
    /// Delivery rate that the kernel saw last, in bit/s; 0 before there is a sample.
    pub(super) delivery_rate: u64,
}

impl Info {
    /// Numbers in it.
    pub(super) const LEN: usize = 8;

    pub(super) fn numbers(&self) -> [u64; Self::LEN] {
        [
            self.smoothed_rtt,
            self.min_rtt,
            self.window,
            self.packets_sent,
            self.packets_resent,
            self.bytes_sent,
            self.bytes_resent,
            self.delivery_rate,
        ]
    }

    pub(super) fn from_numbers(numbers: [u64; Self::LEN]) -> Self {
        let [smoothed_rtt, min_rtt, window, packets_sent, packets_resent, bytes_sent, bytes_resent, delivery_rate] =
            numbers;
        Self { smoothed_rtt, min_rtt, window, packets_sent, packets_resent, bytes_sent, bytes_resent, delivery_rate }
    }

    #[cfg(target_os = "linux")]
    fn of(socket: &Socket) -> Option<Self> {
        use std::os::fd::AsFd;

        let info = emu::network::TcpInfo::of(socket.as_fd()).ok()?;
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Some(Self {
            smoothed_rtt: nanos(info.smoothed_rtt),
            // All ones, in microseconds: no sample yet.
            min_rtt: if info.min_rtt < Duration::from_secs(4_000) { nanos(info.min_rtt) } else { 0 },
            window: u64::from(info.window) * u64::from(info.segment_size),
            packets_sent: info.data_packets_sent.into(),
            packets_resent: info.retransmits.into(),
            bytes_sent: info.bytes_sent,
            bytes_resent: info.bytes_resent,
            delivery_rate: info.delivery_rate.map_or(0, |rate| rate.as_bps()),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_: &Socket) -> Option<Self> {
        None
    }
}

/// Reads the statistics of a connection every 10 ms until it is dropped.
pub(super) struct Watch {
    socket: Arc<Socket>,
    smoothed_rtts: Arc<Mutex<Samples>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Begins with the first reading 10 ms from now.
    ///
    /// # Errors
    /// When the system has no more file descriptors.
    pub(super) fn start(stream: &TcpStream) -> io::Result<Self> {
        let socket = Arc::new(SockRef::from(stream).try_clone()?);
        let smoothed_rtts = Arc::new(Mutex::new(Samples::new()));
        let (watched, samples) = (socket.clone(), smoothed_rtts.clone());
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks.tick().await;
            loop {
                ticks.tick().await;
                let Some(info) = Info::of(&watched) else { return };
                if info.smoothed_rtt > 0 {
                    let sample = Duration::from_nanos(info.smoothed_rtt);
                    samples.lock().unwrap_or_else(PoisonError::into_inner).record(sample);
                }
            }
        });
        Ok(Self { socket, smoothed_rtts, task })
    }

    /// Statistics at this moment; `None` where the system has none.
    pub(super) fn info(&self) -> Option<Info> {
        Info::of(&self.socket)
    }

    /// Number of readings so far.
    pub(super) fn seen(&self) -> u64 {
        self.smoothed_rtts.lock().unwrap_or_else(PoisonError::into_inner).seen()
    }

    /// Readings of the smoothed RTT so far.
    pub(super) fn smoothed_rtts(&self) -> Samples {
        self.smoothed_rtts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Congestion control that the kernel uses for the connection.
    #[cfg(target_os = "linux")]
    pub(super) fn congestion(&self) -> String {
        let name = self.socket.tcp_congestion().unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn congestion(&self) -> String {
        String::new()
    }

    /// Waits until the peer has acknowledged all data, for a while: before that the statistics are of a part.
    #[cfg(target_os = "linux")]
    async fn settled(&self) {
        use std::os::fd::AsFd;

        use tokio::time::Instant;

        use crate::perf::transfer::ANSWER_TIME;

        let until = Instant::now() + ANSWER_TIME;
        while let Ok(info) = emu::network::TcpInfo::of(self.socket.as_fd())
            && info.unsent + info.unacknowledged > 0
            && Instant::now() < until
        {
            tokio::time::sleep(LOOK).await;
        }
    }

    #[cfg(not(target_os = "linux"))]
    async fn settled(&self) {}

    /// Statistics of a connection on which everything has been written, once everything has arrived.
    pub(super) async fn last_report(&self) -> Option<TcpReport> {
        self.settled().await;
        self.report()
    }

    /// Statistics of the connection's sending side; `None` where the system has no statistics.
    pub(super) fn report(&self) -> Option<TcpReport> {
        Some(TcpReport { congestion: self.congestion(), info: self.info()?, smoothed_rtts: self.smoothed_rtts() })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
