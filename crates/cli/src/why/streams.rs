//! Streams that a connection receives: bytes, repetitions, and the time for which the server had no credit for the object.

use std::collections::{HashMap, VecDeque};

use units::{Duration, Instant};
use wire::StreamId;

/// Stream of the object: the first request of a connection (RFC 9114 §6.1, RFC 9000 §2.1).
pub(super) const OBJECT: StreamId = StreamId(0);
/// Streams that are remembered: a server that opens more is not counted further.
const STREAMS_MAX: usize = 64;
/// Limits under way that are remembered.
const LIMITS_MAX: usize = 1_024;
/// A sender with less credit than this sends no full packet.
const PACKET: u64 = 1_500;

/// Credit of a stream or of the connection, as the server knows it.
#[derive(Debug, Default)]
struct Credit {
    /// Limit that the server knew when it sent what arrives.
    known: u64,
    /// Later limits, with the time at which they take effect on what arrives.
    on_the_way: VecDeque<(Instant, u64)>,
}

impl Credit {
    fn new(limit: u64) -> Self {
        Self { known: limit, on_the_way: VecDeque::new() }
    }

    fn raise(&mut self, effective: Instant, limit: u64) {
        if self.on_the_way.len() == LIMITS_MAX {
            self.take_first();
        }
        self.on_the_way.push_back((effective, limit));
    }

    fn take_first(&mut self) {
        if let Some((_, limit)) = self.on_the_way.pop_front() {
            self.known = self.known.max(limit);
        }
    }

    fn left(&mut self, now: Instant, used: u64) -> u64 {
        while self.on_the_way.front().is_some_and(|(at, _)| *at <= now) {
            self.take_first();
        }
        self.known.saturating_sub(used)
    }
}

/// One receiving stream.
#[derive(Debug, Default)]
struct Received {
    highest: u64,
    bytes: u64,
}

/// Stream data of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) id: StreamId,
    pub(super) end: u64,
    pub(super) len: u64,
}

/// Totals over the streams that are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamTotals {
    pub(super) bytes: u64,
    /// Bytes among them that had been received before.
    pub(super) again: u64,
}

/// All streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    received: HashMap<StreamId, Received>,
    object: Credit,
    connection: Credit,
    bytes: u64,
    unique: u64,
    /// Credit of the connection that is used up.
    used: u64,
    /// Data came on streams that are not remembered.
    is_partial: bool,
    /// Time since which the server has had no credit for the object.
    blocked: Option<Instant>,
    blocked_for: Duration,
}

impl Streams {
    /// Limits at the start: of a stream that this client opens, and of the connection.
    pub(super) fn new(stream: u64, connection: u64) -> Self {
        Self { object: Credit::new(stream), connection: Credit::new(connection), ..Self::default() }
    }

    /// Takes data; whether it is the furthest of its stream so far.
    pub(super) fn take(&mut self, now: Instant, piece: Piece) -> bool {
        if self.received.len() >= STREAMS_MAX && !self.received.contains_key(&piece.id) {
            self.is_partial = true;
            return false;
        }
        let stream = self.received.entry(piece.id).or_default();
        let before = (stream.highest, stream.highest.min(stream.bytes));
        stream.bytes += piece.len;
        stream.highest = stream.highest.max(piece.end);
        let (highest, bytes) = (stream.highest, stream.bytes);
        self.bytes += piece.len;
        self.unique += highest.min(bytes) - before.1;
        self.used += highest - before.0;
        if piece.id == OBJECT {
            self.judge(now, highest, bytes < highest);
        }
        highest > before.0
    }

    /// Judges whether the server has credit left for the object after what has come.
    fn judge(&mut self, now: Instant, highest: u64, has_gap: bool) {
        let left = self.object.left(now, highest).min(self.connection.left(now, self.used));
        if let Some(since) = self.blocked.take() {
            self.blocked_for += now.saturating_since(since);
        }
        // Behind a gap nothing is read, so no credit is given: that is the fault of the loss.
        if left < PACKET && !has_gap {
            self.blocked = Some(now);
        }
    }

    /// A limit of the connection that takes effect at a time.
    pub(super) fn raise_connection(&mut self, effective: Instant, limit: u64) {
        self.connection.raise(effective, limit);
    }

    /// A limit of a stream that takes effect at a time.
    pub(super) fn raise(&mut self, effective: Instant, id: StreamId, limit: u64) {
        if id == OBJECT {
            self.object.raise(effective, limit);
        }
    }

    /// Time without credit until the last data of the object; `None` where not all streams were followed.
    pub(super) fn blocked_for(&self, last: Option<Instant>) -> Option<Duration> {
        let open = self.blocked.zip(last).map(|(since, last)| last.saturating_since(since));
        (!self.is_partial).then(|| self.blocked_for + open.unwrap_or_default())
    }

    pub(super) const fn totals(&self) -> StreamTotals {
        StreamTotals { bytes: self.bytes, again: self.bytes - self.unique }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn piece(id: u64, end: u64, len: u64) -> Piece {
        Piece { id: StreamId(id), end, len }
    }

    #[test]
    fn credit_counts_when_the_server_knows_it() {
        let mut streams = Streams::new(10_000, 1 << 20);
        streams.take(at(0), piece(0, 9_000, 9_000));
        assert!(streams.blocked.is_some());
        // More credit was sent, and what arrives until a round trip later was sent without it.
        streams.raise(at(40), OBJECT, 30_000);
        streams.take(at(20), piece(0, 10_000, 1_000));
        assert!(streams.blocked.is_some());
        streams.take(at(50), piece(0, 11_000, 1_000));
        assert!(streams.blocked.is_none());
        assert_eq!(streams.blocked_for(None), Some(Duration::from_millis(50)));
        // What came twice was sent twice.
        streams.take(at(51), piece(0, 11_000, 1_000));
        assert_eq!(streams.totals(), StreamTotals { bytes: 12_000, again: 1_000 });
        // Behind a gap there is no credit because of the loss.
        streams.take(at(60), piece(0, 29_500, 1_000));
        assert!(streams.blocked.is_none());
    }

    #[test]
    fn credit_of_other_streams_is_none_of_the_objects() {
        let mut streams = Streams::new(10_000, 1 << 20);
        streams.take(at(0), piece(0, 1_000, 1_000));
        streams.take(at(1), piece(4, 9_900, 9_900));
        assert_eq!((streams.blocked, streams.blocked_for(Some(at(90)))), (None, Some(Duration::ZERO)));
        // All of them use the credit of the connection.
        let mut narrow = Streams::new(1 << 20, 10_000);
        narrow.take(at(0), piece(3, 8_000, 8_000));
        narrow.take(at(1), piece(0, 1_000, 1_000));
        assert_eq!(narrow.blocked, Some(at(1)));
    }

    #[test]
    fn a_server_that_opens_many_streams_takes_bounded_memory() {
        let mut streams = Streams::new(10_000, 10_000);
        for n in 0..100_000 {
            streams.take(at(n), piece(4 * n + 3, 10, 10));
            streams.raise(at(n), OBJECT, n);
            streams.raise_connection(at(n + 1_000_000), n);
        }
        let held = [streams.received.len(), streams.object.on_the_way.len(), streams.connection.on_the_way.len()];
        assert_eq!(held, [STREAMS_MAX, LIMITS_MAX, LIMITS_MAX]);
        // What is not known is not said.
        assert_eq!(streams.blocked_for(Some(at(0))), None);
        assert_eq!(streams.totals().bytes, 640);
    }
}
