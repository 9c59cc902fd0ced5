//! Acknowledgement frequency requested of the peer (draft-ietf-quic-ack-frequency-14), at the sender of data.
//!
//! [`policy`](AckFrequency) decides on the requested values. `AckRequests` owns the requests: the one that is certainly in force, and those
//! that may be. `acks` obeys requests at the receiver of data.

mod policy;

use std::collections::VecDeque;

use units::{Duration, Instant};

pub use policy::{AckFrequency, UnknownAckFrequency};
pub(crate) use policy::{Request, View};

/// Requests whose fate is not known. More are not sent: the peer has to acknowledge one first.
const MAX_OPEN: usize = 4;
/// RFC 9000 §18.2: the longest delay there is, exclusive, in microseconds.
pub(crate) const MAX_DELAY_US: u64 = (1 << 14) * 1000;

/// A request that was sent and not acknowledged. It may be in force even when its packet counts as lost.
#[derive(Clone, Copy, Debug)]
struct Open {
    sequence: u64,
    request: Request,
    /// The packet with the request counts as lost.
    lost: bool,
}

/// Owns the requests to the peer.
#[derive(Debug)]
pub(crate) struct AckRequests {
    policy: AckFrequency,
    /// Shortest delay that can be requested of the peer; `None` if it does not support requests.
    min_delay: Option<Duration>,
    /// Values that hold without any request.
    promised: Request,
    /// Newest request that the peer has acknowledged, or the values of its transport parameters.
    agreed: Request,
    /// Requests sent later, the oldest first.
    open: VecDeque<Open>,
    next_sequence: u64,
    wanted: Option<Request>,
    asked_at: Option<Instant>,
    /// Requests that the peer has acknowledged.
    acked: u64,
    /// The peer waits for more than two packets, as far as is known.
    sparse: bool,
    /// The values in force may have changed.
    changed: bool,
}

impl AckRequests {
    pub(crate) fn new(policy: AckFrequency) -> Self {
        let promised = Request { packets: 2, delay: Duration::from_millis(25), reordering: 1 };
        Self {
            policy,
            min_delay: None,
            promised,
            agreed: promised,
            open: VecDeque::new(),
            next_sequence: 0,
            wanted: None,
            asked_at: None,
            acked: 0,
            sparse: false,
            changed: false,
        }
    }

    /// Takes over the peer's transport parameters.
    pub(crate) fn set_peer(&mut self, min_ack_delay: Option<Duration>, max_ack_delay: Duration) {
        self.min_delay = min_ack_delay;
        self.promised.delay = max_ack_delay;
        self.agreed = self.promised;
    }

    /// draft-ietf-quic-ack-frequency-14 §3: only an endpoint that has sent `min_ack_delay` supports the frames.
    #[inline]
    pub(crate) fn is_understood(&self) -> bool {
        self.min_delay.is_some()
    }

    /// Returns whether this end requests acknowledgement frequencies: the peer understands the frames and the policy is not
    /// `Off`.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.min_delay.is_some() && self.policy != AckFrequency::Off
    }

    /// Policy in use; `Off` as long as [`is_on`](Self::is_on) is false.
    pub(crate) fn policy(&self) -> AckFrequency {
        if self.is_on() { self.policy } else { AckFrequency::Off }
    }

    /// Returns whether acknowledgements may come less often than for every second packet.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Largest number of packets that the peer may collect before it acknowledges.
    #[inline]
    pub(crate) fn packets_per_ack(&self) -> u64 {
        self.in_force().map(|request| request.packets).max().unwrap_or(2)
    }

    /// Longest time for which the peer may hold an acknowledgement back.
    // draft-ietf-quic-ack-frequency-14 §7 MUST: until a request is acknowledged, the greatest of the delay in force and
    // all requested ones.
    pub(crate) fn max_ack_delay(&self) -> Duration {
        self.in_force().map(|request| request.delay).max().unwrap_or(self.agreed.delay)
    }

    /// Requests that may be in force.
    fn in_force(&self) -> impl Iterator<Item = &Request> {
        std::iter::once(&self.agreed).chain(self.open.iter().map(|open| &open.request))
    }

    /// Request that was sent last; what the peer promised when there is none.
    pub(crate) fn newest(&self) -> &Request {
        self.open.back().map_or(&self.agreed, |open| &open.request)
    }

    /// Reviews the path, and decides whether another request is due.
    pub(crate) fn review(&mut self, now: Instant, view: &View) {
        // draft-ietf-quic-ack-frequency-14 §8.1: once per round trip is often enough, and one at a time.
        let resting = self.asked_at.is_some_and(|at| now < at + view.smoothed_rtt);
        if !self.is_on() || resting || self.awaits_verdict() || self.open.len() >= MAX_OPEN {
            return;
        }
        let request = self.policy.request(&self.promised, view).at_least(self.min_delay.unwrap_or_default());
        // The first one is sent in any case: it shows that the policy is at work.
        let (first, lost) = (self.next_sequence == 0, self.open.back().is_some());
        if first || lost || request.differs_from(self.newest()) {
            self.wanted = Some(request);
        }
    }

    /// The newest request is in progress.
    fn awaits_verdict(&self) -> bool {
        self.open.back().is_some_and(|open| !open.lost)
    }

    #[inline]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.wanted.is_some()
    }

    /// The request that waits to be sent, and its number.
    // draft-ietf-quic-ack-frequency-14 §4 MUST: numbers that grow.
    pub(crate) fn next_request(&self) -> Option<(u64, Request)> {
        self.wanted.map(|request| (self.next_sequence, request))
    }

    /// Records that a packet carries the request.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        let Some(request) = self.wanted.take() else { return };
        self.open.push_back(Open { sequence: self.next_sequence, request, lost: false });
        self.next_sequence += 1;
        self.asked_at = Some(now);
        self.note_change();
    }

    /// The peer has a request; those before it are void.
    pub(crate) fn on_acked(&mut self, sequence: u64) {
        while let Some(open) = self.open.pop_front_if(|open| open.sequence <= sequence) {
            self.agreed = open.request;
            self.acked += u64::from(open.sequence == sequence);
        }
        self.note_change();
    }

    /// The packet with a request counts as lost.
    // draft-ietf-quic-ack-frequency-14 §4: another one is sent, unless a newer one has been.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        let room = self.open.len() < MAX_OPEN;
        if let Some(open) = self.open.back_mut().filter(|open| open.sequence == sequence) {
            open.lost = true;
            if room {
                self.wanted.get_or_insert(open.request);
            }
        }
    }

    /// Requests that the peer has acknowledged.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// The connection moved to another path, whose rhythm is its own.
    pub(crate) fn restart(&mut self) {
        self.asked_at = None;
    }

    fn note_change(&mut self) {
        self.sparse = self.packets_per_ack() > 2;
        self.changed = true;
    }

    /// Returns whether [`max_ack_delay`](Self::max_ack_delay) may have changed since this was asked last.
    #[inline]
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests;
