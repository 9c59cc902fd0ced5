//! A set of packet numbers as a short list of ranges.
//!
//! Packet numbers arrive nearly in order, so the list is short and almost every change happens at its upper end, or (when
//! packets are acknowledged) at its lower end: both take constant time. Elsewhere a change costs a binary search and moves
//! the ranges on the shorter side. A set of one range, the usual one, holds no memory beside the struct.

use std::collections::{VecDeque, vec_deque};
use std::ops::RangeInclusive;

/// No range.
const NONE: (u64, u64) = (1, 0);

/// Packet numbers as ascending, disjoint ranges between which at least one number is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// First and last number of the highest range; [`NONE`] in an empty set.
    highest: (u64, u64),
    /// First and last number of each range below it.
    below: VecDeque<(u64, u64)>,
}

impl Default for RangeSet {
    fn default() -> Self {
        Self::new()
    }
}

impl RangeSet {
    /// The empty set; holds no memory.
    pub(crate) const fn new() -> Self {
        Self { highest: NONE, below: VecDeque::new() }
    }

    /// Adds one number; false when it was there already.
    #[inline]
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        if self.is_empty() {
            self.highest = (number, number);
        } else if number == self.highest.1 + 1 {
            self.highest.1 = number;
        } else if number <= self.highest.1 {
            return self.insert_below(number);
        } else {
            self.below.push_back(self.highest);
            self.highest = (number, number);
        }
        true
    }

    /// Adds a number that is not above the highest one.
    fn insert_below(&mut self, number: u64) -> bool {
        if number >= self.highest.0 {
            return false;
        }
        let at = self.below.partition_point(|&(_, end)| end < number);
        let next = self.below.get(at).copied();
        if next.is_some_and(|(start, _)| start <= number) {
            return false;
        }
        let joins_next = next.unwrap_or(self.highest).0 == number + 1;
        let joins_previous = at > 0 && self.below[at - 1].1 + 1 == number;
        let start = if joins_previous { self.below[at - 1].0 } else { number };
        match (joins_previous, joins_next) {
            (_, true) => {
                self.below.get_mut(at).unwrap_or(&mut self.highest).0 = start;
                if joins_previous {
                    self.below.remove(at - 1);
                }
            }
            (true, false) => self.below[at - 1].1 = number,
            (false, false) => self.below.insert(at, (number, number)),
        }
        true
    }

    /// Takes out all numbers from `first` to `last`, both included.
    pub(crate) fn remove_range(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        // The common case of a sender: the lowest numbers leave.
        while let Some(front) = self.below.front_mut() {
            if front.0 < first || front.0 > last {
                break;
            }
            if front.1 > last {
                front.0 = last + 1;
                return;
            }
            self.below.pop_front();
        }
        let mut at = self.first_ending_from(first);
        while let Some((start, end)) = self.range(at) {
            if start > last {
                return;
            }
            self.cut(at, start.max(first), end.min(last));
            // What is left of the range lies below `first`; otherwise the next range has moved to this index.
            at += usize::from(start < first);
        }
    }

    /// Takes `first..=last` out of the range at `index`, which holds all of it. Ranges below `index` keep their index.
    pub(crate) fn cut(&mut self, index: usize, first: u64, last: u64) {
        let is_highest = index == self.below.len();
        let range = self.below.get_mut(index).unwrap_or(&mut self.highest);
        let (start, end) = *range;
        debug_assert!(start <= first && first <= last && last <= end);
        match (start < first, end > last) {
            (false, false) if is_highest => self.highest = self.below.pop_back().unwrap_or(NONE),
            (false, false) => {
                self.below.remove(index);
            }
            (true, false) => range.1 = first - 1,
            (false, true) => range.0 = last + 1,
            (true, true) => {
                range.0 = last + 1;
                self.below.insert(index, (start, first - 1));
            }
        }
    }

    /// Returns whether all numbers from `first` to `last`, both included, are in the set.
    #[inline]
    pub(crate) fn contains_all(&self, first: u64, last: u64) -> bool {
        self.range(self.first_ending_from(last)).is_some_and(|(start, _)| start <= first)
    }

    /// The lowest number from `number` on that is not in the set, if a higher one is.
    pub(crate) fn first_missing(&self, number: u64) -> Option<u64> {
        let at = self.first_ending_from(number);
        let (start, end) = self.range(at)?;
        if start > number {
            return Some(number);
        }
        (at + 1 < self.range_count()).then_some(end + 1)
    }

    /// Takes out all numbers below `number`.
    pub(crate) fn remove_below(&mut self, number: u64) {
        while let Some(front) = self.below.front_mut() {
            if front.1 >= number {
                front.0 = front.0.max(number);
                return;
            }
            self.below.pop_front();
        }
        let (start, end) = self.highest;
        self.highest = if self.is_empty() || end < number { NONE } else { (start.max(number), end) };
    }

    /// The lowest number in the set that is not below `number`.
    #[inline]
    pub(crate) fn next_from(&self, number: u64) -> Option<u64> {
        self.range(self.first_ending_from(number)).map(|(start, _)| start.max(number))
    }

    /// Index of the first range whose end is not below `number`; the number of ranges when there is none.
    #[inline]
    fn first_ending_from(&self, number: u64) -> usize {
        match self.below.back() {
            Some(&(_, end)) if end >= number => self.below.partition_point(|&(_, end)| end < number),
            _ if self.highest.1 >= number => self.below.len(),
            _ => self.range_count(),
        }
    }

    /// Returns whether the number is in the set.
    #[inline]
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.range(self.first_ending_from(number)).is_some_and(|(start, _)| start <= number)
    }

    /// Number of ranges.
    #[inline]
    pub(crate) fn range_count(&self) -> usize {
        self.below.len() + usize::from(!self.is_empty())
    }

    /// Returns whether the set is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.highest.0 > self.highest.1
    }

    /// The highest range.
    #[inline]
    fn highest(&self) -> Option<(u64, u64)> {
        (!self.is_empty()).then_some(self.highest)
    }

    /// The lowest number.
    #[inline]
    pub(crate) fn min(&self) -> Option<u64> {
        self.below.front().copied().or(self.highest()).map(|range| range.0)
    }

    /// The highest number.
    #[inline]
    pub(crate) fn max(&self) -> Option<u64> {
        self.highest().map(|range| range.1)
    }

    /// The range at `index`, counted from the lowest.
    #[inline]
    pub(crate) fn range(&self, index: usize) -> Option<(u64, u64)> {
        if index == self.below.len() { self.highest() } else { self.below.get(index).copied() }
    }

    /// The ranges from the lowest to the highest.
    #[inline]
    pub(crate) fn iter(&self) -> Ranges<'_> {
        Ranges { below: self.below.iter(), highest: self.highest() }
    }

    /// The ranges from the highest to the lowest, as an ACK frame lists them.
    #[inline]
    pub(crate) fn descending(&self) -> std::iter::Rev<Ranges<'_>> {
        self.iter().rev()
    }

    /// Takes the lowest range out.
    pub(crate) fn pop_lowest(&mut self) -> Option<RangeInclusive<u64>> {
        let lowest = self.below.pop_front().or_else(|| {
            let highest = self.highest();
            self.highest = NONE;
            highest
        });
        lowest.map(|(start, end)| start..=end)
    }

    /// Forgets everything and returns the memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns memory that a burst of gaps left behind.
    pub(crate) fn shrink(&mut self) {
        if self.below.capacity() > 8 || self.below.is_empty() {
            self.below.shrink_to(self.below.len());
        }
    }

    /// Bytes of memory held beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.below.capacity() * size_of::<(u64, u64)>()
    }
}

/// The ranges of a set, ascending.
pub(crate) struct Ranges<'a> {
    below: vec_deque::Iter<'a, (u64, u64)>,
    highest: Option<(u64, u64)>,
}

impl Iterator for Ranges<'_> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.below.next().copied().or_else(|| self.highest.take()).map(|(start, end)| start..=end)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.below.len() + usize::from(self.highest.is_some());
        (len, Some(len))
    }
}

impl DoubleEndedIterator for Ranges<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.highest.take().or_else(|| self.below.next_back().copied()).map(|(start, end)| start..=end)
    }
}

impl ExactSizeIterator for Ranges<'_> {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64),
        Remove(u64, u64),
        RemoveBelow(u64),
        PopLowest,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0u64..80).prop_map(Op::Insert),
            2 => (0u64..80, 0u64..20).prop_map(|(first, len)| Op::Remove(first, first + len)),
            1 => (0u64..40).prop_map(Op::RemoveBelow),
            1 => Just(Op::PopLowest),
        ]
    }

    fn model_ranges(model: &BTreeSet<u64>) -> Vec<RangeInclusive<u64>> {
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        for &number in model {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == number => *last = *last.start()..=number,
                _ => ranges.push(number..=number),
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(ops in proptest::collection::vec(op(), 0..200)) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Insert(number) => prop_assert_eq!(set.insert(number), model.insert(number)),
                    Op::Remove(first, last) => {
                        set.remove_range(first, last);
                        model.retain(|number| !(first..=last).contains(number));
                    }
                    Op::RemoveBelow(limit) => {
                        set.remove_below(limit);
                        model.retain(|number| *number >= limit);
                    }
                    Op::PopLowest => {
                        let popped = set.pop_lowest();
                        let expected = model_ranges(&model).first().cloned();
                        prop_assert_eq!(&popped, &expected);
                        model.retain(|number| !popped.as_ref().is_some_and(|range| range.contains(number)));
                    }
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model_ranges(&model));
                prop_assert_eq!(set.min(), model.first().copied());
                prop_assert_eq!(set.max(), model.last().copied());
                for number in 0..100 {
                    prop_assert_eq!(set.contains(number), model.contains(&number));
                    let missing = (number..100).find(|n| !model.contains(n)).filter(|n| model.last().is_some_and(|max| n < max));
                    prop_assert_eq!(set.first_missing(number), missing);
                    prop_assert_eq!(set.contains_all(number, number + 2), (number..=number + 2).all(|n| model.contains(&n)));
                    prop_assert_eq!(set.next_from(number), model.range(number..).next().copied());
                }
            }
        }
    }

    #[test]
    fn lists_the_highest_first() {
        let mut set = RangeSet::new();
        for number in [1, 2, 5, 9, 8] {
            set.insert(number);
        }
        assert_eq!(set.descending().collect::<Vec<_>>(), [8..=9, 5..=5, 1..=2]);
    }
}
