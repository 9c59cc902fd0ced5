//! Startup: the window doubles in each round trip until the path is full.

use super::super::AckSample;
use super::rounds::Round;

/// Round trips without a higher delivery rate after which the path is full.
const FLAT_ROUNDS: u32 = 3;
/// Growth of the delivery rate below which a round trip counts as flat.
const GROWTH: f64 = 1.25;
/// Growth of the delivery rate at which no queue is growing.
const DOUBLING: f64 = 1.75;
/// Mean differences of successive RTT samples that jitter explains.
const JITTER: f64 = 3.0;
/// Mean queueing delay that shows a queue, in delays that show one where all packets have them: the window grows within the round trip, and its
/// first packets find an empty queue.
const MEAN: f64 = 4.0;
/// Losses in a round trip, in number and as a share, that end startup: a buffer or a policer overflows.
const LOSSES: (u64, f64) = (6, 0.2);

/// Owns the window of startup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    window: f64,
    /// The best delivery rate in bytes per second.
    best: f64,
    /// Round trips since it grew.
    flat: u32,
}

impl Startup {
    pub(super) fn new(window: f64) -> Self {
        Self { window, best: 0.0, flat: 0 }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    pub(super) fn keep_above(&mut self, minimum: f64) {
        self.window = self.window.max(minimum);
    }

    pub(super) fn on_acked(&mut self, ack: &AckSample) {
        if ack.window_limited {
            self.window += super::bytes(ack.bytes);
        }
    }

    /// Takes a round trip in, with the queueing delay aimed at. Returns the window that fills the path when startup has ended.
    pub(super) fn on_round(&mut self, round: &Round, target: f64) -> Option<f64> {
        let share = round.lost as f64 / round.packets().max(1.0);
        // A window that doubles while the path has room doubles the rate: then a longer delay is jitter.
        let is_doubling = round.rate > self.best * DOUBLING;
        if round.rate > self.best * GROWTH {
            self.best = round.rate;
            self.flat = 0;
        } else if round.limited {
            self.flat += 1;
        }
        // The delay of an application-limited flow is of others' making.
        let limit = (target + JITTER * round.jitter).max(round.propagation / 10.0);
        let is_queueing = round.limited && (round.least_wait > limit || round.wait > MEAN * limit);
        let is_overflowing = round.lost >= LOSSES.0 && share > LOSSES.1;
        if (!is_queueing || is_doubling) && !is_overflowing && self.flat < FLAT_ROUNDS {
            return None;
        }
        Some((self.best.max(round.rate) * round.propagation).min(self.window))
    }
}
