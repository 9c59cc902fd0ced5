//! What the application is told about streams.

use std::collections::VecDeque;

use wire::{Dir, StreamId};

/// Something happened that the application may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The peer opened streams of this direction: accept until there is none. Not repeated while it waits to be polled.
    Opened {
        /// The direction.
        dir: Dir,
    },
    /// There is something to read: data, the end, or a reset. Not repeated until a read has answered that it would block.
    Readable {
        /// The stream.
        id: StreamId,
    },
    /// A stream whose write was refused can write. A part of the send buffer is kept for it until it has written all it wants,
    /// ended, or waits again.
    Writable {
        /// The stream.
        id: StreamId,
    },
    /// The peer wants no more data on this stream; what was written and not delivered is gone.
    Stopped {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
    },
    /// All data of a finished stream, and its end, has been acknowledged; or the data that a reset has left, and the reset.
    Finished {
        /// The stream.
        id: StreamId,
    },
    /// After [`Streams::open`](super::Streams::open) found none, streams of this direction can be opened.
    StreamsAvailable {
        /// The direction.
        dir: Dir,
    },
}

/// Events in the order in which they happened.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<StreamEvent>,
    opened: [bool; 2],
}

impl Events {
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
    }

    #[inline]
    pub(super) fn push(&mut self, event: StreamEvent) {
        if let StreamEvent::Opened { dir } = event
            && std::mem::replace(&mut self.opened[dir as usize], true)
        {
            return;
        }
        self.queue.push_back(event);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<StreamEvent> {
        let event = self.queue.pop_front()?;
        if let StreamEvent::Opened { dir } = event {
            self.opened[dir as usize] = false;
        }
        Some(event)
    }

    pub(super) fn heap(&self) -> usize {
        self.queue.capacity() * size_of::<StreamEvent>()
    }
}
