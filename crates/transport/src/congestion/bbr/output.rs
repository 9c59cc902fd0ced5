//! Control parameters from the model: pacing rate, send quantum, window (draft "Updating Control Parameters").

use units::{Bitrate, Duration, Instant};

use super::bounds::UNBOUNDED;
use super::model::scaled;
use super::tuning::{PACING_MARGIN, UNITY};
use super::{Bbr, Sample, State};
use crate::congestion::rate::mul_div;

/// The largest burst.
const MAX_QUANTUM: u64 = 64 * 1024;
/// The RTT that the first pacing rate assumes.
const FIRST_RTT: Duration = Duration::from_millis(1);

impl Bbr {
    /// InitPacingRate: the initial window within an RTT, times the gain of Startup; with an assumed RTT before the first
    /// sample, and once again with the first.
    pub(super) fn init_pacing_rate(&mut self, rtt: Option<Duration>) {
        let nanos = u64::try_from(rtt.unwrap_or(FIRST_RTT).as_nanos()).unwrap_or(u64::MAX).max(1);
        self.pacing_rate = scaled(mul_div(self.initial_window, 8_000_000_000, nanos), self.tuning.startup_pacing_gain);
        self.set_quantum();
    }

    /// SetPacingRateWithGain: until the pipe has been full once, the rate only rises.
    pub(super) fn set_pacing_rate(&mut self, gain: u64) {
        let rate = self.bw / 100 * gain / UNITY * (100 - PACING_MARGIN);
        if self.full_pipe.is_reached() || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// SetSendQuantum: a millisecond's worth.
    pub(super) fn set_quantum(&mut self) {
        self.quantum = (self.pacing_rate / 8000).min(MAX_QUANTUM).max(2 * self.mtu);
    }

    /// SetCwnd.
    pub(super) fn set_window(&mut self, sample: &Sample) {
        let max = self.quantised(self.bdp(self.bw, self.cwnd_gain) + self.aggregation.extra_acked());
        if self.full_pipe.is_reached() {
            self.window = (self.window + sample.newly_acked).min(max);
        } else if self.window < max || sample.delivered < self.initial_window {
            self.window += sample.newly_acked;
        }
        self.window = self.window.max(self.min_pipe());
        if self.state == State::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        self.bound_window();
    }

    /// BoundCwndForModel: recent congestion, and room for others while cruising.
    fn bound_window(&mut self) {
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.bounds.inflight_long,
            State::Cruise | State::ProbeRtt => self.with_headroom(),
            State::Startup | State::Drain => UNBOUNDED,
        };
        self.window = self.window.min(cap.min(self.bounds.inflight_short).max(self.min_pipe()));
    }

    /// HandleRestartFromIdle, with the first packet that leaves.
    pub(super) fn restart_from_idle(&mut self, now: Instant) {
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.is_in_probe_bw() {
            // At the rate of the path, neither faster nor slower: the pipe is full after one round trip.
            self.set_pacing_rate(UNITY);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(now);
        }
    }

    pub(super) fn rate(&self) -> Bitrate {
        Bitrate::from_bps(self.pacing_rate)
    }
}
