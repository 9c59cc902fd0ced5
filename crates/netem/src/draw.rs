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
