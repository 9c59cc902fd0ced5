//! Events for the application that belong to no stream and to no datagram.

use std::collections::VecDeque;

use crate::events::Event;

/// Owns the events that were not told yet.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// `Closed` was told: nothing follows.
    is_over: bool,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Returns whether the application has been told of the end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next event that is not the end. The end is told last, after what arrived with it.
    pub(super) fn pop_before_end(&mut self) -> Option<Event> {
        self.queue.pop_front_if(|event| !matches!(event, Event::Closed(_)))
    }

    /// The end, once nothing else is left to tell.
    pub(super) fn pop_end(&mut self) -> Option<Event> {
        let end = self.queue.pop_front();
        self.is_over = end.is_some();
        end
    }

    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
    }
}
