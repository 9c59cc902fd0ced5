//! A set of packet numbers as a short list of ranges.
//!
//! Packet numbers arrive nearly in order, so the list is short and almost every change happens at its upper end, or (when
//! packets are acknowledged) at its lower end: both take constant time. Elsewhere a change costs a binary search and moves
//! the ranges on the shorter side.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Packet numbers as ascending, disjoint ranges between which at least one number is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// First and last number of each range.
    ranges: VecDeque<(u64, u64)>,
}

impl RangeSet {
    /// The empty set; holds no memory.
    pub(crate) const fn new() -> Self {
        Self { ranges: VecDeque::new() }
    }

    /// Adds one number; false when it was there already.
    #[inline]
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        match self.ranges.back_mut() {
            Some(last) if number == last.1 + 1 => {
                last.1 = number;
                true
            }
            Some(last) if number <= last.1 => self.insert_below(number),
            _ => {
                self.ranges.push_back((number, number));
                true
            }
        }
    }

    /// Adds a number that is not above the highest one.
    fn insert_below(&mut self, number: u64) -> bool {
        // The first range that ends at or after the number. There is one, as the number is not above the last.
        let at = self.first_ending_from(number);
        let (start, _) = self.ranges[at];
        if start <= number {
            return false;
        }
        let joins_next = start == number + 1;
        let joins_previous = at > 0 && self.ranges[at - 1].1 + 1 == number;
        match (joins_previous, joins_next) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = number,
            (false, true) => self.ranges[at].0 = number,
            (false, false) => self.ranges.insert(at, (number, number)),
        }
        true
    }

    /// Takes out all numbers from `first` to `last`, both included.
    pub(crate) fn remove_range(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        // The common case of a sender: the lowest numbers leave.
        while let Some(front) = self.ranges.front_mut() {
            if front.0 < first || front.0 > last {
                break;
            }
            if front.1 > last {
                front.0 = last + 1;
                return;
            }
            self.ranges.pop_front();
        }
        let mut at = self.first_ending_from(first);
        while let Some(&(start, end)) = self.ranges.get(at) {
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
        let (start, end) = self.ranges[index];
        debug_assert!(start <= first && first <= last && last <= end);
        match (start < first, end > last) {
            (false, false) => {
                self.ranges.remove(index);
            }
            (true, false) => self.ranges[index].1 = first - 1,
            (false, true) => self.ranges[index].0 = last + 1,
            (true, true) => {
                self.ranges[index].1 = first - 1;
                self.ranges.insert(index + 1, (last + 1, end));
            }
        }
    }

    /// Returns whether all numbers from `first` to `last`, both included, are in the set.
    #[inline]
    pub(crate) fn contains_all(&self, first: u64, last: u64) -> bool {
        self.ranges.get(self.first_ending_from(last)).is_some_and(|&(start, _)| start <= first)
    }

    /// The lowest number from `number` on that is not in the set, if a higher one is.
    pub(crate) fn first_missing(&self, number: u64) -> Option<u64> {
        let at = self.first_ending_from(number);
        let &(start, end) = self.ranges.get(at)?;
        if start > number {
            return Some(number);
        }
        (at + 1 < self.ranges.len()).then_some(end + 1)
    }

    /// Takes out all numbers below `number`.
    pub(crate) fn remove_below(&mut self, number: u64) {
        while let Some(front) = self.ranges.front_mut() {
            if front.1 >= number {
                front.0 = front.0.max(number);
                return;
            }
            self.ranges.pop_front();
        }
    }

    /// The lowest number in the set that is not below `number`.
    #[inline]
    pub(crate) fn next_from(&self, number: u64) -> Option<u64> {
        self.ranges.get(self.first_ending_from(number)).map(|&(start, _)| start.max(number))
    }

    /// Index of the first range whose end is not below `number`; the number of ranges when there is none.
    #[inline]
    fn first_ending_from(&self, number: u64) -> usize {
        self.ranges.partition_point(|&(_, end)| end < number)
    }

    /// Returns whether the number is in the set.
    #[inline]
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.ranges.get(self.first_ending_from(number)).is_some_and(|&(start, _)| start <= number)
    }

    /// Number of ranges.
    #[inline]
    pub(crate) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether the set is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The lowest number.
    #[inline]
    pub(crate) fn min(&self) -> Option<u64> {
        self.ranges.front().map(|range| range.0)
    }

    /// The highest number.
    #[inline]
    pub(crate) fn max(&self) -> Option<u64> {
        self.ranges.back().map(|range| range.1)
    }

    /// The range at `index`, counted from the lowest.
    #[inline]
    pub(crate) fn range(&self, index: usize) -> Option<(u64, u64)> {
        self.ranges.get(index).copied()
    }

    /// The ranges from the lowest to the highest.
    #[inline]
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = RangeInclusive<u64>> + ExactSizeIterator + '_ {
        self.ranges.iter().map(|&(start, end)| start..=end)
    }

    /// The ranges from the highest to the lowest, as an ACK frame lists them.
    #[inline]
    pub(crate) fn descending(&self) -> impl ExactSizeIterator<Item = RangeInclusive<u64>> + '_ {
        self.iter().rev()
    }

    /// Takes the lowest range out.
    pub(crate) fn pop_lowest(&mut self) -> Option<RangeInclusive<u64>> {
        self.ranges.pop_front().map(|(start, end)| start..=end)
    }

    /// Forgets everything and returns the memory.
    pub(crate) fn clear(&mut self) {
        self.ranges = VecDeque::new();
    }

    /// Returns memory that a burst of gaps left behind.
    pub(crate) fn shrink(&mut self) {
        if self.ranges.capacity() > 8 {
            self.ranges.shrink_to(self.ranges.len());
        }
    }

    /// Bytes of memory held beside the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.ranges.capacity() * size_of::<(u64, u64)>()
    }
}

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
