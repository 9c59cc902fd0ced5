//! Dips of the queue: a delay that falls without the doing of this flow shows that others leave the queue, mostly for a probe.
//!
//! One flow of many that probes alone finds the queue as long as before, and takes the others for rivals. Those that join it find the truth
//! together: an empty queue, or one that flows without such a probe keep filled.

use super::rounds::Round;

/// Weight of a round trip in the mean.
const GAIN: f64 = 0.125;

/// Owns the mean queueing delay over the last round trips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dip {
    /// Mean in seconds.
    mean: f64,
}

impl Dip {
    /// Begins with a queueing delay in seconds.
    pub(super) fn new(wait: f64) -> Self {
        Self { mean: wait }
    }

    /// Takes a round trip in. Returns whether its shortest delay is below this share of the mean, where the mean is above `least`, in seconds.
    pub(super) fn on_round(&mut self, round: &Round, share: f64, least: f64) -> bool {
        let is_dip = self.mean > least && round.least_wait < share * self.mean;
        self.mean += (round.wait - self.mean) * GAIN;
        is_dip
    }
}
