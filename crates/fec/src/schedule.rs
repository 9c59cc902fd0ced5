//! Schedule of repair symbols: their times, and the source symbols that they cover.

use std::collections::VecDeque;

use crate::{
    coefficient::ROWS,
    repair::{MAX_SPAN, Repair},
    scheme::Scheme,
};

/// Repair symbols that may be made ahead of their time: what ends a message before a block is full borrows from the next.
const AHEAD: i32 = 2;
/// Source symbols for each repair symbol at least, over all: the cap for what ends messages beyond the rate.
const CAP: i32 = 3;

/// Limit that the repair symbols at the end of a message count against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// The rate of the scheme, which holds in the long run.
    ByRate,
    /// No more than the cap: one repair symbol for three source symbols.
    ByCap,
}

/// Decides after which source symbols a repair symbol is due, keeping to the rate of a [`Scheme`] in the long run.
#[derive(Debug)]
pub struct Schedule {
    scheme: Scheme,
    /// Grows by the number of repairs with each source, and shrinks by the number of sources with each repair.
    earned: i32,
    /// The same for the cap.
    spare: i32,
    /// First symbol of the blocks in progress, or the oldest one that no repair covers.
    start: u64,
    /// The next symbol.
    next: u64,
    row: u8,
    due: VecDeque<Repair>,
}

impl Schedule {
    /// Repairs for the symbols from `next` on.
    pub fn new(scheme: Scheme, next: u64) -> Self {
        Self { scheme, earned: 0, spare: 0, start: next, next, row: 0, due: VecDeque::new() }
    }

    /// Scheme in use.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Changes to another code from the next symbol on; due repair stays due.
    pub fn change(&mut self, scheme: Scheme) {
        if self.scheme != scheme {
            self.scheme = scheme;
            self.start = self.next;
            self.earned = self.earned.min(0);
        }
    }

    /// A source symbol was sent.
    pub fn on_source(&mut self, id: u64) {
        if id != self.next {
            // Symbols in between were sent while nothing was to be repaired.
            self.start = id;
        }
        self.next = id + 1;
        self.spare = (self.spare + 1).min(AHEAD * CAP);
        match self.scheme {
            Scheme::Block { sources, repairs, depth } => {
                // What all blocks in progress together will need is as much as can be saved.
                let most = i32::from(sources) * i32::from(repairs) * (i32::from(depth) + 1);
                self.earned = (self.earned + i32::from(repairs)).min(most);
                let (sources, depth) = (u64::from(sources), u64::from(depth));
                let place = id - self.start;
                if place >= (sources - 1) * depth {
                    self.finish_block(place % depth, repairs);
                }
                if place + 1 == sources * depth {
                    self.start = self.next;
                }
            }
            Scheme::Window { repairs, sources, .. } => {
                self.earned += i32::from(repairs);
                if self.earned >= i32::from(sources) {
                    self.earned -= i32::from(sources);
                    self.window(self.next);
                }
            }
        }
    }

    /// Due repair symbol, if any; each is returned once.
    #[inline]
    pub fn take_due(&mut self) -> Option<Repair> {
        self.due.pop_front()
    }

    /// Repair symbol that [`take_due`](Self::take_due) returns next.
    #[inline]
    pub fn peek_due(&self) -> Option<&Repair> {
        self.due.front()
    }

    /// Returns whether a repair symbol is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Number of repair symbols that are due.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.due.len()
    }

    /// Number of symbols that no repair covers.
    #[inline]
    pub fn uncovered(&self) -> u64 {
        self.next - self.start
    }

    /// Marks the end of a message: covers uncovered symbols with up to `most` repair symbols, as far as `allowed`. Repair allowed by the
    /// rate of the code is borrowed from it. Returns the number of repair symbols.
    pub fn flush(&mut self, most: u8, allowed: Allowed) -> u8 {
        if self.uncovered() == 0 {
            return 0;
        }
        if allowed == Allowed::ByCap && matches!(self.scheme, Scheme::Window { .. }) {
            let mut made = 0;
            while made < most && self.spare >= (1 - AHEAD) * CAP {
                self.window(self.next);
                made += 1;
            }
            return made;
        }
        let (Scheme::Block { sources, .. } | Scheme::Window { sources, .. }) = self.scheme;
        let before = self.due.len();
        match self.scheme {
            Scheme::Block { repairs, depth, .. } => {
                let blocks = self.uncovered().min(depth.into());
                let wanted = i32::from(repairs.min(most)) * blocks as i32;
                // All or nothing for each block: an interleaved one is not worth a part of its repairs.
                if self.earned - wanted * i32::from(sources) >= -AHEAD * i32::from(sources).max(i32::from(repairs)) {
                    (0..blocks).for_each(|block| self.finish_block(block, repairs.min(most)));
                    self.start = self.next;
                }
            }
            Scheme::Window { .. } => {
                for _ in 0..most {
                    if self.earned - i32::from(sources) < -AHEAD * i32::from(sources) {
                        break;
                    }
                    self.earned -= i32::from(sources);
                    self.window(self.next);
                }
            }
        }
        (self.due.len() - before) as u8
    }

    /// The repairs of the block that has the symbols `start + offset`, and every depth-th after it.
    fn finish_block(&mut self, offset: u64, repairs: u8) {
        let Scheme::Block { sources, depth, .. } = self.scheme else { return };
        let first = self.start + offset;
        let count = ((self.next - 1 - first) / u64::from(depth) + 1) as u8;
        for row in 0..repairs {
            if self.earned - i32::from(sources) < -AHEAD * i32::from(sources).max(i32::from(repairs)) {
                break;
            }
            self.earned -= i32::from(sources);
            self.due.push_back(Repair { first, count, stride: depth, row });
        }
    }

    /// A repair over the window that ends before `end`.
    fn window(&mut self, end: u64) {
        let Scheme::Window { window, .. } = self.scheme else { return };
        self.due.push_back(window_of(end, u64::from(window), self.row));
        self.spare -= CAP;
        self.row = (self.row + 1) % ROWS;
        self.start = end;
    }

    /// A repair over the symbols from `first` up to the latest, outside of the rate.
    pub fn extra(&mut self, first: u64) -> Option<Repair> {
        let width = self.next.checked_sub(first).filter(|&width| width > 0)?;
        let repair = window_of(self.next, width.min(MAX_SPAN), self.row);
        self.row = (self.row + 1) % ROWS;
        Some(repair)
    }
}

fn window_of(end: u64, window: u64, row: u8) -> Repair {
    let first = end.saturating_sub(window);
    Repair { first, count: (end - first) as u8, stride: 1, row }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(name: &str) -> Schedule {
        Schedule::new(name.parse().unwrap(), 0)
    }

    fn run(schedule: &mut Schedule, ids: std::ops::Range<u64>) -> Vec<(u64, Repair)> {
        let mut made = Vec::new();
        for id in ids {
            schedule.on_source(id);
            while let Some(repair) = schedule.take_due() {
                made.push((id, repair));
            }
        }
        made
    }

    #[test]
    fn a_block_ends_with_its_repairs() {
        let made = run(&mut schedule("rs:10+2"), 0..25);
        let repair = |first, row| Repair { first, count: 10, stride: 1, row };
        assert_eq!(made, [(9, repair(0, 0)), (9, repair(0, 1)), (19, repair(10, 0)), (19, repair(10, 1))]);
    }

    #[test]
    fn interleaved_blocks_end_one_after_the_other() {
        let made = run(&mut schedule("xor:4/3"), 0..24);
        let repair = |first| Repair { first, count: 4, stride: 3, row: 0 };
        let expected = [(9, 0), (10, 1), (11, 2), (21, 12), (22, 13), (23, 14)];
        assert_eq!(made, expected.map(|(at, first)| (at, repair(first))));
    }

    #[test]
    fn windows_slide_and_rows_change() {
        let made = run(&mut schedule("rlc:1/5:12"), 0..20);
        let shape: Vec<_> = made.iter().map(|(at, r)| (*at, r.first, r.count, r.row)).collect();
        assert_eq!(shape, [(4, 0, 5, 0), (9, 0, 10, 1), (14, 3, 12, 2), (19, 8, 12, 3)]);
    }

    /// Flushes at any time keep the rate in the long run.
    #[test]
    fn flushing_borrows_and_pays_back() {
        for name in ["xor:10", "rs:10+2", "rlc:1/5:40", "rlc:3/20:40", "rs:5+1/4"] {
            let mut schedule = schedule(name);
            let rate = schedule.scheme().overhead();
            let mut made = 0;
            for id in 0..10_000 {
                schedule.on_source(id);
                if id % 3 == 2 {
                    schedule.flush(1, Allowed::ByRate);
                }
                while let Some(repair) = schedule.take_due() {
                    assert_eq!(repair.check(), Ok(()));
                    assert!(repair.last() <= id);
                    made += 1;
                }
            }
            let got = f64::from(made) / 10_000.0;
            assert!((got - rate).abs() < 0.01 * rate + 0.001, "{name}: {got} instead of {rate}");
        }
    }

    #[test]
    fn the_end_of_a_message_is_covered() {
        let mut schedule = schedule("rlc:1/5:40");
        run(&mut schedule, 0..8);
        assert_eq!(schedule.uncovered(), 3);
        assert_eq!(schedule.flush(1, Allowed::ByRate), 1);
        assert_eq!(schedule.take_due().map(|r| (r.first, r.last())), Some((0, 7)));
        assert_eq!((schedule.uncovered(), schedule.flush(1, Allowed::ByRate)), (0, 0));
    }

    /// Short messages at a low rate: the end of each is covered, and never more than a third is repair.
    #[test]
    fn the_cap_covers_every_message_of_three() {
        for (message, least, most) in [(11, 1.0 / 11.0, 0.142), (4, 0.25, 0.301), (3, 0.33, 0.334), (1, 0.33, 0.334)] {
            let mut schedule = schedule("rlc:1/20:40");
            let mut made = 0;
            for id in 0..9_000 {
                schedule.on_source(id);
                if id % message == message - 1 {
                    schedule.flush(1, Allowed::ByCap);
                }
                while schedule.take_due().is_some() {
                    made += 1;
                }
            }
            let share = f64::from(made) / 9_000.0;
            assert!((least..=most).contains(&(share + 1e-9)), "{message}: {share}");
        }
    }
}
