//! View of a sender's congestion control during a run, beyond the packets on the wire.

use transport::congestion::PathModel;
use units::Bitrate;

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
    /// Largest QUIC packet in bytes.
    pub mtu: u64,
    /// The model of the path, where the controller has one.
    pub model: Option<PathModel>,
}

/// Reads the state of a sender at any time; `None` before there is a connection, and always for stacks without such a view.
pub type Viewer = Box<dyn Fn() -> Option<SenderView>>;
