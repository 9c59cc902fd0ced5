//! Connection IDs: generation, IDs that this endpoint issued, IDs that the peer issued (RFC 9000 §5.1).

mod generation;
mod generator;
mod local;
mod remote;
mod renewal;
mod routable;

pub use generation::{GenerationIds, IdGeneration};
pub use generator::{ConnectionIdGenerator, Holder, ShardedIds};
pub(crate) use local::LocalIds;
pub(crate) use remote::{ACTIVE_LIMIT, RemoteIds};
pub use routable::{RoutableConfig, RoutableError, RoutableIds};
