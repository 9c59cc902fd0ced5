//! Duplicated packets.

use rand_core::RngCore;
use units::{Duration, Instant, RandomStream, Seed};

use crate::{
    config::Duplicate,
    draw::{Chance, scale},
};

/// Decides which packets arrive twice. Every packet makes two draws.
#[derive(Clone, Debug)]
pub(crate) struct Duplication {
    chance: Chance,
    /// The copy is at most this many nanoseconds later.
    span: u64,
    draws: RandomStream,
}

impl Duplication {
    pub(crate) fn new(config: &Duplicate, seed: &Seed) -> Self {
        Self {
            chance: Chance::new(config.probability),
            span: u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX),
            draws: seed.stream("duplicate"),
        }
    }

    /// Time at which the copy of a packet arrives that arrives at `first`, if there is one.
    #[inline]
    pub(crate) fn copy(&mut self, first: Instant) -> Option<Instant> {
        let (decision, later) = (self.draws.next_u64(), self.draws.next_u64());
        self.chance.decides(decision).then(|| first + Duration::from_nanos(scale(later, self.span)))
    }
}
