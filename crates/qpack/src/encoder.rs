//! Encoder.
//!
//! A field is encoded as, in this order: an entry of the static table; an entry of the dynamic table that the peer is known to have; a
//! literal, with its name from a table if possible. Beside a literal an entry may be inserted, for later sections. So no section ever waits
//! for the encoder stream, whatever the peer permits (RFC 9204 §2.1.2).

use crate::{
    Field, StreamError,
    error::Fault,
    hash,
    index::Index,
    integer,
    outstanding::Outstanding,
    static_table::{self, Habit, Name},
    string,
    table::{self, Entry, OVERHEAD, Table},
};

/// Cookies up to this length are never in the table: they could be guessed (RFC 9204 §7.1).
const SHORT_COOKIE: usize = 20;
/// Fields of which it is known that they were there, as far as they do not take each other's place.
const SEEN: usize = 256;
/// Bytes of memory for the lines of a section that are kept for the next one.
const SCRATCH: usize = 16 << 10;

/// Compresses field sections for one peer.
///
/// Contract: everything that [`encode`](Self::encode) appends to `instructions` is sent on the encoder stream, in that order; data of the
/// peer's decoder stream is passed to [`on_decoder_stream`](Self::on_decoder_stream). Block and instructions may be sent in any order. Data
/// blocked by flow control may wait (RFC 9204 §2.1.3): nothing depends on it, and unacknowledged instructions never have more entries than
/// the table holds.
///
/// Memory is bounded by the capacity, and by 256 unacknowledged sections; at this number, further sections use the static table only.
#[derive(Debug)]
pub struct Encoder {
    max_capacity: usize,
    /// Capacity that the peer allows in bytes; `None` before its SETTINGS have come.
    peer_capacity: Option<u64>,
    /// Set once the peer knows the capacity.
    is_announced: bool,
    table: Table,
    index: Index,
    /// Known Received Count (RFC 9204 §2.1.4): entries below are the peer's too.
    known: u64,
    outstanding: Outstanding,
    /// For each slot the hash of the field that was there last; without memory while there is no table.
    seen: Box<[u32]>,
    /// The lines of a section, before its prefix can be known.
    lines: Vec<u8>,
    /// The beginning of an instruction of the peer.
    kept: Vec<u8>,
}

/// References of a section that is being encoded.
#[derive(Debug)]
struct Section {
    /// Permission to refer to the dynamic table.
    is_dynamic: bool,
    /// Relative indices count down from here.
    base: u64,
    /// Required Insert Count.
    required: u64,
    /// The smallest absolute index; `u64::MAX` without any.
    oldest: u64,
}

impl Section {
    /// The relative index of an entry (RFC 9204 §3.2.5), which is referred to from here on.
    fn refer(&mut self, absolute: u64) -> u64 {
        self.required = self.required.max(absolute + 1);
        self.oldest = self.oldest.min(absolute);
        self.base - absolute - 1
    }
}

impl Encoder {
    /// `max_capacity`: the most bytes that this end spends on the table, counted as in RFC 9204 §3.2.1; with 0 only the static table
    /// is used.
    pub fn new(max_capacity: usize) -> Self {
        Self {
            max_capacity,
            peer_capacity: None,
            is_announced: false,
            table: Table::default(),
            index: Index::default(),
            known: 0,
            outstanding: Outstanding::default(),
            seen: Box::default(),
            lines: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Sets the capacity that the peer's SETTINGS allow in bytes (SETTINGS_QPACK_MAX_TABLE_CAPACITY, RFC 9204 §5). Before it, and with 0,
    /// only the static table is used, and nothing is written to the encoder stream (RFC 9204 §3.2.3). Call it once at most; a second call
    /// is ignored.
    pub fn set_peer_capacity(&mut self, max_table_capacity: u64) {
        debug_assert!(self.peer_capacity.is_none(), "SETTINGS come once");
        if self.peer_capacity.is_some() {
            return;
        }
        self.peer_capacity = Some(max_table_capacity);
        // RFC 9204 §3.2.3 MUST NOT-1, RFC 9204 §4.3.1 MUST-1: never more than the peer allows
        // RFC 9204 §3.2.3 MUST NOT-2, MUST NOT-3: of nothing, there is no table, and nothing is said about one
        // RFC 9204 §4.3.1 MUST NOT-1: it is set once, before there is an entry that it could drive out
        let capacity = usize::try_from(max_table_capacity).unwrap_or(usize::MAX).min(self.max_capacity);
        if capacity >= OVERHEAD {
            self.table.set_capacity(capacity);
            self.seen = vec![0; SEEN].into();
        }
    }

    /// Encodes a field section of `stream`: appends the encoded field section, prefix included, to `block`, and instructions for the
    /// encoder stream to `instructions`.
    ///
    /// Never refers to an unacknowledged entry, so the peer never blocks. Names are not changed: HTTP checks that they have no capitals.
    pub fn encode<'a>(
        &mut self,
        stream: u64,
        fields: impl IntoIterator<Item = Field<'a>>,
        block: &mut Vec<u8>,
        instructions: &mut Vec<u8>,
    ) {
        let is_dynamic = self.table.capacity() > 0 && self.outstanding.takes(stream);
        // RFC 9204 §2.1.2 MUST-1: nothing is referred to that the peer may not have, so no stream can become blocked
        let mut section = Section { is_dynamic, base: self.known, required: 0, oldest: u64::MAX };
        let mut lines = std::mem::take(&mut self.lines);
        // RFC 9204 §2.1 MUST-1: lines stand in the order of the fields
        for field in fields {
            self.line(&field, &mut section, &mut lines, instructions);
        }
        self.prefix(&section, block);
        block.extend_from_slice(&lines);
        if section.required > 0 {
            self.outstanding.push(stream, section.oldest);
        }
        lines.clear();
        lines.shrink_to(SCRATCH);
        self.lines = lines;
    }

    /// Field sections that refer to the dynamic table and that the peer has neither acknowledged nor cancelled: at most 256.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Bytes of the table's entries, counted as in RFC 9204 §3.2.1.
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// RFC 9204 §4.5.1.
    fn prefix(&self, section: &Section, block: &mut Vec<u8>) {
        if section.required == 0 {
            block.extend_from_slice(&[0, 0]);
            return;
        }
        // RFC 9204 §4.5.1.1: by what the peer allows, not by what is used of it.
        let range = 2 * (self.peer_capacity.unwrap_or(0) / OVERHEAD as u64);
        integer::push(block, 8, 0, section.required.checked_rem(range).unwrap_or(0) + 1);
        // RFC 9204 §4.5.1.2 MUST NOT-1: all that is referred to is known, so Base is not below, and never negative
        integer::push(block, 7, 0, section.base - section.required);
    }

    fn line(&mut self, field: &Field<'_>, section: &mut Section, lines: &mut Vec<u8>, instructions: &mut Vec<u8>) {
        let name_hash = hash::name(field.name);
        let name = static_table::name(field.name, name_hash);
        let index = name.and_then(|name| name.index);
        // RFC 9204 §4.5.4 MUST-1, MUST-2, RFC 9204 §7.1.3 MUST-1, MUST NOT-1: what must not be indexed is a literal, and says so
        if field.sensitive {
            literal(index, field, lines);
            return;
        }
        let field_hash = hash::more(name_hash, field.value);
        if index.is_some()
            && let Some(index) = static_table::field(field.name, field.value, field_hash)
        {
            integer::push(lines, 6, 0xc0, u64::from(index));
            return;
        }
        if !section.is_dynamic || habit(name, field) == Habit::Fleeting {
            literal(index, field, lines);
            return;
        }
        let mut copies = self.index.fields(&self.table, (field.name, field.value), field_hash);
        let newest = copies.next();
        let usable = newest.into_iter().chain(copies).find(|at| *at < self.known);
        if let Some(at) = usable {
            if newest == usable && self.is_draining(at) {
                self.duplicate(at, section, instructions);
            }
            // A copy may have taken its place.
            if at >= self.table.dropped() {
                integer::push(lines, 6, 0x80, section.refer(at));
                return;
            }
        } else if newest.is_none() && self.is_wanted(name, field, field_hash) {
            self.insert(index, field, (name_hash, field_hash), section, instructions);
        }
        if index.is_none()
            && let Some(at) = self.usable_name(field.name, name_hash)
        {
            integer::push(lines, 4, 0x40, section.refer(at));
            string::push(lines, 7, 0, field.value);
        } else {
            literal(index, field, lines);
        }
    }

    /// Entry with a name, for a reference that does not block evictions.
    fn usable_name(&self, name: &[u8], hash: u64) -> Option<u64> {
        let at = self.index.named(&self.table, name, hash).find(|at| *at < self.known)?;
        (!self.is_draining(at)).then_some(at)
    }

    /// RFC 9204 §2.1.1.1: an entry in the oldest quarter, which leaves soon.
    fn is_draining(&self, at: u64) -> bool {
        let capacity = self.table.capacity() as u64;
        self.index.depth(&self.table, at) > capacity - capacity / 4
    }

    /// Returns whether a field that is not in the table is worth an entry.
    fn is_wanted(&mut self, name: Option<Name>, field: &Field<'_>, hash: u64) -> bool {
        let size = table::size(field.name, field.value);
        if size > self.table.capacity() / 4 {
            return false;
        }
        // The bit makes it another than that of an empty slot.
        let tag = (hash >> 32) as u32 | 1;
        let slot = &mut self.seen[hash as usize % SEEN];
        if std::mem::replace(slot, tag) == tag {
            return true;
        }
        // At a gateway many clients share a connection: what one of them has sent once drives nothing out.
        habit(name, field) == Habit::Stable && self.table.leave_for(size) == Some(0)
    }

    /// RFC 9204 §2.1.1 MUST NOT-1, RFC 9204 §3.2.2 MUST NOT-1: no entry is evicted that the peer may not have, or to which a section refers
    /// that it may not have decoded.
    fn has_room(&self, size: usize, section: &Section) -> bool {
        let stays = self.known.min(self.outstanding.oldest()).min(section.oldest);
        self.table.leave_for(size).is_some_and(|count| count == 0 || self.table.dropped() + count <= stays)
    }

    /// Inserts a field, if there is room (RFC 9204 §4.3.2, §4.3.3).
    fn insert(
        &mut self,
        index: Option<u8>,
        field: &Field<'_>,
        (name_hash, field_hash): (u64, u64),
        section: &Section,
        instructions: &mut Vec<u8>,
    ) {
        if !self.has_room(table::size(field.name, field.value), section) {
            return;
        }
        if !std::mem::replace(&mut self.is_announced, true) {
            integer::push(instructions, 5, 0x20, self.table.capacity() as u64);
        }
        if let Some(index) = index {
            integer::push(instructions, 6, 0xc0, u64::from(index));
        } else if let Some(at) = self.index.named(&self.table, field.name, name_hash).next() {
            integer::push(instructions, 6, 0x80, self.table.inserted() - 1 - at);
        } else {
            string::push(instructions, 5, 0x40, field.name);
        }
        string::push(instructions, 7, 0, field.value);
        self.table.insert(Entry::new(field.name, field.value));
        self.index.insert(&self.table, name_hash, field_hash);
    }

    /// Inserts an entry again, if there is room, so that the old one can leave (RFC 9204 §4.3.4).
    fn duplicate(&mut self, at: u64, section: &Section, instructions: &mut Vec<u8>) {
        let Some((entry, hashes)) = self.table.get(at).zip(self.index.hashes(&self.table, at)) else { return };
        if self.has_room(entry.size(), section) {
            let entry = entry.clone();
            integer::push(instructions, 5, 0, self.table.inserted() - 1 - at);
            self.table.insert(entry);
            self.index.insert(&self.table, hashes.0, hashes.1);
        }
    }

    /// Takes bytes of the peer's decoder stream, in pieces of any size (RFC 9204 §4.4).
    ///
    /// # Errors
    /// QPACK_DECODER_STREAM_ERROR: the connection ends, and so does the use of this.
    pub fn on_decoder_stream(&mut self, mut data: &[u8]) -> Result<(), StreamError> {
        while !data.is_empty() {
            let read = if self.kept.is_empty() {
                read(&mut data)
            } else {
                // Few bytes: no instruction has more than ten.
                self.kept.push(data[0]);
                data = &data[1..];
                let read = read(&mut &self.kept[..]);
                if read.is_ok() {
                    self.kept.clear();
                }
                read
            };
            match read {
                Ok(instruction) => self.apply(instruction)?,
                Err(Fault::Truncated) if self.kept.is_empty() => {
                    self.kept.extend_from_slice(data);
                    break;
                }
                Err(Fault::Truncated) => {}
                Err(Fault::Wrong(reason)) => return Err(StreamError { reason }),
            }
        }
        Ok(())
    }

    fn apply(&mut self, instruction: Instruction) -> Result<(), StreamError> {
        let wrong = |reason| Err(StreamError { reason });
        match instruction {
            // What it referred to was known to be there: the Known Received Count stays (RFC 9204 §2.1.4).
            Instruction::Acknowledgment { stream } => {
                if !self.outstanding.acknowledge(stream) {
                    // RFC 9204 §4.4.1 MUST-1: only what waits for it is acknowledged
                    return wrong("a section is acknowledged that was not sent, or already is");
                }
            }
            Instruction::Cancellation { stream } => self.outstanding.cancel(stream),
            // RFC 9204 §4.4.3 MUST-1: neither nothing nor more than was sent
            Instruction::Increment { count: 0 } => return wrong("an Insert Count Increment of 0"),
            Instruction::Increment { count } if count > self.table.inserted() - self.known => {
                return wrong("more entries are acknowledged than were sent");
            }
            Instruction::Increment { count } => self.known += count,
        }
        Ok(())
    }
}

/// An instruction of a decoder (RFC 9204 §4.4).
#[derive(Clone, Copy, Debug)]
enum Instruction {
    Acknowledgment { stream: u64 },
    Cancellation { stream: u64 },
    Increment { count: u64 },
}

/// Takes an instruction off `data`.
fn read(data: &mut &[u8]) -> Result<Instruction, Fault> {
    let first = *data.first().ok_or(Fault::Truncated)?;
    Ok(match first {
        0x80.. => Instruction::Acknowledgment { stream: integer::read(data, 7)? },
        0x40.. => Instruction::Cancellation { stream: integer::read(data, 6)? },
        _ => Instruction::Increment { count: integer::read(data, 6)? },
    })
}

fn habit(name: Option<Name>, field: &Field<'_>) -> Habit {
    match name.map_or(Habit::Unknown, |name| name.habit) {
        Habit::Cookie if field.value.len() <= SHORT_COOKIE => Habit::Fleeting,
        // Conditions are on what has just been seen.
        Habit::Unknown if field.name.starts_with(b"if-") => Habit::Fleeting,
        habit => habit,
    }
}

/// RFC 9204 §4.5.4 with the static table, and §4.5.6.
fn literal(index: Option<u8>, field: &Field<'_>, lines: &mut Vec<u8>) {
    match index {
        Some(index) => integer::push(lines, 4, 0x50 | u8::from(field.sensitive) << 5, u64::from(index)),
        None => string::push(lines, 3, 0x20 | u8::from(field.sensitive) << 4, field.name),
    }
    string::push(lines, 7, 0, field.value);
}
