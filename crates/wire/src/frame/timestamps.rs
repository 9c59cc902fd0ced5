//! Receive timestamps in acknowledgements: draft-ietf-quic-receive-ts-02 §3.1. Ranges of packets that arrived one after the other, the most
//! recent first, with times as differences from packet to packet.

use std::iter::FusedIterator;

use super::FrameErrorKind;
use crate::{Reader, Writer, varint};

/// The receive times of an acknowledgement, checked: no packet number and no time goes below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveTimes<'a> {
    /// From the number of ranges on.
    bytes: &'a [u8],
}

impl<'a> ReceiveTimes<'a> {
    /// Reads the field at the end of the frame. `largest` is the largest packet number that the frame acknowledges.
    pub(super) fn parse(r: &mut Reader<'a>, largest: u64) -> Result<Self, FrameErrorKind> {
        let start = r.peek();
        let mut time = None;
        for _ in 0..r.varint()? {
            let newest = largest.checked_sub(r.varint()?).ok_or(PACKET_UNDERFLOW)?;
            let count = r.varint()?;
            // The lowest packet number of the range is `newest - (count - 1)`.
            if count > newest + 1 {
                return Err(PACKET_UNDERFLOW);
            }
            for _ in 0..count {
                time = Some(next_time(time, r.varint()?).ok_or(TIME_UNDERFLOW)?);
            }
        }
        Ok(Self { bytes: &start[..start.len() - r.remaining()] })
    }

    /// Packet numbers with their receive timestamps, the most recent first. Times count from a moment that only the sender of the frame
    /// knows, in the unit that this endpoint requested (`receive_timestamps_exponent`).
    pub(super) fn iter(&self, largest: u64) -> Times<'a> {
        let mut r = Reader::new(self.bytes);
        let ranges = r.varint().unwrap_or(0);
        Times { r, largest, ranges, left: 0, next: 0, time: None }
    }

    pub(super) const fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn encode_again(&self, w: &mut Writer<'_>) {
        w.bytes(self.bytes);
    }
}

/// A time from the one before it: the first is absolute, each other is a difference.
#[inline]
fn next_time(previous: Option<u64>, delta: u64) -> Option<u64> {
    match previous {
        None => Some(delta),
        Some(previous) => previous.checked_sub(delta),
    }
}

const PACKET_UNDERFLOW: FrameErrorKind = FrameErrorKind::Malformed("a receive time of a packet number below 0");
const TIME_UNDERFLOW: FrameErrorKind = FrameErrorKind::Malformed("a receive time before the time that all count from");

/// The receive times of an acknowledgement, the most recent first.
#[derive(Clone, Debug)]
pub struct Times<'a> {
    r: Reader<'a>,
    largest: u64,
    /// Ranges still to come.
    ranges: u64,
    /// Remaining times in this range.
    left: u64,
    /// The packet number of the next of them.
    next: u64,
    time: Option<u64>,
}

impl Iterator for Times<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        // Parsing has checked everything, so nothing fails here.
        while self.left == 0 {
            self.ranges = self.ranges.checked_sub(1)?;
            self.next = self.largest.checked_sub(self.r.varint().ok()?)?;
            self.left = self.r.varint().ok()?;
        }
        let time = next_time(self.time, self.r.varint().ok()?)?;
        self.time = Some(time);
        let pn = self.next;
        self.next = pn.wrapping_sub(1);
        self.left -= 1;
        Some((pn, time))
    }
}

impl FusedIterator for Times<'_> {}

/// Ranges that are written at most, so that their number takes one byte.
const MAX_RANGES: u64 = 63;

/// Writes the field with at most `max` times, and at most `room` bytes; returns the number of times. `times` are packet numbers not above
/// `largest`, each with its time, the most recent first.
pub(super) fn encode(
    w: &mut Writer<'_>,
    largest: u64,
    times: impl Iterator<Item = (u64, u64)> + Clone,
    max: usize,
    room: usize,
) -> usize {
    let Some(mut room) = room.checked_sub(1) else { return 0 };
    let count_offset = w.position();
    w.varint_with_len(0, 1);
    let mut times = times.take(max);
    let (mut ranges, mut written, mut last) = (0, 0, None);
    while ranges < MAX_RANGES {
        let Some((first, first_time)) = times.clone().next() else { break };
        let offset = largest.checked_sub(first).expect("no packet above the largest has arrived");
        // The length of the range is written before its times: look ahead, as far as they descend one by one and fit.
        let head = varint::len(offset) + 2;
        let (mut len, mut bytes, mut before) = (0_u64, head, (first.wrapping_add(1), last));
        for (pn, time) in times.clone() {
            let delta = before.1.map_or(Some(time), |before: u64| before.checked_sub(time));
            let (true, Some(delta)) = (pn == before.0.wrapping_sub(1), delta) else { break };
            bytes += varint::len(delta);
            if bytes > room {
                break;
            }
            len += 1;
            before = (pn, Some(time));
        }
        if len == 0 || last.is_some_and(|last| last < first_time) {
            break;
        }
        w.varint(offset);
        w.varint(len);
        let start = w.position();
        for _ in 0..len {
            let (_, time) = times.next().expect("the range was just looked through");
            w.varint(last.map_or(time, |last: u64| last - time));
            last = Some(time);
        }
        room -= varint::len(offset) + varint::len(len) + (w.position() - start);
        written += len;
        ranges += 1;
    }
    Writer::new(&mut w.written_mut()[count_offset..]).varint_with_len(ranges, 1);
    usize::try_from(written).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(largest: u64, times: &[(u64, u64)], max: usize, room: usize) -> (usize, Vec<u8>) {
        let mut buf = vec![0; room];
        let mut w = Writer::new(&mut buf);
        let count = encode(&mut w, largest, times.iter().copied(), max, room);
        (count, w.written().to_vec())
    }

    fn read(bytes: &[u8], largest: u64) -> Vec<(u64, u64)> {
        let mut r = Reader::new(bytes);
        let times = ReceiveTimes::parse(&mut r, largest).unwrap();
        assert!(r.is_empty());
        times.iter(largest).collect()
    }

    /// The two examples of draft-ietf-quic-receive-ts-02 §7.
    #[test]
    fn examples_of_the_draft() {
        let older = [(100, 380), (99, 370), (98, 360), (97, 355), (96, 350)];
        let oldest = [(91, 330), (90, 320), (89, 310), (88, 305), (87, 300)];
        let times = [older, oldest].concat();
        let bytes = [2, 0, 5, 0x41, 0x7c, 10, 10, 5, 5, 9, 5, 20, 10, 10, 5, 5];
        assert_eq!(written(100, &times, 64, 100), (10, bytes.to_vec()));
        assert_eq!(read(&bytes, 100), times);

        let late = vec![(95, 395), (94, 394), (93, 392), (92, 390)];
        let times = [late, times].concat();
        let bytes = [3, 5, 4, 0x41, 0x8b, 1, 2, 2, 0, 5, 10, 10, 10, 5, 5, 9, 5, 20, 10, 10, 5, 5];
        assert_eq!(written(100, &times, 64, 100), (14, bytes.to_vec()));
        assert_eq!(read(&bytes, 100), times);
    }

    #[test]
    fn refused() {
        for (what, bytes) in [
            ("a packet above the largest by underflow", &[1, 6, 1, 9][..]),
            ("more packets than there are numbers", &[1, 0, 7, 9, 1, 1, 1, 1, 1, 1]),
            ("a time before the start", &[1, 0, 2, 9, 10]),
            ("a time before the start in a later range", &[2, 0, 1, 9, 2, 1, 10]),
        ] {
            let parsed = ReceiveTimes::parse(&mut Reader::new(bytes), 5);
            assert!(matches!(parsed, Err(FrameErrorKind::Malformed(_))), "{what}: {parsed:?}");
        }
        let endless = [&[0xff; 8][..], &[0, 0]].concat();
        assert_eq!(ReceiveTimes::parse(&mut Reader::new(&endless), 5), Err(FrameErrorKind::Truncated));
        // Ranges without a time say nothing, and are harmless.
        assert_eq!(read(&[2, 0, 0, 3, 1, 7], 5), [(2, 7)]);
    }

    proptest! {
        #[test]
        fn as_many_times_as_fit_come_back(
            steps in prop::collection::vec((prop::bool::weighted(0.8), 0..200_u64, 0..100_u64), 0..150),
            max in 0..160_usize,
            room in 0..400_usize,
        ) {
            // Packets in the order of their arrival, the most recent first: mostly the numbers descend one by one.
            let (mut pn, mut time) = (10_000_u64, 1_u64 << 40);
            let times: Vec<(u64, u64)> = steps.into_iter().map(|(next, other, delta)| {
                pn = if next { pn - 1 } else { 9_000 + other };
                time -= delta << (delta % 20);
                (pn, time)
            }).collect();
            let (count, bytes) = written(10_000, &times, max, room);
            prop_assert!(bytes.len() <= room && count <= max);
            if room > 0 {
                prop_assert_eq!(read(&bytes, 10_000), &times[..count]);
            }
            if room >= 400 && max >= times.len() {
                prop_assert!(count > 0 || times.is_empty());
            }
        }
    }
}
