//! Turns of the driver: a task that writes to one stream after another lets the driver send in between.
//!
//! Without them, a task that answers a hundred requests writes all answers before the first leaves. The peer waits meanwhile, then
//! answers as many at once, and the two ends take turns with half of each processor idle.

use std::task::Waker;

/// Streams written to before the data is sent. Writes to the stream of the last write are not counted: a task that writes to one stream alone
/// has nobody to keep waiting, and fills its packets.
const STREAMS_PER_TURN: u32 = 20;

/// Owns the number of streams written to since the driver last sent, and the tasks that wait for it. `S` names a stream of any connection.
pub(crate) struct Turn<S> {
    streams: u32,
    last: Option<S>,
    waiting: Vec<Waker>,
}

impl<S> Default for Turn<S> {
    fn default() -> Self {
        Self { streams: 0, last: None, waiting: Vec::new() }
    }
}

impl<S: PartialEq> Turn<S> {
    /// Returns whether a task may write to the stream before the driver sends. If not, the task is woken afterwards. The driver is awake
    /// then, because [`wrote`](Self::wrote) goes with waking it.
    pub(crate) fn permits(&mut self, stream: &S, waker: &Waker) -> bool {
        if self.streams < STREAMS_PER_TURN || self.last.as_ref() == Some(stream) {
            return true;
        }
        // A task that waits with several streams at once comes several times in a row.
        if !self.waiting.last().is_some_and(|last| last.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        false
    }

    /// Counts a write; the caller wakes the driver.
    pub(crate) fn wrote(&mut self, stream: S) {
        if self.last.as_ref() != Some(&stream) {
            self.last = Some(stream);
            self.streams += 1;
        }
    }

    /// Returns whether tasks wait for the driver to send.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins the next turn: the driver has sent. Adds the tasks that wait to `wake`.
    pub(crate) fn begin(&mut self, wake: &mut Vec<Waker>) {
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
        let mut turn = Turn::default();
        for stream in 0..STREAMS_PER_TURN {
            for _ in 0..3 {
                assert!(turn.permits(&stream, &waker));
                turn.wrote(stream);
            }
        }
        assert!(!turn.is_awaited());
        assert!(turn.permits(&(STREAMS_PER_TURN - 1), &waker), "the stream of the last write");
        assert!(!turn.permits(&99, &waker) && !turn.permits(&98, &waker));
        assert!(turn.is_awaited());
        let mut wake = Vec::new();
        turn.begin(&mut wake);
        assert_eq!(wake.len(), 1, "the task that waits with two streams is woken once");
        wake.drain(..).for_each(Waker::wake);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(!turn.is_awaited() && turn.permits(&99, &waker));
    }
}
