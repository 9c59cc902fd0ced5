//! Frames of forward error correction (docs/fec.md): source symbols, repair symbols, and reports of recovered symbols.

use std::fmt;
use std::ops::RangeInclusive;

use super::{FrameErrorKind, ack::next_range, frame_type as t};
use crate::{Reader, Writer, varint};

/// A repair symbol; it reaches to the end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairFrame<'a> {
    /// Symbol ID of the first source symbol in it.
    pub first: u64,
    /// Number of source symbols that are in it.
    pub count: u8,
    /// Distance from one of them to the next.
    pub stride: u8,
    /// Row of the matrix of coefficients.
    pub row: u8,
    /// The symbol.
    pub data: &'a [u8],
}

impl<'a> RepairFrame<'a> {
    pub(super) fn parse(r: &mut Reader<'a>) -> Result<Self, FrameErrorKind> {
        Ok(Self { first: r.varint()?, count: r.u8()?, stride: r.u8()?, row: r.u8()?, data: r.rest() })
    }

    /// Number of bytes in front of the symbol.
    #[inline]
    pub fn header_len(first: u64) -> usize {
        varint::len(t::REPAIR) + varint::len(first) + 3
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.varint(t::REPAIR);
        w.varint(self.first);
        w.bytes(&[self.count, self.stride, self.row]);
        w.bytes(self.data);
    }
}

/// Number of bytes of a SOURCE_SYMBOL frame.
#[inline]
pub fn source_symbol_len(id: u64) -> usize {
    varint::len(t::SOURCE_SYMBOL) + varint::len(id)
}

/// A SYMBOL_ACK frame whose ranges have been checked: none goes below zero.
#[derive(Clone, Copy)]
pub struct SymbolAck<'a> {
    largest: u64,
    first_range: u64,
    more_count: u64,
    more: &'a [u8],
}

impl<'a> SymbolAck<'a> {
    pub(super) fn parse(r: &mut Reader<'a>) -> Result<Self, FrameErrorKind> {
        const UNDERFLOW: FrameErrorKind = FrameErrorKind::Malformed("a range goes below symbol ID 0");
        let largest = r.varint()?;
        let more_count = r.varint()?;
        let first_range = r.varint()?;
        let mut smallest = largest.checked_sub(first_range).ok_or(UNDERFLOW)?;
        let start = r.peek();
        for _ in 0..more_count {
            smallest = next_range(r, smallest)?.ok_or(UNDERFLOW)?.0;
        }
        let more = &start[..start.len() - r.remaining()];
        Ok(Self { largest, first_range, more_count, more })
    }

    /// The ranges of symbol IDs, the largest first. They neither touch nor overlap.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + use<'a> {
        let mut smallest = self.largest - self.first_range;
        let mut more = Reader::new(self.more);
        let first = smallest..=self.largest;
        std::iter::once(first).chain(std::iter::from_fn(move || {
            if more.is_empty() {
                return None;
            }
            // Parsing has checked all of them.
            let (low, high) = next_range(&mut more, smallest).ok().flatten()?;
            smallest = low;
            Some(low..=high)
        }))
    }

    pub(super) fn encoded_len(&self) -> usize {
        varint::len(t::SYMBOL_ACK)
            + varint::len(self.largest)
            + varint::len(self.more_count)
            + varint::len(self.first_range)
            + self.more.len()
    }

    pub(super) fn encode_again(&self, w: &mut Writer<'_>) {
        w.varint(t::SYMBOL_ACK);
        w.varint(self.largest);
        w.varint(self.more_count);
        w.varint(self.first_range);
        w.bytes(self.more);
    }

    /// Writes a frame of these ranges, the largest first, with at least one number missing between two of them; `count` is their number.
    /// Returns false, and writes nothing, if there are none or they do not fit.
    ///
    /// # Panics
    /// When the ranges touch, overlap, or are not in descending order.
    pub fn encode(w: &mut Writer<'_>, ranges: impl Iterator<Item = RangeInclusive<u64>>, count: usize) -> bool {
        let mut ranges = ranges.take(count);
        let Some((mut smallest, largest)) = ranges.next().map(RangeInclusive::into_inner) else { return false };
        // Type and three numbers, and two numbers for each range more, of the longest there are.
        if w.remaining() < 2 + 8 * 3 + (count - 1) * 16 {
            return false;
        }
        w.varint(t::SYMBOL_ACK);
        w.varint(largest);
        w.varint(count as u64 - 1);
        w.varint(largest - smallest);
        for (low, high) in ranges.map(RangeInclusive::into_inner) {
            let gap = smallest.checked_sub(high).and_then(|missing| missing.checked_sub(2));
            w.varint(gap.expect("ranges of symbol IDs descend and leave a gap"));
            w.varint(high - low);
            smallest = low;
        }
        true
    }
}

impl PartialEq for SymbolAck<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.ranges().eq(other.ranges())
    }
}

impl Eq for SymbolAck<'_> {}

impl fmt::Debug for SymbolAck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, Frames};

    #[test]
    fn recovered_symbols_come_back() {
        let ranges = [100..=109, 90..=90, 3..=40];
        let mut buf = [0; 128];
        let mut w = Writer::new(&mut buf);
        assert!(SymbolAck::encode(&mut w, ranges.iter().cloned(), ranges.len()));
        let Some(Ok(Frame::SymbolAck(ack))) = Frames::new(w.written()).next() else { panic!("does not come back") };
        assert!(ack.ranges().eq(ranges));
        assert_eq!(ack.encoded_len(), w.position());
    }

    #[test]
    fn ranges_below_zero_are_refused() {
        let bytes = [0x40 | (t::SYMBOL_ACK >> 8) as u8, t::SYMBOL_ACK as u8, 5, 0, 6];
        let error = Frames::new(&bytes).next().unwrap().unwrap_err();
        assert_eq!(error.kind, FrameErrorKind::Malformed("a range goes below symbol ID 0"));
        assert_eq!(error.frame_type, t::SYMBOL_ACK);
    }

    #[test]
    fn a_repair_symbol_takes_the_rest_of_the_packet() {
        let frame = Frame::Repair(RepairFrame { first: 70_000, count: 40, stride: 1, row: 7, data: b"repair" });
        let mut buf = [0; 64];
        let mut w = Writer::new(&mut buf);
        frame.encode(&mut w);
        assert_eq!(w.position(), frame.encoded_len());
        assert_eq!(frame.encoded_len(), RepairFrame::header_len(70_000) + 6);
        let mut frames = Frames::new(w.written());
        assert_eq!(frames.next(), Some(Ok(frame)));
        assert_eq!(frames.next(), None);
    }
}
