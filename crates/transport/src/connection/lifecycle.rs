//! How a connection ends (RFC 9000 §10): closing, draining, drained.

use std::borrow::Cow;

use units::Instant;

use crate::{
    endpoint::Epitaph,
    error::{Code, TransportError},
    events::CloseReason,
};

/// What a CONNECTION_CLOSE frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloseFrame {
    Transport(TransportError),
    Application { code: u64, reason: Vec<u8> },
}

impl CloseFrame {
    /// What may be said before the peer's application is authenticated.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// We said goodbye and repeat it to whoever still sends.
    Closing,
    /// The peer said goodbye: not a word more.
    Draining,
    Drained,
}

/// Owns the end of the connection.
pub(crate) struct Lifecycle {
    state: State,
    frame: Option<CloseFrame>,
    to_send: bool,
    /// Datagrams received while closing, and at how many the goodbye is repeated.
    received: u32,
    repeat_at: u32,
    /// Bytes received while closing, and bytes of goodbyes that answer them.
    bytes_received: usize,
    bytes_answered: usize,
    /// Size of the first goodbye, in bytes.
    size: Option<usize>,
    /// What is kept beyond the closing period.
    epitaph: Option<Box<Epitaph>>,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Open,
            frame: None,
            to_send: false,
            received: 0,
            repeat_at: 1,
            bytes_received: 0,
            bytes_answered: 0,
            size: None,
            epitaph: None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.state == State::Drained
    }

    /// This end closes, for `reason`. `true` when the connection was open.
    pub(crate) fn close(&mut self, frame: CloseFrame) -> bool {
        if self.state != State::Open {
            return false;
        }
        self.state = State::Closing;
        self.frame = Some(frame);
        self.to_send = true;
        true
    }

    /// The peer closed, or has forgotten the connection. `true` when the connection was open.
    pub(crate) fn drain(&mut self) -> bool {
        let was_open = self.state == State::Open;
        if self.state != State::Drained {
            self.state = State::Draining;
        }
        // RFC 9000 §10.2.2 MUST NOT-1: a draining connection sends nothing
        // RFC 9000 §10.2.2 MUST NOT-2: after the peer's goodbye, at most one packet with ours leaves before draining
        self.to_send = false;
        self.epitaph = None;
        was_open
    }

    /// Everything may be forgotten.
    pub(crate) fn finish(&mut self) {
        self.state = State::Drained;
        self.to_send = false;
    }

    /// A datagram arrived while closing.
    // RFC 9000 §10.2.1 SHOULD-1, RFC 9000 §11.1 SHOULD-1: answer with the goodbye, but ever more rarely, so that two
    // closing ends fall silent.
    // RFC 9000 §10.2.1 MUST-1, MUST-2: never more than three times what arrived, as nobody checks here who sent it; and
    // goodbyes go to the path in use, whose own limit holds.
    pub(crate) fn on_datagram(&mut self, bytes: usize) {
        if self.state == State::Closing {
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

    /// An application's goodbye waits to be sent for the first time.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.frame, Some(CloseFrame::Application { .. })) && self.size.is_none()
    }

    /// The goodbye, when it has to be sent; once.
    pub(crate) fn take_to_send(&mut self) -> Option<&CloseFrame> {
        let due = std::mem::replace(&mut self.to_send, false);
        self.frame.as_ref().filter(|_| due)
    }

    /// The goodbye was sent in a datagram of so many bytes.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        match self.size {
            None => self.size = Some(bytes),
            Some(_) => self.bytes_answered += bytes,
        }
    }

    /// A packet with the goodbye outlives the connection.
    pub(crate) fn set_epitaph(&mut self, epitaph: Epitaph) {
        self.epitaph = Some(Box::new(epitaph));
    }

    /// What outlives the connection; nothing when the peer has said goodbye, too.
    pub(crate) fn take_epitaph(&mut self) -> Option<Box<Epitaph>> {
        self.epitaph.take()
    }
}

/// A close of this end as the application sees it.
pub(crate) fn close_reason(error: TransportError) -> CloseReason {
    if (0x0100..0x0200).contains(&error.code.0) {
        CloseReason::HandshakeFailed(error)
    } else {
        CloseReason::PeerMisbehaved(error)
    }
}

/// When closing and draining end: three probe timeouts (RFC 9000 §10.2 SHOULD-1, SHOULD NOT-1).
pub(crate) fn end_of_closing(now: Instant, pto: units::Duration) -> Instant {
    now + pto * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9000 §10.2.1 SHOULD-1
    #[test]
    fn the_goodbye_is_repeated_ever_more_rarely() {
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
        assert!(sent <= 11, "{sent} goodbyes for 1,000 datagrams");
    }

    // RFC 9000 §10.2.1 MUST-1, MUST-2
    #[test]
    fn goodbyes_stay_below_three_times_what_they_answer() {
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
