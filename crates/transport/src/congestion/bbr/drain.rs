//! Drain: empties the queue that Startup has built (draft "Drain").

use super::{Bbr, Sample, State};

impl Bbr {
    /// EnterDrain.
    pub(super) fn enter_drain(&mut self) {
        self.enter(State::Drain, self.tuning.drain_pacing_gain, self.tuning.startup_cwnd_gain);
        self.drain_start_round = self.rounds.count();
    }

    /// CheckDrainDone: the queue is gone, or the bandwidth was overestimated and it would take too long to find out here.
    pub(super) fn check_drain_done(&mut self, sample: &Sample) {
        if self.state != State::Drain {
            return;
        }
        let rounds = self.rounds.count() - self.drain_start_round;
        if sample.in_flight <= self.target(self.bw) || rounds > self.tuning.drain_rounds {
            self.enter_probe_bw(sample);
        }
    }
}
