//! Events for the application that concern neither streams nor datagrams.

use std::collections::VecDeque;

use crate::events::Event;

/// Owner of the events that were not polled yet.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// `Closed` was polled: no event follows.
    is_over: bool,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Returns whether there is an event.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether the application has polled the end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the next event that is not the end. The end comes last, after the data that arrived with it.
    pub(super) fn pop_before_end(&mut self) -> Option<Event> {
        self.queue.pop_front_if(|event| !matches!(event, Event::Closed(_)))
    }

    /// Takes the end, once no other event is left.
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
