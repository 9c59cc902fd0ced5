//! Connection IDs for load balancers (QUIC-LB): they name the machine, and to the machine its process and shard.
//!
//! Layout of the nonce: one byte of shard, one byte of generation, random bytes, and a counter. All of it is encrypted with the server ID,
//! so observers cannot link two IDs. Only holders of the key can choose an ID that decodes to the server ID, so no check is needed.

use rand_core::RngCore;
use units::{RandomStream, Seed};
use wire::ConnectionId;

use super::{ConnectionIdGenerator, Holder};
use crate::quic_lb::{self, Decoded, QuicLb, QuicLbError, QuicLbParameters, ServerId};

/// Bytes of the nonce that name shard and generation.
const STEERING: usize = 2;
/// Bytes of the counter.
const COUNTER: usize = 6;

/// Machine behind load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutableConfig {
    /// Configuration that the machines and the load balancers share.
    pub parameters: QuicLbParameters,
    /// Server ID of this machine alone.
    pub server_id: ServerId,
}

/// Parameters with which a machine cannot make connection IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutableError {
    /// Parameters that the draft forbids.
    #[error(transparent)]
    Parameters(#[from] QuicLbError),
    /// Server ID of another length.
    #[error(
        "the server ID has {found} bytes, the configuration {expected}\nhint: all machines have server IDs of one length"
    )]
    ServerIdLen {
        /// Bytes of the configuration.
        expected: usize,
        /// Bytes of the server ID.
        found: usize,
    },
    /// Nonce without room for shard, generation and a counter.
    #[error(
        "a nonce of {0} bytes has no room for worker, process and counter; expected at least 8\nhint: 14 bytes beside a server ID of 2"
    )]
    Nonce(usize),
    /// Shard and generation would be in the clear.
    #[error(
        "without a key, connection IDs would show machine, worker and process\nhint: give all machines and load balancers one key"
    )]
    NoKey,
}

impl RoutableConfig {
    /// Checks whether connection IDs can be made with it.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(&self) -> Result<(), RoutableError> {
        self.codec().map(drop)
    }

    fn codec(&self) -> Result<QuicLb, RoutableError> {
        let codec = QuicLb::new(&self.parameters)?;
        let found = self.server_id.as_slice().len();
        if found != codec.server_id_len() {
            return Err(RoutableError::ServerIdLen { expected: codec.server_id_len(), found });
        }
        if codec.nonce_len() < STEERING + COUNTER {
            return Err(RoutableError::Nonce(codec.nonce_len()));
        }
        // §5.4: without a key, nonces must not be linkable
        if !codec.is_encrypted() {
            return Err(RoutableError::NoKey);
        }
        Ok(codec)
    }
}

/// Layout of QUIC-LB with a shard and a generation in the nonce.
pub struct RoutableIds {
    shard: u8,
    generation: u8,
    config: RoutableConfig,
    codec: QuicLb,
    /// Configurations that are read and not used any more.
    older: Vec<(RoutableConfig, QuicLb)>,
    /// Distinguishes the nonces of a shard in a process: it starts at random.
    counter: u64,
    seed: Seed,
    random: RandomStream,
}

impl RoutableIds {
    /// IDs for the shard with this number, of a process of this generation.
    ///
    /// # Errors
    /// When there can be none.
    pub fn new(shard: u8, generation: u8, config: RoutableConfig, seed: &Seed) -> Result<Self, RoutableError> {
        let codec = config.codec()?;
        let mut random = seed.stream("connection ids");
        let counter = random.next_u64();
        Ok(Self { shard, generation, config, codec, older: Vec::new(), counter, seed: *seed, random })
    }

    /// Reads IDs of older configurations as well, also of other lengths: the config rotation bits tell which. One with the bits of another is
    /// left out.
    ///
    /// # Errors
    /// When there could be no IDs of one.
    pub fn reading(mut self, older: &[RoutableConfig]) -> Result<Self, RoutableError> {
        for config in older {
            let codec = config.codec()?;
            let same = |other: &RoutableConfig| other.parameters.config_id == config.parameters.config_id;
            if !same(&self.config) && !self.older.iter().any(|(other, _)| same(other)) {
                self.older.push((*config, codec));
            }
        }
        Ok(self)
    }

    /// Configurations that are read, the one in use first.
    fn all(&self) -> impl Iterator<Item = (&RoutableConfig, &QuicLb)> {
        let older = self.older.iter().map(|(config, codec)| (config, codec));
        std::iter::once((&self.config, &self.codec)).chain(older)
    }

    /// Content of an ID of any machine, with the server ID of this one.
    fn decode(&self, id: &[u8]) -> Option<(Decoded, ServerId)> {
        let mut fitting = self.all().filter(|(_, codec)| codec.id_len() == id.len());
        fitting.find_map(|(config, codec)| Some((codec.decode(id)?, config.server_id)))
    }

    /// Content of an ID of this machine.
    fn own(&self, id: &[u8]) -> Option<Decoded> {
        self.decode(id).filter(|(decoded, own)| decoded.server_id() == *own).map(|(decoded, _)| decoded)
    }
}

impl ConnectionIdGenerator for RoutableIds {
    fn generate(&mut self) -> ConnectionId {
        let mut bytes = [0; ConnectionId::MAX_LEN];
        self.random.fill_bytes(&mut bytes);
        let (nonce, low) = (&mut bytes[..self.codec.nonce_len()], self.counter.wrapping_add(1));
        let len = nonce.len();
        (nonce[0], nonce[1]) = (self.shard, self.generation);
        // §9.6: no nonce is used twice with one key. The counter takes 2^48 IDs to come round, and starts anywhere.
        self.counter = low;
        nonce[len - COUNTER..].copy_from_slice(&low.to_be_bytes()[8 - COUNTER..]);
        let first = bytes[ConnectionId::MAX_LEN - 1];
        // RFC 9000 §5.1 MUST NOT-1: the whole block is encrypted, the rest of the first octet random
        self.codec.encode(&self.config.server_id, &bytes[..len], first).expect("both have the lengths of the codec")
    }

    fn len(&self) -> usize {
        self.codec.id_len()
    }

    // RFC 9000 §10.3.2 MUST-2: the length of our IDs can be told without state
    fn len_of(&self, first: u8) -> usize {
        let config = self.all().find(|(config, _)| quic_lb::config_id(&[first]) == Some(config.parameters.config_id));
        config.map_or(self.len(), |(_, codec)| codec.id_len())
    }

    fn shard_of(&self, id: &[u8]) -> Option<u8> {
        self.own(id).map(|decoded| decoded.nonce()[0])
    }

    fn generation_of(&self, id: &[u8]) -> Option<u8> {
        self.own(id).map(|decoded| decoded.nonce()[1])
    }

    fn holder_of(&self, id: &[u8]) -> Option<Holder> {
        let (decoded, _) = self.decode(id).filter(|(decoded, own)| decoded.server_id() != *own)?;
        Some(Holder { server_id: decoded.server_id(), hint: decoded.nonce()[0] })
    }

    fn for_shard(&self, shard: u8) -> Option<Box<dyn ConnectionIdGenerator>> {
        let seed = self.seed.child("shard", shard.into());
        let older: Vec<_> = self.older.iter().map(|(config, _)| *config).collect();
        Some(Box::new(Self::new(shard, self.generation, self.config, &seed).ok()?.reading(&older).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(server_id: &str, nonce_len: usize, key: Option<[u8; 16]>) -> RoutableConfig {
        let server_id: ServerId = server_id.parse().unwrap();
        let server_id_len = server_id.as_slice().len();
        let parameters = QuicLbParameters { config_id: 3, server_id_len, nonce_len, key, encodes_len: false };
        RoutableConfig { parameters, server_id }
    }

    fn ids(server_id: &str, generation: u8, key: u8) -> RoutableIds {
        RoutableIds::new(4, generation, config(server_id, 14, Some([key; 16])), &Seed::from_number(7)).unwrap()
    }

    #[test]
    fn a_load_balancer_finds_the_machine_and_the_machine_shard_and_generation() {
        for nonce_len in [8, 9, 14, 17] {
            let config = config("0a01", nonce_len, Some([5; 16]));
            let mut old = RoutableIds::new(4, 250, config, &Seed::from_number(7)).unwrap();
            let new = RoutableIds::new(4, 251, config, &Seed::from_number(8)).unwrap();
            let id = old.generate();
            assert_eq!(id.len(), old.len());
            assert_eq!(QuicLb::new(&config.parameters).unwrap().server_id(&id), Some(config.server_id));
            assert_eq!((new.shard_of(&id), new.generation_of(&id)), (Some(4), Some(250)));
            let other = new.for_shard(9).unwrap().generate();
            assert_eq!((old.shard_of(&other), old.generation_of(&other)), (Some(9), Some(251)));
        }
    }

    #[test]
    fn an_id_of_another_machine_names_its_holder() {
        let (mut own, mut other) = (ids("0a01", 1, 1), ids("0a02", 9, 1));
        let holder = Holder { server_id: "0a02".parse().unwrap(), hint: 4 };
        assert_eq!(own.holder_of(&other.generate()), Some(holder));
        let id = own.generate();
        assert_eq!(own.holder_of(&id), None);
        // Another configuration is not read.
        let other_config = RoutableConfig {
            parameters: QuicLbParameters { config_id: 4, ..own.config.parameters },
            server_id: "0a02".parse().unwrap(),
        };
        let mut unread = RoutableIds::new(4, 1, other_config, &Seed::from_number(7)).unwrap();
        assert_eq!(own.holder_of(&unread.generate()), None);
    }

    #[test]
    fn ids_of_others_and_made_up_ones_name_nobody_here() {
        let mut own = ids("0a01", 1, 1);
        let id = own.generate();
        for mut other in [ids("0a02", 1, 1), ids("0a01", 1, 2)] {
            let foreign = other.generate();
            assert_eq!((own.shard_of(&foreign), own.generation_of(&foreign)), (None, None));
        }
        for place in 1..id.len() {
            let mut other = id.to_vec();
            other[place] ^= 1;
            // One in 65,536 passes; none of these is that one.
            assert_eq!(own.generation_of(&other), None, "byte {place}");
        }
        for len in 0..id.len() {
            assert_eq!((own.shard_of(&id[..len]), own.holder_of(&id[..len])), (None, None));
        }
        assert_eq!(own.shard_place(), None, "nothing is in the clear");
    }

    #[test]
    fn older_configurations_are_read_and_not_used() {
        let numbered = |config_id, key| {
            let first = config("0a01", 14, Some([key; 16]));
            RoutableConfig { parameters: QuicLbParameters { config_id, ..first.parameters }, ..first }
        };
        let make = |config| RoutableIds::new(4, 9, config, &Seed::from_number(7)).unwrap();
        let (first, second, third) = (numbered(0, 1), numbered(1, 2), numbered(0, 3));
        let (of_first, of_second) = (make(first).generate(), make(second).generate());
        let mut ids = make(second).reading(&[first]).unwrap();
        assert_eq!((ids.generation_of(&of_first), ids.shard_of(&of_first)), (Some(9), Some(4)));
        assert_eq!(make(second).generation_of(&of_first), None);
        assert_eq!(ids.generate()[0] >> 5, 1);
        let mut of_shard = ids.for_shard(5).unwrap();
        assert_eq!((of_shard.generation_of(&of_first), of_shard.generate()[0] >> 5), (Some(9), 1));
        // The third one has the bits of the first, which is not read any more.
        let ids = make(third).reading(&[first, second]).unwrap();
        assert_eq!((ids.generation_of(&of_first), ids.generation_of(&of_second)), (None, Some(9)));
        let foreign = RoutableIds::new(
            6,
            9,
            RoutableConfig { server_id: "0a02".parse().unwrap(), ..first },
            &Seed::from_number(1),
        );
        let ids = make(second).reading(&[first]).unwrap();
        assert_eq!(ids.holder_of(&foreign.unwrap().generate()).map(|holder| holder.hint), Some(6));
    }

    // RFC 9000 §10.3.2 MUST-2
    #[test]
    fn older_configurations_may_have_another_length_and_another_server_id() {
        let numbered = |config_id, server_id, nonce_len| {
            let config = config(server_id, nonce_len, Some([config_id + 1; 16]));
            RoutableConfig { parameters: QuicLbParameters { config_id, ..config.parameters }, ..config }
        };
        let (short, long) = (numbered(0, "0a", 8), numbered(5, "0a0b0c", 14));
        let make = |config| RoutableIds::new(4, 9, config, &Seed::from_number(7)).unwrap();
        let (of_short, of_long) = (make(short).generate(), make(long).generate());
        for ids in [make(short).reading(&[long]).unwrap(), make(long).reading(&[short]).unwrap()] {
            for id in [of_short, of_long] {
                assert_eq!(ids.len_of(id[0]), id.len());
                assert_eq!((ids.generation_of(&id), ids.shard_of(&id), ids.holder_of(&id)), (Some(9), Some(4), None));
                // What follows the ID in a packet does not belong to it.
                let longer = [&id[..], &[0]].concat();
                assert_eq!((ids.generation_of(&longer), ids.generation_of(&id[..id.len() - 1])), (None, None));
            }
            assert_eq!(ids.len_of(0xff), ids.len(), "no configuration has these bits");
        }
        assert_eq!(make(short).generation_of(&of_long), None);
    }

    // RFC 9000 §5.1 MUST NOT-2
    #[test]
    fn none_is_made_twice() {
        let mut ids = ids("0a01", 1, 1);
        let mut seen = std::collections::BTreeSet::new();
        // The first octet does not tell them apart.
        assert!((0..100_000).all(|_| seen.insert(ids.generate()[1..].to_vec())));
    }

    #[test]
    fn what_would_show_or_repeat_something_is_refused() {
        let check = |config: RoutableConfig| config.check().unwrap_err();
        assert_eq!(check(config("0a01", 14, None)), RoutableError::NoKey);
        assert_eq!(check(config("0a01", 7, Some([0; 16]))), RoutableError::Nonce(7));
        assert_eq!(check(config("0a01", 3, Some([0; 16]))), RoutableError::Parameters(QuicLbError::NonceLen(3)));
        let other = RoutableConfig { server_id: "01".parse().unwrap(), ..config("0a01", 14, Some([0; 16])) };
        assert_eq!(check(other), RoutableError::ServerIdLen { expected: 2, found: 1 });
        config("0a01", 14, Some([0; 16])).check().unwrap();
    }
}
