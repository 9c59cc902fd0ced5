//! Delay noise: differences between round trips that the window of this flow does not explain.

/// Weight of a round trip.
const GAIN: f64 = 0.125;
/// Noise in mean differences: uniform independent delays have a mean of 1.5 mean differences.
const COUNTS: f64 = 1.5;

/// Owns the mean difference of the queueing delays of successive round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    /// Mean difference in seconds.
    mean: f64,
    /// Queueing delay of the last round trip in seconds.
    last: f64,
}

impl Noise {
    /// Records the queueing delay of a round trip. Returns it without noise; noise up to half of the target is not subtracted.
    pub(super) fn take_off(&mut self, wait: f64, target: f64) -> f64 {
        self.mean += ((wait - self.last).abs() - self.mean) * GAIN;
        self.last = wait;
        (wait - (COUNTS * self.mean - target / 2.0).max(0.0)).max(0.0)
    }
}
