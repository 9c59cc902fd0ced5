//! Fetched parts of a stream, of which the first needs no heap: most messages come in one.

use std::collections::VecDeque;

use transport::streams::Chunk;

/// Parts of a stream in the order in which they are read.
#[derive(Default)]
pub(crate) struct Parts {
    /// Before everything in `rest`.
    first: Option<Chunk>,
    rest: VecDeque<Chunk>,
}

impl Parts {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    pub(crate) fn push(&mut self, chunk: Chunk) {
        if self.is_empty() {
            self.first = Some(chunk);
        } else {
            self.rest.push_back(chunk);
        }
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut Chunk> {
        self.first.as_mut().or_else(|| self.rest.front_mut())
    }

    pub(crate) fn pop(&mut self) -> Option<Chunk> {
        self.first.take().or_else(|| self.rest.pop_front())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Copies all parts into one.
    pub(crate) fn join(&mut self) {
        let Some(offset) = self.front_mut().map(|first| first.offset) else { return };
        let all = || self.first.iter().chain(&self.rest);
        let mut data = Vec::with_capacity(all().map(|chunk| chunk.data.len()).sum());
        all().for_each(|chunk| data.extend_from_slice(&chunk.data));
        self.rest.clear();
        self.first = Some(Chunk { offset, data: data.into() });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn chunk(offset: u64, data: &'static [u8]) -> Chunk {
        Chunk { offset, data: Bytes::from_static(data) }
    }

    #[test]
    fn parts_come_out_in_their_order() {
        let mut parts = Parts::default();
        parts.push(chunk(0, b"a"));
        assert_eq!(parts.rest.capacity(), 0);
        parts.push(chunk(1, b"bc"));
        assert_eq!(parts.pop(), Some(chunk(0, b"a")));
        parts.push(chunk(3, b"d"));
        assert_eq!(parts.front_mut(), Some(&mut chunk(1, b"bc")));
        assert_eq!((parts.pop(), parts.pop(), parts.pop()), (Some(chunk(1, b"bc")), Some(chunk(3, b"d")), None));
        assert!(parts.is_empty());
    }

    #[test]
    fn joined_parts_are_one() {
        let mut parts = Parts::default();
        parts.join();
        assert!(parts.is_empty());
        parts.push(chunk(7, b"a"));
        parts.push(chunk(8, b"bc"));
        parts.join();
        assert_eq!((parts.pop(), parts.pop()), (Some(chunk(7, b"abc")), None));
    }
}
