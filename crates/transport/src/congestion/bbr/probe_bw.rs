//! ProbeBW: cycle of leaving headroom, cruising, refilling the pipe and probing for more bandwidth (draft "ProbeBW").

use units::{Duration, Instant};

use super::bounds::UNBOUNDED;
use super::tuning::{BETA, HEADROOM, UNITY};
use super::{Bbr, Sample, State};

/// T_bbr: the time between probes is drawn from this …
const WAIT: Duration = Duration::from_secs(2);
/// … to this much more, in microseconds.
const WAIT_SPREAD_MICROS: u64 = 1_000_000;
/// T_reno: rounds between probes at most, so that Reno and CUBIC find room on short paths.
const RENO_ROUNDS: u64 = 63;
/// The cwnd gain outside of ProbeBW_UP.
const CWND_GAIN: u64 = 200;
/// The step of the long-term bound doubles at most so often.
const MAX_UP_ROUNDS: u32 = 30;

/// Phase of bandwidth probing that acknowledgements report on (the draft's ack_phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// Owns the cycle.
#[derive(Clone, Debug)]
pub(super) struct Cycle {
    ack_phase: AckPhase,
    /// Time at which the cycle began, and how long it may last until the next probe.
    stamp: Instant,
    wait: Duration,
    rounds_since_probe: u64,
    /// Set while samples are those of a probe.
    probe_sample: bool,
    /// Set after a probe with too much loss: the next one reaches only to the known safe amount.
    too_high: bool,
    precautionary: bool,
    up_rounds: u32,
    up_acked: u64,
    up_acked_per_step: u64,
}

impl Cycle {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ack_phase: AckPhase::Init,
            stamp: now,
            wait: Duration::ZERO,
            rounds_since_probe: 0,
            probe_sample: false,
            too_high: false,
            precautionary: false,
            up_rounds: 0,
            up_acked: 0,
            up_acked_per_step: UNBOUNDED,
        }
    }

    /// ProbeRTT interrupts: no probe is in progress any more.
    pub(super) fn stop_probing(&mut self) {
        self.ack_phase = AckPhase::ProbeStopping;
    }

    pub(super) fn on_round(&mut self) {
        self.rounds_since_probe += 1;
    }

    pub(super) fn is_probe_sample(&self) -> bool {
        self.probe_sample
    }
}

impl Bbr {
    /// EnterProbeBW.
    pub(super) fn enter_probe_bw(&mut self, sample: &Sample) {
        self.start_down(sample.now, sample.delivered);
    }

    pub(super) fn is_in_probe_bw(&self) -> bool {
        matches!(self.state, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// StartProbeBW_DOWN.
    pub(super) fn start_down(&mut self, now: Instant, delivered: u64) {
        self.bounds.reset_signals();
        self.cycle.up_acked_per_step = UNBOUNDED;
        // PickProbeWait: chance keeps connections from probing at the same time for ever.
        self.cycle.rounds_since_probe = self.dice.below(2);
        self.cycle.wait = WAIT + Duration::from_micros(self.dice.below(WAIT_SPREAD_MICROS));
        self.cycle.stamp = now;
        self.cycle.ack_phase = AckPhase::ProbeStopping;
        self.rounds.restart(delivered);
        self.enter(State::Down, self.tuning.down_pacing_gain, CWND_GAIN);
    }

    /// StartProbeBW_CRUISE.
    pub(super) fn start_cruise(&mut self) {
        self.enter(State::Cruise, UNITY, CWND_GAIN);
    }

    /// StartProbeBW_REFILL.
    pub(super) fn start_refill(&mut self) {
        self.bounds.reset_short_term();
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.precautionary = false;
        self.cycle.ack_phase = AckPhase::Refilling;
        self.rounds.restart(self.delivered);
        self.enter(State::Refill, UNITY, CWND_GAIN);
    }

    /// StartProbeBW_UP.
    fn start_up(&mut self, sample: &Sample) {
        self.cycle.probe_sample = true;
        self.cycle.ack_phase = AckPhase::ProbeStarting;
        self.rounds.restart(sample.delivered);
        self.full_pipe.restart(sample.rate);
        self.cycle.stamp = if self.tuning.up_ends_at.is_some() { sample.now } else { self.cycle.stamp };
        self.enter(State::Up, self.tuning.up_pacing_gain, self.tuning.up_cwnd_gain);
        self.raise_slope();
    }

    /// UpdateProbeBWCyclePhase.
    pub(super) fn update_cycle(&mut self, sample: &Sample) {
        if !self.full_pipe.is_reached() || self.adapt_long_term(sample) {
            return;
        }
        match self.state {
            State::Down | State::Cruise => {
                let probes = self.probes_if_due(sample);
                if !probes && self.state == State::Down && self.is_time_to_cruise(sample) {
                    self.start_cruise();
                }
            }
            // One round has filled the pipe.
            State::Refill if self.rounds.started() => self.start_up(sample),
            State::Up => self.stop_if_probed(sample),
            _ => {}
        }
    }

    fn stop_if_probed(&mut self, sample: &Sample) {
        if self.is_time_to_go_down(sample) {
            self.cycle.too_high = false;
            self.start_down(sample.now, sample.delivered);
        }
    }

    /// IsTimeToProbeBW: by the clock, or as often as Reno would have lost a packet on this path.
    fn probes_if_due(&mut self, sample: &Sample) -> bool {
        let reno_rounds = (self.target_inflight() / self.mtu).min(RENO_ROUNDS);
        let due = sample.now > self.cycle.stamp + self.cycle.wait || self.cycle.rounds_since_probe >= reno_rounds;
        if due {
            self.start_refill();
        }
        due
    }

    /// IsTimeToCruise: there is headroom, and no queue of this flow.
    fn is_time_to_cruise(&self, sample: &Sample) -> bool {
        sample.in_flight <= self.with_headroom() && sample.in_flight <= self.target(self.max_bw.get())
    }

    /// IsTimeToGoDown.
    fn is_time_to_go_down(&mut self, sample: &Sample) -> bool {
        // Precautionary probing: what was too much last time is not held for a round to see whether it still is.
        if self.cycle.too_high && sample.in_flight >= self.bounds.inflight_long {
            self.cycle.precautionary = true;
            return true;
        }
        if let Some(gain) = self.tuning.up_ends_at {
            let rtt = self.min_rtt.get().unwrap_or_default();
            let bound = self.quantised(self.bdp(self.max_bw.get(), gain));
            return sample.now.nanos_since(self.cycle.stamp) > rtt && sample.in_flight >= bound;
        }
        if sample.window_full && self.window >= self.bounds.inflight_long {
            // The bound limits the rate, so that a plateau of it says nothing about the path.
            self.full_pipe.restart(sample.rate);
            return false;
        }
        self.full_pipe.is_full_now()
    }

    /// InflightWithHeadroom.
    pub(super) fn with_headroom(&self) -> u64 {
        let bound = self.bounds.inflight_long;
        if bound == UNBOUNDED {
            return UNBOUNDED;
        }
        (bound - (bound / 100 * HEADROOM).max(self.mtu).min(bound)).max(self.min_pipe())
    }

    /// RaiseInflightLongtermSlope: steps of 1, 2, 4, … datagrams in successive rounds.
    fn raise_slope(&mut self) {
        let steps = 1_u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(MAX_UP_ROUNDS);
        self.cycle.up_acked_per_step = (self.window / steps).max(self.mtu);
    }

    /// ProbeInflightLongtermUpward.
    fn raise_long_term(&mut self, sample: &Sample) {
        if !sample.window_full || self.window < self.bounds.inflight_long {
            return;
        }
        self.cycle.up_acked += sample.newly_acked;
        if self.cycle.up_acked >= self.cycle.up_acked_per_step {
            let steps = self.cycle.up_acked / self.cycle.up_acked_per_step;
            self.cycle.up_acked -= steps * self.cycle.up_acked_per_step;
            self.bounds.inflight_long += steps * self.mtu;
        }
        if self.rounds.started() {
            self.raise_slope();
        }
    }

    /// AdaptLongTermModel; true when it has decided on a state.
    fn adapt_long_term(&mut self, sample: &Sample) -> bool {
        if self.rounds.started() {
            match self.cycle.ack_phase {
                AckPhase::ProbeStarting => self.cycle.ack_phase = AckPhase::ProbeFeedback,
                AckPhase::ProbeStopping => {
                    self.cycle.probe_sample = false;
                    self.cycle.ack_phase = AckPhase::Init;
                    if self.is_in_probe_bw() {
                        if !sample.app_limited {
                            self.max_bw.advance();
                        }
                        // Precautionary probing: what was too much last time was harmless now: the real probe follows.
                        if self.cycle.precautionary && !self.cycle.too_high {
                            self.start_refill();
                            return true;
                        }
                    }
                }
                _ => {}
            }
        }
        if self.bounds.inflight_long == UNBOUNDED || self.bounds.is_too_high(sample.lost, sample.tx_in_flight) {
            return false;
        }
        self.bounds.inflight_long = self.bounds.inflight_long.max(sample.tx_in_flight);
        if self.state == State::Up {
            self.raise_long_term(sample);
        }
        false
    }

    /// HandleInflightTooHigh: the probe has lost too much, of a flight of `tx_in_flight` bytes.
    pub(super) fn on_probe_too_high(&mut self, now: Instant, tx_in_flight: u64, app_limited: bool) {
        self.cycle.too_high = true;
        // Once per probe.
        self.cycle.probe_sample = false;
        if !app_limited {
            self.bounds.inflight_long = tx_in_flight.max(self.target_inflight() / 100 * BETA);
        }
        if self.state == State::Up {
            self.recovery.saved.state = Some(State::Up);
            self.start_down(now, self.delivered);
        }
    }
}
