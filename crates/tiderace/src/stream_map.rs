//! A map of the streams of a connection that needs no heap for one entry.
//!
//! A task that answers one stream after the other has one entry at a time, which comes and goes with each request. A table
//! without entries gives its memory back, so that a connection at rest has none.

use rustc_hash::FxHashMap;
use wire::StreamId;

/// Map from streams to values.
pub(crate) struct StreamMap<T> {
    one: Option<(StreamId, T)>,
    // The peer chooses the IDs of its streams, but has no more of them at a time than the limit: a simple hash will do.
    others: FxHashMap<StreamId, T>,
}

impl<T> Default for StreamMap<T> {
    fn default() -> Self {
        Self { one: None, others: FxHashMap::default() }
    }
}

impl<T> StreamMap<T> {
    /// Sets the value of a stream, in place of one before.
    pub(crate) fn insert(&mut self, id: StreamId, value: T) {
        if let Some(place) = self.get_mut(id) {
            *place = value;
        } else if self.one.is_none() {
            self.one = Some((id, value));
        } else {
            self.others.insert(id, value);
        }
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        match &mut self.one {
            Some((one, value)) if *one == id => Some(value),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&id),
        }
    }

    /// Removes and returns the value of a stream.
    pub(crate) fn remove(&mut self, id: StreamId) -> Option<T> {
        if let Some((_, value)) = self.one.take_if(|(one, _)| *one == id) {
            return Some(value);
        }
        if self.others.is_empty() {
            return None;
        }
        let removed = self.others.remove(&id);
        if self.others.is_empty() {
            self.others = FxHashMap::default();
        }
        removed
    }

    /// Removes and returns all values.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { one, others } = std::mem::take(self);
        one.into_iter().chain(others).map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.one.iter_mut().map(|(_, value)| value).chain(self.others.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use wire::{Dir, Side};

    use super::*;

    fn id(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    #[test]
    fn a_map_does_the_same_and_one_entry_needs_no_table() {
        let (mut map, mut model) = (StreamMap::default(), HashMap::new());
        let mut random = 1_u64;
        for step in 0..10_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let stream = id(random >> 61);
            match random >> 32 & 3 {
                0 => {
                    map.insert(stream, step);
                    model.insert(stream, step);
                }
                1 => assert_eq!(map.get_mut(stream), model.get_mut(&stream)),
                _ => assert_eq!(map.remove(stream), model.remove(&stream)),
            }
            let mut values: Vec<_> = map.values_mut().map(|value| *value).collect();
            let mut expected: Vec<_> = model.values().copied().collect();
            values.sort_unstable();
            expected.sort_unstable();
            assert_eq!(values, expected);
            assert!(!map.others.is_empty() || map.others.capacity() == 0);
        }
        let mut rest: Vec<_> = map.take_all().collect();
        rest.sort_unstable();
        let mut expected: Vec<_> = model.into_values().collect();
        expected.sort_unstable();
        assert_eq!(rest, expected);
        for index in 0..5 {
            map.insert(id(index), index);
            assert_eq!((map.others.capacity(), map.remove(id(index))), (0, Some(index)));
        }
    }
}
