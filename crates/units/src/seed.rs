//! Source of all random numbers.

use rand_chacha::{ChaCha12Rng, rand_core::SeedableRng};

/// A stream of random numbers for one purpose.
///
/// ChaCha, so that a connection seeded from the operating system may also use it where a peer must not be able to
/// predict the result (connection IDs, reset tokens).
pub type RandomStream = ChaCha12Rng;

/// The origin of all randomness of one run, one endpoint or one connection.
///
/// Each purpose draws from its own stream: adding a draw for one purpose does not shift the numbers of another, so two
/// runs that differ in one setting still share all other randomness (common random numbers).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// A seed from all of its bytes, for example from the operating system.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A seed from a number that a person can write down.
    pub fn from_number(number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }

    /// The stream for one purpose. The same purpose gives the same stream.
    pub fn stream(&self, purpose: &str) -> RandomStream {
        RandomStream::from_seed(self.child(purpose, 0).0)
    }

    /// The seed of a part: the connection, link or flow number `index` within `purpose`.
    #[must_use]
    pub fn child(&self, purpose: &str, index: u64) -> Self {
        use rand_chacha::rand_core::RngCore;
        // Absorb the purpose block by block, permuting between blocks, so that no two (purpose, index) share a state.
        let mut state = self.0;
        let mut absorb = |block: &[u8]| {
            for (byte, input) in state.iter_mut().zip(block) {
                *byte ^= input;
            }
            RandomStream::from_seed(state).fill_bytes(&mut state);
        };
        let mut head = [0; 32];
        head[..8].copy_from_slice(&index.to_le_bytes());
        head[8..16].copy_from_slice(&(purpose.len() as u64).to_le_bytes());
        absorb(&head);
        for block in purpose.as_bytes().chunks(32) {
            absorb(block);
        }
        Self(state)
    }
}

impl core::fmt::Debug for Seed {
    /// The bytes stay private: with them every connection ID and token of an endpoint could be predicted.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::RngCore;

    use super::*;

    #[test]
    fn purposes_and_parts_are_independent() {
        let seed = Seed::from_number(1);
        let mut seen = std::collections::HashSet::new();
        for purpose in ["loss", "jitter", "loss\0"] {
            for index in 0..100 {
                assert!(seen.insert(seed.child(purpose, index).stream("x").next_u64()));
            }
        }
        assert_eq!(seed.stream("loss").next_u64(), Seed::from_number(1).stream("loss").next_u64());
        assert_ne!(seed.stream("loss").next_u64(), Seed::from_number(2).stream("loss").next_u64());
    }
}
