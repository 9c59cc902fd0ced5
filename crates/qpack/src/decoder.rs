//! Decoder: instructions of the peer's encoder fill the table, and field sections refer to it.

use crate::{
    SectionError, StreamError,
    error::Fault,
    integer, static_table,
    string::{self, Head, Literal},
    table::{Entry, OVERHEAD, Table, size},
};

/// Bytes of memory for decoded strings that are kept for the next section.
const SCRATCH: usize = 16 << 10;
/// Bytes by which an incomplete instruction is extended.
const PIECE: usize = 512;

/// Decompresses the field sections of one peer.
///
/// Contract: data of the peer's encoder stream is passed to [`on_encoder_stream`](Self::on_encoder_stream), in order; everything that a
/// method appends to `answer` is sent on the decoder stream.
///
/// Beside the table there is memory for one instruction that has not come whole: less than four times the capacity.
#[derive(Debug)]
pub struct Decoder {
    /// Capacity promised in SETTINGS.
    max_capacity: usize,
    table: Table,
    /// The beginning of an instruction.
    kept: Vec<u8>,
    names: Vec<u8>,
    values: Vec<u8>,
}

/// An instruction of an encoder (RFC 9204 §4.3).
#[derive(Debug)]
enum Instruction<'a> {
    Capacity(u64),
    Static { index: u64, value: Literal<'a> },
    Dynamic { relative: u64, value: Literal<'a> },
    Literal { name: Literal<'a>, value: Literal<'a> },
    Duplicate { relative: u64 },
}

/// Prefix of a section (RFC 9204 §4.5.1).
#[derive(Clone, Copy, Debug)]
struct Prefix {
    /// Required Insert Count.
    required: u64,
    base: u64,
}

impl Decoder {
    /// `capacity`: what SETTINGS promise in bytes (SETTINGS_QPACK_MAX_TABLE_CAPACITY, RFC 9204 §5). SETTINGS_QPACK_BLOCKED_STREAMS is
    /// 0: a section that refers to an entry that has not come is an error, so no stream ever waits for another.
    pub fn new(capacity: usize) -> Self {
        Self {
            max_capacity: capacity,
            table: Table::default(),
            kept: Vec::new(),
            names: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Takes bytes of the peer's encoder stream, in pieces of any size (RFC 9204 §4.3). Appends to `answer` what has to be written to
    /// the decoder stream: an Insert Count Increment, when entries have come.
    ///
    /// # Errors
    /// QPACK_ENCODER_STREAM_ERROR: the connection ends, and so does the use of this.
    pub fn on_encoder_stream(&mut self, mut data: &[u8], answer: &mut Vec<u8>) -> Result<(), StreamError> {
        let before = self.table.inserted();
        let mut kept = std::mem::take(&mut self.kept);
        while !data.is_empty() {
            if kept.is_empty() {
                // What comes whole is not copied.
                if !self.take(&mut data)? {
                    kept.extend_from_slice(data);
                    break;
                }
                continue;
            }
            let old = kept.len();
            kept.extend_from_slice(&data[..data.len().min(PIECE)]);
            let mut rest = &kept[..];
            if self.take(&mut rest)? {
                // It did not end before the piece: the rest was not kept before.
                data = &data[kept.len() - rest.len() - old..];
                kept.clear();
            } else {
                data = &data[kept.len() - old..];
            }
        }
        kept.shrink_to(PIECE);
        self.kept = kept;
        // RFC 9204 §2.2.2.3: at once, because nothing is referred to before. So a section never acknowledges entries.
        let count = self.table.inserted() - before;
        if count > 0 {
            integer::push(answer, 6, 0, count);
        }
        Ok(())
    }

    /// Takes an instruction off `data` and obeys; `false` when it has not come whole.
    fn take(&mut self, data: &mut &[u8]) -> Result<bool, StreamError> {
        let mut rest = *data;
        match read(&mut rest, self.table.capacity()).and_then(|instruction| self.apply(&instruction)) {
            Ok(()) => {
                *data = rest;
                Ok(true)
            }
            Err(Fault::Truncated) => Ok(false),
            Err(Fault::Wrong(reason)) => Err(StreamError { reason }),
        }
    }

    fn apply(&mut self, instruction: &Instruction<'_>) -> Result<(), Fault> {
        // RFC 9204 §2.2.3 MUST-2, RFC 9204 §3.1 MUST-2: what is not there, not any more or not at all, cannot be referred to
        const GONE: Fault = Fault::Wrong("an instruction refers to an entry that is not there");
        let (names, values) = (&mut self.names, &mut self.values);
        let entry = match instruction {
            Instruction::Capacity(capacity) => {
                // RFC 9204 §4.3.1 MUST-2: not above what SETTINGS promise
                let capacity = usize::try_from(*capacity).ok().filter(|capacity| *capacity <= self.max_capacity);
                self.table.set_capacity(capacity.ok_or(Fault::Wrong("a capacity above what is allowed"))?);
                return Ok(());
            }
            Instruction::Static { index, value } => {
                let (name, _) = static_table::get(*index).ok_or(GONE)?;
                Entry::new(name, value.text(values)?)
            }
            Instruction::Dynamic { relative, value } => {
                let named = self.table.get_relative(*relative).ok_or(GONE)?;
                Entry::new(named.name(), value.text(values)?)
            }
            Instruction::Literal { name, value } => Entry::new(name.text(names)?, value.text(values)?),
            Instruction::Duplicate { relative } => self.table.get_relative(*relative).ok_or(GONE)?.clone(),
        };
        names.shrink_to(SCRATCH);
        values.shrink_to(SCRATCH);
        // RFC 9204 §3.2 MUST NOT-1: that an entry is there already is no error
        // RFC 9204 §3.2.2 MUST-1: one that is larger than the table is
        if self.table.insert(entry) { Ok(()) } else { Err(TOO_LARGE) }
    }

    /// Decodes a whole field section of `stream` (RFC 9204 §4.5). `emit(name, value, sensitive)` gets each field in order; a sensitive one
    /// must not be indexed when it is forwarded (RFC 9204 §7.1.3). HTTP checks whether names and values are valid.
    ///
    /// `max_size` bounds the size as RFC 9114 §4.2.2 counts it, in bytes: name, value and 32 for each field. Fields beyond it are not
    /// given to `emit`, but are looked at, so that the error has the whole size and a malformed section is found.
    ///
    /// `answer` gets a Section Acknowledgment when the section has a Required Insert Count, also when it is too large: its references
    /// are not needed any more (RFC 9204 §4.4.1).
    ///
    /// # Errors
    /// See [`SectionError`]. What `emit` got before is to be thrown away.
    pub fn decode(
        &mut self,
        stream: u64,
        mut block: &[u8],
        max_size: u64,
        answer: &mut Vec<u8>,
        mut emit: impl FnMut(&[u8], &[u8], bool),
    ) -> Result<(), SectionError> {
        let prefix = self.prefix(&mut block)?;
        let mut total = 0_u64;
        let mut take = |name: &[u8], value: &[u8], sensitive: bool| {
            total = total.saturating_add(size(name, value) as u64);
            if total <= max_size {
                emit(name, value, sensitive);
            }
        };
        let (names, values) = (&mut self.names, &mut self.values);
        // RFC 9204 §2.2 MUST-1: fields come out in the order of their lines
        while !block.is_empty() {
            line(&self.table, prefix, &mut block, (names, values), &mut take)?;
        }
        names.shrink_to(SCRATCH);
        values.shrink_to(SCRATCH);
        // RFC 9204 §2.2.2.1 MUST-1: a section that refers to the table is acknowledged
        if prefix.required > 0 {
            integer::push(answer, 7, 0x80, stream);
        }
        if total > max_size { Err(SectionError::TooLarge { size: total, limit: max_size }) } else { Ok(()) }
    }

    /// Bytes of the table's entries, counted as in RFC 9204 §3.2.1: at most the capacity.
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Bytes of an instruction that has not come whole.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    fn prefix(&self, block: &mut &[u8]) -> Result<Prefix, Fault> {
        let required = self.required(integer::read(block, 8)?)?;
        if required > self.table.inserted() {
            // RFC 9204 §2.1.2 MUST-2: SETTINGS allow no blocked streams
            return Err(Fault::Wrong("a section refers to an entry that has not come"));
        }
        let is_negative = block.first().is_some_and(|first| first & 0x80 != 0);
        let delta = integer::read(block, 7)?;
        // RFC 9204 §4.5.1.2 MUST-1: a Sign of 1 takes more than Delta Base from above
        let base = if is_negative { required.checked_sub(delta + 1) } else { Some(required + delta) };
        Ok(Prefix { required, base: base.ok_or(Fault::Wrong("a negative Base"))? })
    }

    /// Required Insert Count for the value `encoded` (RFC 9204 §4.5.1.1 MUST-1: a value that no encoder can produce is an error).
    fn required(&self, encoded: u64) -> Result<u64, Fault> {
        const WRONG: Fault = Fault::Wrong("a Required Insert Count that cannot be");
        if encoded == 0 {
            return Ok(0);
        }
        let most_entries = (self.max_capacity / OVERHEAD) as u64;
        let range = 2 * most_entries;
        if encoded > range {
            return Err(WRONG);
        }
        let most = self.table.inserted() + most_entries;
        let mut required = most / range * range + encoded - 1;
        if required > most {
            // It wrapped once less.
            required = required.checked_sub(range).ok_or(WRONG)?;
        }
        if required == 0 { Err(WRONG) } else { Ok(required) }
    }

    /// Cancels a stream before its field sections are decoded: appends a Stream Cancellation to `answer` (RFC 9204 §2.2.2.2, §4.4.2);
    /// nothing if the capacity is 0.
    pub fn cancel(&mut self, stream: u64, answer: &mut Vec<u8>) {
        if self.max_capacity > 0 {
            integer::push(answer, 6, 0x40, stream);
        }
    }
}

const TOO_LARGE: Fault = Fault::Wrong("an entry larger than the dynamic table");

/// Takes an instruction off `data`, for a table of `capacity` bytes. One that cannot fit is refused as soon as its lengths have arrived.
fn read<'a>(data: &mut &'a [u8], capacity: usize) -> Result<Instruction<'a>, Fault> {
    let fits = |bytes: u64| {
        let is_small = capacity.checked_sub(OVERHEAD).is_some_and(|room| bytes <= room as u64);
        if is_small { Ok(()) } else { Err(TOO_LARGE) }
    };
    let value = |data: &mut &'a [u8], name: u64| {
        let head: Head = string::head(data, 7)?;
        fits(name.saturating_add(head.least()))?;
        head.body(data)
    };
    let first = *data.first().ok_or(Fault::Truncated)?;
    Ok(match first {
        0xc0.. => Instruction::Static { index: integer::read(data, 6)?, value: value(data, 0)? },
        0x80.. => Instruction::Dynamic { relative: integer::read(data, 6)?, value: value(data, 0)? },
        0x40.. => {
            let head = string::head(data, 5)?;
            fits(head.least())?;
            Instruction::Literal { name: head.body(data)?, value: value(data, head.least())? }
        }
        0x20.. => Instruction::Capacity(integer::read(data, 5)?),
        _ => Instruction::Duplicate { relative: integer::read(data, 5)? },
    })
}

/// Takes a field line off `block` (RFC 9204 §4.5.2 to §4.5.6) and gives it to `take`.
#[inline]
fn line(
    table: &Table,
    prefix: Prefix,
    block: &mut &[u8],
    (names, values): (&mut Vec<u8>, &mut Vec<u8>),
    take: &mut impl FnMut(&[u8], &[u8], bool),
) -> Result<(), Fault> {
    // RFC 9204 §3.1 MUST-1: no index beyond the static table
    let fixed = |index: u64| static_table::get(index).ok_or(Fault::Wrong("an index beyond the static table"));
    // RFC 9204 §2.2.3 MUST-1, RFC 9204 §2.2.1 MUST-1: what has left, or is not covered by the prefix, cannot be referred to
    let dynamic = |absolute: Option<u64>| {
        let absolute = absolute.filter(|absolute| *absolute < prefix.required);
        absolute
            .and_then(|absolute| table.get(absolute))
            .ok_or(Fault::Wrong("a reference to an entry that is not there"))
    };
    let before_base = |relative: u64| dynamic(prefix.base.checked_sub(relative).and_then(|at| at.checked_sub(1)));
    let behind_base = |index: u64| dynamic(prefix.base.checked_add(index));

    let first = *block.first().ok_or(Fault::Truncated)?;
    match first {
        0xc0.. => {
            let (name, value) = fixed(integer::read(block, 6)?)?;
            take(name, value, false);
        }
        0x80.. => {
            let entry = before_base(integer::read(block, 6)?)?;
            take(entry.name(), entry.value(), false);
        }
        0x40.. => {
            let index = integer::read(block, 4)?;
            let name = if first & 0x10 != 0 { fixed(index)?.0 } else { before_base(index)?.name() };
            take(name, string::read(block, 7)?.text(values)?, first & 0x20 != 0);
        }
        0x20.. => {
            let name = string::read(block, 3)?.text(names)?;
            take(name, string::read(block, 7)?.text(values)?, first & 0x10 != 0);
        }
        0x10.. => {
            let entry = behind_base(integer::read(block, 4)?)?;
            take(entry.name(), entry.value(), false);
        }
        _ => {
            let name = behind_base(integer::read(block, 3)?)?.name();
            take(name, string::read(block, 7)?.text(values)?, first & 0x08 != 0);
        }
    }
    Ok(())
}
