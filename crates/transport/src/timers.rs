//! Deadlines of a connection: one array, the earliest entry, and its reason.

use units::Instant;

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

/// Owns the deadlines.
#[derive(Default)]
pub(crate) struct Timers([Option<Instant>; Timer::ALL.len()]);

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        self.0[timer as usize] = at;
    }

    pub(crate) fn get(&self, timer: Timer) -> Option<Instant> {
        self.0[timer as usize]
    }

    pub(crate) fn clear_all(&mut self) {
        self.0 = Default::default();
    }

    /// The earliest deadline and its reason.
    pub(crate) fn next(&self) -> Option<(Instant, Timer)> {
        Timer::ALL.into_iter().filter_map(|timer| Some((self.get(timer)?, timer))).min()
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
