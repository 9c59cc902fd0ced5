//! Life cycle of a connection (RFC 9000 §10): open, closing, draining, drained.

use std::borrow::Cow;

use units::Instant;

use super::close::RetainedClose;
use crate::{
    error::{Code, TransportError},
    events::CloseReason,
    tls::HandshakeFault,
};

/// Content of a CONNECTION_CLOSE frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloseFrame {
    Transport(TransportError),
    Application { code: u64, reason: Vec<u8> },
}

impl CloseFrame {
    /// Content that may be sent before the peer's application is authenticated.
    // RFC 9000 §10.2.3 MUST-2, MUST-3, SHOULD-4: in Initial and Handshake packets an application's code and words are
    // replaced.
    pub(crate) fn in_handshake(&self) -> TransportError {
        match self {
            Self::Transport(error) => error.clone(),
            Self::Application { .. } => {
                TransportError { code: Code::APPLICATION_ERROR, frame_type: 0, reason: Cow::Borrowed("") }
            }
        }
    }
}

/// The phases of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A client that has accepted neither a packet nor a Retry of its server.
    Initiated,
    /// A packet of the peer was accepted.
    Answered,
    /// The handshake is complete.
    Connected,
    /// The connection has ended.
    Ended {
        stage: Stage,
        /// The handshake was complete.
        connected: bool,
        /// Received data may be read all the same.
        readable: bool,
    },
}

/// Stages of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// CONNECTION_CLOSE was sent, and is repeated to a peer that still sends.
    Closing,
    /// After the peer's CONNECTION_CLOSE: no further packet is sent.
    Draining,
    Drained,
}

/// Owns the phase of the connection, and how it ends.
pub(crate) struct Lifecycle {
    phase: Phase,
    frame: Option<CloseFrame>,
    to_send: bool,
    /// Datagrams received while closing, and their number at which CONNECTION_CLOSE is repeated.
    received: u32,
    repeat_at: u32,
    /// Bytes received while closing, and bytes of CONNECTION_CLOSE sent in answer to them.
    bytes_received: usize,
    bytes_answered: usize,
    /// Size of the first datagram with CONNECTION_CLOSE, in bytes.
    size: Option<usize>,
    /// State that is kept beyond the closing period.
    retained: Option<Box<RetainedClose>>,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Initiated,
            frame: None,
            to_send: false,
            received: 0,
            repeat_at: 1,
            bytes_received: 0,
            bytes_answered: 0,
            size: None,
            retained: None,
        }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.stage() == Some(Stage::Closing)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.stage() == Some(Stage::Drained)
    }

    /// The handshake is complete and the connection is open.
    pub(crate) fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// The handshake was complete, whether or not the connection is open.
    #[inline]
    pub(crate) fn was_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected | Phase::Ended { connected: true, .. })
    }

    /// Returns whether a packet or a Retry of the peer was accepted. Asked while the connection is open.
    pub(crate) fn is_answered(&self) -> bool {
        self.phase != Phase::Initiated
    }

    /// A packet or a Retry of the peer is accepted.
    pub(crate) fn on_answered(&mut self) {
        if self.phase == Phase::Initiated {
            self.phase = Phase::Answered;
        }
    }

    /// The handshake is complete.
    pub(crate) fn connect(&mut self) {
        if self.is_open() {
            self.phase = Phase::Connected;
        }
    }

    /// Received data may be read although the connection has ended.
    pub(crate) fn is_readable(&self) -> bool {
        matches!(self.phase, Phase::Ended { readable: true, .. })
    }

    /// Lets what arrived be read although the connection has ended.
    pub(crate) fn keep_readable(&mut self) {
        if let Phase::Ended { readable, .. } = &mut self.phase {
            *readable = true;
        }
    }

    fn stage(&self) -> Option<Stage> {
        match self.phase {
            Phase::Ended { stage, .. } => Some(stage),
            _ => None,
        }
    }

    fn enter(&mut self, stage: Stage) {
        let (connected, readable) = (self.was_connected(), self.is_readable());
        self.phase = Phase::Ended { stage, connected, readable };
    }

    /// Closes the connection from this end, for `reason`. `true` when the connection was open.
    pub(crate) fn close(&mut self, frame: CloseFrame) -> bool {
        if !self.is_open() {
            return false;
        }
        self.enter(Stage::Closing);
        self.frame = Some(frame);
        self.to_send = true;
        true
    }

    /// The peer closed, or has forgotten the connection. `true` when the connection was open.
    pub(crate) fn drain(&mut self) -> bool {
        let was_open = self.is_open();
        if !self.is_drained() {
            self.enter(Stage::Draining);
        }
        // RFC 9000 §10.2.2 MUST NOT-1: a draining connection sends nothing
        // RFC 9000 §10.2.2 MUST NOT-2: after the CONNECTION_CLOSE of the peer, at most one packet with ours leaves before draining
        self.to_send = false;
        self.retained = None;
        was_open
    }

    /// Ends the closing or draining period: all state may be discarded (RFC 9000 §10.2).
    pub(crate) fn finish(&mut self) {
        self.enter(Stage::Drained);
        self.to_send = false;
    }

    /// Counts a datagram that arrived while closing.
    // RFC 9000 §10.2.1 SHOULD-1, RFC 9000 §11.1 SHOULD-1: answer with CONNECTION_CLOSE, but ever more rarely, so that two
    // closing ends do not answer each other for ever.
    // RFC 9000 §10.2.1 MUST-1, MUST-2: never more than three times what arrived, as nobody checks here who sent it; and
    // CONNECTION_CLOSE goes to the path in use, whose own limit holds.
    pub(crate) fn on_datagram(&mut self, bytes: usize) {
        if self.is_closing() {
            self.received = self.received.saturating_add(1);
            self.bytes_received = self.bytes_received.saturating_add(bytes);
            let affordable = self.bytes_answered + self.size.unwrap_or(0) <= self.bytes_received.saturating_mul(3);
            if self.received >= self.repeat_at && affordable {
                self.received = 0;
                self.repeat_at = self.repeat_at.saturating_mul(2);
                self.to_send = true;
            }
        }
    }

    /// Returns whether an application's CONNECTION_CLOSE waits to be sent for the first time.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.frame, Some(CloseFrame::Application { .. })) && self.size.is_none()
    }

    /// Takes CONNECTION_CLOSE when it has to be sent; once.
    pub(crate) fn take_to_send(&mut self) -> Option<&CloseFrame> {
        let due = std::mem::replace(&mut self.to_send, false);
        self.frame.as_ref().filter(|_| due)
    }

    /// Notes that CONNECTION_CLOSE was sent in a datagram of `bytes` bytes.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        match self.size {
            None => self.size = Some(bytes),
            Some(_) => self.bytes_answered += bytes,
        }
    }

    /// Retains a packet with CONNECTION_CLOSE beyond the connection.
    pub(crate) fn retain(&mut self, close: RetainedClose) {
        self.retained = Some(Box::new(close));
    }

    /// Takes the state that outlives the connection; `None` when the peer has sent CONNECTION_CLOSE, too.
    pub(crate) fn take_retained(&mut self) -> Option<Box<RetainedClose>> {
        self.retained.take()
    }
}

/// Close reason of this endpoint for the application; `fault` is the cause of a TLS failure.
pub(crate) fn close_reason(error: TransportError, fault: Option<HandshakeFault>) -> CloseReason {
    match HandshakeFault::of(error.code) {
        Some(alert) => CloseReason::HandshakeFailed { error, fault: fault.unwrap_or(alert) },
        None => CloseReason::PeerMisbehaved(error),
    }
}

/// Time at which closing and draining end: three probe timeouts (RFC 9000 §10.2 SHOULD-1, SHOULD NOT-1).
pub(crate) fn end_of_closing(now: Instant, pto: units::Duration) -> Instant {
    now + pto * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9000 §10.2.1 SHOULD-1
    #[test]
    fn connection_close_is_repeated_ever_more_rarely() {
        let mut life = Lifecycle::new();
        assert!(life.close(CloseFrame::Application { code: 1, reason: vec![] }));
        let mut sent = 0;
        for _ in 0..1000 {
            if life.take_to_send().is_some() {
                life.on_sent(60);
                sent += 1;
            }
            life.on_datagram(40);
        }
        assert!(sent <= 11, "{sent} closes for 1,000 datagrams");
    }

    // RFC 9000 §10.2.1 MUST-1, MUST-2
    #[test]
    fn closes_stay_below_three_times_what_they_answer() {
        for (size, bytes) in [(1200, 1), (1200, 22), (60, 22), (40, 40), (30, 1200)] {
            let mut life = Lifecycle::new();
            assert!(life.close(CloseFrame::Application { code: 1, reason: vec![] }));
            assert!(life.take_to_send().is_some());
            life.on_sent(size);
            let (mut received, mut answered) = (0, 0);
            for _ in 0..10_000 {
                life.on_datagram(bytes);
                received += bytes;
                if life.take_to_send().is_some() {
                    life.on_sent(size);
                    answered += size;
                }
                assert!(answered <= 3 * received, "{answered} for {received}");
            }
            assert!(answered > 0, "it is repeated: {size} {bytes}");
        }
    }

    // RFC 9000 §10.2.2 MUST NOT-1, MUST NOT-2
    #[test]
    fn nothing_is_said_while_draining() {
        let mut life = Lifecycle::new();
        assert!(life.close(CloseFrame::Application { code: 1, reason: vec![] }));
        assert!(!life.drain());
        life.on_datagram(1200);
        assert!(life.take_to_send().is_none());
        assert!(!life.close(CloseFrame::Application { code: 2, reason: vec![] }));
    }
}
