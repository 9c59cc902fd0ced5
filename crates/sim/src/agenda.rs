//! Agenda: a heap of events with a fixed order among those of the same instant.

use std::{cmp::Reverse, collections::BinaryHeap};

use units::Instant;

/// Event of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A node is started or its deadline may have come.
    Wake { node: u32 },
    /// A packet (by its place in the slab) has passed its access and enters the link.
    Enter { packet: u32 },
    /// A packet reaches its node.
    Arrive { packet: u32 },
    /// A link knows more of the packets that it holds.
    Link { link: u32 },
}

/// Events in the order of time; at the same instant in the order in which they were entered.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    entered: u64,
}

impl Agenda {
    #[inline]
    pub(crate) fn enter(&mut self, at: Instant, event: Event) {
        self.heap.push(Reverse((at, self.entered, event)));
        self.entered += 1;
    }

    /// Time at which the next event is.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.0.0)
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Instant, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_by_entry() {
        let mut agenda = Agenda::default();
        let later = Instant::from_millis(2);
        agenda.enter(later, Event::Arrive { packet: 9 });
        agenda.enter(later, Event::Wake { node: 0 });
        agenda.enter(Instant::from_millis(1), Event::Enter { packet: 1 });
        agenda.enter(later, Event::Arrive { packet: 0 });
        let order: Vec<Event> = std::iter::from_fn(|| agenda.pop()).map(|(_, event)| event).collect();
        assert_eq!(
            order,
            [
                Event::Enter { packet: 1 },
                Event::Arrive { packet: 9 },
                Event::Wake { node: 0 },
                Event::Arrive { packet: 0 }
            ]
        );
    }
}
