//! PINGs of a client that waits for data and receives none, so that the server learns its new address.
//!
//! A client that only receives sends only acknowledgements, and these only when data arrives. If a NAT on the path changes the client's
//! mapping, the server's data goes to the old mapping for ever, and neither end notices. The PING is sent from the new mapping, and the
//! server follows it (RFC 9000 §9).
//!
//! A server does not need this: its packets to a lost mapping do not arrive. A client with packets in flight does not need it either: its
//! probe timeout sends. [`Profile::keep_alive`](crate::Profile) is independent: it also keeps idle connections open.

use units::{Duration, Instant};
use wire::Side;

use super::Connection;
use crate::{
    streams::{Awaited, Streams},
    timers::Timer,
};

/// Margin over two probe timeouts before silence counts: servers need time to answer.
const MARGIN: Duration = Duration::from_millis(250);
/// Gaps between PINGs double up to this, or to the first gap if that is longer …
const STEADY: Duration = Duration::from_millis(1_000);
/// … and double again after this number of PINGs: after a long wait a slightly longer one does no harm.
const STEADY_PINGS: u32 = 8;
/// PINGs in one silence before the first data of an answer. With those of the idle timeout this covers about a minute (RFC 9114 §5.1
/// expects clients to keep a connection open while an answer is outstanding).
const MOST_FOR_ANSWER: u32 = 12;
/// PINGs in one silence in the middle of data: it may be a stream that rests and never ends.
const MOST_FOR_REST: u32 = 6;

/// Owns the account of one silence: it begins with the last stream data that arrived.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// PINGs sent in it.
    pings: u32,
    /// The silence has lasted long enough to be looked at.
    found: bool,
    /// The next datagram is padded.
    pads: bool,
    /// Stream bytes received when it began.
    received: u64,
    /// Stream bytes received when the one before was found.
    before: u64,
}

impl Silence {
    /// The gap until the next PING.
    fn gap(&self, pto: Duration) -> Duration {
        let first = pto * 2 + MARGIN;
        let steady = first.max(STEADY);
        match self.pings.checked_sub(STEADY_PINGS) {
            None => (first * (1 << self.pings.min(8))).min(steady),
            Some(more) => steady * (2 << more.min(8)),
        }
    }

    /// Returns whether the datagram that is being built is padded to 1,200 bytes.
    #[inline]
    pub(super) fn take_padding(&mut self) -> bool {
        std::mem::take(&mut self.pads)
    }

    /// Stream bytes that arrived between the silence before and this one.
    fn burst(&self) -> u64 {
        self.received - self.before
    }

    /// Restarts after a received packet, with the total of received stream bytes. Returns the time until a silence.
    #[inline]
    fn restart(&mut self, stream_bytes: u64, pto: Duration) -> Duration {
        if stream_bytes != self.received {
            let before = if self.found { self.received } else { self.before };
            *self = Self { pings: 0, found: false, pads: false, received: stream_bytes, before };
        }
        self.gap(pto)
    }

    /// Judges a time without packets. Returns whether a PING is to be sent.
    fn on_elapsed(&mut self, streams: &Streams) -> bool {
        self.found = true;
        let awaited = streams.awaited(self.burst());
        let most = match awaited {
            Awaited::Answer => MOST_FOR_ANSWER,
            Awaited::Rest => MOST_FOR_REST,
            Awaited::Nothing => 0,
        };
        if self.pings >= most {
            return false;
        }
        // The next gap begins when it is acknowledged.
        self.pings += 1;
        // A server may send three times as much to an address that is not validated: its challenge in full size, and data.
        self.pads = awaited == Awaited::Rest;
        true
    }
}

impl Connection {
    /// A packet arrived.
    #[inline]
    pub(super) fn restart_silence(&mut self, now: Instant) {
        if self.side == Side::Server || !self.profile.silence_pings || !self.packets.sources.handshake.is_confirmed() {
            return;
        }
        let gap = self.silence.restart(self.stats.stream_bytes_received, self.paths.active().recovery.pto());
        self.timers.set(Timer::Silence, Some(now + gap));
    }

    /// Processes a time without packets. Returns whether it matters.
    pub(super) fn on_silence(&mut self) -> bool {
        // What is in flight has a probe timeout.
        let matters = !self.paths.is_in_flight() && self.silence.on_elapsed(&self.packets.sources.streams);
        if matters {
            self.stats.silence_pings += 1;
            self.packets.sources.control.ping.request();
        }
        matters
    }
}
