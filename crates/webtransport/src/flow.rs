//! Flow control of a session (draft-ietf-webtrans-http3 §5): both directions, without input or output.

use h3_quic::Code;

use crate::{capsules::Violation, config::Limits};

/// Flow control of a session, from the moment at which the settings of both ends are known.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Both ends have declared it (draft-ietf-webtrans-http3 §5.1).
    enabled: bool,
    /// Bytes of stream bodies that this end may send, and has written.
    max_data: u64,
    written: u64,
    /// Streams that this end may open, and has opened, by direction.
    max_streams: [u64; 2],
    opened: [u64; 2],
    /// Limit on unread bytes, bytes read or discarded, and received bytes.
    window: u64,
    consumed: u64,
    received: u64,
    /// Limits announced to the peer.
    advertised: u64,
    advertised_streams: [u64; 2],
    /// Streams that the peer may have open, and closed ones.
    stream_window: [u64; 2],
    closed: [u64; 2],
}

fn violation(reason: String) -> Violation {
    Violation::new(Code::WT_FLOW_CONTROL_ERROR, reason)
}

impl Flow {
    /// Flow control with the limits that each end has sent.
    pub(crate) fn new(ours: Limits, theirs: Limits) -> Self {
        Self {
            enabled: ours.are_declared() && theirs.are_declared(),
            max_data: theirs.data,
            written: 0,
            max_streams: theirs.streams(),
            opened: [0; 2],
            window: ours.data,
            consumed: 0,
            received: 0,
            advertised: ours.data,
            advertised_streams: ours.streams(),
            stream_window: ours.streams(),
            closed: [0; 2],
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Streams that the peer may open, by direction.
    pub(crate) fn stream_limits(&self) -> Option<[u64; 2]> {
        self.enabled.then_some(self.advertised_streams)
    }

    /// Takes WT_MAX_DATA.
    pub(crate) fn on_max_data(&mut self, limit: u64) -> Result<(), Violation> {
        // draft-ietf-webtrans-http3 §5.1 MUST: without agreement, capsules of flow control are ignored
        if !self.enabled {
            return Ok(());
        }
        // draft-ietf-webtrans-http3 §5.6.4 MUST: a limit that does not increase
        if limit <= self.max_data {
            return Err(violation(format!("a limit of {limit} bytes after one of {}", self.max_data)));
        }
        self.max_data = limit;
        Ok(())
    }

    /// Takes WT_MAX_STREAMS.
    pub(crate) fn on_max_streams(&mut self, dir: usize, limit: u64) -> Result<(), Violation> {
        if !self.enabled {
            return Ok(());
        }
        // draft-ietf-webtrans-http3 §5.6.2 MUST
        if limit <= self.max_streams[dir] {
            return Err(violation(format!("a limit of {limit} streams after one of {}", self.max_streams[dir])));
        }
        self.max_streams[dir] = limit;
        Ok(())
    }

    /// Bytes that may be written; `Err` has the limit that blocks.
    pub(crate) fn writable(&self) -> Result<u64, u64> {
        match self.max_data - self.written {
            _ if !self.enabled => Ok(u64::MAX),
            0 => Err(self.max_data),
            left => Ok(left),
        }
    }

    /// Notes that bytes were written.
    pub(crate) fn on_written(&mut self, bytes: u64) {
        if self.enabled {
            self.written += bytes;
        }
    }

    /// Takes back the credit of bytes that were written and never sent: the final size of their stream does not count them.
    pub(crate) fn refund(&mut self, bytes: u64) {
        if self.enabled {
            self.written -= bytes;
        }
    }

    /// Opens a stream; `Err` has the limit that blocks.
    pub(crate) fn open(&mut self, dir: usize) -> Result<(), u64> {
        if self.enabled && self.opened[dir] >= self.max_streams[dir] {
            return Err(self.max_streams[dir]);
        }
        self.opened[dir] += 1;
        Ok(())
    }

    /// Takes back the opening of a stream that the peer does not know of.
    pub(crate) fn give_back(&mut self, dir: usize) {
        self.opened[dir] -= 1;
    }

    /// Notes bytes that have arrived, read or not.
    pub(crate) fn on_received(&mut self, bytes: u64) -> Result<(), Violation> {
        self.received += bytes;
        // draft-ietf-webtrans-http3 §5.6.4 MUST
        if self.enabled && self.received > self.advertised {
            return Err(violation(format!("{} bytes where {} were allowed", self.received, self.advertised)));
        }
        Ok(())
    }

    /// Notes bytes that were read or discarded. Returns a new limit for WT_MAX_DATA when half a window was.
    pub(crate) fn on_consumed(&mut self, bytes: u64) -> Option<u64> {
        self.consumed += bytes;
        let limit = (self.consumed + self.window).min(wire::varint::MAX);
        if !self.enabled || limit - self.advertised < (self.window / 2).max(1) {
            return None;
        }
        self.advertised = limit;
        Some(limit)
    }

    /// Notes that a stream of the peer is closed; a new limit for WT_MAX_STREAMS when half a window of them was.
    pub(crate) fn on_closed(&mut self, dir: usize) -> Option<u64> {
        self.closed[dir] += 1;
        let limit = self.closed[dir] + self.stream_window[dir];
        if !self.enabled || limit - self.advertised_streams[dir] < (self.stream_window[dir] / 2).max(1) {
            return None;
        }
        self.advertised_streams[dir] = limit;
        Some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { data: 1000, bidi: 4, uni: 0 };

    #[test]
    fn limits_follow_what_is_read_and_closed() {
        let mut flow = Flow::new(LIMITS, LIMITS);
        flow.on_received(1000).unwrap();
        assert_eq!(flow.on_consumed(499), None);
        assert_eq!(flow.on_consumed(1), Some(1500));
        flow.on_received(500).unwrap();
        assert_eq!(flow.on_received(1).unwrap_err().code, Code::WT_FLOW_CONTROL_ERROR);
        assert_eq!((flow.on_closed(0), flow.on_closed(0)), (None, Some(6)));
    }

    #[test]
    fn writers_and_openers_wait_for_credit() {
        let mut flow = Flow::new(LIMITS, LIMITS);
        flow.on_written(1000);
        assert_eq!(flow.writable(), Err(1000));
        flow.refund(10);
        assert_eq!(flow.writable(), Ok(10));
        assert!(flow.on_max_data(1000).is_err() && flow.on_max_streams(1, 0).is_err());
        flow.on_max_data(1100).unwrap();
        assert_eq!(flow.writable(), Ok(110));
        assert!((0..4).all(|_| flow.open(0).is_ok()));
        assert_eq!((flow.open(0), flow.open(1)), (Err(4), Err(0)));
        flow.on_max_streams(0, 5).unwrap();
        assert_eq!((flow.open(0), flow.open(0)), (Ok(()), Err(5)));
    }

    /// draft-ietf-webtrans-http3 §5.1 MUST
    #[test]
    fn nothing_is_limited_unless_both_ends_declare_it() {
        for (ours, theirs) in [(LIMITS, Limits::NONE), (Limits::NONE, LIMITS)] {
            let mut flow = Flow::new(ours, theirs);
            assert!(!flow.is_enabled() && flow.stream_limits().is_none());
            flow.on_written(5000);
            assert_eq!((flow.writable(), flow.open(1)), (Ok(u64::MAX), Ok(())));
            flow.on_max_data(0).unwrap();
            flow.on_received(1 << 40).unwrap();
            assert_eq!((flow.on_consumed(1 << 40), flow.on_closed(0)), (None, None));
        }
    }
}
