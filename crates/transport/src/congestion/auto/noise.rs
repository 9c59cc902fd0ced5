//! Delays that change from one round trip to the next although the window does not: no queue of this flow's making.

/// Weight of a round trip.
const GAIN: f64 = 0.125;
/// Noise in mean differences: delays that are drawn evenly and independently have a mean of one and a half of these.
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
    /// Takes the queueing delay of a round trip in. Returns what is left of it without noise, of which half a target is no matter.
    pub(super) fn take_off(&mut self, wait: f64, target: f64) -> f64 {
        self.mean += ((wait - self.last).abs() - self.mean) * GAIN;
        self.last = wait;
        (wait - (COUNTS * self.mean - target / 2.0).max(0.0)).max(0.0)
    }
}
