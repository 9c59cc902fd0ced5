//! ECN counts that the peer reports, checked against what was sent (RFC 9000 §13.4.2).

use wire::EcnCounts;

/// ECN information of an acknowledgement about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum EcnFeedback {
    /// No news: no marked packet was acknowledged, or the frame is older than another.
    #[default]
    None,
    /// The counts are consistent with the sent packets; this number of further packets met congestion.
    Valid {
        /// Newly reported ECN-CE marks.
        newly_ce: u64,
    },
    /// The counts cannot be true: marking has to stop on this path.
    Failed,
}

/// Owns the counts of one packet number space, over all paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnFeedbackState {
    counts: EcnCounts,
}

impl EcnFeedbackState {
    /// Takes in the counts of an ACK frame that raised the largest acknowledged packet number and newly acknowledged
    /// `newly_marked` packets that had been sent with ECT(0).
    pub(crate) fn on_ack(&mut self, reported: Option<EcnCounts>, newly_marked: u64) -> EcnFeedback {
        let Some(reported) = reported else {
            // RFC 9000 §13.4.2.1: marked packets that are acknowledged without counts: the marks do not arrive.
            return if newly_marked > 0 { EcnFeedback::Failed } else { EcnFeedback::None };
        };
        let old = self.counts;
        let (Some(ect0), Some(ect1), Some(ce)) =
            (reported.ect0.checked_sub(old.ect0), reported.ect1.checked_sub(old.ect1), reported.ce.checked_sub(old.ce))
        else {
            return EcnFeedback::Failed;
        };
        self.counts = reported;
        // RFC 9000 §13.4.2.1: each marked packet arrives marked, if only with CE; and nobody has sent ECT(1).
        if ect0.saturating_add(ce) < newly_marked || ect1 > 0 {
            return EcnFeedback::Failed;
        }
        if newly_marked == 0 && ce == 0 { EcnFeedback::None } else { EcnFeedback::Valid { newly_ce: ce } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ect0: u64, ect1: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1, ce })
    }

    #[test]
    fn believes_what_adds_up() {
        let mut state = EcnFeedbackState::default();
        assert_eq!(state.on_ack(None, 0), EcnFeedback::None);
        assert_eq!(state.on_ack(counts(3, 0, 0), 3), EcnFeedback::Valid { newly_ce: 0 });
        assert_eq!(state.on_ack(counts(4, 0, 2), 3), EcnFeedback::Valid { newly_ce: 2 });
        // Counts may run ahead of acknowledgements that were lost.
        assert_eq!(state.on_ack(counts(10, 0, 2), 1), EcnFeedback::Valid { newly_ce: 0 });
    }

    #[test]
    fn refuses_what_does_not() {
        for (reported, marked) in [(None, 1), (counts(1, 0, 0), 2), (counts(2, 1, 0), 2), (counts(0, 2, 0), 2)] {
            assert_eq!(EcnFeedbackState::default().on_ack(reported, marked), EcnFeedback::Failed, "{reported:?}");
        }
        let mut state = EcnFeedbackState::default();
        state.on_ack(counts(5, 0, 0), 5);
        assert_eq!(state.on_ack(counts(4, 0, 9), 1), EcnFeedback::Failed);
    }
}
