//! Reordering of a train of packets.

use serde::Serialize;

use super::{Estimate, share};

/// Packets that arrived after one that was sent later (RFC 4737 §3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::probe) struct Reordering {
    /// Share of the packets that arrived.
    pub(in crate::probe) share: Estimate,
    /// Positions by which one was late at most (RFC 4737 §4.2.1).
    pub(in crate::probe) extent: usize,
}

impl Reordering {
    /// Reads the numbers of packets in the order in which they arrived. Copies count once.
    pub(in crate::probe) fn of(numbers: &[u32]) -> Self {
        let mut seen = std::collections::HashSet::new();
        // Numbers that were the highest so far, ascending, with their place among the arrivals.
        let mut records: Vec<(u32, usize)> = Vec::new();
        let (mut reordered, mut extent) = (0, 0);
        for number in numbers.iter().copied() {
            let place = seen.len();
            if !seen.insert(number) {
                continue;
            }
            match records.last() {
                Some(&(highest, _)) if highest > number => {
                    reordered += 1;
                    // The first that overtook it.
                    let first = records.partition_point(|(record, _)| *record < number);
                    extent = extent.max(place - records[first].1);
                }
                _ => records.push((number, place)),
            }
        }
        Self { share: share(reordered, seen.len(), 1.0), extent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_behind_later_ones_are_reordered() {
        // The example of RFC 4737 §7.1.1: 4 arrives after 5, 6, 7 and 8.
        let found = Reordering::of(&[1, 2, 3, 5, 6, 7, 8, 4, 9, 10]);
        assert_eq!((found.share.value, found.extent), (0.1, 4));
        let found = Reordering::of(&[1, 2, 3, 7, 4, 5, 6, 8]);
        assert_eq!((found.share.value, found.extent), (3.0 / 8.0, 3));
    }

    #[test]
    fn losses_and_copies_are_no_reordering() {
        assert_eq!(Reordering::of(&[0, 3, 3, 9]).share.value, 0.0);
        assert_eq!(Reordering::of(&[5, 5, 4, 4]).share.value, 0.5);
        assert_eq!(Reordering::of(&[]).extent, 0);
    }
}
