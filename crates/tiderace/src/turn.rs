//! Turns of the driver: a task that writes to one stream after another lets the driver send in between.
//!
//! Without them, a task that answers a hundred requests writes all answers before the first leaves. The peer waits meanwhile, then
//! answers as many at once, and the two ends take turns with half of each processor idle.

use std::{hash::Hash, task::Waker};

use wire::StreamId;

use crate::portion::Portion;

/// Owns the number of streams written to since the driver last sent, and the tasks that wait for it. `C` names a connection.
pub(crate) struct Turn<C> {
    portion: Portion<C>,
    /// Streams written to. Writes to the stream of the last write are not counted: a task that writes to one stream alone has nobody to keep
    /// waiting, and fills its packets.
    streams: usize,
    last: Option<(C, StreamId)>,
    waiting: Vec<Waker>,
}

impl<C> Default for Turn<C> {
    fn default() -> Self {
        Self { portion: Portion::default(), streams: 0, last: None, waiting: Vec::new() }
    }
}

impl<C: Copy + Eq + Hash> Turn<C> {
    /// Returns whether a task may write to the stream before the driver sends. If not, the task is woken afterwards. The driver is awake
    /// then, because [`wrote`](Self::wrote) goes with waking it.
    pub(crate) fn permits(&mut self, stream: (C, StreamId), waker: &Waker) -> bool {
        if !self.is_over() || self.last == Some(stream) {
            return true;
        }
        // A task that waits with several streams at once comes several times in a row.
        if !self.waiting.last().is_some_and(|last| last.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        false
    }

    /// Counts a write to a stream of a connection that has `streams` in progress; the caller wakes the driver.
    pub(crate) fn wrote(&mut self, stream: (C, StreamId), streams: usize) {
        if self.last != Some(stream) {
            self.last = Some(stream);
            self.served(stream.0, streams);
        }
    }

    /// Counts an answer that a service has written, to a stream of a connection that has `streams` in progress.
    pub(crate) fn served(&mut self, connection: C, streams: usize) {
        self.streams += 1;
        self.portion.note(connection, streams);
    }

    /// Streams that may be written to, and tasks that may be woken, before the driver sends.
    pub(crate) fn portion(&self) -> usize {
        self.portion.streams()
    }

    /// Returns whether as many streams were written to as may be before the driver sends.
    pub(crate) fn is_over(&self) -> bool {
        self.streams >= self.portion.streams()
    }

    /// Returns whether tasks wait for the driver to send.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins the next turn: the driver has sent. Adds the tasks that wait to `wake`.
    pub(crate) fn begin(&mut self, wake: &mut Vec<Waker>) {
        if self.streams > 0 {
            self.portion.next();
        }
        (self.streams, self.last) = (0, None);
        wake.append(&mut self.waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Wake,
    };

    use wire::{Dir, Side};

    use super::*;

    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn streams_count_once_and_tasks_wait_for_the_driver() {
        let woken = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(woken.clone());
        let stream = |index| (0, StreamId::new(Side::Client, Dir::Bi, index));
        let (mut turn, mut wake) = (Turn::default(), Vec::new());
        // A connection with 12 streams in progress, so that four are written to.
        turn.wrote(stream(1_000), 12);
        turn.begin(&mut wake);
        for index in 0..4 {
            for _ in 0..3 {
                assert!(turn.permits(stream(index), &waker));
                turn.wrote(stream(index), 12);
            }
        }
        assert!(!turn.is_awaited());
        assert!(turn.permits(stream(3), &waker), "the stream of the last write");
        assert!(!turn.permits(stream(99), &waker) && !turn.permits(stream(98), &waker));
        assert!(turn.is_awaited());
        turn.begin(&mut wake);
        assert_eq!(wake.len(), 1, "the task that waits with two streams is woken once");
        wake.drain(..).for_each(Waker::wake);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(!turn.is_awaited() && turn.permits(stream(99), &waker));
    }
}
