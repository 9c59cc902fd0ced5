//! ECN marking of the packets of a path (RFC 9000 §13.4.2).

/// Timeouts without any sign of life from a marked packet, after which the marks are suspected.
const PATIENCE: u8 = 2;

/// Owns the decision of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EcnMarks {
    /// Packets are marked; none of them was reported.
    Testing { timeouts: u8 },
    /// The peer has reported marks that fit.
    Capable,
    /// Packets are not marked: ECN is off, the peer's reports do not fit, or no marked packet arrived.
    Off,
}

impl EcnMarks {
    pub(crate) fn new(wanted: bool) -> Self {
        if wanted { Self::Testing { timeouts: 0 } } else { Self::Off }
    }

    /// Returns whether the next packet is marked.
    #[inline]
    pub(crate) fn mark(self) -> bool {
        self != Self::Off
    }

    /// The peer has reported marks that fit what was sent.
    #[inline]
    pub(crate) fn on_valid(&mut self) {
        if let Self::Testing { .. } = self {
            *self = Self::Capable;
        }
    }

    /// The reports cannot be true, or are missing.
    // RFC 9000 §13.4.2.1 MUST: a path that does not bring the marks back is not marked any more.
    pub(crate) fn on_failed(&mut self) {
        *self = Self::Off;
    }

    /// A probe timeout expired. `true` when that was one too many.
    // RFC 9000 §13.4.2: a path on which marked packets vanish is left unmarked. Loss alone is taken for that now and then,
    // and the path continues as one without ECN.
    pub(crate) fn on_timeout(&mut self) -> bool {
        let Self::Testing { timeouts } = self else { return false };
        *timeouts += 1;
        let suspected = *timeouts >= PATIENCE;
        if suspected {
            *self = Self::Off;
        }
        suspected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_vanish_are_given_up_and_marks_that_arrived_are_not() {
        let mut marks = EcnMarks::new(true);
        assert!(marks.mark() && !marks.on_timeout() && marks.mark());
        assert!(marks.on_timeout() && !marks.mark());
        let mut marks = EcnMarks::new(true);
        marks.on_valid();
        assert!((0..100).all(|_| !marks.on_timeout()) && marks.mark());
        marks.on_failed();
        marks.on_valid();
        assert!(!marks.mark() && !EcnMarks::new(false).mark());
    }
}
