//! Startup: twice the rate in each round, until delivery stops growing (draft "Startup").

use super::tuning::UNITY;
use super::{Bbr, Sample, State};

/// Owns what Startup counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Startup {
    /// Ranges of packets lost in the present round of losses.
    ranges: u32,
    /// The last packet lost.
    last_lost: Option<u64>,
}

impl Startup {
    /// Counts separate ranges: losses in a row are one.
    pub(super) fn on_packet_lost(&mut self, pn: u64) {
        if self.last_lost.is_none_or(|last| pn != last + 1) {
            self.ranges += 1;
        }
        self.last_lost = Some(pn);
    }

    /// Counts ECN-CE marks as losses.
    pub(super) fn on_marked(&mut self, packets: u64) {
        self.ranges = self.ranges.saturating_add(u32::try_from(packets).unwrap_or(u32::MAX));
    }
}

impl Bbr {
    /// EnterStartup.
    pub(super) fn enter_startup(&mut self) {
        self.enter(State::Startup, self.tuning.startup_pacing_gain, self.tuning.startup_cwnd_gain);
    }

    /// CheckStartupDone.
    pub(super) fn check_startup_done(&mut self, sample: &Sample) {
        self.check_startup_loss(sample);
        if self.state == State::Startup && self.full_pipe.is_reached() {
            self.enter_drain();
        }
    }

    /// CheckStartupHighLoss, at the end of a round in recovery: draft "Exiting Startup Based on Packet Loss", three
    /// conditions that sort out what is merely a burst.
    fn check_startup_loss(&mut self, sample: &Sample) {
        if !self.bounds.loss_round_started {
            return;
        }
        let ranges = std::mem::take(&mut self.startup.ranges);
        if self.full_pipe.is_reached()
            || ranges < self.tuning.startup_loss_ranges
            || !self.bounds.is_too_high(sample.lost, sample.tx_in_flight)
        {
            return;
        }
        self.recovery.saved.state = Some(State::Startup);
        self.full_pipe.set_full();
        let bdp = self.bdp(self.max_bw.get(), UNITY);
        self.bounds.inflight_long =
            if self.tuning.startup_bound_from_delivery { bdp.max(self.bounds.inflight_latest) } else { bdp };
    }
}
