//! A set of byte ranges, for data that is not a prefix of the stream: acknowledged or received ahead of a hole, or lost.
//!
//! Sets nearly always grow at their end, which takes constant time. Everything else is a binary search.

use std::collections::VecDeque;

/// Disjoint, non-adjacent, ascending half-open ranges.
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    ranges: VecDeque<(u64, u64)>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The lowest range.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.front().copied()
    }

    /// The highest range.
    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.ranges.back().copied()
    }

    /// Forgets the lowest range.
    pub(super) fn pop_first(&mut self) -> Option<(u64, u64)> {
        self.ranges.pop_front()
    }

    /// Takes `len` bytes off the start of the lowest range, which has at least as many.
    pub(super) fn advance_first(&mut self, len: u64) {
        if let Some(first) = self.ranges.front_mut() {
            first.0 += len;
            debug_assert!(first.0 <= first.1);
            if first.0 >= first.1 {
                self.ranges.pop_front();
            }
        }
    }

    /// Adds a range and returns the number of its new bytes.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        match self.ranges.back_mut() {
            None => {
                self.ranges.push_back((start, end));
                return end - start;
            }
            Some(last) if start > last.1 => {
                self.ranges.push_back((start, end));
                return end - start;
            }
            Some(last) if start == last.1 => {
                last.1 = end;
                return end - start;
            }
            Some(_) => {}
        }
        // The ranges `from..to` touch the new one and become one with it.
        let from = self.ranges.partition_point(|r| r.1 < start);
        let to = from + self.ranges.range(from..).take_while(|r| r.0 <= end).count();
        if from == to {
            self.ranges.insert(from, (start, end));
            return end - start;
        }
        let covered: u64 = self.ranges.range(from..to).map(|r| r.1.min(end).saturating_sub(r.0.max(start))).sum();
        let merged = (self.ranges[from].0.min(start), self.ranges[to - 1].1.max(end));
        self.ranges[from] = merged;
        if to - from > 1 {
            self.ranges.drain(from + 1..to);
        }
        end - start - covered
    }

    /// Takes a range out of the set.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let from = self.ranges.partition_point(|r| r.1 <= start);
        let to = from + self.ranges.range(from..).take_while(|r| r.0 < end).count();
        if from == to {
            return;
        }
        let head = (self.ranges[from].0, start);
        let tail = (end, self.ranges[to - 1].1);
        self.ranges.drain(from..to);
        // Back to front, so that `from` is the right place for both.
        for part in [tail, head] {
            if part.0 < part.1 {
                self.ranges.insert(from, part);
            }
        }
    }

    /// The first part of `start..end` that is not in the set.
    pub(super) fn first_gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let at = self.ranges.partition_point(|r| r.1 <= start);
        let mut gap_start = start;
        let mut rest = self.ranges.range(at..);
        let mut next = rest.next();
        if let Some(&(from, to)) = next
            && from <= start
        {
            gap_start = to;
            next = rest.next();
        }
        let gap_end = next.map_or(end, |r| r.0.min(end));
        (gap_start < gap_end).then_some((gap_start, gap_end))
    }

    /// The range that holds this byte.
    pub(super) fn containing(&self, at: u64) -> Option<(u64, u64)> {
        let i = self.ranges.partition_point(|r| r.1 <= at);
        self.ranges.get(i).copied().filter(|r| r.0 <= at)
    }

    /// Forgets everything and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.ranges = VecDeque::new();
    }

    /// Gives memory back of which little is in use.
    pub(super) fn shrink(&mut self) {
        if self.ranges.len() * 4 < self.ranges.capacity() {
            self.ranges.shrink_to_fit();
        }
    }

    /// Bytes of heap in use.
    pub(super) fn heap(&self) -> usize {
        self.ranges.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Action {
        Insert(u64, u64),
        Remove(u64, u64),
        Advance(u64),
    }

    fn action() -> impl Strategy<Value = Action> {
        let range = (0..200u64, 0..30u64);
        prop_oneof![
            3 => range.clone().prop_map(|(a, n)| Action::Insert(a, a + n)),
            2 => range.prop_map(|(a, n)| Action::Remove(a, a + n)),
            1 => (1..5u64).prop_map(Action::Advance),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(actions in prop::collection::vec(action(), 1..80)) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for action in actions {
                match action {
                    Action::Insert(a, b) => {
                        let fresh = (a..b).filter(|n| model.insert(*n)).count() as u64;
                        prop_assert_eq!(set.insert(a, b), fresh);
                    }
                    Action::Remove(a, b) => {
                        set.remove(a, b);
                        model.retain(|n| !(a..b).contains(n));
                    }
                    Action::Advance(n) => {
                        let n = set.first().map_or(0, |r| n.min(r.1 - r.0));
                        set.advance_first(n);
                        for _ in 0..n {
                            model.pop_first();
                        }
                    }
                }
                let listed: Vec<u64> = set.ranges.iter().flat_map(|r| r.0..r.1).collect();
                prop_assert_eq!(&listed, &model.iter().copied().collect::<Vec<_>>());
                let ends: Vec<_> = set.ranges.iter().collect();
                prop_assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "adjacent ranges are one range");
                let gap = (20..60).find(|n| !model.contains(n));
                prop_assert_eq!(set.first_gap(20, 60).map(|g| g.0), gap);
                if let Some((a, b)) = set.first_gap(20, 60) {
                    prop_assert!((a..b).all(|n| !model.contains(&n)) && (b == 60 || model.contains(&b)));
                }
                prop_assert_eq!(set.containing(50).is_some(), model.contains(&50));
            }
        }
    }
}
