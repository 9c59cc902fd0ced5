//! Dynamic table (RFC 9204 §3.2): fields in the order of insertion, the oldest of which are evicted when room is needed.

use std::collections::VecDeque;

/// Bytes that an entry counts beside its name and its value (RFC 9204 §3.2.1).
pub(crate) const OVERHEAD: usize = 32;

/// Bytes that a field counts in a table (RFC 9204 §3.2.1) and in a field section (RFC 9114 §4.2.2).
#[inline]
pub(crate) fn size(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The name, then the value.
    bytes: Box<[u8]>,
    name: usize,
}

impl Entry {
    pub(crate) fn new(name: &[u8], value: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(name.len() + value.len());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
        Self { bytes: bytes.into(), name: name.len() }
    }

    #[inline]
    pub(crate) fn name(&self) -> &[u8] {
        &self.bytes[..self.name]
    }

    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        &self.bytes[self.name..]
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// Entries have absolute indices (RFC 9204 §3.2.4): the first that was ever inserted has 0.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// Bytes of the entries; at most `capacity`.
    size: usize,
    capacity: usize,
    /// Entries that have left.
    dropped: u64,
}

impl Table {
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the entries (RFC 9204 §3.2.1).
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Entries that were ever inserted: the absolute index of the next one.
    #[inline]
    pub(crate) fn inserted(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// Number of evicted entries: the absolute index of the oldest entry.
    #[inline]
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The entry with an absolute index; `None` when it has not come, or has left.
    #[inline]
    pub(crate) fn get(&self, absolute: u64) -> Option<&Entry> {
        let place = absolute.checked_sub(self.dropped)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    /// The entry that `relative` means in an instruction (RFC 9204 §3.2.5): 0 is the one that was inserted last.
    pub(crate) fn get_relative(&self, relative: u64) -> Option<&Entry> {
        self.get(self.inserted().checked_sub(relative)?.checked_sub(1)?)
    }

    /// RFC 9204 §3.2.2: entries leave until the rest fits.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink_to(capacity);
    }

    /// Inserts an entry, for which the oldest are evicted. Returns whether it fits; if not, nothing has changed.
    pub(crate) fn insert(&mut self, entry: Entry) -> bool {
        let Some(rest) = self.capacity.checked_sub(entry.size()) else { return false };
        self.shrink_to(rest);
        self.size += entry.size();
        self.entries.push_back(entry);
        true
    }

    /// Number of entries that an entry of `size` bytes evicts; `None` when it does not fit even then.
    pub(crate) fn leave_for(&self, size: usize) -> Option<u64> {
        let rest = self.capacity.checked_sub(size)?;
        let mut left = self.size;
        let mut count = 0;
        for entry in &self.entries {
            if left <= rest {
                break;
            }
            left -= entry.size();
            count += 1;
        }
        Some(count)
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= entry.size();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_and_indices_stay() {
        let mut table = Table::default();
        assert!(!table.insert(Entry::new(b"", b"")));
        table.set_capacity(100);
        for value in [b"a", b"b", b"c"] {
            assert!(table.insert(Entry::new(b"n", value)));
        }
        // 34 bytes each: two of them fit.
        assert_eq!((table.size(), table.dropped(), table.inserted()), (68, 1, 3));
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(1).map(Entry::value), Some(&b"b"[..]));
        assert_eq!(table.get(3), None);
        assert_eq!(table.get_relative(0).map(Entry::value), Some(&b"c"[..]));
        assert_eq!(table.get_relative(2), None);
        assert_eq!(table.get_relative(u64::MAX), None);
        assert_eq!([32, 33, 66, 67, 100].map(|size| table.leave_for(size)), [0, 1, 1, 2, 2].map(Some));
        assert_eq!(table.leave_for(101), None);
        assert!(!table.insert(Entry::new(b"n", &[b'v'; 68])), "larger than the table");
        assert_eq!(table.size(), 68);
        assert!(table.insert(Entry::new(b"n", &[b'v'; 67])));
        assert_eq!((table.size(), table.dropped(), table.inserted()), (100, 3, 4));
        table.set_capacity(0);
        assert_eq!((table.size(), table.dropped(), table.inserted()), (0, 4, 4));
        assert_eq!(table.capacity(), 0);
    }
}
