//! Congestion episode: one reaction to congestion, which may turn out to be spurious.

use units::Instant;

use super::{LossSample, SpuriousSample};

/// One recovery period (RFC 9002 §7.3.2) with the losses that belong to it.
///
/// All packets declared lost from its start until the next one belong to it. When every one of them arrives after all,
/// the reaction was spurious.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Episode {
    started_at: Option<Instant>,
    /// Packets of the episode whose loss still stands.
    lost: u64,
    /// A sign other than a loss that may prove spurious confirmed the congestion.
    confirmed: bool,
}

impl Episode {
    /// Time at which the last reaction began; `None` before the first.
    #[inline]
    pub fn started_at(&self) -> Option<Instant> {
        self.started_at
    }

    /// Returns whether a packet sent at this time belongs to the flight that the episode has already reacted to.
    #[inline]
    pub fn covers(&self, sent_at: Instant) -> bool {
        self.started_at.is_some_and(|start| sent_at <= start)
    }

    /// Takes losses in; true when they begin a new episode, to which the controller has to react.
    pub fn on_lost(&mut self, now: Instant, loss: &LossSample) -> bool {
        let new = !self.covers(loss.largest_lost_sent_at);
        if new {
            *self = Self { started_at: Some(now), lost: 0, confirmed: false };
        }
        self.lost += loss.packets;
        self.confirmed |= loss.persistent;
        new
    }

    /// Takes in congestion marks on packets up to one sent at `sent_at`; true when they begin a new episode.
    pub fn on_ecn_ce(&mut self, now: Instant, sent_at: Instant) -> bool {
        let new = !self.covers(sent_at);
        if new {
            *self = Self { started_at: Some(now), lost: 0, confirmed: true };
        }
        self.confirmed = true;
        new
    }

    /// Takes a loss back; true when it was the last one that the episode stood on.
    pub fn on_spurious_loss(&mut self, spurious: &SpuriousSample) -> bool {
        if self.confirmed || self.lost == 0 || self.started_at.is_none_or(|start| spurious.lost_at < start) {
            return false;
        }
        self.lost -= 1;
        self.lost == 0
    }

    /// Makes the reaction final, also when the losses prove spurious.
    pub fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// Leaves the episode, so that every acknowledgement counts again: after persistent congestion the window starts
    /// anew, and after a spurious reaction there was no congestion.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::loss;
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn late(lost_at: u64) -> SpuriousSample {
        SpuriousSample { pn: 0, bytes: 1200, sent_at: at(0), lost_at: at(lost_at) }
    }

    #[test]
    fn reacts_once_per_flight() {
        let mut episode = Episode::default();
        assert!(episode.on_lost(at(10), &loss(at(0))));
        assert!(!episode.on_lost(at(12), &loss(at(10))));
        assert!(episode.on_lost(at(20), &loss(at(11))));
        assert!(!episode.on_ecn_ce(at(21), at(20)));
    }

    #[test]
    fn spurious_when_all_losses_are() {
        let mut episode = Episode::default();
        episode.on_lost(at(10), &loss(at(0)));
        episode.on_lost(at(12), &loss(at(1)));
        assert!(!episode.on_spurious_loss(&late(9)), "of an earlier episode");
        assert!(!episode.on_spurious_loss(&late(10)));
        assert!(episode.on_spurious_loss(&late(12)));
    }

    #[test]
    fn marks_and_persistence_confirm() {
        let mut episode = Episode::default();
        episode.on_lost(at(10), &loss(at(0)));
        episode.on_ecn_ce(at(11), at(5));
        assert!(!episode.on_spurious_loss(&late(10)));
        episode.on_lost(at(20), &LossSample { persistent: true, ..loss(at(15)) });
        assert!(!episode.on_spurious_loss(&late(20)));
    }
}
