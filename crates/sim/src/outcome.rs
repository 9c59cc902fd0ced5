//! End of a simulation, and the state of its nodes.

use core::fmt;

use units::Instant;

/// Reason why the simulation returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every node has finished.
    Finished,
    /// The time given to `run_until` has come. It may be run on.
    TimeLimit,
    /// No event is left: no packet is in transit and no node has a deadline.
    Stalled,
}

/// An unfinished node, and the event for which it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The node's name.
    pub node: String,
    /// Time at which it wants to be called, if it does.
    pub until: Option<Instant>,
    /// Reason, in the node's own words.
    pub reason: &'static str,
}

/// End of a simulation. Prints as an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a simulation that stalled has not done what was asked"]
pub struct Outcome {
    /// Reason why the simulation returned.
    pub ended: Ended,
    /// Virtual time.
    pub at: Instant,
    /// Events since the simulation was made.
    pub events: u64,
    /// Packets in flight.
    pub under_way: usize,
    /// The nodes that have not finished.
    pub waiting: Vec<Waiting>,
}

impl Outcome {
    /// Returns whether every node has finished.
    pub fn is_finished(&self) -> bool {
        self.ended == Ended::Finished
    }
}

/// More nodes than this are counted instead of listed.
const LISTED: usize = 20;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, events) = (self.at, self.events);
        match self.ended {
            Ended::Finished => return write!(f, "finished at {at:?} after {events} events"),
            Ended::TimeLimit => write!(f, "reached the time limit at {at:?} after {events} events")?,
            Ended::Stalled => write!(f, "stalled at {at:?} after {events} events: nothing can happen any more")?,
        }
        write!(f, "; packets on their way: {}; not finished: {}", self.under_way, self.waiting.len())?;
        for waiting in self.waiting.iter().take(LISTED) {
            match waiting.until {
                Some(until) => write!(f, "\n  {} waits until {until:?}: {}", waiting.node, waiting.reason)?,
                None => write!(f, "\n  {} waits for a datagram and has no deadline", waiting.node)?,
            }
        }
        match self.waiting.len().checked_sub(LISTED) {
            Some(more @ 1..) => write!(f, "\n  and {more} more"),
            _ => Ok(()),
        }
    }
}
