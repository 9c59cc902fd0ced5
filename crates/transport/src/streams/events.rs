//! Events of streams for the application.

use std::collections::VecDeque;

use wire::{Dir, StreamId};

/// Event of a stream that the application may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// Streams of this direction that the peer opened: accept until there is none. Not repeated while it waits to be polled.
    Opened {
        /// The direction.
        dir: Dir,
    },
    /// Data to read, the end, or a reset. Not repeated until a read has answered that it would block.
    Readable {
        /// The stream.
        id: StreamId,
    },
    /// Space for a stream whose write was refused. Part of the send buffer is reserved for it until it has written all it
    /// wants, ended, or waits again.
    Writable {
        /// The stream.
        id: StreamId,
    },
    /// STOP_SENDING of the peer: data that was written and not delivered is discarded.
    Stopped {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
    },
    /// Acknowledgement of all data of a finished stream and of its end; or of the data that a reset has left, and of the reset.
    Finished {
        /// The stream.
        id: StreamId,
    },
    /// Streams of this direction can be opened, after [`Streams::open`](super::Streams::open) found none.
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
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
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
