//! Turns of the driver: tasks that write to one stream after another let the driver send in between.
//!
//! Without them, a task that answers a hundred requests writes all answers before the first leaves. The peer waits meanwhile, then
//! answers as many at once, and the two ends take turns with half of each processor idle.

use std::{collections::VecDeque, hash::Hash, task::Waker};

use rustc_hash::FxHashMap;
use wire::StreamId;

use crate::portion::Portion;

/// Owns the number of streams written to since the driver last sent, and the tasks that wait for it. `C` names a connection.
pub(crate) struct Turn<C> {
    portion: Portion<C>,
    /// Streams written to. Writes to the stream of the last write are not counted: a task that writes to one stream alone has nobody to keep
    /// waiting, and fills its packets.
    streams: usize,
    last: Option<(C, StreamId)>,
    /// Streams whose tasks wait, and their order.
    waiting: FxHashMap<(C, StreamId), Waker>,
    order: VecDeque<(C, StreamId)>,
    /// Streams whose tasks have waited, and may write in this turn before any other.
    granted: Vec<(C, StreamId)>,
}

impl<C> Default for Turn<C> {
    fn default() -> Self {
        let (waiting, order, granted) = <_>::default();
        Self { portion: Portion::default(), streams: 0, last: None, waiting, order, granted }
    }
}

impl<C: Copy + Eq + Hash> Turn<C> {
    /// Returns whether a task may write to the stream before the driver sends. If not, the task is woken afterwards: the caller wakes the
    /// driver, which may be asleep when streams that were granted turn out to be blocked.
    pub(crate) fn permits(&mut self, stream: (C, StreamId), waker: &Waker) -> bool {
        if self.last == Some(stream) || self.granted.contains(&stream) {
            return true;
        }
        // Those who wait already come first.
        if self.order.is_empty() && self.streams + self.granted.len() < self.portion.streams() {
            return true;
        }
        if self.waiting.insert(stream, waker.clone()).is_none() {
            self.order.push_back(stream);
        }
        false
    }

    /// Counts a write to a stream of a connection that has `streams` in progress; the caller wakes the driver.
    pub(crate) fn wrote(&mut self, stream: (C, StreamId), streams: usize) {
        if self.last == Some(stream) {
            return;
        }
        self.granted.retain(|other| *other != stream);
        self.last = Some(stream);
        self.streams += 1;
        self.portion.note(stream.0, streams);
    }

    /// Counts an answer that a service has written, to a stream of a connection that has `streams` in progress.
    pub(crate) fn served(&mut self, connection: C, streams: usize) {
        self.streams += 1;
        self.portion.note(connection, streams);
    }

    /// Returns whether as many streams were written to as may be before the driver sends.
    pub(crate) fn is_over(&self) -> bool {
        self.streams >= self.portion.streams()
    }

    /// Returns whether tasks wait for the driver to send.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.order.is_empty()
    }

    /// Begins the next turn: the driver has sent.
    pub(crate) fn begin(&mut self) {
        if self.streams > 0 {
            self.portion.next();
        }
        (self.streams, self.last) = (0, None);
        self.granted.clear();
    }

    /// Moves tasks to `wake`, as many as a turn has streams: half of them from those that wait for this turn, half from `others`, which wait
    /// for anything else, each in their order, and more of one kind where there are fewer of the other. Returns whether any are left.
    pub(crate) fn wake(&mut self, others: &mut Vec<Waker>, wake: &mut Vec<Waker>) -> bool {
        let most = self.portion.streams();
        let kept = self.order.len().min(most.div_ceil(2));
        wake.extend(others.drain(..others.len().min(most - kept)));
        while wake.len() < most
            && let Some(stream) = self.order.pop_front()
        {
            self.granted.push(stream);
            wake.extend(self.waiting.remove(&stream));
        }
        !others.is_empty() || self.is_awaited()
    }

    /// Takes all tasks that wait: there are no more turns.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = Waker> {
        self.order.clear();
        std::mem::take(&mut self.waiting).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        task::Wake,
    };

    use wire::{Dir, Side};

    use super::*;

    /// Tasks that were woken, in their order.
    #[derive(Clone, Default)]
    struct Woken(Arc<Mutex<Vec<u64>>>);

    struct Task(Woken, u64);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.0.lock().unwrap().push(self.1);
        }
    }

    impl Woken {
        fn waker(&self, number: u64) -> Waker {
            Arc::new(Task(self.clone(), number)).into()
        }

        /// Ends a turn, and returns the tasks that were woken for the next.
        fn next(&self, turn: &mut Turn<u8>, others: &mut Vec<Waker>) -> Vec<u64> {
            turn.begin();
            let mut wake = Vec::new();
            turn.wake(others, &mut wake);
            wake.drain(..).for_each(Waker::wake);
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn stream(index: u64) -> (u8, StreamId) {
        (0, StreamId::new(Side::Client, Dir::Bi, index))
    }

    /// A turn on a connection with 12 streams in progress, so that four are written to.
    fn turn(woken: &Woken) -> Turn<u8> {
        let mut turn = Turn::default();
        turn.wrote(stream(1_000), 12);
        woken.next(&mut turn, &mut Vec::new());
        turn
    }

    #[test]
    fn streams_count_once_and_tasks_wait_for_the_driver_in_their_order() {
        let woken = Woken::default();
        let mut turn = turn(&woken);
        for index in 0..4 {
            assert!(!turn.is_over());
            for _ in 0..3 {
                assert!(turn.permits(stream(index), &woken.waker(index)));
                turn.wrote(stream(index), 12);
            }
        }
        assert!(turn.is_over() && !turn.is_awaited());
        assert!(turn.permits(stream(3), &woken.waker(3)), "the stream of the last write");
        for index in (4..10).chain(4..10) {
            assert!(!turn.permits(stream(index), &woken.waker(index)));
        }
        assert_eq!(woken.next(&mut turn, &mut Vec::new()), [4, 5, 6, 7], "each once");
        assert!(turn.is_awaited());
        // A task that comes now waits behind those that have waited.
        assert!(!turn.permits(stream(10), &woken.waker(10)));
        for index in 4..8 {
            assert!(turn.permits(stream(index), &woken.waker(index)));
            turn.wrote(stream(index), 12);
        }
        assert_eq!(woken.next(&mut turn, &mut Vec::new()), [8, 9, 10]);
        assert!(!turn.is_awaited());
        assert!(turn.permits(stream(11), &woken.waker(11)), "three of four are granted");
        turn.wrote(stream(11), 12);
        assert!(!turn.permits(stream(12), &woken.waker(12)));
    }

    #[test]
    fn a_task_that_does_not_come_takes_nobodys_place() {
        let woken = Woken::default();
        let mut turn = turn(&woken);
        (0..4).for_each(|index| turn.wrote(stream(index), 12));
        assert!(!turn.permits(stream(4), &woken.waker(4)));
        assert_eq!(woken.next(&mut turn, &mut Vec::new()), [4]);
        // Dropped meanwhile.
        woken.next(&mut turn, &mut Vec::new());
        for index in 5..9 {
            assert!(turn.permits(stream(index), &woken.waker(index)));
            turn.wrote(stream(index), 12);
        }
        assert!(turn.is_over());
    }

    #[test]
    fn neither_kind_of_waiting_tasks_keeps_the_other_from_running() {
        let woken = Woken::default();
        let mut turn = turn(&woken);
        (0..4).for_each(|index| turn.wrote(stream(index), 12));
        (4..8).for_each(|index| assert!(!turn.permits(stream(index), &woken.waker(index))));
        let mut others = (20..28).map(|number| woken.waker(number)).collect();
        assert_eq!(woken.next(&mut turn, &mut others), [20, 21, 4, 5]);
        assert_eq!(woken.next(&mut turn, &mut others), [22, 23, 6, 7]);
        assert_eq!(woken.next(&mut turn, &mut others), [24, 25, 26, 27]);
        assert!(others.is_empty());
        assert_eq!(woken.next(&mut turn, &mut others), [0; 0]);
    }

    #[test]
    fn all_are_woken_at_the_end() {
        let woken = Woken::default();
        let mut turn = turn(&woken);
        (0..4).for_each(|index| turn.wrote(stream(index), 12));
        (4..100).for_each(|index| assert!(!turn.permits(stream(index), &woken.waker(index))));
        assert_eq!(turn.end().count(), 96);
        assert!(!turn.is_awaited());
    }
}
