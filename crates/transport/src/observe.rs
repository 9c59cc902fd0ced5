//! What can be watched while a connection runs: the events that qlog, traces and the lab are written from.
//!
//! A connection without an observer pays one branch per event.

use units::{Bitrate, Duration, Instant};

use crate::{events::CloseReason, sent::SentFrame, timers::Timer};

/// The packet number space of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSpace {
    /// Initial packets.
    Initial,
    /// Handshake packets.
    Handshake,
    /// 0-RTT packets.
    ZeroRtt,
    /// 1-RTT packets.
    OneRtt,
}

/// A packet that left or came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent<'a> {
    /// Its packet number space.
    pub space: PacketSpace,
    /// Its number.
    pub pn: u64,
    /// Its size in bytes, header and tag included.
    pub size: usize,
    /// Its frames as bytes, as they are before sealing or after opening.
    pub payload: &'a [u8],
}

/// The state of recovery and congestion control at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryMetrics {
    /// Smallest RTT so far.
    pub min_rtt: Duration,
    /// Smoothed RTT.
    pub smoothed_rtt: Duration,
    /// Latest RTT sample.
    pub latest_rtt: Duration,
    /// Mean deviation of the RTT.
    pub rtt_variation: Duration,
    /// Congestion window in bytes.
    pub window: u64,
    /// Slow start threshold in bytes, once there is one.
    pub ssthresh: Option<u64>,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Rate of release, when packets are paced.
    pub pacing_rate: Option<Bitrate>,
    /// Consecutive probe timeouts.
    pub pto_count: u32,
    /// State of the congestion controller, in the words of its standard.
    pub state: &'static str,
}

/// Watches one connection.
pub trait Observer: Send {
    /// A packet was sealed and leaves.
    fn packet_sent(&mut self, _now: Instant, _packet: &PacketEvent<'_>) {}
    /// A packet was opened.
    fn packet_received(&mut self, _now: Instant, _packet: &PacketEvent<'_>) {}
    /// A packet was declared lost, or what was held lost arrived after all.
    fn packet_lost(&mut self, _now: Instant, _space: PacketSpace, _pn: u64) {}
    /// A frame of a lost packet will be sent again as far as it still matters.
    fn frame_lost(&mut self, _now: Instant, _frame: &SentFrame) {}
    /// An acknowledgement gave an RTT sample: as it was, and without the peer's delay of the acknowledgement (RFC 9002
    /// §5.3), which is what the path took.
    fn rtt_sample(&mut self, _now: Instant, _latest: Duration, _adjusted: Duration) {}
    /// An acknowledgement was worked through.
    fn metrics(&mut self, _now: Instant, _metrics: &RecoveryMetrics) {}
    /// A deadline passed.
    fn timer_expired(&mut self, _now: Instant, _timer: Timer) {}
    /// The handshake is complete.
    fn connected(&mut self, _now: Instant, _alpn: &[u8]) {}
    /// The keys of 1-RTT packets were replaced.
    fn keys_updated(&mut self, _now: Instant) {}
    /// The connection is over.
    fn closed(&mut self, _now: Instant, _reason: &CloseReason) {}
}
