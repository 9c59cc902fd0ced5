//! Connection IDs of several processes that serve one address one after the other, while older ones drain.
//!
//! Layout: one byte of shard, one byte of generation, seven random bytes, two bytes of check. Shard and generation are in the clear,
//! because a packet filter in the kernel can compare bytes and cannot decrypt. The check is a keyed function of the other bytes: a flood of
//! packets with forged IDs is recognized before it costs another process anything.

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use rand_core::RngCore;
use units::{RandomStream, Seed};
use wire::ConnectionId;

use super::ConnectionIdGenerator;

/// Generation of a process, and the key of the checks in its connection IDs, which all generations share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IdGeneration {
    /// The byte in each ID. No two processes that serve an address at the same time have the same.
    pub number: u8,
    /// Key of the checks.
    pub key: [u8; 16],
}

impl std::fmt::Debug for IdGeneration {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdGeneration").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Layout with a shard and a generation.
pub struct GenerationIds {
    shard: u8,
    generation: IdGeneration,
    check: HeaderProtectionKey,
    seed: Seed,
    random: RandomStream,
}

impl GenerationIds {
    const LEN: usize = 11;
    const CHECKED: usize = 9;

    /// IDs for the shard with this number, of a process of this generation.
    pub fn new(shard: u8, generation: IdGeneration, seed: &Seed) -> Self {
        let check = HeaderProtectionKey::new(&AES_128, &generation.key).expect("the key has the cipher's length");
        Self { shard, generation, check, seed: *seed, random: seed.stream("connection ids") }
    }

    /// One block of the cipher over the first bytes.
    fn check(&self, id: &[u8]) -> [u8; 2] {
        let mut block = [0; 16];
        block[..Self::CHECKED].copy_from_slice(&id[..Self::CHECKED]);
        let mask = self.check.new_mask(&block).expect("a block has the sample's length");
        [mask[0], mask[1]]
    }
}

impl ConnectionIdGenerator for GenerationIds {
    fn generate(&mut self) -> ConnectionId {
        let mut bytes = [0; Self::LEN];
        // RFC 9000 §5.1 MUST NOT-1: beside shard and generation, which many connections share, all of it looks random
        self.random.fill_bytes(&mut bytes[2..Self::CHECKED]);
        bytes[0] = self.shard;
        bytes[1] = self.generation.number;
        let check = self.check(&bytes);
        bytes[Self::CHECKED..].copy_from_slice(&check);
        ConnectionId::new(&bytes).expect("eleven bytes fit")
    }

    fn len(&self) -> usize {
        Self::LEN
    }

    fn shard_of(&self, id: &[u8]) -> Option<u8> {
        (id.len() == Self::LEN).then(|| id[0])
    }

    fn generation_of(&self, id: &[u8]) -> Option<u8> {
        (id.len() == Self::LEN && id[Self::CHECKED..] == self.check(id)).then(|| id[1])
    }

    fn shard_place(&self) -> Option<usize> {
        Some(0)
    }

    fn generation_place(&self) -> Option<usize> {
        Some(1)
    }

    fn for_shard(&self, shard: u8) -> Option<Box<dyn ConnectionIdGenerator>> {
        Some(Box::new(Self::new(shard, self.generation, &self.seed.child("shard", shard.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(number: u8, key: u8) -> GenerationIds {
        GenerationIds::new(3, IdGeneration { number, key: [key; 16] }, &Seed::from_number(7))
    }

    #[test]
    fn every_generation_reads_the_ids_of_all() {
        let (mut old, new) = (ids(250, 1), ids(251, 1));
        let id = old.generate();
        assert_eq!((new.shard_of(id.as_slice()), new.generation_of(id.as_slice())), (Some(3), Some(250)));
        let shard = new.for_shard(9).unwrap().generate();
        assert_eq!((old.shard_of(shard.as_slice()), old.generation_of(shard.as_slice())), (Some(9), Some(251)));
        assert_eq!(ids(1, 2).generation_of(id.as_slice()), None, "another key");
    }

    #[test]
    fn made_up_ids_name_no_generation() {
        let mut ids = ids(1, 1);
        let id = ids.generate();
        for place in 0..id.len() {
            for bit in 0..8 {
                let mut other = id.as_slice().to_vec();
                other[place] ^= 1 << bit;
                // Two bytes of check let one in 65,536 pass; none of these 88 is that one.
                assert_eq!(ids.generation_of(&other), None, "byte {place}");
            }
        }
        for len in 0..id.len() {
            assert_eq!(ids.generation_of(&id.as_slice()[..len]), None);
        }
    }

    // RFC 9000 §5.1 MUST NOT-2
    #[test]
    fn none_is_made_twice() {
        let mut ids = ids(1, 1);
        let mut seen = std::collections::BTreeSet::new();
        assert!((0..100_000).all(|_| seen.insert(ids.generate())));
    }
}
