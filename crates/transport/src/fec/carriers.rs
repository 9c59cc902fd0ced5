//! Packets that carried symbols, and whether their content still matters.

use std::collections::VecDeque;

use units::Instant;

/// Symbols whose packets are remembered, for reports that come late.
const REMEMBERED: usize = 1024;

/// A packet that carried a symbol.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    pn: u64,
    /// The peer has the symbol, one way or the other.
    settled: bool,
    /// Time from which on its content is of no use.
    expires: Instant,
}

/// Owner of the records of the latest symbols, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    list: VecDeque<Carrier>,
    /// The symbol of the first of them.
    first: u64,
    /// Symbols below are all settled.
    settled_below: u64,
}

impl Carriers {
    /// The next symbol leaves in packet `pn`.
    pub(super) fn push(&mut self, pn: u64, expires: Instant) {
        if self.list.len() == REMEMBERED {
            self.list.pop_front();
            self.first += 1;
        }
        self.list.push_back(Carrier { pn, settled: false, expires });
    }

    /// The oldest symbol that is remembered.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The packet of a symbol that is remembered and not settled.
    pub(super) fn unsettled(&self, id: u64) -> Option<u64> {
        self.get(id).filter(|carrier| !carrier.settled).map(|carrier| carrier.pn)
    }

    /// The peer has the symbol.
    pub(super) fn settle(&mut self, id: u64) {
        if let Some(carrier) = id.checked_sub(self.first).and_then(|at| self.list.get_mut(usize::try_from(at).ok()?)) {
            carrier.settled = true;
        }
    }

    /// Returns whether a symbol needs no repair at `now`: the peer has it, it has expired, or it is too old to be known.
    pub(super) fn is_done(&self, now: Instant, id: u64) -> bool {
        match self.get(id) {
            Some(carrier) => carrier.settled || carrier.expires <= now,
            None => id < self.first,
        }
    }

    /// First symbol from `first` on, below `end`, that still needs repair; `end` when there is none.
    pub(super) fn first_wanted(&mut self, now: Instant, first: u64, end: u64) -> u64 {
        while self.settled_below < end && self.is_done(now, self.settled_below) {
            self.settled_below += 1;
        }
        (first.max(self.settled_below.min(end))..end).find(|id| !self.is_done(now, *id)).unwrap_or(end)
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        self.list.capacity() * size_of::<Carrier>()
    }

    fn get(&self, id: u64) -> Option<&Carrier> {
        self.list.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_or_expired_is_wanted_by_nobody() {
        let at = Instant::from_millis;
        let mut carriers = Carriers::default();
        for pn in 0..10 {
            carriers.push(100 + pn, if pn < 4 { at(50) } else { Instant::FAR_FUTURE });
        }
        assert_eq!(carriers.first_wanted(at(10), 0, 10), 0);
        carriers.settle(0);
        assert_eq!((carriers.first_wanted(at(10), 0, 10), carriers.first_wanted(at(10), 5, 10)), (1, 5));
        assert_eq!(carriers.first_wanted(at(50), 0, 10), 4);
        (4..10).for_each(|id| carriers.settle(id));
        assert_eq!(carriers.first_wanted(at(50), 0, 10), 10);
        // A report of what has expired is a report all the same.
        assert_eq!((carriers.unsettled(2), carriers.unsettled(4), carriers.unsettled(99)), (Some(102), None, None));
        assert!(!carriers.is_done(at(50), 10), "what was not sent is not done");
    }

    #[test]
    fn memory_is_bounded() {
        let mut carriers = Carriers::default();
        (0..100_000).for_each(|pn| carriers.push(pn, Instant::FAR_FUTURE));
        assert_eq!(carriers.first(), 100_000 - REMEMBERED as u64);
        assert!(carriers.is_done(Instant::ZERO, 5) && carriers.memory() < 100_000);
    }
}
