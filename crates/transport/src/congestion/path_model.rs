//! Path model of a controller, for diagnostics and tests.

use units::{Bitrate, Duration};

/// Model of one path at one moment. `None`: no such bound, or no measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathModel {
    /// Largest delivery rate seen lately; zero before the first sample.
    pub max_bandwidth: Bitrate,
    /// Largest delivery rate within the short-term bound.
    pub bandwidth: Bitrate,
    /// Short-term bound of the rate, which congestion in the present cycle sets.
    pub bandwidth_shortterm: Option<Bitrate>,
    /// Short-term bound of the flight, in bytes.
    pub inflight_shortterm: Option<u64>,
    /// Long-term bound of the flight, in bytes: what the path carried when it was probed.
    pub inflight_longterm: Option<u64>,
    /// Smallest round-trip time seen lately.
    pub min_rtt: Option<Duration>,
    /// Bytes acknowledged at a time beyond what the bandwidth explains.
    pub extra_acked: u64,
    /// Pacing rate as a share of the bandwidth.
    pub pacing_gain_percent: u64,
    /// Congestion window as a share of the bandwidth-delay product.
    pub cwnd_gain_percent: u64,
    /// Bandwidth-delay product in bytes.
    pub bdp: u64,
    /// Flight that fills the path without a queue, in bytes.
    pub target: u64,
    /// Long-term bound less the headroom for other flows, in bytes.
    pub target_with_headroom: Option<u64>,
    /// Number of times each state was entered; one acknowledgement may lead through several.
    pub state_entries: [(&'static str, u32); 7],
    /// Number of packet-timed round trips.
    pub rounds: u64,
    /// Rounds in a row in which the delivery rate grew by less than a quarter.
    pub plateau_rounds: u32,
    /// Delivery has stopped growing since the present search began.
    pub full_now: bool,
    /// The pipe was full at any time.
    pub full_reached: bool,
    /// The connection has just begun to send again after idling.
    pub idle_restart: bool,
    /// The state that losses have ended, to return to should they prove spurious.
    pub undo_state: Option<&'static str>,
    /// The short-term rate bound at the begin of the last loss recovery.
    pub undo_bandwidth_shortterm: Option<Bitrate>,
    /// The short-term flight bound at that time, in bytes.
    pub undo_inflight_shortterm: Option<u64>,
    /// The long-term flight bound at that time, in bytes.
    pub undo_inflight_longterm: Option<u64>,
}
