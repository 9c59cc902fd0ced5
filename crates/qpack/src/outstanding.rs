//! Field sections that refer to the dynamic table and are not acknowledged (RFC 9204 §2.1.1): their entries must not be evicted.

use std::collections::VecDeque;

/// Largest number of recorded sections; at this number, further ones do not use the dynamic table.
pub(crate) const MOST: usize = 256;

/// Cancelled streams that are remembered at most.
const CANCELLED: usize = 64;

#[derive(Debug)]
struct Section {
    stream: u64,
    /// The smallest absolute index it refers to.
    oldest: u64,
}

/// Sections in the order in which they were encoded.
#[derive(Debug)]
pub(crate) struct Outstanding {
    sections: VecDeque<Section>,
    /// The smallest absolute index that a section refers to; without any `u64::MAX`.
    oldest: u64,
    /// Streams that the peer has cancelled last. A section that is encoded later would never be acknowledged.
    cancelled: VecDeque<u64>,
}

impl Default for Outstanding {
    fn default() -> Self {
        Self { sections: VecDeque::new(), oldest: u64::MAX, cancelled: VecDeque::new() }
    }
}

impl Outstanding {
    pub(crate) fn len(&self) -> usize {
        self.sections.len()
    }

    /// Returns whether a section of `stream` can be remembered.
    pub(crate) fn takes(&self, stream: u64) -> bool {
        self.sections.len() < MOST && !self.cancelled.contains(&stream)
    }

    /// The smallest absolute index that must stay in the table; without any `u64::MAX`.
    #[inline]
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest
    }

    pub(crate) fn push(&mut self, stream: u64, oldest: u64) {
        self.sections.push_back(Section { stream, oldest });
        self.oldest = self.oldest.min(oldest);
    }

    /// The first section of a stream was decoded; `false` when there is none.
    pub(crate) fn acknowledge(&mut self, stream: u64) -> bool {
        let place = self.sections.iter().position(|section| section.stream == stream);
        let Some(section) = place.and_then(|place| self.sections.remove(place)) else { return false };
        if section.oldest == self.oldest {
            self.find_oldest();
        }
        true
    }

    /// Forgets a stream whose sections will not be decoded.
    pub(crate) fn cancel(&mut self, stream: u64) {
        let before = self.sections.len();
        self.sections.retain(|section| section.stream != stream);
        if self.sections.len() != before {
            self.find_oldest();
        }
        if self.cancelled.contains(&stream) {
            return;
        }
        if self.cancelled.len() == CANCELLED {
            self.cancelled.pop_front();
        }
        self.cancelled.push_back(stream);
    }

    fn find_oldest(&mut self) {
        self.oldest = self.sections.iter().map(|section| section.oldest).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_that_of_what_is_left() {
        let mut outstanding = Outstanding::default();
        assert_eq!(outstanding.oldest(), u64::MAX);
        for (stream, oldest) in [(4, 3), (8, 2), (4, 5), (8, 10)] {
            outstanding.push(stream, oldest);
        }
        assert_eq!(outstanding.oldest(), 2);
        assert!(outstanding.acknowledge(8));
        assert_eq!(outstanding.oldest(), 3);
        assert!(!outstanding.acknowledge(12));
        outstanding.cancel(4);
        assert_eq!(outstanding.oldest(), 10);
        assert!(!outstanding.acknowledge(4));
        assert!(outstanding.acknowledge(8));
        assert_eq!(outstanding.oldest(), u64::MAX);
        assert_eq!(outstanding.len(), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut outstanding = Outstanding::default();
        outstanding.cancel(7);
        assert!(!outstanding.takes(7));
        for stream in 0..MOST as u64 {
            assert!(outstanding.takes(1_000 + stream));
            outstanding.push(1_000 + stream, 0);
        }
        assert!(!outstanding.takes(5_000));
        for stream in 0..1_000 {
            outstanding.cancel(1_000 + stream);
        }
        assert_eq!((outstanding.len(), outstanding.cancelled.len()), (0, CANCELLED));
        assert!(outstanding.takes(7));
    }
}
