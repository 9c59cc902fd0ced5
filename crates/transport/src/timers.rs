//! Deadlines of a connection: one array, the earliest entry, and its reason.

use units::{Duration, Instant};

/// Timer of a connection, the reason of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// A packet counts as lost by time, or a probe has to be sent (RFC 9002 §6).
    LossDetection,
    /// An acknowledgement may not be delayed further (RFC 9000 §13.2.1).
    AckDelay,
    /// The pacer releases the next burst.
    Pacing,
    /// The end of a message is covered by repair symbols (docs/fec.md).
    Repair,
    /// Idle timeout (RFC 9000 §10.1).
    Idle,
    /// PING that keeps the connection and NAT bindings alive.
    KeepAlive,
    /// Silence at a client that waits for data: it may have another address without knowing.
    Silence,
    /// Rest: BLOCKED frames are repeated (RFC 9000 §4.1).
    Rest,
    /// A path has to answer a challenge by then (RFC 9000 §8.2.4).
    PathValidation,
    /// Keys of the previous phase or of 0-RTT are no longer needed (RFC 9001 §4.9.3, §6.5).
    DiscardKeys,
    /// The closing or draining period ends (RFC 9000 §10.2).
    Close,
}

impl Timer {
    /// Name, for explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LossDetection => "loss detection",
            Self::AckDelay => "acknowledgement delay",
            Self::Pacing => "pacing",
            Self::Repair => "repair",
            Self::Idle => "idle timeout",
            Self::KeepAlive => "keep-alive",
            Self::Silence => "silence",
            Self::Rest => "rest",
            Self::PathValidation => "path validation",
            Self::DiscardKeys => "discarding keys",
            Self::Close => "closing period",
        }
    }

    /// Returns whether nothing suffers when the timer fires a little late: the peer does not wait for it.
    const fn has_slack(self) -> bool {
        matches!(self, Self::Idle | Self::Rest | Self::DiscardKeys | Self::Close)
    }

    const ALL: [Self; 11] = [
        Self::LossDetection,
        Self::AckDelay,
        Self::Pacing,
        Self::Repair,
        Self::Idle,
        Self::KeepAlive,
        Self::Silence,
        Self::Rest,
        Self::PathValidation,
        Self::DiscardKeys,
        Self::Close,
    ];
}

/// Owns the deadlines. One that is not set lies in the far future.
pub(crate) struct Timers([Instant; Timer::ALL.len()]);

impl Default for Timers {
    fn default() -> Self {
        Self([Instant::FAR_FUTURE; Timer::ALL.len()])
    }
}

/// A deadline that is set.
#[inline]
fn known(at: Instant) -> Option<Instant> {
    (at != Instant::FAR_FUTURE).then_some(at)
}

impl Timers {
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        self.0[timer as usize] = at.unwrap_or(Instant::FAR_FUTURE);
    }

    pub(crate) fn get(&self, timer: Timer) -> Option<Instant> {
        known(self.0[timer as usize])
    }

    /// The earliest deadline.
    #[inline]
    fn earliest(&self) -> Instant {
        self.0.iter().fold(Instant::FAR_FUTURE, |earliest, at| earliest.min(*at))
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::default();
    }

    /// The earliest deadline and its reason: of several, the first in the order of timers.
    pub(crate) fn next(&self) -> Option<(Instant, Timer)> {
        let at = known(self.earliest())?;
        Timer::ALL.into_iter().find(|timer| self.0[*timer as usize] == at).map(|timer| (at, timer))
    }

    /// Time to wake up for the earliest deadline. Deadlines that may be late come together, at multiples of `slack`.
    pub(crate) fn wake_up(&self, slack: Duration) -> Option<Instant> {
        if slack.is_zero() {
            return known(self.earliest());
        }
        let at = |timer: Timer| {
            let at = self.get(timer)?;
            Some(if timer.has_slack() { at.round_up(slack) } else { at })
        };
        Timer::ALL.into_iter().filter_map(at).min()
    }

    /// Takes a timer that is due; each is reported once.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.next()?;
        (at <= now).then(|| {
            self.set(timer, None);
            timer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deadlines_that_may_be_late_are_rounded() {
        let mut timers = Timers::default();
        assert_eq!(timers.wake_up(Duration::ZERO), None);
        timers.set(Timer::Rest, Some(Instant::from_millis(101)));
        let ms = |slack| timers_at(&timers, slack);
        assert_eq!([ms(0), ms(50), ms(101)], [101, 150, 101].map(|ms| Some(Instant::from_millis(ms))));
        timers.set(Timer::AckDelay, Some(Instant::from_millis(120)));
        assert_eq!(timers_at(&timers, 50), Some(Instant::from_millis(120)), "it does not wait for the other");
        timers.set(Timer::Close, Some(Instant::from_millis(100)));
        assert_eq!(timers_at(&timers, 50), Some(Instant::from_millis(100)));
    }

    #[test]
    fn cleared_timers_are_never_due() {
        let mut timers = Timers::default();
        timers.set(Timer::Idle, Some(Instant::from_millis(30)));
        timers.clear_all();
        assert_eq!((timers.next(), timers.take_due(Instant::from_millis(40))), (None, None));
    }

    fn timers_at(timers: &Timers, slack_ms: u64) -> Option<Instant> {
        timers.wake_up(Duration::from_millis(slack_ms))
    }

    #[test]
    fn the_earliest_comes_first_and_once() {
        let mut timers = Timers::default();
        timers.set(Timer::Idle, Some(Instant::from_millis(30)));
        timers.set(Timer::AckDelay, Some(Instant::from_millis(25)));
        assert_eq!(timers.next(), Some((Instant::from_millis(25), Timer::AckDelay)));
        assert_eq!(timers.take_due(Instant::from_millis(24)), None);
        assert_eq!(timers.take_due(Instant::from_millis(30)), Some(Timer::AckDelay));
        assert_eq!(timers.take_due(Instant::from_millis(30)), Some(Timer::Idle));
        assert_eq!(timers.take_due(Instant::from_millis(30)), None);
    }
}
