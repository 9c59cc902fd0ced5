//! Context IDs that the other end has used, as ranges: IDs that are allocated in order are one range, whatever their number.

use std::collections::BTreeMap;

/// Set of context IDs of one parity, of bounded size.
#[derive(Debug)]
pub(super) struct UsedIds {
    /// First and last index of each range. An index is half of an ID.
    ranges: BTreeMap<u64, u64>,
    max_ranges: usize,
}

impl UsedIds {
    pub(super) fn new(max_ranges: usize) -> Self {
        Self { ranges: BTreeMap::new(), max_ranges }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        let before = self.ranges.range(..=id / 2).next_back();
        before.is_some_and(|(_, last)| *last >= id / 2)
    }

    /// Adds an ID that is not there. Returns false if there is no room for another range.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        let (mut first, mut last) = (id / 2, id / 2);
        let before = self.ranges.range(..first).next_back().map(|(first, last)| (*first, *last));
        let after = self.ranges.get(&(last + 1)).copied();
        if let Some((start, _)) = before.filter(|(_, end)| end + 1 == first) {
            first = start;
        } else if after.is_none() && self.ranges.len() >= self.max_ranges {
            return false;
        }
        if let Some(end) = after {
            self.ranges.remove(&(last + 1));
            last = end;
        }
        self.ranges.insert(first, last);
        true
    }

    /// Number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_in_order_are_one_range_and_others_are_bounded() {
        let mut used = UsedIds::new(3);
        assert!((1..1_000_000).all(|number| used.insert(2 * number)));
        assert_eq!(used.ranges(), 1);
        assert!(used.contains(2) && used.contains(1_999_998) && !used.contains(2_000_000));
        assert!(used.insert(3_000_000) && used.insert(4_000_000) && !used.insert(5_000_000));
        assert!(!used.contains(5_000_000));
        // One that prolongs a range needs no room.
        assert!(used.insert(4_000_002) && used.insert(2_999_998) && used.ranges() == 3);
    }

    proptest! {
        #[test]
        fn as_a_set(ids in proptest::collection::vec(0..40_u64, 0..60)) {
            let (mut used, mut model) = (UsedIds::new(usize::MAX), BTreeSet::new());
            for id in ids {
                prop_assert_eq!(used.contains(2 * id), model.contains(&id));
                if model.insert(id) {
                    prop_assert!(used.insert(2 * id));
                }
                let gaps = model.iter().filter(|id| !model.contains(&(*id + 1))).count();
                prop_assert_eq!(used.ranges(), gaps);
            }
        }
    }
}
