//! Bounded memory of clients, also under attack.

use std::collections::HashMap;

/// Entries by client (see [`key`](crate::admission::key)) in two generations: when the young one is full, the old one is forgotten.
#[derive(Debug)]
pub(crate) struct Generations<T> {
    young: HashMap<u128, T>,
    old: HashMap<u128, T>,
    each: usize,
}

impl<T: Copy> Generations<T> {
    /// With at most `each` entries in each generation. The last `each` clients that were written are always known.
    pub(crate) fn new(each: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), each }
    }

    pub(crate) fn get(&self, client: u128) -> Option<T> {
        self.young.get(&client).or_else(|| self.old.get(&client)).copied()
    }

    pub(crate) fn put(&mut self, client: u128, entry: T) {
        if self.young.len() >= self.each && !self.young.contains_key(&client) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(client, entry);
    }

    /// Bytes that both tables take.
    pub(crate) fn bytes(&self) -> u64 {
        // A table has room for an eighth more than it takes, and a byte beside each entry.
        let entries = (self.young.capacity() + self.old.capacity()) as u64;
        entries * 8 / 7 * (size_of::<(u128, T)>() as u64 + 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known_and_there_is_a_bound() {
        let mut memory = Generations::new(10);
        for client in 0..1_000_u128 {
            memory.put(client, client * 2);
            assert!(memory.len() <= 20);
            for last in client.saturating_sub(9)..=client {
                assert_eq!(memory.get(last), Some(last * 2));
            }
        }
        memory.put(999, 7);
        assert_eq!(memory.get(999), Some(7), "the young entry counts");
        assert_eq!(memory.get(1), None);
    }
}
