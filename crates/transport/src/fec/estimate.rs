//! Loss rate of a path and length of its bursts: averages over the latest packets.

/// Packets over which the share is averaged.
const SPAN: f64 = 1024.0;
/// Runs of losses over which their length is averaged.
const RUNS: f64 = 32.0;

/// Owns the estimates.
#[derive(Debug)]
pub(super) struct Estimate {
    loss: f64,
    burst: f64,
    /// Packets seen, as far as they count.
    seen: f64,
    last_lost: Option<u64>,
    run: f64,
    /// Runs seen, as far as they count.
    runs: f64,
}

impl Default for Estimate {
    fn default() -> Self {
        Self { loss: 0.0, burst: 1.0, seen: 0.0, last_lost: None, run: 0.0, runs: 0.0 }
    }
}

impl Estimate {
    /// Packet `pn` was lost.
    pub(super) fn on_lost(&mut self, pn: u64) {
        let follows = self.last_lost.is_some_and(|last| pn == last + 1);
        if !follows && self.run > 0.0 {
            // The first runs count as much as there are of them.
            self.runs = (self.runs + 1.0).min(RUNS);
            self.burst += (self.run - self.burst) / self.runs;
            self.run = 0.0;
        }
        self.run += 1.0;
        self.last_lost = Some(pn);
    }

    /// Takes the numbers of packets acknowledged and lost.
    pub(super) fn on_outcome(&mut self, acked: u64, lost: u64) {
        let packets = (acked + lost) as f64;
        if packets > 0.0 {
            // The first packets count as much as there are of them.
            self.seen = (self.seen + packets).min(SPAN);
            self.loss += (lost as f64 / packets - self.loss) * (packets / self.seen.max(packets));
        }
    }

    /// Packets that the average is made of.
    pub(super) fn seen(&self) -> f64 {
        self.seen
    }

    /// The share of packets lost, 0 to 1.
    pub(super) fn loss(&self) -> f64 {
        self.loss
    }

    /// Lower bound of the share of packets lost: two standard deviations below the average.
    pub(super) fn loss_at_least(&self) -> f64 {
        // An average with weights that fall off tells as much as twice its span.
        let packets = if self.seen < SPAN { self.seen } else { 2.0 * SPAN };
        self.loss - 2.0 * (self.loss / packets.max(1.0)).sqrt()
    }

    /// Factor by which the share may be too low, because it is made from few losses.
    pub(super) fn margin(&self) -> f64 {
        1.0 + 1.0 / (self.loss * self.seen).max(1.0).sqrt()
    }

    /// Mean number of consecutive lost packets beyond chance, at least 1.
    pub(super) fn burst(&self) -> f64 {
        (self.burst * (1.0 - self.loss)).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_in_a_thousand_is_not_known_to_be_more() {
        let mut estimate = Estimate::default();
        for round in 0..100 {
            estimate.on_outcome(99, u64::from(round % 10 == 9));
        }
        assert!((0.0003..0.003).contains(&estimate.loss()), "{}", estimate.loss());
        assert!(estimate.loss_at_least() < 0.001);
        (0..100).for_each(|_| estimate.on_outcome(95, 5));
        assert!(estimate.loss_at_least() > 0.03, "{}", estimate.loss_at_least());
    }

    #[test]
    fn runs_are_told_from_single_losses() {
        let mut estimate = Estimate::default();
        (0..200).for_each(|i| estimate.on_lost(i * 20));
        assert!(estimate.burst() < 1.01);
        (0..200).for_each(|i| (0..6).for_each(|place| estimate.on_lost(10_000 + i * 100 + place)));
        assert!((5.5..6.5).contains(&estimate.burst()), "{}", estimate.burst());
        // Long runs are known from the first on.
        let mut early = Estimate::default();
        (0..3).for_each(|i| (0..6).for_each(|place| early.on_lost(i * 100 + place)));
        assert!((5.5..6.5).contains(&early.burst()), "{}", early.burst());
    }
}
