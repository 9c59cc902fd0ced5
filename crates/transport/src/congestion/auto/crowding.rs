//! Evidence that other flows keep the queue filled: a delay above the target that stays although this flow reduces its window.

use super::rounds::Round;

/// Mean delay in targets at which the queue is attributed to other flows.
const LONG: f64 = 2.0;
/// The same while the window is below [`STARVED`] of its last known good size: other flows take the remaining room.
const LONG_WHEN_STARVED: f64 = 1.1;
/// Share of the right window below which the flow is starved.
const STARVED: f64 = 0.6;
/// Largest weight of an excessive delay, relative to one slightly above the limit.
const URGENCY: f64 = 3.0;
/// Share of the largest window since the queue was empty, below which this flow no longer contributes to the queue.
const LEFT: f64 = 0.5;
/// Time in seconds over which the share is averaged, and the largest weight of a round trip. A flow that hesitates loses its share to others.
const SPAN: f64 = 0.4;
const LARGEST_WEIGHT: f64 = 0.5;
/// Share of recent time with such a delay at which the queue has to be probed.
const CROWDED: f64 = 0.7;
/// The same share after a probe.
const AFTER_PROBE: f64 = 0.3;

/// Owns the averages over round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowding {
    /// Window in use over the last seconds, in bytes; follows upwards at once.
    usual_window: f64,
    /// The largest window since the queue was last seen empty, in bytes.
    peak: f64,
    /// Mean queueing delay in seconds.
    wait: f64,
    /// Share of recent time in which the delay was too long.
    share: f64,
}

impl Crowding {
    pub(super) fn usual_window(&self) -> f64 {
        self.usual_window
    }

    /// Processes a round trip: its delay without noise, window, target delay, and the target delay for the usual window.
    pub(super) fn on_round(&mut self, round: &Round, wait: f64, window: f64, target: f64, usual_target: f64) {
        let rtt = round.rtt();
        self.usual_window = window.max(self.usual_window + (window - self.usual_window) * (rtt / 10.0).min(0.1));
        self.peak = self.peak.max(window);
        self.wait += (wait - self.wait) * rtt.min(0.3);
        let is_starved = window < STARVED * self.peak;
        let is_long = self.wait > LONG * usual_target || (is_starved && self.wait > LONG_WHEN_STARVED * target);
        // The longer the delay, the sooner it is clear.
        let urgency = (self.wait / (LONG * usual_target)).clamp(1.0, URGENCY);
        self.share += (f64::from(u8::from(is_long)) - self.share) * (urgency * rtt / SPAN).min(LARGEST_WEIGHT);
    }

    /// Returns whether the queue has to be probed.
    pub(super) fn is_crowded(&self) -> bool {
        self.share > CROWDED
    }

    /// Returns whether other flows certainly fill the queue: this flow has reduced its window as a probe would, and the queue stayed.
    pub(super) fn is_certain(&self, window: f64, usual_target: f64) -> bool {
        self.is_crowded() && window < LEFT * self.peak && self.wait > 2.0 * LONG * usual_target
    }

    /// The queue was probed; `right` is the window that the probe showed to be right, if it found the queue empty.
    pub(super) fn on_probed(&mut self, right: Option<f64>) {
        self.share = AFTER_PROBE;
        if let Some(window) = right {
            self.peak = window;
        }
    }

    /// The queue was seen empty from another mode; `window` is right.
    pub(super) fn restart(&mut self, window: f64) {
        (self.usual_window, self.peak, self.wait) = (window, window, 0.0);
    }
}
