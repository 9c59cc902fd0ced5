//! A queue whose first element is stored inline.
//!
//! Most streams carry one small message in each direction, which is one write and one arrival. A `VecDeque` allocates room for four
//! elements with the first push, and frees it at the end of the stream; that was a tenth of the instructions of a small request.

use std::{
    collections::VecDeque,
    ops::{Index, IndexMut},
};

/// First in, first out, without an allocation while there is at most one element.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// Before everything in `rest`.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    /// Bytes of heap for elements, used or not.
    #[inline]
    pub(super) fn heap(&self) -> usize {
        self.rest.capacity() * size_of::<T>()
    }

    #[inline]
    pub(super) fn push_back(&mut self, value: T) {
        if self.is_empty() {
            self.first = Some(value);
        } else {
            self.rest.push_back(value);
        }
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        // The others stay where they are: moving one up for each that leaves would cost every long transfer.
        self.first.take().or_else(|| self.rest.pop_front())
    }

    /// Takes the element that was appended last.
    pub(super) fn pop_back(&mut self) -> Option<T> {
        self.rest.pop_back().or_else(|| self.first.take())
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        match &self.first {
            Some(first) if index == 0 => Some(first),
            Some(_) => self.rest.get(index - 1),
            None => self.rest.get(index),
        }
    }

    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut().or_else(|| self.rest.front_mut())
    }

    #[inline]
    pub(super) fn back_mut(&mut self) -> Option<&mut T> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Number of elements before the first for which `before` is false. The elements for which it is true have to come first.
    pub(super) fn partition_point(&self, mut before: impl FnMut(&T) -> bool) -> usize {
        match &self.first {
            Some(first) if !before(first) => 0,
            Some(_) => 1 + self.rest.partition_point(before),
            None => self.rest.partition_point(before),
        }
    }
}

impl<T> Index<usize> for Queue<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        match &self.first {
            Some(first) if index == 0 => first,
            Some(_) => &self.rest[index - 1],
            None => &self.rest[index],
        }
    }
}

impl<T> IndexMut<usize> for Queue<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        match &mut self.first {
            Some(first) if index == 0 => first,
            Some(_) => &mut self.rest[index - 1],
            None => &mut self.rest[index],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A `VecDeque` does the same, whatever comes and goes.
        #[test]
        fn everything_comes_out_in_its_order(pushes in prop::collection::vec(prop::option::weighted(0.75, any::<u8>()), 0..60)) {
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            let mut next = 0_u32;
            for push in pushes {
                match push {
                    Some(0..=63) => prop_assert_eq!(queue.pop_back(), model.pop_back()),
                    Some(_) => {
                        next += 1;
                        queue.push_back(next);
                        model.push_back(next);
                    }
                    None => prop_assert_eq!(queue.pop_front(), model.pop_front()),
                }
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(queue.iter().eq(&model) && queue.iter_mut().eq(model.iter_mut()));
                prop_assert_eq!(queue.front_mut(), model.front_mut());
                prop_assert_eq!(queue.back_mut(), model.back_mut());
                for i in 0..=model.len() {
                    prop_assert_eq!(queue.get(i), model.get(i));
                }
                for i in 0..model.len() {
                    prop_assert_eq!((queue[i], &mut queue[i]), (model[i], &mut model[i]));
                }
                for bound in [0, next / 2, next] {
                    prop_assert_eq!(queue.partition_point(|x| *x <= bound), model.partition_point(|x| *x <= bound));
                }
            }
        }
    }

    #[test]
    fn one_element_needs_no_heap() {
        let mut queue = Queue::default();
        for i in 0..10 {
            queue.push_back(i);
            assert_eq!((queue.heap(), queue.pop_front()), (0, Some(i)));
        }
        queue.push_back(1);
        queue.push_back(2);
        assert!(queue.heap() >= size_of::<i32>());
    }
}
