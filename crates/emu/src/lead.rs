//! A timer that is set ahead of time, by the delay with which it wakes the thread.
//!
//! A thread that sleeps until a packet is due is late by the time it takes to wake up: 50 to 150 µs in a virtual machine. The [`Lead`] follows the
//! median of these delays. The thread waits awake for the rest, which is short, and never for a packet that is due sooner than that after another.

use units::{Duration, Instant};

/// Change of the lead after each wake-up.
const STEP: Duration = Duration::from_micros(1);
/// Largest lead: longer delays are those of a machine with other work.
const LARGEST: Duration = Duration::from_micros(200);
/// Delay of a wake-up on an idle virtual machine.
const TYPICAL: Duration = Duration::from_micros(50);

/// Time by which the timer is set ahead of a packet's.
#[derive(Debug)]
pub(crate) struct Lead {
    ahead: Duration,
    set: Option<Ahead>,
}

/// A timer that was set ahead.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Time of the packet.
    due: Instant,
    /// Time of the timer.
    at: Instant,
}

/// Way to wait until a packet is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Sleep, at most until then.
    Asleep(Instant),
    /// Stay awake: it is due within the time that a wake-up takes.
    Awake,
}

impl Default for Lead {
    fn default() -> Self {
        Self::new(TYPICAL)
    }
}

impl Lead {
    /// Begins with this delay of a wake-up.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { ahead: delay.min(LARGEST), set: None }
    }

    /// Decides how to wait for a packet.
    pub(crate) fn wait(&mut self, due: Instant, now: Instant) -> Wait {
        let at = due.saturating_sub(self.ahead);
        if at > now {
            self.set = Some(Ahead { due, at });
            return Wait::Asleep(at);
        }
        match self.set {
            // The timer has woken the thread for it.
            Some(set) if set.due == due && set.at <= now => Wait::Awake,
            // Packets that follow each other closely would keep the thread awake all the time.
            _ => {
                self.set = None;
                Wait::Asleep(due)
            }
        }
    }

    /// The timer has woken the thread.
    pub(crate) fn woken(&mut self, now: Instant) {
        let Some(set) = self.set else { return };
        self.ahead = if now.saturating_since(set.at) > self.ahead {
            (self.ahead + STEP).min(LARGEST)
        } else {
            self.ahead.saturating_sub(STEP)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn the_thread_sleeps_until_the_lead_and_waits_awake_for_the_rest() {
        let mut lead = Lead::new(Duration::from_micros(80));
        assert_eq!(lead.wait(at(1_000), at(0)), Wait::Asleep(at(920)));
        // Something else has woken it before.
        assert_eq!(lead.wait(at(1_000), at(500)), Wait::Asleep(at(920)));
        lead.woken(at(990));
        assert_eq!(lead.wait(at(1_000), at(990)), Wait::Awake);
    }

    #[test]
    fn packets_that_follow_closely_are_slept_for() {
        let mut lead = Lead::new(Duration::from_micros(80));
        assert_eq!(lead.wait(at(1_000), at(0)), Wait::Asleep(at(920)));
        assert_eq!(lead.wait(at(1_050), at(1_001)), Wait::Asleep(at(1_050)));
        assert_eq!(lead.wait(at(1_050), at(1_020)), Wait::Asleep(at(1_050)));
        // A packet that is due sooner than the one that the timer was set for.
        assert_eq!(lead.wait(at(2_000), at(1_051)), Wait::Asleep(at(1_920)));
        assert_eq!(lead.wait(at(1_930), at(1_921)), Wait::Asleep(at(1_930)));
    }

    #[test]
    fn the_lead_follows_the_median_delay() {
        let mut lead = Lead::new(Duration::from_micros(500));
        assert_eq!(lead.ahead, LARGEST);
        let mut now = at(0);
        for round in 0..1_000_u64 {
            let due = now + Duration::from_millis(1);
            let Wait::Asleep(timer) = lead.wait(due, now) else { panic!("asleep at first") };
            // Delays of 40 to 60 µs.
            now = timer + Duration::from_micros(40 + round * 7 % 21);
            lead.woken(now);
            now = now.max(due);
        }
        assert!((Duration::from_micros(45)..=Duration::from_micros(55)).contains(&lead.ahead), "{:?}", lead.ahead);
    }
}
