//! Limits on the number of streams (RFC 9000 §4.6), for both initiators.

/// Streams of one direction that we open.
#[derive(Debug, Default)]
pub(super) struct LocalStreams {
    /// Index of the next stream.
    pub(super) next: u64,
    /// Streams with an index below this may be opened.
    pub(super) max: u64,
    /// The application was refused a stream and waits for more.
    pub(super) wanted: bool,
    /// The limit for which a STREAMS_BLOCKED frame was already made.
    blocked_at: Option<u64>,
}

impl LocalStreams {
    /// The index of a new stream.
    pub(super) fn open(&mut self) -> Option<u64> {
        // RFC 9000 §4.6 MUST NOT-1: no more streams are opened than the peer permits
        // RFC 9000 §19.11 MUST NOT-1: no more streams are opened than the peer's limit permits
        let index = (self.next < self.max).then_some(self.next)?;
        // RFC 9000 §2.1 MUST NOT-1: a stream ID names one stream for as long as the connection lasts
        self.next += 1;
        Some(index)
    }

    /// Returns whether to send a STREAMS_BLOCKED frame for this limit: once per limit.
    pub(super) fn report_blocked(&mut self) -> bool {
        self.wanted = true;
        let fresh = self.blocked_at != Some(self.max);
        self.blocked_at = Some(self.max);
        fresh
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.wanted && self.next >= self.max
    }

    /// Takes a new limit. Returns the indices of opened streams that it lets through, which is none except after early data was refused,
    /// and whether the application, having been refused, can open a stream.
    pub(super) fn raise(&mut self, max: u64) -> (std::ops::Range<u64>, bool) {
        // RFC 9000 §4.6 MUST-3, RFC 9000 §19.11 MUST-2: a MAX_STREAMS frame that does not increase the limit is
        // ignored.
        if max <= self.max {
            return (0..0, false);
        }
        let freed = self.max.min(self.next)..max.min(self.next);
        self.max = max;
        let available = self.wanted && self.next < max;
        self.wanted &= !available;
        (freed, available)
    }

    /// Resets after refused early data: the limit is unknown, and the opened streams wait for it.
    pub(super) fn restart(&mut self) {
        self.max = 0;
        self.blocked_at = None;
    }
}

/// Streams of one direction that the peer opens.
#[derive(Debug)]
pub(super) struct RemoteStreams {
    /// Number of streams that may be open at the same time.
    concurrent: u64,
    /// Announced limit.
    announced: u64,
    /// Streams with an index below this are open or were.
    pub(super) opened: u64,
    /// Index of the stream the application accepts next.
    pub(super) accepted: u64,
    closed: u64,
}

impl RemoteStreams {
    pub(super) fn new(concurrent: u64) -> Self {
        let concurrent = concurrent.min(wire::StreamId::MAX_STREAMS);
        Self { concurrent, announced: concurrent, opened: 0, accepted: 0, closed: 0 }
    }

    /// Announced limit.
    pub(super) fn limit(&self) -> u64 {
        self.announced
    }

    /// Streams that are open.
    #[inline]
    pub(super) fn live(&self) -> u64 {
        self.opened - self.closed
    }

    fn next_limit(&self) -> u64 {
        (self.closed + self.concurrent).min(wire::StreamId::MAX_STREAMS)
    }

    pub(super) fn close(&mut self) {
        self.closed += 1;
    }

    /// Returns whether to announce a new limit: if it at least doubles the number of streams that the peer can open.
    ///
    /// With all streams short that is when half of them were used up. With most of them open for long, it is earlier, so that
    /// the few that remain are never all used up while one is free.
    // RFC 9000 §4.6 MUST NOT-2: streams are permitted again without waiting for STREAMS_BLOCKED
    pub(super) fn credit_due(&self) -> bool {
        let more = self.next_limit() - self.announced;
        more > 0 && more >= self.announced - self.opened
    }

    /// Returns whether the limit could be higher at all.
    pub(super) fn has_unannounced(&self) -> bool {
        self.next_limit() > self.announced
    }

    /// The limit to announce in a frame that is being written.
    pub(super) fn announce(&mut self) -> u64 {
        self.announced = self.next_limit();
        self.announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9000 §4.6 MUST NOT-2
    #[test]
    fn short_streams_give_credit_at_half() {
        let mut streams = RemoteStreams::new(100);
        let mut announcements = 0;
        for i in 0..1000 {
            streams.opened = i + 1;
            streams.close();
            if streams.credit_due() {
                streams.announce();
                announcements += 1;
            }
            assert!(streams.opened < streams.limit());
        }
        assert!((15..=20).contains(&announcements), "{announcements}");
    }

    #[test]
    fn long_streams_do_not_use_up_the_credit_of_short_ones() {
        let mut streams = RemoteStreams::new(100);
        streams.opened = 99;
        for _ in 0..50 {
            assert!(streams.opened < streams.limit());
            streams.opened += 1;
            streams.close();
            if streams.credit_due() {
                streams.announce();
            }
        }
    }

    // RFC 9000 §4.6 MUST-3; RFC 9000 §19.11 MUST-2
    #[test]
    fn a_limit_that_does_not_grow_is_ignored() {
        let mut streams = LocalStreams::default();
        assert!(streams.open().is_none() && streams.report_blocked() && !streams.report_blocked());
        assert_eq!(streams.raise(2), (0..0, true));
        assert_eq!(streams.raise(1), (0..0, false));
        assert_eq!((streams.open(), streams.open(), streams.open()), (Some(0), Some(1), None));
        streams.restart();
        assert_eq!(streams.raise(1), (0..1, false));
        assert_eq!(streams.raise(9), (1..2, false));
    }
}
