//! ACK frames (RFC 9000 §19.3): ranges of packet numbers from the largest down, as gaps and lengths. Frames of
//! draft-ietf-quic-receive-ts-02 (ACK_RECEIVE_TIMESTAMPS) have receive timestamps at their end.

use std::fmt;
use std::ops::RangeInclusive;

use super::timestamps::{self, ReceiveTimes, Times};
use super::{FrameErrorKind, frame_type as t};
use crate::{Reader, Truncated, Writer, varint};

/// Packets by ECN mark, from the start of the packet number space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// Marked ECT(0).
    pub ect0: u64,
    /// Marked ECT(1).
    pub ect1: u64,
    /// Packets with ECN-CE: a queue on the path is congested.
    pub ce: u64,
}

impl EcnCounts {
    fn encoded_len(&self) -> usize {
        varint::len(self.ect0) + varint::len(self.ect1) + varint::len(self.ce)
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.varint(self.ect0);
        w.varint(self.ect1);
        w.varint(self.ce);
    }
}

/// An ACK frame whose ranges have been checked: none goes below zero.
#[derive(Clone, Copy)]
pub struct Ack<'a> {
    /// The largest packet number acknowledged.
    pub largest: u64,
    /// Time that the sender held the acknowledgement back, before scaling by its `ack_delay_exponent`.
    pub delay: u64,
    /// Counts of ECN marks, in a frame that has them.
    pub ecn: Option<EcnCounts>,
    /// Receive timestamps, in a frame with them.
    receive_times: Option<ReceiveTimes<'a>>,
    /// Packets acknowledged in a row below the largest.
    first_range: u64,
    /// Number of pairs of gap and length in `more`.
    more_count: u64,
    more: &'a [u8],
}

impl<'a> Ack<'a> {
    /// Reads what follows the frame type.
    #[inline]
    pub(super) fn parse(r: &mut Reader<'a>, with_ecn: bool) -> Result<Self, FrameErrorKind> {
        Self::parse_plain(r, with_ecn)
    }

    /// Reads what follows the frame type of an ACK_RECEIVE_TIMESTAMPS frame.
    pub(super) fn parse_with_times(r: &mut Reader<'a>, with_ecn: bool) -> Result<Self, FrameErrorKind> {
        let ack = Self::parse_plain(r, with_ecn)?;
        Ok(Self { receive_times: Some(ReceiveTimes::parse(r, ack.largest)?), ..ack })
    }

    #[inline]
    fn parse_plain(r: &mut Reader<'a>, with_ecn: bool) -> Result<Self, FrameErrorKind> {
        let largest = r.varint()?;
        let delay = r.varint()?;
        let more_count = r.varint()?;
        let first_range = r.varint()?;
        let mut smallest = largest.checked_sub(first_range).ok_or(UNDERFLOW)?;
        let start = r.peek();
        for _ in 0..more_count {
            smallest = next_range(r, smallest)?.ok_or(UNDERFLOW)?.0;
        }
        let more = &start[..start.len() - r.remaining()];
        let ecn =
            if with_ecn { Some(EcnCounts { ect0: r.varint()?, ect1: r.varint()?, ce: r.varint()? }) } else { None };
        Ok(Self { largest, delay, ecn, receive_times: None, first_range, more_count, more })
    }

    /// The ranges of packet numbers acknowledged, the largest first. They neither touch nor overlap.
    #[inline]
    pub fn ranges(&self) -> AckRanges<'a> {
        AckRanges {
            first: Some(self.largest - self.first_range..=self.largest),
            smallest: self.largest - self.first_range,
            more: Reader::new(self.more),
        }
    }

    /// Number of ranges, at least 1.
    #[inline]
    pub fn range_count(&self) -> usize {
        // Each range beyond the first took at least two bytes to parse, so the count fits.
        usize::try_from(self.more_count).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// Returns whether the frame has receive times.
    #[inline]
    pub fn has_receive_times(&self) -> bool {
        self.receive_times.is_some()
    }

    /// Packet numbers with their receive timestamps, the most recent first; `None` in a frame without them. Times count from a moment that
    /// only the sender of the frame knows, in the unit that this endpoint requested.
    #[inline]
    pub fn receive_times(&self) -> Option<Times<'a>> {
        self.receive_times.map(|times| times.iter(self.largest))
    }

    #[inline]
    pub(super) fn ty(&self) -> u64 {
        match (self.receive_times.is_some(), self.ecn.is_some()) {
            (false, false) => t::ACK,
            (false, true) => t::ACK_ECN,
            (true, false) => t::ACK_RECEIVE_TIMESTAMPS,
            (true, true) => t::ACK_RECEIVE_TIMESTAMPS_ECN,
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        varint::len(self.ty())
            + varint::len(self.largest)
            + varint::len(self.delay)
            + varint::len(self.more_count)
            + varint::len(self.first_range)
            + self.more.len()
            + self.ecn.map_or(0, |ecn| ecn.encoded_len())
            + self.receive_times.map_or(0, |times| times.encoded_len())
    }

    /// Writes the frame again as it was read.
    pub(super) fn encode_again(&self, w: &mut Writer<'_>) {
        w.varint(self.ty());
        w.varint(self.largest);
        w.varint(self.delay);
        w.varint(self.more_count);
        w.varint(self.first_range);
        w.bytes(self.more);
        if let Some(ecn) = self.ecn {
            ecn.encode(w);
        }
        if let Some(times) = self.receive_times {
            times.encode_again(w);
        }
    }

    /// Writes an ACK frame of at most `max_bytes` (and at most the writer's room), and returns the number of ranges in it. It stops before
    /// the first range that does not fit. If not even the largest range fits, nothing is written and the result is 0.
    ///
    /// `ranges` are packet numbers from the largest down, with at least one number missing between two of them; `count`
    /// is how many there are at most, and decides how wide the field is that holds their number. `delay` is in the unit
    /// of our own `ack_delay_exponent`.
    ///
    /// # Panics
    /// When the ranges touch, overlap, run backwards or are not in descending order, or there are more than 16384.
    #[inline]
    pub fn encode(
        w: &mut Writer<'_>,
        delay: u64,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        count: usize,
        ecn: Option<EcnCounts>,
        max_bytes: usize,
    ) -> usize {
        let ty = if ecn.is_some() { t::ACK_ECN } else { t::ACK };
        Self::encode_as(w, ty, delay, ranges, count, ecn, max_bytes)
    }

    /// Like [`encode`](Self::encode), with an ACK_RECEIVE_TIMESTAMPS frame of at most `max_times` receive timestamps; returns the numbers
    /// of ranges and timestamps. The ranges come first: timestamps fill the remaining room only.
    ///
    /// `times` are received packet numbers, none above the largest of `ranges`, with the time of each in the unit that the peer requested,
    /// the most recent first.
    ///
    /// # Panics
    /// As [`encode`](Self::encode), and when a packet number is above the largest of `ranges`.
    #[expect(clippy::too_many_arguments, reason = "the fields of the frame")]
    pub fn encode_with_times(
        w: &mut Writer<'_>,
        delay: u64,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        count: usize,
        ecn: Option<EcnCounts>,
        times: impl Iterator<Item = (u64, u64)> + Clone,
        max_times: usize,
        max_bytes: usize,
    ) -> (usize, usize) {
        let ty = if ecn.is_some() { t::ACK_RECEIVE_TIMESTAMPS_ECN } else { t::ACK_RECEIVE_TIMESTAMPS };
        let max_bytes = max_bytes.min(w.remaining());
        let start = w.position();
        let mut ranges = ranges.peekable();
        let Some(largest) = ranges.peek().map(|range| *range.end()) else { return (0, 0) };
        // One byte for the number of ranges of times, should there be no room for any.
        let written = Self::encode_as(w, ty, delay, ranges, count, ecn, max_bytes.saturating_sub(1));
        if written == 0 {
            return (0, 0);
        }
        let room = max_bytes - (w.position() - start);
        (written, timestamps::encode(w, largest, times, max_times, room))
    }

    #[inline]
    fn encode_as(
        w: &mut Writer<'_>,
        ty: u64,
        delay: u64,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        count: usize,
        ecn: Option<EcnCounts>,
        max_bytes: usize,
    ) -> usize {
        let mut ranges = ranges.take(count);
        let Some((mut smallest, largest)) = ranges.next().map(RangeInclusive::into_inner) else { return 0 };
        let count_len = varint::len((count - 1) as u64).min(2);
        let first_range = largest.checked_sub(smallest).expect(DESCENDING);
        let ecn_len = ecn.map_or(0, |ecn| ecn.encoded_len());
        let head = varint::len(ty) + varint::len(largest) + varint::len(delay) + count_len + varint::len(first_range);
        let Some(mut left) = max_bytes.min(w.remaining()).checked_sub(head + ecn_len) else { return 0 };

        w.varint(ty);
        w.varint(largest);
        w.varint(delay);
        let count_offset = w.position();
        w.varint_with_len(0, count_len);
        w.varint(first_range);
        let mut more = 0;
        for (low, high) in ranges.map(RangeInclusive::into_inner) {
            // RFC 9000 §19.3.1: a gap of 0 stands for one missing packet number, a length of 0 for one that arrived.
            let gap = smallest.checked_sub(high).and_then(|missing| missing.checked_sub(2)).expect(DESCENDING);
            let length = high.checked_sub(low).expect(DESCENDING);
            let Some(rest) = left.checked_sub(varint::len(gap) + varint::len(length)) else { break };
            left = rest;
            w.varint(gap);
            w.varint(length);
            smallest = low;
            more += 1;
        }
        if more > 0 {
            Writer::new(&mut w.written_mut()[count_offset..]).varint_with_len(more, count_len);
        }
        if let Some(ecn) = ecn {
            ecn.encode(w);
        }
        usize::try_from(more).map_or(usize::MAX, |more| more + 1)
    }
}

const DESCENDING: &str = "ranges of packet numbers descend and leave a gap";

// RFC 9000 §19.3.1 MUST-1: ranges below packet number 0 are FRAME_ENCODING_ERROR
const UNDERFLOW: FrameErrorKind = FrameErrorKind::Malformed("an ACK range goes below packet number 0");

/// Reads a gap and a length: the smallest and largest number of the range below `smallest`. None when it would go below
/// zero.
#[inline]
pub(super) fn next_range(r: &mut Reader<'_>, smallest: u64) -> Result<Option<(u64, u64)>, Truncated> {
    let gap = r.varint()?;
    let length = r.varint()?;
    // Neither sum can wrap: both operands are below 2^62.
    let Some(high) = smallest.checked_sub(gap + 2) else { return Ok(None) };
    Ok(high.checked_sub(length).map(|low| (low, high)))
}

/// The ranges of an [`Ack`], from the largest packet number down.
#[derive(Clone, Debug)]
pub struct AckRanges<'a> {
    first: Option<RangeInclusive<u64>>,
    smallest: u64,
    more: Reader<'a>,
}

impl Iterator for AckRanges<'_> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<RangeInclusive<u64>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.more.is_empty() {
            return None;
        }
        // Parsing has checked all of them, so neither kind of failure occurs.
        let (low, high) = next_range(&mut self.more, self.smallest).ok().flatten()?;
        self.smallest = low;
        Some(low..=high)
    }
}

impl std::iter::FusedIterator for AckRanges<'_> {}

impl PartialEq for Ack<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.largest, self.delay, self.ecn, self.more_count)
            == (other.largest, other.delay, other.ecn, other.more_count)
            && self.ranges().eq(other.ranges())
            && self.receive_times.is_some() == other.receive_times.is_some()
            && self.receive_times().into_iter().flatten().eq(other.receive_times().into_iter().flatten())
    }
}

impl Eq for Ack<'_> {}

impl fmt::Debug for Ack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Prints the ranges as a list.
        struct Ranges<'a>(AckRanges<'a>);
        impl fmt::Debug for Ranges<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.0.clone()).finish()
            }
        }
        f.debug_struct("Ack")
            .field("delay", &self.delay)
            .field("ranges", &Ranges(self.ranges()))
            .field("ecn", &self.ecn)
            .field("receive_times", &self.receive_times().map(Iterator::collect::<Vec<_>>))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Frame, Frames};

    fn parse(bytes: &[u8]) -> Ack<'_> {
        let mut frames = Frames::new(bytes);
        let Some(Ok(Frame::Ack(ack))) = frames.next() else { panic!("no ACK frame in {bytes:?}") };
        assert_eq!(frames.next(), None);
        ack
    }

    // RFC 9000 §19.3 MUST-1
    #[test]
    fn layout() {
        // Packets 90 to 100, 80, and 1 to 70 are there: 81 to 89 (9) and 71 to 79 (9) are not.
        let bytes = [0x03, 0x40, 100, 7, 2, 10, 8, 0, 8, 0x40, 69, 1, 2, 3];
        let ecn = EcnCounts { ect0: 1, ect1: 2, ce: 3 };
        let ranges = [90..=100, 80..=80, 1..=70];
        let ack = parse(&bytes);
        assert_eq!((ack.largest, ack.delay, ack.ecn, ack.range_count()), (100, 7, Some(ecn), 3));
        assert!(ack.ranges().eq(ranges.clone()));
        assert_eq!(format!("{ack:?}").matches("90..=100, 80..=80, 1..=70").count(), 1);

        let mut buf = [0; 64];
        let mut w = Writer::new(&mut buf);
        assert_eq!(Ack::encode(&mut w, 7, ranges.into_iter(), 3, Some(ecn), 64), 3);
        assert_eq!(w.written(), bytes);
    }

    #[test]
    fn a_claim_of_many_ranges_costs_nothing() {
        let bytes = [&[0x02, 0x3f, 0][..], &[0xff; 8], &[0, 0, 0, 0, 0]].concat();
        let error = Frames::new(&bytes).next().unwrap().unwrap_err();
        assert_eq!(error.kind, FrameErrorKind::Truncated);
    }

    #[test]
    fn nothing_is_written_without_a_range_or_room() {
        let mut buf = [0; 64];
        let mut w = Writer::new(&mut buf);
        assert_eq!(Ack::encode(&mut w, 0, std::iter::empty(), 0, None, 64), 0);
        assert_eq!(Ack::encode(&mut w, 0, std::iter::once(5..=9), 1, None, 4), 0);
        assert_eq!(w.position(), 0);
        assert_eq!(Ack::encode(&mut w, 0, std::iter::once(5..=9), 1, None, 5), 1);
    }

    #[test]
    #[should_panic(expected = "descend and leave a gap")]
    fn ranges_that_touch_are_a_bug() {
        Ack::encode(&mut Writer::new(&mut [0; 64]), 0, [5..=9, 3..=4].into_iter(), 2, None, 64);
    }

    /// Ranges from the largest packet number down, built from lengths and gaps.
    fn any_ranges() -> impl Strategy<Value = Vec<RangeInclusive<u64>>> {
        let steps = prop::collection::vec((0..1u64 << 40, 0..40u32, 0..1u64 << 40, 0..40u32), 1..200);
        (0..=varint::MAX, steps).prop_map(|(largest, steps)| {
            let mut ranges = Vec::new();
            let mut next = Some(largest);
            for (length, length_shift, gap, gap_shift) in steps {
                let Some(high) = next else { break };
                let low = high.saturating_sub(length >> length_shift);
                ranges.push(low..=high);
                next = low.checked_sub((gap >> gap_shift) + 2);
            }
            ranges
        })
    }

    proptest! {
        #[test]
        fn as_many_ranges_as_fit_come_back(
            ranges in any_ranges(),
            delay in 0..=varint::MAX,
            ecn in prop::option::of((0..=varint::MAX, 0..=varint::MAX, 0..=varint::MAX)),
            max_bytes in 0..1500usize,
            room in 0..1500usize,
        ) {
            let ecn = ecn.map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce });
            let mut buf = vec![0; room];
            let mut w = Writer::new(&mut buf);
            let written = Ack::encode(&mut w, delay, ranges.iter().cloned(), ranges.len(), ecn, max_bytes);
            let space = max_bytes.min(room);
            prop_assert!(w.position() <= space);
            if written > 0 {
                let ack = parse(w.written());
                prop_assert_eq!((ack.largest, ack.delay, ack.ecn), (*ranges[0].end(), delay, ecn));
                prop_assert_eq!(ack.range_count(), written);
                prop_assert!(ack.ranges().eq(ranges[..written].iter().cloned()));

                let frame = Frame::Ack(ack);
                let mut again = vec![0; frame.encoded_len()];
                frame.encode(&mut Writer::new(&mut again));
                prop_assert_eq!(parse(&again), ack);
            } else {
                prop_assert_eq!(w.position(), 0);
            }
            // It stopped because the next one had no room, not before.
            if let Some(next) = ranges.get(written) {
                let gap = if written == 0 { 0 } else { ranges[written - 1].start() - next.end() - 2 };
                let length = varint::len(next.end() - next.start());
                let more = if written == 0 {
                    let count = varint::len(ranges.len() as u64 - 1);
                    1 + varint::len(*next.end()) + varint::len(delay) + count + length + ecn.map_or(0, |ecn| ecn.encoded_len())
                } else {
                    varint::len(gap) + length
                };
                prop_assert!(w.position() + more > space);
            }
        }

        #[test]
        fn receive_times_come_back(
            ranges in any_ranges(),
            with_ecn: bool,
            late in prop::collection::vec((0..1000_u64, 0..100_000_u64), 0..80),
            max_times in 0..80_usize,
            max_bytes in 0..1500usize,
        ) {
            let ecn = with_ecn.then_some(EcnCounts { ect0: 7, ect1: 0, ce: 9 });
            let largest = *ranges[0].end();
            let mut time = 1_u64 << 50;
            let times: Vec<(u64, u64)> = late.into_iter().map(|(below, delta)| {
                time -= delta;
                (largest.saturating_sub(below), time)
            }).collect();
            let mut buf = vec![0; 1500];
            let mut w = Writer::new(&mut buf);
            let (all, listed) = (ranges.iter().cloned(), times.iter().copied());
            let (written, told) =
                Ack::encode_with_times(&mut w, 5, all, ranges.len(), ecn, listed, max_times, max_bytes);
            prop_assert!(w.position() <= max_bytes && told <= max_times);
            if written == 0 {
                prop_assert_eq!((w.position(), told), (0, 0));
            } else {
                let ack = parse(w.written());
                prop_assert_eq!((ack.largest, ack.ecn, ack.range_count()), (largest, ecn, written));
                prop_assert!(ack.ranges().eq(ranges[..written].iter().cloned()));
                prop_assert!(ack.receive_times().unwrap().eq(times[..told].iter().copied()));
                let frame = Frame::Ack(ack);
                let mut again = vec![0; frame.encoded_len()];
                frame.encode(&mut Writer::new(&mut again));
                prop_assert_eq!(parse(&again), ack);
                for cut in 1..w.position() {
                    let error = Frames::new(&w.written()[..cut]).next().unwrap().unwrap_err();
                    prop_assert_eq!(error.kind, FrameErrorKind::Truncated);
                }
            }
        }

        #[test]
        fn every_cut_is_reported(ranges in any_ranges(), with_ecn: bool) {
            let ranges = &ranges[..ranges.len().min(10)];
            let mut buf = [0; 400];
            let mut w = Writer::new(&mut buf);
            Ack::encode(&mut w, 0, ranges.iter().cloned(), ranges.len(), with_ecn.then(EcnCounts::default), 400);
            for cut in 1..w.position() {
                let error = Frames::new(&w.written()[..cut]).next().unwrap().unwrap_err();
                prop_assert_eq!(error.kind, FrameErrorKind::Truncated);
            }
        }
    }
}
