//! Experiment on the cause of losses: send less for a few round trips. Loss that stays is not congestion.

use super::random_loss::RandomLoss;

/// Share of the window during the experiment.
pub(super) const SHARE: f64 = 0.7;
/// Round trips after which it ends with what there is.
const MOST_ROUNDS: u32 = 30;

/// Cause of the losses that led to the experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cause {
    /// Loss that does not depend on the load, with the share that was measured.
    Random(f64),
    /// A buffer or a policer that overflows: the share measured with less load, and the window that fits.
    Overflow {
        /// Share that is still lost.
        left: f64,
        /// Window in bytes that the path carries.
        fits: f64,
    },
}

/// Owns an experiment that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeLoss {
    /// Window before it, in bytes.
    before: f64,
    /// Share of packets lost before it.
    share: f64,
    rounds: u32,
}

impl ProbeLoss {
    pub(super) fn new(window: f64, share: f64) -> Self {
        Self { before: window, share, rounds: 0 }
    }

    /// Window before the experiment, in bytes.
    pub(super) fn before(&self) -> f64 {
        self.before
    }

    /// Takes a round trip in. Returns the cause when the experiment is over.
    pub(super) fn on_round(&mut self, random_loss: &mut RandomLoss) -> Option<Cause> {
        self.rounds += 1;
        if self.rounds == 1 {
            // Packets sent before the experiment are still being reported.
            random_loss.begin_measurement();
            return None;
        }
        let seen = random_loss.measured(self.rounds >= MOST_ROUNDS)?;
        // Far above a policer, 70 % still overflows it: this share would remain.
        let remains = 1.0 - (1.0 - self.share) / SHARE;
        let is_rarer = seen < (self.share / 8.0).max(0.005) || (remains > 0.0 && seen < (self.share + remains) / 2.0);
        Some(if is_rarer || !RandomLoss::is_plausible(seen) {
            let fits = (self.before * (1.0 - self.share)).max(self.before * 0.5);
            Cause::Overflow { left: seen, fits }
        } else {
            Cause::Random(seen)
        })
    }
}
