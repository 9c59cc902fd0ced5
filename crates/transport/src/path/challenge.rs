//! Path validation (RFC 9000 §8.2): a random number that the peer has to return.

use std::collections::VecDeque;

use units::{Duration, Instant};

/// Number of challenges after which the path is abandoned by its timer; each has new data.
const OUTSTANDING_LIMIT: usize = 4;
/// Challenges of the peer on one path that wait for their answers. A peer needs one; beyond this the oldest is forgotten, so
/// that a flood costs its sender the answers and not us memory.
const RESPONSES_LIMIT: usize = 4;

/// Outcome of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The peer returned data that was sent on this path.
    Validated {
        /// The challenge filled a datagram of 1,200 bytes: the path carries what QUIC needs.
        full_size: bool,
    },
    /// Data that was not sent, or is not waited for any more.
    Unrelated,
}

/// Owns the challenges of one path, and the answer that the peer waits for.
#[derive(Default)]
pub(crate) struct Challenge {
    /// Data of the challenges sent, and whether each filled a datagram of full size.
    outstanding: Vec<([u8; 8], bool)>,
    to_send: Option<[u8; 8]>,
    /// Time at which the path is abandoned.
    deadline: Option<Instant>,
    /// Time at which the challenge is sent again.
    repeat: Option<(Instant, Duration)>,
    responses: VecDeque<[u8; 8]>,
    /// Number of times the peer has challenged us.
    pub(crate) asked: u64,
}

impl Challenge {
    /// Starts a validation, or repeats it with fresh data.
    pub(crate) fn start(&mut self, data: [u8; 8], now: Instant, pto: Duration) {
        if self.deadline.is_none() {
            // RFC 9000 §8.2.4 SHOULD-1, RFC 9000 §9.4 SHOULD-1, MUST NOT-2: give up after three times the larger of
            // the PTOs.
            self.deadline = Some(now + pto * 3);
        }
        self.repeat = Some((now + pto, pto));
        self.to_send = Some(data);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.deadline.is_some()
    }

    /// The peer challenges us on this path.
    pub(crate) fn on_challenge(&mut self, data: [u8; 8]) {
        self.asked += 1;
        if self.responses.len() == RESPONSES_LIMIT {
            self.responses.pop_front();
        }
        self.responses.push_back(data);
    }

    /// An answer arrived (on whichever path).
    pub(crate) fn on_response(&mut self, data: [u8; 8]) -> Outcome {
        let Some(&(_, full_size)) = self.outstanding.iter().find(|(sent, _)| *sent == data) else {
            return Outcome::Unrelated;
        };
        self.abandon();
        Outcome::Validated { full_size }
    }

    /// Gives the validation up.
    pub(crate) fn abandon(&mut self) {
        *self = Self { responses: std::mem::take(&mut self.responses), ..Self::default() };
    }

    #[inline]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.to_send.is_some() || !self.responses.is_empty()
    }

    pub(crate) fn take_response(&mut self) -> Option<[u8; 8]> {
        // RFC 9000 §8.2.2 MUST NOT-4: one answer per challenge
        self.responses.pop_front()
    }

    /// Data of a PATH_CHALLENGE frame, if one is due; `full_size`: its datagram has 1,200 bytes.
    pub(crate) fn take_challenge(&mut self, full_size: bool) -> Option<[u8; 8]> {
        let data = self.to_send.take()?;
        if self.outstanding.len() == OUTSTANDING_LIMIT {
            self.outstanding.remove(0);
        }
        self.outstanding.push((data, full_size));
        Some(data)
    }

    /// Time of the next repeat, or of the end.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match (self.deadline, self.repeat) {
            (Some(deadline), Some((repeat, _))) => Some(deadline.min(repeat)),
            (deadline, _) => deadline,
        }
    }

    /// The validation has failed by `now`.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The challenge is due again by `now`; returns the timeout it runs with.
    pub(crate) fn repeat_due(&mut self, now: Instant) -> Option<Duration> {
        let (at, pto) = self.repeat?;
        (at <= now).then(|| {
            self.repeat = None;
            pto
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_validates() {
        let mut challenge = Challenge::default();
        let pto = Duration::from_millis(100);
        challenge.start([1; 8], Instant::ZERO, pto);
        assert_eq!(challenge.on_response([1; 8]), Outcome::Unrelated, "not sent yet");
        assert_eq!(challenge.take_challenge(true), Some([1; 8]));
        assert_eq!(challenge.on_response([2; 8]), Outcome::Unrelated);
        assert_eq!(challenge.on_response([1; 8]), Outcome::Validated { full_size: true });
        assert_eq!(challenge.on_response([1; 8]), Outcome::Unrelated, "once");
        assert_eq!(challenge.next_timeout(), None);
    }

    // RFC 9000 §8.2.4 SHOULD-1; RFC 9000 §9.4 SHOULD-1, MUST NOT-2
    #[test]
    fn repeats_and_expires() {
        let mut challenge = Challenge::default();
        let pto = Duration::from_millis(100);
        challenge.start([1; 8], Instant::ZERO, pto);
        assert_eq!(challenge.next_timeout(), Some(Instant::from_millis(100)));
        assert_eq!(challenge.repeat_due(Instant::from_millis(100)), Some(pto));
        challenge.start([2; 8], Instant::from_millis(100), pto);
        assert!(!challenge.is_expired(Instant::from_millis(299)));
        assert!(challenge.is_expired(Instant::from_millis(300)));
    }

    #[test]
    fn a_flood_of_challenges_gets_few_answers_and_keeps_nothing() {
        let mut challenge = Challenge::default();
        for n in 0..10_000_u64 {
            challenge.on_challenge(n.to_be_bytes());
            challenge.start(n.to_be_bytes(), Instant::ZERO, Duration::from_millis(1));
            challenge.take_challenge(n % 2 == 0);
        }
        for n in 9_996..10_000_u64 {
            assert_eq!(challenge.take_response(), Some(n.to_be_bytes()));
        }
        assert_eq!(challenge.take_response(), None);
        assert!(challenge.outstanding.len() <= OUTSTANDING_LIMIT);
    }
}
