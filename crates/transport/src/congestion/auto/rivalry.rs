//! History of competition: when to probe for its end, how long it lasts at least, and whether it resumes.

use units::{Duration, Instant};

use super::crowding::Crowding;
use super::rounds::Round;

/// Time without a lower delay after which competitive mode probes the queue: doubles from the first to the second.
const PATIENCES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(16));
/// Competition longer than this was justified: the probe interval is reset.
const LONG: Duration = Duration::from_secs(20);
/// Time after a competition in which a filled queue continues it.
const RELAPSE: Duration = Duration::from_secs(10);
/// Bounds of the minimum duration of competition after it ended too early.
const STAYS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(32));
/// Share of its rate with which a flow starts to compete. The rate has fallen while the flow gave way to the others, and they keep what they
/// have taken until packets are lost.
const RATE: f64 = 1.5;

/// Owns the history of past competitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rivalry {
    patience: Duration,
    /// Window of the last competition in bytes, and the time until which a filled queue resumes it.
    window: f64,
    relapse_until: Instant,
    /// Minimum duration of competition: doubles with each relapse.
    stay: Duration,
}

impl Rivalry {
    pub(super) fn new(now: Instant) -> Self {
        Self { patience: PATIENCES.0, window: 0.0, relapse_until: now, stay: Duration::ZERO }
    }

    /// Time without a lower delay after which competitive mode probes the queue.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Minimum duration of the competition.
    pub(super) fn stay(&self) -> Duration {
        self.stay
    }

    /// A probe in competitive mode, which began at `since`, has ended.
    pub(super) fn on_probed(&mut self, now: Instant, since: Instant, is_empty: bool) {
        let was_right = is_empty && now >= since + LONG;
        self.patience = if was_right { PATIENCES.0 } else { (self.patience * 2).min(PATIENCES.1) };
    }

    /// Competition with this window has ended.
    pub(super) fn leave(&mut self, now: Instant, window: f64) {
        self.window = window;
        self.relapse_until = now + RELAPSE;
    }

    /// Returns the window with which a new competition begins.
    pub(super) fn begin(&mut self, crowding: &Crowding, round: &Round) -> f64 {
        self.stay = Duration::ZERO;
        usual_window(crowding, round)
    }

    /// Other flows fill the queue again. Returns the window with which the last competition resumes, unless it ended too long ago.
    pub(super) fn relapse(&mut self, now: Instant, crowding: &Crowding, round: &Round) -> Option<f64> {
        if now >= self.relapse_until {
            return None;
        }
        self.stay = (self.stay * 2).clamp(STAYS.0, STAYS.1);
        Some(self.window.max(usual_window(crowding, round)))
    }
}

/// Window in bytes for [`RATE`] of the rate of the last seconds.
fn usual_window(crowding: &Crowding, round: &Round) -> f64 {
    crowding.usual_window() * (RATE * round.rtt() / round.propagation).max(1.0)
}
