//! Shares and runs of losses of a two-state chain, from its transition matrix.

/// A chain: probabilities to leave the good and the bad state, and of loss within each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// From good to bad.
    pub to_bad: f64,
    /// From bad to good.
    pub to_good: f64,
    /// Loss in the good state.
    pub good: f64,
    /// Loss in the bad state.
    pub bad: f64,
}

impl Chain {
    /// Independent loss.
    pub const fn independent(loss: f64) -> Self {
        Self { to_bad: 0.5, to_good: 0.5, good: loss, bad: loss }
    }

    /// Share of packets lost.
    pub fn share(&self) -> f64 {
        let bad = self.to_bad / (self.to_bad + self.to_good);
        bad * self.bad + (1.0 - bad) * self.good
    }

    /// Probability that packets 0 and `lag` are both lost.
    fn both(&self, lag: i32) -> f64 {
        let bad = self.to_bad / (self.to_bad + self.to_good);
        // The second eigenvalue of the matrix.
        let memory = (1.0 - self.to_bad - self.to_good).powi(lag);
        let share = self.share();
        share * share + bad * (1.0 - bad) * (self.bad - self.good).powi(2) * memory
    }

    /// Mean length of a run of losses: a run continues with the probability that a loss is followed by one.
    pub fn run(&self) -> f64 {
        let again = self.both(1) / self.share();
        1.0 / (1.0 - again)
    }

    /// Standard deviation of the share lost of `packets`, correlation included.
    pub fn deviation(&self, packets: f64) -> f64 {
        let share = self.share();
        let variance = share * (1.0 - share);
        let memory = (1.0 - self.to_bad - self.to_good).abs().min(1.0 - 1e-9);
        let covariance = self.both(1) - share * share;
        // The sum over all lags of a geometric series.
        let sum = if memory > 0.0 { 2.0 * covariance / (1.0 - memory) } else { 0.0 };
        ((variance + sum.max(0.0)) / packets).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;

    #[test]
    fn formulas_meet_a_simulation() {
        let chain = Chain { to_bad: 0.02, to_good: 0.2, good: 0.01, bad: 0.7 };
        let mut draws = Draws::new(3);
        let (mut bad, mut before, mut lost, mut runs) = (false, false, 0.0, 0.0);
        for _ in 0..2_000_000 {
            let now = draws.unit() <= if bad { chain.bad } else { chain.good };
            lost += f64::from(u8::from(now));
            runs += f64::from(u8::from(now && !before));
            before = now;
            bad = if bad { draws.unit() > chain.to_good } else { draws.unit() <= chain.to_bad };
        }
        assert!((lost / 2e6 - chain.share()).abs() < 5.0 * chain.deviation(2e6));
        assert!((lost / runs / chain.run() - 1.0).abs() < 0.02, "{} {}", lost / runs, chain.run());
        assert!((Chain::independent(0.05).run() - 1.0 / 0.95).abs() < 1e-12);
    }
}
