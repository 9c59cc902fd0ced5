//! Anti-amplification limit of an unvalidated address.

/// Owns the account of bytes of one path.
///
/// A client's path is validated from the start: the limit protects third parties from servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmplificationLimit {
    validated: bool,
    received: u64,
    sent: u64,
}

/// RFC 9000 §8.1: bytes that may be sent for each byte received.
const FACTOR: u64 = 3;

impl AmplificationLimit {
    pub(crate) const fn validated() -> Self {
        Self { validated: true, received: 0, sent: 0 }
    }

    pub(crate) const fn unvalidated() -> Self {
        Self { validated: false, received: 0, sent: 0 }
    }

    pub(crate) fn on_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// The peer has shown that it receives at the address. `true` when that is news.
    pub(crate) fn validate(&mut self) -> bool {
        !std::mem::replace(&mut self.validated, true)
    }

    pub(crate) fn is_validated(&self) -> bool {
        self.validated
    }

    /// Number of bytes that may leave.
    // RFC 9000 §8 MUST-1, RFC 9000 §8.1 MUST NOT-1, RFC 9000 §14.1 MUST-4: at most three times what was received
    // before the address is validated.
    pub(crate) fn budget(&self) -> u64 {
        if self.validated { u64::MAX } else { (FACTOR * self.received).saturating_sub(self.sent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9000 §8 MUST-1; RFC 9000 §8.1 MUST NOT-1, MUST-1
    #[test]
    fn three_times_what_came_until_validated() {
        let mut limit = AmplificationLimit::unvalidated();
        assert_eq!(limit.budget(), 0);
        limit.on_received(1200);
        assert_eq!(limit.budget(), 3600);
        limit.on_sent(3600);
        assert_eq!(limit.budget(), 0);
        assert!(limit.validate());
        assert!(!limit.validate());
        assert_eq!(limit.budget(), u64::MAX);
    }
}
