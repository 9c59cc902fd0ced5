//! Generation of connection IDs.

use rand_core::RngCore;
use units::{RandomStream, Seed};
use wire::ConnectionId;

use crate::quic_lb::ServerId;

/// Machine that holds a connection, by an ID of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Server ID of the machine.
    pub server_id: ServerId,
    /// Byte that is equal for all IDs of the connection: the shard that the machine made them for.
    pub hint: u8,
}

/// Makes connection IDs and reads back which shard of the endpoint an ID belongs to.
///
/// The shard is in the clear beside the part that may be encrypted: the kernel's classic packet filter, which selects the socket of a
/// shard, can compare bytes but cannot decrypt.
pub trait ConnectionIdGenerator: Send {
    /// Generates a new ID. An ID never repeats within the life of the endpoint, and reveals nothing to an observer about another ID of the
    /// same connection (RFC 9000 §5.1).
    fn generate(&mut self) -> ConnectionId;

    /// Length of every ID it makes, in bytes: short headers do not carry one.
    fn len(&self) -> usize;

    /// Length of an ID that begins with this byte, in bytes. Differs from [`len`](Self::len) only for IDs that are read and not made: those of
    /// connections of other processes.
    fn len_of(&self, _first: u8) -> usize {
        self.len()
    }

    /// Returns whether IDs are empty, so that only addresses distinguish datagrams.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shard that made `id`; `None` when this generator's layout cannot have made it.
    fn shard_of(&self, id: &[u8]) -> Option<u8>;

    /// The generation of the process that made `id`; `None` when the layout names none, or no process with the same key made it.
    fn generation_of(&self, _id: &[u8]) -> Option<u8> {
        None
    }

    /// The holder of an ID that another machine has made; `None` for an ID of this machine, and when the layout names no machines.
    fn holder_of(&self, _id: &[u8]) -> Option<Holder> {
        None
    }

    /// Index of the byte in every ID that is the shard's number; `None` when no byte is just that.
    fn shard_place(&self) -> Option<usize> {
        None
    }

    /// Index of the byte in every ID that is the generation's number; `None` when no byte is just that.
    fn generation_place(&self) -> Option<usize> {
        None
    }

    /// The same layout for another shard of the endpoint; `None` when the layout knows no shards.
    fn for_shard(&self, _shard: u8) -> Option<Box<dyn ConnectionIdGenerator>> {
        None
    }
}

/// The default layout: one byte of shard, seven random bytes.
pub struct ShardedIds {
    shard: u8,
    seed: Seed,
    random: RandomStream,
}

impl ShardedIds {
    const LEN: usize = 8;

    /// IDs for the shard with this number.
    pub fn new(shard: u8, seed: &Seed) -> Self {
        Self { shard, seed: *seed, random: seed.stream("connection ids") }
    }
}

impl ConnectionIdGenerator for ShardedIds {
    fn generate(&mut self) -> ConnectionId {
        let mut bytes = [0; Self::LEN];
        // RFC 9000 §5.1 MUST NOT-1: connection IDs tell an observer nothing that links them to each other
        // RFC 9000 §5.1 MUST NOT-2: an ID is issued once on a connection
        // RFC 9000 §10.3.2 MUST NOT-1: an ID is not used again for another connection under the same key
        // RFC 9000 §10.3.2 MUST NOT-2: an ID whose token was revealed by a reset is not used again under the same key
        self.random.fill_bytes(&mut bytes);
        bytes[0] = self.shard;
        ConnectionId::new(&bytes).expect("eight bytes fit")
    }

    fn len(&self) -> usize {
        // RFC 9000 §10.3.2 MUST-2: the length of our IDs can be told without state
        Self::LEN
    }

    fn shard_of(&self, id: &[u8]) -> Option<u8> {
        (id.len() == Self::LEN).then(|| id[0])
    }

    fn shard_place(&self) -> Option<usize> {
        Some(0)
    }

    fn for_shard(&self, shard: u8) -> Option<Box<dyn ConnectionIdGenerator>> {
        Some(Box::new(Self::new(shard, &self.seed.child("shard", shard.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second layout, as a load balancer would want it: the shard in the clear, then a block that looks random and
    /// holds a server number for holders of the key.
    struct Masked {
        shard: u8,
        server: u16,
        key: u64,
        random: RandomStream,
    }

    impl Masked {
        fn server_of(&self, id: &[u8]) -> u16 {
            let nonce = u64::from_le_bytes(id[3..11].try_into().unwrap());
            let mask = nonce.wrapping_mul(self.key).to_le_bytes();
            u16::from_le_bytes([id[1] ^ mask[7], id[2] ^ mask[6]])
        }
    }

    impl ConnectionIdGenerator for Masked {
        fn generate(&mut self) -> ConnectionId {
            let nonce = self.random.next_u64();
            let mask = nonce.wrapping_mul(self.key).to_le_bytes();
            let server = self.server.to_le_bytes();
            let mut id = vec![self.shard, server[0] ^ mask[7], server[1] ^ mask[6]];
            id.extend_from_slice(&nonce.to_le_bytes());
            ConnectionId::new(&id).unwrap()
        }
        fn len(&self) -> usize {
            11
        }
        fn shard_of(&self, id: &[u8]) -> Option<u8> {
            (id.len() == 11).then(|| id[0])
        }
    }

    #[test]
    fn the_shard_is_readable_in_every_layout() {
        let seed = Seed::from_number(7);
        let masked = Masked { shard: 3, server: 0xbeef, key: 0x9e37_79b9_7f4a_7c15, random: seed.stream("x") };
        let mut layouts: [Box<dyn ConnectionIdGenerator>; 2] = [Box::new(ShardedIds::new(3, &seed)), Box::new(masked)];
        for layout in &mut layouts {
            let (one, other) = (layout.generate(), layout.generate());
            assert_ne!(one, other);
            assert_eq!(one.as_slice().len(), layout.len());
            assert_eq!(layout.shard_of(one.as_slice()), Some(3));
            assert_eq!(layout.shard_of(&[0; 5]), None);
        }
        let mut masked = Masked { shard: 3, server: 0xbeef, key: 0x9e37_79b9_7f4a_7c15, random: seed.stream("y") };
        let id = masked.generate();
        assert_eq!(masked.server_of(id.as_slice()), 0xbeef);
    }

    // RFC 9000 §5.1 MUST NOT-2; RFC 9000 §10.3.2 MUST-2, MUST NOT-1, MUST NOT-2
    #[test]
    fn ids_of_one_length_are_never_made_twice() {
        let mut ids = ShardedIds::new(7, &Seed::from_number(1));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100_000 {
            let id = ids.generate();
            assert_eq!(id.len(), ids.len());
            assert!(seen.insert(id));
        }
    }
}
