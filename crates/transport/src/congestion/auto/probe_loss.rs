//! Experiment on the cause of losses: does a lower rate reduce them?
//!
//! First, losses are counted with 70 % of the window. Without losses, a buffer or a policer had overflowed. Otherwise losses are also
//! counted with the whole window, because the count that started the experiment was selected by chance. Loss that stays is not congestion.
//! Several flows at one policer reduce the load only by a part of 30 %, so a small difference counts if there are enough packets to detect
//! it.

use super::random_loss::{Count, RandomLoss};

/// Share of the window in the first phase.
const SHARE: f64 = 0.7;
/// Bursts of losses after which a phase has seen enough, and packets that it sees at least.
const BURSTS: u32 = 20;
const PACKETS: f64 = 96.0;
/// Number of packets that suffices in any case.
const MOST_PACKETS: f64 = 1500.0;
/// Round trips after which a phase ends with the data so far; the first one shows packets sent before.
const MOST_ROUNDS: u32 = 30;
/// Share of packets, and of the losses that raised the alarm, below which the loss has gone.
const GONE: (f64, f64) = (0.005, 0.125);
/// Standard deviations of a difference that chance does not explain.
const DEVIATIONS: f64 = 3.0;
/// Share of the losses before that are left at most if sending less has helped.
const RARER: f64 = 0.8;

/// Cause of losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cause {
    /// Loss that does not depend on the load, with its share.
    Random(f64),
    /// A buffer or a policer that overflows: the share lost with less load, and the window in bytes that fits.
    Overflow { left: f64, fits: f64 },
}

/// Owns an experiment that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeLoss {
    /// Window in use, in bytes, and the share of packets that was lost with it lately.
    window: f64,
    lost: f64,
    /// Losses with less load, when they are known.
    reduced: Option<Count>,
    /// Round trips of the phase that runs.
    rounds: u32,
}

impl ProbeLoss {
    pub(super) fn new(window: f64, lost: f64) -> Self {
        Self { window, lost, reduced: None, rounds: 0 }
    }

    /// Window during the experiment, in bytes.
    pub(super) fn window(&self) -> f64 {
        if self.reduced.is_some() { self.window } else { self.window * SHARE }
    }

    /// Window before the experiment, in bytes.
    pub(super) fn before(&self) -> f64 {
        self.window
    }

    /// Takes a round trip in. Returns the cause when the experiment has ended.
    pub(super) fn on_round(&mut self, random_loss: &mut RandomLoss) -> Option<Cause> {
        self.rounds += 1;
        if self.rounds == 1 {
            random_loss.begin_count();
            return None;
        }
        let count = random_loss.count();
        let has_enough = count.packets() >= PACKETS && count.bursts >= BURSTS;
        let Some(reduced) = self.reduced else {
            let is_gone = count.share() < (self.lost * GONE.1).max(GONE.0);
            if is_gone && count.packets() >= random_loss.telling().clamp(PACKETS, MOST_PACKETS) {
                return Some(self.overflow(count.share(), self.lost));
            }
            if has_enough || self.rounds > MOST_ROUNDS {
                self.reduced = Some(count);
                self.rounds = 0;
            }
            return None;
        };
        if !has_enough && self.rounds <= MOST_ROUNDS {
            return None;
        }
        let (before, left) = (count.share(), reduced.share());
        let all = Count { acked: reduced.acked + count.acked, lost: reduced.lost + count.lost, bursts: 0 };
        let variance = all.share() * random_loss.dispersion() * (1.0 / reduced.packets() + 1.0 / count.packets());
        let is_rarer = left < RARER * before && before - left > DEVIATIONS * variance.sqrt();
        Some(if is_rarer || !RandomLoss::is_plausible(left.max(all.share())) {
            self.overflow(left, before)
        } else {
            Cause::Random(all.share())
        })
    }

    fn overflow(&self, left: f64, before: f64) -> Cause {
        Cause::Overflow { left, fits: self.window * (1.0 - before).max(0.5) }
    }
}
