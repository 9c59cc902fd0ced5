//! Packet-timed round trips: a round ends with the first packet that was sent after it began
//! (draft "BBR.round_count: Tracking Packet-Timed Round Trips").

/// Owns the count of rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    /// A packet that left when at least this much was delivered ends the round.
    ends_at: u64,
    count: u64,
    started: bool,
}

impl Rounds {
    /// Processes the newest packet of an acknowledgement: bytes delivered at its departure, and bytes delivered at this time.
    #[inline]
    pub(super) fn on_acked(&mut self, prior_delivered: u64, delivered: u64) {
        self.started = prior_delivered >= self.ends_at;
        if self.started {
            self.ends_at = delivered;
            self.count += 1;
        }
    }

    /// Begins a round at this moment, without counting one.
    #[inline]
    pub(super) fn restart(&mut self, delivered: u64) {
        self.ends_at = delivered;
    }

    /// Returns whether the present acknowledgement began a round.
    #[inline]
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// Number of rounds.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// Largest value of the last rounds: one slot for each round, so the value is exact and an acknowledgement costs two comparisons.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundMax {
    slots: [u64; Self::ROUNDS],
    round: u64,
    best: u64,
}

impl RoundMax {
    /// Rounds that can be remembered.
    pub(super) const ROUNDS: usize = 10;

    /// Takes in a value of `round`, which never falls; values of the last `keep` rounds count.
    #[inline]
    pub(super) fn update(&mut self, round: u64, keep: u64, value: u64) {
        if round != self.round {
            self.advance(round, keep);
        }
        let slot = &mut self.slots[place(round)];
        *slot = value.max(*slot);
        self.best = self.best.max(value);
    }

    fn advance(&mut self, round: u64, keep: u64) {
        let length = Self::ROUNDS as u64;
        for back in 0..(round - self.round).min(length) {
            self.slots[place(round - back)] = 0;
        }
        self.round = round;
        let kept = (0..keep.min(length).min(round + 1)).map(|back| self.slots[place(round - back)]);
        self.best = kept.max().unwrap_or(0);
    }

    /// The largest value that counts.
    #[inline]
    pub(super) fn best(&self) -> u64 {
        self.best
    }
}

#[inline]
fn place(round: u64) -> usize {
    (round % RoundMax::ROUNDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_round_lasts_until_a_packet_that_was_sent_after_its_begin() {
        let mut rounds = Rounds::default();
        rounds.on_acked(0, 1000);
        assert!(rounds.started());
        // Sent before anything was delivered.
        rounds.on_acked(0, 2000);
        assert!(!rounds.started());
        rounds.on_acked(1000, 3000);
        assert!(rounds.started());
        assert_eq!(rounds.count(), 2);
        rounds.restart(5000);
        rounds.on_acked(3000, 6000);
        assert!(!rounds.started());
    }

    proptest! {
        #[test]
        fn remembers_exactly_the_last_rounds(
            steps in prop::collection::vec((0u64..14, 0u64..1000), 1..200), keep in 1u64..=10,
        ) {
            let (mut filter, mut round, mut all) = (RoundMax::default(), 0, Vec::new());
            for (step, value) in steps {
                // Most values come in a round that is there already.
                round += step.saturating_sub(9);
                filter.update(round, keep, value);
                all.push((round, value));
                let expected = all.iter().filter(|seen| round - seen.0 < keep).map(|seen| seen.1).max();
                prop_assert_eq!(Some(filter.best()), expected);
            }
        }
    }
}
