//! Evidence from UDP about a client, and the verdict on a client that uses TCP.

use std::time::{Duration, Instant};

use tiderace::{
    CloseReason,
    transport::{AttemptEvent, Code},
};

use crate::admission::EXCESSIVE_LOAD;

/// Age at which evidence no longer explains why a client is on TCP.
const RECENT: Duration = Duration::from_secs(60);

/// Reason for the use of TCP, as far as the gateway can tell. docs/edge.md has the evidence for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No packet arrived over UDP.
    NoPackets,
    /// Answered, without a sign that any answer has arrived.
    Silent,
    /// Refused, or shed.
    Refused,
    /// Speaks no version that is spoken here.
    Version,
    /// TLS or the protocol failed.
    HandshakeFailed,
    /// Answers arrived, and the handshake did not complete in time.
    Unfinished,
    /// Answers reached the client, and it ended the handshake.
    Aborted,
    /// The connection fell silent with data in flight.
    TimedOut,
    /// Connection ended by an error.
    ConnectionError,
    /// Connection ended as intended.
    Closed,
}

impl Reason {
    /// Name in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoPackets => "no-packets",
            Self::Silent => "silent",
            Self::Refused => "refused",
            Self::Version => "version",
            Self::HandshakeFailed => "handshake-failed",
            Self::Unfinished => "unfinished",
            Self::Aborted => "aborted",
            Self::TimedOut => "timed-out",
            Self::ConnectionError => "connection-error",
            Self::Closed => "closed",
        }
    }
}

/// Latest event of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastEvent {
    Begun,
    Completed,
    /// The connection ended by its idle timeout, without data in flight.
    Idle,
    /// Event that speaks for a reason.
    Suggests(Reason),
}

/// Evidence from UDP about a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    latest: LastEvent,
    at: Instant,
    /// Time at which a handshake was last complete.
    completed: Option<Instant>,
    /// Handshakes that are in progress.
    trying: u16,
    /// Open connections.
    live: u16,
}

/// Verdict at a moment about a client that uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FallbackVerdict {
    /// Not yet.
    Wait,
    /// Client uses QUIC as well, or the evidence does not decide.
    None,
    /// Client fell back.
    Fell(Reason),
}

/// Classifies the end of a connection.
fn end(reason: &CloseReason, completed: bool, reached: bool, busy: bool) -> LastEvent {
    let unless_reached = |reason| if reached { reason } else { Reason::Silent };
    let speaks = match reason {
        CloseReason::IdleTimeout if !busy => return LastEvent::Idle,
        CloseReason::IdleTimeout => Reason::TimedOut,
        CloseReason::HandshakeTimeout => unless_reached(Reason::Unfinished),
        CloseReason::ThisApplication { code: EXCESSIVE_LOAD } => Reason::Refused,
        CloseReason::ThisApplication { .. } | CloseReason::PeerApplication { .. } => Reason::Closed,
        CloseReason::PeerClosed { error } if error.code == Code::NO_ERROR && completed => Reason::Closed,
        // RFC 9000 §10.2.3: this is how an application ends a connection before the handshake is complete.
        CloseReason::PeerClosed { error } if [Code::NO_ERROR, Code::APPLICATION_ERROR].contains(&error.code) => {
            unless_reached(Reason::Aborted)
        }
        _ if completed => Reason::ConnectionError,
        _ => Reason::HandshakeFailed,
    };
    LastEvent::Suggests(speaks)
}

impl Evidence {
    /// Evidence after an event of the client, from the evidence before.
    pub(crate) fn after(known: Option<Self>, now: Instant, event: AttemptEvent<'_>) -> Self {
        let mut this = known.unwrap_or(Self { latest: LastEvent::Begun, at: now, completed: None, trying: 0, live: 0 });
        this.at = now;
        this.latest = match event {
            AttemptEvent::Begun => {
                this.trying = this.trying.saturating_add(1);
                LastEvent::Begun
            }
            AttemptEvent::Completed => {
                this.trying = this.trying.saturating_sub(1);
                this.live = this.live.saturating_add(1);
                this.completed = Some(now);
                LastEvent::Completed
            }
            AttemptEvent::Ended { reason, completed, reached, busy } => {
                let count = if completed { &mut this.live } else { &mut this.trying };
                *count = count.saturating_sub(1);
                end(reason, completed, reached, busy)
            }
            // A Retry is an answer, which the client has yet to act upon.
            AttemptEvent::Retried => LastEvent::Suggests(Reason::Silent),
            AttemptEvent::Negotiated { offered: true } => LastEvent::Suggests(Reason::Version),
            // A limit was met. Events that the transport may add later count as a refusal as well.
            _ => LastEvent::Suggests(Reason::Refused),
        };
        this
    }

    /// Returns whether the evidence is about a client whose TCP connection arrived at `came`: it has a connection or a handshake in
    /// progress, or an event occurred a short time before, or since.
    pub(crate) fn is_about(&self, came: Instant) -> bool {
        self.trying > 0 || self.live > 0 || self.at + RECENT >= came
    }

    /// Verdict on a client whose TCP connection arrived at `came`. Until `until`, open connections may still turn out to be dead.
    pub(crate) fn judge(&self, came: Instant, now: Instant, until: Instant) -> FallbackVerdict {
        let later = self.at >= came;
        match self.latest {
            // It has come over QUIC since, however that ended.
            _ if self.completed.is_some_and(|at| at >= came) => FallbackVerdict::None,
            _ if self.trying > 0 || self.live > 0 => {
                if now < until {
                    FallbackVerdict::Wait
                } else {
                    FallbackVerdict::None
                }
            }
            // It was there a moment ago, or the memory has lost the rest.
            LastEvent::Begun | LastEvent::Completed => FallbackVerdict::None,
            // Nobody used the connection, so nothing says that the path had failed.
            LastEvent::Idle if later => FallbackVerdict::None,
            LastEvent::Idle => FallbackVerdict::Fell(Reason::NoPackets),
            LastEvent::Suggests(reason) => FallbackVerdict::Fell(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tiderace::{HandshakeFault, transport::TransportError};

    use super::*;

    fn ended(reason: &CloseReason, completed: bool, reached: bool, busy: bool) -> AttemptEvent<'_> {
        AttemptEvent::Ended { reason, completed, reached, busy }
    }

    /// Verdict on a client after these connection attempts, one each second; its TCP connection arrived before the last of them.
    fn judged(events: &[AttemptEvent<'_>]) -> FallbackVerdict {
        let begun = Instant::now();
        let at = |second: usize| begun + Duration::from_secs(second as u64);
        let evidence = events
            .iter()
            .enumerate()
            .fold(None, |known, (second, event)| Some(Evidence::after(known, at(second), *event)));
        let last = events.len() - 1;
        evidence.unwrap().judge(at(last) - Duration::from_millis(500), at(last + 20), at(last + 40))
    }

    #[test]
    fn each_end_of_a_connection_attempt_is_classified() {
        use AttemptEvent::{Begun, Completed, Negotiated, Refused, Retried};
        use FallbackVerdict::{Fell, None, Wait};
        let closed = |code| CloseReason::PeerClosed { error: TransportError::new(code, "") };
        let too_slow = CloseReason::HandshakeTimeout;
        let bye = CloseReason::PeerApplication { code: 0x100, reason: Bytes::new() };
        let (alert, gave_up) = (closed(Code::crypto(48)), closed(Code::APPLICATION_ERROR));
        let failed = CloseReason::HandshakeFailed {
            error: TransportError::new(Code::crypto(120), ""),
            fault: HandshakeFault::NoApplicationProtocol,
        };
        let busy = CloseReason::ThisApplication { code: EXCESSIVE_LOAD };
        let cases: &[(&[AttemptEvent<'_>], FallbackVerdict)] = &[
            (&[Begun], Wait),
            (&[Begun, Completed], None),
            (&[Begun, ended(&too_slow, false, false, false)], Fell(Reason::Silent)),
            (&[Begun, ended(&too_slow, false, true, true)], Fell(Reason::Unfinished)),
            (&[Begun, ended(&gave_up, false, true, false)], Fell(Reason::Aborted)),
            (&[Begun, ended(&gave_up, false, false, false)], Fell(Reason::Silent)),
            (&[Begun, ended(&alert, false, true, false)], Fell(Reason::HandshakeFailed)),
            (&[Begun, ended(&failed, false, false, false)], Fell(Reason::HandshakeFailed)),
            (&[Retried], Fell(Reason::Silent)),
            (&[Retried, Begun, Completed], None),
            (&[Refused], Fell(Reason::Refused)),
            (&[Negotiated { offered: false }], Fell(Reason::Refused)),
            (&[Negotiated { offered: true }], Fell(Reason::Version)),
            (&[Negotiated { offered: true }, Begun, Completed], None),
            (&[Begun, Completed, ended(&busy, true, true, false)], Fell(Reason::Refused)),
            (&[Begun, Completed, ended(&bye, true, true, false)], Fell(Reason::Closed)),
            (&[Begun, Completed, ended(&CloseReason::IdleTimeout, true, true, true)], Fell(Reason::TimedOut)),
            (&[Begun, Completed, ended(&CloseReason::IdleTimeout, true, true, false)], None),
            (&[Begun, Completed, ended(&alert, true, true, false)], Fell(Reason::ConnectionError)),
            (&[Begun, Completed, ended(&CloseReason::Reset, true, true, false)], Fell(Reason::ConnectionError)),
            // Of two connections one continues.
            (&[Begun, Completed, Begun, Completed, ended(&bye, true, true, false)], Wait),
            (&[Begun, Begun, ended(&too_slow, false, false, false)], Wait),
        ];
        for (events, expected) in cases {
            assert_eq!(judged(events), *expected, "{events:?}");
        }
    }

    #[test]
    fn a_connection_that_outlives_its_idle_timeout_is_well() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let known = Evidence::after(None, now, AttemptEvent::Begun);
        let known = Evidence::after(Some(known), now, AttemptEvent::Completed);
        assert_eq!(known.judge(at(10), at(20), at(40)), FallbackVerdict::Wait);
        assert_eq!(known.judge(at(10), at(40), at(40)), FallbackVerdict::None);
        let idle = Evidence::after(Some(known), at(30), ended(&CloseReason::IdleTimeout, true, true, false));
        assert_eq!(idle.judge(at(40), at(50), at(80)), FallbackVerdict::Fell(Reason::NoPackets), "no new attempt came");
        assert!(idle.is_about(at(90)) && !idle.is_about(at(91)) && known.is_about(at(1_000)));
    }
}
