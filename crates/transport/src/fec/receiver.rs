//! Receiver: passes arrived symbols to the decoder, and reports rebuilt ones to the sender.

use std::collections::VecDeque;

use fec::{Decoder, DecoderFigures, Kernel, Repair, WorkLimit};
use units::{Duration, Instant};
use wire::{RepairFrame, SymbolAck, Writer, frame_type};

use super::{WINDOW, violation};
use crate::{
    error::{Code, TransportError},
    range_set::RangeSet,
};

/// Number of acknowledgements in which a report is repeated, in case one of them is lost.
const REPEATS: u8 = 3;
/// Ranges of recovered symbols in a report at most.
const MAX_RANGES: usize = 16;

/// Limit of the work for decoding. Each byte of a repair symbol costs an operation for each symbol that it covers, 192 at most,
/// and two for each that is missing, and earns 256; the source symbols between repair symbols earn as much again. Savings pay
/// for a burst of losses.
const WORK: WorkLimit = WorkLimit { per_byte: 256, most: 8 << 20 };

/// A symbol that was lost and rebuilt.
pub(crate) struct Recovered<'a> {
    pub(crate) id: u64,
    pub(crate) content: &'a [u8],
    /// Since it was first missed.
    pub(crate) delay: Duration,
}

/// Owner of the decoder and the reports.
pub(crate) struct Receiver {
    decoder: Decoder,
    /// Recovered symbols whose report the sender may not have received.
    recovered: RangeSet,
    repeats: u8,
    /// Times at which symbols were first missed, ascending; for the figures.
    missed: VecDeque<(u64, Instant)>,
    recovery_delay: Duration,
    /// Bytes of memory when they were last counted.
    counted: usize,
    /// Bytes that have come since.
    since: usize,
}

/// Bytes that may come until memory is counted again.
const COUNT_EVERY: usize = 32 * 1024;

impl Default for Receiver {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(Kernel::best(), WINDOW).limited(WORK),
            recovered: RangeSet::new(),
            repeats: 0,
            missed: VecDeque::new(),
            recovery_delay: Duration::ZERO,
            counted: 0,
            since: 0,
        }
    }
}

impl Receiver {
    /// Returns whether the symbol of a packet that has just arrived was rebuilt before: then its frames are known.
    ///
    /// # Errors
    /// When no packet up to this one can have had so many symbols before it.
    pub(crate) fn is_known(&self, id: u64, pn: u64) -> Result<bool, TransportError> {
        if id > pn {
            return Err(violation("more symbols than packets", frame_type::SOURCE_SYMBOL));
        }
        Ok(self.decoder.was_recovered(id))
    }

    /// A source symbol arrived in a packet.
    ///
    /// # Errors
    /// When it contradicts earlier symbols.
    pub(crate) fn on_source(&mut self, now: Instant, id: u64, content: &[u8]) -> Result<(), TransportError> {
        let next = self.decoder.next_id();
        let arrived = self.decoder.on_source(id, content);
        arrived.map_err(|error| violation(error.0, frame_type::SOURCE_SYMBOL))?;
        self.note_memory(content.len());
        self.note_missed(now, next, id);
        Ok(())
    }

    /// A REPAIR frame arrived in packet `pn`.
    ///
    /// # Errors
    /// When it is impossible, or contradicts earlier symbols.
    pub(crate) fn on_repair(&mut self, now: Instant, pn: u64, frame: &RepairFrame<'_>) -> Result<(), TransportError> {
        let repair = Repair { first: frame.first, count: frame.count, stride: frame.stride, row: frame.row };
        let malformed = |what| TransportError::new(Code::FRAME_ENCODING_ERROR, what).in_frame(frame_type::REPAIR);
        repair.check().map_err(|error| malformed(error.as_str()))?;
        if frame.data.is_empty() {
            return Err(malformed("a repair symbol without bytes"));
        }
        if repair.last() > pn {
            return Err(violation("more symbols than packets", frame_type::REPAIR));
        }
        let next = self.decoder.next_id();
        let used = self.decoder.on_repair(&repair, frame.data);
        used.map_err(|error| violation(error.0, frame_type::REPAIR))?;
        self.note_memory(frame.data.len() + usize::from(frame.count) * size_of::<(u64, u8)>());
        // What was refused speaks of nothing.
        self.note_missed(now, next, self.decoder.next_id());
        Ok(())
    }

    /// The next symbol that was rebuilt; it will be reported.
    pub(crate) fn next_recovered(&mut self, now: Instant) -> Option<Recovered<'_>> {
        let (id, content) = self.decoder.next_recovered()?;
        self.recovered.insert(id);
        while self.recovered.range_count() > MAX_RANGES {
            self.recovered.pop_lowest();
        }
        self.repeats = REPEATS;
        let mut delay = Duration::ZERO;
        if let Ok(place) = self.missed.binary_search_by_key(&id, |missed| missed.0)
            && let Some((_, at)) = self.missed.remove(place)
        {
            delay = now - at;
            self.recovery_delay += delay;
        }
        Some(Recovered { id, content, delay })
    }

    /// Returns whether a report goes with the next acknowledgement.
    #[inline]
    pub(crate) fn has_report(&self) -> bool {
        self.repeats > 0
    }

    /// Writes a report; the largest symbol in it, when there was room.
    pub(crate) fn write_report(&mut self, w: &mut Writer<'_>) -> Option<u64> {
        let largest = self.recovered.max()?;
        let written = SymbolAck::encode(w, self.recovered.descending(), self.recovered.range_count());
        if !written {
            return None;
        }
        self.repeats -= 1;
        Some(largest)
    }

    /// A report with symbols up to `largest` arrived, or was lost.
    pub(crate) fn on_report(&mut self, arrived: bool, largest: u64) {
        if arrived {
            self.recovered.remove_below(largest + 1);
        }
        if self.recovered.is_empty() {
            self.repeats = 0;
        } else if !arrived {
            self.repeats = self.repeats.max(1);
        }
    }

    /// Counts since the beginning.
    pub(crate) fn figures(&self) -> DecoderFigures {
        self.decoder.figures()
    }

    /// From the moment a symbol was missed to its recovery, of all recovered symbols together.
    pub(crate) fn recovery_delay(&self) -> Duration {
        self.recovery_delay
    }

    /// Counting takes time, so it is done now and then; in between, what comes is added.
    fn note_memory(&mut self, bytes: usize) {
        self.since += bytes;
        if self.since >= COUNT_EVERY {
            self.counted = self.memory();
            self.since = 0;
        }
    }

    /// Bytes of memory that symbols take: never less than there are, and at most 32 KiB more.
    #[inline]
    pub(crate) fn received_memory(&self) -> usize {
        self.counted + self.since
    }

    /// Forgets symbols, the oldest first, until `bytes` of memory are free or none is left.
    #[cold]
    pub(crate) fn shed(&mut self, bytes: usize) {
        self.decoder.limit_memory(self.decoder.memory().saturating_sub(bytes));
        self.missed.clear();
        self.missed.shrink_to_fit();
        (self.counted, self.since) = (self.memory(), 0);
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.decoder.memory() + self.missed.capacity() * size_of::<(u64, Instant)>()
    }

    /// Records that symbols from `next` up to `id`, exclusive, were sent before an arrived packet.
    fn note_missed(&mut self, now: Instant, next: u64, id: u64) {
        if next >= id {
            return;
        }
        for missed in next.max(id.saturating_sub(WINDOW))..id {
            if self.missed.len() as u64 >= WINDOW {
                self.missed.pop_front();
            }
            self.missed.push_back((missed, now));
        }
        let oldest = id.saturating_sub(WINDOW);
        while self.missed.front().is_some_and(|missed| missed.0 < oldest) {
            self.missed.pop_front();
        }
    }
}
