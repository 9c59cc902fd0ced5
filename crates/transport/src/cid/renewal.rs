//! Renewal of the connection IDs that a peer holds, because later IDs are made otherwise: for another configuration of load balancers, or with
//! reset tokens of another key.

/// Owner of the limit below which the peer has to retire IDs (Retire Prior To).
#[derive(Debug, Default)]
pub(super) struct Renewal {
    retire_prior_to: u64,
    /// One more is wanted when the peer has retired all IDs of this one.
    again: bool,
}

impl Renewal {
    /// Begins: IDs with a sequence number below `next` are to be retired. `oldest` is the lowest one that the peer has not retired.
    // RFC 9000 §5.1.2: a peer bounds the IDs whose retirement is not acknowledged yet, so one renewal ends before the next begins.
    pub(super) fn begin(&mut self, next: u64, oldest: Option<u64>) {
        if oldest.is_some_and(|oldest| self.is_outdated(oldest)) {
            self.again = true;
            return;
        }
        self.again = false;
        self.retire_prior_to = next;
    }

    /// The peer has retired an ID.
    pub(super) fn on_retired(&mut self, next: u64, oldest: Option<u64>) {
        if self.again {
            self.begin(next, oldest);
        }
    }

    /// Returns whether an ID is to be retired.
    pub(super) fn is_outdated(&self, sequence: u64) -> bool {
        sequence < self.retire_prior_to
    }

    /// Field of the frame that announces the ID with this number.
    // RFC 9000 §19.15 MUST-3: Retire Prior To is at most the sequence number
    pub(super) fn retire_prior_to(&self, sequence: u64) -> u64 {
        self.retire_prior_to.min(sequence)
    }
}
