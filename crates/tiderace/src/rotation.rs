//! Another form of connection IDs while connections are open: later IDs are made for another configuration of load balancers, or with the
//! present key of the ring, and existing connections replace theirs (NEW_CONNECTION_ID with Retire Prior To).

use std::io;

use transport::{IdGeneration, RoutableConfig, RoutableIds};

use crate::endpoint::{Endpoint, system_seed};

impl Endpoint {
    /// Makes connection IDs for `config` from here on, and lets all connections replace theirs. IDs of the `older` configurations are still
    /// read; peers use them until a packet of this endpoint has reached them.
    ///
    /// # Errors
    /// When no IDs can be made for `config`, or one of the `older` has IDs of another length. Nothing is changed then.
    pub fn rotate_ids(
        &self,
        config: RoutableConfig,
        older: &[RoutableConfig],
        generation: IdGeneration,
    ) -> io::Result<()> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        // Nonces must not repeat, also when a configuration returns.
        let seed = system_seed()?;
        let make = |shard: u8| {
            let ids = RoutableIds::new(shard, generation.number, config, &seed.child("shard", shard.into()));
            ids.and_then(|ids| ids.reading(older)).map_err(invalid)
        };
        let made = self.shards.iter().map(|shared| make(shared.shard)).collect::<io::Result<Vec<_>>>()?;
        for (shared, ids) in self.shards.iter().zip(made) {
            let mut state = shared.lock();
            if !state.is_lost() {
                state
                    .endpoint
                    .set_ids(Box::new(ids))
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                state.wake_driver();
            }
        }
        Ok(())
    }

    /// Lets all connections replace their connection IDs, so that the reset tokens of their peers are of the present key of the ring.
    pub fn renew_ids(&self) {
        for shared in &self.shards {
            let mut state = shared.lock();
            state.endpoint.renew_ids();
            state.wake_driver();
        }
    }
}
