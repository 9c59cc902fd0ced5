//! ProbeRTT: periodic reduction of the bytes in flight to half, which empties the queue and shows the propagation delay (draft "ProbeRTT").

use units::{Duration, Instant};

use super::tuning::UNITY;
use super::{Bbr, Sample, State};

/// ProbeRTTInterval.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// ProbeRTTDuration.
const DURATION: Duration = Duration::from_millis(200);
/// ProbeRTTCwndGain, in per cent.
const CWND_GAIN: u64 = 50;

/// Owns the progress of a probe.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbeRtt {
    /// Time at which the flight has been low for long enough; `None` until it is low.
    done_at: Option<Instant>,
    round_done: bool,
    /// Packets that left while the path had delivered between these two: what they show of the bandwidth counts as
    /// application-limited (MarkConnectionAppLimited).
    quiet: (u64, u64),
}

impl ProbeRtt {
    /// Returns whether a packet that left when `prior_delivered` bytes had been delivered left too slowly to show the bandwidth.
    #[inline]
    pub(super) fn hides_bandwidth(&self, prior_delivered: u64) -> bool {
        prior_delivered <= self.quiet.1 && prior_delivered >= self.quiet.0
    }
}

impl Bbr {
    /// CheckProbeRTT.
    pub(super) fn check_probe_rtt(&mut self, sample: &Sample) {
        if self.state != State::ProbeRtt && self.min_rtt.is_due() && self.was_silent(sample.now) {
            self.min_rtt.probed(sample.now);
        } else if self.state != State::ProbeRtt && self.min_rtt.is_due() && !self.idle_restart {
            self.save_window(self.recovery.is_active());
            self.enter(State::ProbeRtt, UNITY, CWND_GAIN);
            self.probe_rtt = ProbeRtt { done_at: None, round_done: false, quiet: (sample.delivered.max(1), 0) };
            self.cycle.stop_probing();
            self.rounds.restart(sample.delivered);
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(sample);
        }
        if sample.delivered_since > 0 {
            self.idle_restart = false;
        }
    }

    /// Returns whether silence within the interval has emptied what this connection had in the queue, where that counts. The samples
    /// since then have shown the propagation delay, as far as a probe would have.
    fn was_silent(&self, now: Instant) -> bool {
        self.silent_at.flatten().is_some_and(|at| now <= at + INTERVAL)
    }

    fn handle_probe_rtt(&mut self, sample: &Sample) {
        self.probe_rtt.quiet.1 = sample.delivered + sample.in_flight;
        match self.probe_rtt.done_at {
            None if sample.in_flight <= self.probe_rtt_window() => {
                self.probe_rtt.done_at = Some(sample.now + DURATION);
                self.probe_rtt.round_done = false;
                self.rounds.restart(sample.delivered);
            }
            None => {}
            Some(_) => {
                self.probe_rtt.round_done |= self.rounds.started();
                if self.probe_rtt.round_done {
                    self.check_probe_rtt_done(sample.now);
                }
            }
        }
    }

    /// CheckProbeRTTDone.
    pub(super) fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt.done_at.is_none_or(|done_at| now <= done_at) {
            return;
        }
        self.min_rtt.probed(now);
        self.restore_window();
        // ExitProbeRTT: congestion met while the flight was low says nothing about the path.
        self.bounds.reset_short_term();
        if self.full_pipe.is_reached() {
            self.start_down(now, self.delivered);
            self.start_cruise();
        } else {
            self.enter_startup();
        }
    }

    /// ProbeRTTCwnd.
    pub(super) fn probe_rtt_window(&self) -> u64 {
        self.bdp(self.bw, CWND_GAIN).max(self.min_pipe())
    }
}
