//! Random choices of a controller, from the connection's seed.

use rand_core::RngCore;
use units::Seed;

/// A small generator (xorshift): what it decides needs to differ between connections, not to be unpredictable, and a
/// cipher's state in every path would be larger than the rest of the controller.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: &Seed) -> Self {
        Self(seed.stream("congestion").next_u64() | 1)
    }

    /// A number below `bound`, which is small.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper bits are the better ones.
        (self.0 >> 16) % bound
    }
}
