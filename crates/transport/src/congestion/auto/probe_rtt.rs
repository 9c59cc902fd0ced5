//! Probe of the queue: the flow halves its window for three round trips and observes whether the queue empties.
//!
//! An empty queue gives a new sample of the propagation delay, and shows that no other flow fills the queue. All flows of a bottleneck see
//! the lowest delay at the same moment. Their probes follow it by a fixed time, so they coincide and find the queue empty.

use units::{Duration, Instant};

use super::rounds::Round;

/// Share of the window during the probe.
const SHARE: f64 = 0.5;
/// Share of the product of rate and propagation delay with which the flow continues from an empty queue.
const AFTER: f64 = 0.95;
/// Duration of the probe in round trips; the first one still shows what was sent before.
const ROUNDS: f64 = 4.0;
/// Round trips after which a clear outcome ends the probe.
const SOONEST: u32 = 2;
/// Share of the delay before the probe at which the queue counts as unchanged.
const STAYS: f64 = 0.8;
/// Mean queueing delay of a round trip in smallest ones up to which it remains: an emptied queue has packets without any.
const REMAINS: f64 = 2.0;
/// Datagrams below which a window is too small for means: then the smallest delay of a round trip counts.
const FEW: f64 = 8.0;

/// Owns a probe that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeRtt {
    window: f64,
    /// Window that fills the path and no queue.
    filling: f64,
    until: Instant,
    is_empty: bool,
    /// Round trips so far, and the queueing delay before the first in seconds.
    rounds: u32,
    before: f64,
    /// The shortest queueing delay of a round trip with the smaller window in seconds, infinite before the first.
    remaining: f64,
}

impl ProbeRtt {
    /// Begins a probe of a flow that had this window in the last round trip.
    pub(super) fn new(now: Instant, window: f64, minimum: f64, round: &Round) -> Self {
        let filling = window * round.propagation / round.rtt();
        Self {
            window: (filling * SHARE).max(minimum),
            filling: (filling * AFTER).max(minimum),
            until: now + Duration::from_secs_f64(ROUNDS * round.rtt()),
            is_empty: false,
            rounds: 0,
            before: round.floor,
            remaining: f64::INFINITY,
        }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    /// Queueing delay in seconds that remained when the probe ended.
    pub(super) fn remaining(&self) -> f64 {
        self.remaining
    }

    /// Takes a round trip in, with the delay aimed at. Returns the outcome when the probe has ended: the window that fills
    /// the path if the queue was seen empty.
    pub(super) fn on_round(&mut self, now: Instant, round: &Round, target: f64, mtu: f64) -> Option<Option<f64>> {
        let wait = if self.window < FEW * mtu { round.least_wait } else { round.queueing(target) };
        self.is_empty |= wait < target / 2.0;
        self.rounds += 1;
        if self.rounds >= SOONEST {
            self.remaining = self.remaining.min(round.wait).min(REMAINS * round.least_wait);
        }
        // The first round trip shows what was sent before. A queue that is empty after the second needs no more, and neither does
        // one that is as long as it was: it is not of this flow's making.
        let is_others = round.floor > STAYS * self.before;
        let is_clear = self.rounds >= SOONEST && (self.is_empty || is_others);
        (is_clear || now >= self.until).then(|| self.is_empty.then_some(self.filling))
    }
}
