//! Random decisions: one 64-bit draw against a probability.

use units::{Probability, RandomStream};

use rand_core::RngCore;

/// A probability made ready for comparing with draws: an integer out of 2^53.
///
/// The outcome is monotonic in the probability, so the losses at 1 % are a subset of the losses at 2 % under the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(probability: Probability) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the product is within 0..=2^53")]
        Self((probability.get() * (1u64 << 53) as f64).round() as u64)
    }

    /// Returns whether `draw` falls within this probability.
    #[inline]
    pub(crate) const fn decides(self, draw: u64) -> bool {
        draw >> 11 < self.0
    }
}

/// A draw, evenly from `0..=span`.
#[inline]
pub(crate) fn up_to(stream: &mut RandomStream, span: u64) -> u64 {
    scale(stream.next_u64(), span)
}

/// `draw` of 2^64 scaled to `0..=span`.
#[inline]
pub(crate) fn scale(draw: u64, span: u64) -> u64 {
    ((u128::from(draw) * (u128::from(span) + 1)) >> 64) as u64
}

/// The value of a distribution for a draw: a straight line between the two quantiles around it, from `least` on.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "within the table"
)]
pub(crate) fn inverse(quantiles: &[(f64, u64)], least: u64, draw: u64) -> u64 {
    let share = (draw >> 11) as f64 / (1u64 << 53) as f64;
    let above = quantiles.partition_point(|(until, _)| *until < share).min(quantiles.len().saturating_sub(1));
    let (high, to) = quantiles[above];
    let (low, from) = above.checked_sub(1).map_or((0.0, least), |below| quantiles[below]);
    let done = if high > low { ((share - low) / (high - low)).clamp(0.0, 1.0) } else { 1.0 };
    from + (done * (to - from) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_and_always_are_exact() {
        for draw in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(!Chance::new(Probability::ZERO).decides(draw));
            assert!(Chance::new(Probability::ONE).decides(draw));
        }
    }

    #[test]
    fn scaling_reaches_both_ends() {
        assert_eq!(scale(0, 10), 0);
        assert_eq!(scale(u64::MAX, 10), 10);
        assert_eq!(scale(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(scale(u64::MAX, 0), 0);
    }
}
