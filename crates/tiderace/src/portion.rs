//! Streams that are written to before the driver sends: a third of those in progress.
//!
//! A peer that waits for answers, or for requests, begins with the first while the others are made. If all left at once, the two ends would
//! take turns, each idle while the other works; with too few at a time each system call carries little. Both were measured, with 3 to 900
//! requests in progress on one connection: a third to a quarter of them gives the most requests per second (docs/performance.md). Streams count
//! until their end is acknowledged, so that what a server takes for a third is somewhat more.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Part of the streams in progress.
const PART: usize = 3;
/// Streams in progress that are not worth a second system call.
const FEW: usize = 6;
/// Streams at most. More gains little, and each may have much to send.
const MOST: usize = 100;
/// Turns after which what was seen of a connection is older, and twice as many after which it is forgotten.
const WINDOW: u32 = 16;

/// Owns the number of streams in progress, estimated by those that connections have when they are written to. `C` names a connection.
pub(crate) struct Portion<C> {
    /// Most streams of each connection in this window, and their sum.
    seen: FxHashMap<C, usize>,
    sum: usize,
    /// Sum of the window before.
    before: usize,
    turns: u32,
    /// Connection of the last note, and the most streams of it that are not in `seen`: one connection costs no search for each write.
    last: Option<(C, usize)>,
    streams: usize,
}

impl<C> Default for Portion<C> {
    fn default() -> Self {
        Self { seen: FxHashMap::default(), sum: 0, before: 0, turns: 0, last: None, streams: MOST }
    }
}

impl<C: Copy + Eq + Hash> Portion<C> {
    /// Streams that may be written to before the driver sends.
    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    /// Notes a write on a connection that has so many streams.
    pub(crate) fn note(&mut self, connection: C, streams: usize) {
        match &mut self.last {
            Some((last, most)) if *last == connection => *most = (*most).max(streams),
            _ => {
                self.add_last();
                self.last = Some((connection, streams));
            }
        }
    }

    fn add_last(&mut self) {
        let Some((connection, streams)) = self.last.take() else { return };
        let most = self.seen.entry(connection).or_default();
        self.sum += streams.saturating_sub(*most);
        *most = streams.max(*most);
    }

    /// Ends a turn in which something was written, and decides about the next.
    pub(crate) fn next(&mut self) {
        self.add_last();
        let all = self.sum.max(self.before);
        self.streams = if all < FEW { MOST } else { (all / PART).min(MOST) };
        self.turns += 1;
        if self.turns == WINDOW {
            self.seen.clear();
            (self.before, self.sum, self.turns) = (self.sum, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Portion after a turn with writes on connections that have so many streams each.
    fn after(portion: &mut Portion<u8>, writes: &[(u8, usize)]) -> usize {
        for (connection, streams) in writes {
            portion.note(*connection, *streams);
        }
        portion.next();
        portion.streams()
    }

    #[test]
    fn a_third_of_the_streams_in_progress_leaves_at_a_time() {
        for (in_progress, streams) in [(1, MOST), (5, MOST), (6, 2), (10, 3), (30, 10), (100, 33), (900, MOST)] {
            assert_eq!(after(&mut Portion::default(), &[(1, in_progress)]), streams, "{in_progress}");
        }
    }

    #[test]
    fn connections_count_together_and_each_once() {
        let mut portion = Portion::default();
        assert_eq!(after(&mut portion, &[(1, 10), (2, 15), (1, 15), (2, 12)]), 10);
        // The next turns see one of them at a time.
        assert_eq!(after(&mut portion, &[(1, 14)]), 10);
        assert_eq!(after(&mut portion, &[(3, 30)]), 20);
    }

    #[test]
    fn what_was_is_forgotten_after_two_windows() {
        let mut portion = Portion::default();
        after(&mut portion, &[(1, 100)]);
        let turns = (0..2 * WINDOW).take_while(|_| after(&mut portion, &[(2, 9)]) > 3).count();
        assert!((WINDOW as usize..2 * WINDOW as usize).contains(&turns), "{turns}");
        assert_eq!(portion.seen.len(), 1, "a connection that has gone is not kept");
    }
}
