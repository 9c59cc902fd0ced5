//! View of a sender's congestion control during a run, beyond the packets on the wire.

use transport::congestion::PathModel;
use units::{Bitrate, Duration};

/// A sender's congestion control at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderView {
    /// The state, in the words of the algorithm's standard.
    pub state: &'static str,
    /// The congestion window in bytes.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// The pacing rate, when packets are paced.
    pub pacing_rate: Option<Bitrate>,
    /// Smoothed RTT, where the stack reports it.
    pub smoothed_rtt: Option<Duration>,
    /// Counters, where the stack reports them.
    pub counters: Option<SenderCounters>,
    /// Largest QUIC packet in bytes.
    pub mtu: u64,
    /// The model of the path, where the controller has one.
    pub model: Option<PathModel>,
}

/// Counters of a sender since its connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Bytes of streams that were sent, each counted once.
    pub stream_bytes: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets that forward error correction rebuilt at either end.
    pub packets_repaired: u64,
    /// ACK frames received.
    pub acks: u64,
}

/// Reads the RTT samples of a sender since the last call, of the time that is measured; `None` for stacks that do not report them.
pub type RttReader = Box<dyn Fn() -> Option<Vec<Duration>>>;

/// Reads the state of a sender at any time; `None` before there is a connection, and always for stacks without such a view.
pub type Viewer = Box<dyn Fn() -> Option<SenderView>>;
