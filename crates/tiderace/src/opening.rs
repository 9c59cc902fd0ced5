//! Tasks that wait for the peer's permission to open a stream, in the order in which they came.
//!
//! Permission for one more stream is of use to one task. If it woke all of them, a thousand tasks that wait would be polled for each
//! stream that ends. So the first one is woken, and hands the turn on when it has opened its stream, or is dropped.

use std::{collections::VecDeque, task::Waker};

/// Owns the queue of one direction.
#[derive(Default)]
pub(crate) struct Opening {
    /// Number of the next task.
    next: u64,
    /// Number and waker of each task, by number.
    waiting: VecDeque<(u64, Waker)>,
}

impl Opening {
    /// Lets a task wait, at the end of the queue, or at its earlier place if it has the `number` of an earlier call. Returns its number.
    pub(crate) fn wait(&mut self, number: Option<u64>, waker: &Waker) -> u64 {
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        match self.waiting.binary_search_by_key(&number, |(other, _)| *other) {
            Ok(at) => self.waiting[at].1.clone_from(waker),
            Err(at) => self.waiting.insert(at, (number, waker.clone())),
        }
        number
    }

    /// Takes the task out that is first.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        self.waiting.pop_front().map(|(_, waker)| waker)
    }

    /// Notes that a task waits no more. If it was woken, returns the task whose turn it is.
    #[must_use]
    pub(crate) fn leave(&mut self, number: u64) -> Option<Waker> {
        match self.waiting.binary_search_by_key(&number, |(other, _)| *other) {
            Ok(at) => {
                self.waiting.remove(at);
                None
            }
            Err(_) => self.pop(),
        }
    }

    /// Takes all tasks out.
    pub(crate) fn into_wakers(self) -> impl Iterator<Item = Waker> {
        self.waiting.into_iter().map(|(_, waker)| waker)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_keeps_its_place_and_hands_its_turn_on() {
        let tasks: [Arc<Task>; 3] = Default::default();
        let wakers = tasks.each_ref().map(|task| Waker::from(task.clone()));
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        let mut opening = Opening::default();
        let [first, second, third] = wakers.each_ref().map(|waker| opening.wait(None, waker));
        assert_eq!(opening.wait(Some(second), &wakers[1]), second);
        assert_eq!(opening.waiting.len(), 3, "a task that asks again waits once");
        opening.pop().unwrap().wake();
        assert_eq!(woken(), [1, 0, 0]);
        // Another one took the stream: the first task waits again, before the others.
        opening.wait(Some(first), &wakers[0]);
        opening.pop().unwrap().wake();
        assert_eq!(woken(), [2, 0, 0]);
        // One that was woken hands on, also when it is dropped; one that was not does not.
        opening.leave(first).unwrap().wake();
        assert_eq!(woken(), [2, 1, 0]);
        assert!(opening.leave(third).is_none());
        assert!(opening.leave(second).is_none(), "nobody is left");
    }
}
