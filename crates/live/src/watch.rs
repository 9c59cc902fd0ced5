//! View of a run while it goes on.

use core::ops::ControlFlow;

use emu::network::TcpInfo;
use lab::view::SenderView;
use units::{Bitrate, Duration, Instant};

/// Sender of the data of a connection at one moment. `None`: not reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sender {
    /// Bytes that were sent on streams, each counted once. Of the kernel's TCP those of TLS on top.
    pub bytes: Option<u64>,
    /// Smoothed RTT.
    pub smoothed_rtt: Option<Duration>,
    /// RTT samples since the last look, of the time that is measured.
    pub rtts: Option<Vec<Duration>>,
    /// Congestion window in bytes.
    pub window: Option<u64>,
    /// Bytes in flight.
    pub in_flight: Option<u64>,
    /// Rate at which packets are released.
    pub pacing_rate: Option<Bitrate>,
    /// Delivery rate as the stack measures it.
    pub delivery_rate: Option<Bitrate>,
    /// Packets sent; of the kernel's TCP those with data.
    pub packets_sent: Option<u64>,
    /// Packets declared lost; of the kernel's TCP those sent again.
    pub packets_lost: Option<u64>,
    /// Packets that forward error correction rebuilt.
    pub packets_repaired: Option<u64>,
    /// Acknowledgements received.
    pub acks: Option<u64>,
    /// State of the congestion controller.
    pub state: Option<&'static str>,
}

impl From<SenderView> for Sender {
    fn from(view: SenderView) -> Self {
        let counters = view.counters;
        Self {
            bytes: counters.map(|counters| counters.stream_bytes),
            smoothed_rtt: view.smoothed_rtt,
            rtts: None,
            window: Some(view.window),
            in_flight: Some(view.in_flight),
            pacing_rate: view.pacing_rate,
            delivery_rate: view.model.map(|model| model.max_bandwidth).filter(|rate| rate.as_bps() > 0),
            packets_sent: counters.map(|counters| counters.packets_sent),
            packets_lost: counters.map(|counters| counters.packets_lost),
            packets_repaired: counters.map(|counters| counters.packets_repaired),
            acks: counters.map(|counters| counters.acks),
            state: Some(view.state),
        }
    }
}

impl From<TcpInfo> for Sender {
    fn from(info: TcpInfo) -> Self {
        let bytes = |packets: u32| u64::from(packets) * u64::from(info.segment_size);
        Self {
            bytes: Some(info.bytes_sent.saturating_sub(info.bytes_resent)),
            smoothed_rtt: Some(info.smoothed_rtt).filter(|rtt| !rtt.is_zero()),
            window: Some(bytes(info.window)),
            in_flight: Some(bytes(info.unacknowledged)),
            delivery_rate: info.delivery_rate,
            packets_sent: Some(info.data_packets_sent.into()),
            packets_lost: Some(info.retransmits.into()),
            ..Self::default()
        }
    }
}

/// Observer of a run: called at regular moments with the senders of all connections, `None` before there is a connection or where the
/// stack shows nothing. A run that it breaks off is a failed run. It is called without any sender before a run is made again
/// ([`crate::Repeats`]): what it has seen does not count.
pub struct Watch<'a> {
    /// Time between two calls.
    pub every: Duration,
    /// The observer.
    pub see: &'a dyn Fn(&[Option<Sender>]) -> ControlFlow<()>,
}

impl core::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watch").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Looks of an observer at a run, if there is one.
pub(crate) struct Looks<'a> {
    watch: Option<&'a Watch<'a>>,
    next: Instant,
}

impl<'a> Looks<'a> {
    pub(crate) fn new(watch: Option<&'a Watch<'a>>) -> Self {
        Self { watch, next: Instant::ZERO }
    }

    /// The next look, or `until` if that is sooner.
    pub(crate) fn next(&self, until: Instant) -> Instant {
        if self.watch.is_some() { self.next.min(until) } else { until }
    }

    /// Shows the senders, if it is time.
    ///
    /// # Errors
    /// When the observer breaks the run off.
    pub(crate) fn look(&mut self, at: Instant, senders: impl FnOnce() -> Vec<Option<Sender>>) -> Result<(), String> {
        let Some(watch) = self.watch.filter(|_| at >= self.next) else { return Ok(()) };
        self.next = at + watch.every;
        match (watch.see)(&senders()) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err("the run was broken off".to_owned()),
        }
    }
}
