//! Parameters of the versions that share the state machine: gains and thresholds, as data.
//!
//! Gains are per cent: applying one is a multiplication and a division by a constant.

/// A gain of one.
pub(super) const UNITY: u64 = 100;
/// PacingMarginPercent: packets leave a little slower than the path delivers, so that queues drain.
pub(super) const PACING_MARGIN: u64 = 1;
/// LossThresh: more of a flight lost than this share, in per cent, was too much in flight.
pub(super) const LOSS_THRESHOLD: u64 = 2;
/// Beta: a bound falls at most to this share of itself, in per cent.
pub(super) const BETA: u64 = 70;
/// Headroom: the share of the long-term bound that is left to others, in per cent.
pub(super) const HEADROOM: u64 = 15;
/// MinPipeCwnd, in datagrams: a receiver that acknowledges every other packet does not stall the sender.
pub(super) const MIN_PIPE_PACKETS: u64 = 4;

/// The constants of one version.
#[derive(Debug)]
pub(super) struct Tuning {
    pub(super) name: &'static str,
    pub(super) startup_pacing_gain: u64,
    pub(super) startup_cwnd_gain: u64,
    pub(super) drain_pacing_gain: u64,
    pub(super) down_pacing_gain: u64,
    pub(super) up_pacing_gain: u64,
    pub(super) up_cwnd_gain: u64,
    /// Separate ranges of packets lost in a round at which Startup ends.
    pub(super) startup_loss_ranges: u32,
    /// The long-term bound after such a Startup is at least what was delivered in the last round.
    pub(super) startup_bound_from_delivery: bool,
    /// Rounds after which Drain ends although the queue has not drained.
    pub(super) drain_rounds: u64,
    /// ProbeBW_UP ends as soon as the flight is this multiple of the BDP (in per cent), instead of when delivery stops
    /// growing.
    pub(super) up_ends_at: Option<u64>,
}

/// Version 3, as the draft has it.
pub(super) static V3: Tuning = Tuning {
    name: "bbr3",
    // 4 ln 2: the least that lets the rate double in each round.
    startup_pacing_gain: 277,
    startup_cwnd_gain: 200,
    drain_pacing_gain: 50,
    down_pacing_gain: 90,
    up_pacing_gain: 125,
    up_cwnd_gain: 225,
    startup_loss_ranges: 6,
    startup_bound_from_delivery: true,
    drain_rounds: 3,
    up_ends_at: None,
};

/// Version 2, as it was presented to the IETF's congestion control research group (IETF 104 to 109) before version 3
/// corrected it: a faster Startup that leaves a longer queue, a deeper ProbeBW_DOWN, and probes that end as soon as the
/// flight has grown by a quarter.
pub(super) static V2: Tuning = Tuning {
    name: "bbr2",
    startup_pacing_gain: 289,
    startup_cwnd_gain: 289,
    drain_pacing_gain: 35,
    down_pacing_gain: 75,
    up_pacing_gain: 125,
    up_cwnd_gain: 200,
    startup_loss_ranges: 8,
    startup_bound_from_delivery: false,
    drain_rounds: u64::MAX,
    up_ends_at: Some(125),
};
