//! Index of an encoder's dynamic table, by name and by field.
//!
//! Buckets hold the newest entry of a hash, and each entry refers to the previous one in its bucket. Entries are evicted in the order of
//! insertion. So a chain ends at the first evicted entry, and nothing is ever unlinked.

use std::collections::VecDeque;

use crate::table::{Entry, Table};

/// End of a chain. No table has so many entries.
const NONE: u64 = u64::MAX;
const MOST_BUCKETS: usize = 4_096;

#[derive(Debug)]
struct Link {
    name: u64,
    field: u64,
    /// The entry before with a name, or a field, of the same bucket.
    before_name: u64,
    before_field: u64,
    /// Bytes that were inserted before this entry, since the table began.
    start: u64,
}

/// Chains over the entries of one table.
#[derive(Debug, Default)]
pub(crate) struct Index {
    names: Vec<u64>,
    fields: Vec<u64>,
    /// One for each entry of the table.
    links: VecDeque<Link>,
    /// Bytes that were inserted since the table began.
    end: u64,
}

impl Index {
    /// For a table of `capacity` bytes; memory is taken with the first entry.
    fn buckets(capacity: usize) -> usize {
        // Entries of typical requests have about 64 bytes.
        (capacity / 64).next_power_of_two().clamp(8, MOST_BUCKETS)
    }

    /// Follows the table, in which `name` was inserted last, with these hashes.
    pub(crate) fn insert(&mut self, table: &Table, name: u64, field: u64) {
        if self.names.is_empty() {
            let buckets = Self::buckets(table.capacity());
            self.names = vec![NONE; buckets];
            self.fields = vec![NONE; buckets];
        }
        let this = table.inserted() - 1;
        let mask = self.names.len() - 1;
        let before_name = std::mem::replace(&mut self.names[name as usize & mask], this);
        let before_field = std::mem::replace(&mut self.fields[field as usize & mask], this);
        self.links.push_back(Link { name, field, before_name, before_field, start: self.end });
        self.end += table.get(this).map_or(0, Entry::size) as u64;
        let gone = self.links.len() as u64 - (table.inserted() - table.dropped());
        self.links.drain(..gone as usize);
    }

    #[inline]
    fn link(&self, table: &Table, absolute: u64) -> Option<&Link> {
        let place = absolute.checked_sub(table.dropped())?;
        self.links.get(usize::try_from(place).ok()?)
    }

    /// Absolute indices of the entries with `name`, whose hash is `hash`, the newest first.
    #[inline]
    pub(crate) fn named<'a>(&'a self, table: &'a Table, name: &'a [u8], hash: u64) -> impl Iterator<Item = u64> + 'a {
        let head = self.names.get(hash as usize & self.names.len().wrapping_sub(1)).copied();
        std::iter::successors(head, move |at| self.link(table, *at).map(|link| link.before_name)).filter(move |at| {
            let is_hash = self.link(table, *at).is_some_and(|link| link.name == hash);
            is_hash && table.get(*at).is_some_and(|entry| entry.name() == name)
        })
    }

    /// Absolute indices of the entries with this name and value, whose hash is `hash`, the newest first.
    #[inline]
    pub(crate) fn fields<'a>(
        &'a self,
        table: &'a Table,
        (name, value): (&'a [u8], &'a [u8]),
        hash: u64,
    ) -> impl Iterator<Item = u64> + 'a {
        let head = self.fields.get(hash as usize & self.fields.len().wrapping_sub(1)).copied();
        std::iter::successors(head, move |at| self.link(table, *at).map(|link| link.before_field)).filter(move |at| {
            let is_hash = self.link(table, *at).is_some_and(|link| link.field == hash);
            is_hash && table.get(*at).is_some_and(|entry| entry.name() == name && entry.value() == value)
        })
    }

    /// The hashes of an entry: of its name, and of name and value.
    pub(crate) fn hashes(&self, table: &Table, absolute: u64) -> Option<(u64, u64)> {
        self.link(table, absolute).map(|link| (link.name, link.field))
    }

    /// Bytes of the table between the newest entry and this one, itself included: when they are all of the capacity, it leaves.
    pub(crate) fn depth(&self, table: &Table, absolute: u64) -> u64 {
        self.link(table, absolute).map_or(u64::MAX, |link| self.end - link.start)
    }
}
